"""A look at a store's lakes: whether each opens, whose it is, which segments it proves, and its disk."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.brokers import store_text
from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS
from storage_engine.core.jsonable import filled
from storage_engine.core.wording import bytes_text, count_text, duration_text, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.catalog.nesting import local_places, place_around
from storage_engine.lake.catalog.place import own_directory
from storage_engine.lake.move.describing import LakeInfo, describe
from storage_engine.model.disk import DiskUsage
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.keep_rules import ArchiveRule, matches
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.report.diagnosis import Finding
from storage_engine.model.store import Segment
from storage_engine.retention.archive.archivable import still_unproven
from storage_engine.retention.proof.proofs import read_proofs
from storage_engine.retention.proof.verification_memory import last_verified
from storage_engine.retention.store.context import shared_disks
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import Stamp
from storage_engine.retention.store.unnamed_lakes import lake_name_text, lake_option, unnamed_heads

_LONG_UNVERIFIED_MS = 30 * DAY_MS
_LOW_PERCENT = 90
_NAMED = 5


@dataclass(frozen=True, slots=True)
class CheckedLake:
    """Facts about one lake of a store.

    :param title: "lake" or "second lake".
    :param refused: why no command can use the lake, or "" if commands can.
    :param copy_of: UUID of the original if this lake is a read-only copy, else None.
    :param broker: kind of broker whose segments it has; "" if it is empty; None if it can't be read.
    :param stores: names or ids of the stores whose segments it has.
    :param segments: number of this store's segments in it.
    :param disk: its disk, or None if the lake isn't on this machine.
    :param verified_at_ms: time of the last remembered check, or None if there is none.
    :param faults: number of faults that the last checks found.
    :param lake_id: its UUID, or None if an older version made it or it can't be read.
    :param store_ids: ids of the stores whose segments it has.
    :param roots: directories of these stores.
    :param ignored: owners with the names of their properties that this package ignores. An owner is a table,
        or "" for the catalog.
    :param acts_fault: why people's decisions on what the lake keeps are unknown, or "" if they are known.
    :param unrecorded_rules: rules that would keep messages out of the lake if the store's journal had them.
    """

    title: str
    location: str
    refused: str
    copy_of: str | None
    broker: str | None
    stores: tuple[str, ...]
    segments: int
    disk: DiskUsage | None
    verified_at_ms: int | None
    faults: int
    lake_id: str | None = None
    store_ids: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    ignored: tuple[tuple[str, tuple[str, ...]], ...] = ()
    acts_fault: str = ""
    unrecorded_rules: tuple[ArchiveRule, ...] = ()


def look_at_lakes(
    store: ManagedStore, record: StoreRecord | None, has_journal: bool
) -> tuple[CheckedLake, ...]:
    """Look at each of a store's lakes. Nothing is changed.

    :param record: the store's record in its journal, or None if there is none yet.
    """
    return tuple(
        _look(title, store, number, record, has_journal)
        for number, title in zip(range(len(store.lakes)), ("lake", "second lake"), strict=False)
    )


def _look(
    title: str, store: ManagedStore, number: int, record: StoreRecord | None, has_journal: bool
) -> CheckedLake:
    config = store.lakes[number]
    local, place = local_places(config), str(own_directory(config) or config.location)
    disk = DiskUsage.of(local["warehouse"]) if "warehouse" in local else None
    try:
        info = describe(config)
    except StorageEngineError as error:
        return CheckedLake(title, place, Text(error), None, None, (), 0, disk, None, 0)
    verified_at_ms, faults = _read_last_check(store, info) if has_journal else (None, 0)
    own_stores = [row for row in info.stores if record is not None and row.store_id == record.store_id]
    return filled(
        CheckedLake,
        info,
        title=title,
        location=place,
        stores=tuple(row.name for row in info.stores),
        segments=sum(row.segment_count for row in own_stores),
        disk=disk,
        verified_at_ms=verified_at_ms,
        faults=faults,
        store_ids=tuple(row.store_id for row in info.stores),
        roots=tuple(row.root for row in info.stores),
        unrecorded_rules=_unrecorded_rules(store, record, info) if has_journal and record is not None else (),
    )


def _unrecorded_rules(store: ManagedStore, record: StoreRecord, info: LakeInfo) -> tuple[ArchiveRule, ...]:
    """Return the archive rules for a store that its lake has and its journal lacks."""
    names = (record.store_id, store_text(record.name, record.broker, record.real_path))
    rules = [rule for rule in info.archive_rules if any(matches(rule.scope.store, name) for name in names)]
    try:
        journal = Journal(store.journal_url, read_only=True) if rules else None
        recorded = {rule.rule for rule in journal.archive_rules(record.store_id)} if journal else set()
    except StorageEngineError:
        return ()
    return tuple(rule for rule in rules if rule.rule_id not in recorded)


def _read_last_check(store: ManagedStore, info: LakeInfo) -> tuple[int | None, int]:
    table = next((row.table_uuid for row in info.tables if row.name == "segments"), None)
    if table is None:
        return None, 0
    try:
        return last_verified(store.journal_url, table)
    except StorageEngineError:
        return None, 0


def unproven_segments(
    store: ManagedStore, journal: Journal | None, record: StoreRecord | None, segments: Sequence[Segment]
) -> tuple[tuple[Segment, ...], tuple[Segment, ...], tuple[str, ...], int]:
    """Compare sealed segments with the lakes' proofs.

    :param record: None if neither journal nor lake knows the store yet. Then none of its segments is proven.
    :return: the unproven segments; archived segments whose files were touched after their proof; notices on
        lakes that couldn't be asked; and the number of segments that an archive rule leaves out.
    :raises StorageEngineError: journal or lake can't be read.
    """
    if journal is None or record is None:
        return tuple(segments), (), (), 0
    ids = {segment.id for segment in segments}
    proofs = read_proofs(store.lakes, record, ids, known=known_heads(journal, record))
    unproven = still_unproven(journal, record, proofs, segments)
    touched = proofs.touched(unproven)
    untouched = tuple(segment for segment in unproven if segment not in touched)
    return untouched, tuple(touched), proofs.notices, len(proofs.left_out(segments))


def lake_text(lake: CheckedLake, now_ms: int) -> str:
    """Describe a lake in one line."""
    if lake.refused:
        return f"{lake.location}: can't be used"
    verified = (
        "never verified"
        if lake.verified_at_ms is None
        else f"verified {duration_text(now_ms - lake.verified_at_ms)} ago"
    )
    space = "" if lake.disk is None else f", {bytes_text(lake.disk.usable_bytes)} free"
    return f"{lake.location}: {count_text(lake.segments, 'segment')} of this store, {verified}{space}"


def has_segments_of(lakes: Sequence[CheckedLake], stamp: Stamp | None, root: str) -> bool:
    """Return whether a lake has segments of the stamp's store; without a stamp, of one at ``root``. Pure."""
    if stamp is None:
        return any(root in lake.roots for lake in lakes)
    return any(stamp.store_id in lake.store_ids for lake in lakes)


def find_other_lake(
    store_id: str | None, heads: Sequence[LakeHead], lakes: Sequence[CheckedLake]
) -> LakeHead | None:
    """Return the lake that a store was archived into, if none of the named lakes has its segments. Pure.

    Return None also if a named lake can't be read, because its segments are unknown.

    :param store_id: id of the store, from the journal or else from the stamp, or None if neither knows the
        store.
    :param heads: the last known receipts of the store's lakes.
    """
    if store_id is None or not lakes or any(lake.refused or lake.broker is None for lake in lakes):
        return None
    if any(store_id in lake.store_ids for lake in lakes):
        return None
    named = [lake_id for lake in lakes for lake_id in (lake.lake_id, lake.copy_of)]
    others = unnamed_heads(heads, named, [lake.location for lake in lakes])
    # If a named lake had receipts of the store, another finding says that it lacks them.
    is_other = len(others) == len(unnamed_heads(heads, (), ()))
    return max(others, key=lambda head: head.sequence, default=None) if is_other else None


def misplaced_findings(head: LakeHead | None, lakes: Sequence[CheckedLake]) -> Iterator[Finding]:
    """Yield a finding if the store was archived into a lake that wasn't named. Pure.

    :param head: the result of :func:`find_other_lake`.
    """
    if head is None:
        return
    named = " and ".join(lake.location for lake in lakes)
    verb, kind = ("has", "this lake") if len(lakes) == 1 else ("have", "these lakes")
    yield Finding.urgent(
        "other-lake",
        f"this store was archived into lake {lake_name_text(head)}, as its stamp or its journal says; "
        f"{kind}, {named}, {verb} none of it. Archiving here would split the store's history over two lakes",
        f"name that lake: {lake_option(head)}; to go on with this lake as well, name that one as "
        "--second-lake",
    )


def lake_findings(
    lakes: Sequence[CheckedLake], broker: str, unproven_bytes: int | None, now_ms: int
) -> Iterator[Finding]:
    """Judge the store's lakes. Pure.

    :param unproven_bytes: size of the segments that still have to be archived, or None if unknown.
    """
    for lake in lakes:
        yield from _judge_lake(lake, broker, unproven_bytes, now_ms)


def _judge_properties(lake: CheckedLake) -> Iterator[Finding]:
    for owner, names in lake.ignored:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        table = f"ALTER TABLE {owner} UNSET TBLPROPERTIES ('{names[-1]}', …)"
        yield Finding.warning(
            "lake-properties",
            f"{f'table {owner}' if owner else 'the catalog'} of the {lake.title} {lake.location} says "
            f"{', '.join(names[:_NAMED])}{more}, which this package ignores; other programs may follow it",
            "remove that from the catalog server's configuration. Needed settings belong in the lake's own "
            "configuration"
            if not owner
            else Text("bring the table back to its place: ", Command("lake relocate"))
            if names == ("location",)
            else f"remove it where no program needs it: {table} in Spark",
        )


def _judge_lake(lake: CheckedLake, broker: str, unproven_bytes: int | None, now_ms: int) -> Iterator[Finding]:
    if lake.refused:
        reason = Text(f"nothing can be archived into the {lake.title}: ", lake.refused.removesuffix("."))
        yield Finding.urgent("lake-refused", reason)
        return
    yield from _judge_properties(lake)
    if lake.acts_fault:
        fault, _, advice = lake.acts_fault.partition(". ")
        yield Finding.urgent("lake-acts", f"of the {lake.title}, {fault}", advice.removesuffix("."))
    for rule in lake.unrecorded_rules if lake.copy_of is None else ():
        patterns = {"--topic": rule.scope.topic, "--log": rule.scope.log, "--store": rule.scope.store}
        words = [word for name, pattern in patterns.items() if pattern != "*" for word in (name, pattern)]
        yield Finding.warning(
            "archive-rule",
            f"rule {rule.rule_id[:SHOWN_CHARACTERS]} of the {lake.title}, which keeps {rule.scope.text} out, "
            "isn't in this store's journal, so the messages are archived all the same",
            Text(
                "record it there: ",
                Command("lake keep", f"--lake {shlex.join([lake.location, *words])} --archive no"),
                ", with --journal URL where the journal isn't in the lake's directory",
            ),
        )
    if lake.copy_of is not None:
        yield Finding.warning(
            "lake-copy",
            f"the {lake.title} {lake.location} is a copy of lake {lake.copy_of}: a copy proves no segments",
            Text("name the original lake. If it is gone for good: ", Command("lake promote")),
        )
    if lake.broker and lake.broker != broker:
        text = f"the {lake.title} {lake.location} has segments of {lake.broker} stores, not of {broker}"
        yield Finding.urgent("lake-broker", text, "name another lake")
    if lake.faults:
        text = f"the last check of the {lake.title} found {count_text(lake.faults, 'fault')} in it"
        yield Finding.urgent("lake-faults", text, Text("see them: ", Command("verify")))
    elif lake.segments and (
        lake.verified_at_ms is None or now_ms - lake.verified_at_ms > _LONG_UNVERIFIED_MS
    ):
        when = "never" if lake.verified_at_ms is None else f"last {time_text(lake.verified_at_ms)}"
        advice = Text("do it regularly: ", Command("verify"))
        yield Finding.note("lake-unverified", f"the {lake.title} was {when} verified", advice)
    yield from _judge_disk(lake, unproven_bytes)


def _judge_disk(lake: CheckedLake, unproven_bytes: int | None) -> Iterator[Finding]:
    if lake.disk is None or lake.disk.used_percent is None or lake.disk.usable_bytes is None:
        return
    if unproven_bytes is not None and unproven_bytes > lake.disk.usable_bytes:
        yield Finding.warning(
            "lake-full",
            f"{bytes_text(unproven_bytes)} have to be archived, the disk of the {lake.title} has "
            f"{bytes_text(lake.disk.usable_bytes)} left",
            "add space there, or name a lake on another disk",
        )
    elif lake.disk.used_percent > _LOW_PERCENT:
        yield Finding.warning("lake-full", f"the disk of the {lake.title} is {lake.disk.used_percent} % used")


def place_findings(store: ManagedStore, data_paths: Sequence[Path]) -> Iterator[Finding]:
    """Yield findings on lakes inside a store or another lake, and on our files on a broker's disk."""
    for lake in store.lakes:
        if around := place_around(lake, Path(store.real_root)):
            yield Finding.warning(
                "lake-nested",
                f"the lake {lake.location} lies inside {around}: no segment is archived into it or deleted "
                "by its proof",
                Text("move its directory to another disk, and run ", Command("lake relocate")),
            )
    shared = shared_disks(store, data_paths)
    if not shared:
        return
    kinds = dict.fromkeys(kind.removesuffix(" warehouse").removesuffix(" catalog") for kind, _ in shared)
    text = f"on a disk that the broker writes to: {', '.join(kinds)} (such as {shared[0][1]})"
    if store.may_share_disks:
        effect, advice = "archiving would fill the very disk that needs space", "put them on another disk"
    else:
        effect = "every other command refuses this while the broker runs"
        advice = "put them on another disk, or allow it: --allow-same-disk"
    yield Finding.warning("same-disk", f"{text}; {effect}", advice)
