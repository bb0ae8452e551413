"""A node as retention looks at it. Nothing here changes a log directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from storage_engine import durable
from storage_engine.exceptions import BadInputError
from storage_engine.kafka.archiving import (
    archivable_segments,
    by_log,
    contexts_of,
    contradiction_of,
    log_id_of,
)
from storage_engine.kafka.layout import LogDirectory, Node, PartitionLog, data_paths, read_node
from storage_engine.kafka.lock_holder import lock_holder
from storage_engine.kafka.log_end import end_offset, first_batch_ms
from storage_engine.kafka.next_deletions import deletes_at_ms
from storage_engine.kafka.plan import log_facts, plan_log, plan_notices, undecided
from storage_engine.kafka.topic_settings import TopicSettings, read_topic_settings
from storage_engine.model.broker_store import BrokerStore, LockedStore, Remove, StoreSettings
from storage_engine.model.plan import LogPlan, Plan, PlanRequest
from storage_engine.model.receipt import Receipt
from storage_engine.model.store import (
    Archivable,
    DiskUsage,
    LogSnapshot,
    Segment,
    SegmentContext,
    SegmentId,
    SegmentState,
    StoreSnapshot,
)

NAME = "kafka"
_LOOKS = 3
"""How often a node is looked at whose files go away meanwhile."""
NEVER_DELETED_FROM = (
    "stores of Apache Kafka are archived, and never deleted from by this version. Nothing was changed. Let "
    "its broker delete by its own rules: storage-engine plan shows which."
)
"""What is said to who wants more."""


@dataclass(slots=True)
class KafkaStore(BrokerStore):
    """A node's log directories, by its ``server.properties`` or by one of them.

    :param seen: the last snapshot's logs and the node that they were made of.
    """

    root: Path
    seen: tuple[tuple[LogSnapshot, ...], Node] | None = None

    @property
    def data_paths(self) -> tuple[Path, ...]:
        return data_paths(self.root)

    def snapshot(self, now_ms: int) -> StoreSnapshot:
        logs, node = self.seen = self._look(now_ms)
        *others, last = (DiskUsage.of(directory.path) for directory in node.directories)
        running = any(lock_holder(directory.path) is not None for directory in node.directories)
        return StoreSnapshot(
            broker=NAME,
            root=str(self.root),
            taken_at_ms=now_ms,
            logs=logs,
            log_disks=tuple(others) or (last,),
            dependents_disk=last,
            crashed=not running and any(one.left_uncleanly for one in node.directories),
            used_bytes=sum(segment.disk_bytes for log in logs for segment in log.segments),
        )

    def plan(self, snapshot: StoreSnapshot, now_ms: int, request: PlanRequest) -> Plan:
        """Decide as the broker would; what indexes and the cluster's metadata say is read here."""
        node = self._node_of(snapshot, now_ms)
        settings = read_topic_settings(node)
        logs = {log.name.log: (directory, log) for directory, log in node.logs}
        triggers, _ = self.triggers(snapshot, now_ms, request)
        plans = tuple(
            _plan_log(seen, *logs[seen.name], settings, now_ms) for seen in snapshot.logs if seen.name in logs
        )
        return Plan(snapshot.root, now_ms, triggers, plans, plan_notices(node, settings))

    def deletes_at_ms(self, snapshot: StoreSnapshot, now_ms: int) -> Mapping[SegmentId, int | None]:
        node = self._node_of(snapshot, snapshot.taken_at_ms)
        settings = read_topic_settings(node)
        logs = {log.name.log: (directory, log) for directory, log in node.logs}
        found: dict[SegmentId, int | None] = {}
        for seen in snapshot.logs:
            directory, log = logs[seen.name]
            topic = settings.of(log.name.topic)
            if isinstance(topic, str) or not seen.sealed:
                continue
            # Of a log that its running broker deletes from just now, nothing is known.
            with suppress(FileNotFoundError):
                moments = deletes_at_ms(log_facts(seen, directory, log), topic, now_ms)
                found |= {SegmentId(seen.name, offset): at_ms for offset, at_ms in moments.items()}
        return found

    def oldest_message_ms(self, snapshot: StoreSnapshot) -> int | None:
        node = self._node_of(snapshot, snapshot.taken_at_ms)
        found = (first_batch_ms(log.segments[0]) for _, log in node.logs if log.segments)
        return min((at_ms for at_ms in found if at_ms is not None), default=None)

    def read_node(self, now_ms: int) -> Node:
        """Look at the node."""
        return read_node(self.root)

    def _look(self, now_ms: int) -> tuple[tuple[LogSnapshot, ...], Node]:
        """Look at the node's logs, again where a file went away: its broker may run, and delete."""
        left = _LOOKS
        while True:
            node, left = self.read_node(now_ms), left - 1
            try:
                logs = (
                    log_snapshot(directory, log) for directory, log in node.logs if not log.name.is_internal
                )
                return tuple(logs), node
            except FileNotFoundError:
                if not left:
                    raise

    def _node_of(self, snapshot: StoreSnapshot, now_ms: int) -> Node:
        return self.seen[1] if self.seen and self.seen[0] is snapshot.logs else self.read_node(now_ms)

    def check_manageable(self) -> None:
        if self.root.is_dir():
            raise BadInputError(
                f"{self.root}: expected a node's server.properties, found one of its log directories, which "
                "is only looked at. Nothing was changed. Name the file as STORE."
            )

    def archivable(self, snapshot: StoreSnapshot) -> Archivable:
        """Leave out what is compacted, has remote storage, isn't replicated yet or in an open transaction."""
        node = self._node_of(snapshot, snapshot.taken_at_ms)
        settings = read_topic_settings(node)
        logs = {log.name.log: (directory, log) for directory, log in node.logs}
        segments: list[Segment] = []
        kept_out: dict[str, str] = {}
        for seen in snapshot.logs:
            found, reason = archivable_segments(seen, *logs[seen.name], settings)
            segments += found
            if reason:
                kept_out[seen.name] = reason
        return Archivable(tuple(segments), kept_out)

    def contexts(self, segments: Sequence[Segment]) -> Mapping[SegmentId, SegmentContext]:
        node = self.seen[1] if self.seen else read_node(self.root)
        logs = {log.name.log: (directory, log) for directory, log in node.logs}
        return {
            segment_id: context
            for name, of_log in by_log(segments)
            if name in logs
            for segment_id, context in contexts_of(*logs[name], of_log)
        }

    def contradiction(self, log: str, receipts: Sequence[Receipt]) -> str:
        logs, node = self.seen or (self.snapshot(0).logs, read_node(self.root))
        ends = {one.name: one.max_offset for one in logs}
        directory, found = next(pair for pair in node.logs if pair[1].name.log == log)
        return contradiction_of(found, log_id_of(directory, found), ends[log], receipts)

    def lock(self) -> AbstractContextManager[LockedStore]:
        raise BadInputError(f"{self.root}: {NEVER_DELETED_FROM}")

    def delete_segments(
        self, segments: Sequence[Segment], meanwhile: Callable[[], object], remove: Remove = durable.unlink_in
    ) -> None:
        raise BadInputError(f"{self.root}: {NEVER_DELETED_FROM}")


def open_store(settings: StoreSettings) -> KafkaStore:
    """Open a node.

    :raises BadInputError: there is none, or settings beside its own file were given.
    """
    if settings.broker_conf is not None or settings.overrides:
        raise BadInputError(
            f"{settings.root}: expected a node's server.properties and nothing beside it, found "
            f"{'another configuration file' if settings.broker_conf else 'settings'}. Nothing was changed. "
            "Name that file as STORE."
        )
    store = KafkaStore(Path(settings.root))
    store.data_paths  # noqa: B018  says at once what is wrong with the file
    return store


def _plan_log(
    seen: LogSnapshot, directory: LogDirectory, log: PartitionLog, settings: TopicSettings, now_ms: int
) -> LogPlan:
    try:
        return plan_log(seen, directory, log, settings, now_ms)
    except FileNotFoundError:
        # Beside its files a running broker deletes: the next look knows what is left.
        return undecided(seen, "a segment went away while it was looked at: ask again")


def log_snapshot(directory: LogDirectory, log: PartitionLog) -> LogSnapshot:
    """Return a log as the contract has it: all segments but the last are sealed.

    What is above the checkpointed high watermark counts as not yet safe; without an entry all does.
    """
    end = end_offset(log)
    name = log.name.log
    watermark = min(directory.high_watermarks.get(name, 0), end)
    return LogSnapshot(name, tuple(_segments(log, end)), end, watermark)


def _segments(log: PartitionLog, end: int) -> Iterator[Segment]:
    name = log.name.log
    for files, following in pairwise(log.segments):
        yield Segment(
            name,
            files.base_offset,
            files.log,
            SegmentState.SEALED,
            end=following.base_offset,
            companions=files.companions,
        )
    for files in log.segments[-1:]:
        yield Segment(
            name, files.base_offset, files.log, SegmentState.ACTIVE, end=end, companions=files.companions
        )
