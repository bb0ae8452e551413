"""Archiving segments with proof: read, decode, write, read back from the lake, compare every byte.

:func:`archive_segment` does all of it for one segment, in plain Python on any host. The returned segment is
proven, but counts only once :func:`storage_engine.lake.archive.commit.commit_segments` has committed it.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, OutputStream, load_file_io
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.core.durable import create, fsync_path, make_dirs, unlink
from storage_engine.core.turns import SharedLock
from storage_engine.exceptions import (
    FileGoneError,
    LakeUnavailableError,
    ProofError,
    StorageEngineError,
    StoreLayoutError,
)
from storage_engine.lake.acts.unarchived import NO_PERMITS, ArchivePermits
from storage_engine.lake.archive.commit import SharedFileError, SharedWithOthersError, commit_segments
from storage_engine.lake.archive.proving import ReadSegment, prove_rows, reading_back
from storage_engine.lake.archive.threads import threads_for, threads_here
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.catalog.tables import has_trees
from storage_engine.lake.catalog.writing import settle_broker
from storage_engine.lake.durable_io import local_path, new_data_file
from storage_engine.lake.file.data_file import (
    file_schema,
    lake_groups,
    segments_in,
    together,
    write_data_file,
    write_groups,
)
from storage_engine.lake.file.jobs import (
    ProvenSegment,
    SegmentJob,
    attempt_of,
    file_name,
    is_own_name,
    is_shared_name,
    new_attempt,
    shared_file_name,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.scan import LiveFile, live_data_files, offsets_of
from storage_engine.lake.file.source_file import (
    companions_of_proven,
    facts_of_proven,
    read_companions_of,
    read_source,
)
from storage_engine.lake.file.staging import discard, staged_location
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import Reader
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.codec import Damage, SegmentCodec
from storage_engine.model.proof.receipt import (
    Receipt,
    SegmentIdentity,
    check_size,
    companions_text,
    read_row_groups,
    row_groups_text,
)
from storage_engine.model.store import Segment, SegmentContext, SegmentId

__all__ = ["ProvenSegment", "SegmentJob", "archive_all", "archive_segment", "segment_jobs"]

SHARED_SEGMENT_BYTES = 16 << 20
"""A segment of this size or more has a data file of its own; smaller segments share files."""

SHARED_FILE_BYTES = 64 << 20
"""Maximum of segment bytes in a shared data file. These bytes stay in memory until each segment is proven in
the file. The maximum is small because a full disk waits for the first proven segments."""

SHARED_LEAST_SEGMENTS = 4
"""Fewer segments than this don't share a file. Segments in one file expire together, and are archived again
together if the file is damaged."""

SHARED_FILE_SEGMENTS = 1000

SHARED_GROUP_BYTES = 1 << 20
"""Maximum of segment bytes in a shared row group. To read one of the segments, the whole group is read."""

Progress = Callable[[int], None]
"""Called with the number of segment bytes that are done since the last call."""


def segment_jobs(
    lake: Lake,
    segments: Iterable[Segment],
    *,
    store_id: str,
    lineage: int,
    broker: str,
    store_root: str,
    accept_damage: bool = False,
    bytes_per_second: int | None = None,
    store_name: str | None = None,
    store_host: str | None = None,
    contexts: Mapping[SegmentId, SegmentContext] | None = None,
    permits: ArchivePermits = NO_PERMITS,
) -> tuple[SegmentJob, ...]:
    """Describe the segments to archive.

    Only this function asks the lake for the locations of new data files. An empty lake that was made for no
    broker becomes one for this broker's segments.

    :param bytes_per_second: see ``pace``.
    :param store_name: the store's name in the receipts; None if they have no name.
    :param store_host: the machine with the store, in the receipts; None if they name no machine.
    :param contexts: facts that the broker knows and the segments' files don't contain.
    :param permits: archive rules. From a log with several topics, rules may leave out the rows of some.
    :raises BadInputError: the lake has another broker's segments.
    :raises StoreLayoutError: a segment is empty, or its companions are too long.
    :raises LakeUnavailableError: when the lake can't be read.
    """
    settle_broker(lake, broker)
    segments = list(segments)
    for segment in segments:
        _check_sealed(segment)
    messages, trees = lake.messages(), has_trees(lake.segments().properties)
    rows = _read_rows(lake, segments, store_id, lineage) if segments else ()
    live = live_data_files(messages, store_id, offsets_of(segments)) if segments else ()
    slots = [SegmentIdentity(store_id, lineage, segment.log, segment.base_offset, "") for segment in segments]
    attempts = _attempts(messages, live, slots, rows)
    parts = _find_parts(messages, live, slots, rows)
    # A segment that the lake has, or had, doesn't get into a shared file.
    has_rows_elsewhere = any(not is_own_name(file_name(file.location)) for file in live)
    by_rules = permits.of_rows if trees else None
    permits_of = {} if by_rules is None else {row.slot: by_rules.beside(row) for row in rows}
    location = messages.location().rstrip("/")
    return tuple(
        SegmentJob(
            store_id=store_id,
            lineage=lineage,
            broker=broker,
            store_root=store_root,
            log=segment.log,
            base_offset=segment.base_offset,
            facts=segment.facts,
            lake=lake.config,
            messages_location=location,
            accept_damage=accept_damage,
            attempt=attempts.get(slot, ""),
            original_mtime_ns=segment.original_mtime_ns,
            bytes_per_second=bytes_per_second,
            store_name=store_name,
            store_host=store_host,
            end_offset=None if segment.end == segment.base_offset + segment.facts.size_bytes else segment.end,
            companions=segment.companions,
            context=(contexts or {}).get(segment.id, SegmentContext()),
            trees=trees,
            permits=permits_of.get(slot, by_rules),
            found_in=parts.get(slot),
            shares=topic_of(broker, segment.log)
            if trees
            and by_rules is None
            and not has_rows_elsewhere
            and segment.facts.size_bytes < SHARED_SEGMENT_BYTES
            and slot not in attempts
            and slot not in parts
            else None,
        )
        for segment, slot in zip(segments, slots, strict=True)
    )


def _check_sealed(segment: Segment) -> None:
    """Raise StoreLayoutError if a segment is empty, or if its companions are too long."""
    if not segment.facts.size_bytes or segment.end == segment.base_offset:
        raise StoreLayoutError(
            f"{segment.facts.path}: expected a sealed segment to have bytes and offsets, found "
            f"{segment.facts.size_bytes} bytes of [{segment.base_offset}, {segment.end_offset}). "
            "Nothing was archived. This is a fault of the package for this kind of broker: report it."
        )
    check_size(segment.facts, segment.companions)


def _read_rows(lake: Lake, segments: Sequence[Segment], store_id: str, lineage: int) -> tuple[Receipt, ...]:
    """Return the receipts that count, for all offsets from the segments' lowest to their highest."""
    return receipts(lake, store_id, lineage=lineage, base_offsets=offsets_of(segments), with_ended=True)


def topic_of(broker: str, log: str) -> str | None:
    """Return the topic of a log, whose segments may share data files; None if the log has several topics.

    Rules apply to topics, and a data file is removed with all of its segments. So in a log of several topics
    each segment has a file of its own, from which the rows of one topic can be removed.
    """
    return find_broker(broker).topics.of_log(log)


def _find_parts(
    messages: Table, live: Sequence[LiveFile], identities: Sequence[SegmentIdentity], rows: Sequence[Receipt]
) -> dict[SegmentIdentity, tuple[str, str]]:
    """Return, for each segment without a receipt, the shared data file and the row groups that have its rows.

    A run that was killed between its commits leaves such a file in the table.
    """
    slots = {row.slot for row in rows}
    lacking = [identity for identity in identities if identity not in slots]
    parts: dict[SegmentIdentity, tuple[str, str]] = {}
    named = Counter[str]()
    for row in rows:
        named[data_file_of(messages, row)] += row.row_count
    for file in live:
        if not is_shared_name(file_name(file.location)) or named[file.location] == file.entry.record_count:
            continue
        if not any(map(file.may_have(messages.schema()), lacking)):
            continue
        with suppress(LakeUnavailableError, ProofError):
            for identity, groups in segments_in(messages.io, file.location).items():
                parts[identity] = (file.location, row_groups_text(groups))
    return {slot: part for slot, part in parts.items() if slot not in slots}


def _attempts(
    messages: Table, live: Sequence[LiveFile], slots: Sequence[SegmentIdentity], rows: Sequence[Receipt]
) -> dict[SegmentIdentity, str]:
    """Return, by segment, the part of its data file's name that distinguishes attempts.

    A segment with a file of its own in the table keeps that file's part, unless the table shows that the
    receipt is unsound. Any other segment with a receipt gets a new part. So the file of an expired segment,
    which is still to be removed, is never used again. Other segments are left out.
    """
    by_slot = {split_data_file_name(name)[0]: name for name in (file_name(f.location) for f in live)}
    attempts = {}
    reader, unsound = Reader(messages, live), set()
    for row in rows:
        attempts[row.slot] = new_attempt()
        if not row.is_whole or reader.look(row, Depth.METADATA).faults:
            unsound.add(row.slot)
    for slot in slots:
        name = by_slot.get(slot_prefix(slot))
        if name is not None and slot not in unsound:
            attempts[slot] = attempt_of(name)
    return attempts


def archive_all(
    lake: Lake, jobs: Sequence[SegmentJob], progress: Progress | None = None
) -> tuple[Receipt, ...]:
    """Archive segments in this process, as many at a time as it can, and commit them together.

    After an error in one segment, none of them is committed. A segment whose file vanishes meanwhile is left
    out, and the others are committed.

    :param progress: called from any thread after each data file.
    :return: one receipt for each job, in order, without the segments whose files vanished.
    :raises StorageEngineError: as :func:`archive_segment` and ``commit_segments`` do.
    """
    run, groups = uuid.uuid4().hex, file_groups(jobs, threads_for(jobs))
    # The segments of a shared file are in memory together.
    most_bytes = max((sum(job.facts.size_bytes for job in group) for group in groups), default=0)
    pace = jobs[0].bytes_per_second if jobs else None
    threads = max(1, min(threads_here(most_bytes, pace), len(groups)))
    with ThreadPoolExecutor(threads, thread_name_prefix="archive") as pool:
        futures = [
            pool.submit(archive_group, group, run, task, progress) for task, group in enumerate(groups)
        ]
        try:
            return commit_proven(lake, [proven for future in futures for proven in future.result()], jobs)
        finally:
            pool.shutdown(cancel_futures=True)
            ended = [future for future in futures if not future.cancelled()]
            discard(segment for future in ended if future.exception() is None for segment in future.result())


def commit_proven(
    lake: Lake, proven: Sequence[ProvenSegment], jobs: Sequence[SegmentJob]
) -> tuple[Receipt, ...]:
    """Commit proven segments.

    A file is added once, for all of its segments. Another run may have archived a segment of a shared file
    meanwhile. Then all segments of the file are archived again, each into a file of its own. If another run's
    shared file has some segments without receipts, these segments are proven in that file.

    :param jobs: jobs by which the segments were archived.
    :return: receipts, in the order of the jobs.
    :raises StorageEngineError: as :func:`archive_segment` and ``commit_segments`` do.
    """
    by_slot = {job.slot: at for at, job in enumerate(jobs)}

    def at(it: ProvenSegment) -> int:
        return by_slot[it.slot]

    proven, archived_again = sorted(proven, key=at), list[ProvenSegment]()
    unproven: set[str] = set()
    try:
        while True:
            try:
                return commit_segments(lake, proven, unproven)
            except SharedWithOthersError as error:
                if error.location in unproven:
                    raise
                unproven.add(error.location)
                held = [segment for segment in proven if slot_prefix(segment.identity) in error.slots]
                fresh = _prove_again(lake, [jobs[at(segment)] for segment in held], error.location)
                proven = (
                    sorted([*(it for it in proven if it not in held), *fresh], key=at) if fresh else proven
                )
            except SharedFileError as error:
                staying = [segment for segment in proven if segment.data_file not in error.data_files]
                for job in [jobs[at(segment)] for segment in proven if segment.data_file in error.data_files]:
                    with suppress(FileGoneError):
                        staying.append(archive_segment(replace(job, found_in=None)))
                        archived_again.append(staying[-1])
                proven = sorted(staying, key=at)
    finally:
        discard(archived_again)


def _prove_again(lake: Lake, jobs: Sequence[SegmentJob], data_file: str) -> list[ProvenSegment]:
    """Prove segments in a shared file of the table. Return [] if the file doesn't prove all of them."""
    with suppress(ProofError, LakeUnavailableError):
        groups = segments_in(lake.messages().io, data_file)
        named = [replace(job, found_in=(data_file, row_groups_text(groups[job.slot]))) for job in jobs]
        return _prove_found(named, data_file)
    return []


def file_groups(jobs: Sequence[SegmentJob], threads: int) -> list[tuple[SegmentJob, ...]]:
    """Divide jobs into groups, one for each data file, in the order of the jobs. Pure."""
    size_bytes = sum(job.facts.size_bytes for job in jobs if job.shares is not None)
    most_bytes = min(SHARED_FILE_BYTES, max(SHARED_SEGMENT_BYTES, size_bytes // max(1, threads)))
    groups: list[list[SegmentJob]] = []
    left_bytes = 0
    for job in jobs:
        left_bytes -= job.facts.size_bytes
        last = groups[-1] if groups else []
        is_with_last = bool(last) and _file_of(job) is not None and _file_of(job) == _file_of(last[-1])
        if is_with_last and left_bytes >= 0 and len(last) < SHARED_FILE_SEGMENTS:
            last.append(job)
        else:
            groups.append([job])
            left_bytes = most_bytes - job.facts.size_bytes
    return [
        tuple(part)
        for group in groups
        for part in ([group] if _is_worth_it(group) else ([job] for job in group))
    ]


def _file_of(job: SegmentJob) -> tuple[str, str] | None:
    """Return a key that is equal for jobs whose segments may share a file.

    Return None if the job's segment must have a file of its own.
    """
    if job.found_in is not None:
        return job.store_id, job.found_in[0]
    return None if job.shares is None else (job.store_id, f"topic {job.shares}")


def _is_worth_it(group: Sequence[SegmentJob]) -> bool:
    return group[0].found_in is not None or len(group) >= SHARED_LEAST_SEGMENTS


def archive_group(
    jobs: Sequence[SegmentJob], run: str, task: int, progress: Progress | None = None
) -> list[ProvenSegment]:
    """Archive the segments of one data file. A segment whose file vanishes meanwhile is left out.

    :param jobs: one of the groups of :func:`file_groups`.
    :param run: digits that no other run has.
    :param task: number that no other group of the run has.
    :raises StorageEngineError: as :func:`archive_segment` does.
    """
    proven: list[ProvenSegment] = []
    if jobs[0].found_in is not None:
        with suppress(ProofError):
            proven = _prove_found(jobs, jobs[0].found_in[0])
    elif len(jobs) > 1:
        # If the file of one segment vanishes, each other segment gets a data file of its own.
        with suppress(FileGoneError):
            proven = archive_shared(jobs, run, task)
    try:
        for job in () if proven else jobs:
            with suppress(FileGoneError):
                # The file in the table doesn't have it as it is on disk, so it is archived into a new file.
                proven.append(archive_segment(replace(job, found_in=None)))
    except BaseException:
        discard(proven)
        raise
    if progress is not None:
        progress(sum(segment.size_bytes for segment in proven))
    return proven


def archive_segment(job: SegmentJob) -> ProvenSegment:
    """Write one segment into the lake and prove it there.

    The data file is staged beside its final name. If a file has that name already, that file is proven
    instead, and nothing is written. An object store replaces an existing file of the same name; there, the
    data file is written under a final name that no other attempt has. The result also describes the
    companions. They are proven once the receipt of the segment was read back.

    :raises FileGoneError: a file of the segment vanished since it was listed.
    :raises StoreNotFoundError: a file of the segment can't be seen from this host.
    :raises ProofError: a file of the segment was written to or replaced, or the rows read back from the lake
        are not the segment.
    :raises ChangedUnderUsError: another process keeps writing to a file of the segment.
    :raises CorruptFrameError: the segment has bytes that are not a frame, and the job doesn't accept damage.
    :raises LakeUnavailableError: the lake is missing, read-only, full or unreachable.
    """
    with SharedLock([Path(job.path).parent]):
        return _archive_segment(job)


def _archive_segment(job: SegmentJob) -> ProvenSegment:
    codec, read = find_broker(job.broker).codec, ReadSegment(job, read_source(job), read_companions_of(job))
    source = read.source
    data_file = job.data_file(source.sha256)
    file_io = load_file_io(job.lake.file_io_properties, data_file)
    is_local = local_path(data_file) is not None
    with lake_errors(data_file, "look for a data file"):
        exists = (is_local or job.attempt != "") and file_io.new_input(data_file).exists()
    if not exists and not is_local:
        data_file = replace(job, attempt=new_attempt()).data_file(source.sha256)
    staged = staged_location(data_file) if is_local and not exists else data_file
    try:
        if not exists:
            with (
                lake_errors(data_file, "write a data file"),
                _new_file(file_io, staged) as file,
                pace_at(job.bytes_per_second).writing(file) as sink,
            ):
                write_data_file(job, codec, source.data, sink, source.loader())
                source.release()
        with (
            _syncing(staged, data_file),
            reading_back(codec, data_file, staged, file_io, job.bytes_per_second) as stored,
        ):
            proven = prove_rows(read, stored)
        return _with_source(proven, read)
    except ProofError:
        if exists:
            # The file of this name is damaged. It stays for an examination; another one takes its place.
            return archive_segment(replace(job, attempt=new_attempt()))
        _remove_staged(staged, data_file)
        raise
    except LakeUnavailableError as error:
        path = local_path(staged) if staged != data_file else None
        if path is None or path.exists() or not isinstance(error.__cause__, FileNotFoundError):
            _remove_staged(staged, data_file)
            raise
        # Another attempt at the same segment committed and removed this one's file. That attempt's file is
        # proven here.
        if not file_io.new_input(data_file).exists():
            raise
        return archive_segment(job)
    except BaseException:
        _remove_staged(staged, data_file)
        raise


def archive_shared(jobs: Sequence[SegmentJob], run: str, task: int) -> list[ProvenSegment]:
    """Write small segments into one data file, and prove each there.

    Each segment has row groups of its own, or shares one row group with others.

    :raises FileGoneError: a file of one segment vanished. Then the data file is removed.
    :raises StorageEngineError: as :func:`archive_segment` does.
    """
    first = jobs[0]
    codec = find_broker(first.broker).codec
    folder = first.data_file("0" * 64).rpartition("/")[0]
    data_file = f"{folder}/{shared_file_name(run, task)}"
    file_io = load_file_io(first.lake.file_io_properties, data_file)
    staged = staged_location(data_file) if local_path(data_file) is not None else data_file
    try:
        with SharedLock(dict.fromkeys(Path(job.path).parent for job in jobs)):
            with (
                lake_errors(data_file, "write a data file"),
                _new_file(file_io, staged) as file,
                pace_at(first.bytes_per_second).writing(file) as sink,
            ):
                read = _write_shared(jobs, codec, sink)
            with (
                _syncing(staged, data_file),
                reading_back(codec, data_file, staged, file_io, first.bytes_per_second) as stored,
            ):
                proven = [prove_rows(rows, stored) for rows in read]
            return [_with_source(segment, rows) for segment, rows in zip(proven, read, strict=True)]
    except BaseException:
        _remove_staged(staged, data_file)
        raise


def _write_shared(jobs: Sequence[SegmentJob], codec: SegmentCodec, sink: Any) -> list[ReadSegment]:
    read: list[ReadSegment] = []
    schema = file_schema(codec.schema, trees=jobs[0].trees)

    def groups() -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        waiting_bytes = number = 0
        for job in jobs:
            source = read_source(job)
            # The thread's memory serves the next segment.
            source = replace(source, data=memoryview(bytes(source.data)))
            own = list(lake_groups(job, codec, source.data, schema))
            if waiting and (len(own) > 1 or waiting_bytes + len(source.data) > SHARED_GROUP_BYTES):
                yield together(waiting)
                waiting, waiting_bytes, number = [], 0, number + 1
            read.append(ReadSegment(job, source, read_companions_of(job), range(number, number + len(own))))
            if len(own) > 1:
                yield from own
                number += len(own)
            else:
                waiting += own
                waiting_bytes += len(source.data)
        if waiting:
            yield together(waiting)

    write_groups(codec.columns, groups(), sink)
    return read


def _with_source(proven: ProvenSegment, read: ReadSegment) -> ProvenSegment:
    """Return a proven segment with its source file's facts. Raise ProofError if the file has changed."""
    job = read.job
    facts = facts_of_proven(job, read.source)
    return replace(
        proven,
        # If a hold has set another time, the time before it counts.
        source_mtime_ns=facts.mtime_ns if job.original_mtime_ns is None else job.original_mtime_ns,
        source_ctime_ns=facts.ctime_ns,
        files=companions_text(companions_of_proven(job, read.companions)),
    )


def first_damage(job: SegmentJob) -> Damage | None:
    """Return the first damage in a segment's bytes; None if they are undamaged or can't be read."""
    codec = find_broker(job.broker).codec
    with suppress(StorageEngineError, OSError):
        source = read_source(job)
        source.loader()(0, len(source.data))
        decoded = codec.decode(source.data, job.base_offset, context=job.context.codec)
        damage = next((damage for _, damages in decoded for damage in damages), None)
        source.release()
        return damage
    return None


def _remove_staged(staged: str, data_file: str) -> None:
    if staged != data_file and (path := local_path(staged)) is not None:
        unlink(path)


def _prove_found(jobs: Sequence[SegmentJob], data_file: str) -> list[ProvenSegment]:
    """Prove segments with rows in the table but no receipts. Raise ProofError if one differs from disk."""
    codec, proven = find_broker(jobs[0].broker).codec, list[ProvenSegment]()
    file_io = load_file_io(jobs[0].lake.file_io_properties, data_file)
    with reading_back(codec, data_file, data_file, file_io, None) as stored:
        for job in jobs:
            with suppress(FileGoneError), SharedLock([Path(job.path).parent]):
                assert job.found_in is not None
                groups = read_row_groups(job.found_in[1])
                read = ReadSegment(job, read_source(job), read_companions_of(job), groups)
                proven.append(_with_source(prove_rows(read, stored), read))
    return proven


@contextmanager
def _new_file(file_io: FileIO, location: str) -> Iterator[OutputStream | pa.NativeFile]:
    """Open a file to write. On an object store it is durable when the block ends without an error."""
    path = local_path(location)
    if path is None:
        with new_data_file(file_io, location) as stream:
            yield stream
        return
    make_dirs(path.parent)
    create(path).close()
    # Not through the FileIO: Arrow's own file needs no call of Python for each write.
    with pa.OSFile(str(path), "wb") as file:
        yield file


@contextmanager
def _syncing(location: str, data_file: str) -> Iterator[None]:
    """Fsync a local file while the block reads it back. It is durable if the block ends without an error."""
    path = local_path(location)
    if path is None:
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="fsync") as pool:
        synced = pool.submit(fsync_path, path)
        yield
        with lake_errors(data_file, "write a data file"):
            synced.result()
