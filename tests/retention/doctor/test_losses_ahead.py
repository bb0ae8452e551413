"""What is lost when segments go is told once, with who loses it, how much and when."""

from __future__ import annotations

from typing import Any

import pytest

from storage_engine.core.clock import DAY_MS
from storage_engine.model.broker.broker_store import Pending, PendingKind
from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.space_and_time import (
    consumer_findings,
    pending_findings,
    unproven_findings,
)
from tests.retention.doctor.stores import GIB, figures, log_of

LOG = log_of([70, 60, 1])
"""The first segment goes in 2 h, the second in 12 h, the third in 71 h."""
PLAIN = figures(LOG)
LEAVING = PLAIN.sealed[:2]


def rows(*found: tuple[str, int | None]) -> Unread:
    return Unread(tuple(UnreadMessages(group, "t", messages, 1, None) for group, messages in found))


def test_groups_are_told_with_what_they_lose_the_largest_first() -> None:
    unread = rows(("a", 1), ("b", 30), ("a", 4), ("c", 2), ("d", 1), ("e", None))
    known, unknown = consumer_findings(figures(LOG, leaving=LEAVING, unread=unread))
    assert (known.severity, known.kind) == (Severity.URGENT, "consumers-lose")
    assert "4 groups lose 38 unread messages" in known.what
    assert known.what.endswith("b 30, a 5, c 2 and 1 more")
    assert (unknown.severity, unknown.kind) == (Severity.WARNING, "consumers-unknown")
    assert unknown.what.endswith("from 2027-01-15 10:00:00Z on: e")


def test_what_goes_later_than_a_day_is_a_warning() -> None:
    found = figures(LOG, leaving=PLAIN.sealed[2:], leaves_in_ms=3 * DAY_MS, unread=rows(("a", 1)))
    (finding,) = consumer_findings(found)
    assert finding.severity is Severity.WARNING
    assert finding.what == "1 group loses 1 unread message from 2027-01-18 07:00:00Z on: a 1"


def test_what_is_due_goes_at_the_next_cleanup() -> None:
    found = figures(LOG, leaving=LEAVING, going=LEAVING[:1], unread=rows(("a", 1)))
    (finding,) = consumer_findings(found)
    assert "at the next cleanup, which is due" in finding.what


def test_what_can_not_be_told_of_consumers_is_no_silence() -> None:
    (finding,) = consumer_findings(figures(LOG, leaving=LEAVING, unread=Unread(error="files are torn")))
    assert finding.severity is Severity.URGENT
    assert finding.what == "consumers' losses from 2027-01-15 10:00:00Z on are unknown: files are torn"
    later = figures(LOG, leaving=PLAIN.sealed[2:], leaves_in_ms=3 * DAY_MS, unread=Unread(error="torn"))
    assert [one.severity for one in consumer_findings(later)] == [Severity.WARNING]
    assert not list(consumer_findings(PLAIN))


def pending(kind: PendingKind, count: int | None, first: int | None = None, **more: Any) -> Pending:
    return Pending(kind, count, first_offset=first, log="log", **more)


def test_messages_that_wait_are_told_together() -> None:
    items = (
        pending(PendingKind.DELAYED, 3, GIB + 5),
        pending(PendingKind.TIMER, 1, 5, consequence="the wheel stops"),
        pending(PendingKind.HALF, 2, 2 * GIB, lost=7),
    )
    lose, stay, lost = pending_findings(figures(LOG, leaving=LEAVING, pending=items))
    assert (lose.severity, lose.kind) == (Severity.URGENT, "pending-lose")
    assert lose.what.startswith("3 delayed and 1 timer messages wait in segments that are deleted")
    assert lose.what.endswith("; the wheel stops")
    assert (stay.kind, stay.what) == ("pending", "2 half messages wait")
    assert (lost.kind, lost.what.endswith("7 half")) == ("pending-lost", True)


def test_what_waits_and_is_not_known_is_told_once_for_all_kinds() -> None:
    items = tuple(pending(kind, None, error="/s: found that it is in RocksDB.") for kind in PendingKind)
    (finding,) = pending_findings(figures(LOG, pending=items))
    assert finding.kind == "pending-unknown"
    assert "delayed and timer and half messages" in finding.what


def test_nothing_that_waits_is_nothing_to_tell() -> None:
    assert not list(pending_findings(figures(LOG, pending=(pending(PendingKind.TIMER, 0),))))


@pytest.mark.parametrize(
    ("unproven", "running", "severity"),
    [
        (PLAIN.sealed, True, Severity.URGENT),
        (PLAIN.sealed, None, Severity.URGENT),
        (PLAIN.sealed, False, Severity.WARNING),  # a stopped broker deletes nothing
        (PLAIN.sealed[2:], True, Severity.WARNING),  # goes in three days
        (None, True, Severity.WARNING),  # nobody named a lake
    ],
)
def test_what_nothing_proves_is_as_urgent_as_it_goes(unproven: Any, running: Any, severity: Severity) -> None:
    (finding,) = unproven_findings(PLAIN, unproven, (), running=running)
    assert (finding.kind, finding.severity) == ("unproven", severity)


def test_what_nothing_proves_is_told_with_when_it_goes() -> None:
    (finding,) = unproven_findings(PLAIN, None, ("/my lake",), running=True)
    assert finding.what == (
        "3 sealed segments (3.0 GiB) are proven in no lake that was named; its broker deletes them from "
        "2027-01-15 10:00:00Z to 2027-01-18 07:00:00Z"
    )
    assert finding.advice.endswith("--lake '/my lake'")
    (one,) = unproven_findings(PLAIN, PLAIN.sealed[:1], (), running=False)
    assert one.what == (
        "1 sealed segment (1.0 GiB) is proven in no lake; its broker, once it runs, deletes it "
        "2027-01-15 10:00:00Z"
    )
    assert not list(unproven_findings(PLAIN, (), (), running=True))
    assert not list(unproven_findings(figures(log_of([])), None, (), running=True))
