"""Damage of a lake's files is told as one error that names the file."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_engine.exceptions import ProofError
from storage_engine.lake.storage.errors import parquet_errors


def test_a_footer_that_names_other_columns_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "segment.parquet"
    pq.write_table(pa.table({"tags": ["a"]}), path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"tags", b"uags"))
    with pytest.raises(ProofError, match=f"{path}: expected a whole Parquet file"), parquet_errors(str(path)):
        pq.ParquetFile(path, read_dictionary=["tags"])
