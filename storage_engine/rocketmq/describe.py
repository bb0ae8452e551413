"""An inspected RocketMQ store as paragraphs, tables and lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.report.inspection import Disks, Inspection, Names, Paragraph, Section, Table
from storage_engine.rocketmq.format.broker_config import SETTING_NAMES, BrokerConfig
from storage_engine.rocketmq.inspect import (
    IndexInspection,
    QueueInspection,
    SegmentInspection,
    StoreInspection,
)

_UNITS = {"hours": "h", "percent": "%", "ms": "ms", "bytes": "bytes"}
"""Of a field by the end of its name."""


def described(found: StoreInspection, data_paths: tuple[Path, ...], *, messages: bool) -> Inspection:
    """Describe a store for a person, and as data.

    :param data_paths: directories that its broker writes to.
    :param messages: every frame was read, so its counts are known.
    """
    sections: list[Section] = [
        Paragraph(_state(found)),
        Disks((*found.log_disks, found.dependents_disk)),
        Paragraph(_checkpoint(found)),
        _counted(found.segments) if messages else _segments(found.segments),
    ]
    if found.queues:
        sections.append(_queues(found.queues))
    sections.append(Paragraph(""))
    if found.index_files:
        sections.append(Paragraph(_index(found.index_files)))
    topics = tuple(topic.topic for topic in found.topics)
    sections += [Paragraph(f"WARNING {why}") for why in found.unreadable]
    sections += [Names("Topics", topics), Names("Groups", found.groups), _settings(found.config)]
    return Inspection(to_jsonable(found), tuple(sections), data_paths)


def _state(found: StoreInspection) -> str:
    lines: list[str] = []
    if found.holder is not None:
        lines.append(f"Held by {found.holder.name} (process {found.holder.pid})")
    elif found.crashed:
        lines.append(
            "Not stopped cleanly: abort exists. It can be archived, but not cleaned until recovered."
        )
    least = "" if found.dispatched_offset >= found.max_offset else "at least "
    lines.append(
        f"Offsets {found.min_offset} to {found.max_offset}; {found.queue_count} consume queues, "
        f"complete {least}up to {found.dispatched_offset}"
    )
    return "\n".join(lines)


def _checkpoint(found: StoreInspection) -> str:
    if found.checkpoint is None:
        return "Checkpoint: none"
    log, queues, index = (
        time_text(found.checkpoint.get(f"{part}_msg_timestamp_ms")) or "unknown"
        for part in ("physic", "logics", "index")
    )
    return f"Checkpoint: commitlog {log}, consume queues {queues},\n            index {index}"


def _counted(rows: Sequence[SegmentInspection]) -> Table:
    return Table(
        "Commitlog",
        ("segment", "state", "messages#", "first stored", "last stored", "damaged#"),
        tuple(
            (
                row.segment.name,
                row.segment.state.value,
                row.messages,
                time_text(row.first_store_timestamp_ms),
                time_text(row.last_store_timestamp_ms),
                bytes_text(row.damaged_bytes) if row.damaged_bytes else "none",
            )
            for row in rows
        ),
    )


def _segments(rows: Sequence[SegmentInspection]) -> Table:
    return Table(
        "Commitlog",
        ("segment", "size#", "state", "last written", "first stored"),
        tuple(
            (
                row.segment.name,
                bytes_text(row.segment.facts.size_bytes),
                row.segment.state.value,
                time_text(row.segment.mtime_ns // 1_000_000),
                time_text(row.first_store_timestamp_ms),
            )
            for row in rows
        ),
    )


def _queues(rows: Sequence[QueueInspection]) -> Table:
    return Table(
        "Consume queues",
        ("topic~", "queue#", "files#", "min#", "max#", "kind"),
        tuple(
            (q.topic, q.queue_id, q.files, q.min_offset, q.max_offset, "batch" if q.batch else "")
            for q in rows
        ),
    )


def _index(files: Sequence[IndexInspection]) -> str:
    first, last = files[0], files[-1]
    return (
        f"Index: {count_text(len(files), 'file')}, offsets {first.begin_phy_offset} to "
        f"{last.end_phy_offset},\n       "
        f"stored {time_text(first.begin_timestamp_ms)} to {time_text(last.end_timestamp_ms)}"
    )


def _settings(config: BrokerConfig) -> Table:
    return Table(
        "Settings in effect, by the names that --set takes",
        ("setting", "value"),
        tuple((name, _setting_text(field, getattr(config, field))) for field, name in SETTING_NAMES.items()),
    )


def _setting_text(field: str, value: object) -> str:
    if value is None:
        return "not set: as the files are"
    unit = _UNITS.get(field.rpartition("_")[2])
    if unit is not None:
        return f"{value} {unit}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
