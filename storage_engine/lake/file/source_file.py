"""Reading the files to archive. Their bytes must not change before their copy is proven.

If a file's times have changed, the file is hashed again and must have the same hash. Files are read on this
host. If the job names an agent, they are read from the agent on their broker's host.

A large segment is never wholly in memory. It is read three times: to hash it, to decode it part by part, and
to compare it with its copy. After the first time, most of it is in the page cache. The file's times show that
no process wrote to it meanwhile. Checksums of its blocks show that the same bytes were read each time.
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
"""Bytes that are read and hashed at a time. They fit into the processor's caches."""

WHOLE_BYTES = 128 << 20
"""A segment of at most this size stays completely in memory until its copy is proven."""

_per_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read.

    :param data: the file's bytes, or memory for them if ``files`` is set. The thread's next segment uses the
        same memory.
    :param sha256: in hex.
    :param facts: facts of the file from before it was read. Every later write would have changed them.
    :param files: reads parts of the file again; None if ``data`` has all bytes.
    :param checksums: CRC-32 of each block of the file, computed when the file was hashed.
    """

    data: memoryview
    sha256: str
    facts: FileFacts
    files: LocalFiles | None = None
    checksums: Sequence[int] = ()

    def loader(self) -> LoadBytes:
        """Return a function that makes parts of ``data`` readable, one after the other.

        :raises StorageEngineError: as :func:`read_source` does.
        """
        self.release()
        begin = end = 0

        def load(first: int, last: int) -> None:
            nonlocal begin, end
            if self.files is not None:
                _thread_memory().release(begin, first)
                begin, position = first, max(end, first)
                self.files.read_again(self.facts, position, self.data[position:last])
                end = max(end, last)

        return load

    def parts(self, position: int, size_bytes: int) -> Iterator[memoryview]:
        """Yield bytes of the file from a position on. Each part is valid until the next one is requested.

        :raises StorageEngineError: as :func:`read_source` does.
        """
        if self.files is None:
            yield self.data[position : position + size_bytes]
            return
        block, end = memoryview(bytearray(_BLOCK_BYTES)), position + size_bytes
        for number in range(position // _BLOCK_BYTES, -(-end // _BLOCK_BYTES)):
            at = number * _BLOCK_BYTES
            part = block[: len(self.data) - at]
            self.files.read_again(self.facts, at, part, forgets=at + len(part) >= end == len(self.data))
            if isal_zlib.crc32(part) != self.checksums[number]:
                raise ProofError(
                    f"{self.facts.path}: expected at {at} the {len(part)} bytes that were read before, "
                    "found other bytes: the file was written to meanwhile, or a disk or memory is faulty. "
                    "Nothing was committed or deleted. Make a new plan. If this happens again, check the "
                    "disk and the memory, and find out whether a process writes to the file."
                )
            yield part[max(position - at, 0) : end - at]

    def release(self) -> None:
        """Release a large segment's memory. :meth:`loader` and :meth:`parts` read the file again."""
        if self.files is not None:
            _thread_memory().release(0, len(self.data))


def read_source(job: SegmentJob) -> Source:
    """Read a segment's whole file.

    :raises FileGoneError: the file vanished since it was listed.
    :raises StoreNotFoundError: this host can't read the file.
    :raises ProofError: another file has its name, or its size changed.
    :raises ChangedUnderUsError: another process keeps writing to the file.
    """
    files = files_of(job)
    with source_errors(job.path):
        facts = _as_chosen(job.facts, files.settled(job.path))
    data = _source_memory(job.facts.size_bytes)
    reread_files = _read_again(job, files)
    digest, pace = hashlib.sha256(), pace_at(job.bytes_per_second)

    def hash_block(block: memoryview) -> None:
        digest.update(block)
        pace.spend(len(block))

    checksums: list[int] = []
    with source_errors(job.path):
        if reread_files is None:
            size_bytes, read_facts = files.read(job.path, data, hash_block)
        else:
            size_bytes, read_facts, checksums = reread_files.look(job.path, hash_block)
    _check_read(job.facts, size_bytes, read_facts.inode)
    return Source(data, digest.hexdigest(), facts, reread_files, checksums)


def _read_again(job: SegmentJob, files: LocalFiles | AgentFiles) -> LocalFiles | None:
    """Return the files from which a segment is read in parts, or None if it is read once into memory."""
    if not isinstance(files, LocalFiles) or job.facts.size_bytes <= WHOLE_BYTES:
        return None
    return files if times_are_trusted(Path(job.path).parent, job.store_root) else None


class LocalFiles:
    """A segment's files on this host's disks."""

    def __init__(self, store_root: str, bytes_per_second: int | None = None) -> None:
        self._root = store_root
        self._pace = pace_at(bytes_per_second)

    def settled(self, path: str) -> FileFacts:
        """Flush a file, and return its facts. Every later write changes them."""
        return settle(path)

    def facts(self, path: str) -> FileFacts:
        return FileFacts.of(path)

    def own_acts(self, path: str) -> OwnActs:
        """Return the changes that this package made to files of the store."""
        return read_own_acts(self._root)

    def read(
        self, path: str, into: memoryview, on_part: Callable[[memoryview], None]
    ) -> tuple[int, FileFacts]:
        """Read a file from its beginning, until memory is full or the file ends.

        :param on_part: called with each part after it was read.
        :return: the number of bytes read, and the facts of the opened file.
        """
        done = 0
        with Path(path).open("rb", buffering=0) as file:
            facts = FileFacts.of_stat(path, os.fstat(file.fileno()))
            while done < len(into) and (count := file.readinto(into[done : done + _BLOCK_BYTES])):
                on_part(into[done : done + count])
                done += count
            self._pace.forget(file.fileno())
        return done, facts

    def look(self, path: str, on_part: Callable[[memoryview], None]) -> tuple[int, FileFacts, list[int]]:
        """Read a whole file for the first of several times. Its pages stay in the page cache.

        :param on_part: called with each part, which is valid only during the call.
        :return: the number of bytes read, the facts of the opened file, and the CRC-32 of each block.
        """
        done, block, checksums = 0, memoryview(bytearray(_BLOCK_BYTES)), list[int]()
        with Path(path).open("rb", buffering=0) as file:
            facts = FileFacts.of_stat(path, os.fstat(file.fileno()))
            while count := file.readinto(block[: _BLOCK_BYTES - done % _BLOCK_BYTES]):
                on_part(block[:count])
                before = checksums.pop() if done % _BLOCK_BYTES else 0
                checksums.append(isal_zlib.crc32(block[:count], before))
                done += count
        return done, facts, checksums

    def read_again(self, facts: FileFacts, offset: int, into: memoryview, *, forgets: bool = False) -> None:
        """Read a part of a file that was read before.

        Bytes from the page cache don't count for the pace, because the disk isn't read.

        :param facts: facts of the file when it was read before.
        :param forgets: let the file's pages leave the page cache, because it isn't read again soon.
        :raises StorageEngineError: as :func:`read_source` does.
        """
        done = 0
        with source_errors(facts.path), Path(facts.path).open("rb", buffering=0) as file:
            fd = file.fileno()
            inode = os.fstat(fd).st_ino
            while done < len(into) and (count := self._read_cached(fd, offset + done, into[done:])):
                done += count
            if forgets:
                self._pace.forget(fd)
        if (done, inode) != (len(into), facts.inode):
            raise ProofError(
                f"{facts.path}: expected {len(into)} bytes at {offset} of inode {facts.inode}, read {done} "
                f"of inode {inode}: the file was replaced, truncated or written to meanwhile. Nothing was "
                "committed or deleted. Make a new plan."
            )

    def _read_cached(self, fd: int, at: int, into: memoryview) -> int:
        block = into[:_BLOCK_BYTES]
        # Without this call, it isn't known whether the page cache has the bytes: they count for the pace.
        with suppress(OSError, AttributeError, NotImplementedError):
            if count := os.preadv(fd, [block], at, os.RWF_NOWAIT):
                return count
        count = os.preadv(fd, [block], at)
        self._pace.spend(count)
        return count

    def sha256(self, path: str, size_bytes: int) -> str:
        """Return the hash of a file whose times have changed, in hex."""
        return sha256_of(path)


def files_of(job: SegmentJob) -> LocalFiles | AgentFiles:
    """Return the reader of a segment's files, on this host or from the job's agent."""
    if job.agent is not None:
        return files_from(job.agent)
    return LocalFiles(job.store_root, job.bytes_per_second)


def read_beginning(
    chosen: FileFacts, size_bytes: int, store_root: str, agent: AgentRun | None = None
) -> memoryview:
    """Read the first bytes of a segment's file. The broker may still append to the file.

    :param store_root: root of the store. If the file's facts have changed, our own acts in the store must be
        the reason. Otherwise another file may have this name and inode. If the root is "", only the inode is
        compared.
    :param agent: the agent from which the file is read; None to read it on this host.
    :raises FileGoneError: the file vanished since it was chosen, or another file has its name.
    :raises StoreNotFoundError: this host can't read the file.
    :raises ProofError: the file is shorter than ``size_bytes``.
    """
    data, path = _source_memory(size_bytes), chosen.path
    files = LocalFiles(store_root) if agent is None else files_from(agent)
    with source_errors(path):
        done, facts = files.read(path, data, lambda _: None)
    facts = replace(facts, device=chosen.device)
    is_same = facts.inode == chosen.inode
    if store_root and facts != chosen:
        is_same = files.own_acts(path).same_file(facts, chosen)
    if not is_same:
        raise FileGoneError.at(path)
    if done < size_bytes:
        raise ProofError(f"{path}: expected at least {size_bytes} bytes, found {done}. Nothing was read.")
    return data


def read_companions_of(job: SegmentJob) -> tuple[Source, ...]:
    """Read the segment's further files whole.

    :raises StorageEngineError: as :func:`read_source` does.
    """
    sources = []
    for chosen in job.companions:
        files, digest = files_of(job), hashlib.sha256()
        content = memoryview(bytearray(chosen.size_bytes))
        with source_errors(chosen.path):
            facts = _as_chosen(chosen, files.settled(chosen.path))
            size_bytes, read_facts = files.read(chosen.path, content, digest.update)
        _check_read(chosen, size_bytes, read_facts.inode)
        sources.append(Source(content, digest.hexdigest(), facts))
    return tuple(sources)


def companions_of_proven(job: SegmentJob, sources: Sequence[Source]) -> tuple[Companion, ...]:
    """Check that the segment's further files haven't changed since they were read, and return them.

    :raises ProofError: as :func:`facts_of_proven` does.
    """
    return tuple(
        Companion.of(_check_unchanged(job, chosen, source), bytes(source.data))
        for chosen, source in zip(job.companions, sources, strict=True)
    )


def facts_of_proven(job: SegmentJob, source: Source) -> FileFacts:
    """Check that a proven segment's file still has the bytes that were read, and return the file's facts.

    :raises ProofError: the file was written to meanwhile, or another file has its name.
    """
    return _check_unchanged(job, job.facts, source)


def _check_unchanged(job: SegmentJob, chosen: FileFacts, source: Source) -> FileFacts:
    path, files = chosen.path, files_of(job)
    with source_errors(path):
        if _is_same(job, _as_chosen(chosen, files.facts(path)), source.facts):
            return source.facts
        facts = _as_chosen(chosen, files.settled(path))
        sha256 = files.sha256(path, chosen.size_bytes)
        current = files.facts(path)
    is_same = sha256 == source.sha256 and _is_same(job, _as_chosen(chosen, current), facts)
    # Between its reads, a file that is read several times may have had other bytes for a moment.
    if source.files is not None or not is_same:
        raise _change_error(chosen, current)
    return facts


def _as_chosen(chosen: FileFacts, facts: FileFacts) -> FileFacts:
    """Return facts with the chosen file's device. Raise ProofError if the inode or size differs."""
    # A disk that several hosts mount has another device number on each.
    facts = replace(facts, device=chosen.device)
    if (facts.inode, facts.size_bytes) != (chosen.inode, chosen.size_bytes):
        raise _change_error(chosen, facts)
    return facts


def _check_read(chosen: FileFacts, size_bytes: int, inode: int) -> None:
    if (size_bytes, inode) != (chosen.size_bytes, chosen.inode):
        raise ProofError(
            f"{chosen.path}: expected {chosen.size_bytes} bytes of inode {chosen.inode}, read {size_bytes} "
            f"of inode {inode}: the file was replaced, truncated or written to meanwhile. Nothing was "
            "committed or deleted. Make a new plan."
        )


def _is_same(job: SegmentJob, facts: FileFacts, expected: FileFacts) -> bool:
    return facts == expected or files_of(job).own_acts(facts.path).same_file(facts, expected)


def _change_error(chosen: FileFacts, facts: FileFacts) -> ProofError:
    return ProofError(
        f"{chosen.path}: expected {chosen}, found {facts}: the file changed since it was chosen. Nothing was "
        "committed or deleted. Make a new plan. If this happens again, a process writes to a sealed segment."
    )


class _Memory:
    """Memory for a segment. Its pages can be given back to the kernel."""

    def __init__(self, size_bytes: int) -> None:
        self._map = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.data = memoryview(self._map)

    def release(self, begin: int, end: int) -> None:
        """Give the whole pages within a range back to the kernel. A later read finds zeros there."""
        begin, end = (at // mmap.PAGESIZE * mmap.PAGESIZE for at in (begin, min(end, len(self.data))))
        if end > begin:
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _thread_memory(size_bytes: int = 0) -> _Memory:
    """Return this thread's memory for segments. To clear fresh pages would take as long as to read a file."""
    memory: _Memory | None = getattr(_per_thread, "memory", None)
    if memory is None or len(memory.data) < size_bytes:
        # The old memory is freed first.
        _per_thread.memory = memory = None
        _per_thread.memory = memory = _Memory(size_bytes)
    return memory


def _source_memory(size_bytes: int) -> memoryview:
    return _thread_memory(size_bytes).data[:size_bytes]


@contextmanager
def source_errors(path: str) -> Iterator[None]:
    """Replace the block's errors about a segment's file with our own exceptions.

    :raises FileGoneError: the file vanished.
    :raises StoreNotFoundError: this host can't read the file.
    """
    try:
        yield
    except FileNotFoundError as error:
        # Without its directory and that directory's parent, the store's disk isn't mounted.
        if any(directory.is_dir() for directory in Path(path).parents[:2]):
            raise FileGoneError.at(path) from error
        raise _unreadable_error(path, error) from error
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: str, error: OSError) -> StoreNotFoundError:
    return StoreNotFoundError(
        f"{path}: expected a segment file that host {socket.gethostname()} can read: {error.strerror}. "
        "Run Spark as local[N] on the store's host, or mount the store at the same path on every executor, "
        "or let executors read it from an agent on the store's host."
    )
