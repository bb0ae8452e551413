"""Expiry of segments from a lake, its undo, and final removal. Expiry and undo begin with a durable act.

An expiry's act names the segments and their data files. Then, batch by batch, new receipts say that the
segments or some of their streams have expired. After that the data files leave the table of rows, or files
with the remaining rows replace them. These commits read and write no data file. An undo first brings the
files back, and then the receipts. So at every instant the table has all rows that receipts prove.

The files stay at their places until the removal. The removal deletes a few files at a time, and then directly
records an act. Expiry, undo and removal are each safe to kill at any instant and to run again. An expiry
continues only while the rules still require it.

Must never do: take a file that a whole receipt names, that a hold covers, or that no act names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core import durable
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.exceptions import BadInputError, LakeUnavailableError, ProofError
from storage_engine.lake.acts.act_files import (
    Acts,
    held_stores,
    read_acts,
    read_held_stores,
    read_trusted_clock,
    record_act,
)
from storage_engine.lake.archive.commit import BATCH_SEGMENTS
from storage_engine.lake.archive.commit_retries import CommitStep, commit_steps
from storage_engine.lake.archive.small_tables import begin, prepare_receipts
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.placed_table import data_file_of, location_of, proven_files, relative_name
from storage_engine.lake.catalog.writing import ready_to_write
from storage_engine.lake.durable_io import local_path, open_data_file, sha256_of_file
from storage_engine.lake.file.data_file import opened_rows, segments_in
from storage_engine.lake.file.jobs import file_name, is_shared_name, slot_prefix, split_data_file_name
from storage_engine.lake.file.scan import LiveFile, live_data_files, offsets_of
from storage_engine.lake.file.staging import PARTIAL_SUFFIX, final_name
from storage_engine.lake.file.table_entries import iceberg_data_file, packed_facts
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.lake.gc.trash import TRASH
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.soundness.receipts import current, receipts_in
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.lake.storage.small_files import file_system_of, list_files
from storage_engine.model.keep.acts import (
    SHOWN_CHARACTERS,
    ActKind,
    KeepDecision,
    RecordedAct,
    RecordedExpiry,
    Thinning,
    expired_files,
    expiries_of,
    find_expiry,
    policy_of,
    removed_files,
)
from storage_engine.model.proof.receipt import (
    EXPIRED,
    PARTIAL,
    Receipt,
    SegmentIdentity,
    StoredFile,
    act_text,
    back_from,
    gone_by,
)


def finish_acts(lake: Lake, *, rebuilt: bool = False, kept: Set[SegmentIdentity] = frozenset()) -> None:
    """Finish every expiry and undo whose writer was killed.

    If an act is a day old, or a rule or hold was recorded after it, no further segment expires because of it.
    A new expiry decides about these segments. But if an act says that a segment's file was removed, the
    segment's receipt must become expired.

    :param rebuilt: the receipts may be older than an act whose files are all removed. No further segment
        expires.
    :param kept: segments that may not expire any more, because of other lakes' holds or for another reason.
    :raises LakeIdentityError: the lake is a copy, its catalog is older than the warehouse, or its acts are no
        single chain.
    :raises LakeUnavailableError: the lake can't be read or written; run again to continue.
    :raises ReceiptError: a store's chain of receipts is broken.
    """
    ready_to_write(lake)
    acts = read_acts(lake)
    # The oldest expiry first: a later one may have taken streams that it left.
    for expiry in expiries_of(acts) if rebuilt else ():
        for batch in () if expiry.is_undone else _batches(expiry):
            _commit(lake, partial(_next_expiry_step, lake, acts, expiry, batch, frozenset()))
    # The newest expiry first: its undo brings back files of an earlier expiry, whose undo may follow.
    for expiry in reversed(expiries_of(acts)):
        for batch in _batches(expiry) if expiry.files else ():
            _commit(lake, partial(_next_step, lake, expiry, batch, None if rebuilt else kept))


def undo_expiry(lake: Lake, act_id: str) -> RecordedAct:
    """Bring back the segments that expired by an act, unless their files were removed for good.

    Before that, every file is read and compared with its SHA-256.

    :param act_id: the beginning of the act's SHA-256.
    :return: the undo's act.
    :raises BadInputError: no expiry or several expiries match ``act_id``, or all files were removed for good.
    :raises ProofError: a file is missing or has changed. Nothing was changed by this call.
    :raises StorageEngineError: as :func:`finish_acts` does.
    """
    ready_to_write(lake)
    messages, expiry = lake.messages(), find_expiry(read_acts(lake), act_id)
    # If the expiry is undone already, another act may have expired the segments again since.
    if not expiry.is_undone:
        _check_left(expiry)
        for file in expiry.returning:
            _check_file(messages, file)

    def decide(acts: Acts) -> KeepDecision | None:
        expiry = find_expiry(acts, act_id)
        if expiry.is_undone:
            return None
        # Removals recorded since the first check count.
        _check_left(expiry)
        return KeepDecision(ActKind.UNDO, expiry=expiry.recorded.sha256)

    acts = record_act(lake, decide)
    # Other lakes' holds aren't known here, so that no further segment of any act may expire.
    finish_acts(lake, kept={it for each in expiries_of(acts) for it in each.recorded.act.decision.taken})
    expiry = find_expiry(acts, act_id)
    return next(act for act in acts if act.act.decision.kind is ActKind.UNDO and _is_of(act, expiry))


def remove_expired(
    lake: Lake, *, trash_ms: int = TRASH_MS, kept: Set[str] = frozenset(), dry_run: bool = False
) -> tuple[StoredFile, ...]:
    """Remove for good the files of expiries that are old enough, except files that a hold covers.

    :param trash_ms: how long a file stays after its act, in milliseconds of the lake's clock.
    :param kept: ids of stores whose files must all stay, because other lakes have holds, or may have them.
    :param dry_run: return the files, but remove none.
    :return: the removed data files, by their names in receipts.
    :raises StorageEngineError: as :func:`finish_acts` does.
    """
    going: list[StoredFile] = []
    for expiry in expiries_of(read_acts(lake)):
        if expiry.is_undone or not expiry.files:
            continue
        removable = _removable(lake, expiry, trash_ms, kept)
        if dry_run:
            going += removable
            continue
        sound = frozenset(removable) - _files_still_needed(lake, expiry, removable)
        taken: list[StoredFile] = []

        def decide(
            acts: Acts,
            expiry: RecordedExpiry = expiry,
            taken: list[StoredFile] = taken,
            sound: Set[StoredFile] = sound,
        ) -> KeepDecision | None:
            # During this call no other process can record a hold or an undo, and gc waits. On an object
            # store this exclusion ends after a time, so that each call removes only a few files.
            current_expiry = _current_expiry(acts, expiry)
            files = () if current_expiry.is_undone else _removable(lake, current_expiry, trash_ms, kept)
            few = [file for file in files if file in sound][:BATCH_SEGMENTS]
            if not few:
                return None
            _remove(lake.messages(), few)
            taken += few
            return KeepDecision(ActKind.REMOVED, files=tuple(few), expiry=expiry.recorded.sha256)

        for _ in range(0, len(sound), BATCH_SEGMENTS):
            record_act(lake, decide)
        going += taken
    return tuple(going)


@dataclass(frozen=True, slots=True)
class EarlierFile:
    """A data file that another file has replaced and that still exists.

    :param for_gc: only gc can remove the file, because it is in gc's trash or no receipt names it.
    """

    file: StoredFile
    segments: frozenset[SegmentIdentity]
    for_gc: bool


def earlier_files(lake: Lake, segments: Collection[SegmentIdentity]) -> tuple[EarlierFile, ...]:
    """Return segments' earlier data files, which compaction or archiving again has replaced.

    Files that acts name are left out. A killed run's files that no receipt names are returned, too.

    :raises LakeUnavailableError: the lake can't be read.
    """
    if not segments:
        return ()
    messages, acts, files = lake.messages(), expired_files(read_acts(lake)), list[EarlierFile]()
    paths = {f"data/{it.inside}" for it in list_files(messages.io, f"{messages.location().rstrip('/')}/data")}
    root = local_path(messages.location())
    trash = [] if root is None else (root / TRASH).rglob("*.parquet*")
    # In the trash, a file keeps its path below the directory of its pass.
    in_trash = {
        "/".join(path.relative_to(root / TRASH).parts[1:]): str(path) for path in trash if root is not None
    }
    for store_id in sorted({segment.store_id for segment in segments}):
        history = receipts_in(lake.segments(), store_id, superseded=True)
        needed = {file.location for row in current(history) for file in proven_files(messages, row)}
        needed |= {file.location for file in live_data_files(messages, store_id)}
        names = (paths | in_trash.keys()) - acts - {relative_name(messages, path) for path in needed}
        by_file: dict[StoredFile, set[SegmentIdentity]] = {}
        for row in history:
            name = relative_name(messages, data_file_of(messages, row))
            file = StoredFile(name, row.data_file_bytes, row.data_file_sha256)
            by_file.setdefault(file, set()).add(row.identity)
        files += [
            EarlierFile(file, frozenset(of_file), file.location in in_trash)
            for file, of_file in by_file.items()
            if file.location in names and not of_file.isdisjoint(segments)
        ]
        slots = {key: it.identity for it in history for key in (_name_of(it), (slot_prefix(it.identity), ""))}
        for name in names - {file.location for file in by_file}:
            if name.startswith(f"data/store_id={store_id}/"):
                inside = _slots_in(messages, in_trash.get(name, location_of(messages, name)))
                of_name = frozenset(slots[key] for key in inside if key in slots)
                files += [EarlierFile(StoredFile(name, 0, ""), of_name, for_gc=True)] if of_name else []
    return tuple(files)


def _slots_in(messages: Table, location: str) -> list[tuple[str, str]]:
    """Return the segments of a file that no receipt names.

    Each is its :func:`slot_prefix` and the SHA-256's first digits. The digits are "" for a shared file, whose
    name doesn't have them.
    """
    name = file_name(location)
    name = final_name(name) if name.endswith(PARTIAL_SUFFIX) else name
    if not is_shared_name(name):
        return [split_data_file_name(name)]
    try:
        return [(slot_prefix(identity), "") for identity in segments_in(messages.io, location)]
    except (ProofError, LakeUnavailableError) as error:
        if isinstance(error, LakeUnavailableError) and not isinstance(error.__cause__, FileNotFoundError):
            raise
        # The file isn't complete, or its run has renamed it meanwhile.
        return []


def _batches(expiry: RecordedExpiry) -> Iterator[Sequence[SegmentIdentity]]:
    """Yield an act's segments in batches of one store. Segments that share a data file are in one batch."""
    decision = expiry.recorded.act.decision
    sharing: dict[object, list[SegmentIdentity]] = {}
    files: Sequence[object] = decision.files if _has_shared_files(expiry) else decision.taken
    for file, segment in zip(files, decision.taken, strict=True):
        sharing.setdefault(file, []).append(segment)
    # The segments of a shared data file expire by one commit.
    by_file = sorted((sorted(it, key=_place_of) for it in sharing.values()), key=lambda it: _place_of(it[0]))
    for _, group in groupby(by_file, key=lambda it: it[0].store_id):
        batch: list[SegmentIdentity] = []
        for segments in group:
            if batch and len(batch) + len(segments) > BATCH_SEGMENTS:
                yield batch
                batch = []
            batch += segments
        yield batch


def _place_of(identity: SegmentIdentity) -> tuple[str, int, str, int]:
    return identity.store_id, identity.lineage, identity.log, identity.base_offset


def _has_shared_files(expiry: RecordedExpiry) -> bool:
    """Return whether segments of an act share data files. Such an act names a file for each segment."""
    decision = expiry.recorded.act.decision
    return not decision.thinned and len(set(decision.files)) < len(decision.files) == len(decision.segments)


def _locate_files(messages: Table, files: Sequence[StoredFile]) -> set[StoredFile]:
    return {replace(file, location=location_of(messages, file.location)) for file in files}


def _commit(lake: Lake, next_step: Callable[[], CommitStep | None]) -> None:
    with CHANGE_LOCK:
        commit_steps(lake, next_step)


def _current_expiry(acts: Acts, expiry: RecordedExpiry) -> RecordedExpiry:
    return next(item for item in expiries_of(acts) if item.recorded.sha256 == expiry.recorded.sha256)


def _is_of(act: RecordedAct, expiry: RecordedExpiry) -> bool:
    return act.act.decision.expiry == expiry.recorded.sha256


def _next_step(
    lake: Lake, expiry: RecordedExpiry, batch: Sequence[SegmentIdentity], kept: Set[SegmentIdentity] | None
) -> CommitStep | None:
    """Return the next step of an expiry or of its undo. Without ``kept``, no segment may expire any more."""
    # While a commit waited for its turn, a hold or an undo may have been recorded.
    acts = read_acts(lake)
    current_expiry = _current_expiry(acts, expiry)
    if current_expiry.is_undone:
        undo = next(
            act for act in acts if act.act.decision.kind is ActKind.UNDO and _is_of(act, current_expiry)
        )
        return _next_undo_step(lake, current_expiry, undo, batch)
    act = current_expiry.recorded.act
    is_current = act.decision.policy == policy_of(acts).version and abs(clock_ms() - act.at_ms) < DAY_MS
    # A current act has no segment that a hold covers. Another one may have.
    if not is_current and held_stores(lake, acts).holds_of(batch[0].store_id):
        return None
    leaving = set(batch) - kept if is_current and kept is not None else set()
    return _next_expiry_step(lake, acts, current_expiry, batch, leaving)


def _next_expiry_step(
    lake: Lake,
    acts: Acts,
    expiry: RecordedExpiry,
    batch: Sequence[SegmentIdentity],
    may_leave: Set[SegmentIdentity],
) -> CommitStep | None:
    """Return an expiry's next step: receipts first, and data files once the batch's receipts are changed.

    If an act says that a file was removed for good, either table may be older or newer than that act.

    :param may_leave: segments that may still expire by this act.
    """
    store_id, act = batch[0].store_id, expiry.recorded
    segments, messages = lake.segments(), lake.messages()
    rows, thinned = _rows(segments, batch), _find_thinned(messages, expiry)
    decision = expiry.recorded.act.decision
    files = _locate_files(messages, (*decision.files, *decision.replaced))
    removed = files - _locate_files(messages, expiry.files)
    lost = {location_of(messages, name) for name in removed_files(acts)}
    live = live_data_files(messages, store_id, offsets_of(batch))
    # A segment that was archived again since is in another file, and stays.
    of_act = [row for row in rows if files.issuperset(proven_files(messages, row))]
    as_archived = {file.location for file in live if not file.has_deletes}
    kept_whole = _shared_with_others(messages, segments, of_act, may_leave)
    changed = [
        after
        for row in of_act
        if row.has_rows
        and (
            (row.identity in may_leave and data_file_of(messages, row) in as_archived - kept_whole)
            or removed.issuperset(proven_files(messages, row))
        )
        for after in (_end_row(row, act, thinned.get(row.identity)),)
        # If the file with the remaining rows is missing, another expiry decides about the segment.
        if after.state == EXPIRED or data_file_of(messages, row) in lost or is_there(messages, after)
    ]
    if changed:
        return receipts_step(segments, store_id, changed, act.sha256)
    ended_files = {data_file_of(messages, row) for row in of_act if row.state == EXPIRED}
    kept = [row for row in rows if _is_thinned_by(row, thinned) and data_file_of(messages, row) not in lost]
    ended_files |= {thinned[row.identity].file.location for row in kept}
    ended = {_name_of(it): it for it in (*kept, *(row for row in rows if row.state == EXPIRED))}
    # A rebuilt table may be older than another act, and then still has the files of that act.
    other_files = expired_files(acts) - {file.location for file in act.act.decision.files}
    replaced = lost | {location_of(messages, name) for name in other_files}
    ended_files |= {path for path in replaced if split_data_file_name(file_name(path)) in ended}
    ended_files -= {file.location for row in rows if row.has_rows for file in proven_files(messages, row)}
    ended_files -= _shared_with_others(messages, segments, of_act, frozenset())
    leaving = [file.entry for file in live if file.location in ended_files]
    names = {split_data_file_name(file_name(entry.file_path)) for entry in leaving}
    return data_step(messages, act.sha256, leaving, [row for row in kept if _name_of(row) in names], live)


def _shared_with_others(
    messages: Table, segments: Table, rows: Sequence[Receipt], leaving: Set[SegmentIdentity]
) -> set[str]:
    """Return the receipts' shared data files that also have rows of a segment that stays. They stay whole."""
    shared = {data_file_of(messages, row) for row in rows if row.row_groups is not None}
    if not shared:
        return shared
    every_row = receipts_in(segments, rows[0].store_id, with_ended=True)
    staying = (row for row in every_row if row.has_rows and row.identity not in leaving)
    return shared & {file.location for row in staying for file in proven_files(messages, row)}


def _next_undo_step(
    lake: Lake, expiry: RecordedExpiry, undo: RecordedAct, batch: Sequence[SegmentIdentity]
) -> CommitStep | None:
    """Return an undo's next step: data files first, and receipts once the table has all data files."""
    store_id, act, text = batch[0].store_id, expiry.recorded, _act_text(undo)
    segments, messages = lake.segments(), lake.messages()
    by_act, files = _act_text(act), _locate_files(messages, expiry.returning)
    thinned = _find_thinned(messages, expiry)
    live = live_data_files(messages, store_id, offsets_of(batch))
    locations = {file.location for file in live}
    rows = _rows(segments, batch)
    returning = {
        row.identity: replace(row, state=_state_of(streams), act=text, streams=streams)
        for row in rows
        if row.state == EXPIRED and row.act == by_act and files.issuperset(proven_files(messages, row))
        for streams in (back_from(row.streams, act.sha256[:SHOWN_CHARACTERS]),)
    }
    partly = {row.identity: data_file_of(messages, row) for row in rows if _is_thinned_by(row, thinned)}
    for row in _rows(segments, batch, superseded=True) if partly else ():
        # Take the last receipt of the file that comes back, unless another engine has moved the rows.
        file = thinned[row.identity].file if row.identity in partly else None
        is_of_file = file in files and row.has_rows and proven_files(messages, row) == (file,)
        if is_of_file and not locations.isdisjoint((partly[row.identity], data_file_of(messages, row))):
            returning |= {row.identity: replace(row, act=text)} if is_there(messages, row) else {}
    # A shared file that comes back has all its segments' rows. So a segment of it that was archived again
    # since comes back in that file, too.
    shared = {data_file_of(messages, row) for row in returning.values() if row.row_groups is not None}
    since = {row.identity: row for row in rows if row.has_rows and row.identity not in returning}
    for row in _rows(segments, batch, superseded=True) if shared and since else ():
        if row.identity in since and row.act == by_act and data_file_of(messages, row) in shared:
            streams = back_from(row.streams, act.sha256[:SHOWN_CHARACTERS])
            returning[row.identity] = replace(row, state=_state_of(streams), act=text, streams=streams)
            partly[row.identity] = data_file_of(messages, since[row.identity])
    lacking = [row for row in returning.values() if data_file_of(messages, row) not in locations]
    # A killed run may have archived these segments again, without receipts.
    of_span = receipts_in(segments, store_id, base_offsets=offsets_of(batch), with_ended=True)
    named = {file.location for row in of_span for file in proven_files(messages, row)}
    slots = {slot_prefix(identity) for identity in returning}
    rearchived = {
        file.location
        for file in live
        if file.location not in named and split_data_file_name(file_name(file.location))[0] in slots
    } - {data_file_of(messages, row) for row in returning.values()}
    if returning and not lacking and not rearchived:
        return receipts_step(segments, store_id, list(returning.values()), undo.sha256)
    replaced = rearchived | {partly[row.identity] for row in lacking if row.identity in partly}
    leaving = [file.entry for file in live if file.location in replaced]
    return data_step(messages, undo.sha256, leaving, lacking, live)


def _end_row(row: Receipt, act: RecordedAct, thinning: Thinning | None) -> Receipt:
    act_id, text = act.sha256[:SHOWN_CHARACTERS], _act_text(act)
    if thinning is None:
        return replace(row, state=EXPIRED, act=text, streams=gone_by(row.streams, act_id))
    return replace(
        row,
        state=PARTIAL,
        act=text,
        streams=gone_by(row.streams, act_id, thinning.streams),
        data_file=thinning.kept.location,
        data_file_bytes=thinning.kept.size_bytes,
        data_file_sha256=thinning.kept.sha256,
        row_count=thinning.row_count,
        message_count=thinning.message_count,
    )


def _name_of(row: Receipt) -> tuple[str, str]:
    return slot_prefix(row.identity), row.sha256[:16]


def _state_of(streams: str | None) -> str | None:
    """Return the state of a receipt with rows: PARTIAL if some of its streams are gone, otherwise None."""
    is_partial = any(stream["gone"] is not None for stream in json.loads(streams or "[]"))
    return PARTIAL if is_partial else None


def _find_thinned(messages: Table, expiry: RecordedExpiry) -> dict[SegmentIdentity, Thinning]:
    """Return an act's thinnings by segment, each with the present location of the replaced file."""
    return {
        thinning.segment: replace(
            thinning, file=replace(thinning.file, location=location_of(messages, thinning.file.location))
        )
        for thinning in expiry.recorded.act.decision.thinned
    }


def _is_thinned_by(row: Receipt, thinned: Mapping[SegmentIdentity, Thinning]) -> bool:
    """Return whether a receipt is the one that an act made for the segment's remaining streams."""
    thinning = thinned.get(row.identity)
    return thinning is not None and row.state == PARTIAL and row.proven_files == (thinning.kept,)


def is_there(messages: Table, row: Receipt) -> bool:
    """Return whether a receipt's data file exists at its place and has the right size.

    :raises LakeUnavailableError: the place can't be read.
    """
    location = data_file_of(messages, row)
    with lake_errors(location, "look for a data file"):
        try:
            return len(messages.io.new_input(location)) == row.data_file_bytes
        except FileNotFoundError:
            return False


def data_step(
    messages: Table,
    why: str,
    leaving: Sequence[DataFile],
    taking: Sequence[Receipt],
    live: Sequence[LiveFile],
) -> CommitStep | None:
    """Return the commit that removes data files from the table of rows and adds the data files of receipts.

    :param why: a text that is equal for equal work.
    :param leaving: entries of the files to remove.
    :param taking: receipts whose data files are added, unless the table has them.
    :param live: the table's data files.
    """
    locations = {file.location for file in live}
    by_file = {data_file_of(messages, row): row for row in taking}
    taking = [row for location, row in by_file.items() if location not in locations]
    if not (leaving or taking):
        return None

    def prepare() -> Transaction:
        transaction = begin(messages)
        snapshot = transaction.update_snapshot()
        with snapshot.overwrite() if leaving else snapshot.merge_append() as change:
            for entry in leaving:
                change.delete_data_file(entry)
            for row in taking:
                location = data_file_of(messages, row)
                with opened_rows(messages.io, location) as parquet:
                    facts = packed_facts(parquet.metadata, find_broker(row.broker).codec)
                change.append_data_file(
                    iceberg_data_file(messages, location, row.data_file_bytes, row.store_id, facts)
                )
        return transaction

    names = (*(entry.file_path for entry in leaving), *(row.data_file for row in taking))
    return CommitStep(messages, (why, "data", *names), prepare)


def _rows(segments: Table, batch: Sequence[SegmentIdentity], *, superseded: bool = False) -> list[Receipt]:
    """Return the receipts that count for a batch; with ``superseded``, all its receipts, the newest last."""
    of_batch = set(batch)
    rows = receipts_in(
        segments, batch[0].store_id, base_offsets=offsets_of(batch), superseded=superseded, with_ended=True
    )
    return [row for row in rows if row.identity in of_batch]


def receipts_step(segments: Table, store_id: str, rows: Sequence[Receipt], why: str) -> CommitStep:
    """Return the commit that appends receipts of one store."""
    head = check_links(segments, store_id)
    texts = (why, "receipts", *(row.row_hash for row in rows))
    return CommitStep(segments, texts, lambda: prepare_receipts(segments, {store_id: head}, rows))


def _act_text(act: RecordedAct) -> str:
    return act_text(act.sha256, act.act.decision.kind.value)


def _check_left(expiry: RecordedExpiry) -> None:
    """Raise BadInputError if all files of an expiry were removed for good."""
    if not expiry.returning:
        raise BadInputError(
            f"undo: expected an act whose files still exist, found {expiry.recorded.sha256}, whose "
            f"{len(expiry.recorded.act.decision.files)} files were removed for good. Nothing was changed. A "
            "copy of the lake may have them."
        )


def _check_file(messages: Table, file: StoredFile) -> None:
    """Raise ProofError if a file is missing, or hasn't the size and SHA-256 of its act."""
    location = location_of(messages, file.location)
    try:
        with open_data_file(messages.io, location) as stored:
            size_bytes, sha256 = stored.size(), sha256_of_file(stored)
    except FileNotFoundError as error:
        raise _change_error(
            location,
            file,
            "no file",
            Text(
                " If a killed removal has deleted it, record a hold, then run ",
                Command("lake expire", "--trash-days 0"),
                ", which then removes no further file, and then undo the rest.",
            ),
        ) from error
    if (size_bytes, sha256) != (file.size_bytes, file.sha256):
        raise _change_error(location, file, f"{size_bytes} bytes with SHA-256 {sha256}")


def _change_error(location: str, file: StoredFile, actual: str, advice: str = "") -> ProofError:
    return ProofError(
        f"{location}: expected {file.size_bytes} bytes with SHA-256 {file.sha256}, as when it expired, "
        f"found {actual}. Nothing was changed. Bring the file back from a copy of the lake, and run again.",
        advice,
    )


def _removable(lake: Lake, expiry: RecordedExpiry, trash_ms: int, kept: Set[str]) -> list[StoredFile]:
    """Return the files of an expiry that may be removed for good now.

    Files that the undo of a later expiry would need are left out.

    :raises LakeUnavailableError: the lake can't be read, or its clock differs too much from this machine's.
    """
    if read_trusted_clock(lake) < expiry.recorded.act.at_ms + trash_ms:
        return []
    held, messages, segments = read_held_stores(lake), lake.messages(), lake.segments()
    by_act = _act_text(expiry.recorded)
    folders = [f"data/store_id={store_id}/" for store_id in kept]
    needed = {
        location_of(messages, file.location)
        for file in expiry.recorded.act.decision.replaced
        if any(map(file.location.startswith, folders))
    }
    thinned = _find_thinned(messages, expiry)
    for batch in _batches(expiry):
        span = None if _has_shared_files(expiry) else offsets_of(batch)
        rows = receipts_in(segments, batch[0].store_id, base_offsets=span, with_ended=True)
        needed |= {
            file.location
            for row in rows
            if row.has_rows or row.act != by_act or row.store_id in kept
            for file in proven_files(messages, row)
        }
        # The files of a segment without a receipt stay, too.
        identities = {row.identity for row in rows if row.store_id not in kept}
        needed |= {thinned[it].file.location for it in batch if it in thinned and it not in identities}
        needed |= {file.location for file in live_data_files(messages, batch[0].store_id, offsets_of(batch))}
    # Files that a killed removal has deleted are recorded as removed, even if a hold covers them now.
    return [
        file
        for file in expiry.files
        if (location := location_of(messages, file.location)) not in needed
        and (not held.holds_file(file.location) or not messages.io.new_input(location).exists())
    ]


def _files_still_needed(lake: Lake, expiry: RecordedExpiry, files: Collection[StoredFile]) -> set[StoredFile]:
    """Return the files whose remaining rows aren't in a sound new file."""
    decision = expiry.recorded.act.decision
    by_segment = [*zip(decision.segments, decision.files, strict=False)]
    by_segment += [(thinning.segment, thinning.file) for thinning in decision.thinned]
    # If compaction committed before the act, a segment that was to expire is in another file.
    replaced = {segment: file for segment, file in by_segment if file in files}
    unsound: set[StoredFile] = set()
    for batch in _batches(expiry) if replaced or decision.replaced else ():
        rows = [row for row in _rows(lake.segments(), batch) if row.has_rows]
        rows = [row for row in rows if decision.replaced or row.identity in replaced]
        broken = broken_receipts(lake, rows, Depth.FILES)
        unsound |= {replaced[identity] for identity in broken if identity in replaced}
        unsound.update(decision.replaced if broken else ())
    return unsound


def _remove(messages: Table, files: Sequence[StoredFile]) -> None:
    directories: set[Path] = set()
    for file in files:
        location = location_of(messages, file.location)
        path = local_path(location)
        with lake_errors(location, "remove a file"):
            if path is not None:
                durable.unlink(path)
                directories.add(path.parent)
                continue
            file_system, inside = file_system_of(messages.io, location)
            if file_system.get_file_info(inside).is_file:
                file_system.delete_file(inside)
    for directory in directories:
        with lake_errors(str(directory), "remove files"):
            durable.fsync_path(directory)
