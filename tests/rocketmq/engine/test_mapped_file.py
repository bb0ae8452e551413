"""One file of the log: what of it is in memory before it is written."""

from __future__ import annotations

import re
from pathlib import Path

from storage_engine.rocketmq.engine.mapped_file import WritableFile

FILE_BYTES = 64 << 20
MOST_BYTES = 33 << 20


def in_memory(path: Path, kind: str) -> int:
    """Return how many bytes of a mapped file are in memory, or dirty, as the kernel says."""
    (part,) = re.findall(
        rf"[^\n]*{re.escape(str(path))}\n(?:[A-Z][^\n]*\n)+", Path("/proc/self/smaps").read_text()
    )
    return sum(int(size) << 10 for size in re.findall(rf"^{kind}: +(\d+) kB$", part, re.MULTILINE))


def test_what_is_written_next_is_mapped_and_stays_clean(tmp_path: Path) -> None:
    file = WritableFile(tmp_path / "00000000000000000000", 0, FILE_BYTES)
    assert in_memory(file.path, "Rss") < 1 << 20
    file.map_ahead()
    mapped = in_memory(file.path, "Rss")
    assert 16 << 20 < mapped < MOST_BYTES
    assert in_memory(file.path, r"\w+_Dirty") == 0
    # Again only once much of that is written.
    file.set_positions(100)
    file.map_ahead()
    assert in_memory(file.path, "Rss") == mapped
    file.set_positions(20 << 20)
    file.map_ahead()
    assert mapped + (16 << 20) < in_memory(file.path, "Rss") < mapped + MOST_BYTES
    file.set_positions(FILE_BYTES)
    file.map_ahead()
    file.shutdown(0, 0)
    file.map_ahead()
    assert file.is_cleaned_up
