"""Segments that can't be archived as they are: one error, which names the file, the place and both sides."""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from storage_engine.crc import crc32c_of
from storage_engine.exceptions import CorruptFrameError
from storage_engine.kafka.codec import decode
from storage_engine.kafka.codec.codec import CODEC
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.data_file import write_data_file
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.model.store import FileFacts
from tests.kafka import batches

WHOLE = batches.batch([batches.Record(1, b"k", b"v")], base_offset=3)
OTHER = WHOLE[:-1] + b"\x07"
_LONG = batches.batch([batches.Record(1, None, bytes(5000))] * 4)
BOMB = batches.batch([batches.Record(1, None, b"")] * 4, attributes=4, payload=zstandard.compress(_LONG[61:]))

CASES = {
    "a torn batch": (WHOLE[:-9], f"a batch of {len(WHOLE)} bytes", f"{len(WHOLE) - 9} bytes up to the end"),
    "a wrong CRC": (
        OTHER,
        f"CRC-32C {WHOLE[17:21].hex()} of the bytes behind it",
        f"{crc32c_of(OTHER[21:]):08x}",
    ),
    "an unknown magic": (WHOLE[:16] + b"\x03" + WHOLE[17:], "magic 0, 1 or 2", "magic 3"),
}


AS_WRITTEN = {
    "a batch that expands beyond the bound": BOMB,
    "a batch with more records than bytes": batches.with_crc(WHOLE[:57] + struct.pack(">i", 9) + WHOLE[61:]),
}


def _job(path: Path, data: bytes, tmp_path: Path) -> SegmentJob:
    path.write_bytes(data)
    return SegmentJob(
        store_id="7d0f3d3c-1f0c-4b3a-9a51-2f6f5a0a7c11",
        lineage=0,
        broker="kafka",
        store_root=str(tmp_path),
        log="t-0",
        base_offset=0,
        facts=FileFacts.of(path),
        lake=LakeConfig.local(tmp_path / "lake"),
        messages_location="file:///nowhere/records",
        accept_damage=False,
    )


@pytest.mark.parametrize("bad", AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_unreadable_bytes_whose_crc_is_right_are_archived_as_they_are(
    bad: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "MAX_EXPANDED_BYTES", 10_000)
    sink = io.BytesIO()
    job = _job(tmp_path / f"{0:020d}.log", WHOLE + bad, tmp_path)
    write_data_file(job, CODEC, memoryview(WHOLE + bad), sink)
    rows = pq.read_table(sink).to_pylist()
    assert [(row["kind"], row["size"]) for row in rows][-1] == ("undecodable", len(bad))
    assert rows[-1]["raw"] == bad


@pytest.mark.parametrize(("bad", "expected", "found"), CASES.values(), ids=CASES)
def test_bad_bytes_are_one_error(bad: bytes, expected: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    job = _job(path, WHOLE + bad, tmp_path)
    said = (
        rf"{re.escape(str(path))}: .* offset {len(WHOLE)}: expected {re.escape(expected)}.*, found .*{found}"
    )
    with pytest.raises(CorruptFrameError, match=said):
        write_data_file(job, CODEC, memoryview(path.read_bytes()), io.BytesIO())
    assert path.read_bytes() == WHOLE + bad
