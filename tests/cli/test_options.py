"""Options and arguments as people write them."""

from __future__ import annotations

import re

import pytest

from stormdrop.cli import options
from stormdrop.cli.flags import TuningFlags
from stormdrop.errors import InputError, OperatorError
from stormdrop.tuning.options import TuneOptions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15), ("90s", 90), ("3m", 180), ("1h", 3600), ("1h30m", 5400), ("0.5", 0.5), ("1.5m", 90), ("500ms", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert options.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "3x", "-3", "3 m s", "1h30", "nan", "inf", "0s", "1e3"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InputError, match="--time"):
        options.duration(text)


def test_arguments() -> None:
    assert options.arguments(["m=5", "layout=NHWC"]) == {"m": "5", "layout": "NHWC"}
    for words in (["m"], ["=5"], ["m="], ["m=5", "m=6"]):
        with pytest.raises(OperatorError):
            options.arguments(words)


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (["x=1x3x224x224"], {"x": (1, 3, 224, 224)}),
        (["x=1,3"], {"x": (1, 3)}),
        (["x=1x3,y=4"], {"x": (1, 3), "y": (4,)}),
        (["x=1,3,y=2,2", "z=5"], {"x": (1, 3), "y": (2, 2), "z": (5,)}),
        (["a=b=1x3"], {"a=b": (1, 3)}),
        (["image 1:0=2; x.1,y=3"], {"image 1:0": (2,), "x.1,y": (3,)}),
        (["x=1,4,8x3x224"], {"x": ((1, 4, 8), 3, 224)}),
        (["x=1x32-96:32,m=1x1-3"], {"x": (1, (32, 64, 96)), "m": (1, (1, 2, 3))}),
        (["x=1,4-6,5x3"], {"x": ((1, 4, 5, 6), 3)}),
        ([], {}),
    ],
)
def test_shapes(words: list[str], shapes: dict[str, tuple[int | tuple[int, ...], ...]]) -> None:
    assert options.shapes(words) == shapes


@pytest.mark.parametrize(
    "words",
    [
        *(["x"], ["x="], ["=3"], ["x=0x3"], ["x=-1x3"], ["x=1x"], ["x=1x3,y"], ["x=3", "x=4"], ["x=3,x=3"]),
        *(["x=8-4x3"], ["x=1-1000x3"], ["x=1-8:0x3"], ["x=1,,4x3"]),
    ],
)
def test_bad_shapes(words: list[str]) -> None:
    with pytest.raises(InputError, match="--shape"):
        options.shapes(words)


def test_a_command_that_takes_one_size() -> None:
    assert options.one_size(["x=1x3"]) == {"x": (1, 3)}
    with pytest.raises(InputError, match="dimension 0 of input x has several sizes; this command takes one"):
        options.one_size(["x=1,2x3"])


def test_a_search_with_options_and_its_preset() -> None:
    def of(search: str) -> TuneOptions:
        return TuningFlags(search=search, trials=10).tune_options()

    assert of("storm") == TuneOptions(search="storm", trials=10)
    printed = of("droplet:preset=paper:confidence=0.99")
    assert (printed.search, printed.search_options) == ("droplet", {"preset": "paper", "confidence": 0.99})
    with pytest.raises(InputError, match=r"^search 'droplet' has no preset 'papers'; its presets are default, paper$"):
        of("droplet:preset=papers")


def test_where_kernels_are_measured() -> None:
    assert options.runner_address(None, None, None) == ""
    assert options.runner_address("127.0.0.1:9090", None, None) == "127.0.0.1:9090"
    assert options.runner_address(None, "10.0.0.1:9190", "rasp4") == "rasp4@10.0.0.1:9190"
    assert options.runner_address(None, None, "EPYC", "auto") == "", "--device chooses among the machines of a fleet"


@pytest.mark.parametrize(
    ("runner", "tracker", "device", "says"),
    [
        ("", None, None, "--runner '': is empty"),
        ("host:1", "host:2", "rasp4", "different places"),
        (None, "host:2", None, "belong together"),
        (None, None, "rasp4", "belong together"),
        (None, "host", "rasp4", "write HOST:PORT"),
        (None, "host:2", "", "name the key"),
    ],
)
def test_places_to_measure_that_do_not_fit(
    runner: str | None, tracker: str | None, device: str | None, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        options.runner_address(runner, tracker, device)


def test_a_mistake_after_many_inputs_is_found_at_once() -> None:
    with pytest.raises(InputError, match="write the input and its sizes"):
        options.shapes([",".join([*(f"x{index}=1" for index in range(60)), "y"])])


def test_states() -> None:
    assert options.states(["present.*=past.*", "a=b=c"]) == {"present.*": "past.*", "a": "b=c"}
    for words in (["present.*"], ["=past"], ["present="], ["a=b", "a=c"]):
        with pytest.raises(
            InputError, match=f"--state {re.escape(words[-1])}: write an output and the input of the next"
        ):
            options.states(words)


def test_values_of_inputs() -> None:
    given = options.values(["k=3", "axes=0,1", "scales=[[1,2],[3,4]]", "a=b=true", "eps=1e-3", "none=[]"])
    assert given == {"k": 3, "axes": [0, 1], "scales": [[1, 2], [3, 4]], "a=b": True, "eps": 1e-3, "none": []}
    for words in (["k"], ["=3"], ["k=three"], ["k=NaN"], ["k=1,NaN"], ["k=" + 100_000 * "["]):
        with pytest.raises(
            InputError, match=f"--value {re.escape(words[0])}: write the input and its value, for example k=3"
        ):
            options.values(words)
    with pytest.raises(InputError, match="input k is given twice"):
        options.values(["k=1", "k=2"])
