"""Set segments' mtimes so that no kill loses the first ones, and give these back."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from storage_engine.exceptions import ChangedUnderUsError, GateRefusedError
from storage_engine.model.hold import HoldMemory
from storage_engine.rocketmq.hold.state import HoldState, SeenFile, Touched, save_state
from storage_engine.same_bytes.own_acts import Acting, own_acts

_MS_NS: Final = 1_000_000


class SegmentGoneError(GateRefusedError):
    """A segment went between the moment it was seen and the moment its mtime was to be set."""


def original_mtime_ns(state: HoldState | None, file: SeenFile) -> int:
    """Return what a file's mtime was before we touched it for the first time."""
    touched = None if state is None else state.touched_at(file.base_offset)
    return file.mtime_ns if touched is None or touched.inode != file.inode else touched.original_mtime_ns


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
    state = replace(state, fence=(), fence_count=0)
    save_state(memory, state)
    return put_back(root, memory, state, [touched.base_offset for touched in state.touched])


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
