"""What a running broker means for the shield of its store: how fast it deletes, and whether by force."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.hold import Disturbance, DisturbanceKind
from storage_engine.model.shield import ShieldNeed
from storage_engine.rocketmq.beside import marker
from storage_engine.rocketmq.beside.fence import fence_count
from storage_engine.rocketmq.beside.heartbeat import is_shield_tended
from storage_engine.rocketmq.beside.hold_state import (
    FORCIBLY,
    ChangedSetting,
    HoldState,
    load_state,
    save_state,
)
from storage_engine.rocketmq.beside.passes import interval_ms
from storage_engine.rocketmq.disk import log_disks

if TYPE_CHECKING:
    from storage_engine.rocketmq.beside.store import BesideStore


def shield_need(store: BesideStore) -> ShieldNeed:
    """See :meth:`storage_engine.model.broker.BrokerStore.shield_need`."""
    root = store.files.files.layout.root
    disk_bytes, used_percent = log_disks(store.files.files.layout)
    refusal = ""
    try:
        if load_state(store.memory) is None:
            refusal = "the store isn't held"
    except GateRefusedError as error:
        refusal = str(error)
    return ShieldNeed(
        # A fence has one more.
        batch_segments=fence_count(store.settings) - 1,
        pass_interval_ms=max(interval_ms(store.files.config), 1),
        disk_bytes=disk_bytes,
        used_percent=used_percent,
        is_tended=is_shield_tended(root),
        refusal=refusal,
    )


def end_force(store: BesideStore) -> Disturbance | None:
    """See :meth:`storage_engine.model.broker.BrokerStore.end_force`.

    Above the broker's warning level nothing is set: whoever let it delete by force had a full disk.
    """
    memory, config = store.memory, store.files.config
    state = load_state(memory)
    if memory is None or state is None:
        return None
    found = store.admin.config().get(FORCIBLY)
    if found == "false":
        return None
    _, used_percent = log_disks(store.files.files.layout)
    level = "unknown" if used_percent is None else f"{used_percent} %"
    said = (
        f"{store.admin.address}: expected {FORCIBLY}=false, found {found}: somebody changed it while the "
        f"store was held; its disk is at {level}."
    )
    if not store.live.may_change_settings:
        return _set(f"{said} We may not set it (may_change_settings): set it to false yourself.")
    if used_percent is None or used_percent > config.disk_space_warning_level_percent:
        return _set(
            f"{said} The broker's warning level is {config.disk_space_warning_level_percent} %, so it was "
            "left as it is: free some space, and set it to false."
        )
    with marker.alone(store.files.files.layout.root):
        state = load_state(memory)
        if state is None:
            return None
        save_state(memory, with_force_ended(state, found or ""))
        store.admin.update_config({FORCIBLY: "false"})
    return _set(f"{said} It was set back to false {time.strftime('%H:%M:%S', time.gmtime())} UTC.")


def with_force_ended(state: HoldState, found: str) -> HoldState:
    """Return a hold that sets the broker's deletion by force to false, and what it was before the hold back.

    :param found: the setting now; it counts where the hold knows of none before.
    """
    if any(changed.key == FORCIBLY for changed in state.changed_settings):
        return state
    original = state.expected_settings.get(FORCIBLY, found)
    changed = ChangedSetting(FORCIBLY, original, "false")
    return replace(state, changed_settings=(*state.changed_settings, changed))


def _set(detail: str) -> Disturbance:
    return Disturbance(DisturbanceKind.SETTING_CHANGED, detail)
