"""Expiry of old snapshots, so that a lake's metadata doesn't grow for ever.

First the receipts of every store are compared with both tables. Then snapshots of the table of rows expire,
then those of ``segments`` and ``deletions``. Then gc puts unneeded files that are older than
:data:`METADATA_AGE_MS` into its trash. Each commit writes a list of all remaining snapshots, so many
snapshots make commits slow.

Three kinds of snapshots never expire: the current one; those that a branch or tag names; and those outside of
the current one's history. The table was rolled back from these snapshots, and they may be needed again. No
snapshot expires while the current one has a broken receipt or chain, because an older snapshot may have the
missing rows. Expiry removes no file. Readers of an older snapshot, and a catalog from a backup, can use the
snapshot's files until gc takes these files by gc's own rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import ExpireSnapshots

from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import LakeUnavailableError, ReceiptError
from storage_engine.lake.archive.commit_retries import CommitStep, commit_steps
from storage_engine.lake.archive.small_tables import begin
from storage_engine.lake.catalog.catalog import CHANGE_LOCK, Lake
from storage_engine.lake.catalog.tables import DELETIONS, METADATA_AGE_MS
from storage_engine.lake.catalog.writing import mark_deletions, ready_to_write
from storage_engine.lake.file.scan import list_manifests, ranges_of, write_ranges
from storage_engine.lake.gc.garbage import Collection, collect
from storage_engine.lake.soundness.chain import check_chain, check_links
from storage_engine.lake.soundness.receipts import current, list_stores, receipts_in
from storage_engine.lake.soundness.soundness_reader import moved_receipts
from storage_engine.lake.storage.errors import lake_errors
from storage_engine.model.proof.receipt import ChainHead, with_rows

_AT_ONCE = 1000
"""Maximum number of snapshots that expire in one commit: PyIceberg compares each pair of them."""


@dataclass(frozen=True, slots=True)
class LakePolicy:
    """Snapshot retention of a table.

    :param snapshot_age_ms: younger snapshots are kept, up to ``most_snapshots``.
    :param least_snapshots: number of the newest snapshots that are kept at any age.
    :param most_snapshots: number of the newest snapshots that may be kept because they are young. Each adds
        some 700 bytes to every commit.
    """

    snapshot_age_ms: int = DAY_MS
    least_snapshots: int = 10
    most_snapshots: int = 20


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """Changes to one table, done or planned.

    :param metadata_bytes: size of the table's metadata file before the expiry.
    :param left_bytes: size of the table's metadata file after the expiry.
    """

    table: str
    expired: int
    left: int
    metadata_bytes: int
    left_bytes: int

    @property
    def text(self) -> str:
        """Return the changes as a sentence."""
        return (
            f"{self.table}: {count_text(self.expired, 'snapshot')} expired, {self.left} left; its metadata "
            f"has {bytes_text(self.left_bytes)}, and had {bytes_text(self.metadata_bytes)}"
        )


@dataclass(frozen=True, slots=True)
class LakeMaintenance:
    """Results of a lake's maintenance.

    :param taken_files: number of files that gc took into its trash.
    :param deleted_files: number of files that gc deleted, because they had been in the trash for long enough.
    :param notices: snapshots and files that were left alone, with the reason.
    """

    dry_run: bool
    tables: tuple[MaintainedTable, ...]
    taken_files: int
    taken_bytes: int
    deleted_files: int
    deleted_bytes: int
    notices: tuple[str, ...]

    @property
    def expired(self) -> int:
        return sum(table.expired for table in self.tables)


def maintain_lake(
    lake: Lake,
    policy: LakePolicy,
    now_ms: int,
    *,
    dry_run: bool = False,
    known_heads: Mapping[str, Sequence[ChainHead]] | None = None,
) -> LakeMaintenance:
    """Expire snapshots that a policy doesn't keep. It may be killed at any instant and run again.

    :param known_heads: for each store, links that its chain of receipts is known to have had.
    :raises LakeIdentityError: the lake is a copy, or its catalog is older than the warehouse.
    :raises LakeUnavailableError: the lake can't be read or written; snapshots that expired before stay
        expired.
    :raises CommitStateUnknownError: the outcome of a commit can't be read; run again.
    """
    if not dry_run:
        ready_to_write(lake)
    known_heads = known_heads or {}
    fault = _fault(lake, known_heads)
    notices: list[str] = [] if not fault else [Text("no snapshot expires: ", fault)]
    maintained = []
    names = [table.name()[-1] for table in lake.every_table()]
    for load in (partial(lake.load, name) for name in names):
        table = load()
        name, before = table.name()[-1], _metadata_bytes(table)
        expiring = [] if fault else snapshots_to_expire(table, policy, now_ms)
        if strays := _find_rolled_back(table):
            notices.append(
                f"{name}: {count_text(len(strays), 'snapshot')} kept that are not in the history of the "
                "current one: the table was rolled back. If they aren't needed, expire them with the "
                "program that rolled it back"
            )
        if expiring and not dry_run:
            _expire(lake, load, expiring)
            table = load()
        left = len(table.metadata.snapshots) - (len(expiring) if dry_run else 0)
        if not dry_run and name != DELETIONS:
            write_ranges(table, list_manifests(table), partial(ranges_of, table))
        maintained.append(MaintainedTable(name, len(expiring), left, before, _metadata_bytes(table)))
    collection = Collection()
    try:
        if not fault:
            collection = collect(lake, grace_ms=METADATA_AGE_MS, delete=not dry_run, known_heads=known_heads)
    except LakeUnavailableError as error:
        notices.append(Text("gc took no file: ", error))
    taken = collection.garbage if dry_run else collection.taken
    deleted = collection.due if dry_run else collection.deleted
    return LakeMaintenance(
        dry_run=dry_run,
        tables=tuple(maintained),
        taken_files=len(taken),
        taken_bytes=sum(file.size_bytes for file in taken),
        deleted_files=len(deleted),
        deleted_bytes=sum(file.size_bytes for file in deleted),
        notices=tuple(notices),
    )


def snapshots_to_expire(table: Table, policy: LakePolicy, now_ms: int) -> list[int]:
    """Return the ids of a loaded table's snapshots that a policy doesn't keep, the oldest first."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    history = _history(table)
    least = max(1, policy.least_snapshots)
    expiring = [
        snapshot.snapshot_id
        for place, snapshot in enumerate(history)
        if place >= least
        and (place >= policy.most_snapshots or snapshot.timestamp_ms < now_ms - policy.snapshot_age_ms)
        and snapshot.snapshot_id not in named
    ]
    return expiring[::-1]


def _history(table: Table) -> list[Snapshot]:
    """Return the current snapshot and all before it, newest first. Unlike PyIceberg, take linear time."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    history, following = [], table.metadata.current_snapshot_id
    while following is not None and (snapshot := by_id.pop(following, None)) is not None:
        history.append(snapshot)
        following = snapshot.parent_snapshot_id
    return history


def _find_rolled_back(table: Table) -> set[int]:
    history = {snapshot.snapshot_id for snapshot in _history(table)}
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return {snapshot.snapshot_id for snapshot in table.metadata.snapshots} - history - named


def _fault(lake: Lake, known_heads: Mapping[str, Sequence[ChainHead]]) -> str:
    """Return a fault of the current snapshots that older ones may help to repair, or "" if there is none."""
    segments = lake.segments()
    try:
        for store_id, heads in known_heads.items():
            check_links(segments, store_id, heads)
        for store in list_stores(lake):
            rows = receipts_in(segments, store.store_id, superseded=True)
            check_chain(rows)
            if moved := moved_receipts(lake, with_rows(current(rows))):
                return Text(
                    f"{count_text(len(moved), 'receipt')} of store {store.store_id}, of the segment at "
                    f"offset {moved[0].base_offset} among others, can't be compared with the table of rows: "
                    "another engine has put rows into other files, or dropped them. Run ",
                    Command("verify --level bytes --renew"),
                    ", which proves the rows in their new files; or roll the table messages back",
                )
    except ReceiptError as error:
        return Text(error)
    return ""


def _expire(lake: Lake, load: Callable[[], Table], expiring: Sequence[int]) -> None:
    for first in range(0, len(expiring), _AT_ONCE):
        batch = expiring[first : first + _AT_ONCE]

        def next_step(batch: Sequence[int] = batch) -> CommitStep | None:
            table = load()
            existing = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            history = {snapshot.snapshot_id for snapshot in _history(table)}
            named = {ref.snapshot_id for ref in table.metadata.refs.values()}
            # Since they were chosen, the table may have been rolled back, or a snapshot may have got a name.
            ids = [it for it in batch if it in existing and it in history and it not in named]
            if not ids:
                return None
            return CommitStep(table, ("expire", *map(str, ids)), lambda: _prepare(table, ids))

        mark = mark_deletions if load().name()[-1] == DELETIONS else None
        with CHANGE_LOCK:
            commit_steps(lake, next_step, mark)


def _prepare(table: Table, expiring: Sequence[int]) -> Transaction:
    transaction = begin(table)
    _BoundExpiry(transaction).by_ids(list(expiring)).commit()
    return transaction


class _BoundExpiry(ExpireSnapshots):
    """PyIceberg's expiry, but only as long as the current snapshot stays the same.

    If the table were rolled back to an expiring snapshot meanwhile, the expiry would leave the table empty.
    """

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        current_id = self._transaction.table_metadata.current_snapshot_id
        bound = AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": current_id})
        return updates, (*requirements, bound)


def _metadata_bytes(table: Table) -> int:
    with lake_errors(table.metadata_location, "look at the table's metadata"):
        return len(table.io.new_input(table.metadata_location))
