"""What fixture stores owe, against what Java read of them; and that what can't be read is unknown."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_engine.model.broker.broker_store import Pending, PendingKind, StoreSettings
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import PendingPolicy
from storage_engine.retention.plan.deciding import apply_pending_policy
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.pending import RECORD, pending
from storage_engine.rocketmq.store.broker import open_files
from storage_engine.rocketmq.store.store import RocketMQStore

STORES = ["clean-stop", "kill9", "cqext-batchcq", "multipath"]
MIB = 1 << 20
DELAYS_MS = (1_000, 5_000, 10_000, 30_000, 60_000)
"""Of the first delay levels (messageDelayLevel)."""
FIRST_FILE = f"{0:020d}"
HALF_QUEUE = "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0"

StoreCopy = Callable[[str], Path]
GroundTruth = Callable[[str, str], list[dict[str, Any]]]


def owed_of(root: Path) -> dict[PendingKind, Pending]:
    paths = ",".join(str(path) for path in sorted(root.glob("cl[12]")))
    settings = {"storePathCommitLog": paths} if paths else {}
    store = RocketMQStore.open(load_broker_config(None, settings, root=str(root)))
    return {found.kind: found for found in pending(store.layout)}


def delivered_up_to(root: Path) -> dict[int, int]:
    text = (root / "config" / "delayOffset.json").read_text()
    table = re.search(r'"offsetTable":\{([^}]*)\}', text)
    assert table
    return {int(level): int(offset) for level, offset in re.findall(r"(\d+):(\d+)", table[1])}


@pytest.mark.parametrize("name", STORES)
def test_delayed_messages_are_those_behind_each_levels_position(
    name: str, store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    root = store_copy(name)
    delivered = delivered_up_to(root)
    stored_ms = {
        frame["physicOffset"]: frame["storeTimestamp"]
        for frame in ground_truth(name, "commitlog")
        if frame["kind"] == "message"
    }
    waiting = {
        entry["offset"]: stored_ms[entry["offset"]] + DELAYS_MS[entry["queue"]]
        for entry in ground_truth(name, "consumequeue")
        if entry["topic"] == "SCHEDULE_TOPIC_XXXX" and entry["index"] >= delivered[entry["queue"] + 1]
    }
    due = waiting.values()
    assert owed_of(root)[PendingKind.DELAYED] == Pending(
        PendingKind.DELAYED,
        len(waiting),
        min(waiting, default=None),
        min(due, default=None),
        max(due, default=None),
        log="commitlog",
    )


@pytest.mark.parametrize("name", STORES)
def test_timers_are_those_that_are_not_due_before_the_wheels_time(
    name: str, store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    root = store_copy(name)
    (read_time_ms,) = struct.unpack_from(">q", (root / "config" / "timercheck").read_bytes())
    waiting = {
        frame["physicOffset"]: int(frame["properties"]["TIMER_OUT_MS"])
        for frame in ground_truth(name, "commitlog")
        if frame["kind"] == "message" and frame["topic"] == "rmq_sys_wheel_timer"
        if int(frame["properties"]["TIMER_OUT_MS"]) >= read_time_ms
    }
    assert owed_of(root)[PendingKind.TIMER] == Pending(
        PendingKind.TIMER,
        len(waiting),
        min(waiting),
        min(waiting.values()),
        max(waiting.values()),
        log="commitlog",
    )


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq", "multipath"])
def test_transactions_that_were_decided_owe_nothing(name: str, store_copy: StoreCopy) -> None:
    assert owed_of(store_copy(name))[PendingKind.HALF] == Pending(PendingKind.HALF, 0, log="commitlog")


def test_undecided_half_messages_were_never_committed(
    store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    root = store_copy("kill9")
    frames = [frame for frame in ground_truth("kill9", "commitlog") if frame["kind"] == "message"]
    committed = {f["properties"]["UNIQ_KEY"] for f in frames if f["sysFlag"] & 12 == 8}
    halves = [frame for frame in frames if frame["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    newest = {frame["properties"]["UNIQ_KEY"]: frame["physicOffset"] for frame in halves}
    found = owed_of(root)[PendingKind.HALF]
    assert found.count == 6
    assert found.first_offset in {at for key, at in newest.items() if key not in committed}


def test_store_without_timers_levels_and_transactions_owes_nothing(store_copy: StoreCopy) -> None:
    assert owed_of(store_copy("edge-frames")) == {
        kind: Pending(kind, 0, log="commitlog") for kind in PendingKind
    }


def test_level_without_a_position_waits_with_all_that_it_has(
    store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    root = store_copy("clean-stop")
    for path in (root / "config").glob("delayOffset*"):
        path.unlink()
    entries = [
        entry
        for entry in ground_truth("clean-stop", "consumequeue")
        if entry["topic"] == "SCHEDULE_TOPIC_XXXX"
    ]
    found = owed_of(root)[PendingKind.DELAYED]
    assert (found.count, found.error) == (len(entries), "")


def test_group_without_an_offset_begins_at_the_oldest_half_message_that_is_left(
    store_copy: StoreCopy,
) -> None:
    root = store_copy("clean-stop")
    for path in (root / "config").glob("*onsumerOffset*"):
        path.unlink()
    whole = owed_of(root)[PendingKind.HALF]
    # All operations are read again, so that what they decided is decided still.
    assert (whole.error, whole.lost) == ("", 0)
    _remove_segments(root, 6)
    assert owed_of(root)[PendingKind.HALF] == Pending(PendingKind.HALF, 0, log="commitlog")


def test_what_went_with_its_segment_is_lost_and_no_longer_keeps_one(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    _remove_segments(root, 6)
    found = owed_of(root)[PendingKind.TIMER]
    assert (found.count, found.first_offset, found.lost) == (0, None, 1)


def test_timer_at_offset_0_is_said_to_stop_the_wheel(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    path = root / "timerlog" / FIRST_FILE
    data = bytearray(path.read_bytes())
    records = np.frombuffer(data, RECORD, 25)
    (waiting,) = np.flatnonzero(records["offset"] == owed_of(root)[PendingKind.TIMER].first_offset)
    struct.pack_into(">q", data, int(waiting) * RECORD.itemsize + 28, 0)
    path.write_bytes(data)
    found = owed_of(root)[PendingKind.TIMER]
    assert found.first_offset == 0
    assert "timerSkipUnknownError" in found.consequence


def test_timer_log_goes_on_in_the_next_file_behind_a_blank(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    (read_time_ms,) = struct.unpack_from(">q", (root / "config" / "timercheck").read_bytes())
    blank = struct.pack(">iqI", 44, 0, 0xCBD43194).ljust(44, b"\0")
    full = b"".join(_record(read_time_ms - 10**10, 5, 6 * MIB) for _ in range(3)) + blank
    waiting = b"".join(_record(read_time_ms - 5, delay, 6 * MIB + delay) for delay in (4, 5, 6)) + blank
    last = _record(read_time_ms - 5, 60, 6 * MIB + 1).ljust(200, b"\0")
    directory = root / "timerlog"
    (directory / FIRST_FILE).unlink()
    for i, data in enumerate((full, waiting, last)):
        (directory / f"{i * 200:020d}").write_bytes(data)
    found = owed_of(root)[PendingKind.TIMER]
    assert found.error.startswith(str(directory))
    _set_timer_checkpoint(root, 1, 452)
    assert owed_of(root)[PendingKind.TIMER] == Pending(
        PendingKind.TIMER, 3, 6 * MIB + 1, read_time_ms, read_time_ms + 55, log="commitlog"
    )


def test_timers_that_are_not_in_the_timer_log_yet_wait_too(
    store_copy: StoreCopy, ground_truth: GroundTruth
) -> None:
    root = store_copy("clean-stop")
    newest = sorted(
        (frame["physicOffset"], int(frame["properties"]["TIMER_OUT_MS"]))
        for frame in ground_truth("clean-stop", "commitlog")
        if frame["kind"] == "message" and frame["topic"] == "rmq_sys_wheel_timer"
    )[-3:]
    _set_timer_checkpoint(root, 2, 22)
    found = owed_of(root)[PendingKind.TIMER]
    offsets = {offset for offset, _ in newest} | {5283428}
    assert (found.count, found.first_offset) == (len(offsets), min(offsets))
    assert found.first_due_ms == min(due for _, due in newest)


FAULTS: dict[str, tuple[str, PendingKind, Callable[[Path], None]]] = {}


def fault(store: str, kind: PendingKind) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    def register(break_it: Callable[[Path], None]) -> Callable[[Path], None]:
        FAULTS[break_it.__name__] = (store, kind, break_it)
        return break_it

    return register


@fault("clean-stop", PendingKind.TIMER)
def torn_timer_checkpoint(root: Path) -> None:
    path = root / "config" / "timercheck"
    path.write_bytes(path.read_bytes()[:100])


@fault("clean-stop", PendingKind.TIMER)
def negative_timer_checkpoint(root: Path) -> None:
    _set_timer_checkpoint(root, 2, -1)


@fault("clean-stop", PendingKind.TIMER)
def missing_timer_checkpoint(root: Path) -> None:
    (root / "config" / "timercheck").unlink()


@fault("clean-stop", PendingKind.TIMER)
def missing_timer_log(root: Path) -> None:
    (root / "timerlog" / FIRST_FILE).unlink()


@fault("clean-stop", PendingKind.TIMER)
def torn_timer_log(root: Path) -> None:
    with (root / "timerlog" / FIRST_FILE).open("r+b") as file:
        file.seek(20 * RECORD.itemsize)
        file.write(bytes(RECORD.itemsize))


@fault("clean-stop", PendingKind.TIMER)
def missing_timer_queue(root: Path) -> None:
    (root / "consumequeue" / "rmq_sys_wheel_timer" / "0" / FIRST_FILE).unlink()


@fault("clean-stop", PendingKind.DELAYED)
def delay_position_ahead_of_its_queue(root: Path) -> None:
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:53,2:6}}')


@fault("clean-stop", PendingKind.DELAYED)
def delay_positions_that_are_no_object(root: Path) -> None:
    for path in (root / "config").glob("delayOffset*"):
        path.write_text('{"offsetTable":{1:')


@fault("clean-stop", PendingKind.DELAYED)
def missing_queue_of_a_level(root: Path) -> None:
    (root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "3" / FIRST_FILE).unlink()


@fault("cqext-batchcq", PendingKind.DELAYED)
def missing_extension_of_a_level(root: Path) -> None:
    (root / "consumequeue_ext" / "SCHEDULE_TOPIC_XXXX" / "4" / FIRST_FILE).unlink()


@fault("clean-stop", PendingKind.HALF)
def consumer_offsets_that_are_no_object(root: Path) -> None:
    for path in (root / "config").glob("*onsumerOffset*"):
        path.write_text("{")


@fault("clean-stop", PendingKind.HALF)
def missing_queue_of_half_messages(root: Path) -> None:
    (root / HALF_QUEUE / FIRST_FILE).unlink()


@fault("kill9", PendingKind.HALF)
def operation_message_that_is_none(root: Path) -> None:
    with (root / "commitlog" / f"{MIB:020d}").open("r+b") as file:
        file.seek(1605965 - MIB + 4)
        file.write(bytes(4))


@fault("kill9", PendingKind.HALF)
def operation_message_that_names_no_offsets(root: Path) -> None:
    with (root / "commitlog" / f"{MIB:020d}").open("r+b") as file:
        file.seek(1605965 - MIB + 88)
        file.write(b"x")


@pytest.mark.parametrize("name", list(FAULTS))
def test_what_cannot_be_read_is_unknown_and_its_kind_alone(name: str, store_copy: StoreCopy) -> None:
    store, kind, break_it = FAULTS[name]
    root = store_copy(store)
    before = owed_of(root)
    break_it(root)
    found = owed_of(root)
    assert found[kind].count is None
    assert "expected" in found[kind].error
    assert str(root) in found[kind].error
    assert {other: found[other] for other in PendingKind if other is not kind} == {
        other: before[other] for other in PendingKind if other is not kind
    }


@pytest.mark.slow
def test_whatever_lies_in_the_files_the_answer_is_figures_or_unknown(store_copy: StoreCopy) -> None:
    root = store_copy("kill9")
    paths = [
        *(root / "config" / name for name in ("timercheck", "delayOffset.json", "consumerOffset.json")),
        root / "timerlog" / FIRST_FILE,
        *(root / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob("*/*"),
        *(root / "consumequeue" / "RMQ_SYS_TRANS_OP_HALF_TOPIC").glob("*/*"),
        root / HALF_QUEUE / FIRST_FILE,
    ]
    for path in (root / "config").glob("*.bak"):
        path.unlink()
    chance = random.Random(5)
    for _ in range(150):
        path = chance.choice(paths)
        whole = path.read_bytes()
        broken = bytearray(whole)
        for _ in range(chance.choice((1, 4))):
            broken[chance.randrange(min(len(broken), 1500))] = chance.choice((0, 0x7F, 0xFF, 0x39))
        path.write_bytes(broken[: chance.choice((len(broken), len(broken), chance.randrange(len(broken))))])
        for found in owed_of(root).values():
            assert (found.count is None) == bool(found.error)
        path.write_bytes(whole)


def _remove_segments(root: Path, count: int) -> None:
    for path in sorted((root / "commitlog").iterdir())[:count]:
        path.unlink()


def _record(write_time_ms: int, delay_ms: int, offset: int) -> bytes:
    return struct.pack(">iqiqiqiiq", 52, -1, 1, write_time_ms, delay_ms, offset, 100, 0, 0)


def _set_timer_checkpoint(root: Path, field: int, value: int) -> None:
    """:param field: 1: timer log's position, 2: queue offset."""
    path = root / "config" / "timercheck"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, field * 8, value)
    path.write_bytes(data)


def test_timers_and_half_messages_in_rocksdb_are_unknown_by_its_files(store_copy: StoreCopy) -> None:
    """A broker of 5.5.0 wrote it: three timers and two half messages are pending."""
    root = store_copy("rocksdb-pending")
    found = owed_of(root)
    assert (found[PendingKind.DELAYED].count, found[PendingKind.DELAYED].error) == (3, "")
    for kind, what in ((PendingKind.TIMER, "timers"), (PendingKind.HALF, "half messages")):
        assert found[kind].count is None
        assert (
            f"expected {what} in the store's own files, found that they are in RocksDB" in found[kind].error
        )


def test_a_rocksdb_that_holds_no_pending_messages_changes_nothing(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    before = owed_of(root)
    rocksdb = root / "rocksdbstore"
    rocksdb.mkdir()
    # What a broker of 5.5.0 with default settings leaves there: column families without a record.
    (rocksdb / "MANIFEST-000005").write_bytes(b"leveldb.BytewiseComparator timer trans")
    (rocksdb / "000004.log").touch()
    assert owed_of(root) == before


@pytest.mark.parametrize(
    ("key", "kind"), [("timerRocksDBEnable", PendingKind.TIMER), ("transRocksDBEnable", PendingKind.HALF)]
)
def test_a_setting_that_moves_pending_messages_to_rocksdb_makes_them_unknown(
    store_copy: StoreCopy, key: str, kind: PendingKind
) -> None:
    root = store_copy("clean-stop")
    config = load_broker_config(None, {key: "true"}, root=str(root))
    unknown = [item for item in pending(RocketMQStore.open(config).layout) if item.count is None]
    assert [item.kind for item in unknown] == [kind]
    assert f"{key}=true" in unknown[0].error


def test_what_is_unknown_keeps_every_segment_under_block(store_copy: StoreCopy) -> None:
    root = store_copy("clean-stop")
    store = open_files(
        StoreSettings(str(root), overrides={"transRocksDBEnable": "true", "fileReservedTime": "0"})
    )
    snapshot = store.snapshot(4_000_000_000_000)
    plan = store.plan(snapshot, 4_000_000_000_000, PlanRequest(manual=True))
    assert plan.to_delete
    assert not apply_pending_policy(plan, store.consumers.pending(snapshot), PendingPolicy.BLOCK).to_delete
