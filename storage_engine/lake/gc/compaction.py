"""Compaction: writing small data files of one topic again as one larger file, which is proven first.

There are two commits. The first replaces the small files by the larger one in the table of rows. The second
adds receipts that name the larger file. After a kill between them, the receipts name files that the table no
longer has. Then steps that need these receipts wait, verification finds and proves the rows in the table, and
the next compaction adds the receipts. If a receipt changed meanwhile, or the larger file doesn't prove it,
the files that the receipts name are put back into the table. A replaced small file stays at its place until
gc takes it, because its rows are provably in the larger file.

Must never do: remove a data file that a receipt has named; add a file to the table that was not read back.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyiceberg.table import Table

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.durable import fsync_path, unlink
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import (
    BadInputError,
    LakeUnavailableError,
    ProofError,
    ReceiptError,
    StorageEngineError,
)
from storage_engine.lake.acts.act_files import read_acts, read_store_names
from storage_engine.lake.archive.archive import (
    SHARED_GROUP_BYTES,
    SHARED_LEAST_SEGMENTS,
    SHARED_SEGMENT_BYTES,
    topic_of,
)
from storage_engine.lake.archive.commit import BATCH_SEGMENTS, check_rows
from storage_engine.lake.archive.commit_retries import CommitStep, commit_steps
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.placed_table import data_file_of, proven_files, relative_name
from storage_engine.lake.catalog.tables import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, has_trees
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.lake.durable_io import local_path, new_data_file, sha256_of_file
from storage_engine.lake.file.data_file import (
    LastGroup,
    RowCounter,
    SegmentPart,
    WindowMemory,
    opened_file,
    opened_rows,
    segment_bytes,
    segments_in,
    together,
    write_groups,
)
from storage_engine.lake.file.jobs import file_name, is_shared_name, shared_file_name, slot_prefix
from storage_engine.lake.file.scan import LiveFile, live_data_files, offsets_of
from storage_engine.lake.file.staging import staged_location
from storage_engine.lake.gc.segment_expiry import data_step, is_there, receipts_step
from storage_engine.lake.gc.thinning import discard_files
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipts_in
from storage_engine.lake.soundness.segment_reader import origin_of, tree_fault, tree_to_compare
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.model.keep.acts import expired_files, policy_of
from storage_engine.model.keep.keep_rules import KeepPolicy, Stream, age_begins_ms, rule_for
from storage_engine.model.proof.receipt import (
    Receipt,
    SegmentIdentity,
    proof_version_of,
    row_groups_text,
    with_rows,
)
from storage_engine.model.store import grouped

COMPACTED_FILE_BYTES = 256 << 20
"""Approximate size of a compacted file. A file of :data:`SHARED_SEGMENT_BYTES` no longer counts as small."""

COMPACTED_FILE_SEGMENTS = 10_000
"""Maximum number of segments in a compacted file, because their receipts are committed together."""

COMPACTED_LEAST_FILES = SHARED_LEAST_SEGMENTS
"""Minimum number of small files that are joined."""

_PART_OF_RULE = 10
"""The ages of one file's segments differ by at most a tenth of their rule's days. The reason is that the file
can be removed only after its last segment has expired."""

_WHY = "compaction"


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A data file of the table that may be joined with other files.

    :param kind: values that are equal for files that may be joined.
    :param days: days of the rule by which the file's segments expire; None without a rule.
    :param newest_ms: time from which the newest segment's age counts; None if it isn't known.
    """

    location: str
    size_bytes: int
    kind: tuple[object, ...]
    days: int | None
    newest_ms: int | None
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class LargerFile:
    """A data file that replaces small ones.

    :param old: its segments' receipts that counted before.
    :param new: new receipts that name this file; empty if the file doesn't prove its segments.
    """

    location: str
    old: tuple[Receipt, ...]
    new: tuple[Receipt, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeCompaction:
    """Changes to a lake's small data files, done or planned.

    :param files: number of files that were replaced.
    :param larger_files: number of files that replaced them.
    :param size_bytes: bytes of the replaced files.
    :param faults: damaged files that weren't joined.
    :param notices: other files that weren't joined, with the reason.
    """

    dry_run: bool
    files: int = 0
    larger_files: int = 0
    size_bytes: int = 0
    faults: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the changes as a sentence, or "" if there were none."""
        if not self.larger_files:
            return ""
        small, larger = count_text(self.files, "small data file"), count_text(self.larger_files, "file")
        verb = "would become" if self.dry_run else "became"
        return f"{small}, {bytes_text(self.size_bytes)}, {verb} {larger}"


def compact_lake(lake: Lake, store_id: str | None = None, *, dry_run: bool = False) -> LakeCompaction:
    """Write small data files again as larger ones. It may be killed at any instant and run again.

    Damaged files aren't joined, nor are files with segments whose rows have expired or are expiring. A lost
    file or broken receipt of one store is reported as a fault, and other stores' files are compacted.

    :param store_id: compact only this store's files; None for all stores' files.
    :param dry_run: only count the files that would change, by the tables.
    :raises BadInputError: the lake is of a version without trees.
    :raises LakeIdentityError: the lake is a copy, or its catalog is older than the warehouse.
    :raises LakeUnavailableError: the lake can't be read or written; commits made before stay.
    """
    properties = lake.segments().properties
    if not has_trees(properties):
        raise BadInputError(
            f"{lake.location}: expected a lake of version {SCHEMA_VERSION} or later, found "
            f"{properties.get(SCHEMA_VERSION_PROPERTY, '1.0')}, in which segments can't share a data "
            "file. Nothing was changed. Run ",
            Command("lake upgrade"),
            ", once every host that opens the lake has this release.",
        )
    if not dry_run:
        ready_to_write(lake)
    result = LakeCompaction(dry_run)
    for name in [store_id] if store_id is not None else [store.store_id for store in list_stores(lake)]:
        try:
            faults = [] if dry_run else _finish(lake, name)
            result = replace(result, faults=(*result.faults, *faults))
            plan = plan_files(_small_files(lake, name))
        except (ProofError, ReceiptError) as error:
            result = replace(result, faults=(*result.faults, Text(error)))
            continue
        if dry_run:
            files = [file for group in plan for file in group]
            result = replace(
                result,
                files=result.files + len(files),
                larger_files=result.larger_files + len(plan),
                size_bytes=result.size_bytes + sum(file.size_bytes for file in files),
            )
            continue
        result = _compact_store(lake, plan, result)
    return result


def maintain_compaction(lake: Lake, store_id: str | None = None, *, dry_run: bool = False) -> tuple[str, ...]:
    """Run :func:`compact_lake` as a part of a lake's maintenance.

    :return: sentences about the changes, or about what prevented them.
    """
    if not has_trees(lake.segments().properties):
        return ()
    try:
        result = compact_lake(lake, store_id, dry_run=dry_run)
    except StorageEngineError as error:
        return (Text("not all small data files were joined: ", error),)
    return (*filter(None, (result.text,)), *result.faults, *result.notices)


def plan_files(files: Iterable[SmallFile]) -> list[tuple[SmallFile, ...]]:
    """Choose groups of small files, each of which becomes one file. Pure.

    :param files: the small files of one store.
    """
    plan = []
    for of_kind in grouped(files, lambda file: file.kind).values():
        for near in _cut_by_time(of_kind):
            group: list[SmallFile] = []
            # A log's segments are in order, so that a reader of some offsets skips the other files.
            for file in sorted(near, key=lambda file: _place_of(file.receipts[0])):
                size_bytes = sum(member.size_bytes for member in group) + file.size_bytes
                count = sum(len(member.receipts) for member in (*group, file))
                if group and (size_bytes > COMPACTED_FILE_BYTES or count > COMPACTED_FILE_SEGMENTS):
                    plan.append(tuple(group))
                    group = []
                group.append(file)
            plan.append(tuple(group))
    plan = [_without_largest(group) for group in plan]
    return [group for group in plan if len(group) >= COMPACTED_LEAST_FILES]


def _without_largest(group: tuple[SmallFile, ...]) -> tuple[SmallFile, ...]:
    """Leave out each file that has more than twice as many segments as all smaller files together.

    So a daily compaction doesn't write a segment and its receipt again each day, but only a few times.
    """
    while group:
        *counts, most = sorted(len(file.receipts) for file in group)
        if most <= 2 * sum(counts):
            break
        group = tuple(file for file in group if len(file.receipts) < most)
    return group


def _cut_by_time(files: Sequence[SmallFile]) -> Iterator[list[SmallFile]]:
    """Divide files of one rule into groups whose segments expire at about the same time."""
    if files[0].days is None:
        yield list(files)
        return
    most_apart_ms, near = files[0].days * DAY_MS // _PART_OF_RULE, list[SmallFile]()
    dated = [(file.newest_ms, file) for file in files if file.newest_ms is not None]
    first_ms = 0
    for newest_ms, file in sorted(dated, key=lambda it: it[0]):
        if near and newest_ms - first_ms > most_apart_ms:
            yield near
            near = []
        if not near:
            first_ms = newest_ms
        near.append(file)
    if near:
        yield near


def _place_of(row: Receipt) -> tuple[str, int, int]:
    return row.log, row.lineage, row.base_offset


def _small_files(lake: Lake, store_id: str) -> Iterator[SmallFile]:
    """Yield a store's small files, without files from which rows were removed or are being removed."""
    acts = read_acts(lake)
    policy, expired = policy_of(acts), expired_files(acts)
    names = read_store_names(lake).get(store_id, ()) if policy.rules or policy.holds else ()
    segments, messages = lake.segments(), lake.messages()
    history = receipts_in(segments, store_id, superseded=True)
    check_chain(history)
    first_proven = first_proven_ms(history)
    by_file = grouped(current(history), partial(data_file_of, messages))
    live = live_data_files(messages, store_id)
    listed = Counter(file.location for file in live)
    for file in live:
        location, rows = file.location, by_file.get(file.location, [])
        name = relative_name(messages, location)
        if name in expired or name == location or listed[location] > 1 or not _is_as_archived(file, rows):
            continue
        kinds = {_kind_of(row, names, policy) for row in rows}
        kind = kinds.pop()
        if kinds or kind is None:
            continue
        begins = [
            age_begins_ms(
                broker_sets_times=find_broker(row.broker).rows.sets_times,
                last_ms=row.last_store_timestamp_ms,
                first_proven_at_ms=first_proven[row.identity],
            )
            for row in rows
        ]
        times = [time_ms for time_ms in begins if time_ms is not None]
        yield SmallFile(
            location,
            file.entry.file_size_in_bytes,
            kind,
            kind[2],
            max(times) if len(times) == len(begins) else None,
            tuple(sorted(rows, key=_place_of)),
        )


def _is_as_archived(file: LiveFile, rows: Sequence[Receipt]) -> bool:
    """Return whether a file is small, agrees with its receipts, and has no row without a receipt."""
    return (
        bool(rows)
        and file.entry.file_size_in_bytes < SHARED_SEGMENT_BYTES
        and not file.has_deletes
        and file.entry.record_count == sum(row.row_count for row in rows)
        and all(
            row.is_whole
            and row.moved_to is None
            and row.root is not None
            and row.data_file_bytes == file.entry.file_size_in_bytes
            for row in rows
        )
    )


def _kind_of(
    row: Receipt, names: tuple[str, ...], policy: KeepPolicy
) -> tuple[str, object, int | None, frozenset[str]] | None:
    """Return a segment's topic, rule, days of the rule, and ids of holds; None if it may not share a file."""
    topic, broker = topic_of(row.broker, row.log), find_broker(row.broker)
    if topic is None:
        return None
    stream = Stream(row.store_id, names, row.log, topic, broker.topics.is_system(topic))
    rule = rule_for(policy.rules, stream)
    held = frozenset(hold.hold_id for hold in policy.holds_of(stream))
    return topic, rule, None if rule is None else rule.days, held


def _compact_store(lake: Lake, plan: Sequence[tuple[SmallFile, ...]], done: LakeCompaction) -> LakeCompaction:
    waiting: list[LargerFile] = []

    def commit() -> None:
        nonlocal done
        changed = _commit(lake, waiting)
        replaced = {
            (row.data_file, row.data_file_bytes) for it in waiting if it not in changed for row in it.old
        }
        done = replace(
            done,
            files=done.files + len(replaced),
            larger_files=done.larger_files + len(waiting) - len(changed),
            size_bytes=done.size_bytes + sum(size_bytes for _, size_bytes in replaced),
            notices=(*done.notices, *map(_changed_text, changed)),
        )
        waiting.clear()

    table = lake.messages()
    try:
        with report_work("Compacting", sum(file.size_bytes for group in plan for file in group)) as advance:
            for group in plan:
                larger, faults = _write_sound(table, group)
                done = replace(done, faults=(*done.faults, *faults))
                waiting += [] if larger is None else [larger]
                advance(sum(file.size_bytes for file in group))
                if sum(len(file.old) for file in waiting) >= BATCH_SEGMENTS:
                    commit()
            if waiting:
                commit()
    except LakeUnavailableError:
        # If the disk is full, each further run would leave as many larger files.
        with suppress(StorageEngineError):
            _discard_changed(lake, waiting)
        raise
    return done


def _changed_text(larger: LargerFile) -> str:
    first = larger.old[0]
    return Text(
        f"{count_text(len(larger.old), 'segment')} of {first.log} from offset {first.base_offset} on "
        "stay in small files: another process archived, expired or proved one of them again meanwhile. Run ",
        Command("lake compact"),
        " again",
    )


def _write_sound(table: Table, group: Sequence[SmallFile]) -> tuple[LargerFile | None, list[str]]:
    """Write small files as one, without the damaged files.

    :return: the larger file, or None if too few files are sound or the larger file can't be proven; and the
        faults.
    :raises LakeUnavailableError: the lake can't be read or written.
    """
    try:
        return _write(table, group), []
    except (ProofError, LakeUnavailableError) as error:
        fault = _file_fault(error)
        sound, faults = list[SmallFile](), list[str]()
        for file in group:
            try:
                _check_file(table, file)
                sound.append(file)
            except ProofError as damage:
                faults.append(Text(damage))
        if not faults:
            return None, [fault]
    if len(sound) < COMPACTED_LEAST_FILES:
        return None, faults
    # Sound files may have different columns, and then can't be joined.
    larger, more_faults = _write_sound(table, sound)
    return larger, [*faults, *more_faults]


def _check_file(table: Table, file: SmallFile) -> None:
    """Raise ProofError if a small file is lost or doesn't prove a segment. The error names the segment."""
    for row in file.receipts:
        subject = f"the segment {row.log}/{row.base_offset:020d} in small files that become one"
        try:
            check_rows(table, row, file.location)
        except ProofError as error:
            named = "" if f"{row.base_offset:020d}" in str(error) else f" It has {subject}."
            raise ProofError(error, f"{named} It stays as it is.") from error
        except LakeUnavailableError as error:
            _file_fault(error)
            raise ProofError(f"{file.location}: expected {subject}, found no file.") from error


def _write(table: Table, group: Sequence[SmallFile]) -> LargerFile:
    """Write small files as one larger file, prove it, and give it its final name. It isn't committed yet."""
    folder = group[0].location.rpartition("/")[0]
    location = f"{folder}/{shared_file_name(uuid.uuid4().hex, 0)}"
    path = local_path(location)
    staged = location if path is None else staged_location(location)
    columns = find_broker(group[0].receipts[0].broker).codec.columns
    placed: list[tuple[Receipt, range]] = []
    try:
        with lake_errors(location, "write a data file"), new_data_file(table.io, staged) as sink:
            write_groups(columns, _joined_groups(table, group, placed), sink)
        new = _prove(table, placed, location, staged)
        if path is not None:
            with lake_errors(location, "publish a data file"):
                os.rename(str(local_path(staged)), path)  # noqa: PTH104  # as kill tests count it
                fsync_path(path.parent)
        return LargerFile(location, tuple(row for row, _ in placed), new)
    except BaseException:
        if path is None:
            discard_files(table, [location])
        else:
            unlink(str(local_path(staged)))
        raise


def _joined_groups(
    table: Table, files: Sequence[SmallFile], placed: list[tuple[Receipt, range]]
) -> Iterator[pa.Table]:
    """Yield rows of small files, one table for each row group of the larger file.

    Small row groups are joined. The row groups of a segment are adjacent.

    :param placed: filled with each receipt, and with the larger file's row groups of its rows.
    """
    waiting: list[pa.Table] = []
    waiting_bytes = number = 0
    schema: pa.Schema | None = None
    for file in files:
        with opened_rows(table.io, file.location) as parquet:
            every_group = range(parquet.num_row_groups)
            parts = [(row, every_group if row.groups is None else row.groups) for row in file.receipts]
            # A segment of several row groups shares none of them, because it is read window by window.
            alone = {group for _, groups in parts if len(groups) > 1 for group in groups}
            places: dict[int, int] = {}
            for group in every_group:
                rows = parquet.read_row_group(group, use_threads=False)
                schema = schema or rows.schema
                if rows.schema != schema:
                    raise ProofError(
                        f"{file.location}: expected the columns of {files[0].location}, found others: "
                        "another release wrote it. These small files stay as they are."
                    )
                size_bytes = int(rows["size"].to_numpy().sum())
                is_alone = group in alone
                if waiting and (is_alone or waiting_bytes + size_bytes > SHARED_GROUP_BYTES):
                    yield together(waiting)
                    waiting, waiting_bytes, number = [], 0, number + 1
                places[group] = number
                if is_alone:
                    yield rows
                    number += 1
                else:
                    waiting.append(rows)
                    waiting_bytes += size_bytes
                del rows
        placed += [(row, range(places[groups.start], places[groups.stop - 1] + 1)) for row, groups in parts]
    if waiting:
        yield together(waiting)


def _prove(
    table: Table, placed: Sequence[tuple[Receipt, range]], location: str, stored_at: str
) -> tuple[Receipt, ...]:
    """Prove segments in a data file, and return receipts that name it, not linked into a chain yet.

    :param placed: earlier receipts of the segments, each with the row groups of its rows in the file.
    :param stored_at: location of the file until it gets its final name.
    :raises ProofError: the file doesn't have these segments.
    :raises LakeUnavailableError: the file can't be read.
    """
    memory = WindowMemory()
    with opened_file(table.io, location, stored_at) as (stored, parquet):
        rows = LastGroup(parquet)
        for receipt, groups in placed:
            if fault := _fault(
                receipt, SegmentPart(rows, receipt.identity, groups, location), location, memory
            ):
                raise ProofError(
                    f"{location}: expected the segment {receipt.log}/{receipt.base_offset:020d} as it was "
                    f"proven in {receipt.data_file}, found {fault}. No receipt was changed, and the earlier "
                    "file stays. The disk or the codec is at fault. Run ",
                    Command("verify", "--level bytes"),
                    ".",
                )
        count = sum(receipt.row_count for receipt, _ in placed)
        if parquet.metadata.num_rows != count:
            raise ProofError(f"{location}: expected {count} rows, found {parquet.metadata.num_rows}.")
        size_bytes, sha256 = stored.size(), sha256_of_file(stored)
    return tuple(
        replace(
            receipt,
            data_file=relative_name(table, location),
            data_file_bytes=size_bytes,
            data_file_sha256=sha256,
            row_groups=row_groups_text(groups),
            moved_to=None,
            proof_version=proof_version_of(receipt.root),
            proven_at_ms=clock_ms(),
        )
        for receipt, groups in placed
    )


def _fault(receipt: Receipt, part: SegmentPart, location: str, memory: WindowMemory) -> str:
    """Return how rows differ from the proven segment, or "" if they are equal."""
    codec = find_broker(receipt.broker).codec
    digest, counter, leaves = hashlib.sha256(), RowCounter(codec.columns), tree_to_compare(receipt, location)
    origin, size_bytes = origin_of(receipt), receipt.size_bytes
    for _, chunk in segment_bytes(part, codec, origin, size_bytes, location, counter, memory, leaves):
        digest.update(chunk)
    if digest.hexdigest() != receipt.sha256:
        return "other bytes"
    stats = counter.stats()
    if (stats.row_count, stats.message_count) != (receipt.row_count, receipt.message_count):
        return f"{stats.row_count} rows with {stats.message_count} messages"
    return tree_fault(receipt, leaves)


def _commit(lake: Lake, files: Sequence[LargerFile]) -> list[LargerFile]:
    """Replace small files by larger ones, or put the small files back.

    :return: the larger files that not all receipts name.
    """
    with CHANGE_LOCK:
        commit_steps(lake, partial(_next_step, lake, files))
    return _discard_changed(lake, files)


def _discard_changed(lake: Lake, files: Sequence[LargerFile]) -> list[LargerFile]:
    """Return the larger files that not all receipts name, and remove those that nothing refers to."""
    if not files:
        return []
    segments, messages = lake.segments(), lake.messages()
    rows = _rows(segments, files)
    needed = {file.location for file in live_data_files(messages, files[0].old[0].store_id, _span(files))}
    needed |= {file.location for row in rows.values() for file in proven_files(messages, row)}
    changed = [
        it
        for it in files
        if not all(_names_file(messages, rows.get(row.identity), it.location) for row in it.old)
    ]
    for file in changed:
        # An expired segment needs no other file with its rows.
        staying = with_rows(row for old in file.old if (row := rows.get(old.identity)) is not None)
        if file.location not in needed and not broken_receipts(lake, staying, Depth.FILES):
            discard_files(messages, [file.location])
    return changed


def _span(files: Sequence[LargerFile]) -> tuple[int, int]:
    return offsets_of(row for file in files for row in file.old)


def _rows(segments: Table, files: Sequence[LargerFile]) -> dict[SegmentIdentity, Receipt]:
    store_id = files[0].old[0].store_id
    rows = receipts_in(segments, store_id, base_offsets=_span(files), with_ended=True)
    return {row.identity: row for row in rows}


def _names_file(messages: Table, row: Receipt | None, location: str) -> bool:
    """Return whether a receipt names a data file, and another engine hasn't moved the rows."""
    return row is not None and row.moved_to is None and data_file_of(messages, row) == location


def _next_step(lake: Lake, files: Sequence[LargerFile]) -> CommitStep | None:
    """Return the next step: data files first, and receipts once the table has all data files.

    The step only applies to the states of the tables from which it was computed.
    """
    store_id = files[0].old[0].store_id
    expired, segments, messages = expired_files(read_acts(lake)), lake.segments(), lake.messages()
    rows, live = _rows(segments, files), live_data_files(messages, store_id, _span(files))
    present = {file.location: file for file in live}
    leaving: list[str] = []
    taking: list[Receipt] = []
    receipts: list[Receipt] = []
    for file in files:
        current_rows = [rows.get(old.identity) for old in file.old]
        named = [_names_file(messages, row, file.location) for row in current_rows]
        is_planned = bool(file.new) and all(
            is_named or (row is not None and row.row_hash == old.row_hash)
            for row, old, is_named in zip(current_rows, file.old, named, strict=True)
        )
        if file.location in present:
            if is_planned:
                receipts += [new for new, is_named in zip(file.new, named, strict=True) if not is_named]
            elif (old_rows := _replacing_rows(messages, file, current_rows, present)) is not None:
                leaving.append(file.location)
                taking += old_rows
            continue
        sources = {data_file_of(messages, old): old for old in file.old}
        if (
            is_planned
            and not any(named)
            and all(source in present and not present[source].has_deletes for source in sources)
            and expired.isdisjoint(old.data_file for old in sources.values())
            and is_there(messages, file.new[0])
        ):
            leaving += sources
            taking.append(file.new[0])
    if leaving or taking:
        return data_step(messages, _WHY, [present[source].entry for source in leaving], taking, live)
    return receipts_step(segments, store_id, receipts, _WHY) if receipts else None


def _replacing_rows(
    messages: Table, file: LargerFile, current_rows: Sequence[Receipt | None], present: Mapping[str, LiveFile]
) -> list[Receipt] | None:
    """Return the receipts whose files replace a larger file.

    Return None if a receipt needs the larger file, or if one of the replacing files is lost.
    """
    rows = [row for row in current_rows if row is not None and row.has_rows]
    if any(file.location == proven.location for row in rows for proven in proven_files(messages, row)):
        return None
    lacking = [row for row in rows if data_file_of(messages, row) not in present]
    return lacking if all(is_there(messages, row) for row in lacking) else None


def _finish(lake: Lake, store_id: str) -> list[str]:
    """Finish killed compactions whose larger file is in the table. Return the faults of larger files."""
    faults: list[str] = []
    segments, messages = lake.segments(), lake.messages()
    rows = receipts_in(segments, store_id, with_ended=True)
    by_slot = {slot_prefix(row.identity): row for row in rows}
    named = Counter[str]()
    for row in rows:
        named[data_file_of(messages, row)] += row.row_count if row.moved_to is None else 0
    present = {file.location: file for file in live_data_files(messages, store_id)}
    for at, live in present.items():
        if not is_shared_name(file_name(at)) or live.has_deletes or named[at] == live.entry.record_count:
            continue
        new: tuple[Receipt, ...] = ()
        try:
            parts = segments_in(messages.io, at)
        except (ProofError, LakeUnavailableError) as error:
            faults.append(_file_fault(error))
            continue
        old = [(by_slot.get(slot_prefix(identity)), groups) for identity, groups in parts.items()]
        placed = [(row, groups) for row, groups in old if row is not None]
        if len(placed) < len(old):
            # A killed archiving wrote this file, and the next one finishes it.
            continue
        lacking = [row for row, _ in placed if not _names_file(messages, row, at)]
        is_elsewhere = any(data_file_of(messages, row) in present for row in lacking)
        try:
            if not is_elsewhere and all(row.is_whole for row, _ in placed):
                new = _prove(messages, placed, at, at)
        except (ProofError, LakeUnavailableError) as error:
            faults.append(_file_fault(error))
        _commit(lake, [LargerFile(at, tuple(row for row, _ in placed), new)])
    return faults


def _file_fault(error: ProofError | LakeUnavailableError) -> Text:
    """Return an error about a missing or damaged file as text. Raise another LakeUnavailableError."""
    if isinstance(error, LakeUnavailableError) and not isinstance(error.__cause__, FileNotFoundError):
        raise error
    return Text(error)
