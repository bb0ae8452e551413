"""The records of a node's copy of the cluster's metadata, once nothing of the copy is missing or damaged.

A copy is the log ``__cluster_metadata-0`` and snapshots beside it. Its offsets have no holes, and its oldest
segments go only once a snapshot has them (KafkaMetadataLog#maybeClean). What lost one record would let a
topic that is there look deleted. An older copy that is whole can't be told from a new one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path

from storage_engine.kafka.format.file_names import FileKind, FileState, log_file
from storage_engine.kafka.format.stored_files import corrupt, read_stored

REMEDY = "Compare the file with another node's."
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint\Z", re.ASCII)
_FOOTER = "snapshot-footer"
_MAX_BYTES = 1 << 30
_Values = Generator[tuple[Path, bytes], None, tuple[int, str | None]]
"""Values; returns the offset behind the last record, and of which kind that is if it is a control record."""


def metadata_values(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the values of the newest snapshot's records and of those behind it, with their files.

    Who has not come to the end does not know that the copy is whole.

    :param directory: of the log.
    :raises CorruptFileError: a file is damaged, or ends in a part of a batch, as after an unclean stop;
        records are missing before the first segment, between two, or at the end.
    :raises OSError: a file can't be read.
    """
    names = sorted(path.name for path in directory.iterdir())
    files = [(name, file) for name in names if (file := log_file(name)) and file.state is FileState.IN_USE]
    segments = [(file.offset, directory / name) for name, file in files if file.kind is FileKind.LOG]
    snapshots = [name for name in names if _SNAPSHOT.match(name)]
    begin = int(snapshots[-1][:20]) if snapshots else 0
    if not segments or segments[0][0] > begin:
        found = f"they begin at {segments[0][0]}" if segments else "none"
        raise corrupt(directory, 0, f"segments from offset {begin} or an earlier one on", found, REMEDY)
    if snapshots:
        path = directory / snapshots[-1]
        _, last = yield from _values(path, 0, 0)
        if last != _FOOTER:
            raise corrupt(path, path.stat().st_size, "the record that ends a snapshot", "none", REMEDY)
    end = segments[0][0]
    for base, path in segments:
        if base != end:
            raise corrupt(path, 0, f"offset {end}, where the segment before ends", f"{base}", REMEDY)
        end, _ = yield from _values(path, base, begin)
    # A broker writes a producer snapshot where a segment ends, and at the log's end when it stops.
    known = max((file.offset for _, file in files if file.kind is FileKind.SNAPSHOT), default=1)
    if end < max(known, begin):
        path = segments[-1][1]
        raise corrupt(
            path,
            path.stat().st_size,
            f"records up to offset {max(known, begin)}",
            f"the end at {end}",
            REMEDY,
        )


def _values(path: Path, base: int, begin: int) -> _Values:
    """Yield the values of a file's records from offset ``begin`` on.

    :param base: offset of its first record.
    """
    # Arrow takes longer to load than many a store takes to be looked at.
    from storage_engine.kafka.codec.codec import CODEC

    end, last = base, None
    for rows, damages in CODEC.decode(memoryview(read_stored(path, _MAX_BYTES)), 0):
        for one in damages:
            raise corrupt(path, one.offset, one.expected, one.found, REMEDY)
        # A batch alone has all of these, its records don't.
        batches = rows.select(["physical_offset", "base_offset", "last_offset_delta"]).drop_null()
        for at, first, delta in zip(*(column.to_pylist() for column in batches.columns), strict=True):
            if first != end:
                raise corrupt(path, at, f"a batch of offset {end}, as none is missing", f"{first}", REMEDY)
            end += delta + 1
        last = rows["control"][-1].as_py()
        columns = (rows[name].to_pylist() for name in ("kind", "offset", "value"))
        for kind, offset, value in zip(*columns, strict=True):
            if kind == "message" and value and offset >= begin:
                yield path, value
    return end, last
