"""The file that is archived: the same one from the moment it was chosen until its copy is proven.

A touch in between is no reason to begin again. What counts is that the bytes that were read are those of the
file as its facts describe it, at the end too: where these moved by another's doing, it is hashed again.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from storage_engine.exceptions import ProofError, StoreNotFoundError
from storage_engine.lake.jobs import SegmentJob
from storage_engine.lake.pace import pace_at
from storage_engine.lake.staging import sha256_of
from storage_engine.model.store import FileFacts
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.same_bytes.settling import settle

_BLOCK_BYTES = 1 << 20
"""Read and hashed at a time, so that the hash finds it in the processor's caches."""

_per_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Source:
    """:param data: the file's bytes, in memory that serves the thread's next segment too.
    :param sha256: of them, in hex.
    :param facts: of the file before it was read, when every later write had to change them.
    """

    data: memoryview
    sha256: str
    facts: FileFacts


def read_source(job: SegmentJob) -> Source:
    """Read the whole file.

    :raises StoreNotFoundError: it can't be seen from this host.
    :raises ProofError: another file lies there, or it is truncated.
    :raises ChangedUnderUsError: somebody writes to it again and again.
    """
    with _source_errors(job):
        facts = _as_chosen(job, settle(job.path))
    data = _source_memory(job.facts.size_bytes)
    digest = hashlib.sha256()
    done = 0
    pace = pace_at(job.bytes_per_second)
    with _source_errors(job), Path(job.path).open("rb", buffering=0) as file:
        inode = os.fstat(file.fileno()).st_ino
        while done < len(data) and (count := file.readinto(data[done : done + _BLOCK_BYTES])):
            digest.update(data[done : done + count])
            done += count
            pace.spend(count)
        pace.forget(file.fileno())
    if (done, inode) != (len(data), job.facts.inode):
        raise ProofError(
            f"{job.path}: expected {len(data)} bytes of inode {job.facts.inode}, read {done} of inode "
            f"{inode}: the file was replaced or truncated meanwhile. Nothing was committed or deleted."
        )
    return Source(data, digest.hexdigest(), facts)


def facts_of_proven(job: SegmentJob, source: Source) -> FileFacts:
    """Return the facts of the file that has the bytes which were read, now that their copy is proven.

    :raises ProofError: it was written to meanwhile, or another file lies there.
    """
    with _source_errors(job):
        if _is_same(job, _as_chosen(job, FileFacts.of(job.path)), source.facts):
            return source.facts
        facts = _as_chosen(job, settle(job.path))
        sha256 = sha256_of(job.path)
        found = FileFacts.of(job.path)
    if sha256 != source.sha256 or not _is_same(job, _as_chosen(job, found), facts):
        raise _changed(job, found)
    return facts


def _as_chosen(job: SegmentJob, found: FileFacts) -> FileFacts:
    """
    :raises ProofError: it isn't the file that was chosen.
    """
    # A disk mounted on several hosts is another device on each.
    found = replace(found, device=job.facts.device)
    if (found.inode, found.size_bytes) != (job.facts.inode, job.facts.size_bytes):
        raise _changed(job, found)
    return found


def _is_same(job: SegmentJob, found: FileFacts, known: FileFacts) -> bool:
    return found == known or read_own_acts(job.store_root).same_file(found, known)


def _changed(job: SegmentJob, found: FileFacts) -> ProofError:
    return ProofError(
        f"{job.path}: expected {job.facts}, found {found}: the file changed since it was chosen. Nothing was "
        "committed or deleted. Make a new plan; if it is refused again, something writes to a sealed segment."
    )


def _source_memory(size_bytes: int) -> memoryview:
    """This thread's memory for a segment, which serves the next one too.

    Fresh pages would have to be cleared by the kernel, which takes as long as reading the file.
    """
    memory: np.ndarray[Any, Any] | None = getattr(_per_thread, "memory", None)
    if memory is None or len(memory) < size_bytes:
        # The old goes before the new comes.
        _per_thread.memory = memory = None
        _per_thread.memory = memory = np.empty(size_bytes, dtype=np.uint8)
    return memory[:size_bytes].data


@contextmanager
def _source_errors(job: SegmentJob) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreNotFoundError(
            f"{job.path}: expected a segment file that host {socket.gethostname()} can read: "
            f"{error.strerror}. Work on a store runs where its disk is: use local[N] there, or mount the "
            "store at the same path on every executor."
        ) from error
