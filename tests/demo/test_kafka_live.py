"""The live demo of Kafka with a real broker, what has to hold after it, and that nothing of it is left."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from demo.kafka_live import (
    KafkaOutcome,
    LiveMoment,
    Served,
    check_kafka_live,
    run_demo_kafka_live,
)
from demo.kafka_load import CLICKS, ORDERS, PAYMENTS, TOPICS, ClientsSaw
from demo.kafka_served import Record
from demo.shell import Shell, _shortened
from storage_engine.exceptions import StorageEngineError
from tests.project.test_local_airflow import end, left_over, read_until, start_demo

ALL: dict[str, list[Record]] = {
    topic: [(offset, None, b"%d" % offset) for offset in range(10)] for topic in TOPICS
}
ARCHIVED = {topic: records[:6] for topic, records in ALL.items()}


def sent() -> dict[tuple[str, int], str]:
    return {
        (topic, offset): hashlib.sha256(value or b"").hexdigest()
        for topic, records in ALL.items()
        for offset, _, value in records
    }


OUTCOME = KafkaOutcome(
    clients=ClientsSaw(sent(), list(range(10)), []),
    first=LiveMoment(lagging_at=3, transaction_at=2, starts={CLICKS: 5, ORDERS: 3, PAYMENTS: 1}),
    last_starts={CLICKS: 6, ORDERS: 5, PAYMENTS: 4},
    settings=("before", "held", "before"),
    served={CLICKS: ALL[CLICKS][6:], ORDERS: ALL[ORDERS][5:], PAYMENTS: ALL[PAYMENTS][4:]},
)


def failing(
    outcome: KafkaOutcome,
    archived: Served = ARCHIVED,
    elsewhere: Served = ARCHIVED,
) -> str:
    """Return how the one thing begins that doesn't hold."""
    (found,) = [check.text for check in check_kafka_live(outcome, archived, elsewhere) if not check.holds]
    return " ".join(found.split()[:2])


def test_nothing_is_wrong_where_all_is_as_it_should_be() -> None:
    assert [check.text for check in check_kafka_live(OUTCOME, ARCHIVED, ARCHIVED) if not check.holds] == []


def test_each_thing_that_is_wrong_is_found() -> None:
    clients, first = OUTCOME.clients, OUTCOME.first
    assert failing(replace(OUTCOME, clients=replace(clients, failed=["no"]))) == "no client"
    read_twice = [0, *clients.kept_up]
    assert failing(replace(OUTCOME, clients=replace(clients, kept_up=read_twice))) == "group dashboard"
    for starts in ({ORDERS: 4}, {PAYMENTS: 3}, {CLICKS: 0}):
        moment = replace(first, starts={**first.starts, **starts})
        assert failing(replace(OUTCOME, first=moment)) == "at first"
    stayed = replace(OUTCOME, last_starts={**OUTCOME.last_starts, PAYMENTS: 2})
    assert failing(stayed) == "then orders"
    lost = replace(OUTCOME, served={**OUTCOME.served, CLICKS: ALL[CLICKS][7:]})
    assert {
        check.text.split()[0] for check in check_kafka_live(lost, ARCHIVED, ARCHIVED) if not check.holds
    } == {
        "each",
        "a",
    }
    other = {**ARCHIVED, ORDERS: [*ARCHIVED[ORDERS][:-1], (5, None, b"another")]}
    assert failing(OUTCOME, ARCHIVED, other) == "a second"
    assert failing(replace(OUTCOME, settings=("before", "held", "held"))) == "unmanaged, the"


def test_a_command_is_shown_with_what_it_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    shell = Shell(told.append, {"STORAGE_ENGINE_LAKE": tmp_path / "a lake"})
    with pytest.raises(StorageEngineError, match="expected status 1, found 0"):
        shell.run("constraints", expected=(1,))
    assert told[:4] == ["", "$ export STORAGE_ENGINE_LAKE='a lake'", "", "$ storage-engine constraints"]
    assert any(line.startswith("  pyiceberg==") for line in told)


def test_lines_that_are_alike_are_left_out_and_no_others() -> None:
    alike = [f"  a/{number} behind-kept" for number in range(10)]
    many = ["Kept", *alike, "  a/3 active", "  b/1 blocked: group g reads 7", "", "  a/4 behind-kept"]
    assert list(_shortened(many)) == [
        "Kept",
        "  a/0 behind-kept",
        "  a/1 behind-kept",
        "      … 7 more lines like these …",
        "  a/9 behind-kept",
        "  a/3 active",
        "  b/1 blocked: group g reads 7",
        "",
        "  a/4 behind-kept",
    ]


@pytest.mark.integration
@pytest.mark.again
@pytest.mark.timeout(1_200)
def test_each_record_is_served_or_in_the_lake_and_what_is_needed_stays(tmp_path: Path) -> None:
    said, told = list[str](), list[str]()
    directory = tmp_path / f"kafka-live-of-{os.getpid()}-{time.monotonic_ns()}"
    directory.mkdir()
    assert run_demo_kafka_live(directory, said.append, told.append) == 0, told[-20:]
    assert len([line for line in told if line.startswith("  ok")]) == 7
    assert "Everything held." in told
    assert any("lag-blocked: group billing" in line for line in told)
    assert any("not-archivable" in line and "is open from offset" in line for line in told)
    assert left_over(directory) == []
    shutil.rmtree(directory)


@pytest.mark.integration
@pytest.mark.again
@pytest.mark.timeout(600)
def test_interrupted_it_leaves_no_process_behind(tmp_path: Path) -> None:
    directory = tmp_path / f"kafka-live-of-{os.getpid()}-{time.monotonic_ns()}"
    process = start_demo("kafka-live", directory)
    read_until(process, "stays open")
    status, output = end(process, 15)
    assert status == 128 + 15, output
    assert "nothing is left running" in output
    assert left_over(directory) == []
    shutil.rmtree(directory)
