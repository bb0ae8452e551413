from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import StoreLayoutError
from storage_engine.rocketmq.format.mapped_files import MappedFile, file_name, list_mapped_files, map_file


@given(st.integers(0, 2**63 - 1))
def test_a_file_is_named_by_its_first_offset(offset: int) -> None:
    assert len(file_name(offset)) == 20
    assert int(file_name(offset)) == offset


def test_files_of_several_directories_form_one_offset_space(tmp_path: Path) -> None:
    for directory, base_offset in (("a", 200), ("b", 100), ("a", 300)):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / file_name(base_offset)).write_bytes(bytes(100))
    (tmp_path / "a" / "directory").mkdir()
    files = list_mapped_files((tmp_path / "a", tmp_path / "b", tmp_path / "none"), error=StoreLayoutError)
    assert files == (
        MappedFile(tmp_path / "b" / file_name(100), 100, 100),
        MappedFile(tmp_path / "a" / file_name(200), 200, 100),
        MappedFile(tmp_path / "a" / file_name(300), 300, 100),
    )
    assert files[-1].end_offset == 400


def test_a_mapping_is_gone_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with map_file(path) as data:
        assert data.readonly
        assert bytes(data[3:5]) == b"34"
        assert str(path) in Path("/proc/self/maps").read_text()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_file_that_ends_within_an_entry_is_told_by_its_size(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).write_bytes(bytes(30))
    with pytest.raises(StoreLayoutError, match="expected a multiple of 20 bytes, found 30"):
        list_mapped_files((tmp_path,), error=StoreLayoutError, unit_bytes=20)


def test_an_empty_file_before_the_last_is_named_and_an_empty_last_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / file_name(0)).write_bytes(b"")
    assert list_mapped_files((tmp_path,), error=StoreLayoutError, unit_bytes=20) == ()
    for base_offset, size_bytes in ((100, 100), (200, 0)):
        (tmp_path / file_name(base_offset)).write_bytes(bytes(size_bytes))
        with pytest.raises(StoreLayoutError, match=rf"{file_name(0)}: expected a file of whole .* 0 bytes"):
            list_mapped_files((tmp_path,), error=StoreLayoutError, unit_bytes=20)
    (tmp_path / file_name(0)).unlink()
    assert [file.base_offset for file in list_mapped_files((tmp_path,), error=StoreLayoutError)] == [100]
