"""End a hold: put every mtime and every setting back, and leave the store to its broker's own rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from storage_engine.model.hold import HoldStatus
from storage_engine.rocketmq.live import fence, marker
from storage_engine.rocketmq.live.cleanup_schedule import FIRST_PASS_MS, MANUAL_PASSES, interval_ms
from storage_engine.rocketmq.live.drift import ENDS_TRUST, disturbances
from storage_engine.rocketmq.live.known_frame import ask_known_frame
from storage_engine.rocketmq.live.lost_topics import with_topics
from storage_engine.rocketmq.live.observe import find
from storage_engine.rocketmq.live.state import Found, HoldState, load_state, save_state
from storage_engine.wording import paths_text

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.live_store import LiveStore


def end_hold(store: LiveStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.BrokerStore.unmanage`.

    Waits until the broker is through with what it was told to delete: without the fence it would go on.
    What somebody else has set meanwhile stays as they set it. Where another broker is the master by now, or
    has another store, its settings aren't ours.

    :raises GateRefusedError: a file's mtime may not be set; the store is still held.
    :raises BrokerError: the broker can't be asked, or doesn't take a setting; the store is still held.
    """
    root = store.files.files.layout.root
    with marker.alone(root):
        state = load_state(store.memory)
        if store.memory is None or state is None:
            return HoldStatus(held=False, notices=("the store wasn't held",))
        _wait_for_last_pass(store, state, store.admin.runtime_info().boot_timestamp_ms)
        with marker.changing(root):
            # Only now, as a watch has mended the hold and set force back until here.
            state = load_state(store.memory) or state
            found = ask_known_frame(store.admin, state, find(store, now_ms, state))
            seen = with_topics(disturbances(state, found), store.files.files.layout)
            store.memory.record_drift(seen)
            ours = all(disturbance.kind not in ENDS_TRUST for disturbance in seen)
            settings = _put_settings_back(store, state, found) if ours else _left_settings(state)
            notices = [*settings, *_touched_by_others(state, found)]
            fence.put_all_back(root, store.memory, state)
            marker.remove_marker(root, state.manager)
            save_state(store.memory, None)
    return HoldStatus(held=False, disturbances=seen, notices=tuple(notices))


def _put_settings_back(store: LiveStore, state: HoldState, found: Found) -> Iterator[str]:
    """Restore what we changed; what somebody else has changed since stays.

    :return: notices.
    """
    for changed in state.changed_settings:
        value = found.settings.get(changed.key)
        if value == changed.ours:
            store.admin.update_config({changed.key: changed.original})
        elif value != changed.original:
            yield f"{changed.key} is {value}: somebody set it, so it wasn't put back to {changed.original}"


def _left_settings(state: HoldState) -> Iterator[str]:
    """Return what we changed on a broker that doesn't answer any more."""
    for changed in state.changed_settings:
        yield (
            f"{changed.key} was set to {changed.ours} at the broker that was at {state.address}: put it back "
            f"to {changed.original} there, and in its broker.conf"
        )


def _touched_by_others(state: HoldState, found: Found) -> Iterator[str]:
    paths = [
        touched.path
        for touched in state.touched
        if found.file_at(touched.base_offset) is not None and not fence.is_ours(touched)
    ]
    if paths:
        what = "it, so its mtime wasn't" if len(paths) == 1 else "them, so their mtimes weren't"
        yield f"{paths_text(paths)}: somebody touched or replaced {what} put back"


def _wait_for_last_pass(store: LiveStore, state: HoldState, boot_timestamp_ms: int) -> None:
    """A trigger counts down with each pass from the first on; a restart ends it (CleanCommitLogService)."""
    if state.last_trigger_ms is None or boot_timestamp_ms != state.boot_timestamp_ms:
        return
    # One more, as the first pass may begin up to an interval later, and the last one takes a while.
    begins_ms = max(state.last_trigger_ms, boot_timestamp_ms + FIRST_PASS_MS)
    passes_ms = (MANUAL_PASSES + 1) * interval_ms(store.files.config)
    left_ms = begins_ms + passes_ms - time.time_ns() // 1_000_000
    if left_ms > 0:
        # A clock that was set back makes none of it later.
        time.sleep(min(left_ms, FIRST_PASS_MS + passes_ms) / 1000)
