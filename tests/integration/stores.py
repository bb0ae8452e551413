"""Fixture stores for tests that share one broker among them, and what must be served from each."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.store.store import RocketMQStore
from tests.fixture_stores import FIXTURES
from tests.fixture_stores import unpack as unpack_store
from tests.integration.broker import FIXTURE_SIZES
from tests.integration.remoting import RemotingClient

Queue = tuple[str, int]
Messages = dict[Queue, dict[int, str]]
"""(topic, queue id) → queue offset → SHA-256 of the frame."""


def unpack(name: str, target: Path) -> Path:
    """Unpack a fixture store under ``target`` with all that a broker reads; returns its root."""
    return unpack_store(name, target, timer_wheel=True)


def open_store(root: Path) -> RocketMQStore:
    """Open a store with the file sizes that the fixture stores have."""
    settings = {key: str(value) for key, value in FIXTURE_SIZES.items()}
    return RocketMQStore.open(load_broker_config(None, settings, root=str(root)))


@dataclass(frozen=True)
class Truth:
    """What the broker's own classes read from a fixture store.

    :param frames: physical offset → SHA-256, of every message.
    :param queues: (topic, queue id) → queue offset → physical offset.
    :param index: ``topic#key`` → physical offsets.
    """

    frames: Mapping[int, str]
    queues: Mapping[Queue, Mapping[int, int]]
    index: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, name: str) -> Truth:
        frames = {
            frame["physicOffset"]: frame["frameSha256"]
            for frame in _read_lines(name, "commitlog")
            if frame["kind"] == "message"
        }
        queues: dict[Queue, dict[int, int]] = {}
        for entry in _read_lines(name, "consumequeue"):
            queues.setdefault((entry["topic"], entry["queue"]), {})[entry["index"]] = entry["offset"]
        index = {line["key"]: tuple(line["offsets"]) for line in _read_lines(name, "indexlookup")}
        return cls(frames, queues, index)

    def messages(self, start: int, end: int) -> Messages:
        """What a broker must serve when it has the physical offsets [start, end); empty queues left out."""
        expected = {
            queue: {index: self.frames[at] for index, at in entries.items() if start <= at < end}
            for queue, entries in self.queues.items()
        }
        return {queue: messages for queue, messages in expected.items() if messages}

    def first_offsets(self, start: int) -> dict[Queue, int]:
        """The min offset that a broker must report of each queue when its log begins at ``start``."""
        return {
            queue: min((index for index, at in entries.items() if at >= start), default=max(entries) + 1)
            for queue, entries in self.queues.items()
        }


def served(client: RemotingClient, expected: Messages) -> Messages:
    """Pull the queue offsets that ``expected`` has, from a broker."""
    return {
        (topic, queue_id): {
            offset: hashlib.sha256(frame).hexdigest()
            for offset, frame in client.queue(topic, queue_id, min(offsets), max(offsets) + 1).items()
        }
        for (topic, queue_id), offsets in expected.items()
    }


def file_hashes(*directories: Path) -> dict[str, str]:
    """Path → SHA-256 of every file under the directories."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _read_lines(name: str, kind: str) -> list[dict[str, Any]]:
    with gzip.open(FIXTURES / f"{name}.{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
