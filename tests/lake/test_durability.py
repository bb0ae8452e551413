"""What a power cut could take: told from the system calls of a process that archives and then deletes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path

_ARCHIVE_AND_DELETE = """
import sys
from pathlib import Path
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.store import FileFacts, Segment, SegmentState

directory, path = sys.argv[1:]
lake = make_lake(LakeConfig.local(directory))
segment = Segment("commitlog", int(Path(path).name), FileFacts.of(path), SegmentState.SEALED)
archive_all(lake, segment_jobs(
    lake, [segment], store_id="store-1", lineage=0, broker="rocketmq", store_root="/store"
))
Path(path).unlink()
"""

_SYNC = re.compile(r"(?:fsync|fdatasync)\(\d+<(?P<path>[^>]+)>\)\s*= 0")
_WRITE = re.compile(r"(?:pwrite64|write|writev|ftruncate)\(\d+<(?P<path>[^>]+)>")
_UNLINK = re.compile(r'(?:unlink|unlinkat)\([^"]*"(?P<path>[^"]+)"')
_LINK = re.compile(r'(?:link|linkat|rename|renameat|renameat2)\(.*"(?P<path>[^"]+)"[^"]*\)\s*= 0')
_CREATE = re.compile(r'openat\([^"]*"(?P<path>[^"]+)".*O_CREAT.*= \d+<')
_MAKE = re.compile(r'mkdir(?:at)?\([^"]*"(?P<path>[^"]+)".*= 0')


@pytest.mark.integration
def test_everything_the_lake_consists_of_is_on_disk_before_the_source_is_unlinked(
    tmp_path: Path, segments: list[Path]
) -> None:
    root, source = tmp_path / "lake", segments[0]
    trace = tmp_path / "trace"
    calls = (
        "openat,write,pwrite64,writev,ftruncate,fsync,fdatasync,unlink,unlinkat,"
        "link,linkat,rename,renameat,renameat2,mkdir,mkdirat"
    )
    command = ["strace", "-f", "-y", "-s", "4096", "-e", f"trace={calls}", "-o", str(trace)]
    script = [sys.executable, "-c", _ARCHIVE_AND_DELETE, str(root), str(source)]
    # Without what make test lets pass for an fsync.
    environment = {**os.environ, "LD_PRELOAD": ""}
    subprocess.run([*command, *script], check=True, timeout=300, env=environment)
    assert not source.exists()
    events = _events(trace, source)
    lake = open_lake(LakeConfig.local(root))
    files = _files_of(lake.messages()) | _files_of(lake.segments()) | {root / "catalog.db"}
    assert {file.suffix for file in files} == {".parquet", ".avro", ".json", ".db"}
    for file in files:
        written = events.last_change.get(_written_as(file, events))
        assert written is not None, f"{file} was never written"
        assert events.synced_after(_written_as(file, events), written), f"{file} was not fsynced"
        assert events.synced_after(file.parent, events.named[file]), f"the name {file} was not fsynced"
    for directory in {parent for file in files for parent in file.parents if root in parent.parents}:
        assert events.synced_after(directory.parent, events.named[directory]), f"{directory} was not fsynced"


class _Events:
    """Line numbers of what happened to each path before the source was unlinked."""

    def __init__(self) -> None:
        self.last_change: dict[Path, int] = {}
        self.named: dict[Path, int] = {}
        self.linked_from: dict[Path, Path] = {}
        self.syncs: dict[Path, list[int]] = {}

    def synced_after(self, path: Path, line: int) -> bool:
        return any(sync > line for sync in self.syncs.get(path, []))


def _events(trace: Path, source: Path) -> _Events:
    events = _Events()
    unfinished: dict[str, str] = {}
    for number, raw in enumerate(trace.read_text().splitlines()):
        thread, _, line = raw.partition(" ")
        line = line.strip()
        # A call during which another thread made one is written in two parts.
        if line.endswith("<unfinished ...>"):
            unfinished[thread] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", line):
            line = unfinished.pop(thread) + resumed[1]
        if (match := _UNLINK.match(line)) and match["path"] == str(source):
            return events
        if match := _SYNC.match(line):
            events.syncs.setdefault(Path(match["path"]), []).append(number)
        elif match := _WRITE.match(line):
            events.last_change[Path(match["path"])] = number
        elif (match := _MAKE.match(line)) or (match := _CREATE.match(line)):
            events.named.setdefault(Path(match["path"]), number)
        elif match := _LINK.match(line):
            events.named[Path(match["path"])] = number
            events.linked_from[Path(match["path"])] = Path(re.findall(r'"([^"]+)"', line)[0])
    raise AssertionError(f"{source} was never unlinked")


def _written_as(file: Path, events: _Events) -> Path:
    return events.linked_from.get(file, file)


def _files_of(table) -> set[Path]:
    """Every file that the table's current state consists of."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io)
    locations = [
        table.metadata_location,
        snapshot.manifest_list,
        *(manifest.manifest_path for manifest in manifests),
        *(task.file.file_path for task in table.scan().plan_files()),
    ]
    return {path for location in locations if (path := local_path(location)) is not None}
