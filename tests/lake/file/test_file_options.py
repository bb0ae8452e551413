"""Options of a data file's writer, by a sample of its rows."""

from __future__ import annotations

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_engine.lake.file.file_options import COMPRESSION_LEVEL, writer_options
from storage_engine.model.broker.codec import Columns

SCHEMA = pa.schema([("key", pa.binary_view()), ("raw", pa.binary_view()), ("topic", pa.string())])
COLUMNS = Columns(dictionary=("key", "topic"), keys=("key",))
ROWS = 2000


def rows(key: list[bytes | None], raw: list[bytes | None]) -> pa.Table:
    return pa.table({"key": key, "raw": raw, "topic": ["t"] * len(key)}, SCHEMA)


NUMBERED: list[bytes | None] = [b"key-%d" % one for one in range(ROWS)]
TEXTS: list[bytes | None] = [b"words and words again " * 10] * ROWS
NOISE: list[bytes | None] = [random.Random(one).randbytes(200) if one % 2 else None for one in range(ROWS)]


@pytest.mark.parametrize(
    ("key", "has_dictionary"),
    [
        (NUMBERED, False),
        ([b"key-%d" % (one % 50) for one in range(ROWS)], True),
        ([b"key-%d" % (one * 4 // 5) for one in range(ROWS)], True),
        ([None] * ROWS, True),
        ([None, *NUMBERED[1:]], False),
    ],
)
def test_keys_have_a_dictionary_where_they_come_again(key: list[bytes | None], has_dictionary: bool) -> None:
    options = writer_options(SCHEMA, COLUMNS, rows(key, TEXTS))
    assert ("key" in options["use_dictionary"]) is has_dictionary
    assert "topic" in options["use_dictionary"]


@pytest.mark.parametrize(
    ("raw", "is_packed"),
    [(NOISE, True), (TEXTS, False), ([None] * ROWS, False), ([*NOISE[:200], *[None] * (ROWS - 200)], False)],
)
def test_what_does_not_shrink_is_hardly_compressed(raw: list[bytes | None], is_packed: bool) -> None:
    level = writer_options(SCHEMA, COLUMNS, rows(NUMBERED, raw))["compression_level"]
    assert (level != COMPRESSION_LEVEL) is is_packed
    assert not is_packed or list(level) == ["raw"]


def test_a_file_of_no_rows_has_options() -> None:
    options = writer_options(SCHEMA, COLUMNS, None)
    assert options["compression_level"] == COMPRESSION_LEVEL
    assert "key" in options["use_dictionary"]


@pytest.mark.parametrize("raw", [NOISE, TEXTS])
def test_what_was_written_is_read_back(raw: list[bytes | None]) -> None:
    table, out = rows(NUMBERED, raw), io.BytesIO()
    with pq.ParquetWriter(out, SCHEMA, **writer_options(SCHEMA, COLUMNS, table)) as writer:
        writer.write_table(table)
    found = pq.ParquetFile(out)
    assert found.read().cast(SCHEMA).to_pylist() == table.to_pylist()
    assert {found.metadata.row_group(0).column(i).compression for i in range(3)} == {"ZSTD"}
