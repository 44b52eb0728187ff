"""The registry: searches, their options and their errors by name."""

from typing import Any

import numpy as np
import pytest

from stormdrop.errors import SearchError
from stormdrop.search import Knowledge, Search, create, names, options_of
from stormdrop.space import Ordinal, Space
from stormdrop.trial import Candidate

SPACE = Space("s", [Ordinal("a", [1, 2])])
RNG = np.random.default_rng(0)


def test_searches_are_found_by_name() -> None:
    assert names() == [
        "annealing", "dpansor", "droplet", "evolutionary", "genetic", "gradient", "grid", "nose", "random", "roller",
        "storm",
    ]  # fmt: skip
    for name in names():
        search = create(name, [SPACE], RNG)
        assert isinstance(search, Search)
        assert search.name == name
        assert search.options == options_of(name)()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("dropplet", {}, "unknown search 'dropplet'; did you mean 'droplet'"),
        ("xyzzy", {}, "unknown search 'xyzzy'; choose from .*droplet.*grid.*random"),
        ("droplet", {"speculate": True}, "no option 'speculate'; did you mean 'speculation'"),
        ("droplet", {"test": "students"}, "no test 'students'; did you mean 'student'"),
        ("droplet", {"test": "rank"}, "use repeats=4 or more"),
        ("droplet", {"confidence": 1.5}, "confidence"),
        ("droplet", {"repeats": 0}, "repeats must be at least 1"),
        ("droplet", {"max_iterations": 0}, "max_iterations"),
        ("random", {"repeats": 0}, "at least 1"),
        ("grid", {"repeats": 0}, "at least 1"),
    ],
)
def test_errors_are_one_clear_line(name: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(SearchError, match=line) as caught:
        create(name, [SPACE], RNG, **options)
    assert "\n" not in str(caught.value)


def test_spaces_are_needed_and_must_differ() -> None:
    with pytest.raises(SearchError, match="at least one space"):
        create("random", [], RNG)
    with pytest.raises(SearchError, match="same name"):
        create("random", [SPACE, SPACE], RNG)
    with pytest.raises(SearchError, match="unknown search"):
        options_of("storms")


def test_ask_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one request"):
        create("random", [SPACE], RNG).ask(0)


@pytest.mark.parametrize(("start", "message"), [(Candidate("s", (9, 9)), "outside"), (Candidate("t", (0,)), "sketch")])
def test_a_start_must_be_a_candidate(start: Candidate, message: str) -> None:
    with pytest.raises(SearchError, match=message):
        create("droplet", [SPACE], np.random.default_rng(0), Knowledge(starts=(start,)))
