"""What a hold is worth, as it is found: until when it stands, and what it doesn't protect against."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.own_directory import DIRECTORY
from storage_engine.rocketmq.disk import disk_usage
from storage_engine.rocketmq.live import fence, marker
from storage_engine.rocketmq.live.drift import ENDS_TRUST, all_drift, name_of
from storage_engine.rocketmq.live.forcing import (
    announce_rewrite,
    check_force_is_far,
    deletes_by_force,
    reserved_hours,
)
from storage_engine.rocketmq.live.growth import fills_before
from storage_engine.rocketmq.live.heartbeat import no_watch
from storage_engine.rocketmq.live.known_frame import ask_known_frame
from storage_engine.rocketmq.live.local_hold import read_local
from storage_engine.rocketmq.live.lost_topics import with_topics
from storage_engine.rocketmq.live.observe import below_the_first_file, find
from storage_engine.rocketmq.live.state import FORCIBLY, RESERVED, Found, HoldState, load_state
from storage_engine.wording import time_text

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.live_store import LiveStore


def look(store: LiveStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.BrokerStore.look_at_hold`."""
    state = load_state(store.memory)
    if state is None:
        return HoldStatus(held=False, notices=("the store isn't held", *_before_the_first(store, now_ms)))
    return _status(store, state, ask_known_frame(store.admin, state, find(store, now_ms, state)))


def all_disturbances(
    store: LiveStore, state: HoldState | None, found: Found
) -> tuple[tuple[Drift, ...], tuple[Drift, ...]]:
    """Return all that there are, and those among them that weren't reported before."""
    if state is None:
        return (), ()
    lasting = all_drift(state, found)
    new = tuple(disturbance for disturbance in lasting if name_of(disturbance) not in state.reported)
    return lasting, with_topics(new, store.files.files.layout)


def notices(store: LiveStore, found: Found) -> list[str]:
    """Return what a person should know of a hold that can be had.

    :raises GateRefusedError: the broker may delete by force, and we may not forbid it, and it is near.
    """
    said = []
    layout = store.files.files.layout
    if deletes_by_force(found) and not store.live.may_change_settings:
        disks = [disk_usage(path) for path in (*layout.commitlog_paths, layout.consumequeue)]
        said.append(check_force_is_far(found, store.files.config, disks, str(layout.root)))
    if store.live.may_change_settings and found.saved.values is None:
        why = found.saved.problem or "the store's settings don't name it"
        said.append(f"broker.conf can't be read ({why}), so what a restart would bring back isn't known")
    return said


def weaknesses(store: LiveStore, state: HoldState, found: Found) -> Iterator[str]:
    """Say what a hold that stands doesn't protect against."""
    if (reserved := reserved_hours(found, str(root_of(store)))) <= 0:
        yield (
            f"{RESERVED} is {reserved} at broker {found.address}: whatever is sealed has expired at once, so "
            "that only the fence keeps it; set it to 48 or so"
        )
    if why := no_watch(root_of(store)):
        yield (
            f"{why}: until the next run nobody mends a fence that somebody touches or removes; once its "
            f"{len(state.fence) or 1} files are, the broker deletes what is behind them. Run "
            "storage-engine watch on this host"
        )
    elif read_local(root_of(store)) is None:
        yield (
            f"{root_of(store) / DIRECTORY}: no space for the hold, or an older release made it: until it is "
            "renewed with some space no watch can mend its fence"
        )
    layout = store.files.files.layout
    disks = [disk_usage(path) for path in layout.commitlog_paths]
    limit = store.files.config.disk_space_warning_level_percent
    if fills_before(found, state, disks, limit):
        yield (
            f"as fast as the log has grown lately, its disk is above {limit} % before the broker's own "
            f"deletion begins again, if nobody renews the hold; while {FORCIBLY} is false the broker then "
            f"takes no message. Lower hold_hours or {RESERVED}, or add space"
        )


def root_of(store: LiveStore) -> Path:
    return store.files.files.layout.root


def _status(store: LiveStore, state: HoldState, found: Found) -> HoldStatus:
    """Return what a hold is worth as it is found, without renewing it."""
    lasting, new = all_disturbances(store, state, found)
    said = [d.detail for d in lasting if d.kind in ENDS_TRUST]
    stands, place, ends_at_ms, deletes_from_ms = not said, -1, found.at_ms, found.at_ms
    try:
        reserved = reserved_hours(found, str(root_of(store)))
        files = fence.first_that_stay(found, state.releasing)
        if files:
            place = files[0].base_offset
            ends_at_ms = fence.stands_until_ms(files[0].mtime_ns, reserved)
            deletes_from_ms = fence.expires_at_ms(files[0].mtime_ns, reserved)
        else:
            ends_at_ms = deletes_from_ms = found.at_ms + reserved * fence.HOUR_MS
        said += notices(store, found)
        ours = any(changed.key == FORCIBLY for changed in state.changed_settings)
        forbidden = ours or state.expected_settings.get(FORCIBLY) == "false"
        # Where we may not set it, a renewal that told of it holds the store all the same.
        is_told = all(one.kind is not DriftKind.SETTING_CHANGED for one in new)
        accepted = is_told and not store.live.may_change_settings
        if deletes_by_force(found) and forbidden and not accepted:
            stands = False
            said.append(
                f"{FORCIBLY} is not false at broker {found.address}: until the hold is renewed, the broker "
                "deletes whatever is held above its force level"
            )
        if stands and ends_at_ms <= found.at_ms < deletes_from_ms:
            said.append(
                f"the hold ended {time_text(ends_at_ms)}; by {RESERVED}={reserved} the broker itself begins "
                f"to delete {time_text(deletes_from_ms)}"
            )
        said += [*weaknesses(store, state, found), *below_the_first_file(found, state)]
    except GateRefusedError as error:
        stands = False
        said.append(str(error))
    stands = stands and ends_at_ms > found.at_ms
    ends = (ends_at_ms, deletes_from_ms) if stands else (None, None)
    return HoldStatus(stands, place, ends[0], new, tuple(said), ends[1])


def _before_the_first(store: LiveStore, now_ms: int) -> Iterator[str]:
    """Say of a store that isn't held what would keep it from being, and what a hold would change."""
    found, root = find(store, now_ms), root_of(store)
    try:
        marker.refuse_foreign(root, None, now_ms)
        reserved_hours(found, str(root))
        yield from notices(store, found)
        if deletes_by_force(found) and store.live.may_change_settings:
            yield announce_rewrite(found)
    except GateRefusedError as error:
        yield f"a hold would be refused: {error}"
