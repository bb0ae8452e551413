"""Whether what a plan deletes could be set aside, for an undo."""

from __future__ import annotations

from pathlib import Path

from storage_engine.retention.plan.deciding import Decided
from storage_engine.retention.quarantine.places import choose_places
from storage_engine.retention.store.brokers import check_undo_settings
from storage_engine.retention.store.managed_store import ManagedStore


def check_quarantine(store: ManagedStore, data_paths: tuple[Path, ...], decided: Decided) -> None:
    """Make sure that what a plan deletes could be set aside, where the policy wants it. Changes nothing.

    :param data_paths: where the store's broker writes.
    :raises BrokerPackageError: one lies outside of the store; nothing was deleted.
    :raises BadInputError: for some directory there is no place on its file system.
    """
    if store.policy.undo_window_hours is None:
        return
    check_undo_settings(store)
    segments = (file for segment in decided.plan.to_delete for file in segment.files)
    going = (*segments, *(file.facts for file in decided.dependents))
    choose_places(store, data_paths, "", "", (Path(facts.path) for facts in going))
