"""archive, verify, restore: what goes into the lake comes back as it was."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from storage_engine.cli.shell.values import size_bytes

MIB = 1 << 20
ACTIVE = 7 * MIB


def _segments(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def sealed(archived) -> dict[str, bytes]:
    return {
        name: data for name, data in _segments(archived.store / "commitlog").items() if int(name) < ACTIVE
    }


@pytest.mark.slow
def test_archive_only_reads_the_store_and_takes_every_sealed_segment(
    cli, store_copy, lake, tmp_path, files, ground_truth
) -> None:
    store = store_copy("multipath")
    before = files(store)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={store}/cl1,{store}/cl2\n")
    found = cli("archive", store, "--broker-conf", conf, "--lake", lake, "--json").json
    assert [row["base_offset"] for row in found["archived"]] == [0]
    frames = ground_truth("multipath", "commitlog")
    messages = sum(frame["kind"] == "message" and int(frame["file"]) == 0 for frame in frames)
    assert found["archived"][0]["message_count"] == messages
    again = cli("archive", store, "--broker-conf", conf, "--lake", lake)
    said = (
        "Nothing to archive: no segment is sealed, or lakes and journal show that each segment that may "
        "be archived is in a lake."
    )
    assert (again.exit_code, again.out.splitlines()[0]) == (0, said)
    assert files(store) == before


@pytest.mark.slow
def test_archive_planned_takes_only_what_a_cleanup_would_delete(cli, store_copy, expire, lake) -> None:
    store = store_copy("cqext-batchcq")
    expire(store)
    fresh = store / "commitlog" / f"{MIB:020d}"
    fresh.touch()
    planned = cli("archive", store, "--lake", lake, "--planned", "--manual", "--json").json
    assert [row["base_offset"] for row in planned["archived"]] == [0]
    every = cli("archive", store, "--lake", lake)
    assert f"{MIB:020d}" in every.out
    assert f"{0:020d}" not in every.out


@pytest.mark.slow
@pytest.mark.parametrize("level", ["receipts", "files", "bytes", "store"])
def test_verify_accounts_for_every_byte_of_store_and_lake(cli, archived, level) -> None:
    if level != "store":
        (alone,) = cli("verify", "--lake", archived.lake, "--level", level, "--json").json["stores"]
        assert alone["overall"] == "OK"
        assert [(r["start_offset"], r["end_offset"], r["where"]) for r in alone["ranges"]] == [
            (0, ACTIVE, "ARCHIVED")
        ]
    (both,) = cli("verify", archived.store, "--lake", archived.lake, "--level", level, "--json").json[
        "stores"
    ]
    assert [(r["start_offset"], r["end_offset"], r["where"]) for r in both["ranges"]] == [
        (0, ACTIVE, "BOTH"),
        (ACTIVE, 7442667, "LOCAL"),
    ]
    shown = cli("verify", archived.store, "--lake", archived.lake, "--level", level)
    assert shown.exit_code == 0
    checked = "metadata" if level == "receipts" else "7.0 MiB"
    assert f"OK, 7 receipts, {checked} checked" in shown.out


@pytest.mark.slow
def test_verify_against_a_store_wants_the_store(cli, archived) -> None:
    refused = cli("verify", "--lake", archived.lake, "--level", "store")
    assert refused.exit_code == 2
    assert "expected STORE to compare the lake with" in refused.err


@pytest.mark.slow
def test_verify_goes_round_a_lake_in_turns_and_says_how_far_it_came(cli, store_copy, lake) -> None:
    store = store_copy("cqext-batchcq")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    words = ("verify", "--lake", lake, "--level", "files", "--max-bytes", "1KiB")
    (first,) = cli(*words, "--json").json["stores"]
    total, segments = first["coverage"]["total_bytes"], first["receipt_count"]
    assert first["coverage"]["verified_bytes"] == first["checked_bytes"] == total // segments
    for _ in range(segments - 1):
        last = cli(*words)
    assert last.exit_code == 0
    assert "100 %." in last.out
    assert "Verified at level files since 20" in last.out


@pytest.mark.slow
def test_verify_says_what_is_wrong_and_what_to_do(cli, store_copy, lake) -> None:
    store = store_copy("cqext-batchcq")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    damaged = min((lake / "warehouse").rglob("*.parquet"), key=lambda p: ("segments/" in str(p), p.name))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    for words in (("--lake", lake), (store, "--lake", lake, "--level", "store")):
        failed = cli("verify", *words)
        assert failed.exit_code == 1
        assert f"FAILURE commitlog/{0:020d} (lineage 1): data file file://{damaged} has SHA-256" in failed.out
        assert re.search(r"run storage-engine archive( \S+ --lake \S+)?\s+again", failed.out)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("10GiB", 10 << 30), ("1.5 MB", 1_500_000), ("2k", 2000), ("3TiB", 3 << 40)],
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert size_bytes(None, None, text) == size


@pytest.mark.parametrize("text", ["", "ten", "10 iB", "-1", "5XB"])
def test_a_size_that_is_none_is_refused(cli, archived, text: str) -> None:
    refused = cli("verify", "--lake", archived.lake, "--max-bytes", text)
    assert refused.exit_code == 2
    assert "expected a size such as 10GiB" in refused.err


@pytest.mark.slow
def test_archiving_keeps_to_its_limit(cli, store_copy, lake) -> None:
    words = (
        "archive",
        store_copy("clean-stop"),
        "--lake",
        lake,
        "--budget",
        "1MiB",
        "--archive-bytes-per-second",
    )
    assert "expected 0 or at least one byte, found '0.3'" in cli(*words, "0.3").err
    began = time.monotonic()
    (row,) = cli(*words, "2MiB", "--json").json["archived"]
    least = row["size_bytes"] + 3 * row["data_file_bytes"]
    assert time.monotonic() - began > least / (2 << 20) - 0.2


def test_restore_brings_every_segment_back_and_keeps_what_is_there(cli, archived, sealed, tmp_path) -> None:
    target = tmp_path / "restored"
    words = ("restore", "--lake", archived.lake, "--to", target)
    first = cli(*words, "--files-only")
    assert first.exit_code == 0
    assert _segments(target / "commitlog") == sealed
    lost = target / "commitlog" / f"{MIB:020d}"
    lost.unlink()
    again = cli(*words, "--files-only", "--json").json
    assert [row["existed"] for row in again["restored"]] == [True, False, *[True] * 5]
    assert _segments(target / "commitlog") == sealed
    served = cli(*words, "--json").json
    assert [row["existed"] for row in served["restored"]] == [True] * 7
    # Queues beside segments that aren't whole may be a store's own.
    lost.unlink()
    refused = cli(*words)
    assert (refused.exit_code, "Nothing was written" in refused.err, lost.exists()) == (1, True, False)


def test_restore_never_overwrites(cli, archived, tmp_path, files) -> None:
    target = tmp_path / "restored"
    (target / "commitlog").mkdir(parents=True)
    (target / "commitlog" / f"{0:020d}").write_bytes(b"something else")
    before = files(target)
    refused = cli("restore", "--lake", archived.lake, "--to", target)
    assert refused.exit_code == 1
    assert f"{target}/commitlog/{0:020d}: expected SHA-256" in refused.err
    assert files(target)[f"{target}/commitlog/{0:020d}"] == before[f"{target}/commitlog/{0:020d}"]
    into_store = cli("restore", "--lake", archived.lake, "--to", archived.store)
    assert into_store.exit_code == 1
    assert "Restore into a new directory." in into_store.err


def test_restore_by_offset_brings_the_segments_that_hold_it(cli, archived, sealed, tmp_path) -> None:
    span = ("--from-offset", MIB + 5, "--to-offset", 3 * MIB)
    assert cli("restore", "--lake", archived.lake, "--to", tmp_path / "r", *span).exit_code == 0
    wanted = (f"{MIB:020d}", f"{2 * MIB:020d}")
    assert _segments(tmp_path / "r" / "commitlog") == {name: sealed[name] for name in wanted}


def test_restore_by_time_brings_the_segments_with_messages_of_that_time(
    cli, archived, sealed, tmp_path
) -> None:
    # The first segment's messages end at 13:14:57.1, the next two go on to 13:14:58.1
    span = ("--from-time", "2026-11-20T13:14:57.500+00:00", "--to-time", "2026-11-20T13:14:58+00:00")
    restored = cli("restore", "--lake", archived.lake, "--to", tmp_path / "r", *span, "--json").json
    (verified,) = cli("inspect", archived.store, "--messages", "--json").json["segments"][2:3]
    assert verified["first_store_timestamp_ms"] < 1795180498000
    offsets = [row["base_offset"] for row in restored["restored"]]
    assert 2 * MIB in offsets
    assert 0 not in offsets
    assert 5 * MIB not in offsets
    assert all(_segments(tmp_path / "r" / "commitlog")[f"{o:020d}"] == sealed[f"{o:020d}"] for o in offsets)


def test_restore_by_name_brings_those_segments(cli, archived, sealed, tmp_path) -> None:
    wanted = (f"{MIB:020d}", f"{2 * MIB:020d}")
    named = ("--segments", f"{wanted[0]},{2 * MIB}")
    assert cli("restore", "--lake", archived.lake, "--to", tmp_path / "r", *named).exit_code == 0
    assert _segments(tmp_path / "r" / "commitlog") == {name: sealed[name] for name in wanted}
    wrong = cli("restore", "--lake", archived.lake, "--to", tmp_path / "r2", "--segments", "first")
    assert wrong.exit_code == 2
    assert "expected names or base offsets of segments" in wrong.err


def test_export_writes_messages_of_a_topic_and_time(cli, archived, tmp_path, ground_truth) -> None:
    lines, rows = tmp_path / "tx.jsonl", tmp_path / "tx.parquet"
    words = ("export", "--lake", archived.lake, "--topic", "tx_topic")
    shown = cli(*words, "--to", lines, "--format", "jsonl", "--decompress")
    expected = sum(frame.get("topic") == "tx_topic" for frame in ground_truth("clean-stop", "commitlog"))
    assert f"{lines}: {expected} messages, " in shown.out
    assert "of 1 of 7 files" in shown.out
    assert len(lines.read_text().splitlines()) == expected
    late = cli(*words, "--to", rows, "--from-time", "2026-11-20T13:15:10+00:00", "--json").json
    assert 0 < late["message_count"] < expected
    refused = cli(*words, "--to", lines)
    assert (refused.exit_code, "found a file" in refused.err) == (1, True)


def test_restore_of_a_span_that_is_not_there_says_what_is(cli, archived, tmp_path) -> None:
    refused = cli("restore", "--lake", archived.lake, "--to", tmp_path / "r", "--from-offset", 1 << 40)
    assert refused.exit_code == 1
    assert f"[{6 * MIB}, {7 * MIB})" in refused.err
    assert not (tmp_path / "r").exists()


def test_restore_keeps_the_old_mtime_only_when_asked(cli, archived, tmp_path) -> None:
    source = archived.store / "commitlog" / f"{0:020d}"
    for name, options in (("now", ()), ("old", ("--keep-mtime",))):
        words = ("restore", "--lake", archived.lake, "--to", tmp_path / name, "--to-offset", 1)
        assert cli(*words, *options).exit_code == 0
    old, now = (tmp_path / name / "commitlog" / source.name for name in ("old", "now"))
    assert old.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert now.stat().st_mtime_ns > source.stat().st_mtime_ns


@pytest.mark.slow
def test_a_lake_with_several_stores_asks_which_one(cli, archived, store_copy, lake, tmp_path) -> None:
    for name in ("orders", "payments"):
        assert cli("archive", store_copy("edge-frames"), "--lake", lake, "--name", name).exit_code == 0
    stores = cli("verify", "--lake", lake, "--level", "receipts", "--json").json["stores"]
    ids = [store["store_id"] for store in stores]
    refused = cli("restore", "--lake", lake, "--to", tmp_path / "r")
    assert refused.exit_code == 2
    assert all(store_id in refused.err for store_id in ids)
    assert cli("restore", "--lake", lake, "--to", tmp_path / "r", "--store-id", ids[0]).exit_code == 0
