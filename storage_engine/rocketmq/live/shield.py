"""What a running broker means for the shield of its store: how fast it deletes, and whether by force."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from storage_engine.commands import Command, Text
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import time_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.hold import Drift, DriftKind, ShieldNeed
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.fence import fence_count, with_force_ended
from storage_engine.rocketmq.hold.heartbeat import is_shield_tended
from storage_engine.rocketmq.hold.state import (
    FORCIBLY,
    HoldState,
    Observed,
    load_state,
    save_state,
)
from storage_engine.rocketmq.live.drift import ENDS_TRUST, all_drift
from storage_engine.rocketmq.live.identity import ask_known_frame
from storage_engine.rocketmq.live.observe import observe
from storage_engine.rocketmq.rules.cleanup_schedule import interval_ms
from storage_engine.rocketmq.rules.disk import log_disks

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.session import LiveParts


def shield_need(store: LiveParts) -> ShieldNeed:
    """See :meth:`storage_engine.model.broker.broker_store.StoreShield.need`."""
    root = store.files.files.layout.root
    disk_bytes, used_percent = log_disks(store.files.files.layout)
    refusal = ""
    try:
        if load_state(store.memory) is None:
            refusal = "the store isn't held"
    except GateRefusedError as error:
        refusal = Text(error)
    return ShieldNeed(
        # A fence has one more.
        batch_segments=fence_count(store.settings) - 1,
        pass_interval_ms=max(interval_ms(store.files.config), 1),
        disk_bytes=disk_bytes,
        used_percent=used_percent,
        is_tended=is_shield_tended(root),
        refusal=refusal,
    )


def end_force(store: LiveParts) -> Drift | None:
    """See :meth:`storage_engine.model.broker.broker_store.StoreShield.end_force`.

    Above the broker's warning level nothing is set: whoever let it delete by force had a full disk. It is
    done while a run has the store, too.
    """
    memory, state = store.memory, load_state(store.memory)
    if memory is None or state is None:
        return None
    value = store.admin.config().get(FORCIBLY)
    if value == "false":
        return None
    why = _why_not_set(store)
    if why and store.admin.runtime_info().boot_timestamp_ms == state.boot_timestamp_ms:
        return _set(store, value, why)
    # All that takes the broker's time is asked before the lock: a run that waits for that would wait as well.
    found = ask_known_frame(store.admin, state, observe(store, clock_ms(), state))
    # Asked last: setting it is another connection than what was looked at.
    answers_ms = store.admin.runtime_info().boot_timestamp_ms
    if other := another_broker(state, found, answers_ms):
        return other
    if why:
        return _set(store, value, why)
    with marker.changing(store.files.files.layout.root):
        now = load_state(memory)
        if now is None or _judged_by(now) != _judged_by(state):
            return None  # a run has changed the hold, and sets it itself; else the next question finds it
        ended = with_force_ended(now, value or "")
        if ended != now:
            save_state(memory, ended)
        store.admin.update_config({FORCIBLY: "false"})
    return _set(store, value, f". It was set back to false {time_text(clock_ms())}.")


def another_broker(state: HoldState, found: Observed, answers_ms: int) -> Drift | None:
    """Return what is to be said of a broker that isn't provably the one that is held; None: it is.

    The process that was looked at last is; of another one, at whatever address, the files' lock has to tell.

    :param answers_ms: boot timestamp of the process that answers after all that was found.
    """
    seen = all_drift(state, found)
    ended = next((one for one in seen if one.kind in ENDS_TRUST), None)
    if ended is not None:
        return replace(ended, detail=Text(ended.detail, " Its settings were left as they are."))
    is_proven = found.boot_timestamp_ms == state.boot_timestamp_ms or not found.unproven
    if is_proven and answers_ms == found.boot_timestamp_ms:
        return None
    why = found.unproven.rstrip(".") or "another process answers there from one moment to the next"
    return Drift(
        DriftKind.BROKER_RESTARTED,
        Text(
            f"{found.address}: expected the broker that is held, found another process with "
            f"{FORCIBLY}={found.settings.get(FORCIBLY)}, which isn't provably the same broker ({why}). Its "
            "settings were left as they are. Run ",
            Command("hold"),
            ", which looks at it again.",
        ),
    )


def _judged_by(state: HoldState) -> HoldState:
    """Return what a broker was judged by: all that only a run changes, which a watch's own mends don't."""
    return replace(state, touched=(), fence=(), fence_offset=-1)


def _why_not_set(store: LiveParts) -> str:
    """Return why a broker's deletion by force isn't ended, as the end of a sentence; "": it is."""
    _, used_percent = log_disks(store.files.files.layout)
    limit = store.files.config.disk_space_warning_level_percent
    level = "unknown" if used_percent is None else f"{used_percent} %"
    if not store.live.may_change_settings:
        return f"; its disk is at {level}. We may not set it (may_change_settings): set it to false yourself."
    if used_percent is None or used_percent > limit:
        return (
            f"; its disk is at {level}. The broker's warning level is {limit} %, so it was left as it is: "
            "free some space, and set it to false."
        )
    return ""


def _set(store: LiveParts, value: str | None, what_was_done: str) -> Drift:
    return Drift(
        DriftKind.SETTING_CHANGED,
        f"{store.admin.address}: expected {FORCIBLY}=false, found {value}: somebody changed it while the "
        f"store was held{what_was_done}",
    )
