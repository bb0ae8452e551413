"""What validation has to know of a RocketMQ store. Reads only, and judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from storage_engine.model.facts import CheckpointFact, FactsScope, IndexFact, StoreFacts
from storage_engine.rocketmq.broker_config import load_broker_config
from storage_engine.rocketmq.checkpoint import Checkpoint, read_checkpoint
from storage_engine.rocketmq.index_file import list_index_paths, read_header
from storage_engine.rocketmq.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.log_facts import LogFiles, find_log_files, segment_facts, walk_segments
from storage_engine.rocketmq.queue_facts import collect_queues


def collect(
    root: str, broker_conf: str | None, overrides: Mapping[str, str], scope: FactsScope
) -> StoreFacts:
    """Look at a store.

    :raises StoreNotFoundError: a directory of it is missing, or there is no segment in it.
    :raises UnsupportedLayoutError: a layout that we don't handle.
    :raises CorruptFileError: the checkpoint or an index file can't be what its name says.
    """
    layout = resolve_layout(load_broker_config(broker_conf, overrides, root=root))
    log = find_log_files(layout)
    walk = walk_segments(layout, log, scope)
    queues = collect_queues(layout, log, scope)
    return StoreFacts(
        local=log.local,
        segments=segment_facts(layout, log),
        frames=walk.frames,
        dispatch=walk.dispatch,
        queue_files=queues.files,
        queues=queues.queues,
        index_files=_index_facts(layout, log),
        checkpoint=_checkpoint_facts(layout, log, walk.newest_store_timestamp_ms),
        notes=walk.notes + queues.notes,
    )


def _index_facts(layout: StoreLayout, log: LogFiles) -> tuple[IndexFact, ...]:
    """An index file goes when its end lies below the log's min offset, but never the last one
    (IndexService#deleteExpiredFile)."""
    paths = list_index_paths(layout)
    rows = []
    for path in paths:
        header = read_header(path)
        empty = header.next_entry <= 1
        left_over = path != paths[-1] and not empty and header.end_phy_offset < log.min_offset
        rows.append(
            IndexFact(
                subject=f"index/{path.name}",
                log_min_offset=log.min_offset,
                log_max_offset=log.max_offset,
                floor=0,
                first_offset=-1 if empty else header.begin_phy_offset,
                last_offset=-1 if empty else header.end_phy_offset,
                left_over_files=int(left_over),
            )
        )
    return tuple(rows)


def _checkpoint_facts(
    layout: StoreLayout, log: LogFiles, newest_store_timestamp_ms: int
) -> tuple[CheckpointFact, ...]:
    """No value may lie behind what the log holds: a recovery would begin behind unflushed messages
    (CommitLog#recoverAbnormally, isMappedFileMatchedRecover)."""
    found = read_checkpoint(Path(layout.checkpoint))
    if found is None:
        return ()
    return tuple(
        CheckpointFact(
            subject=f"checkpoint {field.name}",
            low=0,
            value=getattr(found, field.name) if high >= 0 else -1,
            high=high,
        )
        for field in fields(Checkpoint)
        for high in [newest_store_timestamp_ms if field.name.endswith("_ms") else log.max_offset]
    )
