"""What a cleanup would do, at this moment or another one, without touching store, journal or lake."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.model.plan import PlanRequest
from storage_engine.retention.brokers import open_to_look
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.deciding import Decided, decide
from storage_engine.retention.managed_store import ManagedStore


def preview(
    store: ManagedStore,
    request: PlanRequest,
    *,
    now_ms: int | None = None,
    used_percents: Mapping[str, int] | None = None,
) -> Decided:
    """Decide what would go and why; nobody records it.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :param used_percents: levels to assume, by path; other disks are measured.
    :raises BadInputError: a path that is none of the store's disks, or a store that can't be planned or
        cleaned up.
    """
    return decide(
        open_to_look(store),
        request,
        clock_ms() if now_ms is None else now_ms,
        used_percents,
        pending_policy=store.policy.pending_policy,
        lag_policy=store.policy.lag_policy,
    )
