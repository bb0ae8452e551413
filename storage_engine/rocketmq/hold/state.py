"""The remembered state that a hold rests on (:class:`HoldState`), and the present one (:class:`Observed`).

Everything in a ``HoldState`` was durable in the journal before it was done to the store: whoever comes after
a kill knows each file's first mtime and each setting's first value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

from storage_engine.model.hold import HoldMemory, load_hold, save_hold
from storage_engine.rocketmq.format.broker_config import is_tried

FORCIBLY: Final = "cleanFileForciblyEnable"
RESERVED: Final = "fileReservedTime"
BATCH_MAX: Final = "deleteFileBatchMax"
NAME: Final = "brokerName"
CLUSTER: Final = "brokerClusterName"
ROLE: Final = "brokerRole"
SLAVE: Final = "SLAVE"
HELD_SETTINGS: Final = (FORCIBLY, RESERVED)
"""Settings that a hold rests on."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A segment whose mtime we set, or are about to.

    :param inode: of the file; another one under its path is another file, which we never touched.
    :param original_mtime_ns: before we touched it for the first time.
    :param mtime_ns: what we set it to last.
    :param ctime_ns: what the file system made of that; None: it was meant to be set, and may have been.
    :param before_mtime_ns: just before it was set last.
    """

    base_offset: int
    path: str
    inode: int
    original_mtime_ns: int
    mtime_ns: int
    ctime_ns: int | None = None
    before_mtime_ns: int | None = None

    @property
    def possible_mtimes_ns(self) -> tuple[int, ...]:
        """Return the mtimes that the file may have if only we touched it."""
        if self.ctime_ns is not None:
            return (self.mtime_ns,)
        before = self.original_mtime_ns if self.before_mtime_ns is None else self.before_mtime_ns
        return (self.mtime_ns, before)


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that we changed, or are about to.

    :param original: its value before; as the broker writes it.
    """

    key: str
    original: str
    ours: str


@dataclass(frozen=True, slots=True)
class HoldState:
    """Everything that has to be known again after a kill.

    :param manager: tells this hold from those of other managers; in the marker file of the store.
    :param boot_timestamp_ms: of the broker's process when it was last looked at.
    :param fence_offset: base offset of the fence's first segment, which keeps itself and all younger ones;
        -1: none is needed, since only the active one is left.
    :param ends_at_ms: until when the fence stands, whatever fileReservedTime is, unless the hold is renewed.
    :param expected_settings: of :data:`HELD_SETTINGS`, as they were when the hold was made; renewing it
        changes none.
    :param min_offset: the broker's, when it was last looked at.
    :param segments: (base offset, inode) of every file of the log when it was last looked at, in order.
    :param end_offset: behind the last of them.
    :param max_offset: the broker's, when it was last looked at.
    :param address: of the broker, then.
    :param frame_offset: where the first message of the newest sealed segment begins; -1: none is known.
    :param frame_sha256: of that message's frame.
    :param releasing: base offsets of the segments that are exposed right now; the fence lies behind them.
    :param last_trigger_ms: when the broker was last told to delete; it goes on for up to 20 passes.
    :param reported: drift that lasts, and was reported already.
    :param fence: base offsets of all segments of the fence.
    :param fence_count: so many belong to it, as far as there are that many.
    :param deletes_from_ms: when the broker may delete again by its own rules, unless the hold is renewed;
        0: an older release renewed it last, and ``ends_at_ms`` is that.
    :param broker_name: brokerName of the broker that was looked at last; "": an older release looked.
    :param cluster_name: brokerClusterName, likewise.
    :param log_paths: directories of the log then, each with the mount point of the file system that it lay
        on, "" where the system doesn't say; none: an older release looked.
    :param lasts_ms: for so long the last renewal holds the store; 0: an older release renewed it.
    :param accepted_release: of the broker, that was not tested and a person accepted; "": none.
    :param accepted_by: that person.
    :param replicas: addresses of other brokers that had the broker's name when it was looked at last.
    """

    manager: str
    boot_timestamp_ms: int
    fence_offset: int = -1
    ends_at_ms: int = 0
    touched: tuple[Touched, ...] = ()
    changed_settings: tuple[ChangedSetting, ...] = ()
    expected_settings: Mapping[str, str] = field(default_factory=dict)
    min_offset: int = 0
    segments: tuple[tuple[int, int], ...] = ()
    end_offset: int = 0
    max_offset: int = 0
    address: str = ""
    frame_offset: int = -1
    frame_sha256: str = ""
    releasing: tuple[int, ...] = ()
    last_trigger_ms: int | None = None
    reported: tuple[str, ...] = ()
    fence: tuple[int, ...] = ()
    fence_count: int = 0
    deletes_from_ms: int = 0
    broker_name: str = ""
    cluster_name: str = ""
    log_paths: Mapping[str, str] = field(default_factory=dict)
    lasts_ms: int = 0
    accepted_release: str = ""
    accepted_by: str = ""
    replicas: tuple[str, ...] = ()

    def may_delete(self, release: str) -> bool:
        """Return whether a broker of this release may be told to delete; "": it isn't known."""
        return bool(release) and (is_tried(release) or release == self.accepted_release)

    def touched_at(self, base_offset: int) -> Touched | None:
        return next((t for t in self.touched if t.base_offset == base_offset), None)


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of the log, as its directory has it."""

    base_offset: int
    path: str
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """:data:`HELD_SETTINGS` as broker.conf has them: what a restart of the broker brings back.

    :param path: of broker.conf; None: nobody told us where it is.
    :param values: those that are in it; one that isn't has the broker's default. None: it can't be read.
    :param problem: why it can't.
    """

    path: str | None = None
    values: Mapping[str, str] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """A broker and its log at one moment: what a hold is judged by. The broker was asked before the files.

    :param settings: the broker's, as they work now.
    :param role: brokerRole.
    :param min_offset: the broker's; behind files that it no longer serves.
    :param max_offset: the broker's; a segment that ends behind it is active.
    :param files: of the log, by base offset; not necessarily back to back.
    :param frame_sha256: of the frame that the broker has at the ``frame_offset`` that is remembered; "": no
        message begins there. None: it was not asked for.
    :param unproven: why the broker isn't provably the one that runs on these files; "" where it is, and of a
        slave, which nobody asks.
    :param log_paths: as of :class:`HoldState`.
    """

    at_ms: int
    address: str
    boot_timestamp_ms: int
    min_offset: int
    max_offset: int
    settings: Mapping[str, str]
    role: str
    files: tuple[SeenFile, ...]
    saved: SavedSettings = field(default_factory=SavedSettings)
    frame_sha256: str | None = None
    unproven: str = ""
    log_paths: Mapping[str, str] = field(default_factory=dict)

    def file_at(self, base_offset: int) -> SeenFile | None:
        return next((file for file in self.files if file.base_offset == base_offset), None)


def first_state(left: HoldState | None, found: Observed) -> HoldState:
    """Return the state of a new hold.

    :param left: of a hold that no journal knows any more: what it has changed, and what was before that, it
        knows; what is found now isn't that. None: there is none.
    """
    state = HoldState(uuid4().hex, found.boot_timestamp_ms, expected_settings=_held_settings(found))
    if left is None:
        return state
    return replace(
        state,
        touched=left.touched,
        changed_settings=left.changed_settings,
        expected_settings=left.expected_settings or state.expected_settings,
    )


def with_acceptance(state: HoldState, release: str, accepted: str, person: str) -> HoldState:
    """Return the state with the acceptance of a release that was not tested; another release ends that.

    :param accepted: release that the store's settings accept; "": none.
    """
    if release == state.accepted_release:
        return state
    is_accepted = release == accepted and not is_tried(release)
    return replace(
        state,
        accepted_release=release if is_accepted else "",
        accepted_by=person if is_accepted else "",
    )


def with_moved_files(state: HoldState, found: Observed) -> HoldState:
    """Return the state with the paths that touched files have by now: the store may have been moved."""
    by_inode = {(file.base_offset, file.inode): file.path for file in found.files}
    touched = tuple(
        replace(one, path=by_inode.get((one.base_offset, one.inode), one.path)) for one in state.touched
    )
    return replace(state, touched=touched)


def as_looked_at(state: HoldState, found: Observed) -> HoldState:
    """Return the state with the log's end and its broker as found, so that the next look sees later
    deletions. What should be stays as it is remembered.
    """
    return replace(
        state,
        boot_timestamp_ms=found.boot_timestamp_ms,
        address=found.address,
        broker_name=found.settings.get(NAME, ""),
        cluster_name=found.settings.get(CLUSTER, ""),
        # A hold whose making an older release was killed in knows of none.
        expected_settings=state.expected_settings or _held_settings(found),
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        segments=tuple((file.base_offset, file.inode) for file in found.files),
        # What went after who let it go was killed.
        releasing=tuple(
            offset
            for offset in state.releasing
            if offset >= found.min_offset or found.file_at(offset) is not None
        ),
        end_offset=found.files[-1].end_offset if found.files else found.max_offset,
        log_paths=found.log_paths,
    )


def _held_settings(found: Observed) -> dict[str, str]:
    return {key: found.settings[key] for key in HELD_SETTINGS if key in found.settings}


def known_replicas(memory: HoldMemory | None, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of brokers that had a broker's name: as its hold knows them, and other stores'
    holds in the same journal.

    :raises GateRefusedError: what is remembered isn't what this release writes.
    """
    if memory is None:
        return ()
    names = tuple(settings.get(key, "").strip() for key in (NAME, CLUSTER))
    own = load_state(memory)
    addresses = set(own.replicas if own is not None else ())
    for other in memory.of_others():
        if (other.get("broker_name"), other.get("cluster_name")) == names:
            addresses.add(str(other.get("address", "")))
    return tuple(sorted(addresses - {""}))


def load_state(memory: HoldMemory | None) -> HoldState | None:
    """Return the remembered state of a store's hold; None: it isn't held, or none is remembered.

    :raises GateRefusedError: what is remembered isn't what this release writes.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Durable when it returns."""
    save_hold(memory, state)
