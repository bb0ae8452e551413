"""The record of a hold in a store, ``.storage-engine/hold``: a copy of the journal's, which a watch reads.

So the segments' original mtimes aren't lost with the journal, and a watch needs neither journal nor broker.
The file has two slots of equal size, which are written in turn and in place. This works on a full disk, too,
and an interrupted write leaves the other slot whole.
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
    """Return a file's mtime before we changed it for the first time."""
    touched = None if state is None else state.touched_at(file.base_offset)
    return file.mtime_ns if touched is None or touched.inode != file.inode else touched.original_mtime_ns


def set_mtimes(
    root: Path, memory: HoldMemory, state: HoldState, wanted: Sequence[tuple[SeenFile, int]]
) -> HoldState:
    """Set mtimes in this order, durably. The original mtimes are recorded before.

    :param root: the store's root, which has the record of our own acts.
    :param wanted: files, each with its new mtime in nanoseconds.
    :return: the hold's state as it is saved now.
    :raises GateRefusedError: a file's mtime may not be set, or the file system doesn't keep it. Mtimes set
        before are recorded.
    :raises SegmentGoneError: a file is gone by now.
    :raises ChangedUnderUsError: another file is at the path now; it was not touched.
    """
    if not wanted:
        return state
    planned = {
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
    state = _with_touched(state, planned.values())
    save_state(memory, state)
    with own_acts(root) as acts:
        done = [set_mtime(acts, planned[file.base_offset]) for file, _ in wanted]
    state = _with_touched(state, done)
    save_state(memory, state)
    return state


def put_back(root: Path, memory: HoldMemory, state: HoldState, base_offsets: Collection[int]) -> HoldState:
    """Restore files' original mtimes, oldest first, and forget that they were touched.

    The fence is the youngest of these files, so it stands until all older files are restored.

    A file that is gone or was replaced is only forgotten. A file that another program has touched since then
    keeps its mtime.

    :return: the hold's state as it is saved now.
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
    remaining = tuple(touched for touched in state.touched if touched.base_offset not in base_offsets)
    state = replace(state, touched=remaining)
    save_state(memory, state)
    return state


def put_all_back(root: Path, memory: HoldMemory, state: HoldState) -> HoldState:
    """Restore all files' original mtimes. From now on they are no fence for a watch.

    :raises GateRefusedError: a file's mtime may not be set.
    """
    state = replace(state, fence=(), fence_count=0)
    save_state(memory, state)
    return put_back(root, memory, state, [touched.base_offset for touched in state.touched])


def set_mtime(acts: Acting, meant: Touched) -> Touched:
    """Set one file's mtime, flush it, and check whether the file system keeps it.

    :raises GateRefusedError: the mtime may not be set, or isn't kept.
    :raises SegmentGoneError: the file is gone.
    :raises ChangedUnderUsError: another file is at its path; it was not touched.
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
        raise _refusal(meant, error) from error


def is_ours(touched: Touched) -> bool:
    """Return whether the file has an mtime that it can have if only we touched it."""
    try:
        stat = Path(touched.path).lstat()
    except FileNotFoundError:
        return False
    if stat.st_ino != touched.inode:
        return False
    return any(same_ms(stat.st_mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns)


def same_ms(left_ns: int, right_ns: int) -> bool:
    """Return whether two mtimes are equal in milliseconds, which is what a broker reads."""
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
                "another program replaced it. It was not touched. Stop the program that does it."
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
                f"{after.st_mtime_ns} ns: no hold is possible there, since a broker goes by mtimes. Move the "
                "store to a local file system such as ext4 or XFS, or stop the broker and work offline."
            )
    return replace(touched, ctime_ns=after.st_ctime_ns)


def _refusal(file: Touched, error: OSError) -> GateRefusedError:
    owner = ""
    if isinstance(error, PermissionError):
        owner = (
            " A file's mtime may be set by its owner only: run as the broker's user"
            f"{_owner_of(file.path)}, or give this process CAP_FOWNER and read access."
        )
    return GateRefusedError(
        f"{file.path}: expected to set its mtime, found {error.strerror or error}: the store can't be held. "
        f"It was not touched.{owner or ' Mount its file system writable.'}"
    )


def _owner_of(path: str) -> str:
    try:
        return f" (uid {Path(path).stat().st_uid}; this process has uid {os.geteuid()})"
    except OSError:
        return ""


NAME: Final = "hold"
_LOCK: Final = "hold-record.lock"
_SLOT_BYTES: Final = 16 * 1024
_MAX_BYTES: Final = 16 << 20
"""Most bytes of both slots, enough for a fence of tens of thousands of segments."""


@contextmanager
def lock_settled(root: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Lock the local hold until the block ends, so that its record of the fence stays true.

    :return: the descriptor of our directory.
    :raises TimeoutError: another process keeps the lock for longer.
    :raises OSError: our directory can't be written.
    """
    with locked(root, _LOCK, wait_seconds=wait_seconds) as directory:
        yield directory


def read_local(root: Path) -> HoldState | None:
    """Return the record of a hold in a store's own directory.

    None: there is none, or it is damaged, and the hold in the journal counts.

    :raises GateRefusedError: the record may not be read, or this release can't read it.
    """
    path = root / DIRECTORY / NAME
    try:
        with own_directory(root) as directory:
            data = _read(directory)
    except FileNotFoundError:
        return None
    except CorruptFileError as error:
        raise GateRefusedError(
            f"{path}: expected the hold that lies with the store, found something else ({error}) Remove "
            "it: the journal has the hold, and the next renewal writes it again."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    newest = max(_slots(data), key=_sequence, default=None)
    if newest is None or newest["state"] is None:
        return None
    try:
        return from_jsonable(HoldState, newest["state"], str(path))
    except BadInputError as error:
        raise _unreadable(path, error) from error


def write_local(root: Path, state: HoldState | None) -> None:
    """Replace the record of a hold in a store's directory, durably; None: remove the hold from it.

    On a full disk the record is removed: the journal has the hold, and an old record would mislead a watch.

    :raises OSError: the record can't be written; the previous one is still there.
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
    """Replace the record of a hold in a store's directory, for a caller that has it :func:`lock_settled`.

    :param directory: descriptor of our directory.
    :raises OSError: the record can't be written; the previous one is still there.
    """
    try:
        data = _read(directory)
    except FileNotFoundError:
        data = b""
    sequence = max(map(_sequence, _slots(data)), default=0) + 1
    # Of no use here: which segments there were, and what was reported, is for who has the journal.
    record = None if state is None else to_jsonable(replace(state, segments=(), reported=()))
    content = json.dumps({"sequence": sequence, "state": record}).encode()
    line = f"{zlib.crc32(content):08x} ".encode() + content + b"\n"
    size = len(data) // 2
    if len(line) > size:
        _make(directory, line)
        return
    # Never over the newest one: cut short, this write would leave none.
    newest = max(range(2), key=lambda slot: _sequence_of(data[slot * size : (slot + 1) * size]))
    with durable.opened(NAME, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory) as descriptor:
        os.pwrite(descriptor, line.ljust(size), (1 - newest) * size)
        os.fsync(descriptor)


def _make(directory: int, line: bytes) -> None:
    """Create the file with slots that are large enough for this line."""
    size = max(_SLOT_BYTES, 1 << len(line).bit_length())
    durable.write_file(NAME, line.ljust(size) + b" " * size, dir_fd=directory, shared=True)


@dataclass(frozen=True, slots=True)
class HoldMemories:
    """Implements :class:`storage_engine.model.hold.HoldMemory` by the journal's, with a copy in the store.

    :param journal: the journal's memory, which counts where the two differ.
    """

    journal: HoldMemory
    root: Path

    def load(self) -> Mapping[str, Any] | None:
        """Return the journal's state, with segments added that a watch has fenced since then.

        :raises GateRefusedError: the record in the store can't be read.
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
        """Save the state durably in both places, first in the journal, on which a run after a kill relies.

        :raises GateRefusedError: the store's directory can't be written.
        """
        self.journal.save(state)
        hold = None if state is None else from_jsonable(HoldState, state, "the hold")
        try:
            write_local(self.root, hold)
        except OSError as error:
            raise GateRefusedError(
                f"{self.root / DIRECTORY}: expected to write down the hold beside the store, found "
                f"{error.strerror}. The journal has it; no file was touched. Run as the broker's user, with "
                "its file system mounted writable, and free some space if it is full."
            ) from error


def with_fenced_since(saved: HoldState, local: HoldState) -> HoldState:
    """Add segments that a watch has fenced, if they still have the mtimes that the watch gave them."""
    keys = {(touched.base_offset, touched.inode) for touched in saved.touched}
    more = [item for item in local.touched if (item.base_offset, item.inode) not in keys and is_ours(item)]
    if not more:
        return saved
    touched = {item.base_offset: item for item in (*saved.touched, *more)}
    fence = {*saved.fence, *(item.base_offset for item in more)}
    return replace(
        saved, touched=tuple(item for _, item in sorted(touched.items())), fence=tuple(sorted(fence))
    )


def left_behind(root: Path) -> HoldState | None:
    """Return the local record of a hold that is in no journal, with the segments that still have its mtimes.

    :raises GateRefusedError: the record can't be read.
    """
    local = read_local(root)
    if local is None:
        return None
    return replace(local, touched=tuple(item for item in local.touched if is_ours(item)))


def _read(directory: int) -> bytes:
    return read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=directory)


def _slots(data: bytes) -> Iterator[dict[str, Any]]:
    size = len(data) // 2
    for slot in (data[:size], data[size:]):
        if (record := _slot(slot)) is not None:
            yield record


def _slot(data: bytes) -> dict[str, Any] | None:
    """Return the content of a slot; None: the slot has no complete record."""
    checksum, _, content = data.rstrip().partition(b" ")
    with suppress(*MALFORMED):
        if int(checksum, 16) == zlib.crc32(content):
            record: dict[str, Any] = json.loads(content)
            return {"sequence": int(record["sequence"]), "state": record["state"]}
    return None


def _sequence(slot: Mapping[str, Any]) -> int:
    return int(slot["sequence"])


def _sequence_of(data: bytes) -> int:
    record = _slot(data)
    return 0 if record is None else _sequence(record)


def _unreadable(path: Path, error: object) -> GateRefusedError:
    return GateRefusedError(
        f"{path}: expected the hold that lies with the store, found what can't be read ({error}). Nothing "
        "was changed. Run as the broker's user, with the release of Storage Engine that made the hold."
    )
