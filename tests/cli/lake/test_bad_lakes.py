"""A lake that is none, is away, full or read-only gets one clear error, and nothing is changed."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.bad_input import check_error, lake_itself


@contextmanager
def _mounted(path: Path, *options: object) -> Iterator[bool]:
    """Mount there; whether that was allowed."""
    path.mkdir(exist_ok=True)
    allowed = (
        os.geteuid() == 0 and not subprocess.run(["mount", *options, path], capture_output=True).returncode
    )
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", path], check=True)


@contextmanager
def _read_only(directory: Path) -> Iterator[None]:
    """Mounted read-only over itself; for who may not mount, without write permission."""
    with _mounted(directory, "--bind", directory) as mounted:
        if mounted:
            subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
            yield
            return
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere, and may not mount here")
    paths = [directory, *directory.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    try:
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def _no_room(disk: Path, mounted: bool) -> Iterator[str]:
    """Fill the small disk; where none could be mounted, no file may grow large. Yields the system's words."""
    if mounted:
        filler = disk / "filler"
        filler.write_bytes(bytes(os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - 300_000))
        try:
            yield "No space left on device"
        finally:
            filler.unlink()
    else:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            yield "File too large"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_lake_that_is_a_file_is_refused(cli, archived, tmp_path) -> None:
    lake = tmp_path / "lake"
    lake.write_text("a file")
    for words in (("archive", archived.store), ("clean", archived.store, "--manual"), ("verify",)):
        check_error(cli(*words, "--lake", lake), 2, f"Directory '{lake}' is a file")
    check_error(cli("restore", "--lake", lake, "--to", tmp_path / "r"), 2, f"Directory '{lake}' is a file")
    assert lake.read_text() == "a file"


def test_a_lake_on_a_disk_that_is_not_there_is_not_made(cli, archived, files, tmp_path) -> None:
    lake = tmp_path / "not-mounted" / "lake"
    check_error(cli("init-lake", "--lake", lake), 2, f"expected a directory {lake.parent}", "mount its disk")
    before = files(archived.store)
    _check_refused_everywhere(cli, archived, lake, tmp_path)
    assert not lake.parent.exists()
    assert files(archived.store) == before


def test_a_directory_without_a_lake_is_not_made_one_by_asking(cli, archived, files, tmp_path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    before = files(archived.store)
    _check_refused_everywhere(cli, archived, empty, tmp_path)
    assert not list(empty.iterdir())
    assert files(archived.store) == before


def _check_refused_everywhere(cli, archived, lake: Path, tmp_path: Path) -> None:
    """Every command that takes a lake says that there is none, and which command makes one."""
    store, reason = archived.store, ("--reason", "x")
    for words in (
        ("inspect", store),
        ("plan", store),
        ("archive", store),
        ("archive", store, "--planned", "--manual"),
        ("clean", store, "--manual"),
        ("clean", store, "--manual", "--dry-run"),
        ("clean", store, "--manual", "--archive-policy", "off"),
        ("hold", store, "--broker", "127.0.0.1:1"),
        ("unmanage", store, "--broker", "127.0.0.1:1"),
        ("verify",),
        ("verify", store),
        ("validate", store),
        ("restore", "--to", tmp_path / "r"),
        ("export", "--to", tmp_path / "e"),
        ("gc", "--delete"),
        ("waive", "0" * 64, *reason),
        ("adopt", store, *reason),
        ("accept-loss", store, "--from", 0, "--to", 1, *reason),
    ):
        error = check_error(cli(*words, "--lake", lake), 2, f"expected a lake in {lake}, found none")
        assert "Nothing was created." in error
        assert f"storage-engine init-lake --lake {lake}" in error


@pytest.mark.slow
def test_a_read_only_lake_can_be_read_and_refuses_what_is_new(
    cli, store_copy, expire, files, lake, tmp_path
) -> None:
    store, other = store_copy("edge-frames"), store_copy("cqext-batchcq")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    expire(other)
    before = files(lake, store, other)
    with _read_only(lake):
        for words in (("archive", other), ("clean", other, "--manual")):
            check_error(cli(*words, "--lake", lake), 1, lake, "read", "writable")
        assert cli("verify", store, "--lake", lake).exit_code == 0
        assert cli("restore", "--lake", lake, "--to", tmp_path / "back").exit_code == 0
    assert files(lake, store, other) == before


@pytest.mark.slow
def test_a_full_lake_disk_is_an_error_and_a_second_try_with_room_succeeds(
    cli, store_copy, expire, files, tmp_path
) -> None:
    store, first, disk = store_copy("clean-stop"), store_copy("multipath"), tmp_path / "disk"
    expire(store)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={first}/cl1,{first}/cl2\n")
    with _mounted(disk, "-t", "tmpfs", "-o", "size=64m", "tmpfs") as mounted:
        lake = disk / "lake"
        assert cli("init-lake", "--lake", lake).exit_code == 0
        assert cli("archive", first, "--broker-conf", conf, "--lake", lake).exit_code == 0
        before = files(store, *lake_itself(lake))
        with _no_room(disk, mounted) as reason:
            for words in (("archive",), ("clean", "--manual")):
                check_error(cli(*words, store, "--lake", lake), 1, lake, reason, "has space")
                assert files(store, *lake_itself(lake)) == before
        assert cli("archive", store, "--lake", lake).exit_code == 0
        assert cli("verify", store, "--lake", lake).exit_code == 0
