"""Expiry of a lake's segments by its rules. Receipts and the stores' journal decide what expires.

A journal's last plan says which segments a store has. A data file is read only if its segment is thinned.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms, jumped_forward_ms, read_clock
from storage_engine.core.long_work import report_work
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.journal import Journal, RunState
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.rows import Slot, SlotTopic
from storage_engine.lake.acts.act_files import (
    Acts,
    HeldStores,
    held_stores,
    read_acts,
    read_store_names,
    read_trusted_clock,
    record_act,
)
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import copy_of
from storage_engine.lake.catalog.placed_table import proven_files, relative_name
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.lake.gc.segment_expiry import earlier_files, finish_acts, remove_expired
from storage_engine.lake.gc.thinning import discard_files, thin_segment
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipt_history
from storage_engine.model.keep.acts import ActKind, KeepDecision, Thinning, policies_of, policy_of
from storage_engine.model.keep.expiry_rules import (
    REWRITE_RULE,
    ExpiryReason,
    ExpirySegment,
    ExpiryVerdict,
    RewriteRule,
    SegmentStream,
    StoreContent,
    judge_segments,
)
from storage_engine.model.keep.keep_rules import NO_POLICY, Hold, KeepPolicy, Stream, age_begins_ms
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity, StoredFile, with_rows
from storage_engine.retention.housekeeping.keeping import forecast_lake
from storage_engine.retention.housekeeping.kept_forecasts import keep_forecast
from storage_engine.retention.ranges.missing_logs import kept_logs
from storage_engine.retention.store.known_heads import (
    KnownHeads,
    acts_elsewhere,
    journalled_heads,
    known_heads,
)


@dataclass(frozen=True, slots=True)
class LakeExpiry:
    """Segments that were deleted from a lake, or would be.

    :param act: SHA-256 of the first act that deleted segments, or "".
    :param verdicts: one for each segment of which the lake had rows.
    :param removed: files of earlier acts that were finally removed.
    :param acts: SHA-256 of every act: each group of thinned segments has an act of its own.
    """

    location: str
    dry_run: bool
    act: str
    verdicts: tuple[ExpiryVerdict, ...]
    removed: tuple[StoredFile, ...]
    acts: tuple[str, ...] = ()

    @property
    def leaving(self) -> tuple[ExpiryVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.leaves)

    @property
    def thinned(self) -> tuple[ExpiryVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.is_thinned)

    @property
    def text(self) -> str:
        """Return the changes as a sentence, or "" without changes."""
        parts = []
        for verb, count, noun, size_bytes in (
            ("expired", len(self.leaving), "segment", sum(row.segment.size_bytes for row in self.leaving)),
            ("lost expired topics", len(self.thinned), "segment", sum(r.gone_bytes for r in self.thinned)),
            ("left the trash", len(self.removed), "file", sum(file.size_bytes for file in self.removed)),
        ):
            if count:
                would = "would have " if self.dry_run else ""
                parts.append(f"{count_text(count, noun)} {would}{verb}, {bytes_text(size_bytes)}")
        return f"by the lake's rules {'; '.join(parts)}" if parts else ""


def maintain_expiry(lake: Lake, journal_url: str | None, *, dry_run: bool = False) -> tuple[str, ...]:
    """Run :func:`expire_lake` as a part of a lake's maintenance, if the lake has acts.

    Afterwards the forecast is kept in the journal, for pages.

    :return: the changes, or why there were none, as sentences.
    """
    try:
        if not read_acts(lake):
            return ()
        expiry = expire_lake(lake, journal_url, dry_run=dry_run)
        if journal_url is not None and not dry_run:
            keep_forecast(journal_url, forecast_lake(lake, journal_url, read_acts(lake), None), clock_ms())
    except StorageEngineError as error:
        return (Text("some segments that the lake's rules no longer keep have not expired: ", error),)
    return (expiry.text,) if expiry.text else ()


@dataclass(frozen=True, slots=True)
class _Look:
    """Data read from a lake and its journal.

    :param elsewhere: the policies of the stores' other lakes, by lake.
    :param kept: ids of stores whose files stay: another lake may have a hold on a part of the store.
    """

    segments: tuple[ExpirySegment, ...]
    rows: Mapping[SegmentIdentity, Receipt]
    stores: Mapping[str, StoreContent]
    elsewhere: tuple[tuple[KeepPolicy, ...], ...]
    kept: frozenset[str]
    fault: tuple[ExpiryReason, str] | None
    rewrite: RewriteRule

    def judge(self, acts: Acts, now_ms: int) -> tuple[ExpiryVerdict, ...]:
        *before, last = policies_of(acts) or (policy_of(acts),)
        policies = (*before, replace(last, holds=(*last.holds, *_holds(self.elsewhere))))
        return judge_segments(
            self.segments, self.stores, policies, now_ms, self.fault, self.rewrite, self.elsewhere
        )


def _holds(elsewhere: Iterable[Sequence[KeepPolicy]]) -> tuple[Hold, ...]:
    return tuple(hold for policies in elsewhere for hold in (NO_POLICY, *policies)[-1].holds)


def expire_lake(
    lake: Lake,
    journal_url: str | None,
    *,
    gone: Sequence[str] = (),
    trash_ms: int = TRASH_MS,
    rewrite: RewriteRule = REWRITE_RULE,
    dry_run: bool = False,
) -> LakeExpiry:
    """Expire segments that a lake's rules no longer keep. The call may be killed at any time and repeated.

    :param journal_url: the stores' journal. Without it, it is unknown which segments stores still have.
    :param gone: names or ids of stores that no longer exist, as a person says.
    :param trash_ms: how long files stay after their segments expired, in milliseconds.
    :param rewrite: rule on which segments are thinned if only some of their topics expired.
    :raises BadInputError: the lake has no store, or several stores, of a name in ``gone``.
    :raises ProofError: a segment that was thinned differs from its proof; it stays as it is.
    :raises StorageEngineError: the journal can't be read, or :func:`finish_acts` failed.
    """
    look_again = partial(_look, lake, journal_url, gone, rewrite)
    look = look_again()
    if dry_run:
        verdicts, _ = _with_earlier_files(lake, look.judge(read_acts(lake), clock_ms()))
        removed = () if look.fault else remove_expired(lake, trash_ms=trash_ms, kept=look.kept, dry_run=True)
        return LakeExpiry(lake.location, dry_run, "", verdicts, removed)
    before = _state(lake)
    finish_acts(lake, kept=_list_staying(look.judge(read_acts(lake), clock_ms())))
    look = look if _state(lake) == before else look_again()
    now_ms = read_trusted_clock(lake)
    verdicts, acts = look.judge(read_acts(lake), now_ms), []

    def decide(recorded: Acts) -> KeepDecision | None:
        nonlocal verdicts
        verdicts, replaced = _with_earlier_files(lake, look.judge(recorded, now_ms))
        leaving = [verdict.segment for verdict in verdicts if verdict.leaves]
        if not leaving:
            return None
        return KeepDecision(
            ActKind.EXPIRE,
            policy=policy_of(recorded).version,
            segments=tuple(segment.identity for segment in leaving),
            files=tuple(segment.file for segment in leaving),
            replaced=replaced,
        )

    if any(verdict.leaves for verdict in verdicts):
        newest = record_act(lake, decide)[-1].sha256
        acts += [newest] if any(verdict.leaves for verdict in verdicts) else []
        finish_acts(lake, kept=_list_staying(verdicts))
    removed = () if look.fault else remove_expired(lake, trash_ms=trash_ms, kept=look.kept)
    # Thinning comes last: it may take hours, and one damaged file ends it.
    thinned, more = _thin(lake, look, look_again, [verdict for verdict in verdicts if verdict.is_thinned])
    verdicts = tuple(row for row in verdicts if not row.is_thinned or row.segment.identity in thinned)
    acts += more
    return LakeExpiry(lake.location, dry_run, acts[0] if acts else "", verdicts, removed, tuple(acts))


_THINNED_TOGETHER, _THINNED_SECONDS = 64, 600
"""Greatest number of segments, and of seconds, of one act that thins segments.

A kill costs no more than the work of one act. New files are committed long before gc would call them old.
"""


def _thin(
    lake: Lake, look: _Look, look_again: Callable[[], _Look], verdicts: Sequence[ExpiryVerdict]
) -> tuple[frozenset[SegmentIdentity], list[str]]:
    """Thin segments in batches, with one act for each batch.

    :param look_again: reads lake and journal again: since ``look`` a hold, rule or plan may have come.
    :return: the segments that were thinned, and the SHA-256 of each act.
    """
    latest = look
    thinned: set[SegmentIdentity] = set()
    acts: list[str] = []
    waiting: list[Thinning] = []
    staying: frozenset[SegmentIdentity] = frozenset()

    def decide(recorded: Acts) -> KeepDecision | None:
        nonlocal staying
        verdicts = latest.judge(recorded, read_trusted_clock(lake))
        staying = _list_staying(verdicts)
        going = {verdict.segment.identity: verdict.gone for verdict in verdicts if verdict.is_thinned}
        batch = tuple(
            row
            for row in waiting
            if going.get(row.segment) == row.streams
            and latest.rows[row.segment].data_file == row.file.location
        )
        thinned.update(row.segment for row in batch)
        if not batch:
            return None
        files = tuple(row.file for row in batch)
        return KeepDecision(ActKind.EXPIRE, policy=policy_of(recorded).version, files=files, thinned=batch)

    def record() -> None:
        nonlocal latest, staying
        latest, before = look_again(), len(thinned)
        recorded = record_act(lake, decide)
        acts.extend([recorded[-1].sha256] if len(thinned) > before else [])
        left_out = [row.kept.location for row in waiting if row.segment not in thinned]
        waiting.clear()
        discard_files(lake.messages(), left_out)
        finish_acts(lake, kept=staying)

    try:
        with report_work("Thinning", sum(row.segment.file.size_bytes for row in verdicts)) as advance:
            begun = time.monotonic()
            for verdict in verdicts:
                waiting.append(thin_segment(lake, look.rows[verdict.segment.identity], verdict.gone))
                advance(verdict.segment.file.size_bytes)
                if len(waiting) >= _THINNED_TOGETHER or time.monotonic() - begun > _THINNED_SECONDS:
                    record()
                    begun = time.monotonic()
            if waiting:
                record()
    finally:
        discard_files(lake.messages(), [row.kept.location for row in waiting if row.segment not in thinned])
    return frozenset(thinned), acts


def _list_staying(verdicts: Iterable[ExpiryVerdict]) -> frozenset[SegmentIdentity]:
    return frozenset(row.segment.identity for row in verdicts if not (row.leaves or row.is_thinned))


def _with_earlier_files(
    lake: Lake, verdicts: Sequence[ExpiryVerdict]
) -> tuple[tuple[ExpiryVerdict, ...], tuple[StoredFile, ...]]:
    """Return the verdicts, and the earlier files that are removed with their segments.

    No file may keep expired rows. A segment therefore waits while an earlier file with the segment's rows
    can't be removed. Such a file also has rows that stay, or is left for gc.
    """
    leaving = {verdict.segment.identity: verdict.segment.file for verdict in verdicts if verdict.leaves}
    has_rows = {verdict.segment.identity for verdict in verdicts}
    earlier = earlier_files(lake, leaving.keys()) if leaving else ()
    waiting: set[StoredFile] = set()
    while more := {
        leaving[segment]
        for stored in earlier
        for segment in stored.segments & leaving.keys()
        if stored.for_gc or (stored.segments & has_rows) - leaving.keys()
    }:
        waiting |= more
        leaving = {segment: file for segment, file in leaving.items() if file not in waiting}
    detail = Text("gc still has to remove another file with its rows: run ", Command("gc", "--delete"))
    return (
        tuple(
            ExpiryVerdict(verdict.segment, ExpiryReason.SHARED, detail)
            if verdict.leaves and verdict.segment.file in waiting
            else verdict
            for verdict in verdicts
        ),
        tuple(stored.file for stored in earlier if not stored.segments.isdisjoint(leaving.keys())),
    )


def _state(lake: Lake) -> tuple[str, ...]:
    """Return each table's metadata location. Every commit changes the location."""
    return tuple(table.metadata_location for table in (lake.segments(), lake.messages()))


def _look(lake: Lake, journal_url: str | None, gone_names: Sequence[str], rewrite: RewriteRule) -> _Look:
    journal = None if journal_url is None else Journal(journal_url)
    reader = None if journal_url is None else JournalReader(journal_url)
    by_receipts = read_store_names(lake)
    gone_ids = {_store_id(name, by_receipts) for name in gone_names}
    records = {} if journal is None else {record.store_id: record for record in journal.all_stores()}
    # A hold also applies by the store's name in the journal, a rule only by that in the newest receipt.
    names = dict(by_receipts)
    for store_id, aliases in by_receipts.items():
        name = records[store_id].name if store_id in records else None
        if name is not None and name not in aliases:
            names[store_id] = (name, *aliases)
    segments: list[ExpirySegment] = []
    rows: dict[SegmentIdentity, Receipt] = {}
    stores: dict[str, StoreContent] = {}
    elsewhere: list[tuple[KeepPolicy, ...]] = []
    stays: set[str] = set()
    for store_id in (store.store_id for store in list_stores(lake)):
        history = receipt_history(lake, store_id)
        counted = {} if reader is None else reader.archived_topics(store_id)
        content = StoreContent(is_gone=True) if store_id in gone_ids else _content(journal_url, store_id)
        segments += _segments(lake, history, names.get(store_id, ()), counted, content)
        rows |= {row.identity: row for row in current(history)}
        try:
            own_heads = None
            if journal is not None and store_id in records:
                own_heads = known_heads(journal, records[store_id])
            check_chain(history, () if own_heads is None else own_heads.of(lake, lake.segments()))
            if journal is not None:
                heads = journalled_heads(journal, store_id)
                elsewhere += (policies_of(acts) for _, acts in acts_elsewhere(heads, [lake]))
        except StorageEngineError as error:
            stores[store_id] = StoreContent(Text("its receipts or other lakes can't be checked: ", error))
            stays.add(store_id)
            continue
        stores[store_id] = content
    stays.update(store_id for store_id in stores if HeldStores(_holds(elsewhere), names).holds_of(store_id))
    holds = held_stores(lake, read_acts(lake))
    stays.update(key for key in stores if holds.holds_of(key, *names[key]) != holds.holds_of(key))
    # Only the journal knows a store's other lakes. Without it, a person has to say that the store is gone.
    stays.update(stores.keys() - records.keys() - gone_ids)
    fault = _fault(lake, journal, records)
    return _Look(tuple(segments), rows, stores, tuple(elsewhere), frozenset(stays), fault, rewrite)


def _store_id(name: str, names: Mapping[str, Sequence[str]]) -> str:
    """Return the id of the store that a name or an id names.

    :raises BadInputError: no store of the lake has this name or id, or several have it.
    """
    called = [store_id for store_id, aliases in names.items() if name in (store_id, *aliases[-1:])]
    if len(called) != 1:
        raise BadInputError(
            f"--store-gone {name}: expected the name or the id of one store of the lake, found "
            f"{', '.join(called) or 'no such store'}. Nothing was changed. Name one by its id: "
            f"{', '.join(names) or 'the lake has none'}."
        )
    return called[0]


def _fault(lake: Lake, journal: Journal | None, store_ids: Iterable[str]) -> tuple[ExpiryReason, str] | None:
    """Return why no segment at all may be deleted from a lake, or None if nothing forbids it."""
    if (original := copy_of(lake.segments())) is not None:
        return ExpiryReason.COPY, f"the lake is a copy of {original}, and nothing is removed from a copy"
    if journal is not None and KnownHeads(acts=journal.lake_acts()).lacks_acts(lake, read_acts(lake)):
        return (
            ExpiryReason.ACTS_LOST,
            "the journal recorded rules or holds that the lake lacks: it was put back from an older copy. "
            "Record them again with lake keep",
        )
    readings = [reading for store_id in store_ids if journal for reading in journal.clock_readings(store_id)]
    if jumped_ms := jumped_forward_ms(read_clock(), readings):
        return (
            ExpiryReason.CLOCK,
            f"this machine's clock was set forward by {duration_text(jumped_ms)} within the last day",
        )
    return None


def _content(journal_url: str | None, store_id: str) -> StoreContent:
    if journal_url is None:
        return StoreContent("there is no journal that knows which segments its store has")
    journal = Journal(journal_url)
    if journal.is_leased(store_id):
        return StoreContent("a run works on its store")
    run = journal.last_planned_run(store_id)
    if run is None or run.plan is None:
        return StoreContent("the journal has no plan of its store")
    if run.state is not RunState.FINISHED:
        return StoreContent(f"the last run of its store, {run.run_key}, has not ended")
    logs = {
        log.log: [(decision.segment.base_offset, decision.segment.end_offset) for decision in log.decisions]
        for log in run.plan.logs
    }
    remembered_logs = kept_logs(journal_url, store_id)
    remembered = None if remembered_logs is None else {log.log for log in remembered_logs}
    return StoreContent(planned_at_ms=run.plan.decided_at_ms, logs=logs, remembered=remembered)


def _segments(
    lake: Lake,
    history: Sequence[Receipt],
    names: tuple[str, ...],
    counted: Mapping[Slot, Sequence[SlotTopic]],
    content: StoreContent,
) -> Iterator[ExpirySegment]:
    messages = lake.messages()
    first_proven = first_proven_ms(history)
    rows = with_rows(current(history))
    newest: dict[Slot, int] = {}
    for row in rows:
        newest[row.log, row.base_offset] = max(row.lineage, newest.get((row.log, row.base_offset), 0))
    entries: dict[str, list[tuple[int, int]]] = {}
    for entry in live_data_files(messages, rows[0].store_id) if rows else ():
        # A file with delete files lacks some of its rows.
        size_bytes = -1 if entry.has_deletes else entry.entry.file_size_in_bytes
        entries.setdefault(entry.location, []).append((size_bytes, entry.entry.record_count))
    row_counts: Counter[str] = Counter()
    for row in rows:
        for file in proven_files(messages, row):
            row_counts[file.location] += row.row_count
    for row in rows:
        (file, *more) = proven_files(messages, row)
        name = relative_name(messages, file.location)
        is_as_archived = row.moved_to is None and not more
        # The journal counts the newest lineage of a segment.
        is_newest = newest[row.log, row.base_offset] == row.lineage
        topics = counted.get((row.log, row.base_offset), ()) if is_newest else ()
        yield ExpirySegment(
            identity=row.identity,
            end_offset=row.end,
            size_bytes=row.size_bytes,
            proven_at_ms=row.proven_at_ms,
            file=replace(file, location=name),
            streams=_streams(
                row,
                names,
                topics,
                first_proven[row.identity],
                is_named=content.is_gone or row.log in content.logs,
            ),
            is_alone=(
                is_as_archived
                and name != file.location
                # Every row in the file is of a segment whose receipt names it.
                and entries.get(file.location) == [(file.size_bytes, row_counts[file.location])]
            ),
        )


def _streams(
    row: Receipt,
    names: tuple[str, ...],
    counted: Sequence[SlotTopic],
    first_proven_at_ms: int,
    *,
    is_named: bool,
) -> tuple[SegmentStream, ...] | None:
    """Return those streams of a segment that the lake still has, or None if they are unknown.

    A receipt of one stream names no topic. Then the topic is the only one that the journal counted in the
    segment, or the only topic of the log.

    :param is_named: the store's last plan names the segment's log, or a person says that the store is gone.
        Without counts, the topics of other logs are unknown.
    """
    broker = find_broker(row.broker)
    if row.streams is not None:
        listed = [stream for stream in json.loads(row.streams) if stream["gone"] is None]
        topics = [(stream["name"], stream["last_ms"], stream["bytes"]) for stream in listed]
    elif row.root is not None and len({topic.topic for topic in counted}) == 1:
        topics = [(counted[0].topic, row.last_store_timestamp_ms, row.size_bytes)]
    elif row.root is not None and is_named and (log_topic := broker.topics.of_log(row.log)) is not None:
        topics = [(log_topic, row.last_store_timestamp_ms, row.size_bytes)]
    elif row.root is not None and broker.rows.sets_times and not row.message_count:
        # A broker that stores all topics in one log names none where it has no message.
        topics = [("", None, row.size_bytes)]
    else:
        return None
    return tuple(
        SegmentStream(
            Stream(row.store_id, names, row.log, topic, broker.topics.is_system(topic)),
            age_begins_ms(
                broker_sets_times=broker.rows.sets_times and topic != "",
                last_ms=last_ms,
                first_proven_at_ms=first_proven_at_ms,
            ),
            size_bytes,
        )
        for topic, last_ms, size_bytes in topics
    )
