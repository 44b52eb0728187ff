"""Why a kernel is not faster, in sentences that follow from the records."""

from __future__ import annotations

from .documents import Searched
from .formatting import count, percent, time
from .kernels import MEMORY, KernelView
from .search_end import sentence

_NEAR_THE_LIMIT = 0.8
_SLOWER_INSIDE = 1.25
_FAILING = 0.3
_DISTURBED = 0.3


def why_not_faster(view: KernelView) -> list[str]:
    """What keeps a kernel from being faster, as far as the records say it.

    Args:
        view: The kernel.

    Returns:
        Sentences, the most important first.
    """
    sentences = [_limit(view), _search(view)]
    if view.search is not None:
        sentences += [_default(view, view.search), _inside(view), _failures(view.search), _disturbance(view.search)]
    return [sentence for sentence in sentences if sentence]


def _limit(view: KernelView) -> str:
    place = view.roofline
    if place is None:
        return "How near it is to the machine's limit is not known."
    limit = "memory bandwidth" if place.bound == MEMORY else "arithmetic peak"
    if place.fraction > 1:
        why = (
            "its arrays stay in the caches"
            if place.bound == MEMORY
            else "its schedule takes fewer operations than the kernel is counted with"
        )
        return f"It is at {percent(place.fraction)} of this machine's {limit}: above the limit, because {why}."
    if place.fraction >= _NEAR_THE_LIMIT:
        return f"It is at {percent(place.fraction)} of this machine's {limit}: little can be gained."
    seconds = view.per_call or 0.0
    return (
        f"A call takes {time(seconds)}. The machine's {limit} would allow {time(seconds * place.fraction)}: "
        f"the kernel is at {percent(place.fraction)} of it."
    )


def _search(view: KernelView) -> str:
    search = view.search
    if view.sketch is None:
        return f"It has a plain schedule, which is slow{'.' if view.reason is None else f': {view.reason}.'}"
    if search is None:
        return f"It was not tuned and has its default schedule{'.' if view.reason is None else f': {view.reason}.'}"
    tried = count(search["trials"], "candidate")
    size = sum(view.kernel["spaces"].values())
    of_all = f" of {size:,.0f}" if size else ""
    if search["interrupted"]:
        return f"Its search was interrupted after {tried}{of_all}: more time may help."
    return sentence(f"{tried}{of_all}", search["converged"], search)


def _default(view: KernelView, search: Searched) -> str:
    if not view.kept_default:
        return ""
    if not search["disturbed"]:
        return (
            "The model has its default schedule: no candidate was significantly faster, in its last race or inside "
            "the model."
        )
    faster = [each for each in search["finalists"] if view.alone is not None and each["seconds"] < view.alone]
    measured = (
        f" In that race {faster[0]['sketch']} took {time(faster[0]['seconds'])}, the default {time(view.alone)}."
        if faster
        else ""
    )
    return (
        "The model has its default schedule, because its last race was disturbed or had no time left, and no "
        f"schedule has proved inside the model that it is faster.{measured} Tune it again on an idle machine, or with "
        "more time."
    )


def _inside(view: KernelView) -> str:
    if view.alone is None or view.per_call is None or view.per_call < _SLOWER_INSIDE * view.alone:
        return ""
    return (
        f"Inside the model a call takes {view.per_call / view.alone:.1f} times as long as alone "
        f"({time(view.per_call)} and {time(view.alone)}): other kernels and other load use the same caches "
        "and cores."
    )


def _failures(search: Searched) -> str:
    if not search["trials"] or search["failed"] / search["trials"] < _FAILING:
        return ""
    error = f" The most frequent error: {search['error']}." if search["error"] else ""
    return f"{search['failed']} of its {count(search['trials'], 'candidate')} failed.{error}"


def _disturbance(search: Searched) -> str:
    measured = sum(search["statuses"].values())
    if not measured or search["suspect"] / measured < _DISTURBED:
        return ""
    return (
        f"Something else used the machine during {search['suspect']} of its {count(measured, 'measurement')}: "
        "they may have misled the search."
    )
