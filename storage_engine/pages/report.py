"""One self-contained HTML page about a run: no script, no other file, nothing from a network.

Its input is plain: the run's report as JSON values, as ``report.json`` and the journal have it, and a
:class:`ValidationResult`. Either may be missing; the page then shows the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from storage_engine.exceptions import BadInputError
from storage_engine.model.validation import RangeStatus, Status, ValidationResult, Where
from storage_engine.wording import bytes_text, time_text

READS_VERSION = 1
"""The newest version of a report's fields that this page knows."""

BAR_WIDTH = 1000
_SHORTEST = 8
"""Units of the bar's width that even the smallest range gets, so that no loss is too small to see."""

_PLACES = {
    Where.ARCHIVED: "in the lake",
    Where.BOTH: "on disk and in the lake",
    Where.PENDING: "planned to go, not archived yet",
    Where.LOCAL: "on disk",
    Where.SHIELDED: "gone, in the shield, not archived yet",
    Where.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle of the ranges' picture, in units of its width."""

    x: float
    width: float
    range: RangeStatus


def report_html(
    report: Mapping[str, Any], *, version: int = READS_VERSION, links: Mapping[str, str] | None = None
) -> str:
    """Return the page of a run's report as a journal or ``report.json`` has it.

    :param version: of the report's fields; one of an older release is shown as far as it goes.
    :param links: title → address of what belongs to the report, such as its Data Docs.
    :raises BadInputError: a newer release wrote the report.
    """
    if version > READS_VERSION:
        raise BadInputError(
            f"report of run {report.get('run_key')}: expected version {READS_VERSION} or older, found "
            f"{version}. A newer release wrote it. Read it with that release."
        )
    found = report.get("validation")
    return render_page(report, ValidationResult.from_dict(found) if found else None, links=links or {})


def render_page(
    report: Mapping[str, Any] | None, validation: ValidationResult | None, *, links: Mapping[str, str]
) -> str:
    """Return the page as text.

    :param report: the report's JSON form; None where no run asked for the validation.
    :param validation: None where the run has none (yet).
    :param links: title → relative address of what lies beside the page.
    """
    template = _environment().get_template("page.html.j2")
    logs = sorted({row.log for row in validation.ranges}) if validation else []
    ranges = validation.ranges if validation else ()
    return template.render(
        report=report,
        validation=validation,
        verdict=_verdict(report, validation),
        bars={log: bars([row for row in ranges if row.log == log]) for log in logs},
        bar_width=BAR_WIDTH,
        places={place.value: text for place, text in _PLACES.items()},
        present=[place for place in _PLACES if any(row.where is place for row in ranges)],
        checks=_by_suite(validation),
        links=links,
    )


def bars(ranges: Sequence[RangeStatus]) -> tuple[Bar, ...]:
    """Lay ranges side by side: in proportion to their bytes, but none too narrow to see."""
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


def _verdict(report: Mapping[str, Any] | None, validation: ValidationResult | None) -> dict[str, str]:
    """The word at the top of the page, and its colour."""
    status = validation.overall if validation else None
    if report is None:
        word = {None: "unknown", Status.OK: "Valid", Status.WARNING: "Warning", Status.FAILURE: "Failure"}[
            status
        ]
        return {"word": word, "tone": _tone(status)}
    outcome = str(report["outcome"])
    if outcome == "failed" or status is Status.FAILURE:
        return {"word": "Failed", "tone": "bad"}
    if outcome == "released-in-part":
        return {"word": "Released in part", "tone": "bad"}
    if outcome in ("blocked", "unfinished") or status is Status.WARNING:
        return {"word": outcome.capitalize(), "tone": "warn"}
    if outcome == "done" and report.get("unread_lines"):
        return {"word": "Done, unread messages went", "tone": "warn"}
    return {"word": outcome.replace("-", " ").capitalize(), "tone": "ok"}


def _tone(status: Status | str | None) -> str:
    return {"OK": "ok", "WARNING": "warn", "FAILURE": "bad"}.get(str(status), "dim")


def _by_suite(validation: ValidationResult | None) -> dict[str, list[Any]]:
    suites: dict[str, list[Any]] = {}
    for check in validation.checks if validation else ():
        suites.setdefault(check.suite.replace("_", " · ", 1).replace("_", " "), []).append(check)
    return suites


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("storage_engine.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": bytes_text,
        "moment": _moment,
        "took": _took,
        "number": lambda value: f"{value:,}",
        "offset": lambda value: f"{value:020d}",
        "tone": _tone,
        "words": lambda name: (
            "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip().capitalize()
        ),
    }
    return environment


def _moment(value_ms: int | None) -> str:
    return time_text(value_ms) or "–"


def _took(value_ms: int | None) -> str:
    if value_ms is None:
        return "–"
    seconds, rest = divmod(value_ms, 1000)
    if seconds < 1:
        return f"{rest} ms"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds}.{rest // 100} s"
