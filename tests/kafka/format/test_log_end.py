"""The end of a log by few bytes, also where its index is preallocated, as beside a running broker."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from storage_engine.kafka.format.log_end import _INDEX_ENTRY, _last_entry

PREALLOCATED_BYTES = 10 << 20


@pytest.mark.parametrize("first", [(0, 0), (3, 4096)])
@pytest.mark.parametrize("used", [0, 1, 2, 3, 1000, PREALLOCATED_BYTES // 8])
def test_the_last_entry_of_a_preallocated_index_takes_few_reads(
    first: tuple[int, int], used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [first, *((i * 10, i * 5000 % (1 << 31)) for i in range(1, used))][:used]
    path = tmp_path / "0.index"
    path.write_bytes(b"".join(struct.pack(">ii", *one) for one in entries))
    os.truncate(path, PREALLOCATED_BYTES)
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    expected = entries[-1] if entries and any(entries[-1]) else None
    assert _last_entry(str(path), _INDEX_ENTRY) == expected
    assert len(reads) <= 24
    assert sum(reads) <= 4096 + 24 * 8
