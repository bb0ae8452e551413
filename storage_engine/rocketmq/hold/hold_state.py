"""The state of a hold (:class:`HoldState`), its copy in the store, the observed broker (:class:`Observed`).

Each change of a ``HoldState`` is durable in the journal before the store is changed. So after a kill, the
next run knows each file's original mtime and each setting's original value.

The copy is ``.storage-engine/hold``. With the copy, the original mtimes aren't lost with the journal, and a
watch needs neither journal nor broker. The copy has two slots of equal size, which are overwritten in turn.
An overwrite works on a full disk, too, and if it is interrupted, the other slot is intact.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, WAIT_SECONDS, locked, own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.exceptions import BadInputError, ChangedUnderUsError, CorruptFileError, GateRefusedError
from storage_engine.model.hold import Drift, HoldMemory, load_hold, save_hold
from storage_engine.rocketmq.format.broker_config import is_tried
from storage_engine.same_bytes.own_acts import Acting, own_acts

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

    :param inode: inode of the file. The hold has never touched a file with another inode at the path.
    :param original_mtime_ns: mtime before the hold first set it.
    :param mtime_ns: mtime that the hold set last.
    :param ctime_ns: ctime after ``mtime_ns`` was set. None until the change is confirmed: the file may have
        the old or the new mtime.
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
    :param ends_at_ms: time until which the fence stands without a renewal, at any fileReservedTime >= 0.
    :param expected_settings: values of :data:`HELD_SETTINGS` when the hold was made. A renewal keeps them.
    :param min_offset, max_offset, address: the broker's offsets and address at the last look.
    :param segments: (base offset, inode) of every file of the log at the last look, in order.
    :param end_offset: end offset of the last file in ``segments``.
    :param frame_offset: offset of the first message in the newest sealed segment; -1 if unknown.
    :param frame_sha256: SHA-256 of that message's frame.
    :param releasing: base offsets of segments before the fence that the broker may delete now.
    :param last_trigger_ms: time of the last request to delete, after which the broker makes up to 20 passes.
    :param reported: names of lasting drift that was reported already.
    :param fence: base offsets of the fence's segments.
    :param fence_count: number of segments that the fence should have, if the log has so many.
    :param deletes_from_ms: time from which the broker may delete by its own rules if no run renews the hold.
        0 if an older release renewed the hold last. Then ``ends_at_ms`` has this time.
    :param broker_name, cluster_name: the broker's names at the last look; "" if an older release looked.
    :param log_paths: directories of the log at the last look, each with the mount point of its file system
        ("" if unknown). Empty if an older release looked.
    :param lasts_ms: how long the hold lasts after its last renewal; 0 if an older release renewed it.
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
        """Return whether a broker of this release may be told to delete; False for "" (unknown)."""
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
    :param min_offset: the broker's min offset. Files before this offset are no longer served.
    :param max_offset: the broker's max offset. A segment that ends behind it is active.
    :param files: files of the log, sorted by base offset. There may be gaps.
    :param frame_sha256: SHA-256 of the broker's frame at the hold's ``frame_offset``; "" if no message begins
        there; None if the broker was not asked.
    :param unproven: reason why another broker may run on these files. "" if this broker provably runs on
        them, or if this broker is a slave: slaves aren't checked.
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

    :param left: the store's copy of a hold whose journal is lost; None if there is no such copy. The new
        state takes the original mtimes and settings from it.
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
    """Return the state with a person's acceptance of an untested release. A new release ends the acceptance.

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
    """Return the state with the log and broker as found now. The next look is compared with this state.

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
    """Return the known addresses of brokers with these settings' broker name and cluster name.

    The addresses come from this hold (``memory``) and from the journal's other holds.

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
    """Return the saved state of a store's hold; None if the store isn't held, or no state was saved.

    :raises GateRefusedError: this release can't read the saved state.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Save the state of a hold durably."""
    save_hold(memory, state)


_MS_NS: Final = 1_000_000


class SegmentGoneError(GateRefusedError):
    """A segment was deleted before its mtime could be set."""


def original_mtime_ns(state: HoldState | None, file: SeenFile) -> int:
    """Return a file's mtime before the hold first changed it."""
    touched = None if state is None else state.touched_at(file.base_offset)
    return file.mtime_ns if touched is None or touched.inode != file.inode else touched.original_mtime_ns


def set_mtimes(
    root: Path, memory: HoldMemory, state: HoldState, wanted: Sequence[tuple[SeenFile, int]]
) -> HoldState:
    """Set the mtimes in the order of ``wanted``, durably. First, the original mtimes are recorded.

    :param root: the store's root, which has the record of this package's own acts.
    :param wanted: files, each with its new mtime in nanoseconds.
    :return: the saved state of the hold.
    :raises GateRefusedError: a file's mtime may not be set, or the file system doesn't keep it. All of
        ``wanted`` is then recorded as about to be set.
    :raises SegmentGoneError: a file was deleted meanwhile.
    :raises ChangedUnderUsError: another file is at the path. It was not touched.
    """
    if not wanted:
        return state
    planned = []
    for file, mtime_ns in wanted:
        original_ns, before_ns = original_mtime_ns(state, file), file.mtime_ns
        planned.append(
            Touched(file.base_offset, file.path, file.inode, original_ns, mtime_ns, before_mtime_ns=before_ns)
        )
    state = _with_touched(state, planned)
    save_state(memory, state)
    with own_acts(root) as acts:
        touched = [set_mtime(acts, item) for item in planned]
    state = _with_touched(state, touched)
    save_state(memory, state)
    return state


def put_back(root: Path, memory: HoldMemory, state: HoldState, base_offsets: Collection[int]) -> HoldState:
    """Restore files' original mtimes, oldest first, and remove the files from the hold's state.

    The fence consists of the youngest of these files, so it stands until all older files are restored. A file
    keeps its mtime if another program has replaced or touched it since the hold set it.

    :return: the saved state of the hold.
    :raises GateRefusedError: a file's mtime may not be set.
    """
    chosen = [touched for touched in state.touched if touched.base_offset in base_offsets]
    if not chosen:
        return state
    with own_acts(root) as acts:
        for touched in chosen:
            if is_ours(touched):
                with suppress(SegmentGoneError):  # The broker may delete the expired file meanwhile.
                    set_mtime(acts, replace(touched, mtime_ns=touched.original_mtime_ns))
    remaining = tuple(touched for touched in state.touched if touched.base_offset not in base_offsets)
    state = replace(state, touched=remaining)
    save_state(memory, state)
    return state


def put_all_back(root: Path, memory: HoldMemory, state: HoldState) -> HoldState:
    """End the fence, so that no watch mends it, then restore all files' original mtimes.

    :raises GateRefusedError: a file's mtime may not be set.
    """
    state = replace(state, fence=(), fence_count=0)
    save_state(memory, state)
    return put_back(root, memory, state, [touched.base_offset for touched in state.touched])


def set_mtime(acts: Acting, touched: Touched) -> Touched:
    """Set one file's mtime, flush it, and check whether the file system keeps it.

    :raises GateRefusedError: the mtime may not be set, or isn't kept.
    :raises SegmentGoneError: the file was deleted.
    :raises ChangedUnderUsError: another file is at its path. It was not touched.
    """
    try:
        with acts.on(touched.path, mtime_ns=touched.mtime_ns):
            return _set_mtime(touched)
    except FileNotFoundError as error:
        raise SegmentGoneError(
            f"{touched.path}: expected the log's first segments to stay while their mtimes are set, found "
            "that they are being deleted. Run again when the broker has deleted them."
        ) from error
    except OSError as error:
        raise _refusal(touched, error) from error


def is_ours(touched: Touched) -> bool:
    """Return whether the file has the recorded inode and one of ``touched.possible_mtimes_ns``."""
    try:
        stat = Path(touched.path).lstat()
    except FileNotFoundError:
        return False
    if stat.st_ino != touched.inode:
        return False
    return any(same_ms(stat.st_mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns)


def same_ms(left_ns: int, right_ns: int) -> bool:
    """Return whether two mtimes are equal in milliseconds, the broker's unit."""
    return left_ns // _MS_NS == right_ns // _MS_NS


def _with_touched(state: HoldState, touched: Iterable[Touched]) -> HoldState:
    by_offset = {item.base_offset: item for item in (*state.touched, *touched)}
    return replace(state, touched=tuple(item for _, item in sorted(by_offset.items())))


def _set_mtime(touched: Touched) -> Touched:
    with durable.opened(touched.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) as fd:
        before = os.fstat(fd)
        if before.st_ino != touched.inode:
            raise ChangedUnderUsError(
                f"{touched.path}: expected the file with inode {touched.inode}, found inode {before.st_ino}: "
                "another program replaced it. It was not touched. Stop the program that replaces it."
            )
        os.utime(fd, ns=(before.st_atime_ns, touched.mtime_ns))
        try:
            os.fsync(fd)
        except OSError:
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise
        after = os.fstat(fd)
        if not same_ms(after.st_mtime_ns, touched.mtime_ns):
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise GateRefusedError(
                f"{touched.path}: expected its file system to keep the mtime {touched.mtime_ns} ns, found "
                f"{after.st_mtime_ns} ns. No hold is possible without mtimes. Move the store to a local file "
                "system such as ext4 or XFS, or stop the broker and work offline."
            )
    return replace(touched, ctime_ns=after.st_ctime_ns)


def _refusal(file: Touched, error: OSError) -> GateRefusedError:
    owner = ""
    if isinstance(error, PermissionError):
        uids = ""
        with suppress(OSError):
            uids = f" (uid {Path(file.path).stat().st_uid}; this process has uid {os.geteuid()})"
        owner = (
            f" Only the owner of a file may set its mtime: run as the broker's user{uids}, or give this "
            "process CAP_FOWNER and read access."
        )
    return GateRefusedError(
        f"{file.path}: expected to set its mtime, found {error.strerror or error}: the store can't be held. "
        f"It was not touched.{owner or ' Mount its file system writable.'}"
    )


RECORD: Final = "hold"
_LOCK: Final = "hold-record.lock"
_SLOT_BYTES: Final = 16 * 1024
_MAX_BYTES: Final = 16 << 20
"""Largest total size of the two slots, enough for a fence of tens of thousands of segments."""


@contextmanager
def lock_settled(root: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Lock the store's copy of the hold until the block ends, so that no process changes it.

    :return: the descriptor of ``.storage-engine``.
    :raises TimeoutError: another process has the lock for longer than ``wait_seconds``.
    :raises OSError: ``.storage-engine`` can't be written.
    """
    with locked(root, _LOCK, wait_seconds=wait_seconds) as directory:
        yield directory


def read_local(root: Path) -> HoldState | None:
    """Return the hold's state from the store's copy. Return None if there is no copy or it is damaged.

    :raises GateRefusedError: the copy may not be read, or this release can't read it.
    """
    path = root / DIRECTORY / RECORD
    try:
        with own_directory(root) as directory:
            data = _read(directory)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        raise GateRefusedError(
            f"{path}: expected the store's copy of its hold, found another file ({error}) Remove it: the "
            "journal has the hold, and the next renewal writes the copy again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    newest = max(_slots(data), key=_sequence)
    if newest["state"] is None:
        return None
    try:
        return from_jsonable(HoldState, newest["state"], str(path))
    except BadInputError as error:
        raise _unreadable(path, error) from error


def write_local(root: Path, state: HoldState | None) -> None:
    """Replace the store's copy of the hold's state durably. None removes the state.

    On a full disk the copy is removed: the journal has the hold, and an old copy would mislead a watch.

    :raises OSError: the copy can't be written. The previous one is still there.
    """
    path = root / DIRECTORY / RECORD
    if state is None and not path.exists():
        return
    try:
        with lock_settled(root) as directory:
            write_settled(directory, state)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)


def write_settled(directory: int, state: HoldState | None) -> None:
    """Replace the store's copy of the hold's state, for a caller inside :func:`lock_settled`.

    :param directory: descriptor of ``.storage-engine``.
    :raises OSError: the copy can't be written. The previous one is still there.
    """
    try:
        data = _read(directory)
    except FileNotFoundError:
        data = b""
    sequences = [_sequence(slot) for slot in _slots(data)]
    sequence = max(sequences) + 1
    # Only processes with the journal need the segments and the reported drift.
    record = None if state is None else to_jsonable(replace(state, segments=(), reported=()))
    content = json.dumps({"sequence": sequence, "state": record}).encode()
    line = f"{zlib.crc32(content):08x} ".encode() + content + b"\n"
    size = len(data) // 2
    if len(line) > size:
        # Create the file again with larger slots.
        size = max(_SLOT_BYTES, 1 << len(line).bit_length())
        durable.write_file(RECORD, line.ljust(size) + b" " * size, dir_fd=directory, shared=True)
        return
    # Keep the newest slot: this write may be interrupted.
    older = 1 - sequences.index(max(sequences))
    with durable.opened(RECORD, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory) as descriptor:
        os.pwrite(descriptor, line.ljust(size), older * size)
        os.fsync(descriptor)


@dataclass(frozen=True, slots=True)
class HoldMemories:
    """A :class:`storage_engine.model.hold.HoldMemory` in the journal, with a copy in the store.

    :param journal: the journal's memory. It is right where journal and copy differ.
    """

    journal: HoldMemory
    root: Path

    def load(self) -> Mapping[str, Any] | None:
        """Return the journal's state, and add segments that a watch fenced after that state was saved.

        :raises GateRefusedError: the store's copy can't be read.
        """
        saved, local = load_state(self.journal), read_local(self.root)
        if saved is None:
            return None
        if local is not None and local.manager == saved.manager:
            saved = with_fenced_since(saved, local)
        return to_jsonable(saved)  # type: ignore[no-any-return]

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        return self.journal.of_others()

    def alone(self, cluster: str) -> AbstractContextManager[Callable[[], None]]:
        return self.journal.alone(cluster)

    def record_drift(self, found: Sequence[Drift]) -> None:
        self.journal.record_drift(found)

    def save(self, state: Mapping[str, Any] | None) -> None:
        """Save the state durably, first in the journal, on which a run after a kill relies.

        :raises GateRefusedError: the store's directory can't be written.
        """
        self.journal.save(state)
        hold = None if state is None else from_jsonable(HoldState, state, "the hold")
        try:
            write_local(self.root, hold)
        except OSError as error:
            raise GateRefusedError(
                f"{self.root / DIRECTORY}: expected to write the store's copy of the hold, found "
                f"{error.strerror}. The journal has the hold. No file was touched. Run as the broker's user, "
                "with its file system mounted writable, and free some space if it is full."
            ) from error


def with_fenced_since(saved: HoldState, local: HoldState) -> HoldState:
    """Add segments that a watch has fenced, if they still have the mtimes that the watch gave them."""
    keys = {(touched.base_offset, touched.inode) for touched in saved.touched}
    fenced = [item for item in local.touched if (item.base_offset, item.inode) not in keys and is_ours(item)]
    if not fenced:
        return saved
    fence = {*saved.fence, *(item.base_offset for item in fenced)}
    return replace(_with_touched(saved, fenced), fence=tuple(sorted(fence)))


def left_behind(root: Path) -> HoldState | None:
    """Return the store's copy of a hold that is in no journal; None if there is no copy.

    The result lacks touched segments that no longer have the hold's mtimes.

    :raises GateRefusedError: the copy can't be read.
    """
    local = read_local(root)
    return local and replace(local, touched=tuple(item for item in local.touched if is_ours(item)))


def _read(directory: int) -> bytes:
    return read_file(Path(RECORD), _MAX_BYTES, follow_links=False, dir_fd=directory)


def _slots(data: bytes) -> tuple[dict[str, Any], ...]:
    size = len(data) // 2
    return _slot(data[:size]), _slot(data[size:])


def _slot(data: bytes) -> dict[str, Any]:
    """Return the content of a slot: sequence and state. Without a complete record, they are 0 and None."""
    checksum, _, content = data.rstrip().partition(b" ")
    with suppress(*MALFORMED):
        if int(checksum, 16) == zlib.crc32(content):
            record: dict[str, Any] = json.loads(content)
            return {"sequence": int(record["sequence"]), "state": record["state"]}
    return {"sequence": 0, "state": None}


def _sequence(slot: Mapping[str, Any]) -> int:
    return int(slot["sequence"])


def _unreadable(path: Path, error: object) -> GateRefusedError:
    return GateRefusedError(
        f"{path}: expected the store's copy of its hold, found an unreadable one ({error}). Nothing was "
        "changed. Run as the broker's user, with the release of Storage Engine that made the hold."
    )
