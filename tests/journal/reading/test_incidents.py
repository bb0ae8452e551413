"""What the indexes find of incidents and segments is what a scan of all events finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, NullPool, create_engine

from storage_engine.journal.journal import Event, Journal, Phase, Step
from storage_engine.journal.reading.answers import Incident, SegmentRow
from storage_engine.journal.reading.queries import JournalReader, read_drifts, read_incidents, read_segments
from storage_engine.journal.tables import schema as tables
from storage_engine.journal.tables.rows import insert_events
from storage_engine.model.plan import PlanRequest
from tests.journal.older_journals import set_back

STEPS = (Step.ARCHIVE, Step.SEALED, Step.RELEASE, Step.UNDO, Step.DRIFT, Step.ACCEPT_LOSS, Step.LAG)
SUBJECTS = ("", "log/7", "log/1024", "other/log/7", "log/2048", "log/4096")

acts = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(STEPS),
        st.sampled_from(Phase),
        st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=4),
    ),
    max_size=30,
)


def incidents_of(events: Sequence[Event]) -> tuple[Incident, ...]:
    """By every event."""
    told = (Step.DRIFT, Step.ACCEPT_LOSS)
    return tuple(
        Incident(one.run_key, one.step, one.subject, one.at_ms, one.payload)
        for one in reversed(events)
        if one.phase is Phase.ERROR or (one.phase is Phase.RESULT and one.step in told)
    )


def segments_of(events: Sequence[Event]) -> tuple[SegmentRow, ...]:
    """By every event."""
    states = {Step.ARCHIVE: "archived", Step.SEALED: "archived", Step.RELEASE: "deleted"}
    undone = {one.run_key for one in events if (one.step, one.phase) == (Step.UNDO, Phase.RESULT)}
    found: dict[str, SegmentRow] = {}
    for one in reversed(events):
        if one.step not in states or one.phase is not Phase.RESULT or not one.subject:
            continue
        if one.step == Step.RELEASE and one.run_key in undone:
            continue
        log, _, base_offset = one.subject.rpartition("/")
        state = states[Step(one.step)]
        found.setdefault(one.subject, SegmentRow(log, int(base_offset), state, one.run_key, one.at_ms))
    return tuple(found.values())


@settings(max_examples=25)
@given(acts, st.sampled_from([1, 2, 3, 200]))
def test_the_indexes_find_what_a_scan_finds(
    done: list[tuple[int, Step, Phase, list[str]]], limit: int
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "journal.db")
        journal = Journal(f"sqlite:///{path}")
        mine, other = (journal.add_store(place, "rocketmq").store_id for place in ("/s", "/other"))
        runs = [journal.begin_run(mine, f"r{number}", PlanRequest()) for number in range(4)]
        runs.append(journal.begin_run(other, "r", PlanRequest()))

        def record(connection: Connection) -> None:
            for number, step, phase, subjects in done:
                said = [(subject, {"n": number}) for subject in subjects]
                insert_events(connection, runs[number].run_id, step, phase, said)

        if len(done) % 2:
            # As an older release records it.
            set_back(path, 8)
        with create_engine(f"sqlite:///{path}", poolclass=NullPool).begin() as connection:
            record(connection)
        events = Journal(f"sqlite:///{path}")._events(tables.runs.c.store_id == mine, None, None)
        expected = incidents_of(events), segments_of(events)
        reader = JournalReader(f"sqlite:///{path}")
        assert reader.incidents(mine) == expected[0]
        assert reader.incidents(mine, limit=limit) == expected[0][:limit]
        assert reader.segments(mine, limit=limit) == expected[1][:limit]
        last_ms = events[-1].at_ms if events else 0
        since = tuple(one for one in expected[0] if one.at_ms >= last_ms)
        assert reader.incidents(mine, since_ms=last_ms) == since


def test_no_question_scans_the_events(tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path}/journal.db")

    def ask(connection: Connection) -> str:
        driver: Any = connection.connection.driver_connection
        statements: list[str] = []
        driver.set_trace_callback(statements.append)
        read_incidents(connection, "s", limit=10)
        read_drifts(connection, "s", 0, 9, 10)
        read_segments(connection, "s", limit=10)
        driver.set_trace_callback(None)
        explained = [row for one in statements for row in driver.execute(f"EXPLAIN QUERY PLAN {one}")]
        return "\n".join(row[3] for row in explained)

    told = journal._database.read(ask)
    for index in (tables.events_incidents, tables.events_of_segments):
        assert str(index.name) in told
    assert "SCAN" not in told
