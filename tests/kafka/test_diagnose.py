"""What a node's doctor finds by files alone: the cleaner, transactions, room, and what is left behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerConfigError
from storage_engine.kafka import BROKER
from storage_engine.kafka.diagnose import DirectoryRoom, full_disks, imbalance, room_findings
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.stopped.cleaner import CleanerSettings, cleaner_settings
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.kafka.transactions import find_open
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Reason
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.batches import marker
from tests.kafka.made_node import TRANSACTIONAL, WRITTEN_MS, MadeNode, batch_of
from tests.kafka.plans import THREE, decisions, files_of

HOUR_MS, DAY_MS = 3_600_000, 24 * 3_600_000
NOW_MS = WRITTEN_MS + 10 * DAY_MS
COMPACTED = {"cleanup.policy": "compact"}


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    return MadeNode(tmp_path / "node")


def found(root: Path, kind: str, now_ms: int = NOW_MS) -> list[Finding]:
    said = BROKER.inspection.diagnose(StoreSettings(str(root)), None, now_ms)
    return [one for one in said.findings if one.kind == kind]


def written(path: Path, at_ms: int) -> None:
    os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def times(directory: Path, moments: Sequence[int]) -> None:
    """Say when a log's segments were last written to."""
    for path, at_ms in zip(sorted(directory.glob("*.log")), moments, strict=True):
        written(path, at_ms)


def active_until(made: MadeNode, at_ms: int) -> None:
    """Say when the broker last did something."""
    written(made.directories[0] / "replication-offset-checkpoint", at_ms)


class TestCleaner:
    @pytest.fixture
    def compacted(self, made: MadeNode) -> MadeNode:
        """Two closed segments, the first of them clean."""
        path = made.add("c-0", THREE, settings=COMPACTED)
        made.add("t-0", THREE)
        made.write()
        times(path, [WRITTEN_MS, WRITTEN_MS + HOUR_MS, WRITTEN_MS + DAY_MS])
        active_until(made, WRITTEN_MS + DAY_MS)
        return made

    def clean(self, made: MadeNode, cleaned_to: int, at_ms: int) -> None:
        made.checkpoint("cleaner-offset-checkpoint", {"c-0": cleaned_to})
        written(made.directories[0] / "cleaner-offset-checkpoint", at_ms)

    def test_a_log_that_waits_while_nothing_is_cleaned_tells_of_a_dead_one(self, compacted: MadeNode) -> None:
        self.clean(compacted, 0, WRITTEN_MS - 1)
        (dead,) = found(compacted.properties, "cleaner-dead")
        assert dead.severity is Severity.WARNING
        assert "should have been cleaned since 2027-01-15 08:00:00Z: c-0 (" in dead.what
        (compacted.directories[0] / "cleaner-offset-checkpoint").unlink()
        (dead,) = found(compacted.properties, "cleaner-dead")
        assert "the cleaner finished a log never, and 1 log should" in dead.what

    @pytest.mark.parametrize("cleaned_to", [2, 4])
    def test_a_clean_log_is_not_due(self, compacted: MadeNode, cleaned_to: int) -> None:
        """Half of it is no more than the ratio; all of it is nothing."""
        self.clean(compacted, cleaned_to, WRITTEN_MS - 1)
        assert found(compacted.properties, "cleaner-dead") == []

    def test_a_ratio_of_its_own_counts(self, compacted: MadeNode) -> None:
        self.clean(compacted, 2, WRITTEN_MS - 1)
        compacted.settings["c"]["min.cleanable.dirty.ratio"] = "0.1"
        compacted.write()
        active_until(compacted, WRITTEN_MS + DAY_MS)
        assert found(compacted.properties, "cleaner-dead")

    def test_the_largest_age_makes_a_log_due(self, compacted: MadeNode) -> None:
        self.clean(compacted, 2, WRITTEN_MS - 1)
        compacted.settings["c"]["max.compaction.lag.ms"] = str(2 * HOUR_MS)
        compacted.write()
        active_until(compacted, WRITTEN_MS + DAY_MS)
        (dead,) = found(compacted.properties, "cleaner-dead")
        assert "since 2027-01-15 10:00:00Z" in dead.what

    def test_what_was_just_closed_is_waited_for(self, compacted: MadeNode) -> None:
        self.clean(compacted, 0, WRITTEN_MS - 1)
        active_until(compacted, WRITTEN_MS + HOUR_MS // 2)
        assert found(compacted.properties, "cleaner-dead") == []

    def test_a_cleaner_at_work_is_alive(self, compacted: MadeNode) -> None:
        self.clean(compacted, 0, WRITTEN_MS - 1)
        part = compacted.directories[0] / "c-0" / f"{0:020d}.log.cleaned"
        part.write_bytes(b"x")
        written(part, WRITTEN_MS + DAY_MS)
        assert found(compacted.properties, "cleaner-dead") == []
        written(part, WRITTEN_MS)
        assert found(compacted.properties, "cleaner-dead")

    def test_one_log_that_waits_while_others_are_cleaned_is_passed_over(self, compacted: MadeNode) -> None:
        self.clean(compacted, 0, WRITTEN_MS + 3 * DAY_MS)
        active_until(compacted, WRITTEN_MS + 3 * DAY_MS)
        assert found(compacted.properties, "cleaner-dead") == []
        (skips,) = found(compacted.properties, "cleaner-skips")
        assert skips.what.startswith("log c-0 (")

    def test_behind_an_open_transaction_nothing_is_due(self, compacted: MadeNode) -> None:
        self.clean(compacted, 0, WRITTEN_MS - 1)
        first = compacted.directories[0] / "c-0" / f"{0:020d}.log"
        first.write_bytes(batch_of(0, producer=7, attributes=TRANSACTIONAL))
        assert found(compacted.properties, "cleaner-dead") == []
        assert found(compacted.properties, "hanging-transaction")

    def test_one_that_is_off_is_named(self, compacted: MadeNode) -> None:
        compacted.node_settings["log.cleaner.enable"] = "false"
        assert "1 log of compacted topics grow" in found(compacted.write(), "cleaner-off")[0].what

    def test_its_settings_are_the_topics_and_then_the_nodes(self) -> None:
        node = {"log.cleaner.min.cleanable.ratio": "0.2", "log.cleaner.min.compaction.lag.ms": "5"}
        assert cleaner_settings(node, {"min.cleanable.dirty.ratio": "0.9"}) == CleanerSettings(0.9, 5)
        with pytest.raises(BrokerConfigError, match="expected numbers"):
            cleaner_settings({}, {"min.compaction.lag.ms": "soon"})


DAMAGED_EPOCHS = {
    "another version": ("9\n1\n0 0\n", "expected version 0, found '9'"),
    "another count": ("0\n2\n0 0\n", "expected 2 lines behind it, found 1"),
    "no epoch": ("0\n1\nzero 0\n", "expected epoch and start offset, found 'zero 0'"),
    "epochs that go back": ("0\n2\n3 0\n2 2\n", "expected an epoch above 3"),
    "offsets that go back": ("0\n2\n3 4\n4 2\n", "begins at 4 or behind"),
    "none": ("0\n0\n", "expected the epochs of its leaders, found an empty file"),
    "above the end": ("0\n2\n0 0\n1 7\n", "up to the log's end 6, found one that begins at 7"),
}


@pytest.mark.parametrize(("content", "said"), DAMAGED_EPOCHS.values(), ids=DAMAGED_EPOCHS)
def test_damaged_epochs_of_leaders_are_told_and_keep_their_log(
    made: MadeNode, content: str, said: str
) -> None:
    damaged = made.add("t-0", THREE) / "leader-epoch-checkpoint"
    made.add("u-0", THREE)
    made.write()
    damaged.write_text(content)
    (one,) = found(made.properties, "leader-epochs")
    assert one.severity is Severity.URGENT
    assert str(damaged) in one.what
    assert said in one.what
    (kept, gone) = (decisions(made.properties, log)[0] for log in ("t-0", "u-0"))
    assert (kept.reason, gone.reason) == (Reason.REFUSED, Reason.EXPIRED)
    assert said in kept.detail
    store = KafkaStore(OpenNode(made.properties))
    assert said in store.archivable(store.snapshot(NOW_MS)).refused["t-0"]


def test_a_running_broker_may_have_a_newer_epoch_than_the_end_that_was_seen(made: MadeNode) -> None:
    path = made.add("t-0", THREE) / "leader-epoch-checkpoint"
    made.write()
    path.write_text("0\n2\n0 0\n1 6\n")
    assert not found(made.properties, "leader-epochs")
    path.write_text("0\n2\n0 0\n1 7\n")
    (made.directories[0] / ".kafka_cleanshutdown").unlink()
    assert not found(made.properties, "leader-epochs")


def test_no_archive_is_advised_for_a_log_that_none_takes(made: MadeNode, tmp_path: Path) -> None:
    hole = made.add("t-0", THREE)
    made.write()
    (hole / f"{2:020d}.log").unlink()
    store = ManagedStore.local("k", str(made.properties), tmp_path / "managed", broker="kafka")
    for has_lake in (False, True):
        if has_lake:
            make_lake(store.lake, "kafka")
        told = diagnose(store, NOW_MS, has_lake=has_lake)
        kinds = [one.kind for one in told.findings]
        assert {"hole", "unproven-refused"} <= set(kinds)
        assert "unproven" not in kinds
    assert told.next.command == ""
    assert "mend what keeps 1 log out of the lake" in told.next.why


class TestTransactions:
    def test_one_that_is_open_for_too_long_is_named_with_its_producer(self, made: MadeNode) -> None:
        data = [batch_of(0), batch_of(2, producer=4711, attributes=TRANSACTIONAL)]
        made.add("t-0", {0: data})
        root = made.write()
        active_until(made, WRITTEN_MS + HOUR_MS)
        (hangs,) = found(root, "hanging-transaction")
        assert hangs.what.startswith(
            "log t-0: the transaction of producer 4711 is open from offset 2 on, last written at 2027-01-15"
        )
        assert hangs.advice.endswith("abort --topic t --partition 0 --start-offset 2")
        active_until(made, WRITTEN_MS + 60_000)
        assert found(root, "hanging-transaction") == [], "it may still be written to"
        made.node_settings["transaction.max.timeout.ms"] = str(2 * HOUR_MS)
        made.write()
        active_until(made, WRITTEN_MS + HOUR_MS)
        assert found(root, "hanging-transaction") == [], "producers may ask for longer here"

    def test_a_marker_behind_the_snapshot_counts(self, made: MadeNode) -> None:
        end = marker(1, 4711, 4)
        made.add("t-0", {0: [batch_of(0), batch_of(2, producer=4711, attributes=TRANSACTIONAL), end]})
        root = made.write()
        active_until(made, WRITTEN_MS + HOUR_MS)
        assert found(root, "hanging-transaction") == []

    def test_what_is_too_much_to_be_read_is_said(self, made: MadeNode) -> None:
        open_one = batch_of(0, producer=1, attributes=TRANSACTIONAL)
        made.add("small-0", {0: [open_one]})
        made.add("large-0", {0: [open_one, batch_of(2)]})
        node = read_node(made.write())
        ends = {log.name.log: end_offset(log) for _, log in node.logs}
        few = find_open(node, ends, max_bytes=len(open_one))
        assert (list(few.by_log), few.unread) == (["small-0"], ("large-0",))
        assert list(find_open(node, ends).by_log) == ["small-0", "large-0"]

    def test_what_cannot_be_told_is_said(self, made: MadeNode) -> None:
        path = made.add("t-0", THREE)
        (path / f"{0:020d}.log").write_bytes(batch_of(0)[:-3])
        (unknown,) = found(made.write(), "transactions-unknown")
        assert unknown.what.startswith("log t-0: its open transactions aren't known")


class TestRoom:
    def room(self, path: str, size: int, came: int = 0, goes: int = 0, device: int = 1) -> DirectoryRoom:
        disk = DiskUsage(path, 50, 200 << 30, 100 << 30, device=device)
        return DirectoryRoom(path, 2, size, came, goes, disk)

    def test_a_disk_fills_by_what_comes_and_does_not_go(self) -> None:
        (one,) = room_findings([self.room("/a", 1 << 30, came=60 << 30, goes=10 << 30)])
        assert one.severity is Severity.WARNING
        assert one.what == (
            "/a: 2 logs, 1.0 GiB; its disk is 50 % used, 100.0 GiB free; within a day 60.0 GiB were "
            "written and 10.0 GiB expire: full in 2 d"
        )
        (one,) = room_findings([self.room("/a", 1, came=200 << 30)])
        assert one.severity is Severity.URGENT
        (one,) = room_findings([self.room("/a", 1, came=5, goes=5)])
        assert (one.severity, one.what.endswith("it doesn't fill")) == (Severity.NOTE, True)

    def test_directories_of_one_disk_fill_it_together(self) -> None:
        both = [self.room("/a", 1, came=25 << 30), self.room("/b", 1, came=25 << 30)]
        assert all(
            "full in 2 d, if all directories on this disk grow as now" in one.what
            for one in room_findings(both)
        )
        apart = [self.room("/a", 1, came=25 << 30), self.room("/b", 1, came=25 << 30, device=2)]
        assert all(one.what.endswith("full in 4 d") for one in room_findings(apart))

    def test_a_disk_that_cannot_be_measured_is_unknown(self) -> None:
        room = DirectoryRoom("/a", 1, 1, 1, 0, DiskUsage("/a", None, error="gone"))
        (one,) = room_findings([room])
        assert "its disk can't be measured" in one.what
        assert one.what.endswith("unknown")

    def test_a_full_disk_of_a_stopped_node_is_urgent(self) -> None:
        def said(used_percent: int | None) -> list[str]:
            disk = DiskUsage("/a", used_percent, 100 << 30, 1 << 20)
            return [one.what for one in full_disks([DirectoryRoom("/a", 1, 1, 0, 0, disk)])]

        assert said(99) == [
            "/a: its disk has 1.0 MiB free, and no broker runs: a broker has to write when it starts"
        ]
        assert said(98) == said(None) == []

    def test_directories_that_differ_much_are_named(self, tmp_path: Path) -> None:
        made = MadeNode(tmp_path / "node", ("a", "b"))
        made.add("t-0", THREE)
        node = read_node(made.write())
        paths = [str(one.path) for one in node.directories]
        rooms = [self.room(path, size) for path, size in zip(paths, (5 << 30, 2 << 30, 0), strict=True)]
        (one,) = imbalance(node, rooms)
        assert f"{paths[0]} has 5.0 GiB in 2 logs, {paths[1]} 2.0 GiB in 2 logs" in one.what
        assert list(imbalance(node, [self.room(path, 5 << 30) for path in paths])) == []

    def test_what_came_within_a_day_is_told_of_each_directory_and_internal_topic(
        self, made: MadeNode
    ) -> None:
        path = made.add("__consumer_offsets-3", THREE, settings=COMPACTED)
        size = (path / f"{0:020d}.log").stat().st_size
        root = made.write()
        times(path, [WRITTEN_MS - 2 * DAY_MS, WRITTEN_MS, WRITTEN_MS + DAY_MS // 2])
        active_until(made, WRITTEN_MS + DAY_MS // 2)
        (internal,) = found(root, "internal-topic")
        # The second was begun two days before it was closed, a quarter of that within the day.
        assert internal.what == (
            f"__consumer_offsets: 1 log of {3 * size} bytes, the largest {3 * size} bytes; "
            f"{size + size // 4} bytes were written within a day"
        )
        rooms = [one for one in found(root, "log-directory") if "/logs:" in one.what]
        assert f"within a day {size + size // 4} bytes were written and 0 bytes expire" in rooms[0].what

    def test_what_retention_takes_is_no_growth(self, made: MadeNode) -> None:
        path = made.add("t-0", THREE, settings={"retention.ms": str(DAY_MS)})
        made.add("full-0", THREE, settings={"retention.ms": "-1", "retention.bytes": "1"})
        size = (path / f"{0:020d}.log").stat().st_size
        root = made.write()
        for name in ("t-0", "full-0"):
            times(made.directories[0] / name, [WRITTEN_MS, WRITTEN_MS + HOUR_MS, WRITTEN_MS + 2 * HOUR_MS])
        active_until(made, WRITTEN_MS + 2 * HOUR_MS)
        (room,) = [one for one in found(root, "log-directory") if "/logs:" in one.what]
        assert f"within a day {6 * size} bytes were written and {5 * size} bytes expire" in room.what


class TestLeftBehind:
    def test_each_directory_has_its_bytes_and_since_when(self, made: MadeNode) -> None:
        for state in ("stray", "future", "delete"):
            path = made.add("t-0", THREE)
            (path / f"{0:020d}.index").write_bytes(bytes(100))
            (path / "leader-epoch-checkpoint").unlink()
            written(path / "partition.metadata", WRITTEN_MS)
            path.rename(path.with_name(f"t-0.{'a' * 32}-{state}"))
        made.watermarks.clear()
        root = made.write()
        size = 3 * len(batch_of(0)) + 100 + 43
        for state, severity in (
            ("stray", Severity.WARNING),
            ("future", Severity.NOTE),
            ("delete", Severity.NOTE),
        ):
            (one,) = found(root, f"directories-{state}", WRITTEN_MS + HOUR_MS)
            assert one.severity is severity
            assert f"-{state} " in one.what
            assert f": {size} bytes since 20" in one.what
        (one,) = found(root, "directories-future", WRITTEN_MS + HOUR_MS)
        assert one.what.endswith("since 2027-01-15 08:00:00Z")
        active_until(made, WRITTEN_MS + 2 * DAY_MS)
        (one,) = found(root, "directories-future", WRITTEN_MS + 2 * DAY_MS)
        assert one.severity is Severity.WARNING, "a move of a day doesn't get on"

    def test_of_very_many_the_largest_are_named(self, made: MadeNode) -> None:
        for number in range(12):
            path = made.add(f"t-{number}", THREE)
            path.rename(path.with_name(f"t-{number}.{'a' * 32}-stray"))
        made.watermarks.clear()
        named = found(made.write(), "directories-stray")
        assert len(named) == 11
        assert ": 2 smaller directories like these, " in named[-1].what


def test_faults_of_logs_are_urgent_and_nothing_is_changed(made: MadeNode) -> None:
    made.add("start-0", THREE)
    made.add("hole-0", {0: [batch_of(0)], 4: [batch_of(4)]})
    made.add("twice-0", {0: [batch_of(0), batch_of(2)], 2: [batch_of(2)]})
    made.add("compacted-0", {0: [batch_of(0)], 4: [batch_of(4)]}, settings=COMPACTED)
    (made.add("id-0", THREE) / "partition.metadata").unlink()
    root = made.write()
    made.checkpoint("log-start-offset-checkpoint", {"start-0": 9})
    before = files_of(made.root)
    holes = found(root, "hole")
    assert [one.what.partition(": ")[0] for one in holes] == ["log hole-0", "log twice-0"]
    assert "[2, 4) is missing" in holes[0].what
    assert "[2, 4) is there twice" in holes[1].what
    (start,) = found(root, "start-above-end")
    (topic,) = found(root, "topic-id")
    assert "start-0: its start 9 in the checkpoint lies above its end 6" in start.what
    assert "id-0/partition.metadata: expected the topic's id, found no file" in topic.what
    assert {one.severity for one in (*holes, start, topic)} == {Severity.URGENT}
    assert files_of(made.root) == before


def test_markers_of_two_stops_are_named(tmp_path: Path) -> None:
    made = MadeNode(tmp_path / "node", ("a", "b"))
    made.add("t-0", THREE)
    root = made.write()
    assert found(root, "markers-differ") == []
    (made.directories[1] / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":8}')
    (one,) = found(root, "markers-differ")
    assert one.what.endswith("of the broker's epochs 8, 9")


@pytest.mark.parametrize(
    ("replicas", "clean_stop", "kinds", "advice"),
    [
        ((1,), False, ["stopped-uncleanly"], "start it on all of its log.dirs"),
        ((1,), True, ["high-watermark-behind"], "start the broker: it has the only replica"),
        ((1, 2), True, ["high-watermark-behind"], "look for the replica that doesn't follow"),
        ((1, 2), False, ["high-watermark-behind", "stopped-uncleanly"], "the replica that doesn't follow"),
    ],
)
def test_watermarks_of_before_a_crash_are_one_line(
    made: MadeNode, replicas: Sequence[int], clean_stop: bool, kinds: list[str], advice: str
) -> None:
    for number in range(8):
        made.replicas[f"t-{number}"] = replicas
        made.add(f"t-{number}", THREE)
        made.watermarks[f"t-{number}"] = 1
    if not clean_stop:
        for path in (*made.directories, made.root / "meta"):
            (path / ".kafka_cleanshutdown").unlink()
    said = BROKER.inspection.diagnose(StoreSettings(str(made.write())), None, NOW_MS)
    warnings = [one for one in said.findings if one.severity is Severity.WARNING]
    assert sorted(one.kind for one in warnings) == kinds
    assert any(advice in one.advice for one in warnings)
    assert len(replicas) > 1 or not any("replica that" in one.advice for one in warnings)


def test_high_watermarks_that_no_checkpoint_has_are_named(made: MadeNode) -> None:
    for number in range(5):
        made.add(f"t-{number}", THREE)
    assert found(made.write(), "high-watermark-unknown") == []
    del made.watermarks["t-0"], made.watermarks["t-3"]
    (unknown,) = found(made.write(), "high-watermark-unknown")
    assert "of 2 logs, t-0, t-3: these logs are not archived" in unknown.what
