"""Two nodes that have replicas of the same logs, and share a lake: each record is archived once."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores
from storage_engine.model.plan import PlanRequest
from storage_engine.model.report.validation import VerifyLevel, Where
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.archive.sealed import archive_lag, archive_sealed, measure_lag
from storage_engine.retention.decisions import adopt
from storage_engine.retention.monitor.recording_ranges import look_for_ranges
from storage_engine.retention.quarantine.emptying import Keeper, empty_expired
from storage_engine.retention.ranges.offset_ranges import Place
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import archive_planned, make_plan
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import TRANSACTIONAL, batch_of
from tests.kafka.stopped_nodes import NO_LAG, OLD_MS, clean, make_node, managed
from tests.lakes import path_of
from tests.rounds import later
from tests.services.restoring import restore

HOUR_MS = 3_600_000


@pytest.fixture
def nodes(node: Path, tmp_path: Path) -> tuple[ManagedStore, ManagedStore]:
    """Two stores with few logs, whose lake is the same, and whose journals aren't."""
    made = []
    for name in ("one", "other"):
        copied = Path(shutil.copytree(node, tmp_path / name))
        properties = copied / "server.properties"
        properties.write_text(properties.read_text().replace(str(node), str(copied)))
        for log in (copied / "logs").iterdir():
            if log.is_dir() and log.name not in ("plain-0", "txn-0"):
                shutil.rmtree(log)
        made.append(ManagedStore.local(name, str(properties), tmp_path / f"managed-{name}", broker="kafka"))
    first, second = made
    make_lake(first.lake, "kafka")
    return first, replace(second, lake=first.lake)


def test_what_one_replica_has_archived_counts_for_the_other(
    nodes: tuple[ManagedStore, ManagedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_engine.lake.archive.archive.SHARED_SEGMENT_BYTES", 0)
    first, second = nodes
    path = Path(second.root).parent / "logs" / "plain-0" / f"{0:020d}.log"
    data = path.read_bytes()
    done = archive_sealed(first, "run", archive_here)
    again = archive_sealed(second, "run", archive_here)
    assert len(done.receipts) > 10
    assert again.receipts == ()
    assert archive_lag(second).segments == 0
    lake = open_lake(first.lake)
    assert len(list_stores(lake)) == 1
    (verified,) = verify_store(second, VerifyLevel.RECEIPTS)
    assert (verified.receipt_count, verified.credited_count) == (0, len(done.receipts))

    # Who touches a file, or loses what the other one archived, has it archived here.
    path.write_bytes(data)
    row = next(one for one in done.receipts if (one.log, one.base_offset) != ("plain-0", 0))
    path_of(lake, row).unlink()
    assert archive_lag(second).segments == 2
    last = archive_sealed(second, "later", archive_here)
    assert [(one.log, one.base_offset) for one in last.receipts] == [(row.log, row.base_offset)]
    assert archive_lag(second).segments == 0
    assert len(list_stores(lake)) == 2


def test_other_bytes_at_the_same_offsets_are_refused_until_a_person_adopts_the_log(
    nodes: tuple[ManagedStore, ManagedStore],
) -> None:
    first, second = nodes
    archive_sealed(first, "run", archive_here)
    ours = Path(second.root).parent / "logs" / "plain-0" / f"{0:020d}.log"
    data = bytearray(ours.read_bytes())
    # The leader's epoch in the first batch, which no CRC covers.
    data[15] ^= 1
    ours.write_bytes(data)
    done = archive_sealed(second, "run", archive_here)
    assert done.receipts == ()
    (refused,) = done.refused
    assert (refused.log, refused.error) == ("plain-0", "LakeConflictError")
    assert f"store one archived offsets [0, {first_end(second)}) with SHA-256 " in refused.why
    assert refused.why.endswith(f"in {ours}.")
    assert "adopt --log plain-0 --reason" in refused.remedy
    assert len(list_stores(open_lake(first.lake))) == 1
    with pytest.raises(BadInputError, match="there is nothing to adopt"):
        adopt(second, "me", "none", log="txn-0")
    adopt(second, "me", "both are kept", log="plain-0")
    done = archive_sealed(second, "again", archive_here)
    assert not done.refused
    assert [(one.log, one.base_offset, one.lineage) for one in done.receipts] == [("plain-0", 0, 2)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[ManagedStore, ManagedStore]:
    """Two nodes with the same expired segments, whose lake is the same, and whose journals aren't."""
    first, second = (
        managed(tmp_path / f"of-{name}", make_node(tmp_path / name).root) for name in ("one", "two")
    )
    make_lake(first.lake, "kafka")
    return first, replace(second, name="other", lake=first.lake)


def segment(store: ManagedStore, log: str, offset: int) -> Path:
    return Path(store.root).parent / ("first" if log == "a-0" else "second") / log / f"{offset:020d}.log"


def test_what_is_planned_is_compared_and_not_archived_again(pair: tuple[ManagedStore, ManagedStore]) -> None:
    first, second = pair
    archive_sealed(first, "run", archive_here)
    ours = segment(second, "b-0", 2)
    data = bytearray(ours.read_bytes())
    data[15] ^= 1
    ours.write_bytes(data)
    make_plan(second, "run", PlanRequest())
    done = archive_planned(second, "run", archive_here)
    assert done.receipts == ()
    (refused,) = done.refused
    assert (refused.log, refused.error) == ("b-0", "LakeConflictError")
    assert "archived offsets [2, 4) with SHA-256 " in refused.why


@pytest.mark.again
def test_a_cleanup_deletes_what_another_node_archived_and_archives_none_of_it(
    pair: tuple[ManagedStore, ManagedStore],
) -> None:
    first, second = pair
    clean(first, "run")
    clean(second, "run")
    assert len(list_stores(open_lake(first.lake))) == 1
    for log in ("a-0", "b-0"):
        assert not segment(second, log, 0).exists()
        assert not segment(second, log, 2).exists()
    deleted = steps.release(second, "run").deleted
    assert [(one.log, one.base_offset) for one in deleted] == [("a-0", 0), ("a-0", 2), ("b-0", 0), ("b-0", 2)]
    assert all(one.replicas and one.receipt_hash and one.sha256 is None for one in deleted)
    with opened(second) as context:
        measured = measure_lag(context)
        places = {one.where for one in look_for_ranges(context, measured.snapshot, measured)[0]}
    assert places == {Place.ARCHIVED, Place.LOCAL}
    facts = collect_facts(second, None, full=False, with_lake=True)
    assert {one.where for one in facts.ranges} == {Where.ARCHIVED, Where.LOCAL}


@pytest.mark.parametrize("loss", ["file", *later("bytes")])
def test_what_another_node_archived_counts_as_it_is_once_the_store_is_ours(
    pair: tuple[ManagedStore, ManagedStore], loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    done = archive_sealed(first, "run", archive_here)
    make_plan(second, "run", PlanRequest())
    assert archive_planned(second, "run", archive_here).receipts == ()
    steps.record_lag(second, "run", NO_LAG, [])
    lease = Journal.lease

    @contextmanager
    def taken(journal: Journal, store_id: str) -> Iterator[Lease]:
        """Let the other node's archive, or our segment, change as soon as the lease is ours."""
        with lease(journal, store_id) as held:
            if loss == "file":
                path_of(open_lake(first.lake), done.receipts[0]).unlink()
            else:
                path = segment(second, "a-0", 0)
                path.write_bytes(path.read_bytes()[:-1] + b"?")
            yield held

    monkeypatch.setattr(Journal, "lease", taken)
    result = steps.release(second, "run")
    assert [one.log for one in result.deleted] == ["b-0", "b-0"]
    assert [one.log for one in result.refused] == ["a-0"]
    assert segment(second, "a-0", 0).exists()
    assert segment(second, "a-0", 2).exists()


def test_what_other_nodes_proved_leaves_a_quarantine_while_their_receipts_hold_alone(
    pair: tuple[ManagedStore, ManagedStore], tmp_path: Path
) -> None:
    first, second = pair
    done = archive_sealed(first, "run", archive_here)
    (tmp_path / "undo").mkdir()
    policy = replace(second.policy, undo_window_hours=24, undo_directories=(str(tmp_path / "undo"),))
    second = replace(second, policy=policy)
    clean(second, "run")
    damaged = path_of(open_lake(first.lake), done.receipts[0])
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-9])
    with opened(second) as context:
        keeper = Keeper(context.journal, context.record, second.lakes)
        (stays,) = empty_expired(keeper, clock_ms() + 25 * HOUR_MS)
        assert "isn't proven in the lake any more" in stays
        damaged.write_bytes(data)
        (emptied,) = empty_expired(keeper, clock_ms() + 26 * HOUR_MS)
    assert "was emptied" in emptied


@pytest.mark.again
def test_two_nodes_that_clean_up_at_once_lose_nothing(pair: tuple[ManagedStore, ManagedStore]) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=clean, args=(store, "run")) for store in pair]
    for one in processes:
        one.start()
    for one in processes:
        one.join(300)
    assert [one.exitcode for one in processes] == [0, 0]
    for store in pair:
        assert not segment(store, "a-0", 2).exists()
        (verified,) = verify_store(store, VerifyLevel.BYTES)
        assert {one.where for one in verified.ranges} == {Where.ARCHIVED, Where.LOCAL}


def test_of_what_is_planned_nothing_is_archived_that_a_transaction_keeps_out(tmp_path: Path) -> None:
    node = make_node(tmp_path / "node")
    store = managed(tmp_path / "of-node", node.root)
    make_lake(store.lake, "kafka")
    make_plan(store, "run", PlanRequest())
    # Since then a record has come of a transaction that is open.
    written = batch_of(2, ms=OLD_MS, producer=7, attributes=TRANSACTIONAL)
    (node.root / "second" / "b-0" / f"{2:020d}.log").write_bytes(written)
    for snapshot in (node.root / "second" / "b-0").glob("*.snapshot"):
        snapshot.unlink()
    done = archive_planned(store, "run", archive_here)
    assert [(one.log, one.base_offset) for one in done.receipts] == [("a-0", 0), ("a-0", 2), ("b-0", 0)]
    (kept,) = done.kept_out
    assert (kept.log, kept.first_offset) == ("b-0", 2)
    assert kept.why == "a transaction of producer 7 is open from offset 2 on, until it ends"


@pytest.mark.again
@pytest.mark.parametrize("credited", [True, *later(False)])
def test_other_leaders_of_equal_bytes_are_a_divergence(
    nodes: tuple[ManagedStore, ManagedStore], credited: bool
) -> None:
    first, second = nodes
    archive_sealed(first, "run", archive_here)
    if credited:
        assert not archive_sealed(second, "run", archive_here).refused
    checkpoint = Path(second.root).parent / "logs" / "plain-0" / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n2\n0 0\n7 100\n")
    (refused,) = archive_sealed(second, "later", archive_here).refused
    assert refused.log == "plain-0"
    assert "7 from 100 on, and the archived ones are 0 from 0 on" in refused.why
    adopt(second, "me", "an unclean election", log="plain-0")
    done = archive_sealed(second, "adopted", archive_here)
    assert (done.receipts, done.refused) == ((), ())


def first_end(store: ManagedStore) -> int:
    paths = sorted((Path(store.root).parent / "logs" / "plain-0").glob("*.log"))
    return int(paths[1].stem)


@pytest.mark.again
def test_what_replicas_archived_is_not_lost_once_this_node_deleted_it(
    nodes: tuple[ManagedStore, ManagedStore],
) -> None:
    first, second = nodes
    (own,) = archive_sealed(second, "own", archive_here, budget_bytes=1).receipts
    assert (own.log, own.base_offset) == ("plain-0", 0)
    archive_sealed(first, "run", archive_here)
    assert archive_sealed(second, "rest", archive_here).receipts == ()
    paths = sorted((Path(second.root).parent / "logs" / "plain-0").glob("*.log"))
    for path in paths[:3]:
        path.unlink()
    begin = int(paths[3].stem)
    with opened(second) as context:
        measured = measure_lag(context)
        found = look_for_ranges(context, measured.snapshot, measured)[0]
    ranges = [one for one in found if one.log == "plain-0"]
    assert [one.where for one in ranges if one.start_offset < begin] == [Place.ARCHIVED]
    assert (ranges[0].start_offset, ranges[0].end_offset) == (0, begin)
    assert Place.LOST not in {one.where for one in found}


@pytest.mark.again
def test_a_log_that_replicas_archived_in_turn_is_restored_whole_from_any_of_them(
    nodes: tuple[ManagedStore, ManagedStore], tmp_path: Path
) -> None:
    archived = {}
    for turn in range(9):
        # Each finds first what the other archived before, which counts as work of its own.
        store = nodes[(turn + 1) // 2 % 2]
        done = archive_sealed(store, f"run-{turn}", archive_here, budget_bytes=1)
        archived |= {(row.log, row.base_offset): row.store_id for row in done.receipts}
    lake, stores = open_lake(nodes[0].lake), set(archived.values())
    assert len(stores) == 2
    offsets = sorted(offset for log, offset in archived if log == "plain-0")
    for store_id in stores:
        own = [offset for offset in offsets if archived["plain-0", offset] == store_id]
        assert 1 < len(own) < len(offsets)
        there = restore(lake, store_id, tmp_path / store_id, log="plain-0")
        assert [one.base_offset for one in there] == offsets
        for one in there:
            source = Path(nodes[0].root).parent / "logs" / "plain-0" / Path(one.path).name
            assert Path(one.path).read_bytes() == source.read_bytes()
