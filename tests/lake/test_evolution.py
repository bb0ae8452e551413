"""A lake that an older version made is read, written, verified and restored by this one, or both in turn.

What a lake of version 1 becomes is in test_takeover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.archive.commit import append_receipts
from storage_engine.lake.catalog import catalog, tables, writing
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.lake.move import making
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.lake.verify.verify import verify
from storage_engine.model.broker.codec import SegmentCodec
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.rocketmq import RocketMQ
from storage_engine.rocketmq.codec.codec import CODEC
from tests.services.restoring import restore

pytestmark = pytest.mark.slow

MakeJobs = Callable[..., tuple[SegmentJob, ...]]

LATER = "unique_key"
"""Taken for a column that came after version 3.0."""

LATER_OF_RECEIPTS = "act"


class _OlderCodec(SegmentCodec):
    """Knows all columns but the later one."""

    schema = CODEC.schema.remove(CODEC.schema.get_field_index(LATER))
    columns = replace(CODEC.columns, file_bounds=("keys",))
    encoded_columns = CODEC.encoded_columns

    def origin(self, base_offset: int) -> int:
        return CODEC.origin(base_offset)

    def decode(self, data: memoryview, base_offset: int, **options: Any) -> Iterator[Any]:
        for rows, damage in CODEC.decode(data, base_offset, **options):
            yield rows.drop_columns([LATER]), damage

    def encode(self, rows: Any, out: memoryview, base_offset: int) -> int:
        return CODEC.encode(rows, out, base_offset)


@contextmanager
def _older_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fields = [field for field in tables.segments_schema().fields if field.name != LATER_OF_RECEIPTS]
    with monkeypatch.context() as patched:
        patched.setattr(tables, "LATER_COLUMNS", ())
        for module in (making, tables, writing):
            patched.setattr(module, "segments_schema", lambda **_: Schema(*fields))
        patched.setattr(RocketMQ, "codec", _OlderCodec())
        yield


def _ids(schema: Schema) -> dict[str, int]:
    return {schema.find_column_name(field_id) or "": field_id for field_id in schema.field_ids}


@pytest.mark.again
def test_a_lake_of_an_older_version_goes_on(
    tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    with _older_version(monkeypatch):
        lake = make_lake(config)
        archive_all(lake, make_jobs(lake, segments[0]))
        before = [_ids(table.schema()) for table in (lake.messages(), lake.segments())]
        files = {task.file.file_path for task in lake.messages().scan().plan_files()}
    assert LATER not in before[0]
    assert LATER_OF_RECEIPTS not in before[1]

    monkeypatch.setattr(tables, "LATER_COLUMNS", (LATER,))
    monkeypatch.setattr(tables, "SCHEMA_VERSION", "3.1")
    # Reading changes nothing, and an older lake can be read.
    lake = open_lake(config)
    assert [_ids(table.schema()) for table in (lake.messages(), lake.segments())] == before
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())

    ready_to_write(lake)
    after = [_ids(table.schema()) for table in (lake.messages(), lake.segments())]
    assert [{name: new[name] for name in old} for old, new in zip(before, after, strict=True)] == before
    assert after[0][LATER] == max(before[0].values()) + 1
    assert lake.messages().properties[tables.SCHEMA_VERSION_PROPERTY] == "3.1"
    # A new lake of this version has the same ids.
    new_lake = make_lake(LakeConfig.local(tmp_path / "new"))
    ready_to_write(new_lake)
    assert _ids(new_lake.messages().schema()) == after[0]

    archive_all(lake, make_jobs(lake, *segments[:2]))
    assert files < {task.file.file_path for task in lake.messages().scan().plan_files()}
    with _older_version(monkeypatch):
        older = open_lake(config)
        archive_all(older, make_jobs(older, segments[2]))
        assert len(list(restore(older, "store-1", tmp_path / "restored by the older"))) == 3

    rows = receipts(lake, "store-1")
    assert broken_receipts(lake, rows, Depth.FILES) == {}
    check_chain(receipt_history(lake, "store-1"))
    values = lake.messages().scan(selected_fields=("segment_base_offset", LATER)).to_arrow()
    there = values.filter(pc.is_valid(values[LATER]))["segment_base_offset"].unique().to_pylist()
    assert there == [1 << 20]
    # Rows of every version, in files that another engine has written with the newest columns.
    lake.messages().overwrite(lake.messages().scan().to_arrow())
    assert len(reprove(lake, "store-1", rows)) == 3
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    for restored in restore(lake, "store-1", tmp_path / "restored", files_only=True):
        source = segments[0].parent / Path(restored.path).name
        assert Path(restored.path).read_bytes() == source.read_bytes()


def test_columns_are_added_before_receipts_are_and_while_nobody_else_changes_a_lake(
    tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    with _older_version(monkeypatch):
        lake = make_lake(config)
        archive_all(lake, make_jobs(lake, segments[0]))
    monkeypatch.setattr(tables, "LATER_COLUMNS", (LATER,))
    locked: list[bool] = []

    def evolve(table: Table, expected: Schema, properties: dict[str, str]) -> None:
        locked.append(catalog.CHANGE_LOCK.locked())
        tables.evolve(table, expected, properties)

    monkeypatch.setattr(writing, "evolve", evolve)
    lake = open_lake(config)
    append_receipts(lake, "store-1", lambda _: ())
    assert LATER in _ids(lake.messages().schema())
    assert LATER_OF_RECEIPTS in _ids(lake.segments().schema())
    assert locked == [True, True]
