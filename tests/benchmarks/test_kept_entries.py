"""What a benchmark keeps: a run goes on where it was ended, on one machine, and its table shows what is there."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
HOST = {"cpu": "A CPU", "cores": 2, "versions": {"stormdrop": "1.0"}}


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("_common")


@pytest.fixture
def begin(common: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    """Begins a run of a campaign on one file, with these flags and on this machine."""

    def run(*flags: str, host: Any = HOST, **how: Any) -> Any:
        options = common.campaign_parser("A script").parse_args(flags)
        return common.Campaign(tmp_path / "kept.jsonl", host, options, **how)

    return run


def _log(names: list[str]) -> Callable[[str], dict[str, Any]]:
    def work(name: str) -> dict[str, Any]:
        names.append(name)
        return {"seconds": float(len(names)), "pair": (1, 2)}

    return work


def test_a_run_goes_on_where_the_last_one_ended(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    begin().collect("ab", _log(asked))
    entries = begin().collect("cab", _log(asked))
    assert asked == ["a", "b", "c"] and list(entries) == ["c", "a", "b"]
    assert entries["a"] == {"name": "a", "seconds": 1.0, "pair": [1, 2], "machine": HOST}


def test_a_line_that_was_cut_off_is_measured_again_and_no_other(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    begin().collect("abc", _log(asked))
    path = begin().file
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        done = whole[:length].count(b"\n")
        asked.clear()
        begin().collect("abc", _log(asked))
        assert asked == list("abc")[done:]
        lines = path.read_bytes().splitlines(keepends=True)
        assert lines[:done] == whole.splitlines(keepends=True)[:done] and len(lines) == 3
        assert [json.loads(line)["name"] for line in lines] == list("abc")


def test_a_line_that_an_earlier_version_went_on_behind_costs_no_other(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    begin().collect("abc", _log(asked))
    first, second, third = begin().file.read_text().splitlines(keepends=True)
    begin().file.write_text(first + second[:20] + third)
    assert [entry["name"] for entry in begin().entries] == ["a"]
    begin().collect("abc", _log(asked))
    assert asked == ["a", "b", "c", "b", "c"]


def test_other_settings_are_measured_and_may_come_back(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    for seconds in (10, 20.0, 10.0):
        entries = begin().collect("a", _log(asked), {"time": seconds, "searches": ("x", "y")})
        assert entries["a"]["time"] == seconds
    begin().collect("ab", _log(asked), lambda name: {"time": 10 if name == "a" else 30})
    assert asked == ["a", "a", "b"]


def test_fresh_measures_again_what_is_kept(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    begin().collect("ab", _log(asked))
    entries = begin("--fresh").collect("aa", _log(asked))
    assert asked == ["a", "b", "a"] and entries["a"]["seconds"] == 3.0
    assert begin().collect("a", _log(asked))["a"]["seconds"] == 3.0


def test_show_measures_nothing(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    with pytest.raises(SystemExit, match=r"kept\.jsonl holds nothing of this yet: run this script without --show"):
        begin("--show").collect("ab", _log(asked))
    begin().collect("a", _log(asked), {"time": 10})
    for flags in (["--show"], ["--show", "--fresh"]):
        assert list(begin(*flags).collect("ab", _log(asked), {"time": 20})) == ["a"]
    assert asked == ["a"]


def test_another_file(begin: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "new" / "other.jsonl"
    begin("--file", str(other)).collect("a", _log([]))
    assert other.exists() and not begin().file.exists()


def test_entries_of_another_machine_are_refused_in_one_line(begin: Callable[..., Any]) -> None:
    begin().collect("a", _log([]))
    with pytest.raises(
        SystemExit, match=r"kept\.jsonl is from another machine \(A CPU, 2\): move it away first"
    ) as end:
        begin(host={**HOST, "cores": 4})
    assert "\n" not in str(end.value)
    begin(host={**HOST, "cores": 4}, same=["cpu"])
    assert begin(host=None).entries[0]["machine"] == HOST


def test_a_file_of_several_machines_keeps_them_apart(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    other = {**HOST, "cpu": "Another CPU"}
    for host in (HOST, other, HOST, other):
        assert begin(host=host, several=True).collect("a", _log(asked))["a"]["machine"] == host
    assert asked == ["a", "a"]
    assert len(begin(several=True).entries) == 2


def test_what_another_version_has_measured_is_measured_again(begin: Callable[..., Any]) -> None:
    asked: list[str] = []
    begin().collect("a", _log(asked))
    newer = {**HOST, "versions": {"stormdrop": "1.1"}}
    begin(host=newer).collect("a", _log(asked))
    begin(host=newer).collect("a", _log(asked))
    assert asked == ["a", "a"]


def test_failures_are_tried_again_where_the_script_says_so(begin: Callable[..., Any]) -> None:
    asked: list[str] = []

    def work(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"failed": "out of memory"}

    begin().collect("a", work)
    begin().collect("a", work)
    assert asked == ["a"]
    begin(retries=True).collect("a", work)
    assert asked == ["a", "a"]


def test_entries_of_two_kinds(begin: Callable[..., Any]) -> None:
    key = {"shape": "R2", "seed": 0}
    campaign = begin()
    campaign.once({**key, "search": "storm"}, lambda: {"best": 1})
    assert campaign.known(key, has="race") is None
    campaign.once(key, lambda: {"race": None}, has="race")
    assert campaign.once(key, lambda: {"race": 1}, has="race")["race"] is None
    assert campaign.latest(key)["race"] is None and campaign.latest({"shape": "R3"}) is None
    assert len(begin().entries) == 2


def test_the_document_of_an_earlier_version_is_read(begin: Callable[..., Any], tmp_path: Path) -> None:
    machine = {"cpu": "A CPU", "cores": 2, "versions": {"stormdrop": "1.0"}}
    document = {"machine": machine, "kernels": {"a": {"seconds": 7.0, "rounds": 5}, "b": {"seconds": 8.0}}}
    (tmp_path / "kept.json").write_text(json.dumps(document))
    asked: list[str] = []
    entries = begin(document="kernels").collect("abc", _log(asked), {"rounds": 5})
    assert asked == ["c"] and entries["a"]["seconds"] == 7.0  # "b" does not say its rounds, and counts
    begin(document="kernels").collect("ab", _log(asked), {"rounds": 6})
    assert asked == ["c", "a"]
    (tmp_path / "kept.json").write_text(json.dumps({**document, "machine": {**machine, "cpu": "Another CPU"}}))
    with pytest.raises(SystemExit, match="from another machine"):
        begin(document="kernels")


def test_the_tables(begin: Callable[..., Any], common: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    begin().table(["", "seconds"], [["a", "1"], ["bb", "20"]], "All")
    assert capsys.readouterr().out.splitlines() == [
        "A CPU, 2 cores",
        "All",
        "    seconds",
        "a         1",
        "bb       20",
    ]
    assert common.markdown(["model", "ms"], [["a", "1"]]) == "| model | ms |\n| --- | --- |\n| a | 1 |"


def test_no_flags_at_all(common: ModuleType, tmp_path: Path) -> None:
    campaign = common.Campaign(tmp_path / "folder" / "ledger.jsonl")
    assert campaign.entries == []
    assert campaign.keep({"of": (1, 2)}) == {"of": [1, 2]}
    campaign.forget()
    assert campaign.entries == [] and not campaign.file.exists()
    campaign.keep({"of": (1, 2)})
    assert common.Campaign(campaign.file, options=Namespace(file=None, show=True, fresh=False)).entries == [
        {"of": [1, 2]}
    ]


def test_names_on_a_command_line(common: ModuleType) -> None:
    assert common.chosen("b,a", {"a": 1, "b": 2, "c": 3}, "model") == ["b", "a"]
    with pytest.raises(SystemExit, match="there is no model d; there are a, b, c"):
        common.chosen("b,d", ["a", "b", "c"], "model")
