"""Where sealed segments end by their own files, which may be before the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store.store import Segment, SegmentId, StoreSnapshot
from storage_engine.retention.store.broker_answers import ask, take_archivable
from storage_engine.same_bytes.own_acts import OwnActs


def _sealed(broker: BrokerStore, snapshot: StoreSnapshot) -> dict[SegmentId, Segment]:
    """Return sealed segments, but for those of logs that are kept out of lakes, whose gaps may be nothing.

    :raises OSError: a file can't be read.
    """
    archivable = take_archivable(broker, snapshot)
    found = {one.id: one for one in archivable.segments}
    for log in snapshot.logs:
        if log.name not in archivable.kept_out:
            found |= {one.id: one for one in log.sealed}
    return found


def own_ends(
    broker: BrokerStore, snapshot: StoreSnapshot, proven: Mapping[SegmentId, int]
) -> dict[SegmentId, int]:
    """Return the ends of sealed segments that end before the next one begins.

    :param proven: ends that receipts of the very same files say: these aren't read.
    :raises StorageEngineError: the broker's package can't tell.
    :raises OSError: a file can't be read.
    """
    if not broker.tells_absences:
        return {}
    known = _sealed(broker, snapshot)
    unread = [one for segment_id, one in known.items() if segment_id not in proven]
    found = ask(snapshot.broker, "tell where segments end", lambda: broker.own_ends(unread))
    ends = {**proven, **found}
    return {one: ends[one] for one in known if one in ends and ends[one] < known[one].end_offset}


def proven_ends(
    snapshot: StoreSnapshot, rows_of: Callable[[SegmentId], Iterable[Receipt]], acts: OwnActs
) -> dict[SegmentId, int]:
    """Return where sealed segments end by receipts of the very same files.

    :param rows_of: returns sound receipts of a segment in its log's lineage.
    """
    return {
        one.id: row.end
        for log in snapshot.logs
        for one in log.sealed
        for row in rows_of(one.id)
        if acts.same_file(one.facts, row.source_facts)
    }
