"""Iceberg file access whose local files are on disk once they are closed.

PyIceberg's own FileIO leaves written files to the page cache, so a power cut can take manifests that a
committed catalog row points at. Here a local file is created without overwriting, and closing it fsyncs
the file and the directory that names it; directories that had to be made are fsynced in their parents.
Other schemes are PyIceberg's: an object store has acknowledged a file when its stream closes.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.io import FileIO, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from storage_engine.durable import create, fsync_path, make_dirs

_BLOCK_BYTES = 1 << 20

_recorders: list[list[str]] = []
_recorders_lock = threading.Lock()


@contextmanager
def recorded_outputs() -> Iterator[list[str]]:
    """Collect the paths of local files created through :class:`DurableFileIO` in this process meanwhile.

    PyIceberg loads a FileIO of its own for each file it writes in a commit, some in other threads, so
    an instance can't know them all. A caller that runs beside others must filter by path.
    """
    created: list[str] = []
    with _recorders_lock:
        _recorders.append(created)
    try:
        yield created
    finally:
        with _recorders_lock:
            # By identity: two lists with the same paths are equal.
            _recorders[:] = [recorder for recorder in _recorders if recorder is not created]


def local_path(location: str) -> Path | None:
    """The path behind a location on this machine's file systems; None for any other scheme."""
    scheme, _, path = PyArrowFileIO.parse_location(location)
    return Path(path) if scheme == "file" else None


def read_buffer(file_io: FileIO, location: str) -> pa.Buffer:
    """A whole data file: mapped where it is local (data files never change), else read into memory."""
    path = local_path(location)
    if path is None:
        with file_io.new_input(location).open() as stream:
            return pa.py_buffer(stream.read())
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


@contextmanager
def open_data_file(file_io: FileIO, location: str) -> Iterator[pa.NativeFile]:
    """Open a data file for reading at any position; one from an object store is fetched whole, once."""
    path = local_path(location)
    if path is not None:
        # Not mapped: pages of a map count as the task's memory until the file is closed.
        with pa.OSFile(str(path), "rb") as file:
            yield file
        return
    with pa.BufferReader(read_buffer(file_io, location)) as file:
        yield file


def sha256_of_file(file: pa.NativeFile) -> str:
    """SHA-256 of a whole open file, in hex; the position is moved."""
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read_buffer(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


class DurableOutputStream(io.BufferedWriter):
    """A new local file; when ``close`` returns, its bytes and its name are on disk."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        make_dirs(path.parent)
        super().__init__(_opened(path, overwrite=overwrite), buffer_size=1 << 20)
        self._path = path
        with _recorders_lock:
            for recorder in _recorders:
                recorder.append(str(path))

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        except OSError as error:
            # A plain errno doesn't say which of the lake's files it was.
            error.filename = error.filename or str(self._path)
            raise
        finally:
            try:
                super().close()
            except OSError:
                # The bytes that flush could not write fail again here; the first error says so.
                self.raw.close()
        fsync_path(self._path.parent)


def _opened(path: Path, *, overwrite: bool) -> io.FileIO:
    try:
        return create(path)
    except FileExistsError:
        if not overwrite:
            raise
    return io.FileIO(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "wb")


class DurableFile(PyArrowFile):
    """A local file that is written durably and read as usual."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return DurableOutputStream(Path(self._path), overwrite=overwrite)


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's Arrow FileIO with durable local files; named by the property ``py-io-impl``."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        if local_path(location) is None:
            return output
        return DurableFile(location, output._path, output._filesystem, output._buffer_size)
