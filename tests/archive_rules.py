"""Archive rules that are as old as a test needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pytest

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.journal import stores
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.unarchived import ArchivePermits
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.keep.acts import decide_archive, policy_of
from storage_engine.model.keep.keep_rules import ArchiveRule, Hold, Scope
from storage_engine.retention.housekeeping.keeping import record_archive_rules
from storage_engine.retention.store.managed_store import ManagedStore

HOUR_MS = 3_600_000
OLD_MS = 25 * HOUR_MS
NOW_MS = 100 * DAY_MS
"""When :func:`permits_of` is asked."""


def permits_of(rules: Iterable[ArchiveRule], holds: Iterable[Hold] = ()) -> ArchivePermits:
    """Return what rules permit of a store of RocketMQ whose journal recorded them when they were made."""
    rules = tuple(rules)
    recorded = {rule.rule_id: rule.at_ms for rule in rules}
    return ArchivePermits("s", ("name",), "rocketmq", (rules,), recorded, NOW_MS, tuple(holds))


def record_rule(
    store: ManagedStore,
    scope: Scope,
    *,
    archives: bool = False,
    age_ms: int = OLD_MS,
    in_journal: bool = True,
) -> ArchiveRule:
    """Record a rule in a store's lakes, and in its journal, as of a moment before now."""
    return record_rule_in(
        store.lakes, store.journal_url if in_journal else None, scope, archives=archives, age_ms=age_ms
    )


def record_rule_in(
    lakes: Sequence[LakeConfig],
    journal_url: str | None,
    scope: Scope,
    *,
    archives: bool = False,
    age_ms: int = OLD_MS,
) -> ArchiveRule:
    """Record a rule in lakes, and in a journal; None: in none."""
    at_ms = clock_ms() - age_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(act_files, "clock_ms", lambda: at_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: at_ms * 1_000_000)
        patch.setattr(stores, "clock_ms", lambda: at_ms)
        for config in lakes:
            lake = open_lake(config)
            acts = act_files.record_act(lake, partial(decide_archive, scope=scope, archives=archives))
            record_archive_rules(lake, journal_url, acts, scope)
    (rule,) = (rule for rule in policy_of(acts).archive_rules if rule.scope == scope)
    return rule
