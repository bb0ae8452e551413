"""What leaves a lake by its rules: decided by its receipts and its stores' journal, and then done.

A journal's last plan says what a store still has. No data file is read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from storage_engine.brokers import find_broker
from storage_engine.core.clock import clock_ms, jumped_forward_ms, read_clock
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.journal.journal import Journal, RunState
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.topic_days import Slot, SlotTopic
from storage_engine.lake.acts.act_files import Acts, read_acts, read_trusted_clock, record_act
from storage_engine.lake.acts.held_stores import HeldStores, read_store_names
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import copy_of
from storage_engine.lake.catalog.names import proven_files, relative_name
from storage_engine.lake.file.live_files import live_data_files
from storage_engine.lake.gc.expiry import finish_acts, remove_expired
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipt_history
from storage_engine.model.keep.acts import ActKind, KeepDecision, policies_of, policy_of
from storage_engine.model.keep.expiry import (
    ExpiryReason,
    ExpirySegment,
    ExpiryVerdict,
    SegmentStream,
    StoreContent,
    judge_segments,
)
from storage_engine.model.keep.keep_policy import age_begins_ms
from storage_engine.model.keep.rules import Hold, Stream
from storage_engine.model.proof.receipt import Receipt, StoredFile, whole
from storage_engine.retention.housekeeping.keeping import forecast_lake
from storage_engine.retention.housekeeping.kept_forecasts import keep_forecast
from storage_engine.retention.ranges.seen_log_records import kept_logs
from storage_engine.retention.store.known_heads import holds_elsewhere, known_heads


@dataclass(frozen=True, slots=True)
class LakeExpiry:
    """What left a lake, or would.

    :param act: SHA-256 of the act by which it did; "": nothing did.
    :param verdicts: on each segment that the lake had whole.
    :param removed: files of earlier acts that went for good.
    """

    location: str
    dry_run: bool
    act: str
    verdicts: tuple[ExpiryVerdict, ...]
    removed: tuple[StoredFile, ...]

    @property
    def leaving(self) -> tuple[ExpiryVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.leaves)

    @property
    def text(self) -> str:
        """Return what was done, as a sentence; "": nothing was."""
        parts = []
        for verb, count, noun, size_bytes in (
            ("left", len(self.leaving), "segment", sum(it.segment.size_bytes for it in self.leaving)),
            ("went for good", len(self.removed), "file", sum(it.size_bytes for it in self.removed)),
        ):
            if count:
                would = "would have " if self.dry_run else ""
                parts.append(f"{count_text(count, noun)} {would}{verb}, {bytes_text(size_bytes)}")
        return f"by the lake's rules {'; '.join(parts)}" if parts else ""


def maintain_expiry(lake: Lake, journal_url: str | None, *, dry_run: bool = False) -> tuple[str, ...]:
    """Do what :func:`expire_lake` does where a lake has acts, as a part of its maintenance; then keep in the
    journal, for pages, what goes when.

    :return: what was done, or why nothing was, as sentences.
    """
    try:
        if not read_acts(lake):
            return ()
        done = expire_lake(lake, journal_url, dry_run=dry_run)
        if journal_url is not None and not dry_run:
            keep_forecast(journal_url, forecast_lake(lake, journal_url, read_acts(lake), None), clock_ms())
    except StorageEngineError as error:
        return (f"nothing expired by the lake's rules: {error}",)
    return (done.text,) if done.text else ()


@dataclass(frozen=True, slots=True)
class _Look:
    """What was read of a lake and its journal.

    :param holds: of the stores' other lakes.
    :param kept: ids of stores of which these hold something, or of which not all is known.
    """

    segments: tuple[ExpirySegment, ...]
    stores: Mapping[str, StoreContent]
    holds: tuple[Hold, ...]
    kept: frozenset[str]
    fault: tuple[ExpiryReason, str] | None

    def judge(self, acts: Acts, now_ms: int) -> tuple[ExpiryVerdict, ...]:
        *before, last = policies_of(acts) or (policy_of(acts),)
        policies = (*before, replace(last, holds=(*last.holds, *self.holds)))
        return judge_segments(self.segments, self.stores, policies, now_ms, self.fault)


def expire_lake(
    lake: Lake,
    journal_url: str | None,
    *,
    gone: Sequence[str] = (),
    trash_ms: int = TRASH_MS,
    dry_run: bool = False,
) -> LakeExpiry:
    """Expire what a lake's rules no longer keep. It may be killed at any instant and run again.

    :param journal_url: of the lake's stores; None: there is none, so that nobody knows what they have.
    :param gone: names or ids of stores of which a person says that they are gone.
    :param trash_ms: how long files stay after they left, in milliseconds.
    :raises BadInputError: the lake has no such store.
    :raises StorageEngineError: as :func:`finish_acts` does; or the journal can't be read.
    """
    if not dry_run:
        finish_acts(lake)
    look = _look(lake, journal_url, gone)
    if dry_run:
        verdicts = look.judge(read_acts(lake), clock_ms())
        removed = () if look.fault else remove_expired(lake, trash_ms=trash_ms, kept=look.kept, dry_run=True)
        return LakeExpiry(lake.location, dry_run, "", verdicts, removed)
    now_ms = read_trusted_clock(lake)
    verdicts, act = look.judge(read_acts(lake), now_ms), ""

    def decide(acts: Acts) -> KeepDecision | None:
        nonlocal verdicts
        verdicts = look.judge(acts, now_ms)
        leaving = [verdict.segment for verdict in verdicts if verdict.leaves]
        if not leaving:
            return None
        return KeepDecision(
            ActKind.EXPIRE,
            policy=policy_of(acts).version,
            segments=tuple(segment.identity for segment in leaving),
            files=tuple(segment.file for segment in leaving),
        )

    if any(verdict.leaves for verdict in verdicts):
        act = record_act(lake, decide)[-1].sha256
        finish_acts(lake)
    removed = () if look.fault else remove_expired(lake, trash_ms=trash_ms, kept=look.kept)
    left = any(verdict.leaves for verdict in verdicts)
    return LakeExpiry(lake.location, dry_run, act if left else "", verdicts, removed)


def _look(lake: Lake, journal_url: str | None, gone: Sequence[str]) -> _Look:
    journal = None if journal_url is None else Journal(journal_url)
    reader = None if journal_url is None else JournalReader(journal_url)
    names = read_store_names(lake)
    gone_ids = {_store_id(name, names) for name in gone}
    records = {} if journal is None else {record.store_id: record for record in journal.all_stores()}
    segments: list[ExpirySegment] = []
    stores: dict[str, StoreContent] = {}
    holds: list[Hold] = []
    kept: set[str] = set()
    for store_id in (store.store_id for store in list_stores(lake)):
        history = receipt_history(lake, store_id)
        counted = {} if reader is None else reader.archived_topics(store_id)
        segments += _segments(lake, history, names.get(store_id, ()), counted)
        try:
            known = None
            if journal is not None and store_id in records:
                known = known_heads(journal, records[store_id])
            check_chain(history, () if known is None else known.of(lake, lake.segments()))
            if journal is not None:
                holds += (hold for _, hold in holds_elsewhere(journal, store_id, [lake]))
        except StorageEngineError as error:
            stores[store_id] = StoreContent(f"not all is known of it: {error}")
            kept.add(store_id)
            continue
        stores[store_id] = (
            StoreContent(is_gone=True) if store_id in gone_ids else _content(journal_url, store_id)
        )
    kept.update(store_id for store_id in stores if HeldStores(tuple(holds), names).holds_of(store_id))
    return _Look(tuple(segments), stores, tuple(holds), frozenset(kept), _fault(lake, journal, records))


def _store_id(name: str, names: Mapping[str, Sequence[str]]) -> str:
    """
    :raises BadInputError: no store of the lake, or several, are called so.
    """
    called = [store_id for store_id, of_store in names.items() if name in (store_id, *of_store[-1:])]
    if len(called) != 1:
        raise BadInputError(
            f"--store-gone {name}: expected the name or the id of one store of the lake, found "
            f"{', '.join(called) or 'no such store'}. Nothing was changed. Name one by its id: "
            f"{', '.join(names) or 'the lake has none'}."
        )
    return called[0]


def _fault(lake: Lake, journal: Journal | None, store_ids: Iterable[str]) -> tuple[ExpiryReason, str] | None:
    """Return why nothing at all leaves a lake."""
    if (original := copy_of(lake.segments())) is not None:
        return ExpiryReason.COPY, f"the lake is a copy of {original}, from which nothing is removed"
    readings = [it for store_id in store_ids if journal for it in journal.clock_readings(store_id)]
    if jumped_ms := jumped_forward_ms(read_clock(), readings):
        return (
            ExpiryReason.CLOCK,
            f"this machine's clock was set forward by {duration_text(jumped_ms)} within the last day",
        )
    return None


def _content(journal_url: str | None, store_id: str) -> StoreContent:
    if journal_url is None:
        return StoreContent("there is no journal that says what its store has")
    journal = Journal(journal_url)
    if journal.is_leased(store_id):
        return StoreContent("a run works on its store")
    run = journal.last_planned_run(store_id)
    if run is None or run.plan is None:
        return StoreContent("the journal has no plan of its store")
    if run.state is not RunState.FINISHED:
        return StoreContent(f"the last run of its store, {run.run_key}, has not ended")
    logs = {
        log.log: [(it.segment.base_offset, it.segment.end_offset) for it in log.decisions]
        for log in run.plan.logs
    }
    kept = kept_logs(journal_url, store_id)
    remembered = None if kept is None else {log.log for log in kept}
    return StoreContent(planned_at_ms=run.plan.decided_at_ms, logs=logs, remembered=remembered)


def _segments(
    lake: Lake,
    history: Sequence[Receipt],
    names: tuple[str, ...],
    counted: Mapping[Slot, Sequence[SlotTopic]],
) -> Iterator[ExpirySegment]:
    """Yield what a lake has of a store, by the receipts that count."""
    messages = lake.messages()
    first_proven = first_proven_ms(history)
    rows = whole(current(history))
    newest: dict[Slot, int] = {}
    for row in rows:
        newest[row.log, row.base_offset] = max(row.lineage, newest.get((row.log, row.base_offset), 0))
    entries: dict[str, list[int]] = {}
    live = live_data_files(messages, rows[0].store_id) if rows else ()
    for entry in live:
        # With delete files it has not all of its rows.
        entries.setdefault(entry.location, []).append(
            -1 if entry.has_deletes else entry.entry.file_size_in_bytes
        )
    sharing = Counter(file.location for row in rows for file in proven_files(messages, row))
    for row in rows:
        (file, *more) = proven_files(messages, row)
        name = relative_name(messages, file.location)
        is_as_archived = row.moved_to is None and row.row_groups is None and not more
        # The journal counts the newest lineage of a segment.
        is_newest = newest[row.log, row.base_offset] == row.lineage
        topics = counted.get((row.log, row.base_offset), ()) if is_newest else ()
        yield ExpirySegment(
            identity=row.identity,
            end_offset=row.end,
            size_bytes=row.size_bytes,
            proven_at_ms=row.proven_at_ms,
            file=replace(file, location=name),
            streams=_streams(row, names, topics, first_proven[row.identity]),
            is_alone=(
                is_as_archived
                and name != file.location
                and sharing[file.location] == 1
                and entries.get(file.location) == [file.size_bytes]
            ),
        )


def _streams(
    row: Receipt, names: tuple[str, ...], counted: Sequence[SlotTopic], first_proven_at_ms: int
) -> tuple[SegmentStream, ...] | None:
    """Return the streams of a segment; None: nobody knows them.

    A receipt of a single stream doesn't name it: then the topic is the only one that the journal counted.
    """
    broker = find_broker(row.broker)
    if row.streams is not None:
        topics = [(it["name"], it["last_ms"]) for it in json.loads(row.streams)]
    elif row.root is not None and len({it.topic for it in counted}) == 1:
        topics = [(counted[0].topic, row.last_store_timestamp_ms)]
    elif row.root is not None and broker.sets_times and not row.message_count:
        # A broker that stores all topics in one log names none where it has no message.
        topics = [("", None)]
    else:
        return None
    return tuple(
        SegmentStream(
            Stream(row.store_id, names, row.log, topic, broker.is_system_topic(topic)),
            age_begins_ms(
                broker_sets_times=broker.sets_times and topic != "",
                last_ms=last_ms,
                first_proven_at_ms=first_proven_at_ms,
            ),
        )
        for topic, last_ms in topics
    )
