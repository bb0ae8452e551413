"""Consumers' losses by a deletion, computed with the plan and again right before segments are deleted.

Segments that others have deleted, and that only the shield has, are examined as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from storage_engine.core.wording import count_text, reason_text, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.config import CATALOG_FILE, DESCRIPTION, LakeConfig
from storage_engine.model.broker.broker_store import BrokerStore, consumers_of
from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.store import Segment, SegmentState, StoreSnapshot
from storage_engine.retention.store.broker_answers import package_errors
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield

if TYPE_CHECKING:
    from storage_engine.retention.store.context import AnyStore


@dataclass(frozen=True, slots=True)
class ShieldedUnread:
    """Unread messages of consumer groups, in segments that only the shield still has.

    :param rows: sorted by the number of messages, the most first.
    :param error: why the messages are not known completely, or "" if they are.
    :param notices: notices about the groups' positions for a person.
    """

    rows: tuple[UnreadMessages, ...] = ()
    error: str = ""
    notices: tuple[str, ...] = ()


def find_shielded_unread(broker: BrokerStore, snapshot: StoreSnapshot) -> ShieldedUnread:
    """Find unread messages that only the shield has, by the consume queues' present entries. Reads only."""
    losses: list[Unread] = []
    logs = {log.name: log for log in snapshot.logs}
    try:
        for run in shielded_runs(snapshot):
            log = run[-1].log
            before = replace(snapshot, logs=(replace(logs[log], segments=run),))
            with package_errors(snapshot.broker, "say which messages consumers have not read"):
                losses.append(consumers_of(broker).unread(before, {log: run[-1].end_offset}, deleted=True))
    except (StorageEngineError, OSError) as error:
        return ShieldedUnread(error=reason_text(error))
    return shielded_unread(losses)


def shielded_unread(losses: Iterable[Unread]) -> ShieldedUnread:
    """Sum up consumers' losses in several runs of consecutive segments."""
    parts = tuple(losses)
    return ShieldedUnread(
        tuple(_merge_rows((row for part in parts for row in part.rows), _combine_rows)),
        "; ".join(dict.fromkeys(part.error for part in parts if part.error)),
        tuple(dict.fromkeys(notice for part in parts for notice in part.notices)),
    )


def _merge_rows(
    rows: Iterable[UnreadMessages], merge: Callable[[UnreadMessages, UnreadMessages], UnreadMessages]
) -> list[UnreadMessages]:
    """Merge the rows of each group and topic, and sort them by messages, the most first."""
    merged: dict[tuple[str, str], UnreadMessages] = {}
    for row in rows:
        earlier = merged.get((row.group, row.topic))
        merged[row.group, row.topic] = row if earlier is None else merge(earlier, row)
    return sorted(merged.values(), key=lambda row: (-(row.messages or 0), row.group, row.topic))


def _combine_rows(left: UnreadMessages, right: UnreadMessages) -> UnreadMessages:
    times = [row.from_ms for row in (left, right) if row.from_ms is not None]
    return replace(
        left,
        messages=(left.messages or 0) + (right.messages or 0) or None,
        queues=max(left.queues, right.queues),
        from_ms=min(times, default=None),
    )


def shielded_runs(snapshot: StoreSnapshot) -> tuple[tuple[Segment, ...], ...]:
    """Return the segments below their log's start, which only the shield has, in groups.

    The segments of a group are consecutive segments of one log.

    :raises ShieldError: the shield's content is unknown.
    """
    begin = {log.name: log.min_offset for log in snapshot.logs}
    runs: list[list[Segment]] = []
    for file in look_at_shield(snapshot.root).gone:
        link = file.link
        segment = Segment(link.log, link.base_offset, file.facts, SegmentState.SEALED, link.mtime_ns)
        last = runs[-1][-1] if runs and runs[-1][-1].log == link.log else None
        end_offset = last.end_offset if last else 0
        # A link with the same offsets as an earlier one is from another lineage.
        if segment.end_offset > begin.get(link.log, 0) or link.base_offset < end_offset:
            continue
        if last and link.base_offset == end_offset:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return tuple(map(tuple, runs))


def shielded_text(row: UnreadMessages) -> str:
    """Return the text on a group's unread messages that only the shield has."""
    verb = "is" if row.messages in (None, 1) else "are"
    return f"{unread_text(row)} {verb} gone from the broker and only in the shield"


def error_text(error: str) -> str:
    """Return the text on the error that hides some or all of the shield's unread messages."""
    return f"consumers' unread messages that only the shield has are not completely known: {error}"


def unread_text(row: UnreadMessages) -> str:
    """Describe a group's unread messages of a topic."""
    if row.messages is None:
        return (
            f"group {row.group} has no known position in {count_text(row.queues, 'queue')} of {row.topic}: "
            "any message of them that it needs"
        )
    return f"{count_text(row.messages, 'unread message')} of {row.group} in {row.topic}"


ROWS_KEPT = 100
ROWS_SHOWN = 10


def find_unread(
    broker: BrokerStore, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int], lag_policy: LagPolicy
) -> Unread:
    """Compute consumers' losses if logs begin at other offsets. A loss that can't be computed is unknown.

    Earlier losses of messages that only the shield has are included. Nothing is read if the policy ignores
    consumers, or if no message is deleted and the log has all messages that the shield has.

    :param new_min_offsets: name of a log → where it will begin. Other logs stay as they are.
    """
    if lag_policy is LagPolicy.IGNORE:
        return Unread()
    shielded = find_shielded_unread(broker, snapshot)
    unread = Unread()
    begin = {log.name: log.min_offset for log in snapshot.logs}
    if any(offset > begin.get(log, -1) for log, offset in new_min_offsets.items()):
        try:
            unread = consumers_of(broker).unread(snapshot, new_min_offsets)
        except (StorageEngineError, OSError) as error:
            unread = Unread(error=reason_text(error))
    return replace(
        unread,
        rows=unread.rows[:ROWS_KEPT],
        more=max(len(unread.rows) - ROWS_KEPT, 0),
        notices=tuple(dict.fromkeys((*unread.notices, *shielded.notices))),
        shielded=shielded.rows[:ROWS_KEPT],
        shielded_error=shielded.error,
    )


def find_unread_by_log(
    broker: BrokerStore, snapshot: StoreSnapshot, new_min_offsets: Mapping[str, int]
) -> Mapping[str, Unread]:
    """Compute consumers' losses in each log by itself. A loss that can't be computed is unknown.

    :param new_min_offsets: name of a log → where it will begin.
    """
    try:
        return consumers_of(broker).unread_by_log(snapshot, new_min_offsets)
    except (StorageEngineError, OSError) as error:
        return dict.fromkeys(new_min_offsets, Unread(error=reason_text(error)))


def join_losses(first: Unread, second: Unread) -> Unread:
    """Add up consumers' losses in two sets of logs, which have no queue in common."""
    most_first = _merge_rows((*first.rows, *second.rows), _add_rows)
    return replace(
        second,
        rows=tuple(most_first[:ROWS_KEPT]),
        more=first.more + second.more + max(len(most_first) - ROWS_KEPT, 0),
        error="; ".join(error for error in (first.error, second.error) if error),
        notices=tuple(dict.fromkeys((*first.notices, *second.notices))),
        logs=None if first.logs is None or second.logs is None else (*first.logs, *second.logs),
    )


def _add_rows(left: UnreadMessages, right: UnreadMessages) -> UnreadMessages:
    counts = [row.messages for row in (left, right) if row.messages is not None]
    times = [row.from_ms for row in (left, right) if row.from_ms is not None]
    return replace(
        left,
        messages=sum(counts) if counts else None,
        queues=left.queues + right.queues,
        from_ms=min(times) if len(times) == 2 else None,
    )


def unread_lines(place: AnyStore, unread: Unread, *, done: bool, waived: bool = False) -> tuple[str, ...]:
    """Return a line for each group and topic with consumers' losses, with the command to export messages.

    :param place: the store. If it is open, its own journal is asked.
    :param done: the segments are already deleted.
    :param waived: segments are deleted without receipts.
    """
    return tuple(_loss_lines(place, unread, done=done, waived=waived))


def _loss_lines(place: AnyStore, unread: Unread, *, done: bool, waived: bool) -> Iterator[str]:
    store = place if isinstance(place, ManagedStore) else place.store
    in_lake = store.archives and not waived
    unarchived = _unarchived_topics(place, store, unread.rows[:ROWS_SHOWN]) if in_lake else frozenset()
    if unread.error:
        segments = "deleted segments" if done else "segments to delete"
        yield f"it is unknown which messages of the {segments} consumers have not read: {unread.error}"
    for row in unread.rows[:ROWS_SHOWN]:
        archived = in_lake and row.topic not in unarchived
        remedy = f"; to get them: {_command(store, row)}" if archived else ""
        yield f"{unread_text(row)} {_loss_text(row, done=done, archived=archived)}{remedy}"
    if more := len(unread.rows[ROWS_SHOWN:]) + unread.more:
        named = f"the first {len(unread.rows)}" if unread.more else "all"
        yield f"the same holds for {count_text(more, 'more group and topic')}; report.json names {named}"
    if unread.shielded_error:
        yield error_text(unread.shielded_error)
    for row in unread.shielded[:ROWS_SHOWN]:
        remedy = f" until a lake has them. To get them then: {_command(store, row)}" if store.archives else ""
        yield f"{shielded_text(row)}{remedy}"
    if more := len(unread.shielded[ROWS_SHOWN:]):
        yield f"the same holds for at least {count_text(more, 'more group and topic')} that report.json names"


def _unarchived_topics(
    place: AnyStore, store: ManagedStore, rows: Sequence[UnreadMessages]
) -> frozenset[str]:
    """Return the topics whose messages a rule permits to delete without a copy."""
    if not rows or not store.may_have_journal:
        return frozenset()
    from storage_engine.retention.proof.proofs import look_up_permits

    permits = look_up_permits(place)
    return frozenset(row.topic for row in rows if permits.may_lack(row.topic))


def _loss_text(row: UnreadMessages, *, done: bool, archived: bool) -> str:
    verb = "is" if row.messages in (None, 1) else "are"
    if archived:
        return f"{verb} only in the lake now" if done else "would be only in the lake if deleted"
    return f"{verb if done else 'would be'} gone{'' if done else ' if deleted'}, unless a lake has them"


def _command(store: ManagedStore, row: UnreadMessages) -> str:
    words = ["storage-engine", "export", "--lake", lake_directory(store.lake), "--topic", row.topic]
    if row.from_ms is not None:
        words += ["--from-time", time_text(row.from_ms)]
    return shlex.join([*words, "--to", "unread.parquet"])


def lake_directory(lake: LakeConfig) -> str:
    """Return a lake's value of ``--lake``, or "LAKE" if no directory of this machine is known as the lake."""
    warehouse = urlsplit(lake.properties.get("warehouse", ""))
    root = Path(unquote(warehouse.path)).parent
    files = [root / name for name in (CATALOG_FILE, DESCRIPTION) if warehouse.scheme in ("", "file")]
    return str(root) if any(file.exists() for file in files) else "LAKE"


def has_loss(unread: Unread) -> bool:
    """Return whether consumers lose messages, or may lose some."""
    return bool(unread.rows or unread.error)


def loss_count(rows: Sequence[UnreadMessages]) -> int:
    """Return the number of lost messages, as far as it is known."""
    return sum(row.messages or 0 for row in rows)
