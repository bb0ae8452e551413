"""The saved state of a hold, and the observed state of broker and log.

Each change of a :class:`HoldState` is durable in the journal before the store is changed. So after a kill,
the next run knows each file's original mtime and each setting's original value.
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
"""Broker settings on which a hold depends."""


@dataclass(frozen=True, slots=True)
class Touched:
    """A segment whose mtime the hold has set, or is about to set.

    :param inode: inode of the file. A file with another inode at the path was never touched.
    :param original_mtime_ns: mtime before the hold first set it.
    :param mtime_ns: mtime that the hold set last.
    :param ctime_ns: ctime after that; None if the hold was about to set the mtime, and may have set it.
    :param before_mtime_ns: mtime just before the hold set it last; None in states of older releases.
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
        """Return the mtimes that the file can have if no other program touched it."""
        if self.ctime_ns is not None:
            return (self.mtime_ns,)
        before = self.original_mtime_ns if self.before_mtime_ns is None else self.before_mtime_ns
        return (self.mtime_ns, before)


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A broker setting that the hold has changed, or is about to change.

    :param original: value before the hold, in the broker's form.
    :param ours: value that the hold sets.
    """

    key: str
    original: str
    ours: str


@dataclass(frozen=True, slots=True)
class HoldState:
    """Saved state of a hold: everything that the next run needs after a kill.

    :param manager: id of this hold's manager, also in the store's marker file.
    :param boot_timestamp_ms: start time of the broker's process at the last look.
    :param fence_offset: base offset of the fence's first segment; -1 if only the active segment is left.
    :param ends_at_ms: end of the fence without a renewal, at any fileReservedTime from 0 on.
    :param expected_settings: values of :data:`HELD_SETTINGS` when the hold was made. A renewal keeps them.
    :param min_offset, max_offset, address: the broker's offsets and address at the last look.
    :param segments: (base offset, inode) of every file of the log at the last look, in order.
    :param end_offset: end of the last of these files.
    :param frame_offset: offset of the first message in the newest sealed segment; -1 if unknown.
    :param frame_sha256: SHA-256 of that message's frame.
    :param releasing: base offsets of segments before the fence that the broker may delete now.
    :param last_trigger_ms: time of the last request to delete, after which the broker makes up to 20 passes.
    :param reported: names of lasting drift that was reported already.
    :param fence: base offsets of the fence's segments.
    :param fence_count: number of segments that the fence should have, if the log has so many.
    :param deletes_from_ms: time from which the broker may delete by its own rules without a renewal; 0 if an
        older release renewed the hold last, and ``ends_at_ms`` has this time.
    :param broker_name, cluster_name: the broker's names at the last look; "" if an older release looked.
    :param log_paths: directories of the log at the last look, each with the mount point of its file system
        ("" if unknown). Empty if an older release looked.
    :param lasts_ms: time from the last renewal to the hold's end; 0 if an older release renewed it.
    :param accepted_release: untested release of the broker that a person accepted; "" if there is none.
    :param accepted_by: the person who accepted it.
    :param replicas: addresses of other brokers that had the broker's name at the last look.
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
        """Return whether a broker of this release may be told to delete; False if it is "" (unknown)."""
        return bool(release) and (is_tried(release) or release == self.accepted_release)

    def touched_at(self, base_offset: int) -> Touched | None:
        return next((t for t in self.touched if t.base_offset == base_offset), None)


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of the log, as listed in its directory."""

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
    """Values of :data:`HELD_SETTINGS` in broker.conf, which take effect at the broker's next start.

    :param path: path of broker.conf; None if no path was given.
    :param values: values in the file, or the broker's defaults; None if the file can't be read.
    :param problem: reason why the file can't be read.
    """

    path: str | None = None
    values: Mapping[str, str] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """State of a broker and its log at one moment. The broker was asked before its files were listed.

    :param settings: the broker's effective settings.
    :param role: value of brokerRole.
    :param min_offset: the broker's min offset. It no longer serves files before it.
    :param max_offset: the broker's max offset. A segment that ends behind it is active.
    :param files: files of the log, sorted by base offset. There may be gaps.
    :param frame_sha256: SHA-256 of the broker's frame at the hold's ``frame_offset``; "" if no message begins
        there; None if the broker was not asked.
    :param unproven: reason why the broker may not be the one that runs on these files; "" if it is proven, or
        the broker is a slave, which isn't checked.
    :param log_paths: see :class:`HoldState`.
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

    :param left: the store's copy of a hold whose journal is lost, with original mtimes and settings, or None.
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
    """Return the state with a person's acceptance of an untested release. It ends with another release.

    :param accepted: release that the store's settings accept; "" if they accept none.
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
    """Return the state with the current paths of touched files, since the store may have been moved."""
    by_inode = {(file.base_offset, file.inode): file.path for file in found.files}
    touched = tuple(
        replace(item, path=by_inode.get((item.base_offset, item.inode), item.path)) for item in state.touched
    )
    return replace(state, touched=touched)


def as_looked_at(state: HoldState, found: Observed) -> HoldState:
    """Return the state with the log and broker as found now, with which the next look compares.

    Expected mtimes and settings stay as recorded.
    """
    return replace(
        state,
        boot_timestamp_ms=found.boot_timestamp_ms,
        address=found.address,
        broker_name=found.settings.get(NAME, ""),
        cluster_name=found.settings.get(CLUSTER, ""),
        # An older release that was killed while it made the hold has recorded no settings.
        expected_settings=state.expected_settings or _held_settings(found),
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        segments=tuple((file.base_offset, file.inode) for file in found.files),
        # Without segments that were deleted after the releasing run was killed.
        releasing=tuple(base for base in state.releasing if base >= found.min_offset or found.file_at(base)),
        end_offset=found.files[-1].end_offset if found.files else found.max_offset,
        log_paths=found.log_paths,
    )


def _held_settings(observed: Observed) -> dict[str, str]:
    return {key: observed.settings[key] for key in HELD_SETTINGS if key in observed.settings}


def known_replicas(memory: HoldMemory | None, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of brokers with a broker's name, from its own and other holds in the journal.

    :raises GateRefusedError: this release can't read the saved state.
    """
    if memory is None:
        return ()
    names = tuple(settings.get(key, "").strip() for key in (NAME, CLUSTER))
    state = load_state(memory)
    addresses = set(state.replicas if state is not None else ())
    for hold in memory.of_others():
        if (hold.get("broker_name"), hold.get("cluster_name")) == names:
            addresses.add(str(hold.get("address", "")))
    return tuple(sorted(addresses - {""}))


def load_state(memory: HoldMemory | None) -> HoldState | None:
    """Return the saved state of a store's hold; None if it isn't held, or no state was saved.

    :raises GateRefusedError: this release can't read the saved state.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Save the state of a hold durably."""
    save_hold(memory, state)
