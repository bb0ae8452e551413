"""Bad input gets one clear error that names file, offset and expectation, and changes nothing.

What a run that was refused leaves is its record in the journal and its report; nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.bad_input import MIB, check_error, lake_itself, segment_of
from tests.kafka_fixture import unpack


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
    os.truncate(segment_of(store, 2 * MIB), 123456)
    return f"{segment_of(store, 2 * MIB)}: expected {MIB} bytes as the other files, found 123456", "replica"


def _wrong_size(store: Path) -> tuple[object, ...]:
    with segment_of(store, MIB).open("ab") as file:
        file.write(b"more")
    return (f"{segment_of(store, MIB)}: expected {MIB} bytes as the other files, found {MIB + 4}",)


def _wrong_name(store: Path) -> tuple[object, ...]:
    path = store / "commitlog" / "00000000000001048576.bak"
    shutil.copy2(segment_of(store, MIB), path)
    return f"{path}: expected a name of 20 digits", "Move the file out"


def _name_between(store: Path) -> tuple[object, ...]:
    path = segment_of(store, 2 * MIB + 1)
    segment_of(store, 2 * MIB).rename(path)
    return f"{path}: expected a name that is a multiple of the file size {MIB}", "replica"


def _hole(store: Path) -> tuple[object, ...]:
    segment_of(store, MIB).unlink()
    return (
        f"{segment_of(store, 2 * MIB)}: a hole before this file: expected {MIB:020d}",
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
    store = store_copy("cqext-batchcq")
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
        check_error(cli(words[0], store, *words[1:]), 2, *expected)
        assert files(store, lake, new) == before


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
        check_error(outcome, 2, "base offset 0 exists twice", store / "cl1", twin)
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
    # The plan of a store that is archived alone keeps everything.
    plans = () if "RocksDB" in expected[0] else (("plan",),)
    for words in (("inspect",), *plans, ("clean", "--lake", archived.lake, "--manual")):
        check_error(cli(*words, archived.store, "--broker-conf", conf), 2, *where, *expected)
        check_error(cli(*words, archived.store, "--set", line), 2, *expected)
    assert files(archived.store, archived.lake, conf) == before


def test_a_broker_conf_that_is_not_there_is_refused(cli, archived, tmp_path) -> None:
    conf = tmp_path / "none.conf"
    check_error(cli("plan", archived.store, "--broker-conf", conf), 2, f"{conf}: can't read broker.conf")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--set", "fileReservedTime"), "found 'fileReservedTime'. Nothing was changed."),
        (("--set", "fileReservedTim=1"), "Did you mean fileReservedTime? Nothing was changed."),
        (("--at", "tomorrow"), "expected a time such as 2026-11-20T04:10"),
        (("--time-zone", "Mars/Base"), "expected an IANA time zone such as Asia/Shanghai, found 'Mars/Base'"),
        (("--disk", "/data=full"), "expected a ratio such as 0.86 or 86% for /data, found 'full'"),
        (("--disk", "/data=86"), "expected a ratio from 0 to 1 (or 0% to 100%) for /data, found '86'"),
        (("--disk", "/no/such/disk=0.5"), "/no/such/disk: expected one of the store's paths"),
    ],
)
def test_a_bad_option_is_refused(cli, archived, words: tuple[str, ...], expected: str) -> None:
    check_error(cli("plan", archived.store, *words), 2, expected)


@pytest.mark.parametrize("words", [("archive", "--budget"), ("verify", "--max-bytes")])
def test_nothing_is_no_size(cli, archived, words: tuple[str, str]) -> None:
    command, option = words
    check_error(cli(command, archived.store, "--lake", archived.lake, option, "0"), 2, "at least one byte")


def test_an_unknown_group_is_refused_with_the_nearest(cli, archived) -> None:
    check_error(cli("lag", archived.store, "--group", "cg_order"), 2, "Did you mean cg_orders?")


def test_with_json_a_program_reads_the_error(cli, tmp_path, archived) -> None:
    for words in (("plan", tmp_path / "none"), ("plan",), ("plan", archived.store, "--at", "x")):
        refused = cli(*words, "--json")
        assert refused.exit_code == 2
        assert refused.json["error"]["message"]
        assert refused.json["error"]["type"]
        assert refused.err == ""


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
        before = files(store, *lake_itself(lake))
        refused = cli("clean", store, "--lake", lake, "--manual")
        check_error(refused, 1, store / "lock", f"process {pid}")
        assert files(store, *lake_itself(lake)) == before
        assert "Held by python" in cli("inspect", store).out


def test_a_lake_for_another_kind_of_broker_gets_no_run(cli, store_copy, files, tmp_path: Path) -> None:
    store, lake = store_copy("clean-stop"), tmp_path / "of-kafka"
    assert cli("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    before = files(store, lake)
    for words in (("clean", "--set", "deleteWhen=99"), ("archive",), ("clean", "--manual"), ("monitor",)):
        refused = cli(words[0], store, "--lake", lake, *words[1:])
        check_error(refused, 2, "expected a lake for segments of rocketmq, found one for those of kafka")
        assert files(store, lake) == before


def test_a_directory_with_a_nodes_settings_names_the_file(cli, tmp_path: Path) -> None:
    node = unpack(tmp_path)
    check_error(
        cli("plan", node), 2, f"{node}: expected a store", f"Did you mean {node / 'server.properties'}?"
    )
