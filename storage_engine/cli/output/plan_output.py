"""Output of a plan: every segment with its verdict and the reason for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage_engine.cli.output.output import print_lines, print_table, say, say_notes, store_head, store_name
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.disk import DiskUsage
from storage_engine.model.plan import Decision, DependentFile, Plan, PlanRequest, Reason, of_only_log, runs_of

if TYPE_CHECKING:
    from storage_engine.model.broker.broker_store import Pending
    from storage_engine.retention.plan.deciding import Decided, HoldBack
    from storage_engine.retention.store.managed_store import ManagedStore

ASSUMED = "Note: the broker's default settings are assumed; for its own settings: --broker-conf FILE"
"""Note for stores for which :func:`~storage_engine.retention.store.brokers.assumes_defaults` holds."""


def plan_json(store: ManagedStore, decided: Decided) -> dict[str, Any]:
    """Return a previewed plan and its consequences for ``print_json``."""
    from storage_engine.retention.plan.preview import places_lines
    from storage_engine.retention.store.brokers import assumes_defaults

    plan = decided.plan
    offsets = {log.log: log.new_min_offset for log in plan.logs}
    return {
        "name": store_name(store),
        **to_jsonable(replace(plan, logs=())),
        "logs": [{"log": log, "new_min_offset": offset} for log, offset in offsets.items()],
        "decisions": plan.decisions,
        "digest": _digest(plan),
        "new_min_offset": of_only_log(offsets),
        "delete_offsets": [segment.base_offset for segment in plan.to_delete if len(offsets) == 1],
        "dependents": decided.dependents,
        "owed": decided.pending,
        "unread": decided.unread,
        "disks": decided.disks,
        "assumes_defaults": assumes_defaults(store),
        "places": next(places_lines(plan, store, None), None),
    }


def print_plan(store: ManagedStore, decided: Decided, manual_plan: Plan | None) -> None:
    """Print a previewed plan, and at the end the consumers' losses.

    :param manual_plan: the plan of :func:`by_hand`.
    """
    from storage_engine.retention.lag.unread_losses import unread_lines
    from storage_engine.retention.plan.preview import places_lines
    from storage_engine.retention.store.brokers import assumes_defaults

    plan = decided.plan
    say(store_head(store))
    for line in places_lines(plan, store, None):
        say(line)
    if assumes_defaults(store):
        say(ASSUMED)
    for trigger in plan.triggers:
        say(f"Cause: {trigger.cause.value} ({trigger.urgency.value}): ", trigger.detail)
    if not plan.triggers:
        say(f"Cause: none holds. {_no_cause(plan)}".rstrip())
    print_disks(decided.disks)
    say_notes(plan.notices)
    for log in plan.logs:
        say(f"\n{log.log}: {count_text(len(log.decisions), 'segment')}")
        for run in runs_of(log.decisions, _own_detail):
            print_lines(
                "  delete  " if run.deletes else "  keep    ", f"{run.names}, {bytes_text(run.disk_bytes)}"
            )
            print_lines(" " * 10, f"{run.reason.value}: {run.detail}")
    if decided.dependents:
        print_table(
            "To delete with them: files whose last entry points below the log's new start",
            ("kind", "files#", "size#", "in"),
            _group_by_directory(decided.dependents, plan.store_root),
        )
    print_pending(decided.pending)
    say()
    to_delete, digest = plan.to_delete, _digest(plan)
    if not to_delete:
        _print_nothing(manual_plan)
        return
    freed = sum(segment.disk_bytes for segment in to_delete)
    freed += sum(file.facts.size_bytes for file in decided.dependents)
    say(
        f"{count_text(len(to_delete), 'segment')} and {count_text(len(decided.dependents), 'file')} that "
        f"point into them would be deleted, {bytes_text(freed)} in all.\n"
        f"{_begin_text(plan)}.{f' Plan {digest}' if digest else ''}"
    )
    for line in unread_lines(store, decided.unread, done=False):
        say("WARNING ", line)


def by_hand(
    store: ManagedStore,
    request: PlanRequest,
    decided: Decided,
    used_percents: Mapping[str, int] | None = None,
    hold_back: HoldBack | None = None,
) -> Plan | None:
    """Return the plan of a run by hand. None if the shown plan is for a run by hand, or deletes segments.

    :param hold_back: see :func:`preview`.
    """
    from storage_engine.retention.plan.preview import preview

    if request.manual or decided.plan.to_delete:
        return None
    manual_request = replace(request, manual=True)
    at_ms = decided.plan.decided_at_ms
    return preview(store, manual_request, now_ms=at_ms, used_percents=used_percents, hold_back=hold_back).plan


def _print_nothing(manual_plan: Plan | None) -> None:
    """Print that nothing would be deleted, and how much a run by hand would delete."""
    if manual_plan is None or not manual_plan.to_delete:
        say("Nothing would be deleted now.")
        return
    freed = bytes_text(sum(segment.disk_bytes for segment in manual_plan.to_delete))
    say(
        "Nothing would be deleted now. By hand (--manual) "
        f"{count_text(len(manual_plan.to_delete), 'segment')} would, {freed}."
    )


def _begin_text(plan: Plan) -> str:
    if len(plan.logs) == 1:
        return f"The log would begin at {plan.logs[0].new_min_offset}"
    begins = (f"{log} at {offset}" for log, offset in plan.new_min_offsets.items())
    return f"Logs would begin: {', '.join(begins)}"


def _digest(plan: Plan) -> str | None:
    """Return the digest of a run with this plan. None if it needs the store's id, which isn't known yet."""
    return plan.digest if len(plan.logs) == 1 or plan.store_id is not None else None


def print_pending(pending: Iterable[Pending]) -> None:
    """Print pending messages by kind, also kinds whose number is unknown. Without any, print nothing."""
    rows = [item for item in pending if item.count != 0 or item.lost]
    if not rows:
        return
    lost = any(item.lost for item in rows)
    print_table(
        "Messages still pending",
        ("kind", "count#", "first offset#", "due from", "due until", *(["lost#"] if lost else [])),
        (
            (
                item.kind,
                "unknown" if item.count is None else item.count,
                "" if item.first_offset is None else item.first_offset,
                time_text(item.first_due_ms),
                time_text(item.last_due_ms),
                *([item.lost] if lost else []),
            )
            for item in rows
        ),
    )
    for item in rows:
        if item.error:
            say(f"{item.kind}: ", item.error)


def _no_cause(plan: Plan) -> str:
    """Return why there is no cause to delete. It is the same for every segment, so it is printed once."""
    details = (decision.detail for decision in plan.decisions if decision.reason is Reason.NO_CAUSE)
    sentence, _, _ = next(details, "").rpartition("; ")
    return sentence[:1].upper() + sentence[1:]


def _own_detail(decision: Decision) -> str:
    return decision.detail.rpartition("; ")[2] if decision.reason is Reason.NO_CAUSE else decision.detail


def print_disks(disks: Iterable[DiskUsage]) -> None:
    for disk in disks:
        level = f"unknown ({disk.error})" if disk.used_percent is None else f"{disk.used_percent} % used"
        say(f"Disk {disk.path}: {level}")


def _group_by_directory(files: Iterable[DependentFile], root: str) -> Iterator[tuple[object, ...]]:
    """Yield a row for each directory, because a store has thousands of such files. JSON names each file."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for file in files:
        directory = Path(file.facts.path).parent
        place = directory.relative_to(root) if directory.is_relative_to(root) else directory
        groups[file.kind, str(place)].append(file.facts.size_bytes)
    for (kind, directory_name), sizes in groups.items():
        yield kind, len(sizes), bytes_text(sum(sizes)), directory_name
