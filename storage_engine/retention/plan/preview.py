"""Preview of a cleanup, now or at another moment, without any change of store, journal or lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

from storage_engine.commands import Text
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import ShieldError
from storage_engine.model.plan import Plan, PlanRequest
from storage_engine.model.settings.policy import SparkUse, archive_place, lag_place
from storage_engine.retention.plan.deciding import Decided, HoldBack, check_quarantine, decide
from storage_engine.retention.store.broker_answers import take_glance
from storage_engine.retention.store.brokers import open_to_look
from storage_engine.retention.store.managed_store import ManagedStore, archive_threads_of
from storage_engine.shield.index import shield_path


def preview(
    store: ManagedStore,
    request: PlanRequest,
    *,
    now_ms: int | None = None,
    used_percents: Mapping[str, int] | None = None,
    hold_back: HoldBack | None = None,
) -> Decided:
    """Decide what a cleanup would delete and why. Nothing is recorded.

    :param now_ms: the moment to decide for; None for this machine's clock.
    :param used_percents: levels to assume, by path. Other disks are measured.
    :param hold_back: cuts the plan once more, for example before messages that consumers still have to read.
    :raises BadInputError: a path isn't on one of the store's disks; the store can't be planned or cleaned up;
        or its files can't be set aside, although the policy requires that.
    """
    with closing(open_to_look(store)) as broker:
        decided = decide(
            broker,
            request,
            clock_ms() if now_ms is None else now_ms,
            used_percents,
            kind=store.broker,
            policy=store.policy,
            hold_back=hold_back,
            take=take_glance,
        )
        check_quarantine(store, broker.data_paths, decided)
    if decided.plan.to_delete and store.archives and store.may_have_journal:
        from storage_engine.retention.proof.proofs import look_up_permits, unarchived_notices

        unarchived = unarchived_notices(look_up_permits(store), decided.plan.to_delete)
        decided = replace(decided, plan=replace(decided.plan, notices=(*decided.plan.notices, *unarchived)))
    if not shield_path(store.real_root).exists():
        return decided
    from storage_engine.retention.proof.shielding import shield_notices

    try:
        shielded = shield_notices(store.real_root, decided.plan.to_delete)
    except ShieldError as error:
        # A run would refuse this. A preview only shows it as a notice.
        shielded = (Text(error),)
    return replace(decided, plan=replace(decided.plan, notices=(*decided.plan.notices, *shielded)))


def places_lines(plan: Plan, store: ManagedStore, spark: SparkUse | None) -> Iterator[str]:
    """Yield a line on where a plan's segments are archived, and where consumers' lag is measured."""
    sizes = [segment.facts.size_bytes for segment in plan.to_delete]
    if not sizes:
        return
    threads = min(len(sizes), archive_threads_of(store, max(sizes)))
    archive = archive_place(spark, threads, sum(sizes), len(sizes))
    lag = lag_place(spark, spark.spark_from.positions or 1) if spark else lag_place(None, 0)
    least = f" from {spark.spark_from.of_lag} on" if spark and spark.spark_from.positions else ""
    yield f"Archive {archive.text if store.archives else 'off'}; consumer lag {lag.text}{least}"
