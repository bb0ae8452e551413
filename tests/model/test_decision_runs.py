"""Neighbours that are decided on alike are told once."""

from __future__ import annotations

from storage_engine.model.plan import Decision, Reason, runs_of
from storage_engine.model.store import FileFacts, Segment, SegmentState

SIZE = 100


def _decision(number: int, reason: Reason, detail: str) -> Decision:
    facts = FileFacts(
        path=f"/s/{number * SIZE:020d}", device=0, inode=0, size_bytes=SIZE, mtime_ns=0, ctime_ns=0
    )
    return Decision(Segment("log", number * SIZE, facts, SegmentState.SEALED), reason, detail)


def _written(minute: int) -> str:
    return f"last written 2026-11-20 13:{minute:02d}:00Z: expires 2026-11-23 13:{minute:02d}:00+08:00"


def test_moments_alone_make_no_difference() -> None:
    decisions = [_decision(number, Reason.EXPIRED, _written(59 - number)) for number in range(3)]
    (run,) = runs_of(decisions)
    assert run.names == f"{0:020d} … {200:020d} (3 segments)"
    assert (run.deletes, run.disk_bytes) == (True, 3 * SIZE)
    assert run.detail == (
        "last written 2026-11-20 13:57:00Z to 2026-11-20 13:59:00Z: "
        "expires 2026-11-23 13:57:00+08:00 to 2026-11-23 13:59:00+08:00"
    )


def test_another_reason_or_other_figures_begin_a_run() -> None:
    words = [(Reason.EXPIRED, _written(1)), (Reason.EXPIRED, "3 left"), (Reason.EXPIRED, "2 left")]
    words += [(Reason.ACTIVE, "2 left"), (Reason.ACTIVE, "2 left"), (Reason.EXPIRED, _written(1))]
    runs = list(runs_of([_decision(number, *said) for number, said in enumerate(words)]))
    assert [len(run.decisions) for run in runs] == [1, 1, 1, 2, 1]
    assert [one for run in runs for one in run.decisions] == [
        _decision(number, *said) for number, said in enumerate(words)
    ]
    assert runs[0].detail == _written(1)
    assert runs[0].names == f"{0:020d}"


def test_no_decisions_are_no_run() -> None:
    assert list(runs_of([])) == []
