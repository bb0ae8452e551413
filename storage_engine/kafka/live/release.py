"""Delete exactly the approved segments through the running cluster: each leader moves its log start to the
end of these segments, and no further.

Kafka's own call (DeleteRecords) checks little. It deletes records of open transactions. It also deletes any
other records that the leader has, even if the proven files belong to another log. So both cases are excluded
first, for each log separately. A log whose leader, replicas or topic are unknown is left alone.

Each node's broker deletes the files in its next round. Records below the leader's log start count as deleted.

Before the call, the coming deletion is remembered durably. After a time-out, the leader's log start shows the
result. The call names no epoch, so any leader carries it out. Therefore the leaders' epochs are read right
before and after the call. If the leader has changed, the new one must show that it has the proven records.

A single batch shows, by offset and epoch, whether a log's leader has the same records as a node's files. A
leader numbers its batches with its epoch, and each replica copies them in order from one leader at a time. So
two logs with a batch of the same epoch at the same offset are equal up to it. A leader without those records,
as after an unclean election, has another epoch there, or no record.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import (
    BrokerRefusedError,
    BrokerUnavailableError,
    ChangedUnderUsError,
    GateRefusedError,
    ReleasedTooMuchError,
)
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.format import batch_headers as header
from storage_engine.kafka.format.batch_headers import batch_heads, opened
from storage_engine.kafka.format.layout import LivePartition, SegmentFiles
from storage_engine.kafka.hold.drift import known_log
from storage_engine.kafka.hold.hold_state import HoldState, load_state, save_state
from storage_engine.kafka.live.cut_faults import Prefix, boundary_fault, log_fault
from storage_engine.kafka.live.observe import node_id_of, observe
from storage_engine.kafka.store.plan import SeenNode
from storage_engine.model.hold import HoldMemory
from storage_engine.model.store import Segment, SegmentId, group_by_log

if TYPE_CHECKING:
    from storage_engine.kafka.live.observe import LiveNode


OPERATION_SECONDS: Final = 10.0
"""Time that brokers wait for all replicas before they report a time-out."""
UNKNOWN_SECONDS: Final = 60.0
"""Time for which a leader that doesn't answer is asked again for its log start."""
_POLL_SECONDS: Final = 0.5
_SECONDS: Final = 30.0
_EPOCH = struct.Struct(">i")


def delete_segments(
    live_node: LiveNode, segments: Sequence[Segment], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Delete the records of these segments through the cluster. They are the first segments of their logs.

    :raises ChangedUnderUsError: a log may not be cut, or its leader refused; the first such log is named. All
        other logs were cut, as their leaders' log starts show.
    :raises GateRefusedError: the store isn't held; nothing was done.
    :raises BrokerError: the cluster doesn't answer, or its actions are unknown: any segment may be deleted.
    :raises ReleasedTooMuchError: more records than these are deleted, or may be.
    """
    if not segments:
        return
    state = load_state(live_node.memory)
    if live_node.memory is None or state is None:
        raise GateRefusedError(
            f"{live_node.root}: expected the store to be held, found no hold of it. Nothing was deleted. "
            "Hold it first."
        )
    prefixes = list(_prefixes(live_node, segments))
    facts = observe(live_node.asked, [prefix.name for prefix in prefixes], clock_ms())
    node_id = node_id_of(live_node.seen.node) if live_node.seen is not None else None
    witnesses: dict[tuple[str, int], Witness] = {}
    cuts: list[Cut] = []
    refusals: list[ChangedUnderUsError] = []
    for prefix in prefixes:
        live = facts.partitions.get(prefix.name.log)
        try:
            if reason := find_cut_fault(prefix, live, state, node_id, facts.cluster_id):
                raise cut_error(prefix, reason)
            assert live is not None
            assert live.high_watermark is not None
            witnesses[prefix.key] = witness_of(prefix, prefix.boundary, live.high_watermark)
        except ChangedUnderUsError as error:
            refusals.append(error)
            continue
        cuts.append(Cut(prefix, live))
    differences = find_differences(live_node.asked, witnesses, meanwhile)
    refusals += [
        cut_error(prefix, differences[prefix.key]) for prefix in prefixes if prefix.key in differences
    ]
    if cuts := [log_cut for log_cut in cuts if log_cut.prefix.key not in differences]:
        cut_logs(live_node.asked, live_node.root, live_node.memory, cuts, meanwhile, is_held=True)
    if refusals:
        raise refusals[0]


def find_below_start(live_node: LiveNode, segments: Sequence[Segment]) -> frozenset[SegmentId]:
    """Return the segments below their leaders' log starts: their records are deleted, even if files remain.

    If the leader of a log that we never cut doesn't answer, none of the log's segments counts as deleted.

    :raises BrokerError: the cluster doesn't answer, or doesn't tell the start of a log that we have cut.
    """
    prefixes = list(_prefixes(live_node, segments))
    starts = starts_of(live_node.asked, prefixes)
    logs = (load_state(live_node.memory) or HoldState()).logs
    for prefix in prefixes:
        name = prefix.name.log
        was_cut = name in logs and logs[name].let_go >= prefix.segments[0].end_offset
        if was_cut and name not in starts:
            raise BrokerUnavailableError(
                f"{live_node.asked.address}: expected the leader of log {name} to say where the log begins, "
                "found no answer. It is unknown which records of this log are deleted. Run the same command "
                "again to find out.",
                may_have_acted=True,
            )
    return frozenset(segment.id for segment in segments if segment.end_offset <= starts.get(segment.log, -1))


def _prefixes(live_node: LiveNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    return prefixes_of(live_node.seen or live_node.look(clock_ms()), segments)


def prefixes_of(seen: SeenNode, segments: Sequence[Segment]) -> Iterator[Prefix]:
    """Yield, for each log, the first segments that are to be deleted.

    :param segments: the first segments of their logs, oldest first in each log.
    :raises ChangedUnderUsError: the node no longer has a log.
    """
    for name, of_log in group_by_log(segments).items():
        seen_log = seen.known.get(name)
        if seen_log is None:
            raise ChangedUnderUsError(
                f"log {name}: expected this log among the node's logs, found none of this name. None of its "
                "segments was deleted. Plan again.",
                path=of_log[0].facts.path,
            )
        yield Prefix(seen_log.log.name, seen_log.directory, seen_log.log, tuple(of_log))


def find_cut_fault(
    prefix: Prefix, live: LivePartition | None, state: HoldState, node_id: int | None, cluster_id: str
) -> str:
    """Return why a log may not be cut at its boundary; "" if nothing forbids it. Only small files are read.

    :param node_id: id of the node whose files were proven.
    """
    if fault := log_fault(prefix, live, cluster_id):
        return fault
    assert live is not None
    log = state.logs.get(prefix.name.log)
    if log is None:
        return "it isn't held"
    if str(live.topic_id) != log.topic_id:
        return f"its topic now has id {live.topic_id}, and the topic with id {log.topic_id} was held"
    if node_id is None or node_id not in live.in_sync:
        return (
            f"its replica on this node, {node_id}, isn't in sync with leader {live.leader}: the leader's "
            "records may differ from the proven ones"
        )
    if live.leader_epoch is None or live.leader_epoch < log.leader_epoch:
        return f"its leader's epoch is {live.leader_epoch}, and it was {log.leader_epoch} before"
    if live.log_start is not None and live.log_start >= prefix.segments[0].end_offset:
        return f"its leader begins at {live.log_start} already"
    return boundary_fault(prefix, live)


def witness_of(prefix: Prefix, offset: int, high_watermark: int) -> Witness:
    """Return a batch at or after an offset, by which a log's leader can show that it has this node's records.

    :param offset: the leader's records below this offset must be the same as this node's.
    :raises ChangedUnderUsError: there is no such batch, or a file can't be read.
    """
    segments = [files for files in prefix.log.segments if files.base_offset >= prefix.segments[0].base_offset]
    begun = [place for place, files in enumerate(segments) if files.base_offset < offset]
    try:
        witness = find_witness(segments[begun[-1] if begun else 0 :], offset, high_watermark)
    except OSError as error:
        raise cut_error(prefix, f"a file can't be read: {reason_text(error)}") from error
    if witness is None:
        raise cut_error(
            prefix,
            f"no record at or after offset {offset} exists by which its leader could show that it has the "
            "same records: the segments are deleted once such a record exists",
        )
    return witness


@dataclass(frozen=True, slots=True)
class Led:
    """A leader's facts about its log at one moment. ``epoch`` is None if the leader doesn't tell it."""

    epoch: int | None
    high_watermark: int


def cut_error(prefix: Prefix, why: str, left: str = "Nothing of it was deleted.") -> ChangedUnderUsError:
    """Return the error for a log from which nothing more may be deleted. It names the log's first segment.

    :param left: the present state of the log.
    """
    path = prefix.segments[0].facts.path
    return ChangedUnderUsError(
        f"{Path(path).parent}: log {prefix.name.log}: expected that the log may be cut at offset "
        f"{prefix.boundary}, found that {why}. {left} Correct this, and plan again.",
        path=path,
    )


def cut(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[tuple[str, int], BrokerRefusedError]:
    """Ask leaders to move their log starts to the boundaries.

    :return: the leaders' refusals. A log start may have moved in spite of a refusal.
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
        # A leader whose answer is lost may have deleted the records: its log start shows it.
        lost = BrokerRefusedError(str(error), code=_TIMED_OUT, remark="no answer in time")
        refused |= {prefix.key: lost for prefix in prefixes if prefix.key not in refused}
    return refused


_TIMED_OUT: Final = 7
"""REQUEST_TIMED_OUT: the leader has carried out the request, or hasn't, or will do so later."""
_DONE_NOTHING: Final = frozenset({1, 17, 29, 31, 44})
"""OFFSET_OUT_OF_RANGE, INVALID_TOPIC_EXCEPTION, TOPIC_ and CLUSTER_AUTHORIZATION_FAILED, POLICY_VIOLATION:
the leader refused before it did anything. After any other error the log start shows the result: a leader that
was replaced while it waited for its replicas has carried the request out."""


def settled_starts(
    cluster: Cluster,
    prefixes: Sequence[Prefix],
    refused: Mapping[tuple[str, int], BrokerRefusedError],
    meanwhile: Callable[[], object],
) -> Mapping[str, int]:
    """Return each log's start offset once it is certain.

    :raises BrokerUnavailableError: a start isn't certain in time. Records may still be deleted at any time.
    """
    ends = time.monotonic() + UNKNOWN_SECONDS
    while True:
        starts = starts_of(cluster, prefixes)
        unsettled = [
            prefix
            for prefix in prefixes
            if starts.get(prefix.name.log, -1) < prefix.boundary
            and not (
                prefix.name.log in starts
                and prefix.key in refused
                and refused[prefix.key].code in _DONE_NOTHING
            )
        ]
        if not unsettled:
            return starts
        if time.monotonic() >= ends:
            first = unsettled[0]
            answer = refused.get(first.key)
            raise BrokerUnavailableError(
                f"{cluster.address}: log {first.name.log}: expected its leader to begin at offset "
                f"{first.boundary}, found {starts.get(first.name.log, 'no answer')} after "
                f"{UNKNOWN_SECONDS:.0f} s{f' ({answer.remark})' if answer else ''}. Records from that offset "
                "on stay. Records below it may be deleted at any time. Run the same command again to "
                "continue.",
                may_have_acted=True,
            )
        meanwhile()
        time.sleep(_POLL_SECONDS)


def starts_of(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[str, int]:
    """Ask leaders for their log starts. A log whose leader doesn't answer is left out."""
    from confluent_kafka.admin import OffsetSpec

    answers = _offsets(cluster, prefixes, "the beginnings of logs", OffsetSpec.earliest())
    return {name: answer.offset for name, answer in answers.items()}


def leaders_of(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[str, Led]:
    """Ask leaders for their epochs. A log whose leader doesn't answer is left out."""
    from confluent_kafka.admin import OffsetSpec

    answers = _offsets(cluster, prefixes, "the leaders of logs", OffsetSpec.latest())
    return {name: Led(answer.leader_epoch, answer.offset) for name, answer in answers.items()}


def _offsets(cluster: Cluster, prefixes: Sequence[Prefix], subject: str, spec: Any) -> dict[str, Any]:
    from confluent_kafka import IsolationLevel, TopicPartition

    def ask(some: Sequence[TopicPartition]) -> Any:
        return cluster.admin.list_offsets(
            dict.fromkeys(some, spec),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=OPERATION_SECONDS,
        )

    answers: dict[str, Any] = {}
    try:
        keys = [TopicPartition(*prefix.key) for prefix in prefixes]
        for key, answer in cluster.answers(subject, keys, ask):
            if not isinstance(answer, BrokerRefusedError):
                answers[f"{key.topic}-{key.partition}"] = answer
    except BrokerUnavailableError:
        pass
    return answers


def check_not_too_far(root: Path, prefixes: Sequence[Prefix], starts: Mapping[str, int]) -> None:
    """Make sure that no leader's log start is after the segments to delete.

    :raises ReleasedTooMuchError: a log start is after them.
    """
    for prefix in prefixes:
        if starts[prefix.name.log] > prefix.boundary:
            raise ReleasedTooMuchError(
                f"{root}: log {prefix.name.log}: expected it to begin at offset {prefix.boundary}, found "
                f"that its leader begins at {starts[prefix.name.log]}: records of offsets "
                f"[{prefix.boundary}, {starts[prefix.name.log]}) were deleted but not approved. Find out "
                "who deletes from this log. Run verify: it shows which of these records are in the lake, and "
                "which are lost."
            )


@dataclass(frozen=True, slots=True)
class Cut:
    """A log that is to be cut, and the cluster's facts that allow it."""

    prefix: Prefix
    live: LivePartition


def cut_logs(
    cluster: Cluster,
    root: Path,
    memory: HoldMemory | None,
    cuts: Sequence[Cut],
    meanwhile: Callable[[], object],
    *,
    is_held: bool,
) -> None:
    """Remember the request, ask leaders to move their log starts to the boundaries, and check the result.

    :param root: the store's root, for messages.
    :param memory: memory of the request, so that other stores don't report the deletion as another program's.
        None if the request isn't remembered.
    :param is_held: the logs are held, so the brokers' own rules delete none of their records now.
    :raises ChangedUnderUsError: a log's leader has changed, or the cluster refuses. The error names the log.
    :raises BrokerUnavailableError: the cluster's actions are unknown.
    :raises ReleasedTooMuchError: the leader of a held log begins after the boundary, or a leader may have had
        other records.
    """
    prefixes = [log_cut.prefix for log_cut in cuts]
    led = leaders_of(cluster, prefixes)
    for log_cut in cuts:
        if reason := find_leader_change(log_cut, led.get(log_cut.prefix.name.log)):
            raise cut_error(log_cut.prefix, reason)
    state = load_state(memory) or HoldState()
    _remember(memory, state, cuts)
    refusals = cut(cluster, prefixes)
    starts = settled_starts(cluster, prefixes, refusals, meanwhile)
    if is_held:
        check_not_too_far(root, prefixes, starts)
    undone = [log_cut for log_cut in cuts if starts[log_cut.prefix.name.log] < log_cut.prefix.boundary]
    names = {log_cut.prefix.name.log for log_cut in undone}
    moved_cuts = [log_cut for log_cut in cuts if log_cut.prefix.name.log not in names]
    _check_cut_as_proven(cluster, root, moved_cuts, meanwhile)
    if undone:
        _remember(memory, state, moved_cuts)
        raise cut_error(undone[0].prefix, f"the cluster refuses: {refusals[undone[0].prefix.key].remark}")


def find_leader_change(log_cut: Cut, led: Led | None) -> str:
    """Return how a log's leader differs from the leader at the last look; "" if it is the same."""
    if led is None:
        return "its leader doesn't answer"
    if led.epoch != log_cut.live.leader_epoch:
        return f"its leader's epoch is {led.epoch} by now, and it was {log_cut.live.leader_epoch}"
    return ""


def _remember(memory: HoldMemory | None, state: HoldState, cuts: Sequence[Cut]) -> None:
    if memory is None:
        return
    logs = dict(state.logs)
    for log_cut in cuts:
        name = log_cut.prefix.name.log
        if (log := logs.get(name) or known_log(log_cut.live, None)) is not None:
            logs[name] = replace(log, let_go=max(log.let_go, log_cut.prefix.boundary))
    save_state(memory, replace(state, logs=logs))


def _check_cut_as_proven(
    cluster: Cluster, root: Path, cuts: Sequence[Cut], meanwhile: Callable[[], object]
) -> None:
    """Make sure that logs were cut by the same leaders as before, or by leaders with the same records.

    :raises ReleasedTooMuchError: a new leader may have had other records.
    """
    led = leaders_of(cluster, [log_cut.prefix for log_cut in cuts])
    changed = {
        log_cut.prefix.key: (log_cut, reason)
        for log_cut in cuts
        if (reason := find_leader_change(log_cut, led.get(log_cut.prefix.name.log)))
    }
    faults: dict[tuple[str, int], str] = {}
    witnesses: dict[tuple[str, int], Witness] = {}
    for key, (log_cut, reason) in changed.items():
        leader = led.get(log_cut.prefix.name.log)
        try:
            # Records below the boundary can't be read any more, so a later record has to be compared.
            witnesses[key] = witness_of(
                log_cut.prefix, log_cut.prefix.boundary + 1, -1 if leader is None else leader.high_watermark
            )
        except ChangedUnderUsError:
            faults[key] = reason
    faults |= find_differences(cluster, witnesses, meanwhile)
    for key, fault in faults.items():
        log_cut, reason = changed[key]
        raise ReleasedTooMuchError(
            f"{root}: log {log_cut.prefix.name.log}: expected its leader of epoch "
            f"{log_cut.live.leader_epoch} to begin at offset {log_cut.prefix.boundary}, found that {reason}. "
            f"No record shows that the log's present leader had the proven records ({fault}). The log's "
            f"records below offset {log_cut.prefix.boundary} are deleted. Look for an unclean election, and "
            "compare the lake with the records that producers sent."
        )


@dataclass(frozen=True, slots=True)
class Witness:
    """A batch that is no marker: the offset of its last record, and the epoch of the leader that wrote it."""

    offset: int
    epoch: int


def find_witness(segments: Sequence[SegmentFiles], boundary: int, high_watermark: int) -> Witness | None:
    """Return the first batch that consumers get and that ends at or after a boundary. Return None if no such
    batch lies below the high watermark.

    :param segments: segments of a log, from the segment with the last record below the boundary on.
    :raises OSError: a file can't be read.
    """
    for segment in segments:
        with opened(segment.log.path) as descriptor:
            begin = 0
            for head in batch_heads(descriptor, 0):
                at, begin = begin, head.end_position
                if head.last_offset < boundary - 1 or head.attributes & header.CONTROL:
                    continue
                if head.last_offset >= high_watermark:
                    return None
                (epoch,) = _EPOCH.unpack(os.pread(descriptor, _EPOCH.size, at + header.LEADER_EPOCH_AT))
                return Witness(head.last_offset, epoch)
    return None


def find_differences(
    cluster: Cluster, witnesses: Mapping[tuple[str, int], Witness], meanwhile: Callable[[], object]
) -> Mapping[tuple[str, int], str]:
    """Read records from leaders. Return why leaders may have other records, by topic and partition.

    No offset is committed, and no group is joined.
    """
    from confluent_kafka import Consumer, TopicPartition

    reasons = dict.fromkeys(witnesses, f"its leader gave no record in {_SECONDS:.0f} s")
    if not witnesses:
        return reasons
    consumer = Consumer(cluster.consumer_settings())
    ends = time.monotonic() + _SECONDS
    pending = dict(witnesses)
    try:
        consumer.assign([TopicPartition(*key, witness.offset) for key, witness in witnesses.items()])
        while pending and time.monotonic() < ends:
            meanwhile()
            message = consumer.poll(_POLL_SECONDS)
            if message is None:
                continue
            if (error := message.error()) is not None:
                text = cluster.shown(error.str())
                for key in _logs_of_error(message.topic(), message.partition(), pending):
                    reasons[key] = f"its leader gives no record of offset {pending.pop(key).offset}: {text}"
                continue
            key = (str(message.topic()), int(message.partition() or 0))
            witness = pending.pop(key, None)
            if witness is None:
                continue
            epoch = message.leader_epoch()
            record = Witness(int(message.offset() or 0), -1 if epoch is None else epoch)
            if record == witness:
                del reasons[key]
            else:
                reasons[key] = (
                    f"its leader has a record of epoch {record.epoch} at offset {record.offset}, and the "
                    f"file has a record of epoch {witness.epoch} at offset {witness.offset}: another "
                    "leader appended other records"
                )
    finally:
        consumer.close()
    return reasons


def _logs_of_error(
    topic: str | None, partition: int | None, pending: Mapping[tuple[str, int], Witness]
) -> list[tuple[str, int]]:
    """Return the logs that an error concerns. An error about a whole topic names no partition."""
    is_whole = partition is None or partition < 0
    return [key for key in pending if key[0] == topic and (is_whole or key[1] == partition)]
