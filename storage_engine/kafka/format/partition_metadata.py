"""``partition.metadata``: the id of a log's topic (PartitionMetadataFile).

If the id differs from the cluster's, a broker moves the log aside and serves the partition empty.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from functools import lru_cache
from pathlib import Path

from storage_engine.kafka.format.batch_headers import open_file
from storage_engine.kafka.format.file_names import corrupt, read_stored

NAME = "partition.metadata"
_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z", re.ASCII)
_REMEDY = (
    "Don't start a broker on it: it would set the log aside. Bring the file back from a backup, or write it "
    "with the id that kafka-topics.sh --describe shows."
)


def read_topic_id(path: str | Path) -> uuid.UUID:
    """Read the id of a log's topic.

    :raises CorruptFileError: the file contains no topic id.
    :raises OSError: the file is missing or can't be read. Logs from before Kafka 2.8 don't have it.
    """
    return parse_topic_id(read_stored(path), str(path))


def has_topic_id(path: str, topic_id: uuid.UUID) -> bool:
    """Return whether a file has exactly the bytes that a broker writes for a topic.

    This is a fast check for tens of thousands of logs. If it fails, :func:`read_topic_id` tells the reason.

    :raises OSError: the file can't be read.
    """
    expected = partition_metadata_text(topic_id)
    descriptor = open_file(path)
    try:
        return os.read(descriptor, len(expected) + 1) == expected
    finally:
        os.close(descriptor)


def parse_topic_id(data: bytes, path: str) -> uuid.UUID:
    """Return the id in a file's bytes; see :func:`read_topic_id`."""
    lines = data.split(b"\n")
    if lines[0].strip() != b"version: 0":
        raise corrupt(path, 0, "'version: 0'", repr(lines[0][:60]), _REMEDY)
    name, _, text = (lines[1] if len(lines) > 1 else b"").partition(b":")
    at = len(lines[0]) + 1
    if name != b"topic_id" or any(line.strip() for line in lines[2:]):
        raise corrupt(
            path, min(at, len(data)), "one line with the topic_id", repr(data[at : at + 60]), _REMEDY
        )
    return uuid_of(text.strip().decode("ascii", "replace"), path, at)


@lru_cache(maxsize=256)
def partition_metadata_text(topic_id: uuid.UUID) -> bytes:
    return f"version: 0\ntopic_id: {text_of(topic_id)}".encode()


def uuid_of(text: str, path: str, at: int) -> uuid.UUID:
    """Return an id as Kafka writes it: 22 characters of base64.

    :raises CorruptFileError: the text is no id, or is the id that means "no topic".
    """
    if not _ID.match(text):
        raise corrupt(path, at, "an id of 22 characters of base64", repr(text[:60]), _REMEDY)
    value = uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    if not value.int:
        raise corrupt(path, at, "an id", "the id that means no topic", _REMEDY)
    return value


def text_of(topic_id: uuid.UUID) -> str:
    """Return an id as Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def log_id_text(cluster_id: str | None, topic_id: uuid.UUID, partition: int) -> str:
    """Return a log's identity: cluster, topic id and partition, in the form of ``Receipt.log_id``."""
    return f"{cluster_id}/{text_of(topic_id)}/{partition}"


def cluster_of(log_id: str) -> str:
    return log_id.split("/")[0]


def topic_of(log_id: str) -> str:
    """Return the topic's id in a log's identity, as Kafka writes it."""
    return log_id.split("/")[1]
