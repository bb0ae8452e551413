"""A store with a database that was copied in part, damaged, or switched to is looked at, and stays as it is.

No database is opened. What of it points into the log isn't known, so that nothing may go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from tests.fixture_stores import file_sha256, unpack
from tests.rounds import again_but
from tests.services.command_line import Outcome, run_command

TABLES = ("000009.sst", "000012.sst")
LOGS = ("000007.log", "LOG", "LOG.old.1700000000000000")
REST = ("CURRENT", "IDENTITY", "LOCK", "MANIFEST-000008", "OPTIONS-000010")
QUEUES, SEPARATE, TOPICS, V2 = "consumequeue", "consumequeue_rocksdb", "config/topics", "config/rdb"


def make_files(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).write_bytes(name.encode() * 100)


def cut_tables(directory: Path) -> None:
    make_files(directory, *TABLES, *LOGS, *REST)
    for name in TABLES:
        (directory / name).write_bytes(b"")


def unreadable_manifest(directory: Path) -> None:
    make_files(directory, *TABLES, *LOGS, "CURRENT")
    (directory / "MANIFEST-000008").symlink_to("nowhere")


def directory_for_current(directory: Path) -> None:
    make_files(directory, *TABLES, "MANIFEST-000008")
    (directory / "CURRENT").mkdir()


def copied_until(*names: str) -> Callable[[Path], None]:
    return lambda directory: make_files(directory, *names)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "whole": copied_until(*TABLES, *LOGS, *REST),
    "the first table": copied_until(TABLES[0]),
    "tables and logs": copied_until(*TABLES, *LOGS),
    "all but the manifest": copied_until(*TABLES, *LOGS, *REST[:3]),
    "cut tables": cut_tables,
    "unreadable manifest": unreadable_manifest,
    "directory for CURRENT": directory_for_current,
}
CASES = {
    **{f"{name} beside queues": (damage, QUEUES, "") for name, damage in DAMAGES.items()},
    **{f"tables in {where}": (DAMAGES["the first table"], where, "") for where in (SEPARATE, TOPICS, V2)},
    "storeType switched": (None, "", "storeType=defaultRocksDB"),
    "configManagerVersion switched": (None, "", "configManagerVersion=v2"),
}
QUICK = (
    "the first table beside queues",
    f"tables in {SEPARATE}",
    f"tables in {TOPICS}",
    "storeType switched",
)
LOOKS = {"doctor": 1, "plan": 0, "archive": 0, "inspect": 2, "lag": 2, "clean": 2, "validate": 2}
"""Each command, and how it ends."""


@dataclass(frozen=True)
class Proven:
    """A store whose sealed segments have expired and are in a lake."""

    root: Path
    lake: Path
    conf: Path

    def run(self, command: str) -> Outcome:
        lake = () if command in ("inspect", "lag") else ("--lake", self.lake)
        manual = ("--manual",) if command in ("plan", "clean") else ()
        return run_command(command, self.root, "--broker-conf", self.conf, *lake, *manual)

    def tree(self) -> dict[Path, str]:
        """Return the SHA-256 of every file, but of our own directory's."""
        return {
            path: file_sha256(path) if path.is_file() else ""
            for path in self.root.rglob("*")
            if DIRECTORY not in path.parts
        }


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory, expire: Callable[[Path], None]) -> Proven:
    work = tmp_path_factory.mktemp("rocksdb")
    made = Proven(unpack("edge-frames", work), work / "lake", work / "broker.conf")
    expire(made.root)
    make_lake(LakeConfig.local(made.lake))
    made.conf.touch()
    assert made.run("archive").exit_code == 0
    return made


@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize("case", again_but(CASES, *QUICK))
def test_nothing_of_it_is_deleted_or_changed(proven: Proven, case: str) -> None:
    damage, where, setting = CASES[case]
    whole = proven.tree()
    proven.conf.write_text(f"{setting}\n")
    if damage is not None:
        damage(proven.root / where)
    before = proven.tree()
    for command, code in LOOKS.items():
        ended = proven.run(command)
        assert ended.exit_code == code, (command, ended)
        if code == 2:
            assert ended.err.count("Error: ") == 1, ended.err
            assert "RocksDB" in ended.err
            assert "Nothing was changed" in ended.err
        assert "Traceback" not in ended.err
        assert proven.tree() == before, command
    for path in sorted(before.keys() - whole.keys(), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.usefixtures("plainly")
def test_without_it_the_same_store_is_cleaned(proven: Proven) -> None:
    proven.conf.write_text("")
    assert proven.run("clean").exit_code == 0
    assert len(list((proven.root / "commitlog").iterdir())) == 1
