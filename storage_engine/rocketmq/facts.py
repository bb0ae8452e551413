"""A RocketMQ store as validation needs it. Reads only, and judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from storage_engine.exceptions import StoreBusyError
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.report.facts import (
    CheckpointFact,
    FactsScope,
    IndexFact,
    LocalSegment,
    SegmentFact,
    StoreFacts,
)
from storage_engine.rocketmq.engine.serving import EngineSession, ask_who_serves
from storage_engine.rocketmq.file_facts import (
    BrokerLogEnd,
    LogFiles,
    LogListing,
    LogWalk,
    collect_queues,
    crash_notes,
    find_log_files,
    list_log,
    segment_facts,
    walk_segments,
)
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.checkpoint import Checkpoint, read_known_values
from storage_engine.rocketmq.format.index_file import list_index_paths, read_header
from storage_engine.rocketmq.format.layout import StoreLayout, is_new, resolve_layout
from storage_engine.rocketmq.format.stored_files import Patience, read_or_tell
from storage_engine.rocketmq.live.connect import local_settings, reach
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from storage_engine.rocketmq.rules.cleanup_schedule import DEFAULT_INTERVAL_MS


def collect(settings: StoreSettings, scope: FactsScope) -> StoreFacts:
    """Look at a store.

    What points into the log is looked at before the log's end: beside a running broker that end only moves
    up, so that nothing points behind it that is whole.

    :raises StoreNotFoundError: a directory of it is missing, or there is no segment in it.
    :raises UnsupportedLayoutError: a layout that we don't handle.
    :raises StoreBusyError: a running broker changes files each time that they are looked at.
    :raises BrokerError: the store's broker runs, and can't be asked.
    """
    if settings.live is None:
        config = load_broker_config(settings.broker_conf, settings.overrides, root=settings.root)
        layout = resolve_layout(config)
        session = ask_who_serves(layout.root) if settings.engine else None
        if session is None:
            return _collect(layout, scope, Patience(), lambda: None)
        with closing(session):
            patience = Patience.with_broker(_cleaning_ms(config.raw))
            return _collect(layout, scope, patience, partial(_end_by_engine, session))
    with reach(settings.live) as admin:
        here = local_settings(admin.config(), settings.root, settings.overrides)
        layout = resolve_layout(load_broker_config(None, here, root=settings.root))
        try:
            return _collect(layout, scope, Patience.with_broker(_cleaning_ms(here)), partial(_log_end, admin))
        except FileNotFoundError as error:
            raise StoreBusyError(
                f"{error.filename}: expected it to stay while it is looked at, found that the broker deletes "
                "files each time. Hold the store, or try again when the broker doesn't clean it."
            ) from error


def _collect(
    layout: StoreLayout, scope: FactsScope, patience: Patience, ask_for_end: Callable[[], BrokerLogEnd | None]
) -> StoreFacts:
    if is_new(layout):
        return StoreFacts((), (), notes=("No message was stored yet.",))
    checkpoint, no_checkpoint = read_or_tell(
        lambda: patience.again(partial(read_known_values, layout.checkpoint)), None, "the checkpoint"
    )
    index_files, no_index = read_or_tell(partial(_index_facts, layout, patience), (), "the index")
    queues = collect_queues(layout, partial(list_log, layout), scope, patience)
    end = ask_for_end()

    def look() -> tuple[LogFiles, LogWalk, tuple[SegmentFact, ...], tuple[LocalSegment, ...]]:
        log = find_log_files(list_log(layout), end)
        return log, walk_segments(layout, log, scope), segment_facts(layout, log), log.local

    log, walk, segments, local = patience.again(look)
    return StoreFacts(
        local=local,
        segments=segments,
        frames=walk.frames,
        dispatch=walk.dispatch,
        queue_files=queues.files,
        queues=tuple(replace(row, log_max_offset=log.max_offset) for row in queues.queues),
        index_files=tuple(replace(row, log_max_offset=log.max_offset) for row in index_files),
        checkpoint=_checkpoint_facts(checkpoint, log, walk.newest_store_timestamp_ms),
        notes=(
            *no_checkpoint,
            *no_index,
            *(crash_notes(layout, log) if end is None else ()),
            *walk.notes,
            *queues.notes,
        ),
    )


def _end_by_engine(session: EngineSession) -> BrokerLogEnd:
    found = session.positions()
    return BrokerLogEnd(found.committed, min(found.dispatched, found.committed))


def _log_end(admin: BrokerAdmin) -> BrokerLogEnd:
    info = admin.runtime_info()
    # The broker counts what is behind against a max offset that it takes a moment later.
    return BrokerLogEnd(info.commitlog_max_offset, info.commitlog_max_offset - info.dispatch_behind_bytes)


def _cleaning_ms(settings: Mapping[str, str]) -> int:
    """Two rounds of the broker's own cleaning: the one that is running may have passed a file by.

    Not less than two with the default pause, as a round takes its time, too.
    """
    try:
        pause_ms = int(settings.get("cleanResourceInterval", DEFAULT_INTERVAL_MS))
    except ValueError:
        pause_ms = DEFAULT_INTERVAL_MS
    return 2 * max(pause_ms, DEFAULT_INTERVAL_MS)


def _index_facts(layout: StoreLayout, patience: Patience) -> tuple[IndexFact, ...]:
    """An index file goes when its end lies below the log's min offset, but never the last one
    (IndexService#deleteExpiredFile)."""

    def read(log: LogListing) -> tuple[IndexFact, ...]:
        paths = list_index_paths(layout)
        return tuple(_index_fact(path, log.min_offset, is_last=path == paths[-1]) for path in paths)

    def is_sound(rows: tuple[IndexFact, ...]) -> bool:
        return all(row.first_offset <= row.last_offset for row in rows)

    def count(row: IndexFact) -> int:
        paths = list_index_paths(layout)
        path = layout.root / row.subject
        return int(path in paths[:-1])

    look = partial(list_log, layout)
    rows = patience.settled(read, look(), look, is_sound)
    counts = [partial(count, row) for row in rows]
    still = patience.until_none(counts, [row.left_over_files for row in rows])
    return tuple(replace(row, left_over_files=left) for row, left in zip(rows, still, strict=True))


def _index_fact(path: Path, log_min_offset: int, *, is_last: bool) -> IndexFact:
    header = read_header(path)
    empty = header.next_entry <= 1
    return IndexFact(
        subject=f"index/{path.name}",
        log_min_offset=log_min_offset,
        log_max_offset=-1,
        floor=0,
        first_offset=-1 if empty else header.begin_phy_offset,
        last_offset=-1 if empty else header.end_phy_offset,
        left_over_files=int(not is_last and not empty and header.end_phy_offset < log_min_offset),
    )


def _checkpoint_facts(
    found: Mapping[str, int] | None, log: LogFiles, newest_store_timestamp_ms: int
) -> tuple[CheckpointFact, ...]:
    """No value may lie behind what the log holds: a recovery would begin behind unflushed messages
    (CommitLog#recoverAbnormally, isMappedFileMatchedRecover)."""
    if found is None:
        return ()
    return tuple(
        CheckpointFact(
            subject=f"checkpoint {field.name}",
            low=0,
            value=found.get(field.name, -1) if high >= 0 else -1,
            high=high,
        )
        for field in fields(Checkpoint)
        for high in [newest_store_timestamp_ms if field.name.endswith("_ms") else log.max_offset]
    )
