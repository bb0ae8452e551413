"""A hold on a store whose broker runs on, or a shield: what it rests on, and what drift was found."""

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
    """
    :param batch_segments: how many segments the broker deletes in a pass; None: none runs, so that only a
        shield of the whole backlog is of use.
    :param pass_interval_ms: from one pass to the next; None likewise.
    :param disk_bytes: size of the smallest disk of the log; None: it can't be measured.
    :param used_percent: how full the fullest of these disks is, as the broker counts; None likewise.
    :param is_tended: a watch is alive that acts on deletions.
    :param refusal: why there may be none now; "" where there may.
    """

    batch_segments: int | None = None
    pass_interval_ms: int | None = None
    disk_bytes: int | None = None
    used_percent: int | None = None
    is_tended: bool = False
    refusal: str = ""


T = TypeVar("T")


class HoldMemory(Protocol):
    """Keeps what a broker package must know again after a kill. Durable when a call returns."""

    def load(self) -> Mapping[str, Any] | None:
        """Return the last saved value; None: there is none, or it was dropped."""

    def save(self, state: Mapping[str, Any] | None) -> None:
        """Replace the saved value; None drops it."""

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        """Return the memory that other stores of the same kind of broker share in the same journal."""

    def alone(self, cluster: str) -> AbstractContextManager[Callable[[], None]]:
        """Be the only store of the journal that changes what a cluster's stores share, after some waiting.

        :return: the check to call right before each change: it makes sure that no other holder came
            meanwhile.
        :raises StoreBusyError: another one is at it, or was meanwhile.
        """

    def record_drift(self, found: Sequence[Drift]) -> None:
        """Record drift, before the remembered state goes on without it.

        What was recorded already is not recorded again.
        """


def load_hold(memory: HoldMemory | None, kind: type[T]) -> T | None:
    """Return the remembered state of a hold; None: there is none.

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
    """Remember the state of a hold, or that there is none. Durable when it returns."""
    memory.save(None if state is None else to_jsonable(state))


class DriftKind(StrEnum):
    """Kind of a change that another program, or time, made to a held store."""

    MTIME_CHANGED = "mtime-changed"
    SETTING_CHANGED = "setting-changed"
    SETTING_NOT_SAVED = "setting-not-saved"
    """The broker's config file still has the old value, which a restart would bring back."""
    SEGMENT_GONE = "segment-gone"
    GIVEN_UP = "given-up"
    """Only the shield had these segments still, and the disk was too full to keep them."""
    BROKER_RESTARTED = "broker-restarted"
    BROKER_MOVED = "broker-moved"
    """The same broker, on the same files, at another address."""
    BROKER_REPLACED = "broker-replaced"
    """Another store's bytes under offsets that we know: a new lineage."""
    ROLE_CHANGED = "role-changed"
    FENCE_MENDED = "fence-mended"
    """Somebody touched or removed what a hold rests on; a watch has mended it already."""
    FENCE_NOT_MENDED = "fence-not-mended"
    """A watch can't set the time of a segment that a hold rests on; the others of the fence stand."""
    TOPIC_REPLACED = "topic-replaced"
    """A topic was deleted and made again under its name, or is gone: what is held of it is no more."""
    RECORDS_CUT = "records-cut"
    """A log ends below what its replicas had: another leader has fewer records, or others."""
    LEADER_MOVED = "leader-moved"
    """Another replica leads a log."""
    REASSIGNED = "reassigned"
    """Other nodes have a log's replicas, or this one has none any more."""
    DIRECTORY_FAILED = "directory-failed"
    """A directory of the store can't be read; what lies in it is unknown."""
    HOLD_LAPSED = "hold-lapsed"
    """Nobody renewed it in time; the broker was free to delete."""


UNPROVEN = "no lake proves them"
"""Word of a record for a range that was deleted when lakes were asked, and none had all of it. Persisted."""


@dataclass(frozen=True, slots=True)
class Drift:
    """:param detail: the expected and the found state, and the remedy; of a range that is gone, also the
    topics whose messages were in it.
    :param start_offset: of the log, where it is about a range that is gone; -1 otherwise.
    :param end_offset: behind that range; -1 otherwise.
    :param topics: of the messages in that range, as far as they can still be told.
    :param log_id: identity of the range's log, as receipts have it; "" where it isn't known, and for a
        deleted log once the detail says what of the range no lake has.
    :param unarchived: by which rule nobody had to archive the range; "": by none.
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
        """Return whether it was found gone while no lake had all of it and no rule permitted its deletion."""
        return UNPROVEN in self.detail


@dataclass(frozen=True, slots=True)
class DueRange:
    """Records that a broker is about to delete by its own rules, that no lake proves and nobody holds.

    :param at_ms: when they may go.
    :param why: they can't be held, as a clause.
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

    :param looked_at_ms: when it last looked at all that the hold rests on; 0: it hasn't, or doesn't say so.
    :param fenced: so many segments of the fence stood after that look.
    :param mended: files that it has mended or replaced since it began.
    :param runs_out_at_ms: when the hold ends by itself, said from half of its time on; 0: it was renewed in
        time, or there is none.
    """

    looked_at_ms: int = 0
    fenced: int = 0
    mended: int = 0
    runs_out_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """:param held: nothing that isn't released on purpose can go now, as far as can be told, but of
        ``unheld``.
    :param fence_offset: base offset of the segment that keeps itself and all younger ones; -1: none is
        needed, since only the active segment is there.
    :param ends_at_ms: when the hold ends by itself unless it is renewed, whatever settings become; None: it
        doesn't, or isn't held.
    :param disturbances: found by this look, and not reported before.
    :param notices: notices for a person, and checks that could not be made.
    :param described: the held part, where no segment is a fence; "": ``fence_offset`` says it.
    :param deletes_from_ms: when the broker's present rules begin to delete held segments, without a renewal;
        None: unknown, or isn't held.
    :param left_to_broker: the broker deletes by its own rules. Only segments are held that no lake has and
        that would be deleted soon: ``described`` says which.
    :param due: segments that will be deleted soon though no lake has them.
    :param alarms: other matters that a person has to see to, such as a hold that can't be ended.
    :param unheld: why logs aren't held at this moment though others of the store are, by name: nothing of
        these is deleted by us.
    :param watch: the last look of the store's watch; None: none looks, as a notice says, or none has to.
    :param lasts_ms: from a renewal on, unless it is renewed again; None: for ever, or not known.
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
        """Return whether it ends by itself in less than half of its time: a renewal was missed."""
        if self.ends_at_ms is None or self.lasts_ms is None:
            return False
        return self.ends_at_ms - now_ms < self.lasts_ms // 2

    @property
    def is_well(self) -> bool:
        """Return whether all segments that have to be held are held, or none has to be."""
        return (self.held or self.left_to_broker) and not (self.unheld or self.due or self.alarms)


@dataclass(frozen=True, slots=True)
class BrokerProgress:
    """A running broker's progress with its own work; None: it doesn't say.

    :param flush_behind_bytes: in the log and not on disk yet.
    :param dispatch_behind_bytes: in the log and not in consume queues and index yet.
    :param checkpoint_behind_ms: by name, how much older than the newest message each value is.
    :param timer_behind_messages: in the log and not in the timers yet.
    :param commit_behind_bytes: in a pool of buffers and not in the log yet; 0 where there is none.
    :param put_p99_ms: of a put, over the last whole minute that it has a figure of.
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
