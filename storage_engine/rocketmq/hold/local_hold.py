"""The copy of a hold's state in its store, ``.storage-engine/hold``, which a watch reads.

With it, the segments' original mtimes aren't lost with the journal, and a watch needs neither journal nor
broker. The file has two slots of equal size, which are overwritten in turn. This works on a full disk, too,
and an interrupted write leaves the other slot intact.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from storage_engine.core import durable
from storage_engine.core.durable import DIRECTORY, WAIT_SECONDS, locked, own_directory
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.core.untrusted import MALFORMED, read_file
from storage_engine.exceptions import BadInputError, ChangedUnderUsError, CorruptFileError, GateRefusedError
from storage_engine.model.hold import Drift, HoldMemory
from storage_engine.rocketmq.hold.state import HoldState, SeenFile, Touched, load_state, save_state
from storage_engine.same_bytes.own_acts import Acting, own_acts

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
    """Set mtimes in this order, durably. The original mtimes are recorded before.

    :param root: the store's root, which has the record of this package's own acts.
    :param wanted: files, each with its new mtime in nanoseconds.
    :return: the saved state of the hold.
    :raises GateRefusedError: a file's mtime may not be set, or the file system doesn't keep it. Mtimes that
        were set before are recorded.
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
    keeps its mtime if another program has replaced or touched it since then.

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
    """Restore all files' original mtimes. A watch no longer mends their fence.

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
    """Return whether the file has an mtime that it can have if no other program touched it."""
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


NAME: Final = "hold"
_LOCK: Final = "hold-record.lock"
_SLOT_BYTES: Final = 16 * 1024
_MAX_BYTES: Final = 16 << 20
"""Largest size of both slots, enough for a fence of tens of thousands of segments."""


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
    path = root / DIRECTORY / NAME
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
    path = root / DIRECTORY / NAME
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
        durable.write_file(NAME, line.ljust(size) + b" " * size, dir_fd=directory, shared=True)
        return
    # Keep the newest slot: this write may be interrupted.
    older = 1 - sequences.index(max(sequences))
    with durable.opened(NAME, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory) as descriptor:
        os.pwrite(descriptor, line.ljust(size), older * size)
        os.fsync(descriptor)


@dataclass(frozen=True, slots=True)
class HoldMemories:
    """A :class:`storage_engine.model.hold.HoldMemory` in the journal, with a copy in the store.

    :param journal: the journal's memory, which counts where the two differ.
    """

    journal: HoldMemory
    root: Path

    def load(self) -> Mapping[str, Any] | None:
        """Return the journal's state, with segments added that a watch has fenced since then.

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
    """Return the store's copy of a hold that is in no journal, with segments that still have its mtimes.

    :raises GateRefusedError: the copy can't be read.
    """
    local = read_local(root)
    return local and replace(local, touched=tuple(item for item in local.touched if is_ours(item)))


def _read(directory: int) -> bytes:
    return read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=directory)


def _slots(data: bytes) -> tuple[dict[str, Any], ...]:
    size = len(data) // 2
    return _slot(data[:size]), _slot(data[size:])


def _slot(data: bytes) -> dict[str, Any]:
    """Return the content of a slot. Its sequence is 0 if it has no complete record."""
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
