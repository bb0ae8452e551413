"""Have leaders begin behind what goes of their logs, by Kafka's own call, and find out what came of it.

A time-out tells nothing: the leader's start does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from storage_engine.core.wording import reason_text
from storage_engine.exceptions import (
    BrokerRefusedError,
    BrokerUnavailableError,
    ChangedUnderUsError,
    ReleasedTooMuchError,
)
from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.live.cut_faults import Prefix
from storage_engine.kafka.live.same_log import Witness, find_witness

OPERATION_SECONDS: Final = 10.0
"""For how long brokers wait for all replicas before they say that they gave up."""
UNKNOWN_SECONDS: Final = 60.0
"""For how long a leader's start is asked for whose answer was none."""
_POLL_SECONDS: Final = 0.5


def witness_of(prefix: Prefix, offset: int, high_watermark: int) -> Witness:
    """Return a batch at or behind an offset by which a log's leader shows that it has the same records.

    :param offset: below which records have to be the same.
    :raises ChangedUnderUsError: there is none, or a file can't be read.
    """
    there = [files for files in prefix.log.segments if files.base_offset >= prefix.segments[0].base_offset]
    begun = [place for place, files in enumerate(there) if files.base_offset < offset]
    try:
        found = find_witness(there[begun[-1] if begun else 0 :], offset, high_watermark)
    except OSError as error:
        raise refused(prefix, f"a file can't be read: {reason_text(error)}") from error
    if found is None:
        raise refused(
            prefix,
            "no record at its end or behind tells if its leader has the same: it goes once one is there",
        )
    return found


@dataclass(frozen=True, slots=True)
class Led:
    """What a log's leader says of itself at one moment.

    :param epoch: None: it doesn't say.
    """

    epoch: int | None
    high_watermark: int


def refused(prefix: Prefix, why: str, left: str = "Nothing of it was deleted.") -> ChangedUnderUsError:
    """Return the error for a log of which nothing more goes, which names the first segment.

    :param left: what has become of the log.
    """
    path = prefix.segments[0].facts.path
    return ChangedUnderUsError(
        f"{Path(path).parent}: log {prefix.name.log}: expected that it may be cut at offset "
        f"{prefix.boundary}, found that {why}. {left} Put that right, and plan again.",
        path=path,
    )


def cut(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[tuple[str, int], BrokerRefusedError]:
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


def settled_starts(
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
        starts = starts_of(cluster, prefixes)
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


def starts_of(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[str, int]:
    """Ask leaders where logs begin; one that doesn't answer is left out."""
    from confluent_kafka.admin import OffsetSpec

    found = _offsets(cluster, prefixes, "the beginnings of logs", OffsetSpec.earliest())
    return {name: answer.offset for name, answer in found.items()}


def leaders_of(cluster: Cluster, prefixes: Sequence[Prefix]) -> Mapping[str, Led]:
    """Ask leaders for their epochs; one that doesn't answer is left out."""
    from confluent_kafka.admin import OffsetSpec

    found = _offsets(cluster, prefixes, "the leaders of logs", OffsetSpec.latest())
    return {name: Led(answer.leader_epoch, answer.offset) for name, answer in found.items()}


def _offsets(cluster: Cluster, prefixes: Sequence[Prefix], what: str, spec: Any) -> dict[str, Any]:
    from confluent_kafka import IsolationLevel, TopicPartition

    def ask(some: Sequence[TopicPartition]) -> Any:
        return cluster.admin.list_offsets(
            dict.fromkeys(some, spec),
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=OPERATION_SECONDS,
        )

    found: dict[str, Any] = {}
    try:
        keys = [TopicPartition(*prefix.key) for prefix in prefixes]
        for key, answer in cluster.answers(what, keys, ask):
            if not isinstance(answer, BrokerRefusedError):
                found[f"{key.topic}-{key.partition}"] = answer
    except BrokerUnavailableError:
        pass
    return found


def check_not_too_far(root: Path, prefixes: Sequence[Prefix], starts: Mapping[str, int]) -> None:
    """Make sure that no leader begins behind what was to go.

    :raises ReleasedTooMuchError: one does.
    """
    for prefix in prefixes:
        if starts[prefix.name.log] > prefix.boundary:
            raise ReleasedTooMuchError(
                f"{root}: log {prefix.name.log}: expected it to begin at offset {prefix.boundary}, "
                f"found that its leader begins at {starts[prefix.name.log]}: records of offsets "
                f"[{prefix.boundary}, {starts[prefix.name.log]}) were deleted but not approved. Find out who "
                "deletes there, and run verify, which tells what of them is in the lake and what is lost."
            )
