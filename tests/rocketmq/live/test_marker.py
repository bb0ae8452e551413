from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from storage_engine.exceptions import GateRefusedError, StoreBusyError
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.marker import (
    NAME,
    alone,
    read_marker,
    refuse_foreign,
    remove_marker,
    write_marker,
)

NOW_MS = 1_790_000_000_000
LATER_MS = NOW_MS + 3_600_000


def test_another_managers_marker_keeps_us_away_until_it_ends(tmp_path: Path) -> None:
    assert write_marker(tmp_path, "theirs", LATER_MS) == ""
    for ours in ("ours", None):
        with pytest.raises(GateRefusedError, match=r"no other manager.*until 2026-09-21 \d\d:\d\d:\d\dZ"):
            refuse_foreign(tmp_path, ours, LATER_MS - 1)
        refuse_foreign(tmp_path, ours, LATER_MS)
    refuse_foreign(tmp_path, "theirs", NOW_MS)


def test_a_marker_for_ever_keeps_us_away(tmp_path: Path) -> None:
    write_marker(tmp_path, "theirs", 10**30)
    with pytest.raises(GateRefusedError, match="ms after 1970"):
        refuse_foreign(tmp_path, "ours", NOW_MS)


def test_marker_is_renewed_in_place(tmp_path: Path) -> None:
    """A full disk has no room for another one."""
    write_marker(tmp_path, "ours", NOW_MS)
    before = (tmp_path / NAME).stat()
    write_marker(tmp_path, "ours", LATER_MS)
    after = (tmp_path / NAME).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    found = read_marker(tmp_path)
    assert found is not None
    assert found.ends_at_ms == LATER_MS


def test_another_managers_marker_is_not_removed(tmp_path: Path) -> None:
    write_marker(tmp_path, "theirs", LATER_MS)
    remove_marker(tmp_path, "ours")
    assert read_marker(tmp_path) is not None
    remove_marker(tmp_path, "theirs")
    assert read_marker(tmp_path) is None
    remove_marker(tmp_path, "theirs")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"{}", b'{"manager": 1, "host": "a", "ends_at_ms": 2}']
)
def test_a_marker_that_can_not_be_read_keeps_us_away(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(GateRefusedError, match="remove the file"):
        refuse_foreign(tmp_path, "ours", NOW_MS)


def test_marker_says_whose_it_is(tmp_path: Path) -> None:
    write_marker(tmp_path, "ours", NOW_MS)
    assert json.loads((tmp_path / NAME).read_bytes()).keys() == {"manager", "host", "ends_at_ms"}


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "disk"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=32", "tmpfs", str(target)], check=True)
    yield target
    subprocess.run(["umount", "--lazy", str(target)], check=True)


def fill(directory: Path) -> None:
    here = os.statvfs(directory)
    (directory / "ballast").write_bytes(bytes(here.f_bavail * here.f_frsize))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_keeps_nobody_from_holding(full_disk: Path) -> None:
    write_marker(full_disk, "ours", NOW_MS)
    fill(full_disk)
    assert write_marker(full_disk, "ours", LATER_MS) == ""
    found = read_marker(full_disk)
    assert found is not None
    assert found.ends_at_ms == LATER_MS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_full_disk_without_a_lock_of_ours_keeps_nobody_from_holding(full_disk: Path) -> None:
    fill(full_disk)
    for inode in count():
        try:
            (full_disk / f"inode{inode}").touch()
        except OSError:
            break
    with alone(full_disk):
        assert not (full_disk / ".storage-engine" / "hold.lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_no_space_for_a_marker_is_a_notice(full_disk: Path) -> None:
    fill(full_disk)
    assert "no space" in write_marker(full_disk, "ours", NOW_MS)


def test_one_process_at_a_time_works_on_a_hold(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from {marker.__name__} import alone
with alone(Path({str(tmp_path)!r})):
    print("in", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(StoreBusyError, match="another process"), alone(tmp_path, wait_seconds=0.1):
            pytest.fail("two at a time")
        other.kill()
    # A process that is killed leaves nothing behind.
    with alone(tmp_path, wait_seconds=60):
        pass


LOCKS_IT = """
import fcntl, os, sys
os.setuid(int(sys.argv[2]))
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("in", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked_by(uid: int, path: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKS_IT, str(path), str(uid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        yield
        assert other.stdin is not None
        other.stdin.close()


STRANGER, OWNER = 65534, 3000


@pytest.fixture
def owned_root() -> Iterator[Path]:
    """A store's root that everybody may read, as brokers make it, and whose way there anybody may go."""
    with TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        os.chown(root, OWNER, OWNER)
        yield root


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@as_root
def test_a_stranger_who_locks_the_directory_keeps_nobody_from_working_on_a_hold(owned_root: Path) -> None:
    with locked_by(STRANGER, owned_root), alone(owned_root, wait_seconds=0.1):
        pass


@as_root
@pytest.mark.parametrize("uid", [0, OWNER])
def test_an_older_release_that_works_on_a_hold_is_waited_for(owned_root: Path, uid: int) -> None:
    with (
        locked_by(uid, owned_root),
        pytest.raises(StoreBusyError, match="another process"),
        alone(owned_root, wait_seconds=0.1),
    ):
        pytest.fail("two at a time")


@as_root
def test_a_stranger_can_not_open_what_keeps_a_hold_to_one_process(owned_root: Path) -> None:
    with alone(owned_root):
        pass
    lock = owned_root / ".storage-engine" / "hold.lock"
    assert (lock.stat().st_uid, stat.S_IMODE(lock.stat().st_mode)) == (OWNER, 0o600)
    done = subprocess.run(
        [sys.executable, "-c", LOCKS_IT, str(lock), str(STRANGER)], check=False, capture_output=True
    )
    assert b"PermissionError" in done.stderr


def test_nothing_of_a_hold_is_written_through_a_symbolic_link(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / ".storage-engine").symlink_to(elsewhere)
    with pytest.raises(GateRefusedError, match="can be locked"), alone(root):
        pytest.fail("locked elsewhere")
    assert not list(elsewhere.iterdir())
    victim = elsewhere / "victim"
    victim.write_bytes(b"{}")
    (root / NAME).symlink_to(victim)
    with pytest.raises(GateRefusedError):
        write_marker(root, "ours", NOW_MS)
    with pytest.raises(GateRefusedError):
        read_marker(root)
    assert victim.read_bytes() == b"{}"
