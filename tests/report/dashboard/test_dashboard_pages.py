"""The pages and downloads of the dashboard."""

from __future__ import annotations

import csv
import html
import io
import json
from pathlib import Path

import pytest
from records_to_show import HOSTILE, SKETCH, client, database, opened, worked
from starlette.testclient import TestClient

from stormdrop import events
from stormdrop.records import Outcome, Problem, Setting, open_store
from stormdrop.records.contract import CONDITIONS
from stormdrop.records.reading.reader import RecordsReader
from stormdrop.records.reading.session_lines import SessionFilter
from stormdrop.report.traces.announcement import announced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return database(tmp_path / "records.db")


@pytest.fixture
def dashboard(path: Path) -> TestClient:
    return client(path)


def ids(path: Path) -> dict[str, str]:
    """The id of each session by its name."""
    reader = RecordsReader(path)
    found = {line.workload_name: line.id for line in reader.sessions(SessionFilter())}
    reader.close()
    return found


def text(dashboard: TestClient, address: str, code: int = 200) -> str:
    answer = dashboard.get(address)
    assert answer.status_code == code, answer.text
    return answer.text


def test_a_hostile_name_is_text_everywhere(dashboard: TestClient, path: Path) -> None:
    hostile = ids(path)[HOSTILE]
    with open_store(path) as store:
        store.append(
            opened(store, "conv2d", model={"name": HOSTILE, "calls": 1, "layers": [HOSTILE]}), 0, [worked(1.0)]
        )
    addresses = [
        "/",
        "/sessions",
        "/trials",
        f"/sessions/{hostile}",
        f"/difference?a={hostile}&b={hostile}",
        "/difference",
        "/models",
        "/sessions?name=%3Cscript%3Ealert",
        "/trials?text=%3Cscript%3Ealert",
    ]
    for address in addresses:
        page = text(dashboard, address)
        assert "&lt;script&gt;alert" in page, address
        assert "<script>alert" not in page and "<img" not in page, address


def test_the_first_page_shows_what_is_tuned(dashboard: TestClient) -> None:
    page = text(dashboard, "/")
    assert "5 µs" in page and "<svg" in page and "measured last: tiled (rows=2, tile=8x2)" in page


def test_a_model_and_an_operator_have_one_row_each(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        for seconds in (4e-3, 2e-3):
            session = opened(store, "softmax m=8")
            store.append(session, 0, [worked(seconds)])
            store.finish(session, Outcome(SKETCH, {"rows": 4}, seconds, (seconds, seconds), 6e-3, True))
        for name in ("conv2d", "dense", "add"):
            store.append(opened(store, name, model={"name": "net", "calls": 2, "kernels": 3}), 0, [worked(1e-3)])
        with client(path) as dashboard:
            page = text(dashboard, "/")
    tuned = page.partition("Tuned last")[2]
    rows = tuned.partition("<tbody>")[2].split("<tr>")[1:]
    assert len(rows) == 2
    model, operator = rows
    assert '>net</a> <span class="small">model, sum of 3 kernels<' in model and "6 ms" in model and "running" in model
    assert "the newest of 2 sessions" in operator and "2 ms" in operator and "3.00x" in operator
    assert page.count("<article>") == 1  # one session of the model stands for all


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ({"end": "finished"}, "the search ended at a limit of its own"),
        ({"end": "budget"}, "the search ended because its budget was spent"),
        ({"exhausted": True}, "the search ended because every candidate was measured"),
    ],
)
def test_a_session_says_why_its_search_ended(tmp_path: Path, kept: dict[str, object], expected: str) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        ended, interrupted = opened(store, "ended"), opened(store, "interrupted")
        outcome = Outcome(SKETCH, {"rows": 4}, 1e-3, (1e-3, 1e-3), 2e-3, False, dict(kept))
        store.finish(ended, outcome)
        store.interrupt(interrupted, outcome)
    with client(path) as dashboard:
        assert expected in text(dashboard, f"/sessions/{ended.id}")
        assert "the search ended" not in text(dashboard, f"/sessions/{interrupted.id}")


def test_a_run_is_shown_from_its_first_second_on(tmp_path: Path) -> None:
    path = database(tmp_path / "records.db")
    with client(path) as dashboard:
        assert "What runs now" in text(dashboard, "/")
        stamp = dashboard.app.state.shared.stamp()
        with announced("net <b>.onnx", 60.0, 30, "elsewhere.db"), events.span("import", "phases"):
            assert dashboard.app.state.shared.stamp() != stamp
            page = text(dashboard, "/")
            assert "Nothing is tuned now" not in page
            for words in ("net &lt;b&gt;.onnx", "importing the model", "s left", "0 trials of 30", "elsewhere.db"):
                assert words in page, words
        with announced("net"), events.span("search", "tuning", workload="fused_conv2d", layers="head.conv"):
            page = text(dashboard, "/")
            assert ">head.conv</span>" in page and ">fused_conv2d</span>" in page
        assert "importing the model" not in text(dashboard, "/")


def test_a_machine_has_a_short_name_and_a_whole_one(dashboard: TestClient) -> None:
    assert '<span title="a CPU, 2 cores">a, 2 cores</span>' in text(dashboard, "/sessions")


def test_kernels_that_were_measured_otherwise_belong_to_one_model(tmp_path: Path) -> None:
    path, whole = tmp_path / "records.db", f"a CPU, 2 cores{CONDITIONS}memory, inputs and outputs from the last cache"
    setting = Setting("storm", 0, {SKETCH: "f"}, method={"model": {"name": "net", "calls": 1, "kernels": 2}})
    with open_store(path) as store:
        for name, machine in (("conv2d", "a CPU, 2 cores"), ("dense", whole)):
            session = store.open(Problem(name, name, name, "llvm", machine), setting)
            store.append(session, 0, [worked(1e-3)])
    with client(path) as dashboard:
        assert text(dashboard, "/models").count("/model?") == 1
        assert text(dashboard, "/").partition("Tuned last")[2].count("/model?") == 1
        assert "2 ms" in text(dashboard, "/model?name=net&machine=a+CPU,+2+cores")
        assert f'<span title="{whole}">a, 2 cores</span>' in text(dashboard, "/sessions")


def test_a_session_shows_its_result(dashboard: TestClient, path: Path) -> None:
    page = html.unescape(text(dashboard, f"/sessions/{ids(path)['conv2d']}"))
    for words in ("1.1 ms", "1 ms to 1.2 ms (95%)", "3.3 ms", "crashed at #", "small net", "tiled(rows=4, tile=8x2)"):
        assert words in page, words
    assert (
        "crashed at 17" not in text(dashboard, f"/sessions/{ids(path)['conv2d']}?status=ok").partition("<h2>Trials")[2]
    )


def test_filters_and_pages(dashboard: TestClient, path: Path) -> None:
    with open_store(path) as store:
        for number in range(60):
            opened(store, f"kernel {number}")
    assert "63 sessions" in text(dashboard, "/sessions")
    assert "page 2 of 2" in text(dashboard, "/sessions?page=2")
    assert "page 2 of 2" in text(dashboard, "/sessions?page=99")
    assert "page 1 of 1" in text(dashboard, "/sessions?name=kernel+5&page=nonsense")
    assert "11 sessions" in text(dashboard, "/sessions?name=kernel+5")
    assert "1 sessions" in text(dashboard, "/sessions?state=interrupted&sort=nonsense")


def test_a_model_is_the_sum_of_its_kernels(dashboard: TestClient) -> None:
    assert "small net" in text(dashboard, "/models")
    page = text(dashboard, "/model?name=small+net&machine=a+CPU,+2+cores")
    assert "3.3 ms" in page and "9.9 ms" in page and "3.00x" in page  # three calls of 1.1 ms; of 3.3 ms


def test_kernels_of_models_are_called_after_their_layers(tmp_path: Path) -> None:
    path, layers = tmp_path / "records.db", ["features.4.conv", "features.4.relu"]
    with open_store(path) as store:
        begun = opened(store, "fused_conv2d", model={"name": "net", "calls": 2, "layers": layers})
        other = opened(store, "fused_dense", model={"name": "net", "calls": 1, "layers": ["head"]})
        for each in (begun, other):
            store.append(each, 0, [worked(1e-3)])
        store.append(opened(store, "matmul"), 0, [worked(5e-6, 2, 1.0)])
    label, title = "features.4: conv, relu", 'title="features.4: conv, relu"'
    with client(path) as dashboard:
        for address in ("/", "/sessions", "/trials", "/model?name=net&machine=a+CPU,+2+cores"):
            page = text(dashboard, address)
            assert "head</a>" in page and 'small spare" title="fused_dense">fused_dense</span>' in page, address
            assert address == "/" or (f"{title}>{label}</a>" in page and "fused_conv2d" in page), address
        page = text(dashboard, f"/sessions/{begun.id}")
        assert f"<h1>{label}</h1>" in page and "features.4.conv, features.4.relu" in page and "fused_conv2d" in page
        assert "matmul</a></td>" in text(dashboard, "/sessions")  # an operator has no layers
        page = text(dashboard, f"/difference?a={begun.id}&b={other.id}")
        assert f"{label} (A)" in page and "head (B)" in page
        assert '<th scope="row">layers</th>' in page and "features.4.conv, features.4.relu" in page
        assert f">{label}, storm" in text(dashboard, "/difference")
        documents = json.loads(text(dashboard, "/sessions.json"))
        assert [document["layers"] for document in documents] == [layers, ["head"], []]
        (first, *_) = csv.DictReader(io.StringIO(text(dashboard, "/sessions.csv")))
        assert first["tuned"] == "fused_conv2d" and json.loads(first["layers"]) == layers


def test_two_sessions_are_compared(dashboard: TestClient, path: Path) -> None:
    known = ids(path)
    page = text(dashboard, f"/difference?a={known['conv2d']}&b={known['matmul']}")
    assert "have tuned different functions" in page
    assert "0.00x" in page and "conv2d (A)" in page and "matmul (B)" in page
    assert "option size" not in page  # it is equal
    assert "method model" in page


def test_sessions_as_csv_and_json(dashboard: TestClient) -> None:
    answer = dashboard.get("/sessions.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="stormdrop-sessions.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["tuned"] for row in rows] == ["conv2d", HOSTILE, "matmul"]
    assert float(rows[0]["best_seconds"]) == 1.1e-3
    documents = json.loads(text(dashboard, "/sessions.json?search=storm"))
    assert [document["trials"] for document in documents] == [3, 1]
    assert json.loads(text(dashboard, "/sessions.json?search=none")) == []


def test_trials_as_csv_and_json(dashboard: TestClient, path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(text(dashboard, "/trials.csv"))))
    assert len(rows) == 5
    (hostile,) = (row for row in rows if row["tuned"] == HOSTILE)
    assert hostile["error"].startswith("'=1+1")  # a spreadsheet does not compute it
    assert json.loads(rows[0]["config"]) == {"rows": 2, "tile": [8, 2]}
    failed = json.loads(text(dashboard, "/trials.json?status=runtime&name=conv"))
    assert [(trial["error"], trial["seconds"]) for trial in failed] == [("crashed at 17", None)]
    own = json.loads(text(dashboard, f"/sessions/{ids(path)['conv2d']}/trials.json"))
    assert [trial["position"] for trial in own] == [2, 1, 0]


@pytest.mark.parametrize("after", ["1.1", "0.0", f"{10**23}.1", f"1.{10**23}", "-1.2", "x.y", "1", "", "\u0661.1"])
def test_any_place_to_go_on_at_is_answered(dashboard: TestClient, after: str) -> None:
    text(dashboard, f"/trials?after={after}")
    text(dashboard, f"/sessions?page={after}")


def test_what_is_not_there(dashboard: TestClient) -> None:
    for address in ("/none", "/sessions/none", "/sessions/none/trials.csv", "/trials.xml", "/model?name=none"):
        assert "There is no such page." in text(dashboard, address, 404)


def test_a_database_that_fails_is_one_line(dashboard: TestClient, path: Path) -> None:
    for part in path.parent.iterdir():
        part.unlink()
    assert "does not exist" in text(dashboard, "/sessions", 503)


def test_a_model_has_no_time_until_each_kernel_has_one(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with open_store(path) as store:
        model = {"name": "net", "calls": 2, "kernels": 2}
        first = opened(store, "conv2d", model=model)
        store.append(first, 0, [worked(3e-3)])
        with client(path) as dashboard:
            assert "1 of 2 have a time" in text(dashboard, "/models")
            assert "1 of 2 kernels have a time" in text(dashboard, "/")
            store.append(opened(store, "softmax", model=model), 0, [worked(1e-3)])
            assert "sum of 2 kernels" in text(dashboard, "/")
            assert "8 ms" in text(dashboard, "/models")


@pytest.mark.parametrize(
    "address", ["/sessions?name=", "/sessions.csv?name=", "/trials?text=", "/trials?name=", "/trials.json?text="]
)
def test_a_long_text_to_search_for_is_refused(dashboard: TestClient, address: str) -> None:
    """SQLite takes no pattern of 50,000 characters."""
    assert "at most 1000 characters, not 60000" in text(dashboard, address + 60_000 * "x", 400)
    text(dashboard, address + 1000 * "%")
