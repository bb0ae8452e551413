"""Finding what may go from the lake, taking it into the trash, and emptying that later.

What may go says :mod:`storage_engine.lake.gc.garbage_rule`. Here the tables are read and the files listed,
and what was decided is done. It is decided twice: once before the lock, for live files are read back and that
takes its time; and under it, by tables that are loaded again, while our commits wait.

What a hold covers stays in the trash until it is lifted.

Must never do: take a file after a look at the tables that is older than the last commit; remove one that was
not in the trash before; touch our own small files, or what neither we nor Iceberg name so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from pyiceberg.io import load_file_io

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.acts.held_stores import HeldStores, read_held_stores
from storage_engine.lake.catalog.catalog import Lake, connect, rows_table_among
from storage_engine.lake.catalog.commit_lock import UNLOCKED_GRACE_MS, nobody_commits
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.tables import DELETIONS, SEGMENTS
from storage_engine.lake.catalog.writing import TAKEN_OVER_PROPERTY, ready_to_write
from storage_engine.lake.file.filters import all_equal
from storage_engine.lake.gc.garbage_decisions import (
    DecidedFile,
    TableDecision,
    Waits,
    decide,
    look,
    without_expired,
    without_held,
)
from storage_engine.lake.gc.garbage_files import Place, now_ns
from storage_engine.lake.gc.garbage_kind import TRASH_MS, GarbageKind
from storage_engine.lake.gc.live_twins import ReadBack
from storage_engine.lake.gc.trash import PutBack, empty, forget, new_moment, put_back, take
from storage_engine.lake.storage.errors import lake_errors, metadata_errors
from storage_engine.model.keep.acts import expired_files
from storage_engine.model.proof.heads import ChainHead


@dataclass(frozen=True, slots=True)
class Garbage:
    """A file that may go.

    :param table: name of the table below whose location it lies.
    :param path: as the file system names it, without a scheme.
    :param reason: why nothing is lost with it.
    :param twins: the live files that hold what it holds.
    """

    table: str
    path: str
    kind: GarbageKind
    size_bytes: int
    modified_ns: int
    reason: str
    twins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that the table doesn't need, and that is kept.

    :param location: what opens it through the table's file access.
    :param reason: what would be lost with it, or why that can't be told.
    """

    table: str
    path: str
    location: str
    kind: GarbageKind
    size_bytes: int
    modified_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class Collection:
    """:param garbage: what may go and is older than the grace.
    :param taken: those of them that went into the trash now.
    :param moment: name of the pass, by which they come back; "" where nothing was taken.
    :param orphans: what the tables don't need and is kept.
    :param due: files that have been in the trash for long enough.
    :param deleted: those of them that were removed for good now.
    :param waiting_count: files that have to stay in the trash for longer.
    :param waiting_bytes: the size of these.
    :param young_count: files that the tables don't need and that are younger than the grace.
    :param unknown: files that neither we nor Iceberg name so, or that a link leads to; they are never taken.
    """

    garbage: tuple[Garbage, ...] = ()
    taken: tuple[Garbage, ...] = ()
    moment: str = ""
    orphans: tuple[KeptFile, ...] = ()
    due: tuple[Garbage, ...] = ()
    deleted: tuple[Garbage, ...] = ()
    waiting_count: int = 0
    waiting_bytes: int = 0
    young_count: int = 0
    unknown: tuple[str, ...] = ()


def collect(
    lake: Lake,
    *,
    grace_ms: int,
    delete: bool,
    trash_ms: int = TRASH_MS,
    known_heads: Mapping[str, Sequence[ChainHead]] | None = None,
) -> Collection:
    """Find garbage; if asked to, take it into the trash, and remove for good what was there for long enough.

    :param grace_ms: how long a file that the tables don't need is left alone, in milliseconds since its last
        modification. The lock keeps our own commits safe even without one; other engines' need it, and
        on object stores ours do, too.
    :param trash_ms: how long a file is in the trash before it goes; on object stores never less than a grace.
    :param known_heads: by store, rows that somebody knows that the chain of receipts had.
    :raises BadInputError: the grace is under ``UNLOCKED_GRACE_MS``, and files are to be taken from an
        object store.
    :raises LakeIdentityError: the lake is an unpromoted copy, lacks a receipt that is known, or its acts are
        no one chain.
    :raises LakeUnavailableError: the lake can't be read, listed or written, got its identity within the
        grace, or somebody commits all the time. What was taken before the error was garbage.
    """
    tables = lake.tables()
    unlocked = [place.location for place in map(Place.of, tables) if not place.is_local]
    if delete and unlocked and grace_ms < UNLOCKED_GRACE_MS:
        raise BadInputError(
            f"{unlocked[0]}: expected a grace of at least {UNLOCKED_GRACE_MS // HOUR_MS} hours, found "
            f"{grace_ms / HOUR_MS:g}: on object stores no lock keeps a commit's files from being removed. "
            "Nothing was removed. Use one that is longer than any job that writes to the lake."
        )
    _check_heads(lake, known_heads or {})
    if delete:
        ready_to_write(lake)
    # Before anything is looked at, so that acts that can't be read end it here.
    held = read_held_stores(lake)
    scenes = look(lake)
    now = now_ns([scene.place for scene in scenes], may_guess=not delete)
    waits = Waits.at(now, grace_ms, max(trash_ms, grace_ms) if unlocked else trash_ms)
    read_back = ReadBack()
    decisions = decide(lake, scenes, read_back, waits)
    if not delete:
        names = expired_files(read_acts(lake))
        return _collection([_left_alone(it, held, names) for it in decisions])
    _check_taken_over(lake, now // 1_000_000, grace_ms)
    with nobody_commits(lake):
        # Whoever records a hold waits for this, or has recorded it by now.
        held = read_held_stores(lake)
        names = expired_files(read_acts(lake))
        decisions = [_left_alone(it, held, names) for it in decide(lake, scenes, read_back, waits)]
        moment = new_moment(now)
        taken, deleted = set[str](), set[str]()
        for decision in decisions:
            going = [(it.file, f"{it.kind}: {it.reason}") for it in decision.going]
            taken |= {file.path for file in take(decision.place, moment, going)}
            due = [(it.listed, it.file) for it in decision.due if it.listed is not None]
            deleted |= {file.path for file in empty(decision.place, due)}
            for over in decision.over:
                forget(decision.place, over)
    return _collection(decisions, taken, deleted, moment if taken else "")


def _left_alone(decision: TableDecision, held: HeldStores, names: Set[str]) -> TableDecision:
    if decision.place.name not in (SEGMENTS, DELETIONS):
        decision = without_expired(decision, names)
    return without_held(decision, held.holds_file)


def _check_heads(lake: Lake, known_heads: Mapping[str, Sequence[ChainHead]]) -> None:
    segments = lake.segments()
    for store_id, heads in known_heads.items():
        with metadata_errors(segments.location(), "read receipts"):
            where = all_equal({"store_id": store_id})
            rows = segments.scan(row_filter=where, selected_fields=("sequence", "row_hash")).to_arrow()
        found = dict(zip(rows["sequence"].to_pylist(), rows["row_hash"].to_pylist(), strict=True))
        for head in heads:
            if head.sequence >= 0 and found.get(head.sequence) != head.row_hash:
                raise LakeIdentityError(
                    f"lake {lake.location}: expected receipt number {head.sequence} of store {store_id} with "
                    f"the hash {head.row_hash}, which was recorded, found "
                    f"{found.get(head.sequence, 'none of that number')}: the catalog was put back from an "
                    "older copy, or another branch of it went on. Nothing was removed. Run storage-engine "
                    "lake rebuild, which brings the catalog up to what the warehouse holds."
                )


def _check_taken_over(lake: Lake, now_ms: int, grace_ms: int) -> None:
    for table in lake.tables():
        age_ms = now_ms - int(table.properties.get(TAKEN_OVER_PROPERTY, "0"))
        if age_ms < grace_ms:
            raise LakeUnavailableError(
                f"{table.location()}: expected a lake that has had its identity for {grace_ms / HOUR_MS:g} "
                f"hours, found it taken over from an older version {age_ms / HOUR_MS:.1f} hours ago: "
                "who works with it on another host may not know yet. Nothing was removed. Run again later."
            )


def undo(config: LakeConfig, moment: str | None = None) -> PutBack:
    """Put back what a pass took, or what all passes took that is in the trash still.

    The tables needn't be readable: a catalog may name what is in the trash.

    :param moment: name of the pass; None: all.
    :raises BadInputError: there is no such pass.
    :raises LakeUnavailableError: the lake can't be reached, or its files can't be moved.
    """
    results = [put_back(place, moment) for place in _places(config)]
    moments = sorted({name for result in results for name in result.moments})
    if moment is not None and not moments:
        raise BadInputError(
            f"lake {config.location}: expected a pass {moment} in the trash, found none of that name. "
            "Nothing was changed. Name one that gc --delete told, or none for all."
        )
    return PutBack(
        tuple(moments),
        tuple(path for result in results for path in result.paths),
        tuple(path for result in results for path in result.occupied),
    )


def _places(config: LakeConfig) -> list[Place]:
    lake = connect(config)
    rows = _rows_table(lake)
    places = []
    for name in (rows, SEGMENTS, DELETIONS):
        try:
            table = lake.deletions() if name == DELETIONS else lake.load(name)
            if table is not None:
                places.append(Place.of(table))
        except LakeUnavailableError:
            warehouse = config.properties.get("warehouse", "")
            if "://" not in warehouse and not warehouse.startswith("/"):
                raise
            location = f"{warehouse.rstrip('/')}/{config.namespace}/{name}"
            places.append(Place.at(name, location, load_file_io(config.file_io_properties, location)))
    return places


def _rows_table(lake: Lake) -> str:
    """Return the name of the table of rows; where ``segments`` can't be read, by the catalog's tables."""
    try:
        return lake.rows_table
    except LakeUnavailableError:
        with lake_errors(lake.location, "list the catalog's tables"):
            return rows_table_among(it[-1] for it in lake.catalog.list_tables(lake.config.namespace))


def _collection(
    decisions: Sequence[TableDecision],
    taken: Set[str] = frozenset(),
    deleted: Set[str] = frozenset(),
    moment: str = "",
) -> Collection:
    garbage = _sorted(_garbage(of.place, it) for of in decisions for it in of.going)
    due = _sorted(_garbage(of.place, it) for of in decisions for it in of.due)
    waiting = [file for of in decisions for file in of.waiting]
    kept = (_orphan(of.place, it) for of in decisions for it in of.orphans)
    return Collection(
        garbage=garbage,
        taken=tuple(file for file in garbage if file.path in taken),
        moment=moment,
        orphans=tuple(sorted(kept, key=lambda file: file.path)),
        due=due,
        deleted=tuple(file for file in due if file.path in deleted),
        waiting_count=len(waiting),
        waiting_bytes=sum(file.size_bytes for file in waiting),
        young_count=sum(len(it.young) for it in decisions),
        unknown=tuple(sorted(path for it in decisions for path in it.unknown)),
    )


def _garbage(place: Place, it: DecidedFile) -> Garbage:
    file = it.file
    return Garbage(place.name, file.path, it.kind, file.size_bytes, file.modified_ns, it.reason, it.twins)


def _orphan(place: Place, it: DecidedFile) -> KeptFile:
    file = it.file
    location = f"{place.location}/{file.found}"
    return KeptFile(place.name, file.path, location, it.kind, file.size_bytes, file.modified_ns, it.reason)


def _sorted(files: Iterable[Garbage]) -> tuple[Garbage, ...]:
    return tuple(sorted(files, key=lambda file: file.path))
