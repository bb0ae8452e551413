"""Iceberg file access whose local files are on disk once they are closed.

PyIceberg's own FileIO leaves written files in the page cache, so a power cut can destroy manifests that a
committed catalog row points at. Here a local file is created without overwriting, and closing it fsyncs the
file and its directory; the parents of new directories are fsynced as well. An object store acknowledges a
file when its stream is closed. The file is then read back, as everything that refers to it depends on it.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from storage_engine.core.durable import create, fsync_path, make_dirs
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.s3_defaults import S3_DEFAULTS

_BLOCK_BYTES = 1 << 20

_HDFS = ("hdfs", "viewfs")

_CONFIGURED_BY = {
    **dict.fromkeys(("s3", "s3a", "s3n", "oss"), ("s3.", "client.")),
    **dict.fromkeys(("gs", "gcs"), ("gcs.",)),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), ("adls.",)),
}
"""Prefixes of the properties that configure host and user, by the scheme of a location."""

_recorders: list[list[str]] = []
_recorders_lock = threading.Lock()


@contextmanager
def recorded_outputs() -> Iterator[list[str]]:
    """Collect the paths of local files that :class:`DurableFileIO` creates in this process during the block.

    PyIceberg loads another FileIO for each file of a commit, some in other threads, so no single instance
    knows all files. A caller that runs beside others must filter by path.
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
    """Return the path that a location names on this machine's file systems; None for another scheme."""
    # A plain location needs no parsing, which takes ten times as long.
    is_plain = location.startswith("file:///") and location.isprintable()
    if is_plain and "?" not in location and "#" not in location:
        return Path(location.removeprefix("file://"))
    scheme, _, path = PyArrowFileIO.parse_location(location)
    return Path(path) if scheme == "file" else None


def may_open(properties: Mapping[str, str], location: str) -> bool:
    """Return whether the configuration says how to open a file at a location. Pure.

    A location may come from data. It could name an unknown host, or a kind of storage that nobody configured.
    """
    scheme, netloc, _ = PyArrowFileIO.parse_location(location)
    warehouse = properties.get("warehouse", "")
    if scheme == "file":
        return True
    if scheme in _HDFS:
        host = properties.get("hdfs.host")
        configured = {urlsplit(warehouse).netloc, host, f"{host}:{properties.get('hdfs.port')}"}
        return netloc in configured - {""}
    own_scheme, families = urlsplit(warehouse).scheme, _CONFIGURED_BY.get(scheme)
    return (
        families is None
        or _CONFIGURED_BY.get(own_scheme) == families
        or (not own_scheme and not warehouse.startswith("/"))
        or any(key.startswith(families) and key not in S3_DEFAULTS for key in properties)
    )


def read_buffer(file_io: FileIO, location: str) -> pa.Buffer:
    """Return a whole data file. A local file, which never changes, is mapped; any other is read."""
    path = local_path(location)
    if path is None:
        with file_io.new_input(location).open() as stream:
            return pa.py_buffer(stream.read())
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


@contextmanager
def open_data_file(file_io: FileIO, location: str) -> Iterator[pa.NativeFile]:
    """Open a data file for reading at any position. A file in an object store is fetched whole, once."""
    path = local_path(location)
    if path is not None:
        # Not mapped: pages of a map count as the task's memory until the file is closed.
        with pa.OSFile(str(path), "rb") as file:
            yield file
        return
    with pa.BufferReader(read_buffer(file_io, location)) as file:
        yield file


def sha256_of_file(file: pa.NativeFile) -> str:
    """Return the SHA-256 of a whole open file, in hex. The file's position is moved."""
    digest = hashlib.sha256()
    file.seek(0)
    while block := file.read_buffer(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


class DurableOutputStream(io.BufferedWriter):
    """A new local file. When ``close`` returns, its bytes and its name are on disk."""

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        make_dirs(path.parent)
        try:
            file = create(path)
        except FileExistsError:
            if not overwrite:
                raise
            fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            file = io.FileIO(fd, "wb")
        super().__init__(file, buffer_size=1 << 20)
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
            # The error of fsync doesn't name the file.
            error.filename = error.filename or str(self._path)
            raise
        finally:
            try:
                super().close()
            except OSError:
                # Bytes that flush could not write fail again here; the first error is raised.
                self.raw.close()
        fsync_path(self._path.parent)


class DurableFile(PyArrowFile):
    """A local file that is written durably and read as usual."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return DurableOutputStream(Path(self._path), overwrite=overwrite)


class ReadBackStream:
    """A new object in an object store. When ``close`` returns, the object was read back and is complete."""

    def __init__(self, file: PyArrowFile, *, overwrite: bool) -> None:
        self._file = file
        self._stream: Any = PyArrowFile.create(file, overwrite)
        self._sha256, self._size_bytes = hashlib.sha256(), 0

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.write(view)
        self._sha256.update(view)
        self._size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            # After an error, an incomplete object is not read back.
            self._stream.close()

    def close(self) -> None:
        """Close the object. Raise LakeUnavailableError if the store doesn't have it as it was written."""
        if self.closed:
            return
        self._stream.close()
        location = self._file.location
        try:
            with self._file.open() as stored:
                sha256, size_bytes = sha256_of_file(cast("pa.NativeFile", stored)), stored.tell()
        except FileNotFoundError:
            raise _write_error(location, f"{self._size_bytes} bytes", "no such file") from None
        if sha256 != self._sha256.hexdigest():
            actual = f"{size_bytes} bytes" if size_bytes != self._size_bytes else "other bytes"
            raise _write_error(location, f"the {self._size_bytes} bytes", actual)


def _write_error(location: str, expected: str, actual: str) -> LakeUnavailableError:
    return LakeUnavailableError(
        f"{location}: expected {expected} that were written a moment ago, found {actual}: the object store "
        "acknowledged a file that it doesn't have. The table and the store were not changed. Run again: what "
        "is proven already is kept. If the error comes again, repair the object store."
    )


class ReadBackFile(PyArrowFile):
    """An object that is read back once it is written."""

    def create(self, overwrite: bool = False) -> OutputStream:
        return ReadBackStream(self, overwrite=overwrite)


def new_data_file(file_io: FileIO, location: str) -> OutputStream:
    """Create a data file. An object is not read back when it is closed, because its proof does that."""
    output = file_io.new_output(location)
    if isinstance(output, ReadBackFile):
        return PyArrowFile.create(output, overwrite=True)
    return output.create(overwrite=True)


class DurableFileIO(PyArrowFileIO):
    """PyIceberg's Arrow FileIO with durable local files; named by the property ``py-io-impl``.

    An object in an object store is read back before anything names it.
    """

    def new_input(self, location: str) -> PyArrowFile:
        self._check(location)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self._check(location)
        output = super().new_output(location)
        kind = ReadBackFile if local_path(location) is None else DurableFile
        return kind(location, output._path, output._filesystem, output._buffer_size)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._check(location if isinstance(location, str) else location.location)
        super().delete(location)

    def _check(self, location: str) -> None:
        if not may_open(self.properties, location):
            scheme, netloc, _ = PyArrowFileIO.parse_location(location)
            raise LakeUnavailableError(
                f"{location}: expected a file in storage that the lake's configuration names, found "
                f"{scheme} at {netloc}: another program put it there, or the lake was moved. Nothing was "
                "opened or changed. Move the table's files back below the lake's warehouse by that "
                "program; or name that storage in the lake's properties."
            )
