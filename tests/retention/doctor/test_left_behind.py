"""What runs left behind is told for as long as it counts."""

from __future__ import annotations

from storage_engine.core.host import this_host
from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.left_behind import (
    quarantine_findings,
    shield_findings,
    stamp_findings,
)
from storage_engine.retention.proof.shielding import ShieldSummary
from storage_engine.retention.quarantine.places import QuarantineLook
from storage_engine.retention.store.stamp import Stamp

NOW_MS = 1_800_000_000_000


def test_a_shield_is_told_where_it_alone_has_bytes_or_nobody_needs_it() -> None:
    assert not list(shield_findings(None, running=False))
    kept = ShieldSummary(3, 3 << 20, (), ())
    assert not list(shield_findings(kept, running=True))
    (left,) = shield_findings(kept, running=False)
    assert (left.severity, "3 segments are still linked there" in left.what) == (Severity.NOTE, True)
    (alone,) = shield_findings(ShieldSummary(3, 3 << 20, (0, 1 << 20), ()), running=True)
    assert (alone.severity, "2 segments deleted from the log" in alone.what) == (Severity.WARNING, True)
    (unread,) = shield_findings(ShieldSummary(0, 0, (), ("it can't be read",)), running=False)
    assert unread.what == "it can't be read"


def test_quarantines_are_told_with_their_space_and_when_it_comes_back() -> None:
    assert not list(quarantine_findings([], NOW_MS))
    waits = QuarantineLook("/s/q", "one", NOW_MS + 1, 2, 2 << 20)
    over = QuarantineLook("/s/q2", "two", NOW_MS, 2, 1 << 20)
    (one,) = quarantine_findings([waits], NOW_MS)
    assert one.what.endswith("still take 2.0 MiB of space")
    (both,) = quarantine_findings([waits, over], NOW_MS)
    assert both.what.startswith("3.0 MiB are in quarantines. The first should have been emptied")


def test_a_stamp_of_another_place_is_told() -> None:
    here = Stamp("id", 1, this_host(), "/s")
    assert not list(stamp_findings(None, "/s"))
    assert not list(stamp_findings(here, "/s"))
    (moved,) = stamp_findings(here, "/other")
    assert "/s on machine" in moved.what
    (copied,) = stamp_findings(Stamp("id", 1, "another-machine", "/s"), "/s")
    assert "machine another-machine" in copied.what
