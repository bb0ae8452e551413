"""What is wrong with the files in a commitlog's directories, by their names and sizes alone. Pure.

A broker doesn't start with a file that has another size or whose name is no offset (MappedFileQueue#doLoad).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from storage_engine.core.wording import bytes_text, count_text, exact_bytes_text
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.rocketmq.format.mapped_files import MappedFile, file_name, is_offset, readable_files

_REPLICA = "compare it with a replica or a backup"


def log_damage(files: Sequence[tuple[Path, int]], size_bytes: int | None) -> Iterator[Finding]:
    """Yield the faults that keep a broker from starting, or that show that bytes of the log are missing.

    :param files: as :func:`~storage_engine.rocketmq.format.mapped_files.list_raw_files` lists them.
    :param size_bytes: mappedFileSizeCommitLog where it is set; None: as most files are.
    """
    foreign = [path for path, size in files if not is_offset(path.name) or size < 0]
    if foreign:
        yield _urgent(
            "foreign-file",
            f"{_first_of(foreign, 'file')} is no segment: a broker doesn't start with it",
            f"move it out of the directory: mv {foreign[0]} ELSEWHERE",
        )
    segments = [(path, size) for path, size in files if is_offset(path.name) and size >= 0]
    if not segments:
        return
    common = Counter(size for _, size in segments).most_common(1)[0][0]
    if size_bytes is not None and all(size != size_bytes for _, size in segments):
        yield _urgent(
            "segment-size",
            f"mappedFileSizeCommitLog is {exact_bytes_text(size_bytes)}, the segments have "
            f"{exact_bytes_text(common)}: a broker doesn't start with this setting",
            f"set mappedFileSizeCommitLog={common}",
        )
        size_bytes = common
    expected = size_bytes or common
    odd = [(path, size) for path, size in segments if size != expected]
    if odd:
        path, size = odd[0]
        more = f" and {count_text(len(odd) - 1, 'more segment')}" if len(odd) > 1 else ""
        yield _urgent(
            "segment-size",
            f"{path} has {exact_bytes_text(size)} and not {exact_bytes_text(expected)}{more}: a broker "
            "doesn't start with it",
            _REPLICA,
        )
    sound = readable_files([one for one in segments if one[1] == expected])
    yield from _places(sound, expected)


def _places(files: Sequence[MappedFile], size_bytes: int) -> Iterator[Finding]:
    between = [file.path for file in files if file.base_offset % size_bytes]
    if between:
        yield _urgent(
            "segment-name",
            f"{_first_of(between, 'segment')} begins at no multiple of {bytes_text(size_bytes)}",
            _REPLICA,
        )
    twice = [right.path for left, right in pairwise(files) if left.base_offset == right.base_offset]
    if twice:
        yield _urgent(
            "segment-twice",
            f"{_first_of(twice, 'segment')} is in two of the log's directories",
            "find out which one the broker wrote last, and move the other one away",
        )
    holes = [
        (left.end_offset, right.base_offset)
        for left, right in pairwise(files)
        if right.base_offset > left.end_offset
    ]
    if holes:
        (start, end), missing = holes[0], sum(end - start for start, end in holes)
        more = f", the first of {len(holes)} holes" if len(holes) > 1 else ""
        yield _urgent(
            "hole",
            f"the log has nothing from offset {start} to {end}{more}: {bytes_text(missing)} are missing",
            f"bring {file_name(start)} and what follows it back from a replica, or from a lake: "
            "storage-engine restore",
        )


def _first_of(paths: Sequence[Path], thing: str) -> str:
    return f"{paths[0]}" if len(paths) == 1 else f"{paths[0]} (and {count_text(len(paths) - 1, thing)} more)"


def _urgent(kind: str, what: str, advice: str) -> Finding:
    return Finding(Severity.URGENT, kind, what, advice)
