"""Restore: write identical files of segments from the lake into a directory that a broker opens.

A file gets its name only after its SHA-256 was found equal to the receipt's. No file is overwritten. Existing
files with the right bytes are kept, so that an interrupted restore can be continued. If an existing file has
other bytes, nothing is written: two lineages or two stores never get into one directory.

If a person asks for it, a segment with removed streams is restored with filler in their place. Its remaining
rows are proven by its root. Its new SHA-256 is recorded on disk before the segment gets its name. Other files
that a broker needs are derived from the segments' receipts and rows.

LakeUnavailableError is raised if the lake can't be read, ProofError if a data file is no Parquet file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.core.durable import NewFile
from storage_engine.exceptions import RestoreError, StorageEngineError
from storage_engine.lake.acts.act_files import merged_expiries
from storage_engine.lake.archive.deletions import read_deletions
from storage_engine.lake.archive.threads import reading_threads
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.nesting import refuse_target_inside_store
from storage_engine.lake.coverage.coverage import merge_lakes
from storage_engine.lake.file.data_file import window_memory
from storage_engine.lake.file.sha256_kernels import LANES
from storage_engine.lake.restore.restore_span import (
    FILLED_FILE,
    FilledSegment,
    FilledSegments,
    LineageRange,
    Span,
    check_streams,
    choose,
    expired_ranges,
    other_lineages,
)
from storage_engine.lake.restore.restore_target import RestoreTarget, restore_target
from storage_engine.lake.soundness.chain import receipt_name, row_fault
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.segment_reader import (
    filled_segment,
    narrow_rows,
    origin_of,
    read_segment,
    untouched_files,
)
from storage_engine.lake.soundness.soundness import losses
from storage_engine.lake.soundness.soundness_reader import find_faults
from storage_engine.lake.verify.replica_coverage import receipts_of_replicas
from storage_engine.model.broker.codec import RestoredConfig, RestoredSetting
from storage_engine.model.proof.receipt import (
    NOT_ARCHIVED,
    Companion,
    Receipt,
    end_text,
    ended,
    select_whole,
    with_rows,
)
from storage_engine.model.store import group_by_log


def config_names(config: RestoredConfig | None, receipts: Sequence[Receipt]) -> tuple[str, ...]:
    """Return the paths of the files that :func:`config_files` makes for a broker's segments."""
    if config is None:
        return ()
    logs = dict.fromkeys(receipt.log for receipt in receipts)
    return (*(name for log in logs for name in config.log_files(log)), *config.FILES)


def queues_of_segment(
    config: RestoredConfig | None, table: Table, receipt: Receipt, untouched: Set[str]
) -> pa.Table:
    """Return the facts of a segment that :func:`config_files` needs, from a few narrow columns.

    :param table: the loaded table of rows of the lake that has the segment.
    :param untouched: the result of ``untouched_files`` for the table.
    """
    if config is None:
        return pa.table({})
    tables = [config.queues_of(rows) for rows in narrow_rows(table, receipt, config.COLUMNS, untouched)]
    return config.merge_queues(pa.concat_tables([config.NO_QUEUES, *tables]))


def config_files(
    config: RestoredConfig | None, queues: Iterable[pa.Table], receipts: Sequence[Receipt]
) -> Mapping[str, bytes]:
    """Return the broker's further files, by their path below the restored store's root.

    The same segments always give the same files.

    :param queues: results of :func:`queues_of_segment`.
    """
    return {} if config is None else config.config_files(_merged(config, queues), receipts)


@dataclass(frozen=True, slots=True)
class Extension:
    """A log that is restored further than requested, because a broker couldn't serve it otherwise.

    :param asked_end: offset after the last requested segment.
    :param end: offset after the last segment that is restored.
    :param why: the unfinished transaction at ``asked_end``, as a part of a sentence.
    """

    log: str
    asked_end: int
    end: int
    why: str


def with_their_ends(
    config: RestoredConfig | None,
    chosen: Sequence[Receipt],
    archived: Sequence[Receipt],
    queues: Callable[[Receipt], pa.Table],
) -> tuple[tuple[Receipt, ...], tuple[Extension, ...]]:
    """Return the chosen segments, together with later segments that a broker needs, and the extended logs.

    :param archived: all archived segments, in order.
    :param queues: returns :func:`queues_of_segment` for a segment.
    :raises RestoreError: a needed segment isn't archived.
    """
    if config is None or config.ENDS_ANYWHERE:
        return tuple(chosen), ()
    rows: list[Receipt] = []
    extensions: list[Extension] = []
    for log, of_log in group_by_log(chosen).items():
        last = of_log[-1]
        merged = _merged(config, map(queues, of_log))
        asked_end, why = last.end, config.unfinished(merged)
        while reason := config.unfinished(merged):
            where = (log, last.lineage, last.end)
            following = [row for row in archived if (row.log, row.lineage, row.base_offset) == where]
            if not following:
                before = _last_end(config, of_log, queues)
                raise RestoreError(
                    f"log {log}: expected the restored log to end where a broker can serve it, found that "
                    f"the archived segments end at offset {last.end}, and {reason}. Nothing was written. "
                    "Archive the next segment first"
                    + (f", or restore less: --log {log} --to-offset {before}." if before else ".")
                )
            last = following[0]
            of_log.append(last)
            merged = _merged(config, [merged, queues(last)])
        rows += of_log
        if last.end > asked_end:
            extensions.append(Extension(log, asked_end, last.end, why))
    return tuple(rows), tuple(extensions)


def _last_end(
    config: RestoredConfig, rows: Sequence[Receipt], queues: Callable[[Receipt], pa.Table]
) -> int | None:
    """Return the largest end of a segment at which a restored log may end; None without such a segment."""
    merged, end = config.NO_QUEUES, None
    for row in rows:
        merged = _merged(config, [merged, queues(row)])
        if not config.unfinished(merged):
            end = row.end
    return end


def _merged(config: RestoredConfig, queues: Iterable[pa.Table]) -> pa.Table:
    merged = config.NO_QUEUES
    for table in queues:
        merged = config.merge_queues(pa.concat_tables([merged, table]))
    return merged


T = TypeVar("T")

_BLOCK_BYTES = 1 << 20
"""Bytes that are written at a time. For larger writes the kernel uses larger pages, which a virtual machine
may not have yet."""

Chunks = Iterator[tuple[int, memoryview]]
"""A segment's bytes in order, as (position, bytes). They are valid until the next ones are requested."""


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """A restored segment's file.

    :param existed: the file existed before, with the right bytes.
    :param archived_sha256: hash of the archived segment. It differs from ``sha256`` if there is filler.
    """

    path: str
    log: str
    base_offset: int
    size_bytes: int
    sha256: str
    existed: bool
    archived_sha256: str


@dataclass(frozen=True, slots=True)
class ChosenSegments:
    """Segments that a restore writes, chosen before anything is written.

    :param receipts: receipts of the segments, in order. Each log is without a hole.
    :param extensions: logs that are restored further than requested.
    :param others: ranges that other lineages of these logs have.
    :param config: makes the broker's further files; None if only segments are restored.
    :param expired: expired ranges of the span, before the first of these segments or after the last.
    """

    receipts: tuple[Receipt, ...]
    extensions: tuple[Extension, ...]
    others: tuple[LineageRange, ...]
    config: RestoredConfig | None
    source: _Source
    expired: tuple[LineageRange, ...] = ()

    @property
    def settings(self) -> tuple[RestoredSetting, ...]:
        """Return the broker settings by which the further files are made; () if no such files are made."""
        return () if self.config is None else self.config.settings(self.receipts)


def choose_segments(
    lake: Lake,
    store_id: str,
    *,
    second: Lake | None = None,
    span: Span | None = None,
    lineage: int | None = None,
    log: str | None = None,
    serving: Sequence[Path] = (),
    files_only: bool = False,
    with_filler: bool = False,
) -> ChosenSegments:
    """Choose archived segments to restore. Only the lakes are read.

    Segments that a replica has archived instead of this store are found by the replica's receipts.

    :param second: a second lake, for segments that the first lacks or doesn't prove.
    :param span: part of the logs; None for all of their offsets.
    :param lineage: lineage to restore; None for the newest.
    :param log: log to restore; None for all logs.
    :param serving: stores of brokers that will serve the result; see :meth:`Broker.restored_config`.
    :param files_only: choose only segments, without the further files that a broker needs.
    :param with_filler: also choose segments with removed streams; filler takes the place of their messages.
    :raises RestoreError: there is no such segment, the span has a hole, a receipt was changed, or the brokers
        could not serve the result.
    """
    everything, expired = _archived_in(lake, second, store_id, with_filler=with_filler)
    rows = tuple(row for row in everything if lineage in (None, row.lineage) and log in (None, row.log))
    expired = tuple(row for row in expired if lineage in (None, row.lineage) and log in (None, row.log))
    replicas = receipts_of_replicas(lake, rows)
    all_expired = (*expired, *ended(replicas))
    not_whole = (*all_expired, *ended(rows))
    expiries = merged_expiries((each, not_whole) for each in (lake, second) if each is not None)
    requested = choose(
        rows,
        span or Span(),
        store_id,
        lake.location,
        select_whole(replicas),
        all_expired,
        expiries,
        _read_unarchived(lake, store_id),
    )
    _check_receipts(requested)
    config = None if files_only else find_broker(requested[0].broker).restored_config(serving)
    source = _Source(lake, second, requested, config, expiries)
    check_streams(requested, source.streams)
    chosen, extensions = with_their_ends(config, requested, rows, source.queues)
    if extensions:
        source = _Source(lake, second, chosen, config, expiries)
        _check_receipts(chosen)
    if config is not None:
        config.check(chosen, source.segment)
    others = other_lineages(everything, chosen)
    ranges = expired_ranges(expired, span or Span(), expiries)
    return ChosenSegments(chosen, extensions, others, config, source, ranges)


def _read_unarchived(lake: Lake, store_id: str) -> tuple[LineageRange, ...]:
    """Return a store's ranges that a rule deleted without a copy, from the lake's deletions."""
    with suppress(StorageEngineError):
        return tuple(
            LineageRange(row.lineage, row.log, row.start_offset, row.end_offset, row.detail)
            for row in read_deletions(lake, store_id)
            if row.detail.startswith(NOT_ARCHIVED)
        )
    return ()


def write_segments(
    segments: ChosenSegments,
    to_dir: str | os.PathLike[str],
    *,
    keep_mtime: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[RestoredSegment, ...]:
    """Write archived segments into a new store directory, at the paths that their broker uses.

    After the segments, the broker's configuration is written. With this configuration the broker serves the
    segments and doesn't repeat old work, such as the delivery of delayed messages. The other files that the
    broker needs are written last. After a kill, the same restore can be run again.

    :param keep_mtime: give files their old mtime. A broker then deletes them at its next window.
    :param progress: called after each segment with its size in bytes, from any thread.
    :raises RestoreError: the target has other files, can't be written, or the lake has other bytes.
    """
    name = Path(to_dir)
    chosen, config, source = segments.receipts, segments.config, segments.source
    refuse_target_inside_store(name)
    paths = [segment_path(receipt, config) for receipt in chosen]
    configuration = {Path(each) for each in config_names(config, chosen)}
    filled = source.filled([row for row in chosen if not row.is_whole])
    hashes = {row.row_hash: row.sha256 for row in chosen} | {it: fill.sha256 for it, fill in filled.items()}
    sums = {path: hashes[row.row_hash] for row, path in zip(chosen, paths, strict=True)}
    note = FilledSegments(chosen[0].store_id, tuple(filled.values())).content if filled else b""
    if filled:
        sums[FILLED_FILE] = hashlib.sha256(note).hexdigest()
    for row, path in zip(chosen, paths, strict=True):
        for companion in row.companions:
            _add(sums, path.with_name(companion.name), companion.sha256, configuration)
    threads = reading_threads(max(row.size_bytes for row in chosen))
    with restore_target(name) as target, ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
        try:
            finished = frozenset() if config is None else config.FINISHED
            existing = target.look(configuration | set(sums), finished)
            # Every existing file is compared before anything is written.
            present = sorted(existing - configuration)
            group_size = min(LANES, max(1, -(-len(present) // threads)))
            groups = (present[at : at + group_size] for at in range(0, len(present), group_size))
            _all(pool.submit(_check_same, name, target, paths, sums) for paths in groups)
            if existing & configuration:
                queues = _all(pool.submit(source.queues, row) for row in chosen)
                contents = config_files(config, queues, chosen)
                for path in existing & configuration:
                    made = hashlib.sha256(contents[str(path)]).hexdigest()
                    _check_same(name, target, [path], {path: made})
            target.sweep()
            if filled and FILLED_FILE not in existing:
                # Written first, so that no segment with filler exists without this record.
                _write_small(target, name, FILLED_FILE, note)

            def restore_one(receipt: Receipt, path: Path) -> tuple[RestoredSegment, pa.Table]:
                # Companions first, so that they exist once the segment has its name.
                companions = {path.with_name(companion.name): companion for companion in receipt.companions}
                for extra in companions.keys() - existing:
                    with target.new_file(extra) as file:
                        _write_companion(companions[extra], str(path), file, keep_mtime)
                        file.publish()
                if path not in existing:
                    with target.new_file(path) as file:
                        _write_segment(source.chunks, receipt, sums[path], file, keep_mtime)
                        file.publish()
                if progress is not None:
                    progress(receipt.size_bytes)
                return _restored(name / path, receipt, sums[path], path in existing), source.queues(receipt)

            done = _all(pool.submit(restore_one, row, path) for row, path in zip(chosen, paths, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)
        for each, content in config_files(config, [queues for _, queues in done], chosen).items():
            if Path(each) not in existing:
                _write_small(target, name, Path(each), content)
    if config is not None:
        config.finish(Path(os.path.realpath(name)), chosen)
    return tuple(restored for restored, _ in done)


class _Source:
    """Source of the chosen segments: for each, the lake of its receipt."""

    def __init__(
        self,
        lake: Lake,
        second: Lake | None,
        chosen: Sequence[Receipt],
        config: RestoredConfig | None,
        expiries: Mapping[str, str],
    ) -> None:
        self._config = config
        self._expiries = expiries
        self._tables = [each.messages() for each in (lake, second) if each is not None]
        # Called once, because each call looks at every file that the table has.
        self._untouched = [untouched_files(table, chosen) for table in self._tables]
        stores = {row.store_id for row in chosen}
        self._in_first = {
            row.row_hash for store_id in stores for row in receipts(lake, store_id, with_ended=True)
        }
        self._queues: dict[str, pa.Table] = {}

    def chunks(self, receipt: Receipt) -> Chunks:
        """Return a segment's bytes, in memory that this thread's next segment overwrites."""
        place = self._place(receipt)
        if not receipt.is_whole:
            return iter([(origin_of(receipt), filled_segment(self._tables[place], receipt)[0])])
        return read_segment(
            self._tables[place], receipt, untouched=self._untouched[place], memory=window_memory()
        )

    def segment(self, receipt: Receipt) -> bytearray:
        """Return a segment's bytes, not yet compared with its SHA-256."""
        data, origin = bytearray(receipt.size_bytes), origin_of(receipt)
        for position, chunk in self.chunks(receipt):
            data[position - origin : position - origin + len(chunk)] = chunk
        return data

    def queues(self, receipt: Receipt) -> pa.Table:
        """Return the facts of a segment that the broker's configuration needs."""
        place = self._place(receipt)
        if receipt.row_hash not in self._queues:
            table = queues_of_segment(self._config, self._tables[place], receipt, self._untouched[place])
            self._queues[receipt.row_hash] = table
        return self._queues[receipt.row_hash]

    def streams(self, receipt: Receipt) -> frozenset[str]:
        """Return the streams that have rows in a segment, without filler. Read them from its receipt or its
        rows.
        """
        columns, place = find_broker(receipt.broker).codec.columns, self._place(receipt)
        if receipt.streams is not None:
            return receipt.kept_streams - {columns.filler}
        names = columns.streams[:1]
        batches = narrow_rows(self._tables[place], receipt, names, self._untouched[place])
        topics = {name or "" for rows in batches for name in pc.unique(rows[names[0]]).to_pylist()}
        return frozenset(topics - {columns.filler})

    def filled(self, partly: Sequence[Receipt]) -> dict[str, FilledSegment]:
        """Return the facts of segments with filler for their removed streams, by ``row_hash`` of the receipt.

        :raises ProofError: the remaining rows of a segment differ from the proven ones.
        """

        def fill(row: Receipt) -> FilledSegment:
            data, filler_bytes = filled_segment(self._tables[self._place(row)], row)
            sha256, why = hashlib.sha256(data).hexdigest(), end_text(row.state, row.act, self._expiries)
            return FilledSegment(
                row.log, row.lineage, row.base_offset, row.size_bytes, sha256, row.sha256, filler_bytes, why
            )

        threads = reading_threads(max((row.size_bytes for row in partly), default=0))
        with ThreadPoolExecutor(threads, thread_name_prefix="restore") as pool:
            return dict(zip((row.row_hash for row in partly), pool.map(fill, partly), strict=True))

    def _place(self, receipt: Receipt) -> int:
        return 0 if receipt.row_hash in self._in_first else -1


def _archived_in(
    lake: Lake, second: Lake | None, store_id: str, *, with_filler: bool
) -> tuple[tuple[Receipt, ...], tuple[Receipt, ...]]:
    """Return a store's receipts in one or two lakes: one for each segment, and a sound one if possible.

    :param with_filler: include segments with removed streams, if no lake has the whole segment. If both lakes
        have a part of it, the larger part is chosen.
    :return: these receipts, and receipts of all other segments, which neither lake has whole.
    """
    every_row = receipts(lake, store_id, with_ended=True)
    present, removed = select_whole(every_row), ended(every_row)
    if second is not None:
        every_other = receipts(second, store_id, with_ended=True)
        others = select_whole(every_other)
        broken = losses(find_faults(second, others))
        holding = [row for row in others if row.identity not in broken]
        present, _ = merge_lakes(present, losses(find_faults(lake, present)), holding)
        proven = {row.identity for row in present}
        by_loss = sorted((*ended(every_other), *removed), key=_gone_bytes, reverse=True)
        each = {row.identity: row for row in by_loss if row.identity not in proven}
        removed = tuple(each.values())
    if not with_filler:
        return present, removed
    rows = sorted((*present, *with_rows(removed)), key=lambda row: (row.log, row.lineage, row.base_offset))
    return tuple(rows), tuple(row for row in removed if not row.has_rows)


def _gone_bytes(row: Receipt) -> int:
    streams = row.gone_streams.values()
    return sum(stream["bytes"] for stream in streams) if row.has_rows else row.size_bytes


def _check_receipts(chosen: Sequence[Receipt]) -> None:
    """Raise RestoreError for a receipt that was changed after it was written."""
    for receipt in chosen:
        if fault := row_fault(receipt):
            raise RestoreError(
                f"receipt of {receipt_name(receipt)}: expected a trustworthy receipt, found one that can't "
                f"be trusted: {fault}. Nothing was written. Run verify, and restore from a second lake if "
                "there is one."
            )


def segment_path(receipt: Receipt, config: RestoredConfig | None) -> Path:
    """Return a segment's path, relative to the target.

    :raises RestoreError: the receipt's log leads out of the target or into the broker's configuration.
    """
    log = Path(receipt.log)
    names = {"..", *(Path(name).parts[0] for name in (config.FILES if config is not None else ()))}
    if not log.parts or log.is_absolute() or not names.isdisjoint(log.parts) or "\0" in receipt.log:
        raise RestoreError(
            f"receipt of offset {receipt.base_offset}: expected the name of a log, found {receipt.log!r}. "
            "Nothing was written. Run verify: the receipts were tampered with."
        )
    return Path(find_broker(receipt.broker).places.segment_path(receipt.log, receipt.base_offset))


def _add(sums: dict[Path, str], path: Path, sha256: str, configuration: Set[Path]) -> None:
    """Add a file to those that will be restored. Raise RestoreError if another one has its name."""
    if path in sums or path in configuration:
        raise RestoreError(
            f"{path}: expected one restored file of this name, found two. Nothing was written. Restore the "
            "two into different directories, by offsets."
        )
    sums[path] = sha256


def _check_same(name: Path, target: RestoreTarget, paths: Sequence[Path], sums: Mapping[Path, str]) -> None:
    """Make sure that existing files have the bytes that this restore would write."""
    for path, actual in zip(paths, target.sha256(paths), strict=True):
        if actual != sums[path]:
            raise RestoreError(
                f"{name / path}: expected SHA-256 {sums[path]}, which this restore would write, found a "
                f"file with {actual}: it is of another lineage or store, or was changed since. Nothing was "
                "written. Restore into a new directory."
            )


def _all(futures: Iterable[Future[T]]) -> list[T]:
    return [future.result() for future in list(futures)]


def _restored(path: Path, row: Receipt, sha256: str, existed: bool) -> RestoredSegment:
    return RestoredSegment(str(path), row.log, row.base_offset, row.size_bytes, sha256, existed, row.sha256)


def _write_segment(
    chunks: Callable[[Receipt], Chunks], receipt: Receipt, sha256: str, new: NewFile, keep_mtime: bool
) -> None:
    origin = origin_of(receipt)
    for position, chunk in chunks(receipt):
        _write_chunk(new.file, position - origin, chunk)
    if keep_mtime:
        os.utime(new.file.fileno(), ns=(receipt.source_mtime_ns, receipt.source_mtime_ns))
    # Each byte is hashed once, as the file has it. Only if the hash is wrong, the lake's bytes are hashed.
    if (actual := new.sha256()) == sha256:
        return
    digest = hashlib.sha256()
    for _, chunk in chunks(receipt):
        digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise RestoreError(
            f"{receipt.data_file}: expected the bytes of {receipt.log}/{receipt.base_offset:020d} with "
            f"SHA-256 {sha256}, found {digest.hexdigest()}. The file was not restored. The lake "
            "is damaged: run verify, and restore from a second lake if there is one."
        )
    raise _other_than_written(f"{receipt.log}/{receipt.base_offset:020d}", sha256, actual)


def _write_small(target: RestoreTarget, name: Path, path: Path, content: bytes) -> None:
    """Write a small file of the target ``name``. It gets its name once it has these bytes."""
    with target.new_file(path) as file:
        file.file.write(content)
        _check_written(str(name / path), hashlib.sha256(content).hexdigest(), file)
        file.publish()


def _write_companion(companion: Companion, segment: str, new: NewFile, keep_mtime: bool) -> None:
    new.file.write(companion.content)
    if keep_mtime:
        os.utime(new.file.fileno(), ns=(companion.mtime_ns, companion.mtime_ns))
    _check_written(f"{companion.name} of {segment}", companion.sha256, new)


def _check_written(name: str, expected: str, new: NewFile) -> None:
    """Make sure that a file has the written bytes, before it gets its name."""
    if (actual := new.sha256()) != expected:
        raise _other_than_written(name, expected, actual)


def _other_than_written(name: str, expected: str, actual: str) -> RestoreError:
    return RestoreError(
        f"{name}: expected SHA-256 {expected} after writing it, read back {actual}. The file was not "
        "restored. Another program writes into the target, or its disk is damaged: restore into another "
        "directory."
    )


def _write_chunk(file: FileIO, position: int, chunk: memoryview) -> None:
    done = 0
    while done < len(chunk):
        done += file.write(chunk[done : done + _BLOCK_BYTES])
    # Starts writing these bytes to disk while the next ones are decoded, so a later fsync takes less time.
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), position, len(chunk), os.POSIX_FADV_DONTNEED)
