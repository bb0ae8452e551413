"""Emptying of quarantines: when their window is over, or, the oldest first, when space is the cause of a run.

The files passed the gate when a run set them aside. By now they may be the last copy, so their receipts are
checked again, with the data files, and unproven files stay. The order is: intent, files, result. Emptying may
be killed at any instant and run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote

from storage_engine.brokers import find_broker
from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.clock import clock_ms, jumped_forward_ms, read_clock
from storage_engine.core.wording import bytes_text, count_text, duration_text, reason_text, time_text
from storage_engine.exceptions import LakeMissingError, StorageEngineError, StoreBusyError
from storage_engine.journal.journal import Journal, Phase, Run, Step, StoreRecord
from storage_engine.journal.tables.leases import Lease
from storage_engine.lake.acts.act_files import read_held_stores, read_store_names
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.broker_words import Aside
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.keep_rules import Hold
from storage_engine.model.plan import Cause, PlanRequest
from storage_engine.retention.proof.history import releases, still_proves
from storage_engine.retention.proof.proofs import read_proofs
from storage_engine.retention.quarantine.places import Contents, contents, has_manifest, remove
from storage_engine.retention.quarantine.records import (
    WHOLE,
    Quarantine,
    QuarantineState,
    quarantine_of,
    quarantines,
    record_stays,
)
from storage_engine.retention.replicas import replicas_prove
from storage_engine.retention.store.broker_answers import take_watch
from storage_engine.retention.store.context import Context
from storage_engine.retention.store.known_heads import holds_elsewhere, known_heads

SPACE = "space was the cause of a run"


@dataclass(frozen=True, slots=True)
class Keeper:
    """A store whose quarantines are emptied.

    :param lakes: lakes whose receipts may prove the files.
    """

    journal: Journal
    record: StoreRecord
    lakes: Sequence[LakeConfig]


def tend_quarantines(context: Context, request: PlanRequest, now_ms: int) -> tuple[str, ...]:
    """Before planning, empty quarantines whose window is over. If space is the cause, empty others as well.

    A dry run empties none, and says which would be emptied.

    :return: sentences on emptied quarantines, and on those that stay, with the reason.
    """
    keeper = Keeper(context.journal, context.record, context.store.lakes)
    if not any(quarantine.there for quarantine in quarantines(keeper.journal, keeper.record.store_id)):
        return ()
    if request.dry_run:
        is_short = _space_is_the_cause(context, request, now_ms)
        present = [
            q
            for q in _list_present(keeper.journal, keeper.record.store_id)
            if is_short or _is_over(q, now_ms)
        ]
        hold = _find_hold(keeper) if present else ""
        return tuple(_forecast_text(quarantine, now_ms, hold) for quarantine in present)
    try:
        return (*empty_expired(keeper, now_ms), *_empty_for_space(keeper, context, request, now_ms))
    except StoreBusyError as error:
        return (Text("no quarantine was emptied: ", error),)


def empty_expired(keeper: Keeper, now_ms: int, *, dry_run: bool = False) -> tuple[str, ...]:
    """Empty the quarantines whose window is over.

    :param dry_run: only say which would be emptied.
    :return: sentences on emptied quarantines, and on those that stay, with the reason.
    :raises StoreBusyError: a run is working on the store.
    """
    due = [
        quarantine
        for quarantine in _list_present(keeper.journal, keeper.record.store_id)
        if _is_over(quarantine, now_ms)
    ]
    if not due:
        return ()
    readings = keeper.journal.clock_readings(keeper.record.store_id)
    if jumped_ms := jumped_forward_ms(read_clock(), readings):
        return (
            "no quarantine is emptied by its age, because the clock was set forward by "
            f"{duration_text(jumped_ms)} within the last day",
        )
    if dry_run:
        hold = _find_hold(keeper)
        return tuple(_forecast_text(quarantine, now_ms, hold) for quarantine in due)
    return tuple(_empty(keeper, quarantine.run_key, _window_text(quarantine), now_ms) for quarantine in due)


def expired_or_in_the_way(
    journal: Journal, store_id: str, now_ms: int, *, space_is_short: bool
) -> tuple[str, ...]:
    """Return a sentence for each quarantine that the next run would empty.

    Quarantines that lately had to stay are left out.

    :param space_is_short: space is a cause of that run.
    """
    return tuple(
        _forecast_text(quarantine, now_ms)
        for quarantine in _list_present(journal, store_id)
        if (space_is_short or _is_over(quarantine, now_ms))
        and not quarantine.stayed_lately(now_ms, space_is_short=space_is_short)
    )


def _forecast_text(quarantine: Quarantine, now_ms: int, held: str = "") -> str:
    """Describe what the next run would do with a quarantine, and why the last run left it.

    :param held: why the quarantine is held, or "" without a hold, or if no lake was asked.
    """
    why = _window_text(quarantine) if _is_over(quarantine, now_ms) else "space is short"
    if held:
        return Text(f"the quarantine of run {quarantine.run_key} would stay, though {why}: ", held)
    if quarantine.stayed_at_ms is None:
        return f"the quarantine of run {quarantine.run_key} would be emptied: {why}"
    return (
        f"the quarantine of run {quarantine.run_key} would be checked again, because {why}. At "
        f"{time_text(quarantine.stayed_at_ms)} it had to stay: {quarantine.stayed_because}"
    )


def _is_over(quarantine: Quarantine, now_ms: int) -> bool:
    return quarantine.until_ms <= now_ms or quarantine.state is QuarantineState.EMPTYING


def _empty_for_space(keeper: Keeper, context: Context, request: PlanRequest, now_ms: int) -> Iterator[str]:
    """Empty quarantines one by one, the oldest first, as long as space is a cause."""
    for quarantine in _list_present(keeper.journal, keeper.record.store_id):
        if not _space_is_the_cause(context, request, now_ms):
            return
        yield _empty(keeper, quarantine.run_key, SPACE, now_ms)


def _space_is_the_cause(context: Context, request: PlanRequest, now_ms: int) -> bool:
    watch = take_watch(context.broker, now_ms, context.store.broker)
    target = request.target_used_percent
    return any(trigger.cause is Cause.SPACE_FULL for trigger in watch.triggers) or (
        target is not None
        and any(level.used_percent is not None and level.used_percent > target for level in watch.levels)
    )


def _list_present(journal: Journal, store_id: str) -> list[Quarantine]:
    """Return the quarantines that may have files, without those of open undos.

    If an undo is open, a person wants the files back.
    """
    recorded = quarantines(journal, store_id)
    return [q for q in recorded if q.there and q.state is not QuarantineState.UNDOING]


def _window_text(quarantine: Quarantine) -> str:
    return f"its window was over at {time_text(quarantine.until_ms)}"


def _empty(keeper: Keeper, run_key: str, why: str, now_ms: int) -> str:
    """Empty a run's quarantine under the store's lease.

    :return: a sentence on the result.
    :raises StoreBusyError: a run is working on the store.
    """
    journal, store_id = keeper.journal, keeper.record.store_id
    with journal.lease(store_id) as lease:
        run = journal.run(store_id, run_key)
        quarantine = quarantine_of(journal, run)
        if quarantine is None or not quarantine.there:
            return f"the quarantine of run {run_key} was emptied by another run meanwhile"
        if reason := _reason_to_stay(keeper, run, quarantine, lease):
            record_stays(journal, run, quarantine, reason, now_ms, lease)
            return Text(f"the quarantine of run {run_key} stays, though {why}: ", reason)
        if quarantine.state is not QuarantineState.EMPTYING:
            journal.record(run, Step.EMPTY_QUARANTINE, Phase.INTENT, [(WHOLE, {"detail": why})], lease=lease)
        total = Contents()

        def look() -> None:
            journal.renew(lease)
            if reason := _find_hold(keeper):
                raise _HeldError(reason)

        # A file outside of its store is removed in one step, as its broker would do.
        before_steps = None if find_broker(keeper.record.broker).aside is Aside.OUTSIDE else look
        try:
            for place in quarantine.places:
                look()
                total += remove(place, before_steps)
        except _HeldError as held:
            # A person set a hold since it began: the remaining files stay, and the next run checks again.
            record_stays(journal, run, quarantine, Text(held), now_ms, lease)
            return Text(f"the rest of the quarantine of run {run_key} stays, though {why}: ", held)
        journal.renew(lease)
        result = {"detail": why, "files": total.files, "size_bytes": total.size_bytes, "at_ms": clock_ms()}
        journal.record(run, Step.EMPTY_QUARANTINE, Phase.RESULT, [(WHOLE, result)])
    return (
        f"the quarantine of run {run_key} was emptied, {count_text(total.files, 'file')}, "
        f"{bytes_text(total.size_bytes)}: {why}"
    )


class _HeldError(Exception):
    """Ends the emptying of a quarantine, because a lake's hold keeps the rest. Its text names the hold."""


def _reason_to_stay(keeper: Keeper, run: Run, quarantine: Quarantine, lease: Lease) -> str:
    """Return why a quarantine isn't emptied, and what to do, or "" if it is emptied."""
    if quarantine.state is QuarantineState.UNDOING:
        return Text(
            "its undo was begun. Run ", Command("undo", quote(quarantine.run_key)), " again, which ends it"
        )
    missing = [place.directory for place in quarantine.places if not has_manifest(place)]
    # A mounted place has its manifest before any file is set aside, and loses it last.
    if (
        missing
        and quarantine.state is not QuarantineState.EMPTYING
        and any(releases(keeper.journal.events(run, Step.RELEASE)))
    ):
        return f"{missing[0]} isn't there. Check that its disk is mounted"
    if unproven := _find_unproven(keeper, run, quarantine, lambda: keeper.journal.renew(lease)):
        if quarantine.state is QuarantineState.EMPTYING:
            return (
                f"{unproven}. It may be the last copy, and other files of the run are gone: copy the files "
                "that you need"
            )
        return Text(
            unproven,
            ". It may be the last copy: bring it back with ",
            Command("undo", quote(quarantine.run_key)),
            ", and archive it again",
        )
    return _find_hold(keeper)


def _find_hold(keeper: Keeper) -> str:
    """Return the hold that keeps the store's files, or the lake that can't be asked, or else ""."""
    store_id, name = keeper.record.store_id, keeper.record.name or ""
    lakes: list[Lake] = []
    for config in keeper.lakes:
        try:
            lakes.append(open_lake(config))
            holds = read_held_stores(lakes[-1]).holds_of(store_id, name)
        except StorageEngineError as error:
            heads = known_heads(keeper.journal, keeper.record).heads
            if isinstance(error, LakeMissingError) and config.location not in {h.location for h in heads}:
                # The lake never had a segment of the store, so it has no hold on it.
                continue
            return Text(
                f"it is unknown whether a hold of lake {config.location} covers it: ", reason_text(error)
            )
        if holds:
            return _hold_text(config.location, holds[0])
    try:
        elsewhere = list(holds_elsewhere(keeper.journal, store_id, lakes))
        names = [name for lake in lakes if elsewhere for name in read_store_names(lake).get(store_id, ())]
    except StorageEngineError as error:
        return reason_text(error)
    covering = (_hold_text(*entry) for entry in elsewhere if entry[1].covers_store(store_id, (name, *names)))
    return next(covering, "")


def _hold_text(location: str, hold: Hold) -> str:
    return Text(
        f"lake {location} holds {hold.scope.text}, by {hold.person}: {hold.reason}. ",
        Command("lake keep", f"--lift {hold.hold_id[:SHOWN_CHARACTERS]}"),
        " lifts the hold",
    )


def _find_unproven(keeper: Keeper, run: Run, quarantine: Quarantine, looked: Callable[[], None]) -> str:
    """Return why a run's files have to stay, or "" if the receipts that permitted the deletion are sound.

    Files that were deleted without a receipt aren't checked. After emptying has begun, only files deleted
    under an archive rule are checked: such a rule may be lifted.
    """
    with suppress(OSError):
        if not any(contents(place).files for place in quarantine.places):
            return ""
    done, intended = releases(keeper.journal.events(run, Step.RELEASE))
    by_slot = {
        (release.log, release.base_offset): release
        for release in (*intended.values(), *done.values())
        if release.receipt_hash is not None
        and (release.lacks_by_rules or quarantine.state is not QuarantineState.EMPTYING)
    }
    if not by_slot:
        return ""
    try:
        proofs = read_proofs(
            keeper.lakes,
            replace(keeper.record, lineage=quarantine.lineage, log_lineages=quarantine.log_lineages),
            by_slot,
            known=known_heads(keeper.journal, keeper.record),
            to_delete=True,
            read_files=True,
            looked=looked,
        )
    except StoreBusyError:
        raise
    except (StorageEngineError, OSError) as error:
        return reason_text(error)
    for slot, release in by_slot.items():
        rows = (row for lake in proofs.asked for row in lake.valid(slot))
        if not any(still_proves(row, release) for row in rows) and not replicas_prove(
            proofs.asked, keeper.record.store_id, release, looked
        ):
            log, base_offset = slot
            reasons = join_texts("; ", proofs.notices) or "no valid receipt in a lake"
            return Text(f"{log}/{base_offset:020d} isn't proven in the lake any more (", reasons, ")")
    return ""
