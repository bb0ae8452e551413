"""Data files before they count: written under a name of this attempt's own, then published by a hard link.

A hard link never overwrites, so of two attempts at one segment the first to publish wins and the other
finds the file there. Object stores have no links, and what is written later under a name replaces what
was there: each attempt writes under a final name that no other has (see ``archive_segment``), the first to
commit wins, nothing refers to the other's file, and nothing here applies.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from storage_engine.core.durable import fsync_path, unlink
from storage_engine.exceptions import ProofError
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.jobs import ProvenSegment
from storage_engine.lake.storage.errors import lake_errors

PARTIAL_SUFFIX = ".partial"


def staged_location(data_file: str) -> str:
    """A name beside the final one that no other attempt uses."""
    return f"{data_file}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"


def publish(segments: Iterable[ProvenSegment]) -> None:
    """Give proven files their final names, durably. Doing it again, or beside another attempt, is fine.

    :raises ProofError: a file with other bytes than were proven has the name already.
    :raises LakeUnavailableError: when the lake can't be written.
    """
    directories = set()
    for segment in segments:
        if local_path(segment.data_file) is None:
            continue
        staged, final = _paths(segment)
        # A file that was there already may be of an attempt killed before it synced the directory.
        directories.add(final.parent)
        if staged == final:
            continue
        with lake_errors(segment.data_file, "publish a data file"):
            try:
                os.link(staged, final)
            except FileExistsError:
                _check_published(segment, final)
            except FileNotFoundError:
                # Another attempt at the same segment committed, and swept this one's file away.
                if not final.exists():
                    raise
                _check_published(segment, final)
    for directory in directories:
        with lake_errors(str(directory), "publish data files"):
            fsync_path(directory)


def discard(segments: Iterable[ProvenSegment]) -> None:
    """Remove what these attempts staged. Published files stay: another attempt may have proven them."""
    for segment in segments:
        if segment.staged_file != segment.data_file:
            staged, _ = _paths(segment)
            unlink(staged)


def sweep(segments: Iterable[ProvenSegment]) -> None:
    """Remove every attempt's staged files for segments that are committed by now.

    :raises LakeUnavailableError: when the lake can't be written.
    """
    names_by_directory: dict[Path, set[str]] = {}
    for segment in segments:
        if (final := local_path(segment.data_file)) is not None:
            names_by_directory.setdefault(final.parent, set()).add(final.name)
    for directory, names in names_by_directory.items():
        with lake_errors(str(directory), "remove staged files"):
            stale = [path for path in directory.glob(f"*{PARTIAL_SUFFIX}") if final_name(path.name) in names]
            for path in stale:
                unlink(path)
            if stale:
                fsync_path(directory)


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def final_name(staged: str) -> str:
    """Return the name under which a staged file is published, of its own."""
    return staged.removesuffix(PARTIAL_SUFFIX).rpartition(".")[0]


def _paths(segment: ProvenSegment) -> tuple[Path, Path]:
    staged, final = local_path(segment.staged_file), local_path(segment.data_file)
    assert staged is not None
    assert final is not None
    return staged, final


def _check_published(segment: ProvenSegment, final: Path) -> None:
    if final.stat().st_size == segment.data_file_bytes and sha256_of(final) == segment.data_file_sha256:
        return
    raise ProofError(
        f"{segment.source_path}: expected its data file {final} to have the {segment.data_file_bytes} bytes "
        f"with SHA-256 {segment.data_file_sha256}, found others: another attempt wrote it meanwhile. "
        "Nothing was committed. Run archive again: it proves the file that is there."
    )
