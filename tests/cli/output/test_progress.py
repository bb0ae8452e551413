"""What takes longer than a moment tells how much there is, and ends at it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.long_work import listening
from tests.heard import Heard

pytestmark = pytest.mark.slow


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What commands are told of their own work."""
    found = Heard()
    monkeypatch.setattr("storage_engine.cli.output.progress.listening", lambda _shown: listening(found))
    return found


def _told(heard: Heard) -> set[str]:
    assert heard.unfinished == []
    return {work.what for work, _ in heard.works}


def test_an_inspection_tells_of_messages_and_queues(cli: Any, archived: Any, heard: Heard) -> None:
    assert cli("inspect", archived.store, "--messages", "--queues").exit_code == 0
    assert _told(heard) == {"Reading messages", "Looking at queues"}
    (read,) = (work for work, _ in heard.works if not work.unit)
    assert 0 < read.total <= sum(path.stat().st_size for path in (archived.store / "commitlog").iterdir())


def test_a_short_look_tells_nothing(cli: Any, archived: Any, heard: Heard) -> None:
    assert cli("inspect", archived.store).exit_code == 0
    assert heard.works == []


@pytest.mark.usefixtures("plainly")
def test_a_validation_tells_of_store_and_lake(cli: Any, archived: Any, heard: Heard, tmp_path: Path) -> None:
    words = ("validate", archived.store, "--lake", archived.lake, "--output", tmp_path / "page")
    assert cli(*words).exit_code == 0
    assert _told(heard) == {
        "Looking at data files",
        "Reading archived rows",
        "Reading queues",
        "Reading segments",
    }
    near = sum(work.total for work, _ in heard.works if not work.unit)
    heard.works.clear()
    assert cli(*words, "--full").exit_code == 0
    assert _told(heard) == {"Reading archived rows", "Reading queues", "Reading segments"}
    assert sum(work.total for work, _ in heard.works if not work.unit) > near


def test_doctor_and_lag_tell_of_positions(cli: Any, archived: Any, heard: Heard) -> None:
    assert cli("doctor", archived.store, "--set", "fileReservedTime=1").exit_code == 1
    assert _told(heard) == {"Reading queues"}
    heard.works.clear()
    assert cli("lag", archived.store).exit_code == 0
    assert {"Measuring lag"} <= _told(heard)


def test_an_export_and_a_relocation_tell_of_data_files(
    cli: Any, archived: Any, heard: Heard, tmp_path: Path
) -> None:
    data = [*archived.lake.glob("warehouse/**/messages/data/**/*.parquet")]
    assert cli("export", "--lake", archived.lake, "--to", tmp_path / "rows.parquet").exit_code == 0
    assert _told(heard) == {"Reading data files"}
    assert 0 < heard.works[-1][0].total <= sum(path.stat().st_size for path in data)
    heard.works.clear()
    copy = shutil.copytree(archived.lake, tmp_path / "copy")
    assert cli("lake", "relocate", "--lake", copy).exit_code == 0
    assert _told(heard) == {"Checking data files"}


def test_a_copy_and_its_verification_tell_of_bytes(
    cli: Any, archived: Any, heard: Heard, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for words, what in (
        (("lake", "copy", "--lake", archived.lake, "--to", copy), "Copying"),
        (("verify", "--lake", copy), "Verifying"),
    ):
        heard.works.clear()
        assert cli(*words).exit_code == 0
        assert what in _told(heard)


def test_a_collection_tells_of_files(cli: Any, archived: Any, heard: Heard, tmp_path: Path) -> None:
    copy = shutil.copytree(archived.lake, tmp_path / "copy")
    assert cli("lake", "relocate", "--lake", copy).exit_code == 0
    heard.works.clear()
    assert cli("gc", "--lake", copy, "--grace", "1").exit_code == 0
    assert _told(heard) == {"Looking at files"}


@pytest.mark.usefixtures("plainly")
def test_each_long_step_of_a_cleanup_tells_of_its_parts(
    cli: Any, store: Path, lake: Path, heard: Heard
) -> None:
    done = cli("clean", store, "--lake", lake, "--manual")
    assert done.exit_code == 0, done.err
    assert {
        "Checking data files",
        "Deleting segments",
        "Reading segments",
        "Reading archived rows",
    } <= _told(heard)
