"""Contents of a lake by topic, from its receipts, or from its journal's counts if a receipt names no topic.

No data file is read. Bytes whose topics are unknown are reported as uncounted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from storage_engine.brokers import find_broker, store_text
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.host import person, this_host
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.tables.rows import Slot, SlotTopic
from storage_engine.lake.acts.act_files import Acts, read_store_names
from storage_engine.lake.acts.unarchived import leaves_out_rows, may_leave_out
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import lake_id_of
from storage_engine.lake.soundness.receipts import current, first_proven_ms, list_stores, receipt_history
from storage_engine.model.keep.acts import Act, KeepDecision, RecordedAct, policies_of, policy_of
from storage_engine.model.keep.expiry_rules import ArchivedStream, KeepForecast, forecast_topics
from storage_engine.model.keep.keep_rules import Scope, Stream, age_begins_ms, matches
from storage_engine.model.proof.receipt import LakeHead, Receipt, with_rows
from storage_engine.retention.proof.proofs import COPIES_ENTER
from storage_engine.retention.store.known_heads import KnownHeads, journalled_heads


def forecast_lake(
    lake: Lake, journal_url: str | None, acts: Acts, price: float | None, decision: KeepDecision | None = None
) -> KeepForecast:
    """Return what will be deleted from a lake, and on which day, if its policy doesn't change.

    :param journal_url: the journal that counted the topics of its segments, if there is one.
    :param price: price of 10⁹ bytes for a month, or None to compute no costs.
    :param decision: a decision to add to the recorded ones, as if it were recorded now.
    :raises LakeUnavailableError: the lake can't be read.
    :raises JournalUnavailableError: the journal can't be read.
    """
    now_ms = clock_ms()
    if decision is not None:
        at_ms = max(now_ms, acts[-1].act.at_ms) if acts else now_ms
        act = Act(len(acts), acts[-1].sha256 if acts else "", "", person(), this_host(), at_ms, decision)
        acts = (*acts, RecordedAct("", act))
    policies = policies_of(acts)
    streams, uncounted_bytes = read_streams(lake, journal_url)
    return KeepForecast(
        lake.location,
        policies[-1].version if policies else "",
        policies[-1].rules if policies else (),
        policies[-1].holds if policies else (),
        forecast_topics(policies, streams, now_ms, price),
        uncounted_bytes,
        policies[-1].archive_rules if policies else (),
    )


def read_streams(lake: Lake, journal_url: str | None) -> tuple[tuple[ArchivedStream, ...], int]:
    """Return a lake's bytes of each topic in each segment.

    :return: the topics' bytes, and the bytes of segments whose topics are unknown.
    """
    reader = None if journal_url is None else JournalReader(journal_url)
    names = read_store_names(lake)
    streams: list[ArchivedStream] = []
    uncounted_bytes = 0
    for store in list_stores(lake):
        counted = {} if reader is None else reader.archived_topics(store.store_id)
        history = receipt_history(lake, store.store_id)
        added = list(_streams(history, names.get(store.store_id, ()), counted))
        streams += added
        uncounted_bytes += sum(map(_kept_bytes, with_rows(current(history))))
        uncounted_bytes -= sum(stream.size_bytes for stream in added)
    return tuple(streams), max(0, uncounted_bytes)


def other_lakes(journal_url: str | None, named: Sequence[str | None]) -> tuple[tuple[str, LakeHead], ...]:
    """Return the other lakes that have segments of a journal's stores, each with one such store's name.

    :param named: UUIDs of the lakes that the caller knows.
    """
    if journal_url is None:
        return ()
    journal = Journal(journal_url)
    heads = {
        (head.lake_id, head.location): (record.name or record.real_path, head)
        for record in journal.all_stores()
        for head in journalled_heads(journal, record.store_id)
        if head.lake_id not in named
    }
    return tuple(heads.values())


def check_archive_rule(lake: Lake, scope: Scope) -> None:
    """Make sure that a rule may keep messages out of a lake.

    :raises BadInputError: the rule names a topic of the broker's own, or the broker separates no topics.
    """
    broker = find_broker(lake.broker) if lake.broker else None
    if broker is not None and not may_leave_out(broker.name):
        raise BadInputError(
            "archive: expected a lake of a broker that separates topics by rows or by logs, found a lake of "
            f"{broker.words.title}: its logs are archived whole. Nothing was changed. Leave the rule out."
        )
    if broker is not None and broker.topics.is_system(scope.topic):
        raise BadInputError(
            f"archive: expected a topic that people write to, found {scope.topic!r}, a topic of the "
            "broker's own: it is always archived. Nothing was changed. Leave the rule out."
        )


def record_archive_rules(lake: Lake, journal_url: str | None, acts: Acts, scope: Scope) -> tuple[str, ...]:
    """Record an archive rule durably in the journal, for each store that its patterns name.

    The call may be killed at any instant and repeated: a rule that is already recorded keeps its time.

    :return: notes on when the rule takes effect, or why no journal has it.
    :raises JournalUnavailableError: the journal can't be written.
    """
    (rule,) = (rule for rule in policy_of(acts).archive_rules if rule.scope == scope)
    if rule.archives:
        return ()
    if journal_url is None:
        return (f"{lake.location} has the rule, but no journal has it: run this again with --journal URL",)
    journal, recorded = Journal(journal_url), False
    for store in journal.all_stores():
        names = (store.store_id, store_text(store.name, store.broker, store.real_path))
        if lake.broker in ("", store.broker) and any(matches(scope.store, name) for name in names):
            journal.record_archive_rule(store.store_id, rule.rule_id, person())
            recorded = True
    if recorded:
        copies = (COPIES_ENTER,) if lake.broker and leaves_out_rows(lake.broker) else ()
        return (
            "the rule counts for the stores of this journal 24 hours after it was first recorded there",
            *copies,
        )
    return (f"{journal.name} has no store that the rule names: run this again when it has one",)


def record_newest_act(lake: Lake, journal_url: str | None, acts: Acts) -> tuple[str, ...]:
    """Record in a journal the newest act of a lake.

    If the lake lacks that act later, the lake was put back from an older copy.

    :return: a note if the lake lacks acts that were recorded before.
    :raises JournalUnavailableError: the journal can't be written.
    """
    lake_id = lake_id_of(lake.segments())
    if journal_url is None or lake_id is None or not acts:
        return ()
    journal = Journal(journal_url)
    lacks = KnownHeads(acts=journal.lake_acts()).lacks_acts(lake, acts)
    journal.record_lake_act(lake_id, acts[-1].sha256)
    note = (
        f"{lake.location} lacks rules or holds that {journal.name} had recorded: the lake was put back from "
        "an older copy. From now on only the lake's present rules and holds count: lake keep --dry-run shows "
        "them. Record the missing ones again"
    )
    return (note,) if lacks else ()


def _streams(
    history: Sequence[Receipt], names: tuple[str, ...], counted: Mapping[Slot, Sequence[SlotTopic]]
) -> Iterator[ArchivedStream]:
    first_proven = first_proven_ms(history)
    rows = with_rows(current(history))
    # Segments that share a data file share its bytes in proportion to their own.
    in_file: Counter[str] = Counter()
    for row in rows:
        in_file[row.data_file] += _kept_bytes(row)
    # The journal counts the newest lineage of a segment.
    newest = {(row.log, row.base_offset): row for row in sorted(rows, key=lambda row: row.lineage)}
    for slot, row in newest.items():
        broker = find_broker(row.broker)
        topics = list(_topics_of(row, counted.get(slot, ())))
        for topic, size_bytes, last_ms in topics:
            newest_ms = age_begins_ms(
                broker_sets_times=broker.rows.sets_times and topic != "",
                last_ms=last_ms,
                first_proven_at_ms=first_proven[row.identity],
            )
            if not topic and len(topics) > 1:
                # Bytes without a topic expire with the segment's last topic.
                newest_ms = None
            yield ArchivedStream(
                Stream(row.store_id, names, row.log, topic, broker.topics.is_system(topic)),
                size_bytes,
                row.data_file_bytes * size_bytes // max(1, in_file[row.data_file]),
                newest_ms,
            )


def _kept_bytes(row: Receipt) -> int:
    return row.size_bytes - sum(int(stream["bytes"]) for stream in row.gone_streams.values())


def _topics_of(row: Receipt, counted: Sequence[SlotTopic]) -> Iterator[tuple[str, int, int | None]]:
    """Yield a segment's topics, each with its bytes and its newest message's time in ms, or None if unknown.

    If the receipt names streams, they are the topics. A receipt of an older lake or of one stream names none:
    then the topics are those that the journal counted. Without counts, the topic is the log's only topic.
    """
    if row.streams is None:
        for topic in counted:
            yield topic.topic, topic.size_bytes, (topic.newest_day + 1) * DAY_MS - 1
        log_topic = find_broker(row.broker).topics.of_log(row.log)
        if not counted and row.root is not None and log_topic is not None:
            yield log_topic, row.size_bytes, row.last_store_timestamp_ms
        return
    for stream in json.loads(row.streams):
        if stream["gone"] is None:
            yield stream["name"], stream["bytes"], stream["last_ms"]
