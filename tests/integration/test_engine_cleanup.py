"""The write path's cleanup against the broker's own, pass by pass, with clock and disk driven."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from storage_engine.model.disk import DiskUsage
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.engine.store_service import CleanupLoop
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.rocketmq.engine.scenarios import BATCH_TOPIC, PinnedRange, messages, put_all, read_log, write_conf
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.again]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
START_MS = 1_790_000_000_000 // (24 * HOUR_MS) * 24 * HOUR_MS
FILE_BYTES = 1 << 16
_OPTIONS = (
    "-Xmx512m",
    "-Djdk.attach.allowAttachSelf=true",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
_STORES = rounds("STORAGE_ENGINE_CLEANUP_STORES", 2, 10)


def test_the_same_files_go_at_the_same_passes(tmp_path: Path) -> None:
    deleted = held = 0
    for seed in range(_STORES):
        chance = random.Random(seed)
        settings: dict[str, object] = {
            "fileReservedTime": chance.choice([0, 1, 2, 5]),
            "deleteWhen": chance.choice(["04", "00;02;05", "99"]),
            "deleteFileBatchMax": chance.choice([0, 1, 3, 10]),
            "diskMaxUsedSpaceRatio": chance.choice([50, 75]),
            "cleanFileForciblyEnable": chance.choice([True, True, False]),
            "enableConsumeQueueExt": chance.choice([True, False]),
        }
        work = tmp_path / str(seed)
        work.mkdir()
        ours, theirs = work / "ours", work / "theirs"
        config = write_conf(work / "ours.conf", ours, **settings)
        with open_store(config, batches=frozenset({BATCH_TOPIC})) as store:
            put_all(store, messages(seed, 400))
        step_ms = chance.choice([1, 20, 60]) * MINUTE_MS
        for number, path in enumerate(sorted((ours / "commitlog").iterdir())):
            moment_ns = (START_MS - 2 * HOUR_MS + number * step_ms) * 1_000_000
            os.utime(path, ns=(moment_ns, moment_ns))
        shutil.copytree(ours, theirs)
        write_conf(work / "theirs.conf", theirs, **settings)
        passes = passes_by_chance(chance)
        (work / "passes.json").write_text(json.dumps(passes))
        expected = left_by_java(work)
        with open_store(config, batches=frozenset({BATCH_TOPIC})) as store:
            found = left_by_ours(store, config, passes)
        for number, (left, java_s) in enumerate(zip(found, expected, strict=True)):
            assert left == java_s, (seed, number, passes[number], settings)
            # The log's first file is shut down, and still there.
            held += left["min"] > int(left["log"][0])
        deleted += len(expected[0]["log"]) - len(expected[-1]["log"])
    assert deleted > 3 * _STORES
    assert held > _STORES


def passes_by_chance(chance: random.Random) -> list[dict[str, Any]]:
    """A day and a half: some passes follow one another, some hours later; a reader holds a file at times."""
    passes: list[dict[str, Any]] = []
    at_ms = START_MS
    for _ in range(60):
        at_ms += chance.choice([10_000, 10_000, 10_000, 125_000, HOUR_MS])
        one: dict[str, Any] = {"at": at_ms, "used": chance.choice([20, 20, 60, 76, 86, 88, 91])}
        if chance.random() < 0.1:
            one["manual"] = True
        if chance.random() < 0.6:
            one["hold"] = FILE_BYTES * chance.randrange(30) + 100
        if chance.random() < 0.1:
            one["give_back"] = True
        passes.append(one)
    return passes


def left_by_java(work: Path) -> list[dict[str, Any]]:
    command = [
        java(),
        *_OPTIONS,
        f"-Duser.home={work}",
        "-cp",
        class_path(JAVA_PROJECTS / "cleaning"),
        "Passes",
    ]
    command += [str(work / "theirs.conf"), str(work / "passes.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("> ")]


def left_by_ours(
    store: MessageStore, config: BrokerConfig, passes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    now_ms, used = 0, 0

    def pause(pause_ms: int) -> None:
        nonlocal now_ms
        now_ms += pause_ms

    loop = CleanupLoop(
        store,
        config,
        ZoneInfo("UTC"),
        clock=lambda: now_ms,
        measure=lambda path: DiskUsage(str(path), used),
        pause=pause,
    )
    left: list[dict[str, Any]] = []
    held: PinnedRange | None = None
    for one in passes:
        now_ms, used = one["at"], one["used"]
        if one.get("manual"):
            loop.delete_manually()
        if one.get("give_back") and held:
            held.release()
            held = None
        if "hold" in one and held is None:
            held = read_log(store, one["hold"], 10)
        loop.clean_log()
        loop.clean_queues()
        left.append(left_of(store))
    if held:
        held.release()
    return left


def left_of(store: MessageStore) -> dict[str, Any]:
    root = store.layout.root
    queues = {
        str(directory.relative_to(root)): names(directory)
        for kind in ("consumequeue", "consumequeue_ext", "batchconsumequeue")
        for directory in (root / kind).glob("*/*")
    }
    return {
        "log": names(root / "commitlog"),
        "queues": queues,
        "index": names(root / "index"),
        "minima": {
            f"{writer.files.directory.parent.name}/{writer.files.directory.name}": writer.min_queue_offset
            for writer in store.queues
        },
        "min": store.files.min_offset,
        "writeable": not store.disk_full,
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
