"""The hold as it lies with the store, ``.storage-engine/hold``: what the journal has, and a watch reads.

A lost journal doesn't take the segments' first mtimes with it, and whoever watches the fence needs neither
journal nor broker. Two slots of one size are written in turn and in place: that works on a full disk too, and
a write that is cut short leaves the other slot.
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
    """A segment went between the moment it was seen and the moment its mtime was to be set."""


def original_mtime_ns(state: HoldState | None, file: SeenFile) -> int:
    """Return a file's mtime before our first touch."""
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
    """Return whether the file has the mtime that we gave it, or were about to give."""
    try:
        stat = Path(touched.path).lstat()
    except FileNotFoundError:
        return False
    if stat.st_ino != touched.inode:
        return False
    return any(same_ms(stat.st_mtime_ns, mtime_ns) for mtime_ns in touched.possible_mtimes_ns)


def same_ms(left_ns: int, right_ns: int) -> bool:
    """Return whether two mtimes are equal for a broker, which reads milliseconds."""
    return left_ns // _MS_NS == right_ns // _MS_NS


def _with_touched(state: HoldState, touched: Iterable[Touched]) -> HoldState:
    by_offset = {item.base_offset: item for item in (*state.touched, *touched)}
    return replace(state, touched=tuple(item for _, item in sorted(by_offset.items())))


def _set_mtime(meant: Touched) -> Touched:
    with durable.opened(meant.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) as fd:
        before = os.fstat(fd)
        if before.st_ino != meant.inode:
            raise ChangedUnderUsError(
                f"{meant.path}: expected the file with inode {meant.inode}, found inode {before.st_ino}: "
                "another program replaced it. It was not touched. Stop the program that does it."
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


NAME: Final = "hold"
_LOCK: Final = "hold-record.lock"
_SLOT_BYTES: Final = 16 * 1024
_MAX_BYTES: Final = 16 << 20
"""Of both slots: a fence of tens of thousands of segments."""


@contextmanager
def settled(root: Path, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Keep the local hold from being written until the block ends: what it says of the fence stays true.

    :return: the descriptor of our directory.
    :raises TimeoutError: another process does so for longer.
    :raises OSError: that can't be written.
    """
    with locked(root, _LOCK, wait_seconds=wait_seconds) as directory:
        yield directory


def read_local(root: Path) -> HoldState | None:
    """Return the hold that a store's own directory has.

    None: there is none, or a damaged one; then the hold in the journal counts.

    :raises GateRefusedError: there is one that may not be read, or that this release can't read.
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
    """Replace the hold that lies with a store, durably; None: there is none any more.

    Without space there is none either: the journal has it, and an old one would misguide a watch.

    :raises OSError: it can't be written; what was there before is there.
    """
    path = root / DIRECTORY / NAME
    if state is None and not path.exists():
        return
    try:
        with settled(root) as directory:
            write_settled(directory, state)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        path.unlink(missing_ok=True)


def write_settled(directory: int, state: HoldState | None) -> None:
    """Replace the hold that lies with a store, for who has it :func:`settled`.

    :param directory: ours, by its descriptor.
    :raises OSError: it can't be written; what was there before is there.
    """
    try:
        data = _read(directory)
    except FileNotFoundError:
        data = b""
    sequence = max(map(_sequence, _slots(data)), default=0) + 1
    # Of no use here: which segments there were, and what was reported, is for who has the journal.
    said = None if state is None else to_jsonable(replace(state, segments=(), reported=()))
    content = json.dumps({"sequence": sequence, "state": said}).encode()
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
    """Make the file with slots that this line fits into."""
    size = max(_SLOT_BYTES, 1 << len(line).bit_length())
    durable.write_file(NAME, line.ljust(size) + b" " * size, dir_fd=directory, shared=True)


@dataclass(frozen=True, slots=True)
class HoldMemories:
    """Implements :class:`storage_engine.model.hold.HoldMemory`: the journal's, with a copy in the store.

    :param journal: counts wherever both say something.
    """

    journal: HoldMemory
    root: Path

    def load(self) -> Mapping[str, Any] | None:
        """Return the journal's state, with the segments that a watch has fenced since.

        :raises GateRefusedError: what lies in the store can't be read.
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
        """Durable in both, the journal first: who comes after a kill goes by that.

        :raises GateRefusedError: the store's directory can't be written.
        """
        self.journal.save(state)
        known = None if state is None else from_jsonable(HoldState, state, "the hold")
        try:
            write_local(self.root, known)
        except OSError as error:
            raise GateRefusedError(
                f"{self.root / DIRECTORY}: expected to write down the hold beside the store, found "
                f"{error.strerror}. The journal has it; no file was touched. Run as the broker's user, with "
                "its file system mounted writable, and free some space if it is full."
            ) from error


def with_fenced_since(saved: HoldState, local: HoldState) -> HoldState:
    """Add the segments that a watch has fenced; those have the mtimes that it gave them still."""
    known = {(touched.base_offset, touched.inode) for touched in saved.touched}
    more = [one for one in local.touched if (one.base_offset, one.inode) not in known and is_ours(one)]
    if not more:
        return saved
    touched = {one.base_offset: one for one in (*saved.touched, *more)}
    fence = {*saved.fence, *(one.base_offset for one in more)}
    return replace(
        saved, touched=tuple(one for _, one in sorted(touched.items())), fence=tuple(sorted(fence))
    )


def left_behind(root: Path) -> HoldState | None:
    """Return segments that still have the times of a hold that no journal knows any more.

    :raises GateRefusedError: it can't be read.
    """
    local = read_local(root)
    if local is None:
        return None
    return replace(local, touched=tuple(one for one in local.touched if is_ours(one)))


def _read(directory: int) -> bytes:
    return read_file(Path(NAME), _MAX_BYTES, follow_links=False, dir_fd=directory)


def _slots(data: bytes) -> Iterator[dict[str, Any]]:
    size = len(data) // 2
    for slot in (data[:size], data[size:]):
        if (found := _slot(slot)) is not None:
            yield found


def _slot(data: bytes) -> dict[str, Any] | None:
    """Return the content of a slot; None: it has nothing whole."""
    checksum, _, content = data.rstrip().partition(b" ")
    with suppress(*MALFORMED):
        if int(checksum, 16) == zlib.crc32(content):
            found: dict[str, Any] = json.loads(content)
            return {"sequence": int(found["sequence"]), "state": found["state"]}
    return None


def _sequence(slot: Mapping[str, Any]) -> int:
    return int(slot["sequence"])


def _sequence_of(data: bytes) -> int:
    found = _slot(data)
    return 0 if found is None else _sequence(found)


def _unreadable(path: Path, why: object) -> GateRefusedError:
    return GateRefusedError(
        f"{path}: expected the hold that lies with the store, found what can't be read ({why}). Nothing was "
        "changed. Run as the broker's user, with the release of Storage Engine that made the hold."
    )
