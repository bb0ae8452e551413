"""The files that are archived: the same ones from the moment they were chosen until their copy is proven.

A touch in between is no reason to begin again. What counts is that the bytes that were read are those of the
file as its facts describe it, at the end too: where these moved by another's doing, it is hashed again.
They are read on this host, or where a job says so from the agent on their broker's.

A large segment is never in memory whole: it is read three times, to hash it, to decode it a part after the
other, and to compare it with its copy. The page cache has it by then, mostly. Its times say that nobody wrote
to it meanwhile; a checksum of each block, that the disk gave the bytes which were hashed once more.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from isal import isal_zlib

from storage_engine.exceptions import FileGoneError, ProofError, StoreNotFoundError
from storage_engine.lake.file.agent_files import AgentFiles, files_from
from storage_engine.lake.file.jobs import AgentRun, SegmentJob
from storage_engine.lake.file.staging import sha256_of
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.codec import LoadBytes
from storage_engine.model.proof.receipt import Companion
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts
from storage_engine.same_bytes.trusted_times import settle, times_are_trusted

_BLOCK_BYTES = 1 << 20
"""Read and hashed at a time, so that the hash finds it in the processor's caches."""

WHOLE_BYTES = 128 << 20
"""A segment of at most so many bytes is in memory whole, from being read until its copy is proven."""

_per_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Source:
    """:param data: the file's bytes, or room for them, in memory that serves the thread's next segment too.
    :param sha256: of them, in hex.
    :param facts: of the file before it was read, when every later write had to change them.
    :param files: where parts of it are read again; None: ``data`` has all bytes.
    :param checksums: of each block that is read again, as it was hashed.
    """

    data: memoryview
    sha256: str
    facts: FileFacts
    files: LocalFiles | None = None
    checksums: Sequence[int] = ()

    def loader(self) -> LoadBytes:
        """Return a function that makes parts of ``data`` readable, each behind the one before.

        :raises StorageEngineError: as :func:`read_source` does.
        """
        self.release()
        begin = end = 0

        def load(first: int, last: int) -> None:
            nonlocal begin, end
            if self.files is not None:
                _room().release(begin, first)
                begin, position = first, max(end, first)
                self.files.read_again(self.facts, position, self.data[position:last])
                end = max(end, last)

        return load

    def parts(self, position: int, size_bytes: int) -> Iterator[memoryview]:
        """Yield bytes of the file in order. Each part is valid until the next one is asked for.

        :param position: in the file, of the first of them.
        :raises StorageEngineError: as :func:`read_source` does.
        """
        if self.files is None:
            yield self.data[position : position + size_bytes]
            return
        block, end = memoryview(bytearray(_BLOCK_BYTES)), position + size_bytes
        for number in range(position // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            at = number * _BLOCK_BYTES
            part = block[: len(self.data) - at]
            is_last = at + len(part) >= end == len(self.data)
            self.files.read_again(self.facts, at, part, forgets=is_last)
            if isal_zlib.crc32(part) != self.checksums[number]:
                raise ProofError(
                    f"{self.facts.path}: expected at {at} the {len(part)} bytes that were read before, found "
                    "others: the file was written to meanwhile, or a disk or memory is faulty. Nothing was "
                    "committed or deleted. Make a new plan; if it is refused again, find out which it is."
                )
            yield part[max(position - at, 0) : end - at]

    def release(self) -> None:
        """Give memory back that a large segment took: :meth:`loader` and :meth:`parts` read it again."""
        if self.files is not None:
            _room().release(0, len(self.data))


def read_source(job: SegmentJob) -> Source:
    """Read the whole file.

    :raises FileGoneError: it vanished since it was listed.
    :raises StoreNotFoundError: it can't be seen from this host.
    :raises ProofError: another file lies there, or it is truncated.
    :raises ChangedUnderUsError: another process keeps writing to it.
    """
    files = files_of(job)
    with source_errors(job.path):
        facts = _as_chosen(job.facts, files.settled(job.path))
    data = _source_memory(job.facts.size_bytes)
    again = _read_again(job, files)
    digest, pace = hashlib.sha256(), pace_at(job.bytes_per_second)

    def seen(block: memoryview) -> None:
        digest.update(block)
        pace.spend(len(block))

    checksums: list[int] = []
    with source_errors(job.path):
        if again is None:
            done, found = files.read(job.path, data, seen)
        else:
            done, found, checksums = again.look(job.path, seen)
    _check_read(job.facts, done, found.inode)
    return Source(data, digest.hexdigest(), facts, again, checksums)


def _read_again(job: SegmentJob, files: LocalFiles | AgentFiles) -> LocalFiles | None:
    """Return where parts of a segment are read again; None: it is read once, into memory.

    What comes from another host is, and so is a file whose times don't tell whether it is the same.
    """
    if not isinstance(files, LocalFiles) or job.facts.size_bytes <= WHOLE_BYTES:
        return None
    return files if times_are_trusted(Path(job.path).parent, job.store_root) else None


class LocalFiles:
    """A segment's files on this host's disks."""

    def __init__(self, store_root: str, bytes_per_second: int | None = None) -> None:
        self._root = store_root
        self._pace = pace_at(bytes_per_second)

    def settled(self, path: str) -> FileFacts:
        """Return a file's facts once they say all that was written."""
        return settle(path)

    def facts(self, path: str) -> FileFacts:
        return FileFacts.of(path)

    def own_acts(self, path: str) -> OwnActs:
        """Return the changes that this package itself made to files of the store."""
        return read_own_acts(self._root)

    def read(self, path: str, into: memoryview, seen: Callable[[memoryview], None]) -> tuple[int, FileFacts]:
        """Read a file's beginning.

        :param seen: is given each part once it is there.
        :return: how many bytes it has of these, and the facts of the file that was read.
        """
        done = 0
        with Path(path).open("rb", buffering=0) as file:
            facts = FileFacts.of_stat(path, os.fstat(file.fileno()))
            while done < len(into) and (count := file.readinto(into[done : done + _BLOCK_BYTES])):
                seen(into[done : done + count])
                done += count
            self._pace.forget(file.fileno())
        return done, facts

    def look(self, path: str, seen: Callable[[memoryview], None]) -> tuple[int, FileFacts, list[int]]:
        """Read a file that is read again soon: its pages stay in the page cache.

        :param seen: is given each part, which is valid for that long.
        :return: how many bytes it has, the facts of the file that was read, and a checksum of each block.
        """
        done, block, checksums = 0, memoryview(bytearray(_BLOCK_BYTES)), list[int]()
        with Path(path).open("rb", buffering=0) as file:
            facts = FileFacts.of_stat(path, os.fstat(file.fileno()))
            while count := file.readinto(block[: _BLOCK_BYTES - done % _BLOCK_BYTES]):
                seen(block[:count])
                before = checksums.pop() if done % _BLOCK_BYTES else 0
                checksums.append(isal_zlib.crc32(block[:count], before))
                done += count
        return done, facts, checksums

    def read_again(self, known: FileFacts, offset: int, into: memoryview, *, forgets: bool = False) -> None:
        """Read a part of a file that was read before. What the page cache still has costs the disk nothing,
        and counts as nothing.

        :param forgets: nobody reads the file again soon.
        :raises StorageEngineError: as :func:`read_source` does.
        """
        done = 0
        with source_errors(known.path), Path(known.path).open("rb", buffering=0) as file:
            fd = file.fileno()
            inode = os.fstat(fd).st_ino
            while done < len(into) and (count := self._read_cached(fd, offset + done, into[done:])):
                done += count
            if forgets:
                self._pace.forget(fd)
        _check_part(known, offset, len(into), done, inode)

    def _read_cached(self, fd: int, at: int, into: memoryview) -> int:
        block = into[:_BLOCK_BYTES]
        # Where the system or its C library has no such call, the disk may have been asked.
        with suppress(OSError, AttributeError, NotImplementedError):
            if count := os.preadv(fd, [block], at, os.RWF_NOWAIT):
                return count
        count = os.preadv(fd, [block], at)
        self._pace.spend(count)
        return count

    def sha256(self, path: str, size_bytes: int) -> str:
        """Return the hash of a file that has changed its times."""
        return sha256_of(path)


def files_of(job: SegmentJob) -> LocalFiles | AgentFiles:
    """Return where a segment's files are read."""
    if job.agent is not None:
        return files_from(job.agent)
    return LocalFiles(job.store_root, job.bytes_per_second)


def read_beginning(
    chosen: FileFacts, size_bytes: int, store_root: str, agent: AgentRun | None = None
) -> memoryview:
    """Read the first bytes of a segment's file, which its broker may still write behind them.

    :param chosen: the file as it was chosen.
    :param store_root: "": it may have changed. Otherwise it may not, but by our own acts: its name and its
        inode may be another file's by now.
    :param agent: where it is read; None: on this host.
    :raises FileGoneError: it vanished since, or another file has its name.
    :raises StoreNotFoundError: it can't be seen from this host.
    :raises ProofError: it is shorter.
    """
    data, path = _source_memory(size_bytes), chosen.path
    files = LocalFiles(store_root) if agent is None else files_from(agent)
    with source_errors(path):
        done, found = files.read(path, data, lambda _: None)
    found = replace(found, device=chosen.device)
    is_same = found.inode == chosen.inode
    if store_root and found != chosen:
        is_same = files.own_acts(path).same_file(found, chosen)
    if not is_same:
        raise FileGoneError.at(path)
    if done < size_bytes:
        raise ProofError(f"{path}: expected at least {size_bytes} bytes, found {done}. Nothing was read.")
    return data


def read_companions_of(job: SegmentJob) -> tuple[Source, ...]:
    """Read the segment's further files whole.

    :raises StorageEngineError: as :func:`read_source` does.
    """
    return tuple(_read_companion(files_of(job), chosen) for chosen in job.companions)


def _read_companion(files: LocalFiles | AgentFiles, chosen: FileFacts) -> Source:
    content = memoryview(bytearray(chosen.size_bytes))
    digest = hashlib.sha256()
    with source_errors(chosen.path):
        facts = _as_chosen(chosen, files.settled(chosen.path))
        done, found = files.read(chosen.path, content, digest.update)
    _check_read(chosen, done, found.inode)
    return Source(content, digest.hexdigest(), facts)


def companions_of_proven(job: SegmentJob, sources: Sequence[Source]) -> tuple[Companion, ...]:
    """Return the segment's further files as they were read, now that its copy is proven.

    :raises ProofError: as :func:`facts_of_proven` does.
    """
    return tuple(
        Companion.of(_unchanged(job, chosen, source), bytes(source.data))
        for chosen, source in zip(job.companions, sources, strict=True)
    )


def facts_of_proven(job: SegmentJob, source: Source) -> FileFacts:
    """Return the facts of the file that has the bytes which were read, now that their copy is proven.

    :raises ProofError: it was written to meanwhile, or another file lies there.
    """
    return _unchanged(job, job.facts, source)


def _unchanged(job: SegmentJob, chosen: FileFacts, source: Source) -> FileFacts:
    path, files = chosen.path, files_of(job)
    with source_errors(path):
        if _is_same(job, _as_chosen(chosen, files.facts(path)), source.facts):
            return source.facts
        facts = _as_chosen(chosen, files.settled(path))
        sha256 = files.sha256(path, chosen.size_bytes)
        found = files.facts(path)
    is_same = sha256 == source.sha256 and _is_same(job, _as_chosen(chosen, found), facts)
    # What was read again may have had other bytes for a moment.
    if source.files is not None or not is_same:
        raise _changed(chosen, found)
    return facts


def _as_chosen(chosen: FileFacts, found: FileFacts) -> FileFacts:
    """
    :raises ProofError: it isn't the file that was chosen.
    """
    # A disk mounted on several hosts is another device on each.
    found = replace(found, device=chosen.device)
    if (found.inode, found.size_bytes) != (chosen.inode, chosen.size_bytes):
        raise _changed(chosen, found)
    return found


def _check_read(chosen: FileFacts, size_bytes: int, inode: int) -> None:
    """
    :raises ProofError: another file was read, or not all of it.
    """
    if (size_bytes, inode) != (chosen.size_bytes, chosen.inode):
        raise ProofError(
            f"{chosen.path}: expected {chosen.size_bytes} bytes of inode {chosen.inode}, read {size_bytes} "
            f"of inode {inode}: the file was replaced, truncated or written to meanwhile. Nothing was "
            "committed or deleted."
        )


def _check_part(known: FileFacts, offset: int, expected: int, done: int, inode: int) -> None:
    """
    :raises ProofError: another file was read, or not all of the part.
    """
    if (done, inode) != (expected, known.inode):
        raise ProofError(
            f"{known.path}: expected {expected} bytes at {offset} of inode {known.inode}, read {done} of "
            f"inode {inode}: the file was replaced, truncated or written to meanwhile. Nothing was "
            "committed or deleted."
        )


def _is_same(job: SegmentJob, found: FileFacts, known: FileFacts) -> bool:
    return found == known or files_of(job).own_acts(found.path).same_file(found, known)


def _changed(chosen: FileFacts, found: FileFacts) -> ProofError:
    return ProofError(
        f"{chosen.path}: expected {chosen}, found {found}: the file changed since it was chosen. Nothing was "
        "committed or deleted. Make a new plan; if it is refused again, something writes to a sealed segment."
    )


class _Room:
    """Memory for a segment of which pages can be given back."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.data = memoryview(self._map)

    def release(self, begin: int, end: int) -> None:
        """Give the pages of a range back, whole ones: who reads there finds zeros."""
        begin, end = (at // mmap.PAGESIZE * mmap.PAGESIZE for at in (begin, min(end, len(self.data))))
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _room(size_bytes: int = 0) -> _Room:
    """This thread's memory for a segment, which serves the next one too.

    Fresh pages would have to be cleared by the kernel, which takes as long as reading the file.
    """
    room: _Room | None = getattr(_per_thread, "room", None)
    if room is None or len(room.data) < size_bytes:
        # The old goes before the new comes.
        _per_thread.room = room = None
        _per_thread.room = room = _Room(size_bytes)
    return room


def _source_memory(size_bytes: int) -> memoryview:
    return _room(size_bytes).data[:size_bytes]


@contextmanager
def source_errors(path: str) -> Iterator[None]:
    """
    :raises FileGoneError: in the block a segment's file vanished.
    :raises StoreNotFoundError: it can't be seen from this host.
    """
    try:
        yield
    except FileNotFoundError as error:
        # Where neither its directory nor the one around is, another disk is, or none.
        if any(directory.is_dir() for directory in Path(path).parents[:2]):
            raise FileGoneError.at(path) from error
        raise _unseen(path, error) from error
    except OSError as error:
        raise _unseen(path, error) from error


def _unseen(path: str, error: OSError) -> StoreNotFoundError:
    return StoreNotFoundError(
        f"{path}: expected a segment file that host {socket.gethostname()} can read: {error.strerror}. Work "
        "on a store runs where its disk is: use local[N] there, or mount the store at the same path on every "
        "executor, or let executors read it from an agent there."
    )
