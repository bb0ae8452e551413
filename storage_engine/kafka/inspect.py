"""The contents of a node's directories, for a person and as data. Only reads files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text
from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.file_names import read_stored
from storage_engine.kafka.format.layout import LogDirectory, Node, PartitionLog, read_node
from storage_engine.kafka.format.log_end import known_end
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import read_topic_id, text_of
from storage_engine.kafka.metadata.topic_settings import TopicSettings, read_topic_settings
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.disk import DiskUsage
from storage_engine.model.report.inspection import Disks, Inspection, Paragraph, Section, Table

_MAX_SEGMENT_BYTES = (1 << 31) - 1


def inspect(settings: StoreSettings, *, messages: bool) -> Inspection:
    """Describe a node.

    :param messages: also read every segment, count its batches and records, and check their CRCs.
    :raises BadInputError: the path is no node, or a file contradicts its name.
    """
    node = read_node(Path(settings.root))
    topics = read_topic_settings(node)
    rows = [_row(directory, log, topics, messages=messages) for directory, log in node.logs]
    disks = tuple(DiskUsage.of(directory.path) for directory in node.directories)
    columns: tuple[str, ...] = ("log~", "segments#", "size#", "start#", "end#", "policy")
    if messages:
        columns = (*columns, "batches#", "records#", "damaged#")
    logs = Table("Logs", columns, tuple(_cells(row, messages=messages) for row in rows))
    sections: list[Section] = [Paragraph(_about(node, topics)), Disks(disks), logs]
    aside = [
        (log.path.name, log.name.state.value, bytes_text(log.size_bytes + log.left_over_bytes))
        for directory in node.directories
        for log in directory.aside
    ]
    if aside:
        sections.append(Table("Directories set aside", ("directory~", "as", "size#"), tuple(aside)))
    data: dict[str, Any] = {
        "root": str(node.root),
        "cluster_ids": sorted(node.cluster_ids),
        "settings_unknown": topics.unknown,
        "logs": rows,
        "directories": [
            {
                "path": str(directory.path),
                "meta": to_jsonable(directory.meta),
                "stopped_cleanly": directory.stopped_cleanly,
            }
            for directory in node.directories
        ],
        "aside": [{"directory": name, "as": state} for name, state, _ in aside],
        "disks": to_jsonable(disks),
    }
    return Inspection(data, tuple(sections), tuple(directory.path for directory in node.directories))


def _about(node: Node, topics: TopicSettings) -> str:
    lines = [
        f"Cluster {', '.join(sorted(node.cluster_ids)) or 'unknown'}; only meta.properties names the node "
        "and its cluster"
    ]
    for directory in node.directories:
        state = (
            "running, or not stopped cleanly" if directory.left_uncleanly else "no sign of an unclean stop"
        )
        lines.append(f"{directory.path}: {directory.fault or state}")
    if topics.unknown:
        lines.append(f"Settings of topics are unknown: {topics.unknown}")
    return "\n".join(lines)


def _row(
    directory: LogDirectory, log: PartitionLog, topics: TopicSettings, *, messages: bool
) -> dict[str, Any]:
    settings = topics.of(log.name.topic)
    start = log.segments[0].base_offset if log.segments else 0
    end = known_end(directory, log)
    row: dict[str, Any] = {
        "log": log.name.log,
        "directory": str(directory.path),
        "topic_id": _topic_id(log),
        "internal": log.name.is_internal,
        "segments": len(log.segments),
        "size_bytes": log.size_bytes,
        "start_offset": max(directory.log_starts.get(log.name.log, start), start),
        "end_offset": None if end.unread else end.offset,
        "high_watermark": directory.high_watermarks.get(log.name.log),
        "settings": None if isinstance(settings, str) else to_jsonable(settings),
        "left_over_bytes": log.left_over_bytes,
    }
    return {**row, **_counts(log)} if messages else row


def _topic_id(log: PartitionLog) -> str | None:
    """Return the id of a log's topic; None if its file doesn't contain it. ``doctor`` reports why."""
    try:
        return text_of(read_topic_id(log.path / PARTITION_METADATA))
    except (CorruptFileError, OSError):
        return None


def _counts(log: PartitionLog) -> dict[str, int]:
    # NumPy and the kernels take longer to load than it takes to list most nodes.
    from storage_engine.kafka.codec.record_batch import read_batches

    counts = {"batches": 0, "records": 0, "legacy_messages": 0, "damaged_bytes": 0}
    for segment in log.segments:
        batches = read_batches(read_stored(Path(segment.log.path), _MAX_SEGMENT_BYTES))
        counts["batches"] += len(batches.positions)
        counts["records"] += int(batches.record_counts.sum())
        counts["legacy_messages"] += batches.legacy
        counts["damaged_bytes"] += sum(damage.size_bytes for damage in batches.damages)
    return counts


def _cells(row: dict[str, Any], *, messages: bool) -> tuple[object, ...]:
    cells: tuple[object, ...] = (
        row["log"],
        row["segments"],
        bytes_text(row["size_bytes"]),
        row["start_offset"],
        row["end_offset"],
        _policy(row),
    )
    if not messages:
        return cells
    damaged = bytes_text(row["damaged_bytes"]) if row["damaged_bytes"] else "none"
    return (*cells, row["batches"], row["records"], damaged)


def _policy(row: dict[str, Any]) -> str:
    settings = row["settings"]
    if row["internal"]:
        return "Kafka's own"
    if settings is None:
        return "unknown"
    words = [word for word in ("compact", "delete") if settings[word]]
    return ",".join(words) + (", remote" if settings["remote"] else "") or "none"
