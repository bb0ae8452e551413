"""inspect, plan, lag, index-lookup: answers that are right, and nothing is changed by asking."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from storage_engine.rocketmq.format.index_file import read_header
from tests.services.other_user import as_nobody

ACTIVE = 7340032
SEALED = list(range(0, ACTIVE, 1 << 20))


@pytest.fixture
def store(store_copy, expire) -> Path:
    root: Path = store_copy("clean-stop")
    expire(root)
    return root


@pytest.mark.slow
def test_inspect_counts_what_the_broker_wrote(cli, store, files, ground_truth) -> None:
    before = files(store)
    found = cli("inspect", store, "--messages", "--queues", "--json").json
    frames = ground_truth("clean-stop", "commitlog")
    counts = Counter(int(frame["file"]) for frame in frames if frame["kind"] == "message")
    assert {row["segment"]["base_offset"]: row["messages"] for row in found["segments"]} == {
        base: counts[base] for base in (*SEALED, ACTIVE)
    }
    assert [row["segment"]["state"] for row in found["segments"]] == ["sealed"] * 7 + ["active"]
    assert found["min_offset"] == 0
    assert found["max_offset"] == found["dispatched_offset"] == 7442667
    assert len(found["queues"]) == found["queue_count"] == 34
    assert found["config"]["file_reserved_time_hours"] == 72
    assert not found["crashed"]
    assert files(store) == before


EVERY_HOUR = ";".join(map(str, range(24)))


def test_inspect_shows_a_person_the_same(cli, store) -> None:
    shown = cli("inspect", store)
    assert shown.exit_code == 0
    assert "00000000000007340032  1.0 MiB  active" in shown.out
    assert "34 consume queues, complete up to 7442667" in shown.out
    assert "Index: 49 files" in shown.out
    assert re.search(r"^  fileReservedTime +72 h$", shown.out, re.M)
    assert not shown.err


def test_inspect_tells_that_a_store_crashed(cli, store_copy) -> None:
    assert "abort exists" in cli("inspect", store_copy("kill9")).out


def test_plan_by_hand_deletes_the_expired_prefix_and_says_what_goes_with_it(cli, store, files) -> None:
    before = files(store)
    plan = cli("plan", store, "--manual", "--json").json
    assert plan["delete_offsets"] == SEALED
    assert plan["new_min_offset"] == ACTIVE
    assert [row["reason"] for row in plan["decisions"]] == ["expired"] * 7 + ["active"]
    assert all(row["detail"] for row in plan["decisions"])
    kinds = Counter(file["kind"] for file in plan["dependents"])
    assert kinds == {"consume-queue": 20, "index": 48}
    shown = cli("plan", store, "--manual").out
    assert "7 segments and 68 files that point into them would be deleted, 7.5 MiB in all." in shown
    assert re.fullmatch(r"Archive in process, \d threads?; consumer lag in process, 1 thread", plan["places"])
    assert shown.splitlines()[1] == plan["places"]
    assert plan["digest"] in shown
    assert files(store) == before


@pytest.mark.slow
def test_plan_and_lag_show_what_the_broker_owes_and_block_keeps_it(cli, store) -> None:
    warned = cli("plan", store, "--manual", "--json").json
    (timer,) = (row for row in warned["owed"] if row["count"])
    assert (timer["kind"], timer["count"], timer["first_offset"]) == ("timer", 1, 5283428)
    assert "timer message pending" in warned["notices"][-1]
    assert "timer      1       5283428  2026-11-20 14:15:00Z" in cli("lag", store).out
    blocked = cli("plan", store, "--manual", "--pending-policy", "block")
    assert "5 segments and" in blocked.out
    assert "pending-blocked: 1 timer message pending, the first at offset 5283428" in blocked.out
    assert cli("plan", store, "--manual", "--pending-policy", "ignore", "--json").json["owed"] == []


def test_plan_waits_for_the_window_in_the_stores_zone(cli, store) -> None:
    def causes(at: str) -> list[str]:
        words = ("plan", store, "--time-zone", "Asia/Shanghai", "--set", "deleteWhen=04", "--json")
        return [cause["cause"] for cause in cli(*words, "--at", at).json["triggers"]]

    assert causes("2027-12-01T04:10") == ["time-up"]
    assert causes("2027-12-01T05:10") == []
    assert causes("2027-11-30T20:10+00:00") == ["time-up"]
    assert causes("2027-12-01T04:10+00:00") == []


def test_plan_without_a_cause_keeps_all_and_says_when_one_comes(cli, store) -> None:
    shown = cli("plan", store, "--time-zone", "UTC", "--at", "2027-12-01T05:10").out
    assert "Cause: none holds. No cleanup is due: deleteWhen 04 comes at 2027-12-02 04:00:00Z" in shown
    assert "Nothing would be deleted now. By hand (--manual) 7 segments would, 7.0 MiB." in shown
    assert shown.count("deleteWhen") == 1


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("no-cause", ("--time-zone", "UTC", "--at", "2027-12-01T05:10")),
        ("not-expired", ("--manual", "--set", "fileReservedTime=1000000")),
        ("not-dispatched", ("--manual",)),
    ],
)
def test_plan_tells_segments_that_stay_for_one_reason_in_one_line(
    cli, store, reason: str, words: tuple[str, ...]
) -> None:
    if reason == "not-dispatched":
        shutil.rmtree(store / "consumequeue")
        (store / "consumequeue").mkdir()
    for number, path in enumerate(sorted((store / "commitlog").iterdir())):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + number * 10**9))
    shown = cli("plan", store, *words)
    segments = shown.out.partition("commitlog: 8 segments\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split(maxsplit=1)[0] for line in segments] == ["keep", f"{reason}:", "keep", "active:"]
    assert segments[0].endswith(f"{0:020d} … {SEALED[-1]:020d} (7 segments), 7.0 MiB")
    assert max(map(len, segments)) < 180


def test_plan_asks_what_if_a_disk_were_fuller(cli, store) -> None:
    def plan(*levels: str) -> dict:
        disks = [word for level in levels for word in ("--disk", level)]
        words = ("--time-zone", "UTC", "--at", "2027-12-01T05:10", "--set", "fileReservedTime=1000000")
        return cli("plan", store, *disks, *words, "--json").json

    log, queues = store / "commitlog", store / "consumequeue"
    assert plan(f"{log}=0.50", f"{queues}=0.50")["triggers"] == []
    ordinary = plan(f"{log}=0.80", f"{queues}=0.50")
    assert [(t["cause"], t["urgency"]) for t in ordinary["triggers"]] == [("space-full", "ordinary")]
    assert ordinary["delete_offsets"] == []
    forced = plan(f"{log}=86%", f"{queues}=0.50")
    assert [(t["cause"], t["urgency"]) for t in forced["triggers"]] == [("space-full", "forced")]
    assert forced["delete_offsets"] == SEALED
    assert [disk["used_percent"] for disk in forced["disks"]] == [86, 50]


def test_a_disk_may_be_named_by_a_relative_path_as_the_store(cli, store, monkeypatch) -> None:
    monkeypatch.chdir(store.parent)
    words = (
        "--disk",
        f"{store.name}/commitlog=0.80",
        "--time-zone",
        "UTC",
        "--at",
        "2027-12-01T05:10",
        "--json",
    )
    for directory in (store.name, store):
        assert cli("plan", directory, *words).json["disks"][0]["used_percent"] == 80


@pytest.mark.slow
def test_inspect_says_that_a_lower_bound_is_one(cli, store) -> None:
    assert "complete up to 7442667" in cli("inspect", store).out
    shutil.rmtree(store / "consumequeue")
    assert "complete at least up to" in cli("inspect", store).out


@pytest.mark.again
@pytest.mark.slow
def test_a_queue_directory_whose_name_is_no_text_is_shown(store) -> None:
    """In a process of its own: only a real stream has an encoding."""
    (store / "consumequeue" / os.fsdecode(b"\xff\xfe") / "0").mkdir(parents=True)
    program = "from storage_engine.cli.main import main; main()"
    command = [sys.executable, "-c", program, "inspect", str(store), "--queues"]
    shown = subprocess.run(command, capture_output=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert rb"\udcff\udcfe" in shown.stdout


def test_plan_takes_any_broker_setting_as_a_question(cli, store) -> None:
    held = cli("plan", store, "--manual", "--set", "fileReservedTime=1000000", "--json").json
    assert held["delete_offsets"] == []
    few = cli("plan", store, "--manual", "--set", "deleteFileBatchMax=2", "--json").json
    assert few["delete_offsets"] == SEALED[:2]
    assert [row["reason"] for row in few["decisions"]][2] == "batch-full"


def test_lag_shows_every_group_and_what_a_cleanup_takes_from_it(cli, store, files) -> None:
    before = files(store)
    rows = cli("lag", store, "--json").json["rows"]
    orders = {row["queue_id"]: row for row in rows if (row["group"], row["topic"]) == ("cg_orders", "orders")}
    assert orders[0]["committed_offset"] == 402
    assert orders[0]["lag_messages"] == orders[0]["max_offset"] - 402 == 5
    assert orders[0]["at_risk"]
    shown = cli("lag", store, "--group", "cg_orders", "--set", "deleteWhen=99").out
    assert "orders/0" in shown
    assert "cg_ledger" not in shown
    by_hand = "in 8 queues the next message is in a segment that a cleanup by hand (--manual) deletes"
    assert f"{by_hand}; none is deleted now" in shown
    now = cli("lag", store, "--group", "cg_orders", "--set", f"deleteWhen={EVERY_HOUR}").out
    assert "in 8 queues the next message is in a segment that a cleanup deletes now." in now
    assert files(store) == before


def test_lag_of_a_group_that_is_none_names_those_that_are(cli, store) -> None:
    refused = cli("lag", store, "--group", "nobody")
    assert refused.exit_code == 2
    assert "cg_orders" in refused.err
    assert "'nobody'" in refused.err


def test_index_lookup_finds_what_the_broker_finds(cli, store, ground_truth) -> None:
    rows = ground_truth("clean-stop", "indexlookup")
    several = max(rows, key=lambda row: len(row["offsets"]))
    for row in (*rows[:: len(rows) // 20], several):
        topic, _, key = row["key"].partition("#")
        found = cli("index-lookup", store, topic, key, "--max", 1000, "--json").json
        assert sorted(found["physical_offsets"]) == sorted(row["offsets"])


def test_index_lookup_of_an_unknown_key_is_an_answer_with_exit_code_1(cli, store) -> None:
    missing = cli("index-lookup", store, "orders", "no such key")
    assert (missing.exit_code, missing.out) == (1, "")
    assert "'no such key'" in missing.err


def test_index_lookup_names_entries_whose_message_is_gone(cli, store_copy, ground_truth) -> None:
    store = store_copy("clean-stop")
    rows = ground_truth("clean-stop", "indexlookup")
    gone = next(row for row in rows if max(row["offsets"]) < 1 << 20)
    (store / "commitlog" / f"{0:020d}").unlink()
    topic, _, key = gone["key"].partition("#")
    missing = cli("index-lookup", store, topic, key)
    assert (missing.exit_code, missing.out) == (1, "")
    assert "at which the log has no readable message" in missing.err
    assert cli("index-lookup", store, topic, key, "--json").json["unread"] == gone["offsets"]


def test_index_lookup_says_below_which_offset_nothing_is_indexed(cli, store_copy, ground_truth) -> None:
    store = store_copy("clean-stop")
    complete = cli("index-lookup", store, "orders", "no such key", "--json")
    assert complete.json["unindexed"] == []
    first, second = sorted((store / "index").iterdir())[:2]
    end = read_header(second).begin_phy_offset
    first.unlink()
    lost = next(row for row in ground_truth("clean-stop", "indexlookup") if max(row["offsets"]) < end)
    topic, _, key = lost["key"].partition("#")
    missing = cli("index-lookup", store, topic, key)
    assert missing.exit_code == 1
    assert f"messages are not indexed below offset {end} (from 0 on)" in missing.err
    assert "no message of topic" not in missing.err.replace("the index lists no message of topic", "")
    assert cli("index-lookup", store, topic, key, "--json").json["unindexed"] == [[0, end]]
    shutil.rmtree(store / "index")
    assert "not indexed from offset 0 on" in cli("index-lookup", store, topic, key).err


def test_a_topic_that_is_called_like_a_terminals_command_is_shown_as_text(cli, store_copy) -> None:
    store = store_copy("edge-frames")
    topic = next((store / "consumequeue").iterdir())
    topic.rename(topic.with_name("\x1b]0;pwned\x07"))
    for words in (("inspect", store, "--queues"), ("inspect", store, "--queues", "--json")):
        shown = cli(*words)
        assert shown.exit_code == 0
        assert "\x1b" not in shown.out
        assert "]0;pwned" in shown.out


def test_an_override_that_cannot_be_is_an_error_of_the_option_it_came_by(cli, store) -> None:
    refused = cli("plan", store, "--set", "fileReservedTime=72h")
    assert refused.exit_code == 2
    assert refused.err.startswith("Error: --set, or the connection's settings: fileReservedTime: expected")


def test_another_user_is_told_of_rights_and_not_of_another_broker(cli, store_copy, tmp_path: Path) -> None:
    store, lake = store_copy("clean-stop"), tmp_path / "lake"
    for path in (*tmp_path.parents, tmp_path, *store.parents, store, *store.rglob("*")):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
    assert cli("init-lake", "--lake", lake).exit_code == 0
    assert cli("archive", store, "--lake", lake).exit_code == 0
    lake.chmod(0o700)
    cli("doctor", store)
    with as_nobody():
        looked = cli("doctor", store)
    assert looked.exit_code == 0
    assert f"--lake {lake}" in looked.out, looked.err
    store.chmod(0o700)
    with as_nobody():
        refused = cli("doctor", store)
    assert refused.exit_code == 2
    assert (
        f"{store}: expected a place that this process may look into, found Permission denied" in refused.err
    )
    assert "kafka" not in refused.err


def test_an_archived_segment_that_was_touched_is_told_as_that_until_it_is_hashed_again(
    cli, store: Path, lake: Path
) -> None:
    asked = (store, "--lake", lake)
    assert cli("archive", *asked).exit_code == 0
    said = "1 archived segment was touched since, to be hashed again"
    assert said not in cli("plan", *asked).out
    sorted((store / "commitlog").iterdir())[0].chmod(0o600)
    assert f"Note: {said}" in cli("plan", *asked).out
    assert said in cli("plan", *asked, "--json").json["notices"]
    assert said not in cli("plan", store).out
    assert f"Archive lag: all sealed segments are archived; {said}\n" in cli("inspect", *asked).out
    assert said in cli("doctor", *asked).out
    again = cli("archive", *asked).out
    assert "Hashed again, unchanged" in again
    assert "Archived and proven" not in again
    assert "Archive lag: all sealed segments are proven in the lake\n" in cli("inspect", *asked).out


def test_plan_goes_on_where_its_lake_cannot_be_asked(cli, store: Path, lake: Path) -> None:
    assert cli("archive", store, "--lake", lake).exit_code == 0
    (lake / "catalog.db").unlink()
    outcome = cli("plan", store, "--lake", lake)
    assert outcome.exit_code == 0
    assert "it is unknown which segments' files were touched after they were archived" in outcome.out.replace(
        "\n", " "
    )
