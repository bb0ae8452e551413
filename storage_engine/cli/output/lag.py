"""Consumer lag without Spark: measured in this process, and printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from storage_engine.cli.output.output import print_table, say
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.model.lag import LagSource, PositionsFrom
from storage_engine.model.plan import Plan
from storage_engine.model.settings.policy import LagPolicy
from storage_engine.model.store import SegmentId
from storage_engine.retention.lag.lag_policy import apply_lag_policy, lag_doubt

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_engine.retention.lag.lag_table import LagPart
    from storage_engine.retention.store.managed_store import ManagedStore
    from storage_engine.spark.consumer_lag import LagInProcess


def in_process_lag(managed: ManagedStore, going: Sequence[SegmentId]) -> LagInProcess:
    """Return an object that measures a store's lag in this process, without Spark.

    It yields tables of whole queues, with a row for each :class:`~storage_engine.model.lag.QueueLag`.

    :param going: the segments about to be deleted.
    """
    from storage_engine.spark.consumer_lag import ConsumerLagRequest, LagInProcess, prepare

    return LagInProcess(*prepare(ConsumerLagRequest.of(managed, "", going)))


@dataclass(frozen=True, slots=True)
class GroupAtRisk:
    """A consumer group, and the effect of a deletion on it.

    :param lag_messages: messages that it has not read, in queues where its position is known.
    :param unknown_queues: number of queues where its position isn't known.
    :param losing_queues: number of queues where its next message would be deleted.
    """

    group: str
    lag_messages: int
    unknown_queues: int
    losing_queues: int


def groups_at_risk(tables: Iterable[pa.Table]) -> tuple[GroupAtRisk, ...]:
    """Sum up the groups that are behind or have an unknown position. Groups that lose messages come first."""
    groups: dict[str, GroupAtRisk] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        group = groups.get(row["group"], GroupAtRisk(row["group"], 0, 0, 0))
        groups[row["group"]] = GroupAtRisk(
            group.group,
            group.lag_messages + (row["lag_messages"] or 0),
            group.unknown_queues + (row["lag_messages"] is None),
            group.losing_queues + bool(row["at_risk"]),
        )
    behind = (group for group in groups.values() if group.lag_messages or group.unknown_queues)
    return tuple(sorted(behind, key=lambda group: (-group.losing_queues, group.group)))


class LagOfPlan:
    """Measures the groups that are behind, for a plan that is only shown.

    A call takes the plan. It returns the plan without the deletions that the store's lag policy forbids.

    :ivar groups: groups that are behind or unknown, with the messages that the plan makes them lose.
    :ivar source: the source of their positions.
    """

    def __init__(self, managed: ManagedStore) -> None:
        self._managed = managed
        self.groups: tuple[GroupAtRisk, ...] = ()
        self.source = LagSource()

    def __call__(self, plan: Plan) -> Plan:
        from storage_engine.brokers import find_broker
        from storage_engine.retention.lag.lag_table import LagPart, merge

        policy, parts = self._managed.policy, list[LagPart]()
        lag = self._measure(plan, parts)
        if policy.lag_policy is not LagPolicy.BLOCK or not plan.to_delete:
            return plan
        _, at_risk = merge(parts, lag.source, lag.logs)
        doubt = lag_doubt(lag.source, now_ms := clock_ms(), now_ms, policy.lag_max_age_minutes)
        unit = find_broker(self._managed.broker).words.queue
        cut = apply_lag_policy(plan, at_risk, policy.lag_policy, () if doubt else lag.logs, unit)
        if doubt:
            text = f"lag_policy is block, so a run expects the consumers' lag to be known, and found {doubt}"
            cut = replace(cut, notices=(*cut.notices, text))
        if len(cut.to_delete) < len(plan.to_delete):
            self._measure(cut, [])
        return cut

    def _measure(self, plan: Plan, parts: list[LagPart]) -> LagInProcess:
        from storage_engine.retention.lag.lag_table import lag_part

        lag = in_process_lag(self._managed, tuple(segment.id for segment in plan.to_delete))

        def tables() -> Iterator[pa.Table]:
            for table in lag:
                parts.append(lag_part(table))
                yield table

        self.groups, self.source = groups_at_risk(tables()), lag.source
        return lag


def print_groups(groups: Sequence[GroupAtRisk], source: LagSource, unit: str) -> None:
    """Print the effect of a deletion on each group that is behind or whose position is unknown.

    :param unit: the word for a part of a topic, such as queue.
    """
    if groups:
        print_table(
            "Consumers that are behind",
            ("group~", "behind#", f"unknown {unit}s#?", f"{unit}s that lose messages#"),
            (
                (group.group, group.lag_messages, group.unknown_queues, group.losing_queues)
                for group in groups
            ),
        )
    else:
        say(f"\nConsumers: no group is {'known to be ' if source.notices else ''}behind.")
    for notice in source.notices:
        say("WARNING ", notice)


def print_lag(
    rows: Sequence[Mapping[str, Any]], source: LagSource, unit: str, *, by_hand: bool, by_broker: bool
) -> None:
    """Print consumer groups' positions and possible losses.

    :param unit: the word for a part of a topic, such as queue.
    :param by_hand: whether only a run by hand would delete the segments that groups need next.
    :param by_broker: whether only the store's broker deletes segments.
    """
    lost = any(row["lost_messages"] for row in rows)
    sized = any(row["lag_bytes"] is not None for row in rows)
    now = "by hand" if by_hand else "now"
    print_table(
        "Consumer lag",
        (
            *("group~", f"{unit}~", "committed#?", "behind#"),
            *(["bytes#?"] if sized else []),
            "by#?",
            *(["lost#"] if lost else []),
            "next one goes",
        ),
        (
            (
                row["group"],
                f"{row['topic']}/{row['queue_id']}",
                _number_text(row["committed_offset"]),
                _number_text(row["lag_messages"]),
                *([_bytes(row["lag_bytes"])] if sized else []),
                duration_text(row["lag_ms"]) if row["lag_messages"] else "",
                *([row["lost_messages"]] if lost else []),
                now if row["at_risk"] else _loss_text(row),
            )
            for row in rows
        ),
    )
    say()
    behind = sum(row["lag_messages"] or 0 for row in rows)
    groups = len({row["group"] for row in rows})
    risky = sum(row["at_risk"] for row in rows)
    actor = "the broker deletes now" if by_broker else "a cleanup deletes now"
    if by_hand and not by_broker:
        actor = "a cleanup by hand (--manual) deletes; none is deleted now"
    say(
        f"{count_text(groups, 'group')}, {count_text(behind, 'message')} behind; in "
        f"{count_text(risky, unit)} the next message is in a segment that {actor}."
    )
    if source.positions is PositionsFrom.BROKER:
        say("Positions: from the running broker.")
    for notice in source.notices:
        say("WARNING ", notice)


def _number_text(value: int | None) -> int | str:
    return "unknown" if value is None else value


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else bytes_text(size)


def _loss_text(row: Mapping[str, Any]) -> str:
    return f"in {duration_text(row['time_to_loss_ms'])}" if row["time_to_loss_ms"] is not None else ""
