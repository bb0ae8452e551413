"""A node whose broker deletes, renames and writes at the very calls that read it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.cycle import archive_here
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.making import make_lake
from storage_engine.lake.receipts import list_stores, receipts
from storage_engine.model.store import Segment
from storage_engine.retention.drift import recorded_gone
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.sealed import archive_sealed
from tests.aging import aging
from tests.kafka.lakes import archivable_segments
from tests.kafka.node_acts import NodeActs
from tests.rounds import rounds
from tests.services.command_line import run_command

LOGS = ("compacted-0", "ctime-0", "plain-0", "retms-0", "txn-0")
ACTS = ("expire", "expire_many", "remove", "delete_topic", "append", "compact", "start")
SCHEDULE = st.lists(st.tuples(st.integers(0, 150), st.sampled_from(ACTS)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def few(node: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Make a node with few logs."""
    turn = iter(range(1_000_000))

    def make() -> Path:
        copied = tmp_path_factory.mktemp(f"aging-{next(turn)}") / "node"
        shutil.copytree(
            node,
            copied,
            ignore=lambda at, names: {
                name for name in names if Path(at).name == "logs" and name[-1].isdigit() and name not in LOGS
            },
        )
        properties = copied / "server.properties"
        properties.write_text(properties.read_text().replace(str(node), str(copied)))
        return copied

    return make


def is_on_disk(segment: Segment) -> bool:
    return Path(segment.facts.path).exists()


@pytest.mark.again
@settings(
    max_examples=rounds("STORAGE_ENGINE_AGING", 4, 300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(schedule=SCHEDULE)
def test_archive_goes_on_with_all_that_is_left(
    few: Callable[[], Path], schedule: list[tuple[int, str]]
) -> None:
    node = few()
    store = ManagedStore.local("k", str(node / "server.properties"), node.parent / "managed", broker="kafka")
    make_lake(store.lake, "kafka")
    before = archivable_segments(node)
    acts = NodeActs(node / "logs")
    with aging(node, [(after, getattr(acts, act)) for after, act in schedule]):
        done = archive_sealed(store, "aging", archive_here)
    lake = open_lake(store.lake)
    (known,) = list_stores(lake)
    archived = {(row.log, row.base_offset) for row in receipts(lake, known.store_id)}
    left = [one for one in before if is_on_disk(one)]
    assert {one.id for one in left} <= archived
    # No broker runs, to which anything could be left: what is gone and in no lake is lost, and on record.
    gone = [one for one in before if not is_on_disk(one) and one.id not in archived]
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    ranges = [(one.log, one.start_offset, one.end_offset) for one, _ in recorded_gone(journal, record)]
    for one in gone:
        assert any(
            log == one.log and first <= one.base_offset and one.end_offset <= end
            for log, first, end in ranges
        )
    assert {one.log for one in done.refused} == {log for log, _, _ in ranges}
    assert all(one.why.endswith(" LOST.") for one in done.refused)


@settings(
    max_examples=rounds("STORAGE_ENGINE_AGING", 3, 150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(schedule=SCHEDULE, command=st.sampled_from(("plan", "doctor", "inspect", "lag", "validate")))
def test_who_only_looks_ends_well(
    few: Callable[[], Path], schedule: list[tuple[int, str]], command: str
) -> None:
    node = few()
    acts = NodeActs(node / "logs")
    words = ("--output", node.parent / "validation") if command == "validate" else ()
    with aging(node, [(after, getattr(acts, act)) for after, act in schedule]):
        done = run_command(command, node / "server.properties", *words)
    assert done.exit_code in (0, 1), done.out + done.err
    assert "Traceback" not in done.err
    # Nothing was wrong with it before.
    assert "a hole" not in done.out
