"""Overview of all stores: their ranges on disk and in lakes, the last run, and the open decisions of each.

It only reads: the journal, receipts, and a store's files if they are on this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from storage_engine.brokers import store_text
from storage_engine.commands import Text
from storage_engine.core.host import ANY_HOST, is_this_host
from storage_engine.core.jsonable import filled
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import JournalUnavailableError, StorageEngineError
from storage_engine.journal.reading.answers import RunRow, Standing
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.records import StoreRecord
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.describing import LakeInfo, describe
from storage_engine.lake.restore.restore_span import filled_notes
from storage_engine.model.store import LogSnapshot, split_runs
from storage_engine.retention.quarantine.places import QuarantineLook, look_at_quarantines
from storage_engine.retention.store.broker_answers import take_glance
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore


@dataclass(frozen=True, slots=True)
class DiskRange:
    """Bytes [start_offset, end_offset) of a log in files without a gap between them."""

    log: str
    start_offset: int
    end_offset: int
    segments: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """A lake's part of a store.

    :param ranges: contiguous ranges of each log and lineage, as (log, lineage, start, end).
    :param expired: such ranges of expired segments.
    :param in_part: such ranges of segments from which archive rules left topics out.
    """

    lake: str
    segments: int
    size_bytes: int
    ranges: tuple[tuple[str, int, int, int], ...]
    expired: tuple[tuple[str, int, int, int], ...] = ()
    in_part: tuple[tuple[str, int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ManagedOverview:
    """A store that a journal or a lake knows.

    :param on_disk: ranges on disk, or None if the files can't be seen from here; ``not_seen`` says why.
    :param last_run: None if no run has begun.
    :param standing: the store's work and decisions at present, or None if only a lake knows the store.
    :param filled: notes on segments on disk that were restored with filler.
    """

    store_id: str
    name: str
    path: str | None
    host: str | None
    broker: str | None
    lineage: int | None
    on_disk: tuple[DiskRange, ...] | None
    not_seen: str
    archived: tuple[ArchivedPart, ...]
    last_run: RunRow | None
    standing: Standing | None
    quarantines: tuple[QuarantineLook, ...]
    filled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """:param journal: the journal's place. If it can't be read, ``journal_missing`` says why."""

    journal: str
    journal_missing: str
    lakes: tuple[LakeInfo, ...]
    stores: tuple[ManagedOverview, ...]

    @property
    def is_known(self) -> bool:
        """Return whether all lakes could be asked."""
        return not any(lake.refused for lake in self.lakes)


def overview(base: ManagedStore, lakes: Sequence[LakeConfig], now_ms: int) -> Overview:
    """Look at all stores of a journal and of lakes.

    :param base: a store whose journal is asked. Its broker settings are used only for the files at its path.
    """
    infos = tuple(describe(lake) for lake in lakes)
    records: tuple[StoreRecord, ...] = ()
    missing = ""
    reader = JournalReader(base.journal_url)
    try:
        records = reader.stores()
    except JournalUnavailableError as error:
        missing = Text(error)
    overviews = [_read_store(reader, row, base, infos, now_ms) for row in records]
    ids = {row.store_id for row in records}
    others = dict.fromkeys(store.store_id for info in infos for store in info.stores)
    overviews += [_archived_only(store_id, infos, missing) for store_id in others if store_id not in ids]
    return Overview(reader.name, missing, infos, tuple(overviews))


def same_place(base: ManagedStore, row: StoreRecord) -> ManagedStore:
    """Return a journal's store as a managed one: ``base`` itself if the store is at the path of ``base``."""
    if row.real_path == base.real_root:
        return base
    return ManagedStore(
        name=store_text(row.name, row.broker, row.real_path),
        root=row.real_path,
        lake=base.lake,
        second_lake=base.second_lake,
        journal_url=base.journal_url,
        report_dir=base.report_dir,
        broker=row.broker,
        host=row.host,
    )


def _read_store(
    reader: JournalReader, row: StoreRecord, base: ManagedStore, infos: Sequence[LakeInfo], now_ms: int
) -> ManagedOverview:
    store = same_place(base, row)
    on_disk, quarantines, notes, not_seen = _look_at_disk(store, row, now_ms)
    return filled(
        ManagedOverview,
        row,
        name=store_text(row.name, row.broker, row.real_path),
        path=row.real_path,
        on_disk=on_disk,
        not_seen=not_seen,
        archived=_archived_parts(row.store_id, infos),
        last_run=next(iter(reader.runs(row.store_id, limit=1)), None),
        standing=reader.standing(row.store_id, now_ms),
        quarantines=quarantines,
        filled=notes,
    )


def _archived_only(store_id: str, infos: Sequence[LakeInfo], missing: str) -> ManagedOverview:
    (info, store), *_ = ((info, row) for info in infos for row in info.stores if row.store_id == store_id)
    why = "no journal could be asked for its path" if missing else "the journal doesn't know its path"
    parts = _archived_parts(store_id, infos)
    return ManagedOverview(
        store_id, store.name, None, None, info.broker, None, None, why, parts, None, None, ()
    )


def _look_at_disk(
    store: ManagedStore, row: StoreRecord, now_ms: int
) -> tuple[tuple[DiskRange, ...] | None, tuple[QuarantineLook, ...], tuple[str, ...], str]:
    if row.host not in (None, ANY_HOST) and not is_this_host(row.host):
        return None, (), (), f"it is on host {row.host}"
    try:
        with closing(open_to_look(store)) as broker:
            snapshot = take_glance(broker, now_ms, store.broker)
            quarantines = look_at_quarantines(store, broker.data_paths)
    except (StorageEngineError, OSError) as error:
        return None, (), (), reason_text(error)
    slots = {(log.name, segment.base_offset) for log in snapshot.logs for segment in log.segments}
    ranges = tuple(part for log in snapshot.logs for part in _ranges(log))
    return ranges, quarantines, filled_notes(store.real_root, slots), ""


def _ranges(log: LogSnapshot) -> Iterator[DiskRange]:
    """Yield the log's contiguous runs of segments. Between two runs, bytes are missing."""
    for run in split_runs(log.segments, lambda left, right: left.end_offset == right.base_offset):
        yield DiskRange(
            log.name,
            run[0].base_offset,
            min(run[-1].end_offset, max(log.max_offset, run[-1].base_offset)),
            len(run),
            sum(segment.disk_bytes for segment in run),
        )


def _archived_parts(store_id: str, infos: Sequence[LakeInfo]) -> tuple[ArchivedPart, ...]:
    return tuple(
        filled(ArchivedPart, store, lake=info.location, segments=store.segment_count)
        for info in infos
        for store in info.stores
        if store.store_id == store_id
    )
