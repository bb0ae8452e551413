"""Data files before their commit: written under a name of their attempt, then published by a hard link.

A hard link never overwrites a file. The first of two attempts at one segment gets the final name, and the
other attempt finds that file. Object stores have no links, and a new file replaces an older file of its name.
There, each attempt writes under a final name of its own (see ``archive_segment``). Only the first attempt to
commit counts. This module doesn't apply to object stores.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage_engine.core.durable import fsync_path, unlink
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.jobs import ProvenSegment, new_attempt, with_attempt
from storage_engine.lake.storage.errors import lake_errors

PARTIAL_SUFFIX = ".partial"


def staged_location(data_file: str) -> str:
    """Return a location beside a data file's final location, under a name that no other attempt uses."""
    return f"{data_file}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"


def publish(segments: Iterable[ProvenSegment]) -> tuple[ProvenSegment, ...]:
    """Give proven files their final names, durably.

    It may be repeated, or run at the same time as another attempt.

    :return: the segments with their data files' names. Another attempt's file of the same name may have other
        bytes, because its leaf keys differ. Then our file's name gets digits of its own, and the first
        attempt to commit wins.
    :raises LakeUnavailableError: the lake can't be written.
    """
    directories = set()
    published = []
    # Segments that share a staged file get one data file.
    names: dict[str, str] = {}
    for segment in segments:
        if segment.staged_file in names:
            segment = replace(segment, data_file=names[segment.staged_file])
        elif local_path(segment.data_file) is not None:
            # An attempt that published the file before may have been killed before it synced the directory.
            directories.add(_paths(segment)[1].parent)
            with lake_errors(segment.data_file, "publish a data file"):
                staged = segment.staged_file
                segment = _publish_file(segment)
                names[staged] = segment.data_file
        published.append(segment)
    for directory in directories:
        with lake_errors(str(directory), "publish data files"):
            fsync_path(directory)
    return tuple(published)


def _publish_file(segment: ProvenSegment) -> ProvenSegment:
    staged, final = _paths(segment)
    if staged == final:
        return segment
    try:
        os.link(staged, final)
        return segment
    except FileExistsError:
        pass
    except FileNotFoundError:
        # Another attempt at the same segment committed, and removed this staged file.
        if not final.exists():
            raise
    if final.stat().st_size == segment.data_file_bytes and sha256_of(final) == segment.data_file_sha256:
        return segment
    renamed = replace(segment, data_file=with_attempt(segment.data_file, new_attempt()))
    # If another attempt removed the staged file, the segment is committed, and our file isn't needed.
    with suppress(FileNotFoundError):
        os.link(staged, _paths(renamed)[1])
    return renamed


def discard(segments: Iterable[ProvenSegment]) -> None:
    """Remove the segments' own staged files. Published files stay: another attempt may have proven them."""
    for segment in segments:
        if segment.staged_file != segment.data_file:
            unlink(_paths(segment)[0])


def sweep(segments: Iterable[ProvenSegment]) -> None:
    """Remove every attempt's staged files for committed segments.

    :raises LakeUnavailableError: the lake can't be written.
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
    """Return the SHA-256 of a local file, in hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def final_name(staged: str) -> str:
    return staged.removesuffix(PARTIAL_SUFFIX).rpartition(".")[0]


def _paths(segment: ProvenSegment) -> tuple[Path, Path]:
    staged, final = local_path(segment.staged_file), local_path(segment.data_file)
    assert staged is not None
    assert final is not None
    return staged, final
