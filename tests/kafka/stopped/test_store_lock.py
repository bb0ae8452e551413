"""The lock of a stopped node: a broker and another run are kept out, and nothing ends it unseen."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.core import durable
from storage_engine.exceptions import ChangedUnderUsError, StoreBusyError, StoreNotFoundError
from storage_engine.kafka.stopped.store_lock import lock, lock_holder
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from tests.kafka.made_node import MadeNode, batch_of

TAKE = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except OSError:
    print("taken")
"""
"""As a broker's FileChannel#tryLock does."""
HAVE = "import sys; file = open(sys.argv[1]); print(1, flush=True); input()"


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "first", tmp_path / "second"]
    for path in made:
        path.mkdir()
        (path / "meta.properties").write_text("version=1\n")
    return made


def tried_by_another(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", TAKE, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def running(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_broker_is_kept_out_of_every_directory(directories: list[Path]) -> None:
    with lock(directories) as held:
        assert [tried_by_another(path / ".lock") for path in directories] == ["taken", "taken"]
        held.check()
    assert [tried_by_another(path / ".lock") for path in directories] == ["free", "free"]


def test_looking_who_has_it_does_not_end_it(directories: list[Path]) -> None:
    with lock(directories):
        assert lock_holder(directories[0]) is None
        os.close(os.open(directories[0] / ".lock", os.O_RDWR))
        assert tried_by_another(directories[0] / ".lock") == "taken"


def test_it_ends_though_a_fork_has_it_still(directories: list[Path]) -> None:
    with lock(directories):
        pid = os.fork()
        if pid == 0:
            signal.pause()
    try:
        assert tried_by_another(directories[0] / ".lock") == "free"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_lock_of_another_process_is_respected(directories: list[Path]) -> None:
    (directories[1] / ".lock").touch()
    take = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    with running(f"{take}; print(1, flush=True); input()", str(directories[1] / ".lock")) as holder:
        with (
            pytest.raises(StoreBusyError, match=rf"locked by process {holder.pid} \(python"),
            lock(directories),
        ):
            pass
        # Nothing stays locked of the directories before it.
        assert tried_by_another(directories[0] / ".lock") == "free"
        assert lock_holder(directories[1]) == holder.pid


def test_this_process_takes_it_once(directories: list[Path]) -> None:
    with (
        lock(directories),
        pytest.raises(StoreBusyError, match="found it locked by another run of this process"),
        lock(directories),
    ):
        pass


def test_a_lock_file_that_goes_away_meanwhile_is_noticed(directories: list[Path]) -> None:
    with lock(directories) as held:
        (directories[0] / ".lock").unlink()
        with pytest.raises(ChangedUnderUsError, match="another program removed the file") as raised:
            held.check()
        assert raised.value.path == str(directories[0] / ".lock")
        (directories[0] / ".lock").touch()
        with pytest.raises(ChangedUnderUsError):
            held.check()


def test_a_file_that_is_removed_while_it_is_locked_is_not_taken(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, taken = directories[0] / ".lock", fcntl.fcntl, []

    def removed_meanwhile(descriptor: int, operation: int, argument: bytes) -> object:
        if operation == fcntl.F_OFD_SETLK and not taken:
            # The broker that stops unlocks first.
            path.unlink()
            taken.append(os.fstat(descriptor).st_ino)
        return real(descriptor, operation, argument)

    monkeypatch.setattr(fcntl, "fcntl", removed_meanwhile)
    with lock(directories[:1]) as held:
        held.check()
        assert tried_by_another(path) == "taken"
    assert taken


def test_a_broker_that_lost_its_lock_file_is_seen_by_its_files(directories: list[Path]) -> None:
    log = directories[1] / f"{0:020d}.log"
    log.touch()
    with (
        running(HAVE, str(log)) as holder,
        pytest.raises(StoreBusyError, match=rf"process {holder.pid} \(python.*\) has {log} open"),
        lock(directories),
    ):
        pass


def test_no_directory_is_made(directories: list[Path]) -> None:
    directories[1].joinpath("meta.properties").unlink()
    directories[1].rmdir()
    with pytest.raises(StoreNotFoundError, match="expected a log directory, found none"), lock(directories):
        pass
    assert not directories[1].exists()


def test_a_symbolic_link_is_no_lock(directories: list[Path], tmp_path: Path) -> None:
    (directories[0] / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreBusyError, match="opened for locking"), lock(directories):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EROFS, "mounted read-only, as after a disk error.*mount -o remount,rw"),
        (errno.EACCES, "Run this as the broker's user or as root"),
        (errno.ELOOP, "It is a symbolic link: remove it while the broker is stopped"),
        (errno.ENOSPC, "free some in the directory"),
        (errno.EINVAL, "Find out what it is"),
    ],
)
def test_what_to_do_about_a_lock_file_that_cannot_be_opened_is_said(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable, "open_lock", refused)
    with pytest.raises(StoreBusyError, match=rf"{os.strerror(number)}\. Nothing was changed\. .*{remedy}"):
        lock(directories).__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_broker_may_open_a_lock_file_that_root_made(directories: list[Path]) -> None:
    os.chown(directories[0] / "meta.properties", 4711, 4712)
    with lock(directories):
        pass
    made = (directories[0] / ".lock").stat()
    assert (made.st_uid, made.st_gid) == (4711, 4712)
    assert made.st_mode & stat.S_IRUSR
    assert made.st_mode & stat.S_IWUSR


def test_a_node_is_not_taken_for_running_while_we_have_it(tmp_path: Path) -> None:
    made = MadeNode(tmp_path / "node")
    made.add("a-0", {0: [batch_of(0)], 2: [batch_of(2)]})
    store = KafkaStore(OpenNode(made.write()))
    (made.directories[0] / ".kafka_cleanshutdown").unlink()
    with lock(store.data_paths):
        assert store.snapshot(0).crashed
        assert tried_by_another(made.directories[0] / ".lock") == "taken"
