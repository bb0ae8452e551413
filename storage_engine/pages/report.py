"""A self-contained HTML page about a run. It needs no script, no other file and no network.

Its input is the run's report as JSON values, as in ``report.json`` and the journal, and a
:class:`ValidationResult`. If one of the two is missing, the page shows the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError
from storage_engine.model.report.validation import RangeStatus, ValidationResult, Where
from storage_engine.pages.environment import template
from storage_engine.pages.figures import (
    STEPS,
    gone_by_rules,
    sets_aside_until_start,
    words_of,
    worst_status,
)
from storage_engine.pages.story import SHOWN, Story, broken_checks, of_any_release, tell

LISTED = 100
"""Largest number of a list's rows on the page. The JSON has all rows."""
BAR_WIDTH = 1000
BARS = 20
"""Largest number of logs whose ranges are drawn."""
_SHORTEST = 8
"""Smallest width of a range, in units of the bar, so that each loss is visible."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle in the picture of ranges, in units of the picture's width."""

    x: float
    width: float
    range: RangeStatus


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Neighbouring segments of a log with the same fate and reason.

    :param listed: the segments that the page shows one by one.
    """

    log: str
    fate: str
    reason: str
    proof: str
    first_offset: int
    last_offset: int
    count: int
    size_bytes: int
    listed: tuple[Mapping[str, Any], ...]

    @property
    def more(self) -> int:
        return self.count - len(self.listed)


def segment_groups(segments: Sequence[Mapping[str, Any]]) -> Iterator[SegmentGroup]:
    """Group a report's segments, as JSON, in their order. The first :data:`LISTED` are shown one by one."""
    room = LISTED
    for (log, fate, reason, proof), group in groupby(segments, itemgetter("log", "fate", "reason", "proof")):
        rows = tuple(group)
        listed = rows[:room]
        room -= len(listed)
        yield SegmentGroup(
            log=log,
            fate=fate,
            reason=reason,
            proof=proof,
            first_offset=rows[0]["base_offset"],
            last_offset=rows[-1]["base_offset"],
            count=len(rows),
            size_bytes=sum(row["size_bytes"] for row in rows),
            listed=listed,
        )


def bars(ranges: Sequence[RangeStatus]) -> tuple[Bar, ...]:
    """Lay ranges side by side. Their widths are in proportion to their bytes, but none is too narrow."""
    total = sum(row.offset_count for row in ranges)
    spare = max(0, BAR_WIDTH - _SHORTEST * len(ranges))
    least = min(_SHORTEST, BAR_WIDTH / max(1, len(ranges)))
    placed = []
    x = 0.0
    for row in ranges:
        width = least + (spare * row.offset_count / total if total else 0)
        placed.append(Bar(x, width, row))
        x += width
    return tuple(placed)


READS_VERSION = 1
"""Newest version of a report's fields that this page can read."""

_PLACES = {
    Where.ARCHIVED: "in the lake",
    Where.BOTH: "on disk and in the lake",
    Where.PENDING: "planned for deletion, not archived yet",
    Where.LOCAL: "on disk",
    Where.SHIELDED: "deleted, in the shield, not archived yet",
    Where.EXPIRED: "expired",
    Where.NOT_ARCHIVED: "not archived, by rule",
    Where.LOST: "lost",
    Where.UNKNOWN: "not found, and it isn't known whether it is lost",
}
_VERDICTS = {
    "OK": ("Valid", "ok", "Store and lake together hold every byte once."),
    "WARNING": ("Warning", "warn", "No byte is lost, but something needs attention."),
    "FAILURE": ("Failure", "bad", "Some checks of store and lake fail."),
}


def report_html(
    report: Mapping[str, Any], *, version: int = READS_VERSION, links: Mapping[str, str] | None = None
) -> str:
    """Return the page of a run's report. The report comes from a journal or from ``report.json``.

    :param version: version of the report's fields. An older report is shown with the fields that it has.
    :param links: addresses of pages that belong to the report, such as its Data Docs, by title.
    :raises BadInputError: a newer release wrote the report.
    """
    if version > READS_VERSION:
        raise BadInputError(
            f"report of run {report.get('run_key')}: expected version {READS_VERSION} or older, found "
            f"{version}. A newer release wrote this report. Read the report with that release."
        )
    facts = report.get("validation")
    return render_page(report, ValidationResult.from_dict(facts) if facts else None, links=links or {})


def render_page(
    report: Mapping[str, Any] | None,
    validation: ValidationResult | None,
    *,
    links: Mapping[str, str],
    broker: str = "",
) -> str:
    """Return the page as text.

    :param report: the report as JSON; None if no run requested the validation.
    :param validation: None if the run has no validation (yet).
    :param links: relative addresses of pages beside this one, by title.
    :param broker: the validated store's kind of broker. A report's own broker takes precedence.
    """
    if report is not None:
        broker = report["broker"]
        checked = to_jsonable(validation) if validation else None
        report = {**of_any_release(report), "validation": checked}
    ranges = validation.ranges if validation else ()
    logs = sorted({row.log for row in ranges})[:BARS]
    return template("page.html.j2").render(
        report=report,
        validation=validation,
        story=tell(report) if report is not None else _tell_validation(validation, broker),
        groups=list(segment_groups(report["segments"])) if report is not None else [],
        bars={log: bars([row for row in ranges if row.log == log]) for log in logs},
        bar_width=BAR_WIDTH,
        places={place.value: text for place, text in _PLACES.items()},
        present=[place for place in _PLACES if any(row.where is place for row in ranges)],
        checks=_group_checks(validation),
        steps=STEPS,
        words=words_of(broker),
        until_start=sets_aside_until_start(broker),
        listed=LISTED,
        problems_shown=SHOWN,
        links=links,
    )


def _tell_validation(validation: ValidationResult | None, broker: str) -> Story:
    facts = to_jsonable(validation) if validation else None
    word, tone, headline = _VERDICTS[worst_status(facts)]
    if tone == "ok" and validation and (parts := gone_by_rules({row.where for row in validation.ranges})):
        headline = headline.replace(".", f", except for {parts}.")
    return Story(word, tone, headline, "", (), tuple(broken_checks(facts, words_of(broker))))


def _group_checks(validation: ValidationResult | None) -> dict[str, list[Any]]:
    suites: dict[str, list[Any]] = {}
    for check in validation.checks if validation else ():
        suites.setdefault(check.suite.replace("_", " · ", 1).replace("_", " "), []).append(check)
    return suites
