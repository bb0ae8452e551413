from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.same_bytes import trusted_times
from storage_engine.same_bytes.trusted_times import NAME, times_are_trusted
from tests.rounds import ALL
from tests.services.file_systems import KINDS, mounted

MEMORY = Path("/dev/shm")
TELLS = {kind: kind != "overlay-volatile" for kind in KINDS}


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a file system was asked; what this process knows is forgotten."""
    monkeypatch.setattr(trusted_times, "_answers", {})
    asked = []
    really = trusted_times._try

    def counted(*arguments: object) -> bool | None:
        asked.append(1)
        return really(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trusted_times, "_try", counted)
    return lambda: len(asked)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not MEMORY.is_dir():
        pytest.skip("tmpfs: no /dev/shm here")
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)


@pytest.mark.usefixtures("asks")
def test_a_file_system_in_memory_does_not_tell(in_memory: Path) -> None:
    assert not times_are_trusted(in_memory, in_memory)


@pytest.mark.skipif(not ALL, reason="make test-all mounts file systems")
@pytest.mark.usefixtures("asks")
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_system_is_asked_and_answers(kind: str, tmp_path: Path) -> None:
    with mounted(kind, tmp_path) as mount:
        assert times_are_trusted(mount, mount) is TELLS[kind]


def test_an_answer_is_remembered_across_processes(
    tmp_path: Path, asks: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = times_are_trusted(tmp_path, tmp_path)
    assert times_are_trusted(tmp_path, tmp_path) is first
    monkeypatch.setattr(trusted_times, "_answers", {})
    assert times_are_trusted(tmp_path, tmp_path) is first
    assert asks() == 1


def test_after_a_start_of_the_machine_it_is_asked_again(
    tmp_path: Path, asks: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    times_are_trusted(tmp_path, tmp_path)
    path = tmp_path / DIRECTORY / NAME
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "boot_id": "another"}))
    monkeypatch.setattr(trusted_times, "_answers", {})
    times_are_trusted(tmp_path, tmp_path)
    assert asks() == 2
    assert json.loads(path.read_text()) == said


@pytest.mark.usefixtures("asks")
def test_a_log_on_another_mount_than_the_root_is_asked_itself(tmp_path: Path, in_memory: Path) -> None:
    log = in_memory / "commitlog"
    log.mkdir()
    assert not times_are_trusted(log, tmp_path)
    assert not any(log.iterdir())
    other = tmp_path / "commitlog"
    other.mkdir()
    assert times_are_trusted(other, in_memory) is times_are_trusted(tmp_path, tmp_path)
    assert not any(other.iterdir())


def test_without_a_place_to_ask_nothing_is_trusted_nor_remembered(
    tmp_path: Path, asks: Callable[[], int]
) -> None:
    assert not times_are_trusted("/proc/self", tmp_path)
    assert not times_are_trusted("/proc/self", tmp_path)
    assert asks() == 2
    assert not (tmp_path / DIRECTORY / NAME).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"boot_id": 1}'])
def test_a_memory_that_cannot_be_read_is_asked_anew(
    tmp_path: Path, asks: Callable[[], int], content: bytes
) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / NAME).write_bytes(content)
    times_are_trusted(tmp_path, tmp_path)
    assert asks() == 1
