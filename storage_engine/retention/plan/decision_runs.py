"""A plan's decisions in few words: neighbours that are decided on alike are told once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from storage_engine.model.plan import Decision, Reason

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d)")
_PLACE = "\N{NULL}"


@dataclass(frozen=True, slots=True)
class DecisionRun:
    """Decisions on neighbours in a log, which differ in moments alone.

    :param decisions: the same but for moments, oldest segment first.
    :param detail: of all of them: where moments differ, from which to which.
    """

    decisions: tuple[Decision, ...]
    detail: str

    @property
    def deletes(self) -> bool:
        return self.decisions[0].deletes

    @property
    def reason(self) -> Reason:
        return self.decisions[0].reason

    @property
    def disk_bytes(self) -> int:
        return sum(decision.segment.disk_bytes for decision in self.decisions)

    @property
    def names(self) -> str:
        """The segment, or the first and the last of several."""
        first, last = self.decisions[0].segment.name, self.decisions[-1].segment.name
        count = len(self.decisions)
        return first if count == 1 else f"{first} … {last} ({count} segments)"


def runs_of(
    decisions: Sequence[Decision], detail: Callable[[Decision], str] = lambda one: one.detail
) -> Iterator[DecisionRun]:
    """Yield the decisions as runs.

    :param detail: the part of a decision's words that is shown.
    """
    for _, group in groupby(decisions, lambda one: (one.reason, without_moments(detail(one)))):
        run = tuple(group)
        yield DecisionRun(run, with_spans([detail(decision) for decision in run]))


def without_moments(detail: str) -> str:
    """Return a decision's words without its moments: neighbours that have the same are told once."""
    return _MOMENT.sub(_PLACE, detail)


def with_spans(details: Sequence[str]) -> str:
    """Return the words of neighbours that are the same but for moments: from which to which."""
    spans = [
        moments[0] if len(set(moments)) == 1 else f"{min(moments)} to {max(moments)}"
        for moments in zip(*(_MOMENT.findall(text) for text in details), strict=True)
    ]
    told = iter(spans)
    return _MOMENT.sub(lambda _: next(told), details[0])
