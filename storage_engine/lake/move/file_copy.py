"""Copying one data file into another lake: under its final name it is whole and on disk, or it isn't "
"there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

from pyiceberg.io import FileIO

from storage_engine.core.durable import fsync_path, unlink
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.durable_io import local_path, open_data_file, sha256_of_file
from storage_engine.lake.file.staging import staged_location
from storage_engine.lake.storage.errors import lake_errors

_BLOCK_BYTES = 1 << 20


def copy_file(
    source_io: FileIO,
    source: str,
    target_io: FileIO,
    target: str,
    size_bytes: int,
    sha256: str | None,
    advance: Callable[[int], None],
) -> bool:
    """Copy a file; one that is there already is read and compared instead.

    :param size_bytes: that it has, by the table.
    :param sha256: in hex, by its receipt; None: no receipt says so.
    :return: whether it was copied now.
    :raises LakeUnavailableError: either can't be read or written, or the source isn't as it should be.
    """
    with lake_errors(target, "look for a data file"):
        exists = target_io.new_input(target).exists()
    final = local_path(target)
    if exists and _is_whole(source_io, source, target_io, target, size_bytes, sha256):
        if final is not None:
            # It may be of an attempt that was killed before it synced the directory.
            fsync_path(final.parent)
        advance(size_bytes)
        return False
    staged = target if final is None else staged_location(target)
    digest, copied = hashlib.sha256(), 0
    try:
        with (
            lake_errors(source, "copy a data file"),
            open_data_file(source_io, source) as stored,
            # A local file is created, never opened: nobody's file or link is written through.
            target_io.new_output(staged).create(overwrite=final is None) as sink,
        ):
            while block := stored.read_buffer(_BLOCK_BYTES):
                digest.update(block)
                sink.write(block.to_pybytes())
                copied += len(block)
                advance(len(block))
        if copied != size_bytes or (sha256 is not None and digest.hexdigest() != sha256):
            raise LakeUnavailableError(
                f"{source}: expected {size_bytes} bytes with SHA-256 {sha256 or 'unknown'}, read {copied} "
                f"with {digest.hexdigest()}: the file is damaged. It was not copied; what was copied before "
                "it stays. Run storage-engine verify on the lake, and bring the file back as it says."
            )
        path = local_path(staged)
        if final is not None and path is not None:
            with lake_errors(target, "publish a data file"):
                if exists:
                    # What has the name is not the file: an earlier copy of it was damaged since.
                    path.replace(final)
                else:
                    os.link(path, final)
                fsync_path(final.parent)
    except LakeUnavailableError:
        if final is None and not exists:
            target_io.delete(target)
        raise
    finally:
        if final is not None and (path := local_path(staged)) is not None:
            unlink(path)
    return True


def _is_whole(
    source_io: FileIO, source: str, target_io: FileIO, target: str, size_bytes: int, sha256: str | None
) -> bool:
    """Return whether a file that is there is the one that was to be copied."""
    with lake_errors(target, "read a data file"):
        if len(target_io.new_input(target)) != size_bytes:
            return False
        if sha256 is None:
            with open_data_file(source_io, source) as stored:
                sha256 = sha256_of_file(stored)
        with open_data_file(target_io, target) as stored:
            return sha256_of_file(stored) == sha256
