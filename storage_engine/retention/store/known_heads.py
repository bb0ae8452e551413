"""The last known receipts of a store's lakes, from the journal and the store's stamp.

If a lake lacks them, it was put back from an older copy, or another lake is in its place. A write would then
fork the chain of receipts, and the lake's proofs would be incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from storage_engine.commands import Command
from storage_engine.core.clock import jumped_forward_ms, read_clock
from storage_engine.core.jsonable import from_jsonable
from storage_engine.exceptions import (
    LakeIdentityError,
    LakeUnavailableError,
    ReceiptError,
    StorageEngineError,
)
from storage_engine.journal.journal import Journal, Step, StoreRecord
from storage_engine.lake.acts.act_files import Acts, read_acts_at
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.identity import ancestors_of, lake_id_of, mark_location, parse_mark
from storage_engine.lake.soundness.chain import check_links
from storage_engine.lake.storage.small_files import read_small_file
from storage_engine.model.keep.acts import policy_of
from storage_engine.model.keep.keep_rules import Hold
from storage_engine.model.proof.receipt import EMPTY_CHAIN, ChainHead, LakeHead
from storage_engine.retention.store.stamp import read_stamp

RESET = "reset"
"""Field of a stamp event: a person said that earlier knowledge of the lakes no longer counts."""


@dataclass(frozen=True, slots=True)
class KnownHeads:
    """The last known receipts of each lake.

    :param heads: last receipts in journal and stamp; ``lake_id`` is "" if an older version recorded no id.
    :param journalled: ids of the lakes that the journal knows, or locations of lakes without an id.
    :param archive_rules: rules that keep messages out of the lakes: SHA-256 of a rule's act → when the
        journal recorded the act, in ms. Empty if the clock was set forward, because then no age is certain.
    :param acts: lake id → the newest act that the journal recorded.
    """

    heads: tuple[LakeHead, ...] = ()
    journalled: frozenset[str] = frozenset()
    archive_rules: Mapping[str, int] = field(default_factory=dict)
    acts: Mapping[str, str] = field(default_factory=dict)

    def of(self, lake: Lake, segments: Table) -> tuple[ChainHead, ...]:
        """Return the last receipts that a lake has to have.

        :param segments: the lake's table of receipts, as loaded.
        """
        names = {lake_id_of(segments), *ancestors_of(segments)} - {None}
        return tuple(
            head.chain_head
            for head in self.heads
            if head.lake_id in names or (not head.lake_id and head.location == lake.location)
        )

    def lacks_acts(self, lake: Lake, acts: Acts) -> bool:
        """Return whether a lake lacks recorded rules or holds. Then it was put back from an older copy."""
        segments = lake.segments()
        own_id = lake_id_of(segments)
        ids = [key for key in (own_id, *ancestors_of(segments)) if key is not None and key in self.acts]
        # An act that was recorded for the lake itself is newer than those of its ancestors.
        recorded = {self.acts[key] for key in ids if key == own_id} or {self.acts[key] for key in ids}
        return not recorded <= {act.sha256 for act in acts}

    def in_journal(self, lake: Lake, segments: Table) -> bool:
        """Return whether the journal alone, without the stamp, knows the lake's last receipt."""
        return bool({lake_id_of(segments), lake.location} & self.journalled)

    def check(self, lake: Lake, store_id: str, *, whole: bool = False) -> None:
        """Make sure that a lake has its known receipts, and that no other lake has taken its place.

        :param whole: check the chain of receipts from its beginning, not from the oldest known receipt on.
        :raises LakeIdentityError: the place has another lake or an older copy. No step may write it or rely
            on it.
        :raises ReceiptError: the chain of receipts is broken.
        :raises LakeUnavailableError: the lake can't be read.
        """
        segments = lake.segments()
        lake_id = lake_id_of(segments)
        lake_ids = {lake_id, *ancestors_of(segments)}
        place = segments.location()
        for head in self.heads:
            if head.lake_id and head.place == place and head.lake_id not in lake_ids:
                raise LakeIdentityError(
                    f"lake {lake.location}: expected lake {head.lake_id}, which has receipts of store "
                    f"{store_id}, found lake {lake_id or 'without a UUID'} in its place. Nothing was "
                    "changed. Mount the right disk; a new lake needs a place of its own. If the old "
                    "one is lost for good, run ",
                    Command("stamp"),
                    " to record that; --conn-id names a store of Airflow.",
                )
        heads = self.of(lake, segments)
        try:
            check_links(segments, store_id, heads, whole=whole)
        except ReceiptError as error:
            newest = max(heads, key=lambda head: head.sequence, default=EMPTY_CHAIN)
            last = check_links(segments, store_id)
            if newest.sequence <= last.sequence:
                raise
            raise LakeIdentityError(
                f"lake {lake.location}: expected the receipt number {newest.sequence} of store {store_id}, "
                f"which journal or stamp recorded, found receipts up to number {last.sequence}: the lake "
                "was put back from an older copy, or is another lake. Nothing was changed. Run ",
                Command("lake rebuild"),
                ", which reads its warehouse again. Add --journal or --conn-id if the journal isn't in the "
                "lake's directory. Or bring back the newer copy.",
            ) from error


def head_of(lake: Lake, segments: Table, last: ChainHead) -> LakeHead:
    """Return the last receipt of a store in the form in which journal and stamp keep it.

    :param segments: the lake's table of receipts, as loaded.
    """
    return LakeHead(
        lake_id_of(segments) or "", lake.location, last.sequence, last.row_hash, segments.location()
    )


def known_heads(journal: Journal, record: StoreRecord) -> KnownHeads:
    """Return the last receipts of a store's lakes that journal and stamp recorded.

    :raises StoreIdentityError: the stamp can't be read.
    """
    stamp = read_stamp(record.real_path)
    last: dict[tuple[str, str], list[LakeHead]] = {}
    for head in journalled_heads(journal, record.store_id):
        heads = last.setdefault((head.lake_id, head.location), [head])
        if head.sequence > heads[0].sequence:
            heads[:] = [head]
        elif head.sequence == heads[0].sequence and head not in heads:
            # The two contradict each other, so the lake lacks one of them. Its check refuses that.
            heads.append(head)
    journalled = {lake_id or location for lake_id, location in last}
    stamped = stamp.lakes if stamp is not None else ()
    recorded = (head for heads in last.values() for head in heads)
    rules = _archive_rules(journal, record)
    return KnownHeads((*recorded, *stamped), frozenset(journalled), rules, journal.lake_acts())


def _archive_rules(journal: Journal, record: StoreRecord) -> Mapping[str, int]:
    rules = journal.archive_rules(record.store_id)
    if not rules:
        return {}
    readings = (*filter(None, (rule.clock for rule in rules)), *journal.clock_readings(record.store_id))
    return {} if jumped_forward_ms(read_clock(), readings) else {rule.rule: rule.at_ms for rule in rules}


def journalled_heads(journal: Journal, store_id: str) -> Iterator[LakeHead]:
    """Yield the last receipts that a person's latest :data:`RESET` kept, and the last receipts that were
    recorded after it.
    """
    reset = journal.last_event_with(store_id, Step.STAMP, RESET)
    if reset is not None:
        yield from (from_jsonable(LakeHead, head) for head in reset.payload["lakes"])
    yield from journal.lake_heads(store_id, reset.event_id if reset is not None else 0)


def holds_elsewhere(journal: Journal, store_id: str, asked: Sequence[Lake]) -> Iterator[tuple[str, Hold]]:
    """Yield the holds of lakes that have segments of a store, each with its lake's location.

    :param asked: lakes that the caller has already asked. They are skipped.
    :raises LakeUnavailableError: the acts of a lake can't be read.
    """
    for location, acts in acts_elsewhere(journalled_heads(journal, store_id), asked):
        for hold in policy_of(acts).holds:
            yield location, hold


def acts_elsewhere(heads: Iterable[LakeHead], asked: Sequence[Lake]) -> Iterator[tuple[str, Acts]]:
    """Yield the acts of lakes that have segments of a store, each with its lake's location.

    :param heads: the last known receipts of the store's lakes.
    :param asked: lakes that the caller has already asked. They are skipped.
    :raises LakeUnavailableError: the acts of a lake can't be read.
    """
    own_ids = {
        lake_id for lake in asked for lake_id in (lake_id_of(lake.segments()), *ancestors_of(lake.segments()))
    }
    # An older version recorded no id.
    own_places = {("", lake.location) for lake in asked}
    for lake_id, place, location in {(head.lake_id, head.place, head.location) for head in heads}:
        if lake_id in own_ids or (lake_id, location) in own_places:
            continue
        try:
            properties = next((lake.config.file_io_properties for lake in asked), {})
            file_io = load_file_io(properties, place)
            data = read_small_file(file_io, mark_location(place)) if place else None
            if data is None or parse_mark(data, place).lake_id != lake_id:
                raise LakeUnavailableError(f"expected the lake {lake_id} at {place or location}, found none")
            acts = read_acts_at(file_io, place)
        except StorageEngineError as error:
            raise LakeUnavailableError(
                f"it is unknown whether its other lake {lake_id} at {location} has a hold on it: ", error
            ) from error
        yield location, acts


def rebuild_heads(journal_url: str | None, lake_location: str) -> dict[str, ChainHead]:
    """Return the last known receipt of each store in a lake, by store id.

    :param journal_url: None if there is no journal.
    :param lake_location: location of the lake. If all known receipts of a store are in one lake at another
        place, that lake counts as moved to this location.
    :raises JournalUnavailableError: the journal can't be read.
    :raises StoreIdentityError: a stamp can't be read.
    """
    if journal_url is None:
        return {}
    journal = Journal(journal_url)
    newest = {}
    for record in journal.all_stores():
        heads = known_heads(journal, record).heads
        here = [head for head in heads if head.location == lake_location]
        if not here and len({head.lake_id for head in heads}) == 1:
            here = list(heads)
        if here:
            newest[record.store_id] = max(here, key=lambda head: head.sequence).chain_head
    return newest
