from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.core import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was fsynced, in order."""
    paths: list[Path] = []
    fsync_path = durable.fsync_path

    def look(path: str | os.PathLike[str]) -> None:
        fsync_path(path)
        paths.append(Path(path))

    monkeypatch.setattr(durable, "fsync_path", look)
    return paths


def test_every_new_directory_is_synced_in_its_parent(tmp_path: Path, synced: list[Path]) -> None:
    durable.make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]


def test_a_directory_that_a_killed_process_made_is_synced_before_it_is_used(
    tmp_path: Path, synced: list[Path]
) -> None:
    (tmp_path / "a").mkdir()
    durable.make_dirs(tmp_path / "a")
    durable.make_dirs(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path, tmp_path / "a"]


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    previous = os.umask(request.param)
    yield request.param
    os.umask(previous)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_new_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    durable.make_dirs(tmp_path / "a" / "b")
    durable.write_file(tmp_path / "a" / "b" / "file", b"messages")
    durable.create_empty(tmp_path / "a" / "database")
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "file", tmp_path / "a" / "database"]
    assert [mode(path) for path in made] == [0o700, 0o700, 0o600, 0o600]


@pytest.mark.parametrize(("lake", "writes"), [(0o2755, 0), (0o2770, 0o020), (0o3770, 0)])
def test_below_a_setgid_directory_its_group_may_read_and_write_as_there(
    tmp_path: Path, umask: int, lake: int, writes: int
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(lake)
    durable.make_dirs(tmp_path / "lake" / "a" / "b")
    durable.write_file(tmp_path / "lake" / "a" / "b" / "file", b"messages")
    made = [tmp_path / "lake" / "a", tmp_path / "lake" / "a" / "b", tmp_path / "lake" / "a" / "b" / "file"]
    assert [mode(path) for path in made] == [0o2750 | writes, 0o2750 | writes, 0o640 | writes]
    assert mode(tmp_path / "lake") == lake


@pytest.mark.parametrize(("parent", "writes"), [(0o755, 0), (0o775, 0o020), (0o777, 0o020)])
def test_what_is_shared_others_may_read_as_the_umask_says_and_never_write(
    tmp_path: Path, umask: int, parent: int, writes: int
) -> None:
    tmp_path.chmod(parent)
    durable.write_file(tmp_path / "file", b"a suite", shared=True)
    durable.make_dir(tmp_path / "directory", shared=True)
    assert mode(tmp_path / "file") == (0o644 | writes) & ~umask
    assert mode(tmp_path / "directory") == (0o755 | writes) & ~umask


def test_modes_of_what_a_library_made_are_settled(tmp_path: Path, umask: int) -> None:
    (tmp_path / "site" / "pages").mkdir(parents=True)
    (tmp_path / "site" / "pages" / "index.html").touch()
    (tmp_path / "site" / "link").symlink_to("/etc/hostname")
    outside = mode(Path("/etc/hostname"))
    durable.settle_modes(tmp_path / "site")
    assert mode(tmp_path / "site" / "pages") == 0o700
    assert mode(tmp_path / "site" / "pages" / "index.html") == 0o600
    assert mode(Path("/etc/hostname")) == outside


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_makes_belongs_to_the_directorys_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 3000, 3001)
    durable.make_dirs(tmp_path / "a")
    durable.write_file(tmp_path / "a" / "file", b"messages")
    for path in (tmp_path / "a", tmp_path / "a" / "file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (3000, 3001)


def test_a_planted_link_is_never_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"of somebody else")
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    (tmp_path / durable.temporary_name("file")).symlink_to(victim)
    with pytest.raises(FileExistsError):
        durable.write_file(tmp_path / "file", b"ours")
    assert victim.read_bytes() == b"of somebody else"


def test_an_error_names_the_file_that_was_to_be_and_no_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    directory = os.open(tmp_path / "gone", os.O_RDONLY)
    (tmp_path / "gone").rmdir()
    try:
        with pytest.raises(FileNotFoundError) as caught:
            durable.write_file("file", b"content", dir_fd=directory)
    finally:
        os.close(directory)
    assert caught.value.filename == "file"


def test_temporary_names_cannot_be_foreseen() -> None:
    assert len({durable.temporary_name("file") for _ in range(100)}) == 100


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"of somebody else")
    (tmp_path / "file").symlink_to(victim)
    durable.write_file(tmp_path / "file", b"ours")
    assert victim.read_bytes() == b"of somebody else"
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert not (tmp_path / "file").is_symlink()


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with durable.new_file("file", ".part", dir_fd=fd) as new:
        new.file.write(b"ours")
        (tmp_path / "file").write_bytes(b"of somebody else")
        with pytest.raises(FileExistsError):
            new.publish()
    os.close(fd)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"of somebody else"


def test_only_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from storage_engine.core import durable\n"
        "with durable.new_file('file', '.part', dir_fd=os.open(sys.argv[1], os.O_RDONLY)):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (abandoned,) = tmp_path.iterdir()
    other = tmp_path / ".other.0123456789abcdef.part"
    other.touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    with durable.new_file("file", ".part", dir_fd=fd):
        (written,) = set(tmp_path.iterdir()) - {abandoned, other}
        for path in (abandoned, written, other):
            os.utime(path, (0, 0))
        durable.remove_abandoned("file", ".part", dir_fd=fd)
        assert set(tmp_path.iterdir()) == {written, other}
    os.close(fd)


@pytest.mark.parametrize(
    ("directory", "expected"), [(0o755, 0o600), (0o2750, 0o600), (0o2770, 0o660), (0o777, 0o660)]
)
def test_its_owner_and_who_may_write_by_group_alone_may_open_a_lock(
    tmp_path: Path, umask: int, directory: int, expected: int
) -> None:
    tmp_path.chmod(directory)
    lock = tmp_path / "lock"
    lock.touch()
    lock.chmod(0o644)  # as an older release made it
    for path in (lock, tmp_path / "new"):
        os.close(durable.open_lock(path))
        assert mode(path) == expected


def test_a_lock_with_a_second_name_keeps_its_mode(tmp_path: Path) -> None:
    """It may be another file, which somebody linked here for root to give away."""
    tmp_path.joinpath("secret").touch(mode=0o640)
    tmp_path.joinpath("secret").chmod(0o640)
    os.link(tmp_path / "secret", tmp_path / "lock")
    os.close(durable.open_lock(tmp_path / "lock"))
    assert mode(tmp_path / "secret") == 0o640


def test_a_lock_that_is_not_a_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "made")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            durable.open_lock(tmp_path / name)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_error_of_a_write_or_a_flush_names_the_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel was given a descriptor, and says no name."""
    path = tmp_path / "record"

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write() -> None:
        with durable.replacing(path) as file:
            if call == "write":
                fail()
            file.write(b"whole")
            monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(OSError, match="No space left on device") as raised:
        write()
    monkeypatch.undo()
    assert raised.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
