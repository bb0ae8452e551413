from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.model.store import FileFacts
from storage_engine.same_bytes import trusted_times
from storage_engine.same_bytes.trusted_times import mapped_for_writing
from tests.rounds import ALL

NOBODY = 65534

MAP = (
    "import mmap, sys\n"
    "with open(sys.argv[1], 'r+b') as file:\n"
    "    mapping = mmap.mmap(file.fileno(), 0, access=getattr(mmap, sys.argv[2]))\n"
    "print('mapped', flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def mapping_process(path: Path, access: str = "ACCESS_WRITE", through: Sequence[str] = ()) -> Iterator[int]:
    command = [*through, sys.executable, "-c", MAP, str(path), access]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"mapped\n"
        yield process.pid
        process.stdin.close()


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000"
    path.write_bytes(b"x" * 8192)
    return path


def test_a_process_that_may_write_through_a_mapping_is_found(segment: Path) -> None:
    with mapping_process(segment) as pid:
        assert mapped_for_writing([FileFacts.of(segment)]).by_path == {str(segment): pid}
    assert mapped_for_writing([FileFacts.of(segment)]).by_path == {}


def test_a_writer_is_found_whatever_name_it_came_by(segment: Path, tmp_path: Path) -> None:
    other_name = tmp_path / "elsewhere" / "file"
    other_name.parent.mkdir()
    os.link(segment, other_name)
    with mapping_process(other_name) as pid:
        assert mapped_for_writing([FileFacts.of(segment)]).by_path == {str(segment): pid}


@pytest.mark.skipif(not ALL, reason="make test-all mounts file systems")
def test_a_writer_is_found_in_another_mount_namespace(segment: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bind = ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]
    command = [*bind, str(tmp_path), str(elsewhere)]
    if os.geteuid() != 0 or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("no bind mounts in a namespace of their own here")
    with mapping_process(elsewhere / segment.name, through=command) as pid:
        assert mapped_for_writing([FileFacts.of(segment)]).by_path == {str(segment): pid}


def test_the_broker_may_have_it_mapped(segment: Path) -> None:
    with mapping_process(segment) as pid:
        assert mapped_for_writing([FileFacts.of(segment)], (pid,)).by_path == {}


@pytest.mark.parametrize("access", ["ACCESS_READ", "ACCESS_COPY"])
def test_one_that_cannot_change_the_file_is_none(segment: Path, access: str) -> None:
    with mapping_process(segment, access):
        assert mapped_for_writing([FileFacts.of(segment)]).by_path == {}


def test_a_process_that_may_not_be_looked_into_is_no_proof_that_nobody_writes(segment: Path) -> None:
    """Another user's process, as a broker's to whoever isn't root."""
    with mapping_process(segment):
        said = unknown_to_nobody() if os.geteuid() == 0 else mapped_for_writing([]).unknown
    assert said.startswith("this process may not see what process ")


def unknown_to_nobody() -> str:
    """Return what a process of another user can't tell of this one's."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, mapped_for_writing([]).unknown.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (["1", "4711"], ""),
        (["4711"], "doesn't show the processes of other users"),
        (None, "no process can be looked into"),
    ],
)
def test_processes_that_are_not_shown_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str] | None, said: str
) -> None:
    """As by /proc with hidepid, and where there is none."""
    for pid in shown or ():
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "maps").touch()
    monkeypatch.setattr(trusted_times, "_PROC", tmp_path / "proc")
    unknown = mapped_for_writing([]).unknown
    assert said in unknown
    assert bool(said) is bool(unknown)
