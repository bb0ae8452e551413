"""Bad input gets one clear error that names file, offset and expectation, and changes nothing.

What a run that was refused leaves is its record in the journal and its report; nothing else.
"""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
BODY = 88
"""Where the body of a frame with IPv4 addresses begins."""


def _segment(store: Path, base: int) -> Path:
    return store / "commitlog" / f"{base:020d}"


def _lake_itself(lake: Path) -> tuple[Path, Path]:
    return lake / "warehouse", lake / "catalog.db"


def _check_error(outcome: Any, code: int, *expected: object) -> str:
    """One error, on stderr, of one line, with everything in it that it takes to find the fault."""
    assert outcome.exit_code == code
    errors = [line for line in outcome.err.splitlines() if line.startswith("Error")]
    assert len(errors) == 1
    assert "Traceback" not in outcome.err
    for part in expected:
        assert str(part) in errors[0]
    return errors[0]


def _missing(store: Path) -> tuple[object, ...]:
    shutil.rmtree(store)
    return f"{store}: expected the store's root directory, found nothing", "mounted"


def _a_file(store: Path) -> tuple[object, ...]:
    shutil.rmtree(store)
    store.write_text("not a store")
    return (f"{store}: expected the store's root directory, found a file",)


def _empty(store: Path) -> tuple[object, ...]:
    shutil.rmtree(store)
    store.mkdir()
    return f"{store}/commitlog: expected a commitlog directory, found nothing", "mounted"


def _no_segments(store: Path) -> tuple[object, ...]:
    for path in (store / "commitlog").iterdir():
        path.unlink()
    return f"{store}/commitlog: no segment file", "storePathRootDir"


def _half_copied_segment(store: Path) -> tuple[object, ...]:
    os.truncate(_segment(store, 2 * MIB), 123456)
    return f"{_segment(store, 2 * MIB)}: expected {MIB} bytes as the other files, found 123456", "replica"


def _half_copied_checkpoint(store: Path) -> tuple[object, ...]:
    os.truncate(store / "checkpoint", 17)
    return f"{store}/checkpoint: ", "expected", "17"


def _half_copied_queue(store: Path) -> tuple[object, ...]:
    path = store / "consumequeue" / "events_UPPER-4q" / "0" / f"{6000:020d}"
    os.truncate(path, 4321)
    return f"{path}: expected 6000 bytes as the other files, found 4321", "replica"


def _half_copied_index(store: Path) -> tuple[object, ...]:
    path = sorted((store / "index").iterdir())[3]
    os.truncate(path, 20)
    return f"{path}: ", "expected", "20"


def _wrong_size(store: Path) -> tuple[object, ...]:
    with _segment(store, MIB).open("ab") as file:
        file.write(b"more")
    return (f"{_segment(store, MIB)}: expected {MIB} bytes as the other files, found {MIB + 4}",)


def _wrong_name(store: Path) -> tuple[object, ...]:
    path = store / "commitlog" / "00000000000001048576.bak"
    shutil.copy2(_segment(store, MIB), path)
    return f"{path}: expected a name of 20 digits", "Move the file out"


def _name_between(store: Path) -> tuple[object, ...]:
    path = _segment(store, 2 * MIB + 1)
    _segment(store, 2 * MIB).rename(path)
    return f"{path}: expected a name that is a multiple of the file size {MIB}", "replica"


def _hole(store: Path) -> tuple[object, ...]:
    _segment(store, MIB).unlink()
    return (
        f"{_segment(store, 2 * MIB)}: a hole before this file: expected {MIB:020d}",
        "found base offset 2097152",
    )


STORE_FAULTS = [
    _missing,
    _a_file,
    _empty,
    _no_segments,
    _half_copied_segment,
    _wrong_size,
    _wrong_name,
    _name_between,
    _hole,
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", STORE_FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_a_store_that_is_none_is_refused_by_every_command(
    cli, archived, store_copy, files, lake: Path, fault: Callable[[Path], tuple[object, ...]]
) -> None:
    store = store_copy("cqext-batchcq" if fault is not _half_copied_queue else "clean-stop")
    new, lake = lake, archived.lake
    expected = fault(store)
    before = files(store, lake, new)
    for words in (
        ("inspect",),
        ("plan", "--manual"),
        ("lag",),
        ("archive", "--lake", lake),
        ("archive", "--lake", new),
        ("archive", "--lake", new, "--planned", "--manual"),
        ("clean", "--lake", lake, "--manual"),
        ("clean", "--lake", new, "--manual", "--archive-policy", "off"),
        ("clean", "--lake", new, "--manual", "--dry-run"),
        ("verify", "--lake", lake),
        ("adopt", "--lake", lake, "--reason", "a test"),
    ):
        _check_error(cli(words[0], store, *words[1:]), 2, *expected)
        assert files(store, lake, new) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [_half_copied_checkpoint, _half_copied_queue, _half_copied_index],
    ids=lambda fault: fault.__name__.strip("_"),
)
def test_a_broken_file_beside_the_log_is_found_before_a_segment_goes(
    cli, archived, store_copy, expire, files, fault: Callable[[Path], tuple[object, ...]]
) -> None:
    store, lake = store_copy("clean-stop"), archived.lake
    expire(store)
    expected = fault(store)
    before = files(store, lake)
    for words in (("inspect", "--queues"), ("plan", "--manual"), ("clean", "--lake", lake, "--manual")):
        _check_error(cli(*words, store), 2, *expected)
        assert files(store, lake) == before


@pytest.mark.slow
def test_one_base_offset_on_two_paths_is_refused(cli, archived, store_copy, files, tmp_path) -> None:
    store = store_copy("multipath")
    twin = store / "cl2" / f"{0:020d}"
    shutil.copy2(store / "cl1" / f"{0:020d}", twin)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={store}/cl1,{store}/cl2\n")
    before = files(store, archived.lake)
    for words in (
        ("plan",),
        ("archive", "--lake", archived.lake),
        ("clean", "--lake", archived.lake, "--manual"),
    ):
        outcome = cli(*words, store, "--broker-conf", conf)
        _check_error(outcome, 2, "base offset 0 exists twice", store / "cl1", twin)
        assert files(store, archived.lake) == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deleteWhen=four", ("deleteWhen", "expected hours joined by ';'", "'four'")),
        ("fileReservedTime=3d", ("fileReservedTime", "expected a whole number of at least 0", "'3d'")),
        ("cleanFileForciblyEnable=yes", ("cleanFileForciblyEnable", "expected true or false", "'yes'")),
        ("mappedFileSizeCommitLog=0", ("mappedFileSizeCommitLog", "at least 1", "'0'")),
        ("storePathRootDir=/somewhere/else", ("storePathRootDir", "expected the store that was named")),
        ("storeType=defaultRocksDB", ("RocksDB consume queue",)),
        ("enableDLegerCommitLog=true", ("DLedger commitlog",)),
    ],
)
def test_a_bad_setting_is_refused_with_its_line(
    cli, archived, files, tmp_path, line: str, expected: tuple[str, ...]
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"# our broker\nbrokerName=a\n{line}\n")
    before = files(archived.store, archived.lake, conf)
    where = () if "DLedger" in expected[0] or "RocksDB" in expected[0] else (f"{conf}, line 3",)
    for words in (("inspect",), ("plan",), ("clean", "--lake", archived.lake, "--manual")):
        _check_error(cli(*words, archived.store, "--broker-conf", conf), 2, *where, *expected)
        _check_error(cli(*words, archived.store, "--set", line), 2, *expected)
    assert files(archived.store, archived.lake, conf) == before


def test_a_broker_conf_that_is_not_there_is_refused(cli, archived, tmp_path) -> None:
    conf = tmp_path / "none.conf"
    _check_error(cli("plan", archived.store, "--broker-conf", conf), 2, f"{conf}: can't read broker.conf")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--set", "fileReservedTime"), "expected KEY=VALUE, found 'fileReservedTime'"),
        (("--at", "tomorrow"), "expected a time such as 2026-11-20T04:10"),
        (("--time-zone", "Mars/Base"), "expected an IANA time zone such as Asia/Shanghai, found 'Mars/Base'"),
        (("--disk", "/data=full"), "expected a ratio such as 0.86 or 86% for /data, found 'full'"),
        (("--disk", "/data=86"), "expected a ratio from 0 to 1 (or 0% to 100%) for /data, found '86'"),
        (("--disk", "/no/such/disk=0.5"), "/no/such/disk: expected one of the store's paths"),
    ],
)
def test_a_bad_option_is_refused(cli, archived, words: tuple[str, ...], expected: str) -> None:
    _check_error(cli("plan", archived.store, *words), 2, expected)


@pytest.mark.parametrize("words", [("archive", "--budget"), ("verify", "--max-bytes")])
def test_nothing_is_no_size(cli, archived, words: tuple[str, str]) -> None:
    command, option = words
    _check_error(cli(command, archived.store, "--lake", archived.lake, option, "0"), 2, "at least one byte")


def test_an_unknown_group_is_refused_with_the_nearest(cli, archived) -> None:
    _check_error(cli("lag", archived.store, "--group", "cg_order"), 2, "Did you mean cg_orders?")


def test_with_json_a_program_reads_the_error(cli, tmp_path, archived) -> None:
    for words in (("plan", tmp_path / "none"), ("plan",), ("plan", archived.store, "--at", "x")):
        refused = cli(*words, "--json")
        assert refused.exit_code == 2
        assert refused.json["error"]["message"]
        assert refused.json["error"]["type"]
        assert refused.err == ""


# Frames


@pytest.fixture
def frames(ground_truth) -> list[dict[str, Any]]:
    """cqext-batchcq's plain messages with a body; ``at``: the position in the file."""
    return [
        {**frame, "at": frame["pos"] - int(frame["file"])}
        for frame in ground_truth("cqext-batchcq", "commitlog")
        if frame["kind"] == "message" and frame["bodyLength"] and not frame["sysFlag"] & 48
    ]


def _damage(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def _torn(frame: dict[str, Any], path: Path) -> str:
    _damage(path, frame["at"] + 4, bytes(40))
    return "magic"


def _wrong_crc(frame: dict[str, Any], path: Path) -> str:
    body = frame["at"] + BODY
    _damage(path, body, bytes([path.read_bytes()[body] ^ 1]))
    return "CRC"


@pytest.mark.slow
@pytest.mark.parametrize("fault", [_torn, _wrong_crc], ids=["torn", "wrong-crc"])
def test_a_damaged_frame_in_a_sealed_segment_is_named_and_neither_archived_nor_deleted(
    cli, archived, store_copy, expire, files, frames, fault
) -> None:
    store, lake = store_copy("cqext-batchcq"), archived.lake
    frame = next(f for f in frames if int(f["file"]) == MIB and f["at"] > MIB // 2)
    path = _segment(store, MIB)
    what = fault(frame, path)
    expire(store)
    before = files(store, *_lake_itself(lake))
    for words in (("archive", "--lake", lake), ("clean", "--lake", lake, "--manual")):
        outcome = cli(*words, store)
        _check_error(outcome, 1, f"{path}: bad frame at physical offset {frame['pos']}", "expected", what)
        assert files(store, *_lake_itself(lake)) == before
    assert "--accept-damage" in outcome.err


@pytest.mark.slow
def test_damage_that_a_person_accepts_is_archived_byte_for_byte(
    cli, store_copy, expire, frames, lake, tmp_path
) -> None:
    store = store_copy("cqext-batchcq")
    frame = next(f for f in frames if int(f["file"]) == MIB and f["at"] > MIB // 2)
    _wrong_crc(frame, _segment(store, MIB))
    found = cli("archive", store, "--lake", lake, "--accept-damage", "--json").json["archived"]
    assert [row["damaged_bytes"] for row in found] == [0, frame["size"]]
    assert cli("restore", "--lake", lake, "--to", tmp_path / "back").exit_code == 0
    assert _segment(tmp_path / "back", MIB).read_bytes() == _segment(store, MIB).read_bytes()


@pytest.mark.slow
def test_a_torn_frame_in_the_tail_is_where_the_log_ends(cli, store_copy, frames) -> None:
    store = store_copy("cqext-batchcq")
    frame = [f for f in frames if int(f["file"]) == 2 * MIB][-1]
    _torn(frame, _segment(store, 2 * MIB))
    found = cli("inspect", store, "--json")
    assert found.exit_code == 0
    assert found.json["max_offset"] == frame["pos"]
    assert cli("plan", store, "--manual").exit_code == 0


# Lakes


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
        _check_error(cli(*words, "--lake", lake), 2, f"Directory '{lake}' is a file")
    _check_error(cli("restore", "--lake", lake, "--to", tmp_path / "r"), 2, f"Directory '{lake}' is a file")
    assert lake.read_text() == "a file"


def test_a_lake_on_a_disk_that_is_not_there_is_not_made(cli, archived, files, tmp_path) -> None:
    lake = tmp_path / "not-mounted" / "lake"
    _check_error(cli("init-lake", "--lake", lake), 2, f"expected a directory {lake.parent}", "mount its disk")
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
        error = _check_error(cli(*words, "--lake", lake), 2, f"expected a lake in {lake}, found none")
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
            _check_error(cli(*words, "--lake", lake), 1, lake, "read", "writable")
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
        before = files(store, *_lake_itself(lake))
        with _no_room(disk, mounted) as reason:
            for words in (("archive",), ("clean", "--manual")):
                _check_error(cli(*words, store, "--lake", lake), 1, lake, reason, "has space")
                assert files(store, *_lake_itself(lake)) == before
        assert cli("archive", store, "--lake", lake).exit_code == 0
        assert cli("verify", store, "--lake", lake).exit_code == 0


# Stores that somebody has, or that somebody changed


@contextmanager
def _held(store: Path) -> Iterator[int]:
    """Another process has the broker's lock."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(store / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.slow
def test_a_store_that_a_process_holds_is_not_cleaned(cli, store_copy, expire, files, lake) -> None:
    store = store_copy("edge-frames")
    expire(store)
    assert cli("archive", store, "--lake", lake).exit_code == 0
    with _held(store) as pid:
        before = files(store, *_lake_itself(lake))
        refused = cli("clean", store, "--lake", lake, "--manual")
        _check_error(refused, 1, store / "lock", f"process {pid}")
        assert files(store, *_lake_itself(lake)) == before
        assert "Held by python" in cli("inspect", store).out


@pytest.mark.slow
def test_other_bytes_under_an_archived_offset_are_refused_until_a_person_adopts_them(
    cli, store_copy, expire, files, frames, lake, tmp_path
) -> None:
    store = store_copy("cqext-batchcq")
    path = _segment(store, MIB)
    original = path.read_bytes()
    assert cli("archive", store, "--lake", lake).exit_code == 0
    _rewrite_body(path, next(f for f in frames if int(f["file"]) == MIB))
    changed = path.read_bytes()
    assert changed != original
    expire(store)

    before = files(store, *_lake_itself(lake))
    for words in (("archive",), ("clean", "--manual")):
        refused = cli(*words, store, "--lake", lake)
        _check_error(refused, 1, path, "expected SHA-256", f"at offset {MIB}", "storage-engine adopt")
        assert files(store, *_lake_itself(lake)) == before
    checked = cli("verify", store, "--lake", lake, "--json")
    assert checked.exit_code == 1
    assert checked.json["stores"][0]["overall"] == "FAILURE"

    assert cli("adopt", store, "--lake", lake, "--reason", "the broker recovered").exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    assert cli("verify", store, "--lake", lake).exit_code == 0
    for name, options in (("old", ("--lineage", 1)), ("new", ())):
        assert cli("restore", "--lake", lake, "--to", tmp_path / name, *options).exit_code == 0
        if not options:
            noted = cli("restore", "--lake", lake, "--to", tmp_path / name)
            assert "Lineage 1 holds commitlog [0, " in noted.err
            assert "--lineage 1 restores it" in noted.err
    assert _segment(tmp_path / "old", MIB).read_bytes() == original
    assert _segment(tmp_path / "new", MIB).read_bytes() == changed


def _rewrite_body(path: Path, frame: dict[str, Any]) -> None:
    """Another body with its right CRC: a valid frame of the same size."""
    at = frame["at"] + BODY
    body = bytes(byte ^ 0x55 for byte in path.read_bytes()[at : at + frame["bodyLength"]])
    _damage(path, at, body)
    _damage(path, frame["at"] + 8, struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF))
