"""The fence: one segment whose mtime keeps itself and all younger ones. And how mtimes are set so that no
kill loses the first one.

A broker deletes from the oldest segment on and stops at the first whose mtime + fileReservedTime hasn't
passed (MappedFileQueue#deleteExpiredFileByTime). It reads the mtime at every pass. So the first segment that
must stay gets the mtime by which it expires when the hold is to end by itself; nothing has to run for that.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError
from storage_engine.model.hold import HoldMemory
from storage_engine.rocketmq.beside.hold_state import Found, HoldState, SeenFile, Touched, save_state

HOUR_MS = 3_600_000
_MS_NS = 1_000_000
_SECOND_MS = 1000


class SegmentGoneError(GateRefusedError):
    """A segment went between the moment it was seen and the moment its mtime was to be set."""


@dataclass(frozen=True, slots=True)
class Fence:
    """:param file: the segment; None: only the active one is left, which no broker deletes.
    :param mtime_ns: what it should have.
    :param ends_at_ms: when it, or what is left, can go by the broker's own rules.
    """

    file: SeenFile | None
    mtime_ns: int
    ends_at_ms: int


def first_that_stays(found: Found, releasing: Collection[int] = ()) -> SeenFile | None:
    """The oldest segment that must stay, if a fence can be put on it.

    What lies below the broker's min offset it has given up already: no mtime holds that
    (MappedFileQueue#retryDeleteFirstFile).

    :param releasing: base offsets of the segments that are let go.
    :return: None where it is the active segment, to which the broker writes, or there is none.
    """
    start = max((found.min_offset, *(offset + 1 for offset in releasing)))
    file = next((file for file in found.files if file.base_offset >= start), None)
    return file if file is not None and file.end_offset <= found.max_offset else None


def lease_mtime_ns(now_ms: int, hold_hours: int, reserved_hours: int) -> int:
    """The mtime of a segment that the broker may delete once ``hold_hours`` have passed.

    A whole second, rounded up: some file systems, and Java 8, keep no more.
    """
    mtime_ms = now_ms + (hold_hours - reserved_hours) * HOUR_MS
    return -(-mtime_ms // _SECOND_MS) * _SECOND_MS * _MS_NS


def expires_at_ms(mtime_ns: int, reserved_hours: int) -> int:
    """When a broker takes a file for expired (MappedFileQueue#deleteExpiredFileByTime)."""
    return mtime_ns // _MS_NS + reserved_hours * HOUR_MS


def original_mtime_ns(state: HoldState | None, file: SeenFile) -> int:
    """What a file's mtime was before we touched it for the first time."""
    touched = None if state is None else state.touched_at(file.base_offset)
    return file.mtime_ns if touched is None or touched.inode != file.inode else touched.original_mtime_ns


def fence(found: Found, state: HoldState | None, hold_hours: int, reserved_hours: int) -> Fence:
    """Where the fence belongs now, and with which mtime: never an older one than the segment's own.

    A lease of which more than half is left is kept as it is.
    """
    file = first_that_stays(found, () if state is None else state.releasing)
    if file is None:
        # What is sealed next was written to just now.
        return Fence(None, 0, found.at_ms + reserved_hours * HOUR_MS)
    kept = None if state is None else _lease_of(state, file)
    if kept is not None:
        left_ms = expires_at_ms(kept, reserved_hours) - found.at_ms
        if not is_due(left_ms, hold_hours) and left_ms <= (hold_hours * HOUR_MS + _SECOND_MS):
            return Fence(file, kept, expires_at_ms(kept, reserved_hours))
    original = original_mtime_ns(state, file)
    mtime_ns = max(original, lease_mtime_ns(found.at_ms, hold_hours, reserved_hours))
    return Fence(file, mtime_ns, expires_at_ms(mtime_ns, reserved_hours))


def is_due(left_ms: int, hold_hours: int) -> bool:
    """Whether a hold of which so much is left is to be renewed: less than half of it."""
    return 2 * left_ms < hold_hours * HOUR_MS


def _lease_of(state: HoldState, file: SeenFile) -> int | None:
    """The mtime that our fence on this file has, if it is there untouched."""
    touched = state.touched_at(file.base_offset)
    ours = touched is not None and touched.inode == file.inode and touched.mtime_ns == file.mtime_ns
    return file.mtime_ns if ours and state.fence_offset == file.base_offset else None


def set_mtimes(memory: HoldMemory, state: HoldState, wanted: Sequence[tuple[SeenFile, int]]) -> HoldState:
    """Set mtimes in this order, durably, with the first ones remembered before.

    :param wanted: files with the mtime in nanoseconds that each shall have.
    :return: the state as it is remembered now.
    :raises GateRefusedError: a file's mtime may not be set, or isn't kept; what was set before is remembered.
    :raises SegmentGoneError: a file is gone by now.
    :raises ChangedUnderUsError: another file lies under the path now; it was not touched.
    """
    if not wanted:
        return state
    meant = {
        file.base_offset: Touched(
            file.base_offset,
            file.path,
            file.inode,
            original_mtime_ns(state, file),
            mtime_ns,
            before_mtime_ns=file.mtime_ns,
        )
        for file, mtime_ns in wanted
    }
    state = _with_touched(state, meant.values())
    save_state(memory, state)
    done = [_set_mtime(meant[file.base_offset]) for file, _ in wanted]
    state = _with_touched(state, done)
    save_state(memory, state)
    return state


def put_back(memory: HoldMemory, state: HoldState, base_offsets: Collection[int]) -> HoldState:
    """Give files their first mtimes again, oldest first, and forget that they were touched.

    A fence is the youngest of them: it stands until what lies before it is as it was.

    A file that is gone, or another one by now, is only forgotten; one that somebody else has touched since
    keeps what it was given.

    :return: the state as it is remembered now.
    :raises GateRefusedError: a file's mtime may not be set.
    """
    chosen = [touched for touched in state.touched if touched.base_offset in base_offsets]
    if not chosen:
        return state
    for touched in chosen:
        if is_ours(touched):
            _set_mtime(replace(touched, mtime_ns=touched.original_mtime_ns))
    left = tuple(touched for touched in state.touched if touched.base_offset not in base_offsets)
    state = replace(state, touched=left)
    save_state(memory, state)
    return state


def is_ours(touched: Touched) -> bool:
    """Whether the file still has the mtime that we gave it, or would just have given."""
    try:
        stat = Path(touched.path).stat()
    except FileNotFoundError:
        return False
    if stat.st_ino != touched.inode:
        return False
    return any(same_ms(stat.st_mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns)


def same_ms(left_ns: int, right_ns: int) -> bool:
    """Whether two mtimes are one to a broker, which reads milliseconds."""
    return left_ns // _MS_NS == right_ns // _MS_NS


def _with_touched(state: HoldState, touched: Iterable[Touched]) -> HoldState:
    by_offset = {item.base_offset: item for item in (*state.touched, *touched)}
    return replace(state, touched=tuple(item for _, item in sorted(by_offset.items())))


def _set_mtime(meant: Touched) -> Touched:
    """Set one file's mtime, flush it, and look whether it is kept."""
    try:
        fd = os.open(meant.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SegmentGoneError(
            f"{meant.path}: expected the log's first segments to stay while the hold is put there, found "
            "that they are being deleted. Run it again when the broker is through with that."
        ) from error
    except OSError as error:
        raise _refused(meant, error) from error
    try:
        before = os.fstat(fd)
        if before.st_ino != meant.inode:
            raise ChangedUnderUsError(
                f"{meant.path}: expected the file with inode {meant.inode}, found inode {before.st_ino}: "
                "somebody replaced it. It was not touched. Stop who does."
            )
        os.utime(fd, ns=(before.st_atime_ns, meant.mtime_ns))
        try:
            os.fsync(fd)
        except OSError:
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise
        after = os.fstat(fd)
        if not same_ms(after.st_mtime_ns, meant.mtime_ns):
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
            raise GateRefusedError(
                f"{meant.path}: expected its file system to keep the mtime {meant.mtime_ns} ns, found "
                f"{after.st_mtime_ns} ns: no hold is possible there, since a broker goes by mtimes. Move the "
                "store to a local file system such as ext4 or XFS, or stop the broker and work offline."
            )
    except OSError as error:
        raise _refused(meant, error) from error
    finally:
        os.close(fd)
    return replace(meant, ctime_ns=after.st_ctime_ns)


def _refused(meant: Touched, error: OSError) -> GateRefusedError:
    owner = ""
    if isinstance(error, PermissionError):
        owner = (
            " A file's mtime may be set by its owner only: run as the broker's user"
            f"{_owner_of(meant.path)}, or give this process CAP_FOWNER and read access."
        )
    return GateRefusedError(
        f"{meant.path}: expected to set its mtime, found {error.strerror or error}: the store can't be held. "
        f"It was not touched.{owner or ' Mount its file system writable.'}"
    )


def _owner_of(path: str) -> str:
    try:
        return f" (uid {Path(path).stat().st_uid}; this process has uid {os.geteuid()})"
    except OSError:
        return ""
