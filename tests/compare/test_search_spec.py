"""Searches with their options, as people write them."""

from __future__ import annotations

import pytest

from stormdrop.compare.search_spec import SearchSpec, parse_searches
from stormdrop.errors import InputError, SearchError
from stormdrop.space import Ordinal, Space


def test_searches_have_typed_options() -> None:
    plain, variant = parse_searches(" droplet, droplet:test=student:speculation=false:max_iterations=3:confidence=0.9")
    assert plain == SearchSpec("droplet", "droplet")
    assert variant.label == "droplet:test=student:speculation=false:max_iterations=3:confidence=0.9"
    assert variant.options == {"test": "student", "speculation": False, "max_iterations": 3, "confidence": 0.9}
    (unlimited,) = parse_searches("droplet:max_iterations=none")
    assert unlimited.options == {"max_iterations": None}
    search = variant.create([Space("s", [Ordinal("a", [1, 2, 3])])], 0)
    assert search.name == "droplet"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dropplet", "unknown search 'dropplet'; did you mean 'droplet'?"),
        ("droplet:confidnce=0.9", "search 'droplet' has no option 'confidnce'; did you mean 'confidence'?"),
        ("droplet:confidence=high", "option confidence must be float, not 'high'"),
        ("droplet:confidence=2", "droplet's confidence must be at least 0.5 and below 1, not 2.0"),
        ("droplet:repeats=2.5", "option repeats must be int, not '2.5'"),
        ("droplet:speculation=perhaps", "option speculation must be bool, not 'perhaps'"),
        ("droplet:max_iterations=x", "option max_iterations must be int or none, not 'x'"),
        ("droplet:repeats", "write an option as name=value, not 'repeats'"),
        ("droplet:repeats=3:repeats=4", "option repeats is given twice"),
        ("droplet:test=studnet", "did you mean 'student'?"),
    ],
)
def test_bad_searches(text: str, message: str) -> None:
    with pytest.raises(SearchError) as raised:
        parse_searches(text)
    assert message in str(raised.value)


def test_no_search_and_a_search_twice() -> None:
    with pytest.raises(InputError, match="no search is named"):
        parse_searches(" , ")
    with pytest.raises(InputError, match="search random is given twice"):
        parse_searches("random,droplet,random")
