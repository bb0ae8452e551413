"""The fence: the oldest segments, with mtimes that keep them and all younger ones. And how mtimes are set so
that no kill loses the first one.

A broker deletes from the oldest segment on and stops at the first whose mtime + fileReservedTime hasn't
passed (MappedFileQueue#deleteExpiredFileByTime). It reads the mtime at every pass. So the segments that must
stay get an mtime in the future: the moment at which the hold is to end. Until then no fileReservedTime from 0
on makes them old, whoever sets it; nothing has to run for that.

One such segment would do, until somebody touches or removes it. A pass deletes deleteFileBatchMax segments
at most; the fence has one more, so that a pass through a gap in it doesn't come to its end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError
from storage_engine.model.hold import HoldMemory
from storage_engine.rocketmq.live.state import (
    BATCH_MAX,
    Found,
    HoldState,
    SeenFile,
    Touched,
    save_state,
)
from storage_engine.same_bytes.own_acts import Acting, own_acts

HOUR_MS = 3_600_000
_MS_NS = 1_000_000
_SECOND_MS = 1000
_DEFAULT_BATCH_MAX: Final = 10
"""Of releases that have no such setting (MappedFileQueue.DELETE_FILES_BATCH_MAX)."""


class SegmentGoneError(GateRefusedError):
    """A segment went between the moment it was seen and the moment its mtime was to be set."""


@dataclass(frozen=True, slots=True)
class Fence:
    """:param mtimes_ns: its segments, oldest first, with the mtime that each should have; none: only the
        active one is left, which no broker deletes.
    :param ends_at_ms: until when it stands, whatever fileReservedTime becomes, from 0 on.
    :param deletes_from_ms: when it, or what is left, can go by the broker's rules as they are now.
    """

    mtimes_ns: tuple[tuple[SeenFile, int], ...]
    ends_at_ms: int
    deletes_from_ms: int

    @property
    def offset(self) -> int:
        """Base offset of its first segment; -1: it has none."""
        return self.mtimes_ns[0][0].base_offset if self.mtimes_ns else -1


def fence_count(settings: Mapping[str, str]) -> int:
    """Return how many segments a fence has: one more than this broker deletes in a pass."""
    try:
        batch_max = int(settings.get(BATCH_MAX, _DEFAULT_BATCH_MAX))
    except ValueError:
        batch_max = _DEFAULT_BATCH_MAX
    # It deletes one before it looks whether that was too many.
    return max(batch_max, 1) + 1


def first_that_stay(found: Found, releasing: Collection[int] = (), count: int = 1) -> tuple[SeenFile, ...]:
    """Return the oldest segments that must stay, as far as a fence can be put on them.

    What lies below the broker's min offset it has given up already: no mtime holds that
    (MappedFileQueue#retryDeleteFirstFile). The active segment is none of them: the broker writes to it.

    :param releasing: base offsets of the segments that are deleted.
    :param count: so many at most.
    """
    start = max((found.min_offset, *(offset + 1 for offset in releasing)))
    sealed = (f for f in found.files if f.base_offset >= start and f.end_offset <= found.max_offset)
    return tuple(sealed)[:count]


def lease_mtime_ns(now_ms: int, hold_hours: int, reserved_hours: int) -> int:
    """Return the mtime of a segment that the broker must not delete before ``hold_hours`` have passed.

    A negative fileReservedTime, which a broker takes as it is, makes files older; the mtime makes up for it.
    A whole second, rounded up: some file systems, and Java 8, keep no more.
    """
    mtime_ms = now_ms + (hold_hours + max(-reserved_hours, 0)) * HOUR_MS
    return -(-mtime_ms // _SECOND_MS) * _SECOND_MS * _MS_NS


def stands_until_ms(mtime_ns: int, reserved_hours: int) -> int:
    """Return until when no broker takes a file for expired, whatever fileReservedTime becomes, from 0 on."""
    return mtime_ns // _MS_NS + min(reserved_hours, 0) * HOUR_MS


def expires_at_ms(mtime_ns: int, reserved_hours: int) -> int:
    """Return when a broker takes a file for expired (MappedFileQueue#deleteExpiredFileByTime)."""
    return mtime_ns // _MS_NS + reserved_hours * HOUR_MS


def original_mtime_ns(state: HoldState | None, file: SeenFile) -> int:
    """Return what a file's mtime was before we touched it for the first time."""
    touched = None if state is None else state.touched_at(file.base_offset)
    return file.mtime_ns if touched is None or touched.inode != file.inode else touched.original_mtime_ns


def fence(found: Found, state: HoldState | None, hold_hours: int, reserved_hours: int) -> Fence:
    """Return where the fence belongs now, and with which mtimes: never older ones than the segments' own.

    A lease of which more than half is left is kept as it is.
    """
    releasing = () if state is None else state.releasing
    files = first_that_stay(found, releasing, fence_count(found.settings))
    mtimes_ns = tuple((file, _mtime_ns(found, state, file, hold_hours, reserved_hours)) for file in files)
    if not mtimes_ns:
        # What is sealed next was written to just now.
        expires_ms = found.at_ms + reserved_hours * HOUR_MS
        return Fence((), expires_ms, expires_ms)
    # A pass that deletes the first of them has come to the next.
    first_ns = min(mtime_ns for _, mtime_ns in mtimes_ns)
    return Fence(
        mtimes_ns, stands_until_ms(first_ns, reserved_hours), expires_at_ms(first_ns, reserved_hours)
    )


def is_due(left_ms: int, hold_hours: int) -> bool:
    """Return whether a hold of which so much is left is to be renewed: less than half of it."""
    return 2 * left_ms < hold_hours * HOUR_MS


def _mtime_ns(
    found: Found, state: HoldState | None, file: SeenFile, hold_hours: int, reserved_hours: int
) -> int:
    if state is not None and _has_lease(state, file):
        left_ms = stands_until_ms(file.mtime_ns, reserved_hours) - found.at_ms
        if not is_due(left_ms, hold_hours) and left_ms <= hold_hours * HOUR_MS + _SECOND_MS:
            return file.mtime_ns
    lease_ns = lease_mtime_ns(found.at_ms, hold_hours, reserved_hours)
    return max(original_mtime_ns(state, file), lease_ns)


def _has_lease(state: HoldState, file: SeenFile) -> bool:
    """Return whether a file is of our fence, and untouched."""
    touched = state.touched_at(file.base_offset)
    return touched is not None and touched.inode == file.inode and touched.mtime_ns == file.mtime_ns


def set_mtimes(
    root: Path, memory: HoldMemory, state: HoldState, wanted: Sequence[tuple[SeenFile, int]]
) -> HoldState:
    """Set mtimes in this order, durably, with the first ones remembered before.

    :param root: the store's, which has the record of what we did ourselves.
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
    with own_acts(root) as acts:
        done = [set_mtime(acts, meant[file.base_offset]) for file, _ in wanted]
    state = _with_touched(state, done)
    save_state(memory, state)
    return state


def put_back(root: Path, memory: HoldMemory, state: HoldState, base_offsets: Collection[int]) -> HoldState:
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
    with own_acts(root) as acts:
        for touched in chosen:
            if is_ours(touched):
                with suppress(SegmentGoneError):  # deleted by its own age meanwhile
                    set_mtime(acts, replace(touched, mtime_ns=touched.original_mtime_ns))
    left = tuple(touched for touched in state.touched if touched.base_offset not in base_offsets)
    state = replace(state, touched=left)
    save_state(memory, state)
    return state


def put_all_back(root: Path, memory: HoldMemory, state: HoldState) -> HoldState:
    """Give all files their first mtimes again; from now on no watch takes them for a fence.

    :raises GateRefusedError: a file's mtime may not be set.
    """
    state = replace(state, fence=())
    save_state(memory, state)
    return put_back(root, memory, state, [touched.base_offset for touched in state.touched])


def is_ours(touched: Touched) -> bool:
    """Return whether the file still has the mtime that we gave it, or would just have given."""
    try:
        stat = Path(touched.path).lstat()
    except FileNotFoundError:
        return False
    if stat.st_ino != touched.inode:
        return False
    return any(same_ms(stat.st_mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns)


def same_ms(left_ns: int, right_ns: int) -> bool:
    """Return whether two mtimes are one to a broker, which reads milliseconds."""
    return left_ns // _MS_NS == right_ns // _MS_NS


def _with_touched(state: HoldState, touched: Iterable[Touched]) -> HoldState:
    by_offset = {item.base_offset: item for item in (*state.touched, *touched)}
    return replace(state, touched=tuple(item for _, item in sorted(by_offset.items())))


def set_mtime(acts: Acting, meant: Touched) -> Touched:
    """Set one file's mtime, flush it, and look whether it is kept.

    :raises GateRefusedError: it may not be set, or isn't kept.
    :raises SegmentGoneError: the file is gone.
    :raises ChangedUnderUsError: another file lies under its path; it was not touched.
    """
    try:
        with acts.on(meant.path, mtime_ns=meant.mtime_ns):
            return _set_mtime(meant)
    except FileNotFoundError as error:
        raise SegmentGoneError(
            f"{meant.path}: expected the log's first segments to stay while the hold is put there, found "
            "that they are being deleted. Run it again when the broker is through with that."
        ) from error
    except OSError as error:
        raise _refused(meant, error) from error


def _set_mtime(meant: Touched) -> Touched:
    fd = os.open(meant.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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
