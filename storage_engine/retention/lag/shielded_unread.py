"""What consumers have not read of the segments that somebody else has deleted and only the shield has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage_engine.core.wording import count_text, reason_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.lag.lag import Unread, UnreadMessages
from storage_engine.model.store.store import Segment, SegmentState, StoreSnapshot
from storage_engine.retention.store.broker_answers import package_errors
from storage_engine.shield.seen import look_at_shield


@dataclass(frozen=True, slots=True)
class ShieldedUnread:
    """
    :param rows: most messages first.
    :param error: why it isn't known, or not wholly; "" where it is.
    :param notices: what a person should know of the groups' positions.
    """

    rows: tuple[UnreadMessages, ...] = ()
    error: str = ""
    notices: tuple[str, ...] = ()


def find_shielded_unread(broker: BrokerStore, snapshot: StoreSnapshot) -> ShieldedUnread:
    """Find it, by the consume queues as far as these have entries still. Reads only."""
    found: list[Unread] = []
    logs = {log.name: log for log in snapshot.logs}
    try:
        for run in shielded_runs(snapshot):
            log = run[-1].log
            before = replace(snapshot, logs=(replace(logs[log], segments=run),))
            with package_errors(snapshot.broker, "tell what consumers have not read"):
                found.append(broker.unread(before, {log: run[-1].end_offset}, deleted=True))
    except (StorageEngineError, OSError) as error:
        return ShieldedUnread(error=reason_text(error))
    return shielded_unread(found)


def shielded_unread(found: Iterable[Unread]) -> ShieldedUnread:
    """Sum up what was found in each run of segments."""
    parts = tuple(found)
    rows: dict[tuple[str, str], UnreadMessages] = {}
    for row in (row for part in parts for row in part.rows):
        known = rows.get((row.group, row.topic))
        rows[row.group, row.topic] = row if known is None else _together(known, row)
    return ShieldedUnread(
        tuple(sorted(rows.values(), key=lambda row: (-(row.messages or 0), row.group, row.topic))),
        "; ".join(dict.fromkeys(part.error for part in parts if part.error)),
        tuple(dict.fromkeys(notice for part in parts for notice in part.notices)),
    )


def _together(left: UnreadMessages, right: UnreadMessages) -> UnreadMessages:
    times = [row.from_ms for row in (left, right) if row.from_ms is not None]
    return replace(
        left,
        messages=(left.messages or 0) + (right.messages or 0) or None,
        queues=max(left.queues, right.queues),
        from_ms=min(times, default=None),
    )


def shielded_runs(snapshot: StoreSnapshot) -> tuple[tuple[Segment, ...], ...]:
    """Return the segments below a log's beginning that only the shield has, in runs of one log without a gap.

    :raises ShieldError: what it keeps is unknown.
    """
    begin = {log.name: log.min_offset for log in snapshot.logs}
    runs: list[list[Segment]] = []
    for seen in look_at_shield(snapshot.root).gone:
        link = seen.link
        segment = Segment(link.log, link.base_offset, seen.facts, SegmentState.SEALED, link.mtime_ns)
        last = runs[-1][-1] if runs and runs[-1][-1].log == link.log else None
        end_offset = last.end_offset if last else 0
        # A link of the same offsets is of another lineage.
        if segment.end_offset > begin.get(link.log, 0) or link.base_offset < end_offset:
            continue
        if last and link.base_offset == end_offset:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return tuple(map(tuple, runs))


def shielded_text(row: UnreadMessages) -> str:
    """Say where a group's unread messages are."""
    verb = "is" if row.messages in (None, 1) else "are"
    return f"{unread_text(row)} {verb} gone from the broker and only in the shield"


def error_text(error: str) -> str:
    """Say that it isn't known what consumers have not read."""
    return f"what consumers have not read of what only the shield has is not wholly known: {error}"


def unread_text(row: UnreadMessages) -> str:
    """Name a group's unread messages of a topic."""
    if row.messages is None:
        return (
            f"group {row.group} has no known position in {count_text(row.queues, 'queue')} of {row.topic}: "
            "what it may need of them"
        )
    return f"{count_text(row.messages, 'unread message')} of {row.group} in {row.topic}"
