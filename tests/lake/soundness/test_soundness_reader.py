"""Many receipts are told to be sound by a few comparisons: of none that isn't, whatever is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile

from storage_engine.lake.archive import archive as archiving
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.file.scan import LiveFile, live_data_files
from storage_engine.lake.soundness.chain import row_faults, row_hash
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import Reader, broken_receipts
from storage_engine.model.proof.receipt import Receipt
from tests.lake.conftest import MakeJobs

_PLACES = {field.name: at for at, field in enumerate(DATA_FILE_TYPE[2].fields)}


@pytest.fixture(params=["own files", "shared file"])
def rows(
    request: pytest.FixtureRequest,
    lake: Lake,
    segments: list[Path],
    make_jobs: MakeJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Receipt, ...]:
    if request.param == "shared file":
        monkeypatch.setattr(archiving, "SHARED_LEAST_SEGMENTS", 2)
        monkeypatch.setattr(archiving, "topic_of", lambda broker, log: "orders")
    archive_all(lake, make_jobs(lake, *segments))
    return receipts(lake, "store-1")


def _changed(row: Receipt) -> Iterator[Receipt]:
    """Yield a receipt with a field changed, and with each field and its hash changed."""
    yield replace(row, message_count=row.message_count + 1)
    for field in fields(row):
        value: Any = getattr(row, field.name)
        others = (value + 1, value - 1) if isinstance(value, int) else (f"{value or ''}0", "z")
        for other in ("[]",) if field.name == "moved_to" else others:
            changed = replace(row, **{field.name: other})
            yield replace(changed, row_hash=row_hash(asdict(changed)))


def _entries(file: LiveFile) -> Iterator[tuple[LiveFile, ...]]:
    """Yield what a table may list in place of a file."""
    yield ()
    yield file, file
    yield (replace(file, deletes=(DataFile.from_args(file_path="file:///deletes.parquet"),)),)
    lower, upper = file.entry.lower_bounds, file.entry.upper_bounds
    for name, value in [
        ("record_count", 1),
        ("file_size_in_bytes", file.entry.file_size_in_bytes + 1),
        ("lower_bounds", None),
        ("upper_bounds", {}),
        *(("lower_bounds", {**lower, key: b"\xff" * 8}) for key in lower),
        *(("upper_bounds", {**upper, key: b"\x00" * 8}) for key in upper),
        *(("upper_bounds", {**upper, key: b"\xff" * 3}) for key in upper),
    ]:
        entry = DataFile(*(file.entry[at] for at in range(len(file.entry))))
        entry.spec_id = file.entry.spec_id
        entry[_PLACES[name]] = value
        yield (LiveFile(entry),)


def _looks(lake: Lake, live: tuple[LiveFile, ...], rows: list[Receipt]) -> list[list[str]]:
    """Return the faults that a look at each receipt finds, and those of looking at all at once."""
    one, many = Reader(lake.messages(), live), Reader(lake.messages(), live)
    told = []
    for row in rows:
        faults = many.faulty([row])
        looked = one.look(row, Depth.SIZES).faults
        assert [look.faults for look in faults.values()] == ([looked] if looked else [])
        told.append([str(fault) for fault in looked])
    return told


def test_a_receipt_with_any_field_changed_is_looked_at_closely(lake: Lake, rows: tuple[Receipt, ...]) -> None:
    live = live_data_files(lake.messages(), "store-1")
    assert _looks(lake, live, list(rows)) == [[]] * len(rows)
    found = _looks(lake, live, list(_changed(rows[1])))
    assert sum(map(bool, found)) > 10
    assert row_faults(rows) == {}
    assert row_faults(changed := list(_changed(rows[1]))).keys() >= {id(changed[0])}


def test_a_receipt_whose_file_the_table_lists_otherwise_is_looked_at_closely(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    first, *others = live_data_files(lake.messages(), "store-1", statistics=True)
    faults = [_looks(lake, (*listed, *others), list(rows)) for listed in _entries(first)]
    assert sum(any(found) for found in faults) > 6


def test_a_receipt_whose_file_has_another_length_or_is_gone_is_looked_at_closely(
    lake: Lake, rows: tuple[Receipt, ...]
) -> None:
    live = live_data_files(lake.messages(), "store-1")
    path = Path(live[0].location.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1])
    assert any(_looks(lake, live, list(rows)))
    path.unlink()
    assert any(_looks(lake, live, list(rows)))


@pytest.mark.parametrize("other", ["directory", "pipe", "link to itself", "its directory is a file"])
def test_a_receipt_with_something_else_in_its_files_place_has_no_file(
    lake: Lake, rows: tuple[Receipt, ...], other: str
) -> None:
    live = live_data_files(lake.messages(), "store-1")
    path = Path(live[0].location.removeprefix("file://"))
    if other == "its directory is a file":
        path.parent.rename(path.parent.with_name("elsewhere"))
        path.parent.touch()
    else:
        path.unlink()
        make = {"directory": Path.mkdir, "pipe": os.mkfifo, "link to itself": lambda it: it.symlink_to(it)}
        make[other](path)
    found = broken_receipts(lake, rows)
    assert {text for text in found.values() if str(path) in text} == {
        f"data file {live[0].location} is missing"
    }
    assert [text for (text,) in filter(None, _looks(lake, live, list(rows)))] == list(found.values())
