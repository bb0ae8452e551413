"""A store that brokers of several versions wrote in turn, each in place: archived, cleaned and served."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from tests.fixture_stores import file_sha256
from tests.integration.broker import Broker, running_broker
from tests.integration.live_store import EXPIRED_HOURS, SEGMENT_BYTES, TOPIC, create_topic, send
from tests.rounds import later
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

MESSAGES = 40
GONE = 3
CLEAN = ("clean", "--manual", "--max-segments", GONE, "--set", "fileReservedTime=48")
SETTINGS = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "timerWheelEnable": False}


@pytest.mark.parametrize("versions", [("5.1.4", "5.5.1", "5.1.4"), *later(("4.9.7", "5.3.3", "4.9.7"))])
def test_a_store_goes_on_under_another_version_and_back(
    versions: tuple[str, str, str], tmp_path: Path, name_server_port: int
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    served: dict[int, bytes] = {}

    def broker(number: int) -> AbstractContextManager[Broker]:
        return running_broker(
            root, tmp_path / f"broker-{number}", name_server_port, SETTINGS, version=versions[number]
        )

    def write(running: Broker) -> None:
        for _ in range(MESSAGES):
            send(running.client)
        deadline = time.monotonic() + 60
        end = len(served) + MESSAGES
        while running.client.topic_stats(TOPIC)[0].max_offset < end:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        served.update(running.client.queue(TOPIC, 0, len(served), end))
        running.stop()

    def run(command: object, *words: object) -> dict[str, object]:
        conf = sorted(tmp_path.glob("broker-*"))[-1] / "broker.conf"
        done = run_command(command, root, "--lake", lake, "--broker-conf", conf, *words, "--json")
        assert done.exit_code == 0, done
        return dict(done.json)

    assert run_command("init-lake", "--lake", lake).exit_code == 0
    with broker(0) as first:
        create_topic(first.client)
        write(first)
    before = {path.name: file_sha256(path) for path in (root / "commitlog").iterdir()}
    run("archive")
    assert {path.name: file_sha256(path) for path in (root / "commitlog").iterdir()} == before

    with broker(1) as second:
        write(second)
    old = time.time() - EXPIRED_HOURS * 3600
    for path in (root / "commitlog").iterdir():
        os.utime(path, (old, old))
    run("archive")
    run(*CLEAN)
    assert first_offset(root) == GONE * SEGMENT_BYTES
    run("verify", "--level", "bytes")

    with broker(2) as third:
        begin = third.client.topic_stats(TOPIC)[0].min_offset
        rest = third.client.queue(TOPIC, 0, begin, len(served))
        assert rest == {offset: frame for offset, frame in served.items() if offset >= begin}
        write(third)
    assert 0 < begin < MESSAGES
    run("archive")
    run(*CLEAN)
    assert first_offset(root) == 2 * GONE * SEGMENT_BYTES


def test_a_store_whose_queues_were_switched_to_rocksdb_and_back_is_archived_alone(
    tmp_path: Path, name_server_port: int
) -> None:
    root, lake = tmp_path / "store", tmp_path / "lake"
    assert run_command("init-lake", "--lake", lake).exit_code == 0
    for number, store_type in enumerate(("default", "defaultRocksDB", "default")):
        settings = {**SETTINGS, "storeType": store_type}
        work = tmp_path / f"broker-{number}"
        with running_broker(root, work, name_server_port, settings, version="5.5.1") as broker:
            if number == 0:
                create_topic(broker.client)
            for _ in range(MESSAGES):
                send(broker.client)
            broker.stop()
        for path in (root / "commitlog").iterdir():
            os.utime(path, ns=(0, 0))
        before = {path: file_sha256(path) for path in root.rglob("*") if path.is_file()}
        of_store = (root, "--lake", lake, "--broker-conf", work / "broker.conf")
        assert run_command("archive", *of_store).exit_code == 0
        if number > 0:
            refused = run_command("clean", *of_store, *CLEAN[1:])
            assert (refused.exit_code, "RocksDB consume queue" in refused.err) == (2, True), refused
        after = {path: file_sha256(path) for path in before if DIRECTORY not in path.parts}
        assert after == {path: sha256 for path, sha256 in before.items() if path in after}


def first_offset(root: Path) -> int:
    return min(int(path.name) for path in (root / "commitlog").iterdir())
