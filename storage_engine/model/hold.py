"""A hold on a running broker's store, its state in the journal, its drift, and the needs of a shield."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, GateRefusedError


@dataclass(frozen=True, slots=True)
class ShieldNeed:
    """:param batch_segments: how many segments the broker deletes in a pass; None if no broker runs. Then
        only a shield of all unproven segments is of use.
    :param pass_interval_ms: time from one pass to the next; None if no broker runs.
    :param disk_bytes: size of the smallest disk of the log; None if it can't be measured.
    :param used_percent: level of the fullest of these disks, computed with the broker's formula; None if it
        is unknown.
    :param is_tended: a live watch acts on deletions.
    :param refusal: why no shield is permitted now; "" if a shield is permitted.
    """

    batch_segments: int | None = None
    pass_interval_ms: int | None = None
    disk_bytes: int | None = None
    used_percent: int | None = None
    is_tended: bool = False
    refusal: str = ""


T = TypeVar("T")


class HoldMemory(Protocol):
    """Stores the state of a hold, which a broker package needs again after a kill. Durable on return."""

    def load(self) -> Mapping[str, Any] | None:
        """Return the last saved value; None if no value was saved, or if it was dropped."""

    def save(self, state: Mapping[str, Any] | None) -> None:
        """Replace the saved value; None drops it."""

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        """Return the memories of other stores of the same kind of broker in the same journal."""

    def alone(self, cluster: str) -> AbstractContextManager[Callable[[], None]]:
        """Wait for and take the exclusive right to change the memory that a cluster's stores share.

        :return: a function to call just before each change. It raises an error if the right was lost.
        :raises StoreBusyError: another store has the right, or had it meanwhile.
        """

    def record_drift(self, found: Sequence[Drift]) -> None:
        """Record drift before the remembered state changes. Drift that is recorded already is skipped."""


def load_hold(memory: HoldMemory | None, kind: type[T]) -> T | None:
    """Return the remembered state of a hold; None if there is no hold.

    :param kind: dataclass of the state of a broker's hold.
    :raises GateRefusedError: the remembered state isn't in this release's form.
    """
    saved = None if memory is None else memory.load()
    if saved is None:
        return None
    try:
        return from_jsonable(kind, saved, "the hold in the journal")
    except BadInputError as error:
        raise GateRefusedError(
            f"{error}. Nothing was changed. Use the release of Storage Engine that made the hold, to "
            "unmanage the store with it."
        ) from error


def save_hold(memory: HoldMemory, state: object | None) -> None:
    """Save the state of a hold; None records that there is none. Durable on return."""
    memory.save(None if state is None else to_jsonable(state))


class DriftKind(StrEnum):
    """Kind of a change to a held store, made by another program or by the passage of time."""

    MTIME_CHANGED = "mtime-changed"
    SETTING_CHANGED = "setting-changed"
    SETTING_NOT_SAVED = "setting-not-saved"
    """The broker's config file still has the old value, which a restart would bring back."""
    SEGMENT_GONE = "segment-gone"
    GIVEN_UP = "given-up"
    """Only the shield still had these segments, and the disk was too full to keep them."""
    BROKER_RESTARTED = "broker-restarted"
    BROKER_MOVED = "broker-moved"
    """The same broker, on the same files, at another address."""
    BROKER_REPLACED = "broker-replaced"
    """Known offsets now have the bytes of another store: a new lineage."""
    ROLE_CHANGED = "role-changed"
    FENCE_MENDED = "fence-mended"
    """Another program changed or removed a file that a hold depends on. A watch has repaired it already."""
    FENCE_NOT_MENDED = "fence-not-mended"
    """A watch can't set the time of a segment that a hold needs. The rest of the fence is in place."""
    TOPIC_REPLACED = "topic-replaced"
    """A topic was deleted, and perhaps created again under its name. Its held data is gone."""
    RECORDS_CUT = "records-cut"
    """A log ends below the offset that its replicas had: a new leader has fewer or different records."""
    LEADER_MOVED = "leader-moved"
    """Another replica leads a log."""
    REASSIGNED = "reassigned"
    """A log's replicas have moved to other nodes, or this node no longer has a replica."""
    DIRECTORY_FAILED = "directory-failed"
    """A directory of the store can't be read. Its content is unknown."""
    HOLD_LAPSED = "hold-lapsed"
    """Nobody renewed the hold in time. The broker was free to delete."""


UNPROVEN = "no lake proves them"
"""Words in the record of a deleted range that no lake has as a whole. Persisted."""


@dataclass(frozen=True, slots=True)
class Drift:
    """:param detail: the expected and the found state, and the remedy; for a range that is gone, also the
        topics of its messages.
    :param start_offset: first offset of a range that is gone; -1 for other drift.
    :param end_offset: offset behind that range; -1 for other drift.
    :param topics: topics of the messages in that range, as far as they are still known.
    :param log_id: identity of the range's log, as in receipts; "" if it isn't known. For a deleted log, it is
        "" once ``detail`` names the part of the range that no lake has.
    :param unarchived: the rule by which the range did not have to be archived; "" if there is none.
    """

    kind: DriftKind
    detail: str
    log: str = ""
    start_offset: int = -1
    end_offset: int = -1
    topics: tuple[str, ...] = ()
    log_id: str = ""
    unarchived: str = ""

    @property
    def was_unproven(self) -> bool:
        """Return whether the range was deleted though no lake had all of it and no rule allowed it."""
        return UNPROVEN in self.detail


@dataclass(frozen=True, slots=True)
class DueRange:
    """Records that a broker is about to delete by its own rules. No lake proves them, and no hold keeps them.

    :param at_ms: when the broker may delete them.
    :param why: why they can't be held, as a clause.
    """

    log: str
    start_offset: int
    end_offset: int
    size_bytes: int
    at_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class WatchLook:
    """Result of a watch's last look at its store.

    :param looked_at_ms: when the watch last checked all that the hold depends on; 0 if never or unknown.
    :param fenced: how many segments of the fence were in place after that look.
    :param mended: how many files the watch has repaired or replaced since it began.
    :param runs_out_at_ms: when the hold ends by itself, given once half of its time is over; 0 if it was
        renewed in time, or there is no hold.
    """

    looked_at_ms: int = 0
    fenced: int = 0
    mended: int = 0
    runs_out_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """:param held: as far as is known, the broker can now delete only two kinds of segments: those that a run
        has released, and those of logs in ``unheld``.
    :param fence_offset: base offset of the segment that protects itself and all younger ones; -1 if no such
        segment is needed, since only the active segment exists.
    :param ends_at_ms: when the hold ends without a renewal, whatever the settings are then; None if it never
        ends by itself, or the store isn't held.
    :param disturbances: drift that this look found and that was not reported before.
    :param notices: notices for a person, and checks that could not be made.
    :param described: the held logs or segments in words, if the hold uses no fence; "" if it uses one.
    :param deletes_from_ms: when the broker's present rules begin to delete held segments without a renewal;
        None if unknown, or the store isn't held.
    :param left_to_broker: the broker deletes by its own rules. Only segments that no lake has and that it
        would soon delete are held; ``described`` names them.
    :param due: segments that will be deleted soon although no lake has them.
    :param alarms: other problems that need a person, such as a hold that can't be ended.
    :param unheld: logs that aren't held now although other logs of the store are, each with the reason. We
        delete nothing of these logs.
    :param watch: the last look of the store's watch; None if no watch is needed, or no watch looks (see
        ``notices``).
    :param lasts_ms: how long the hold lasts from a renewal; None if for ever, or if not known.
    """

    held: bool
    fence_offset: int = -1
    ends_at_ms: int | None = None
    disturbances: tuple[Drift, ...] = ()
    notices: tuple[str, ...] = ()
    deletes_from_ms: int | None = None
    described: str = ""
    left_to_broker: bool = False
    due: tuple[DueRange, ...] = ()
    alarms: tuple[str, ...] = ()
    unheld: Mapping[str, str] = field(default_factory=dict)
    watch: WatchLook | None = None
    lasts_ms: int | None = None

    def is_half_over(self, now_ms: int) -> bool:
        """Return whether less than half of the hold's time is left, so that a renewal was missed."""
        if self.ends_at_ms is None or self.lasts_ms is None:
            return False
        return self.ends_at_ms - now_ms < self.lasts_ms // 2

    @property
    def is_well(self) -> bool:
        """Return whether there is no alarm, and every segment that has to be held is held."""
        return (self.held or self.left_to_broker) and not (self.unheld or self.due or self.alarms)


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """A running broker's progress with its own work. A field is None if the broker doesn't say.

    :param flush_behind_bytes: bytes that are in the log and not on disk yet.
    :param dispatch_behind_bytes: bytes that are in the log and not in consume queues and index yet.
    :param checkpoint_behind_ms: by checkpoint value's name, how much older it is than the newest message.
    :param timer_behind_messages: messages that are in the log and not in the timers yet.
    :param commit_behind_bytes: bytes in a pool of buffers that are not in the log yet; 0 without a pool.
    :param put_p99_ms: 99th percentile of a put's duration in the last whole minute that the broker reports.
    """

    sampled_at_ms: int
    min_offset: int
    max_offset: int
    earliest_message_timestamp_ms: int | None
    flush_behind_bytes: int | None
    dispatch_behind_bytes: int | None
    checkpoint_behind_ms: Mapping[str, int]
    timer_behind_messages: int | None
    commit_behind_bytes: int = 0
    put_p99_ms: float | None = None
