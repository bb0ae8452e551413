from __future__ import annotations

import errno
from pathlib import Path

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import PyArrowFile

from storage_engine.lake.catalog.config import DURABLE_FILE_IO
from storage_engine.lake.durable_io import (
    DurableFileIO,
    DurableOutputStream,
    ReadBackFile,
    local_path,
    open_data_file,
    recorded_outputs,
    sha256_of_file,
)


def test_the_property_loads_it() -> None:
    assert isinstance(load_file_io({"py-io-impl": DURABLE_FILE_IO}), DurableFileIO)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_local_file_is_written_below_directories_that_are_made(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "a" / "b" / "file"
    output = DurableFileIO().new_output(f"{scheme}{path}")
    with output.create() as stream:
        stream.write(b"manifest")
        assert stream.tell() == 8
    assert path.read_bytes() == b"manifest"
    assert len(output.to_input_file()) == 8


def test_a_file_is_overwritten_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    output = DurableFileIO().new_output(str(path))
    with pytest.raises(FileExistsError):
        output.create()
    assert path.read_bytes() == b"old"
    with output.create(overwrite=True) as stream:
        stream.write(b"new")
    assert path.read_bytes() == b"new"


def test_other_schemes_are_left_to_pyiceberg_and_read_back() -> None:
    file_io = DurableFileIO({"s3.region": "eu-west-1"})
    assert type(file_io.new_input("s3://bucket/key")) is PyArrowFile
    assert type(file_io.new_output("s3://bucket/key")) is ReadBackFile
    assert local_path("s3://bucket/key") is None


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    stream = DurableOutputStream(Path("/dev/full"), overwrite=True)
    stream.write(b"x" * 10)
    with pytest.raises(OSError, match="/dev/full") as raised:
        stream.close()
    assert raised.value.errno == errno.ENOSPC
    assert stream.closed


def test_files_created_meanwhile_are_recorded(tmp_path: Path) -> None:
    file_io = DurableFileIO()
    with recorded_outputs() as outer:
        with recorded_outputs() as inner:
            file_io.new_output(str(tmp_path / "one")).create().close()
        file_io.new_output(str(tmp_path / "two")).create().close()
    file_io.new_output(str(tmp_path / "three")).create().close()
    assert inner == [str(tmp_path / "one")]
    assert outer == [str(tmp_path / "one"), str(tmp_path / "two")]


def test_a_data_file_is_hashed_whole_wherever_it_was_read_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with open_data_file(DurableFileIO(), str(path)) as file:
        file.read(2)
        assert sha256_of_file(file) == ("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
