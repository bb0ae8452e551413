"""Let exactly a prefix of logs go beside a running cluster: their leaders begin behind it, and no further.

Kafka has a call for that, which is careful about little: it deletes what an open transaction has written, and
whatever the leader has, though the files here may be of another one. So all of that is asked first, of each
log by itself. A log whose leader, replicas or topic aren't known stays as it is. A time-out tells nothing:
the leader's start does.

The files go later, when each node's broker comes round to it. What is below its leader's start is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from storage_engine.exceptions import (
    BrokerRefusedError,
    BrokerUnavailableError,
    ChangedUnderUsError,
    GateRefusedError,
    ReleasedTooMuchError,
    StorageEngineError,
)
from storage_engine.kafka.file_names import PartitionDirectory
from storage_engine.kafka.layout import LogDirectory, PartitionLog
from storage_engine.kafka.live.client import Cluster
from storage_engine.kafka.live.findings import node_id_of
from storage_engine.kafka.live.hold_state import HoldState, load_state, save_state
from storage_engine.kafka.live.observe import observe
from storage_engine.kafka.live.same_log import Witness, find_witness, other_than
from storage_engine.kafka.live_facts import LivePartition
from storage_engine.kafka.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.partition_metadata import read_topic_id
from storage_engine.kafka.rules import RetentionSettings
from storage_engine.kafka.server_properties import retention_settings
from storage_engine.model.by_log import by_log
from storage_engine.model.diagnosis import reason_of
from storage_engine.model.store import FileFacts, Segment, SegmentId

if TYPE_CHECKING:
    from storage_engine.kafka.live.live_store import LiveKafkaStore

OPERATION_SECONDS: Final = 10.0
"""For how long brokers wait for all replicas before they say that they gave up."""
UNKNOWN_SECONDS: Final = 60.0
"""For how long a leader's start is asked for whose answer was none."""
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Prefix:
    """What goes of a log.

    :param segments: its first ones, oldest first.
    """

    name: PartitionDirectory
    directory: LogDirectory
    log: PartitionLog
    segments: tuple[Segment, ...]

    @property
    def boundary(self) -> int:
        return self.segments[-1].end_offset

    @property
    def key(self) -> tuple[str, int]:
        return self.name.topic, self.name.partition


def delete_segments(
    store: LiveKafkaStore, segments: Sequence[Segment], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Have the cluster delete the records of these segments, the first ones of their logs.

    :param meanwhile: called now and then while it waits.
    :raises ChangedUnderUsError: a log may not be cut, or was refused; says which. Where another log was cut
        by this call, the leader's start tells.
    :raises GateRefusedError: the store isn't held; nothing was done.
    :raises BrokerError: the cluster can't be asked, or it isn't known what it did; all of them may go.
    :raises ReleasedTooMuchError: more is gone than these.
    """
    if not segments:
        return
    state = load_state(store.memory)
    if store.memory is None or state is None:
        raise GateRefusedError(
            f"{store.root}: expected the store to be held, found no hold of it. Nothing was deleted. Hold it "
            "first."
        )
    prefixes = list(_prefixes(store, segments))
    facts = observe(store.asked, [one.name for one in prefixes], time.time_ns() // 1_000_000)
    node_id = node_id_of(store.seen.node) if store.seen is not None else None
    witnesses: dict[tuple[str, int], Witness] = {}
    for prefix in prefixes:
        live = facts.partitions.get(prefix.name.log)
        if why := why_not(prefix, live, state, node_id, facts.cluster_id):
            raise _refused(prefix, why)
        assert live is not None
        assert live.high_watermark is not None
        witnesses[prefix.key] = _witness(prefix, live.high_watermark)
    other = other_than(store.asked, witnesses, meanwhile)
    for prefix in prefixes:
        if prefix.key in other:
            raise _refused(prefix, other[prefix.key])
    logs = dict(state.logs)
    for prefix in prefixes:
        name = prefix.name.log
        logs[name] = replace(logs[name], let_go=max(logs[name].let_go, prefix.boundary))
    # What goes from here on isn't taken for somebody else's doing.
    save_state(store.memory, replace(state, logs=logs))
    refused = _cut(store.asked, prefixes)
    starts = _settled(store.asked, prefixes, refused, meanwhile)
    for prefix in prefixes:
        if starts[prefix.name.log] > prefix.boundary:
            raise ReleasedTooMuchError(
                f"{store.root}: log {prefix.name.log}: expected it to begin at offset {prefix.boundary}, "
                f"found that its leader begins at {starts[prefix.name.log]}: records of offsets "
                f"[{prefix.boundary}, {starts[prefix.name.log]}) were deleted but not approved. Find out who "
                "deletes there, and run verify, which tells what of them is in the lake and what is lost."
            )
    undone = [prefix for prefix in prefixes if starts[prefix.name.log] < prefix.boundary]
    if undone:
        before = {prefix.name.log: state.logs[prefix.name.log] for prefix in undone}
        save_state(store.memory, replace(state, logs={**logs, **before}))
        raise _refused(undone[0], f"the cluster refuses: {refused[undone[0].key].remark}")


def below_start(store: LiveKafkaStore, segments: Sequence[Segment]) -> frozenset[SegmentId]:
    """Return which of these segments lie wholly below where their leaders begin: they are deleted, wherever
    their files are.

    :raises BrokerError: the cluster can't be asked, or doesn't tell of a log.
    """
    prefixes = list(_prefixes(store, segments))
    starts = _starts(store.asked, prefixes)
    for prefix in prefixes:
        if prefix.name.log not in starts:
            raise BrokerUnavailableError(
                f"{store.asked.address}: asked where log {prefix.name.log} begins, expected its leader's "
                "answer, found none. It isn't known what of it is deleted. Run the same again, which finds "
                "it out.",
                may_have_acted=True,
            )
    return frozenset(one.id for one in segments if one.end_offset <= starts[one.log])


def _prefixes(store: LiveKafkaStore, segments: Sequence[Segment]) -> Iterator[Prefix]:
    seen = store.seen or store.look(time.time_ns() // 1_000_000)
    for name, of_log in by_log(segments).items():
        one = seen.known.get(name)
        if one is None:
            raise ChangedUnderUsError(
                f"log {name}: expected it among the node's logs, found none. Nothing of it was deleted. Plan "
                "again.",
                path=of_log[0].facts.path,
            )
        yield Prefix(one.log.name, one.directory, one.log, tuple(of_log))


def why_not(
    prefix: Prefix, live: LivePartition | None, state: HoldState, node_id: int | None, cluster_id: str
) -> str:
    """Return why a log may not be cut at its boundary; "": nothing speaks against it. Reads small files.

    :param live: what the cluster says of it now.
    :param node_id: of the node whose files were proven.
    """
    name, boundary = prefix.name.log, prefix.boundary
    known = state.logs.get(name)
    if prefix.name.is_internal:
        return "it is an internal topic's"
    if known is None:
        return "it isn't held"
    if prefix.directory.meta is None or prefix.directory.meta.cluster_id != cluster_id:
        return f"its directory isn't known to be of cluster {cluster_id}"
    if live is None or live.refused:
        return "the cluster doesn't tell all of it" + (f": {live.refused[0]}" if live else "")
    if live.leader is None:
        return "no replica leads it"
    if live.topic_id is None or str(live.topic_id) != known.topic_id:
        return f"its topic has id {live.topic_id} by now, and {known.topic_id} was held"
    if (why := _other_topic(prefix, live)) or (why := _other_policy(live)):
        return why
    if node_id is None or node_id not in live.in_sync:
        return (
            f"its replica on this node, {node_id}, isn't in sync with leader {live.leader}: what is proven "
            "may not be what the leader has"
        )
    if live.leader_epoch is None or live.leader_epoch < known.leader_epoch:
        return f"its leader's epoch is {live.leader_epoch}, and it was {known.leader_epoch} before"
    if live.log_start is None or live.high_watermark is None or live.last_stable_offset is None:
        return "its leader doesn't say where it begins, and up to where its records are replicated and stable"
    if live.log_start >= prefix.segments[0].end_offset:
        return f"its leader begins at {live.log_start} already"
    if boundary > min(live.high_watermark, live.last_stable_offset):
        return (
            f"offset {boundary} lies above the high watermark {live.high_watermark} or the last stable "
            f"offset {live.last_stable_offset}"
        )
    return _not_a_prefix(prefix)


def _other_topic(prefix: Prefix, live: LivePartition) -> str:
    try:
        found = read_topic_id(prefix.log.path / PARTITION_METADATA)
    except (StorageEngineError, OSError) as error:
        return f"its topic isn't certain: {reason_of(error)}"
    return (
        ""
        if found == live.topic_id
        else f"its files are of topic {found}, and the cluster's is {live.topic_id}"
    )


def _other_policy(live: LivePartition) -> str:
    if live.topic_settings is None:
        return "its settings aren't known"
    try:
        kept: RetentionSettings = retention_settings({}, live.topic_settings)
    except StorageEngineError as error:
        return f"its settings aren't known: {reason_of(error)}"
    if "cleanup.policy" not in live.topic_settings or kept.compact or not kept.delete:
        return "its cleanup.policy isn't delete alone"
    return "remote storage has its segments" if kept.remote else ""


def _not_a_prefix(prefix: Prefix) -> str:
    """Return what is wrong with the segments as the log's first ones; "": nothing is."""
    there = [files.base_offset for files in prefix.log.segments]
    going = [segment.base_offset for segment in prefix.segments]
    if there[: len(going)] != going or len(there) <= len(going):
        return "what is to go isn't the beginning of the log, with a segment behind it"
    if there[len(going)] != prefix.boundary:
        return f"no segment begins at offset {prefix.boundary}"
    for segment in prefix.segments:
        try:
            found = FileFacts.of(segment.facts.path)
        except OSError as error:
            return f"{segment.facts.path}: {error.strerror}"
        if (found.device, found.inode, found.size_bytes) != (
            segment.facts.device,
            segment.facts.inode,
            segment.facts.size_bytes,
        ):
            return f"{segment.facts.path} isn't the file that it was a moment ago"
    return ""


def _witness(prefix: Prefix, high_watermark: int) -> Witness:
    last = len(prefix.segments) - 1
    try:
        found = find_witness(prefix.log.segments[last:], prefix.boundary, high_watermark)
    except OSError as error:
        raise _refused(prefix, f"a file can't be read: {error}") from error
    if found is None:
        raise _refused(
            prefix,
            "no record at its end or behind tells if its leader has the same: it goes once one is there",
        )
    return found


def _refused(prefix: Prefix, why: str) -> ChangedUnderUsError:
    path = prefix.segments[0].facts.path
    return ChangedUnderUsError(
        f"{Path(path).parent}: log {prefix.name.log}: expected that it may be cut at offset "
        f"{prefix.boundary}, found that {why}. Nothing of it was deleted. Put that right, and plan again.",
        path=path,
    )


def _cut(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[tuple[str, int], BrokerRefusedError]:
    """Have leaders begin at the boundaries.

    :return: what they refuse, whatever it means for the start.
    """
    from confluent_kafka import TopicPartition

    keys = [TopicPartition(*prefix.key, prefix.boundary) for prefix in prefixes]

    def ask(some: Sequence[TopicPartition]) -> Any:
        return cluster.admin.delete_records(
            list(some), request_timeout=OPERATION_SECONDS + 5, operation_timeout=OPERATION_SECONDS
        )

    refused: dict[tuple[str, int], BrokerRefusedError] = {}
    try:
        for key, answer in cluster.answers("the deletion of records", keys, ask):
            if isinstance(answer, BrokerRefusedError):
                refused[key.topic, key.partition] = answer
    except BrokerUnavailableError as error:
        # A lost answer may be that of a leader which did it: its start tells.
        lost = BrokerRefusedError(str(error), code=_TIMED_OUT, remark="no answer in time")
        refused |= {prefix.key: lost for prefix in prefixes if prefix.key not in refused}
    return refused


_TIMED_OUT: Final = 7
"""REQUEST_TIMED_OUT: the leader has done it, or hasn't, or does it later."""
_DONE_NOTHING: Final = frozenset({1, 17, 29, 31, 44})
"""OFFSET_OUT_OF_RANGE, INVALID_TOPIC_EXCEPTION, TOPIC_ and CLUSTER_AUTHORIZATION_FAILED, POLICY_VIOLATION:
the leader has refused before it did anything. Of any other the start has to tell: a leader that lost its
office while it waited for its replicas has done it."""


def _settled(
    cluster: Cluster,
    prefixes: Sequence[Prefix],
    refused: Mapping[tuple[str, int], BrokerRefusedError],
    meanwhile: Callable[[], object],
) -> Mapping[str, int]:
    """Return where each log begins, once it is known for certain.

    :raises BrokerUnavailableError: it can't be known in time; they may go any time.
    """
    ends = time.monotonic() + UNKNOWN_SECONDS
    while True:
        starts = _starts(cluster, prefixes)
        left = [
            prefix
            for prefix in prefixes
            if starts.get(prefix.name.log, -1) < prefix.boundary
            and not (
                prefix.name.log in starts
                and prefix.key in refused
                and refused[prefix.key].code in _DONE_NOTHING
            )
        ]
        if not left:
            return starts
        if time.monotonic() >= ends:
            first = left[0]
            said = refused.get(first.key)
            raise BrokerUnavailableError(
                f"{cluster.address}: log {first.name.log}: expected its leader to begin at offset "
                f"{first.boundary}, found {starts.get(first.name.log, 'no answer')} after "
                f"{UNKNOWN_SECONDS:.0f} s{f' ({said.remark})' if said else ''}. What is behind it stays; it "
                "may go any time. Run the same again, which goes on.",
                may_have_acted=True,
            )
        meanwhile()
        time.sleep(_POLL_SECONDS)


def _starts(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[str, int]:
    """Ask leaders where logs begin; one that doesn't answer is left out."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    def ask(some: Sequence[TopicPartition]) -> Any:
        return cluster.admin.list_offsets(
            dict.fromkeys(some, OffsetSpec.earliest()),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=OPERATION_SECONDS,
        )

    found: dict[str, int] = {}
    try:
        keys = [TopicPartition(*prefix.key) for prefix in prefixes]
        for key, answer in cluster.answers("the beginnings of logs", keys, ask):
            if not isinstance(answer, BrokerRefusedError):
                found[f"{key.topic}-{key.partition}"] = answer.offset
    except BrokerUnavailableError:
        pass
    return found
