"""Store and lake as one table while a real broker writes, archives go on, and what is archived is deleted."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import list_stores, receipts
from tests.integration.kafka_broker import SECONDS, admin_of, make_topics, produce, running_kafka, small
from tests.rounds import rounds
from tests.services.command_line import run_command
from tests.spark.test_table import planned, read, reader_of

pytestmark = [pytest.mark.integration, pytest.mark.again]

READINGS = rounds("STORAGE_ENGINE_TABLE_READINGS", 6, 60)
VERSION = "4.3.1"


@pytest.mark.timeout(600)
def test_each_reading_of_a_log_under_load_has_each_record_once(tmp_path: Path) -> None:
    lake_dir, ended = tmp_path / "lake", threading.Event()
    assert run_command("init-lake", "--lake", lake_dir).exit_code == 0
    chance, faults = random.Random(7), list[BaseException]()
    settings = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 200}
    with running_kafka(tmp_path / "kafka", VERSION, settings) as node:
        make_topics(node.address, "orders", **small(VERSION), file_delete_delay_ms=0)
        archive = ("archive", node.server_properties, "--lake", lake_dir, "--broker", node.address)
        archive += ("--allow-same-disk",)
        produce(node.address, "orders", [b"x" * 500] * 400, batch_num_messages=20)
        done = run_command(*archive)
        assert done.exit_code == 0, done.err
        produced = [400]

        def write() -> None:
            while not ended.is_set():
                produce(node.address, "orders", [b"x" * 500] * 40, batch_num_messages=20)
                produced[0] += 40

        def archive_and_delete() -> None:
            admin = admin_of(node.address)
            while not ended.is_set():
                done = run_command(*archive)
                assert done.exit_code == 0, done.err
                lake = open_lake(LakeConfig.local(lake_dir))
                for store in list_stores(lake):
                    ends = [row.end for row in receipts(lake, store.store_id) if row.log == "orders-0"]
                    if ends:
                        boundary = TopicPartition("orders", 0, chance.choice(ends[-3:]))
                        for result in admin.delete_records([boundary]).values():
                            result.result(SECONDS)

        def recorded(work: object) -> None:
            try:
                work()  # type: ignore[operator]
            except BaseException as error:
                faults.append(error)
                ended.set()

        threads = [threading.Thread(target=recorded, args=(work,)) for work in (write, archive_and_delete)]
        for thread in threads:
            thread.start()
        sources = defaultdict[str, int](int)
        last = 0
        try:
            deadline = time.monotonic() + 300
            readings = 0
            while readings < READINGS and not ended.is_set() and time.monotonic() < deadline:
                options = {"lake": str(lake_dir), "store": str(node.server_properties)}
                reader = reader_of(options, ("log", "kind", "offset", "value"))
                tasks = planned(reader)
                time.sleep(chance.choice([0, 0.5, 2]))
                rows = read(reader, tasks)
                offsets = sorted(row["offset"] for row in rows.to_pylist() if row["kind"] == "message")
                assert offsets == list(range(len(offsets)))
                assert last <= len(offsets) <= produced[0] + 40
                last = len(offsets)
                sources["lake"] += sum(len(task.lake_files) for task in tasks)
                sources["store"] += sum(task.store_file is not None for task in tasks)
                readings += 1
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert faults == []
        assert readings == READINGS
        assert min(sources.values()) > 0
