from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.kafka.format.file_names import (
    DirectoryState,
    FileKind,
    FileState,
    LogFile,
    PartitionDirectory,
    log_file,
    partition_directory,
)

UNIQUE = "d41d3012873b454994859ec85cfa066f"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain-0", PartitionDirectory("plain", 0, DirectoryState.LOG, "")),
        ("with-dash.and.dot-12", PartitionDirectory("with-dash.and.dot", 12, DirectoryState.LOG, "")),
        (f"plain-3.{UNIQUE}-delete", PartitionDirectory("plain", 3, DirectoryState.DELETED, UNIQUE)),
        (f"a-1.{UNIQUE}-future", PartitionDirectory("a", 1, DirectoryState.FUTURE, UNIQUE)),
        (f"a-1.{UNIQUE}-stray", PartitionDirectory("a", 1, DirectoryState.STRAY, UNIQUE)),
        ("remote-log-index-cache", None),
        ("plain", None),
        ("plain-", None),
        ("plain--1", PartitionDirectory("plain-", 1, DirectoryState.LOG, "")),
        ("-1", None),
        ("plain-01", None),
        ("plain-4294967296", None),
        ("plain-x.y-delete", None),
        ("a b-1", None),
    ],
)
def test_a_directorys_name_says_what_it_is(name: str, expected: PartitionDirectory | None) -> None:
    assert partition_directory(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000042.log", LogFile(42, FileKind.LOG, FileState.IN_USE)),
        ("00000000000000000042.txnindex.deleted", LogFile(42, FileKind.TRANSACTION_INDEX, FileState.DELETED)),
        ("00000000000000000042.log.cleaned", LogFile(42, FileKind.LOG, FileState.CLEANED)),
        ("00000000000000000042.timeindex.swap", LogFile(42, FileKind.TIME_INDEX, FileState.SWAP)),
        ("00000000000000000042.snapshot", LogFile(42, FileKind.SNAPSHOT, FileState.IN_USE)),
        ("42.log", None),
        ("99999999999999999999.log", None),
        ("00000000000000000042.log.tmp", None),
        ("leader-epoch-checkpoint", None),
    ],
)
def test_a_files_name_says_what_it_is(name: str, expected: LogFile | None) -> None:
    assert log_file(name) == expected


def test_every_name_of_a_node_is_known(node: Path) -> None:
    directories = [path for path in (node / "logs").iterdir() if path.is_dir()]
    assert all(partition_directory(path.name) for path in directories)
    others = {file.name for path in directories for file in path.iterdir() if log_file(file.name) is None}
    assert others == {"leader-epoch-checkpoint", "partition.metadata"}
    states = [log_file(file.name) for file in (node / "logs").glob("*/*.deleted")]
    assert len(states) > 100
    assert all(found and found.state is FileState.DELETED for found in states)
