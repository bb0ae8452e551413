"""storage-engine doctor: what a stranger's store is, what is wrong with it, and that nothing is changed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.core.extras import SparkPair
from storage_engine.model.report.diagnosis import Severity
from storage_engine.model.settings.policy import SparkFrom, SparkUse, in_spark, places_text
from storage_engine.retention.doctor.doctor import pair_findings
from storage_engine.rocketmq.hold.marker import write_marker
from tests.cli.doctor_runs import aged, kinds, tree
from tests.services import toy

MIB = 1 << 20
StoreCopy = Callable[[str], Path]


@pytest.mark.parametrize("name", ["clean-stop", "cqext-batchcq", "edge-frames", "kill9", "rocksdb-pending"])
def test_every_store_is_told_in_80_columns_and_left_as_it_was(cli, store_copy: StoreCopy, name: str) -> None:
    store = store_copy(name)
    before = tree(store.parent)
    outcome = cli("doctor", store)
    assert outcome.exit_code == 0, outcome.err
    assert not outcome.err
    assert max(len(line) for line in outcome.out.splitlines() if str(store) not in line) <= 80
    assert outcome.out.splitlines()[-1].startswith("Next: storage-engine init-lake --lake DIRECTORY")
    assert tree(store.parent) == before


def test_a_pyspark_that_can_not_be_used_is_urgent_where_the_store_has_a_spark(
    cli, store_copy: StoreCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkPair, "installed", lambda: SparkPair("4.1.4", "4.2.0"))
    outcome = cli("doctor", store_copy("clean-stop"), "--json")
    assert (outcome.exit_code, kinds(outcome)["spark-pair"]) == (0, "note")
    (finding,) = (one for one in outcome.json["findings"] if one["kind"] == "spark-pair")
    assert finding["advice"] == f"make them equal: {SparkPair.installed().install}"
    spark = SparkUse("local[2]", SparkFrom())
    for runs, severity in ((places_text(spark, 2), Severity.URGENT), (places_text(None, 2), Severity.NOTE)):
        (finding,) = pair_findings(SparkPair.installed(), has_spark=runs.startswith(in_spark("")))
        assert finding.severity is severity


def test_what_a_store_is_comes_from_its_files(cli, store_copy: StoreCopy) -> None:
    found = cli("doctor", store_copy("clean-stop"), "--json").json
    assert (found["kind"], found["version"], found["urgent"]) == ("doctor", 1, False)
    assert found["broker"]["name"] == "rocketmq"
    assert found["broker"]["version"].startswith("5.0 or later")
    assert found["broker"]["running"] is False
    figures = found["figures"]
    assert (figures["segments"], figures["sealed_segments"], figures["size_bytes"]) == (8, 7, 8 * MIB)
    assert figures["logs"] == [{"name": "commitlog", "min_offset": 0, "max_offset": 7442667}]
    assert figures["oldest_message_ms"] < figures["newest_message_ms"]
    assert figures["growth"] is None, "all its segments are of a few seconds"
    assert {one["name"] for one in found["settings"]} >= {"deleteWhen", "fileReservedTime"}
    assert {one["source"] for one in found["settings"]} == {"default"}


def test_the_figures_are_those_that_a_plan_is_made_from(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    inspected = cli("inspect", store, "--json").json
    (log,) = cli("doctor", store, "--json").json["figures"]["logs"]
    assert (log["min_offset"], log["max_offset"]) == (inspected["min_offset"], inspected["max_offset"])


def test_settings_say_where_they_are_from_and_which_defeat_each_other(
    cli, store_copy: StoreCopy, tmp_path: Path
) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=4\ndiskMaxUsedSpaceRatio=99\ndeleteWhen=25\nfileReservedtime=72\n")
    outcome = cli("doctor", store, "--broker-conf", conf, "--set", "deleteFileBatchMax=3", "--json")
    settings = {one["name"]: one for one in outcome.json["settings"]}
    assert settings["fileReservedTime"]["source"] == "config-file"
    assert settings["deleteFileBatchMax"]["source"] == "override"
    assert settings["cleanFileForciblyEnable"]["source"] == "default"
    assert settings["diskMaxUsedSpaceRatio"]["value"] == "95 %"
    assert "99 is configured" in settings["diskMaxUsedSpaceRatio"]["note"]
    said = " ".join(one["what"] for one in outcome.json["findings"])
    assert "is not below diskSpaceCleanForciblyRatio 85" in said
    assert "deleteWhen 25: no clock shows that hour" in said
    assert "write fileReservedTime" in {one["advice"] for one in outcome.json["findings"]}
    assert "no-broker-conf" not in kinds(outcome)


def test_a_setting_that_the_broker_does_not_work_with_is_urgent_and_no_bad_input(
    cli, store_copy: StoreCopy, tmp_path: Path
) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("deleteWhen=four\nfileReservedTime=48\n")
    outcome = cli("doctor", store, "--broker-conf", conf, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["setting"] == "urgent"
    assert {one["name"]: one["value"] for one in outcome.json["settings"]}["fileReservedTime"] == "48 h"
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store}" + f" --broker-conf {conf}"


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere",),
        ("STORE", "--set", "deleteWhen=four"),
        ("STORE", "--broker-conf", "nowhere.conf"),
        ("STORE", "--conn-id", "a"),
        (),
    ],
)
def test_bad_input_ends_with_2(cli, store_copy: StoreCopy, tmp_path: Path, words: tuple[str, ...]) -> None:
    store = store_copy("edge-frames")
    before = tree(store)
    given = [
        store if word == "STORE" else tmp_path / word if word.startswith("nowhere") else word
        for word in words
    ]
    assert cli("doctor", *given).exit_code == 2
    assert tree(store) == before


def _hole(store: Path) -> None:
    (store / "commitlog" / f"{MIB:020d}").unlink()


def _short(store: Path) -> None:
    os.truncate(store / "commitlog" / f"{MIB:020d}", 4096)


def _foreign(store: Path) -> None:
    (store / "commitlog" / "notes.txt").write_text("mine")


def _pipe(store: Path) -> None:
    os.mkfifo(store / "commitlog" / "pipe")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (_hole, "hole"),
        (_short, "segment-size"),
        (_foreign, "foreign-file"),
        (_pipe, "foreign-file"),
    ],
)
def test_a_log_that_no_command_works_with_is_urgent_with_its_reason(
    cli, store_copy: StoreCopy, damage: Callable[[Path], None], kind: str
) -> None:
    store = store_copy("clean-stop")
    damage(store)
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)[kind] == "urgent"
    assert outcome.json["figures"] is None
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store}"


def test_a_layout_that_this_version_does_not_handle_is_named(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-000001\n")
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 0
    assert kinds(outcome)["layout"] == "warning"
    assert "RocksDB consume queue" in outcome.json["findings"][0]["what"]
    # Its log is read, and archived, all the same.
    assert outcome.json["figures"]["segments"] == 8
    assert outcome.json["next"]["command"] == "storage-engine init-lake --lake DIRECTORY"


def test_consumers_that_are_about_to_lose_messages_are_urgent(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "consumers-lose"]
    assert finding["severity"] == "urgent"
    assert "cg_orders 51" in finding["what"]
    assert f"storage-engine lag {store}" in finding["advice"]


def test_an_empty_file_of_a_queue_is_named_and_as_urgent_as_what_it_may_hide(
    cli, store_copy: StoreCopy
) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    first = next(iter(sorted(store.glob("consumequeue/orders/*/*"))))
    second = first.with_name(f"{first.stat().st_size:020d}")
    second.write_bytes(bytes(first.stat().st_size))
    first.write_bytes(b"")
    outcome = cli("doctor", store, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "consumers-unknown"]
    assert finding["severity"] == "urgent"
    assert f"{first}: expected a file of whole entries, found 0 bytes" in finding["what"]


def test_a_queue_whose_only_file_is_empty_is_unknown(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, 5)
    first, *others = sorted(store.glob("consumequeue/orders/0/*"))
    for path in others:
        path.unlink()
    first.write_bytes(b"")
    (finding,) = [
        one for one in cli("doctor", store, "--json").json["findings"] if one["kind"] == "consumers-unknown"
    ]
    assert finding["severity"] == "urgent"
    assert f"{first}: expected a file of whole entries, found 0 bytes" in finding["what"]
    lag = cli("lag", store, "--json")
    assert lag.exit_code == 0
    unknown = [
        (row["queue_id"], row["committed_offset"] > 0, row["lag_ms"], row["at_risk"])
        for row in lag.json["rows"]
        if row["topic"] == "orders" and row["lag_messages"] is None
    ]
    assert unknown == [(0, True, None, True)]


def test_a_clock_that_is_off_is_told(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    aged(store, -3)
    assert kinds(cli("doctor", store, "--json"))["clock"] == "warning"


def test_a_hold_that_is_over_is_told(cli, store_copy: StoreCopy) -> None:
    store = store_copy("clean-stop")
    write_marker(store, "somebody", time.time_ns() // 1_000_000 - 60_000)
    outcome = cli("doctor", store, "--json")
    assert kinds(outcome)["dead-hold"] == "warning"
    assert (store / ".storage-engine-hold").exists()


def test_a_broker_that_has_the_lock_is_told_with_its_port(cli, store_copy: StoreCopy, tmp_path: Path) -> None:
    store, conf = store_copy("clean-stop"), tmp_path / "broker.conf"
    conf.write_text("listenPort=30911\n")
    code = (
        "import fcntl, os, sys, time\nfd = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0)\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        outcome = cli("doctor", store, "--broker-conf", conf, "--json")
        assert outcome.json["broker"]["running"] is True
        (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "running"]
        assert f"process {holder.pid}" in finding["what"]
        assert finding["advice"].endswith("--broker HOST:30911")
        holder.communicate()


def test_a_broker_that_does_not_answer_leaves_what_the_files_say(cli, store_copy: StoreCopy) -> None:
    outcome = cli("doctor", store_copy("clean-stop"), "--broker", "127.0.0.1:1", "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["broker-unreachable"] == "urgent"
    assert outcome.json["figures"]["segments"] == 8


def test_another_packages_broker_need_not_know_of_doctor(cli, tmp_path: Path) -> None:
    with toy.registered(tmp_path / "broker"):
        toy.make_store(tmp_path / "store")
        before = tree(tmp_path / "store")
        found = cli("doctor", tmp_path / "store", "--broker-type", "toy", "--json").json
        assert tree(tmp_path / "store") == before
    assert found["broker"] == {"name": "toy", "version": None, "running": None, "layout": []}
    assert [log["name"] for log in found["figures"]["logs"]] == ["access", "errors"]
    assert found["figures"]["next_deletion_ms"] == found["at_ms"]
    (unproven,) = [one for one in found["findings"] if one["kind"] == "unproven"]
    assert unproven["what"].endswith("its broker deletes them at any moment")


def test_our_own_directory_is_not_made(cli, store_copy: StoreCopy) -> None:
    store = store_copy("edge-frames")
    cli("doctor", store)
    assert not (store / DIRECTORY).exists()
