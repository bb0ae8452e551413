"""A node's logs on their way into the lake, without one that can't be archived or is another one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import AlwaysTrue

from storage_engine.core.clock import clock_ms
from storage_engine.cycle import archive_here
from storage_engine.exceptions import BadInputError, CorruptFrameError, LakeConflictError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.scan import read_rows
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.retention.archive.sealed import archive_lag, archive_sealed
from storage_engine.retention.decisions import adopt
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.steps import ArchiveResult
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import missing_stamps
from tests.kafka_fixture import truth

LOGS = ("compacted-0", "ctime-0", "plain-0", "retms-0", "txn-0")
"""Enough of them for what concerns one log and not the others."""


@pytest.fixture
def store(whole: ManagedStore) -> ManagedStore:
    """A store with few logs."""
    for log in logs_of(whole).iterdir():
        if log.is_dir() and log.name not in LOGS:
            shutil.rmtree(log)
    return whole


@pytest.fixture
def whole(copy: Path, tmp_path: Path) -> ManagedStore:
    properties = copy / "server.properties"
    made = ManagedStore.local("k", str(properties), tmp_path / "managed", broker="kafka")
    make_lake(made.lake, "kafka")
    return made


def archive(store: ManagedStore, run: str, budget_bytes: int | None = None) -> ArchiveResult:
    return archive_sealed(store, run, archive_here, budget_bytes=budget_bytes)


def logs_of(store: ManagedStore) -> Path:
    return Path(store.root).parent / "logs"


@pytest.mark.again
def test_every_log_is_archived_and_read_by_topic_and_state(whole: ManagedStore) -> None:
    store = whole
    done = archive(store, "first")
    assert not done.refused
    assert len(done.receipts) > 90
    (kept_out,) = done.kept_out
    assert (kept_out.log, kept_out.segments > 1) == ("compacted-0", True)
    assert kept_out.why.startswith("its cleanup.policy contains compact")
    assert missing_stamps(store.real_root) == ()
    assert archive(store, "second").receipts == ()
    assert archive_lag(store).segments == 0
    for receipt in done.receipts:
        assert receipt.log_id is not None
        assert receipt.was_settled
        assert receipt.known["leader_epochs"]
    rows = read_rows(
        open_lake(store.lake).messages(),
        AlwaysTrue(),
        ["topic", "partition", "offset", "kind", "state", "log"],
    )
    messages = rows.filter(pc.equal(rows["kind"], "message"))
    spans = {(one.log, one.base_offset, one.end) for one in done.receipts}
    known = [
        one
        for batch in truth()["batch"]
        for one in [batch]
        if not batch["control"]
        and any(
            batch["file"].startswith(f"logs/{log}/") and first <= batch["base"] < end
            for log, first, end in spans
        )
    ]
    assert messages.num_rows == sum(batch["count"] for batch in known)
    assert set(messages["topic"].to_pylist()) == {log.rpartition("-")[0] for log, _, _ in spans}
    assert set(messages["state"].to_pylist()) == {"committed", "aborted"}
    aborted = messages.filter(pc.equal(messages["state"], "aborted"))
    assert set(aborted["topic"].to_pylist()) == {"txn"}


@pytest.mark.parametrize(
    ("at", "expected"), [(130, "CRC-32C"), pytest.param(100, "a batch from offset ", marks=pytest.mark.again)]
)
def test_a_damaged_log_keeps_no_other_out(store: ManagedStore, at: int, expected: str) -> None:
    path = logs_of(store) / "plain-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    data = bytearray(whole)
    # The second batch begins at byte 98. Its CRC doesn't cover its offset.
    data[at] ^= 1
    path.write_bytes(data)
    done = archive(store, "damaged")
    assert [one.log for one in done.refused] == ["plain-0"]
    assert done.refused[0].error == CorruptFrameError.__name__
    assert str(path) in done.refused[0].why
    assert expected in done.refused[0].why
    assert not [one for one in done.receipts if one.log == "plain-0"]
    assert {one.log for one in done.receipts} == {"ctime-0", "retms-0", "txn-0"}
    # What it reads by doesn't keep it from writing its stamp.
    assert missing_stamps(store.real_root) == ()
    # To archive again would end the same: the doctor says what is to be mended.
    diagnosis = diagnose(store, clock_ms(), has_lake=True)
    (refused,) = (one for one in diagnosis.findings if one.kind == "archive-refused")
    assert refused.what.startswith("log plain-0 was refused by the last archive: ")
    assert diagnosis.next.command == ""
    assert diagnosis.next.why == "mend what keeps 1 log out of the lake, as said above; then archive again"
    path.write_bytes(whole)
    assert not archive(store, "mended").refused
    found = diagnose(store, clock_ms(), has_lake=True)
    assert "archive-refused" not in {one.kind for one in found.findings}


def test_a_log_that_lost_what_is_archived_is_told_each_time(
    store: ManagedStore,
) -> None:
    archive(store, "first")
    last = sorted((logs_of(store) / "plain-0").glob("*.log"))[-2:]
    for path in last:
        for file in path.parent.glob(f"{path.stem}.*"):
            file.unlink()
    again = archive(store, "again")
    assert [one.log for one in again.refused] == ["plain-0"]
    assert "and offsets up to" in again.refused[0].why


@pytest.mark.again
def test_a_batch_that_is_missing_inside_a_segment_keeps_its_log_out(store: ManagedStore) -> None:
    path = logs_of(store) / "plain-0" / f"{0:020d}.log"
    data = path.read_bytes()
    second = int.from_bytes(data[8:12], "big") + 12
    third = second + int.from_bytes(data[second + 8 : second + 12], "big") + 12
    path.write_bytes(data[:second] + data[third:])
    done = archive(store, "gap")
    assert [one.log for one in done.refused] == ["plain-0"]
    assert f"at physical offset {second}: expected a batch from offset" in done.refused[0].why


@pytest.mark.again
def test_aborted_records_are_told_without_a_transaction_index(store: ManagedStore) -> None:
    known = states(store, "with")
    assert known["aborted"] > 10
    for index in (logs_of(store) / "txn-0").glob("*.txnindex"):
        index.write_bytes(b"")
    assert states(store, "without") == known


def states(store: ManagedStore, lake: str) -> dict[str, int]:
    other = replace(store, lake=LakeConfig.local(Path(store.root).parent / lake))
    other = replace(other, journal_url=f"sqlite:///{Path(store.root).parent / lake}.db")
    make_lake(other.lake, "kafka")
    archive(other, lake)
    rows = read_rows(open_lake(other.lake).messages(), AlwaysTrue(), ["log", "state"])
    found = rows.filter(pc.equal(rows["log"], "txn-0"))["state"].value_counts().to_pylist()
    return {str(one["values"]): one["counts"] for one in found}


def test_what_goes_without_a_proof_is_an_alarm(store: ManagedStore) -> None:
    assert store.archives_ahead
    alarms = monitor(store, "before").alarms
    assert [alarm for alarm in alarms if "retms-0 may be deleted by the broker now, and no lake" in alarm]
    archive(store, "all")
    assert not [alarm for alarm in monitor(store, "after").alarms if "no lake proves" in alarm]


@pytest.mark.again
def test_a_log_without_a_segment_in_the_middle_keeps_no_other_out(store: ManagedStore) -> None:
    paths = sorted((logs_of(store) / "plain-0").glob("*.log"))
    paths[2].unlink()
    done = archive(store, "hole")
    assert [one.log for one in done.refused] == ["plain-0"]
    assert f"{paths[1]} ends at offset {int(paths[2].stem)}, and the next" in done.refused[0].why
    assert {one.log for one in done.receipts} == {"ctime-0", "retms-0", "txn-0"}


@pytest.mark.again
def test_a_log_with_other_leaders_is_refused_until_a_person_adopts_it(store: ManagedStore) -> None:
    first = archive(store, "first", budget_bytes=1)
    (row,) = first.receipts
    checkpoint = logs_of(store) / row.log / "leader-epoch-checkpoint"
    checkpoint.write_text(f"0\n2\n0 0\n7 {row.base_offset + 1}\n")
    second = archive(store, "second")
    assert [one.log for one in second.refused] == [row.log]
    assert second.refused[0].error == LakeConflictError.__name__
    assert f"adopt STORE --log {row.log} --reason WHY " in second.refused[0].remedy
    assert {one.log for one in second.receipts} == {"plain-0", "retms-0", "txn-0"}
    with pytest.raises(BadInputError, match=f"found differences only in {row.log}"):
        adopt(store, "me", "an unclean election")
    record = adopt(store, "me", "an unclean election", log=row.log)
    assert record.lineage_of(row.log) == 2
    third = archive(store, "third")
    assert {one.log for one in third.receipts} == {row.log}
    assert {one.lineage for one in third.receipts} == {2}
    assert not third.refused
    kept = receipts(open_lake(store.lake), record.store_id, log=row.log)
    assert {one.lineage for one in kept} == {1, 2}
