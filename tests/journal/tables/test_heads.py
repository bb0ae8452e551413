"""What is remembered of the lakes' last receipts is what a scan of all events finds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Event, Journal, Phase, Step
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.retention.store.known_heads import RESET, known_heads
from tests.journal.older_journals import set_back

LAKES = (("a", "/lake"), ("a", "/moved"), ("b", "/lake"), ("", "/old"))

heads = st.builds(
    lambda lake, sequence, name, place: LakeHead(*lake, sequence, name, place),
    st.sampled_from(LAKES),
    st.integers(1, 5),
    st.sampled_from(["x", "y"]),
    st.sampled_from(["", "/lake/segments"]),
)
acts = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Step.ARCHIVE, Step.SEALED]), st.lists(heads, min_size=1, max_size=3)),
        st.tuples(st.just(Step.STAMP), st.lists(heads, max_size=2)),
    ),
    max_size=12,
)


def said(head: LakeHead) -> dict[str, object]:
    return {
        "lake": head.location,
        "receipt_sequence": head.sequence,
        "receipt_hash": head.row_hash,
        **({"lake_id": head.lake_id, "place": head.place} if head.lake_id else {}),
    }


def scanned(events: Iterable[Event]) -> set[LakeHead]:
    """The highest receipts of each lake since a person's last decision, by every event."""
    found: list[LakeHead] = []
    for event in events:
        if event.step == Step.STAMP:
            found = [LakeHead(**head) for head in event.payload["lakes"]]
        elif event.subject and "receipt_sequence" in event.payload:
            one = event.payload
            found.append(
                LakeHead(
                    one.get("lake_id", ""),
                    one["lake"],
                    one["receipt_sequence"],
                    one["receipt_hash"],
                    one.get("place", ""),
                )
            )
    highest = {
        lake: max(head.sequence for head in found if (head.lake_id, head.location) == lake)
        for lake in {(head.lake_id, head.location) for head in found}
    }
    return {head for head in found if head.sequence == highest[head.lake_id, head.location]}


@given(acts)
def test_the_projection_says_what_the_events_say(done: list[tuple[Step, list[LakeHead]]]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal.db")
        journal = Journal(f"sqlite:///{path}")
        record = journal.add_store("/nowhere", "rocketmq")
        other = journal.add_store("/elsewhere", "rocketmq")
        run = journal.begin_run(record.store_id, "r", PlanRequest())
        of_other = journal.begin_run(other.store_id, "r", PlanRequest())
        journal.record(of_other, Step.ARCHIVE, Phase.RESULT, [("l/0", said(LakeHead("a", "/lake", 9, "z")))])
        for step, found in done:
            if step is Step.STAMP:
                reset = {RESET: True, "lakes": [to_jsonable(head) for head in found]}
                journal.record(run, step, Phase.RESULT, [("", reset)])
            else:
                journal.record(run, step, Phase.RESULT, [(f"l/{i}", said(h)) for i, h in enumerate(found)])
        expected = scanned(journal.events(run))
        assert set(known_heads(journal, record).heads) == expected
        assert known_heads(journal, record).journalled == {head.lake_id or head.location for head in expected}
        without_projection(path)
        assert set(known_heads(journal, record).heads) == expected
        set_back(path, 7)
        assert set(known_heads(Journal(f"sqlite:///{path}"), record).heads) == expected


def without_projection(path: Path) -> None:
    """Leave the heads as an older release does that is still at work: as they were at the upgrade."""
    with sqlite3.connect(path) as connection:
        last = connection.execute("SELECT max(event_id) FROM storage_engine_heads").fetchone()[0] or 0
        connection.execute("DELETE FROM storage_engine_heads WHERE event_id = ?", (last,))
    connection.close()


def test_many_receipts_leave_one_row_a_lake(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(f"sqlite:///{path}")
    run = journal.begin_run(journal.add_store("/nowhere", "rocketmq").store_id, "r", PlanRequest())
    for first in range(0, 50, 10):
        found = [said(LakeHead("a", "/lake", first + number, "x")) for number in range(10)]
        journal.record(run, Step.ARCHIVE, Phase.RESULT, [(f"l/{i}", one) for i, one in enumerate(found)])
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT sequence FROM storage_engine_heads").fetchall() == [(49,)]
    connection.close()
