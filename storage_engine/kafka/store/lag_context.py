"""The logs in which consumer lag is measured, with the time until each segment may be deleted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from storage_engine.kafka.format.layout import Node
from storage_engine.kafka.format.log_end import segment_facts
from storage_engine.kafka.lag import LagContext, LogOfLag, SegmentOfLag
from storage_engine.kafka.metadata.topic_settings import read_topic_settings
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.kafka.store.plan import SeenLog, SeenNode, deletes_at_ms, log_facts, logs_of
from storage_engine.model.store import SegmentId, StoreSnapshot


def lag_context(
    seen: SeenNode, snapshot: StoreSnapshot, read: Collection[str], going: frozenset[SegmentId], now_ms: int
) -> LagContext:
    """Return the logs in which lag is measured.

    :param read: names of the logs that a group reads.
    :param going: the segments that a plan deletes.
    :raises FileNotFoundError: a file vanished.
    """
    logs: dict[str, LogOfLag] = {}
    for seen_log, settings in logs_of(seen, snapshot, read_topic_settings(seen.node)):
        if seen_log.seen.name in read and seen_log.log.segments:
            logs[seen_log.seen.name] = _log(seen_log, seen.node, going, *_times(seen_log, settings, now_ms))
    return LagContext(logs)


def reading_context(seen: SeenNode, snapshot: StoreSnapshot, read: Collection[str]) -> LagContext:
    """Return the logs in which offsets are looked up. Their segments have no times until deletion."""
    return LagContext(
        {
            log.name: _log(replace(seen_log, seen=log), seen.node)
            for log in snapshot.logs
            if log.name in read and (seen_log := seen.known.get(log.name)) and seen_log.log.segments
        }
    )


def _times(
    seen_log: SeenLog, settings: RetentionSettings | str, now_ms: int
) -> tuple[Mapping[int, int | None], int | None]:
    """Return the ms until each segment may be deleted, and the newest record's timestamp."""
    newest_ms = None
    try:
        newest_ms = _newest_ms(seen_log)
        return {} if isinstance(settings, str) else _losses(seen_log, settings, now_ms), newest_ms
    except FileNotFoundError:
        raise
    except OSError:
        # Nothing is known of a log that can't be read. The lag in all other logs is still measured.
        return {}, newest_ms


def _newest_ms(seen_log: SeenLog) -> int | None:
    """Return the timestamp of a log's newest record; None if it has none."""
    segments = seen_log.log.segments
    for files in reversed(segments):
        if files.log.size_bytes:
            return segment_facts(files, active=files is segments[-1]).largest_timestamp_ms
    return None


def _log(
    seen_log: SeenLog,
    node: Node,
    going: frozenset[SegmentId] = frozenset(),
    losses: Mapping[int, int | None] = MappingProxyType({}),
    newest_ms: int | None = None,
) -> LogOfLag:
    name = seen_log.seen.name
    partition = None if node.live is None else node.live.partitions.get(name)
    watermark = None if partition is None else partition.high_watermark
    return LogOfLag(
        name,
        seen_log.start_offset,
        seen_log.end.offset if watermark is None else watermark,
        newest_ms,
        tuple(
            SegmentOfLag(
                files.base_offset,
                files.log.path,
                files.offset_index,
                files.log.size_bytes,
                (is_going := SegmentId(name, files.base_offset) in going),
                0 if is_going else losses.get(files.base_offset),
            )
            for files in seen_log.log.segments
        ),
        is_end_known=watermark is not None or not seen_log.end.unread,
    )


def _losses(seen_log: SeenLog, settings: RetentionSettings, now_ms: int) -> Mapping[int, int | None]:
    """Return the ms until each segment may be deleted; None if no age allows its deletion.

    The active segment is included if all older ones have a time: the broker closes it once all have expired.
    """
    facts = log_facts(seen_log, settings, now_ms, until_kept=False)
    moments = dict(deletes_at_ms(facts, settings, now_ms))
    by_age = settings.delete and not settings.compact and settings.kept_ms >= 0
    if by_age and len(moments) == len(facts.segments) - 1:
        active = facts.segments[-1]
        before = [at_ms for at_ms in moments.values() if at_ms is not None]
        expires_ms = active.largest_timestamp_ms + settings.kept_ms + 1
        moments[active.base_offset] = max([now_ms, *before, expires_ms])
    return {offset: None if at_ms is None else at_ms - now_ms for offset, at_ms in moments.items()}
