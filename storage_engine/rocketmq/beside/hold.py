"""Hold the store of a running broker: nothing of it goes unless we let it go, for as long as we renew that.

The broker serves and deletes by its own rules; a hold makes these rules find nothing: the first segment that
must stay is a fence (:mod:`fence`), and the broker doesn't delete by force (:mod:`forcing`). It ends by
itself when nobody renews it, so that a dead pipeline fills no disk. What is unknown, as an unreachable broker
or a file that can't be looked at, never leads to a change.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.exceptions import BadInputError, GateRefusedError
from storage_engine.model.hold import Disturbance, HoldMemory, HoldStatus
from storage_engine.model.store import Segment
from storage_engine.rocketmq.beside import fence, marker
from storage_engine.rocketmq.beside.disturbances import ENDS_TRUST, LASTS, disturbances, name_of
from storage_engine.rocketmq.beside.finding import find
from storage_engine.rocketmq.beside.forcing import check_force_is_far, deletes_by_force, reserved_hours
from storage_engine.rocketmq.beside.hold_state import (
    FORCIBLY,
    HELD_SETTINGS,
    ChangedSetting,
    Found,
    HoldState,
    load_state,
    save_state,
)
from storage_engine.rocketmq.beside.known_frame import ask_known_frame, know_newest_frame
from storage_engine.rocketmq.beside.live_config import refuse_slave
from storage_engine.rocketmq.beside.lost_topics import with_topics
from storage_engine.rocketmq.disk import disk_usage

if TYPE_CHECKING:
    from storage_engine.rocketmq.beside.store import BesideStore

LETS_GO_MTIME_NS: Final = 0
"""Of what is let go: no fileReservedTime makes it young."""

_LOOKS: Final = 5
"""A broker deletes a file each 100 ms (deleteCommitLogFilesInterval): the next look is ahead of it."""


@dataclass(frozen=True, slots=True)
class HeldBeside:
    """Implements :class:`storage_engine.model.broker.Held`."""

    notices: tuple[str, ...]


def guard(store: BesideStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.BrokerStore.guard`.

    Where the broker has another store or another role than before, nothing is changed, and it isn't held.

    :raises GateRefusedError: it can't be held; nothing was changed.
    :raises StoreBusyError: another process works on the hold.
    :raises BrokerError: the broker can't be asked, or doesn't take a setting.
    :raises BadInputError: the directory isn't this broker's store, or the broker is a slave.
    """
    with marker.alone(_root(store)):
        return _guard(store, now_ms)


@contextmanager
def held(store: BesideStore) -> Iterator[HeldBeside]:
    """Hold the store, and keep other processes from working on its hold until the block ends.

    :raises GateRefusedError: it can't be held.
    """
    with marker.alone(_root(store)):
        status = _guard(store, time.time_ns() // 1_000_000)
        if not status.held:
            raise GateRefusedError("; ".join(status.notices))
        yield HeldBeside(status.notices)


def look(store: BesideStore, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.BrokerStore.look_at_hold`."""
    state = load_state(store.memory)
    if state is None:
        return HoldStatus(held=False, notices=("the store isn't held", *_before_the_first(store, now_ms)))
    found = ask_known_frame(store.admin, state, find(store, now_ms, state))
    return _status(store, state, found, ())


def expose(
    store: BesideStore, memory: HoldMemory, state: HoldState, segments: Sequence[Segment], stays: Path
) -> HoldState:
    """Let segments be the only ones that the broker may delete. To be called while the store is held.

    The fence stands behind them before the first one is made old.

    :param segments: the log's first ones, oldest first; those that are gone already are left out.
    :param stays: the first file that must stay.
    :return: the state as it is remembered now.
    :raises GateRefusedError: the fence can't be put there, or an mtime can't be set.
    """
    found = find(store, time.time_ns() // 1_000_000)
    state = replace(state, releasing=tuple(segment.base_offset for segment in segments))
    behind = next((file for file in found.files if file.base_offset > state.releasing[-1]), None)
    if behind is None or Path(behind.path) != stays:
        raise GateRefusedError(
            f"{stays}: expected the first segment that stays, found {behind.path if behind else 'no file'}. "
            "Nothing was deleted. Plan again."
        )
    save_state(memory, state)
    state = _put_fence(store, memory, state, found)
    # What an earlier call has made old may go at this moment.
    young = [f for f in found.files if f.base_offset in state.releasing and f.mtime_ns != LETS_GO_MTIME_NS]
    return fence.set_mtimes(memory, state, [(file, LETS_GO_MTIME_NS) for file in reversed(young)])


def forget_released(memory: HoldMemory, state: HoldState, min_offset: int) -> HoldState:
    """Forget the segments that were let go, once they are gone.

    :param min_offset: where the log begins now.
    :return: the state as it is remembered now.
    """
    gone = frozenset(state.releasing)
    state = replace(
        state,
        releasing=(),
        touched=tuple(touched for touched in state.touched if touched.base_offset not in gone),
        segments=tuple((base, inode) for base, inode in state.segments if base not in gone),
        min_offset=min_offset,
    )
    save_state(memory, state)
    return state


def _guard(store: BesideStore, now_ms: int) -> HoldStatus:
    for _ in range(_LOOKS - 1):
        with suppress(fence.SegmentGoneError):  # the broker is deleting what nothing holds yet
            return _guard_as_found(store, now_ms)
    return _guard_as_found(store, now_ms)


def _guard_as_found(store: BesideStore, now_ms: int) -> HoldStatus:
    root, live = _root(store), store.live
    if store.memory is None:
        raise GateRefusedError(f"{root}: expected a journal that remembers a hold, found none.")
    if live.hold_hours < 1:
        raise BadInputError(f"hold_hours: expected at least 1, found {live.hold_hours}")
    before = load_state(store.memory)
    found = find(store, now_ms, before)
    if before is None:
        refuse_slave(found.settings, found.address)
    else:
        found = ask_known_frame(store.admin, before, found)
    lasting, new = _disturbances(store, before, found)
    state = before or HoldState(uuid.uuid4().hex, found.boot_timestamp_ms)
    if any(disturbance.kind in ENDS_TRUST for disturbance in lasting):
        save_state(store.memory, replace(state, reported=tuple(map(name_of, lasting))))
        return HoldStatus(False, disturbances=new, notices=tuple(d.detail for d in lasting))
    begun = False
    try:
        marker.refuse_foreign(root, before.manager if before else None, now_ms)
        reserved = reserved_hours(found, str(root))
        notices = _notices(store, found)
        new_fence = fence.fence(found, state, live.hold_hours, reserved)
        if before is None:  # by which the marker is known for ours
            save_state(store.memory, state)
            begun = True
        unmarked = marker.write_marker(root, state.manager, new_fence.ends_at_ms)
        state = _put_fence(store, store.memory, state, found)
    except GateRefusedError as error:
        if begun:  # the fence would have been the first thing that was touched
            marker.remove_marker(root, state.manager)
            save_state(store.memory, None)
        if new and not isinstance(error, fence.SegmentGoneError):
            said = "; ".join(disturbance.detail for disturbance in new)
            raise GateRefusedError(f"{error} What disturbed it: {said}") from error
        raise
    state = _forbid_force(store, store.memory, state, found)
    state = know_newest_frame(store.admin, _as_found(state, found), found)
    state = replace(state, reported=tuple(name_of(d) for d in lasting if d.kind in LASTS))
    if state != before:
        save_state(store.memory, state)
    return HoldStatus(
        held=True,
        fence_offset=state.fence_offset,
        ends_at_ms=state.ends_at_ms,
        disturbances=new,
        notices=tuple(notice for notice in (*notices, unmarked) if notice),
    )


def _put_fence(store: BesideStore, memory: HoldMemory, state: HoldState, found: Found) -> HoldState:
    """Have the fence where it belongs, then every other file that we touched as it was."""
    reserved = reserved_hours(found, str(_root(store)))
    wanted = fence.fence(found, state, store.live.hold_hours, reserved)
    touched = set(state.releasing)
    if wanted.file is not None:
        touched.add(wanted.file.base_offset)
        if wanted.file.mtime_ns != wanted.mtime_ns:
            state = fence.set_mtimes(memory, state, [(wanted.file, wanted.mtime_ns)])
    place = -1 if wanted.file is None else wanted.file.base_offset
    if (state.fence_offset, state.ends_at_ms) != (place, wanted.ends_at_ms):
        state = replace(state, fence_offset=place, ends_at_ms=wanted.ends_at_ms)
        save_state(memory, state)
    return fence.put_back(memory, state, {t.base_offset for t in state.touched} - touched)


def _forbid_force(store: BesideStore, memory: HoldMemory, state: HoldState, found: Found) -> HoldState:
    """Have the broker delete nothing by force, where we may."""
    if not deletes_by_force(found) or not store.live.may_change_settings:
        return state
    if all(changed.key != FORCIBLY for changed in state.changed_settings):
        changed = ChangedSetting(FORCIBLY, found.settings.get(FORCIBLY, ""), "false")
        state = replace(state, changed_settings=(*state.changed_settings, changed))
        save_state(memory, state)
    store.admin.update_config({FORCIBLY: "false"})
    return state


def _as_found(state: HoldState, found: Found) -> HoldState:
    """What is there now is what the next look expects."""
    ours = {changed.key: changed.ours for changed in state.changed_settings}
    there = {key: found.settings[key] for key in HELD_SETTINGS if key in found.settings}
    return replace(
        state,
        boot_timestamp_ms=found.boot_timestamp_ms,
        address=found.address,
        expected_settings=there | ours,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        segments=tuple((file.base_offset, file.inode) for file in found.files),
        # What went after who let it go was killed.
        releasing=tuple(
            offset
            for offset in state.releasing
            if offset >= found.min_offset or found.file_at(offset) is not None
        ),
        end_offset=found.files[-1].end_offset if found.files else found.max_offset,
    )


def _disturbances(
    store: BesideStore, state: HoldState | None, found: Found
) -> tuple[tuple[Disturbance, ...], tuple[Disturbance, ...]]:
    """All that there are, and those among them that weren't reported before."""
    if state is None:
        return (), ()
    lasting = disturbances(replace(state, reported=()), found)
    new = tuple(disturbance for disturbance in lasting if name_of(disturbance) not in state.reported)
    return lasting, with_topics(new, store.files.files.layout)


def _status(store: BesideStore, state: HoldState, found: Found, more: Sequence[str]) -> HoldStatus:
    """What a hold is worth as it is found, without renewing it."""
    lasting, new = _disturbances(store, state, found)
    notices = [*more, *(d.detail for d in lasting if d.kind in ENDS_TRUST)]
    stands, place, ends_at_ms = not notices, -1, found.at_ms
    try:
        reserved = reserved_hours(found, str(_root(store)))
        file = fence.first_that_stays(found, state.releasing)
        if file is None:
            ends_at_ms = found.at_ms + reserved * fence.HOUR_MS
        else:
            place, ends_at_ms = file.base_offset, fence.expires_at_ms(file.mtime_ns, reserved)
        notices += _notices(store, found)
        ours = any(changed.key == FORCIBLY for changed in state.changed_settings)
        if deletes_by_force(found) and (ours or state.expected_settings.get(FORCIBLY) == "false"):
            stands = False
            notices.append(
                f"{FORCIBLY} is not false at broker {found.address}: until the hold is renewed, the broker "
                "deletes whatever is held above its force level"
            )
    except GateRefusedError as error:
        stands = False
        notices.append(str(error))
    stands = stands and ends_at_ms > found.at_ms
    return HoldStatus(stands, place, ends_at_ms if stands else None, new, tuple(notices))


def _before_the_first(store: BesideStore, now_ms: int) -> Iterator[str]:
    """Of a store that isn't held: what would keep it from being, and what a person should know if it were."""
    found, root = find(store, now_ms), _root(store)
    try:
        marker.refuse_foreign(root, None, now_ms)
        reserved_hours(found, str(root))
        yield from _notices(store, found)
    except GateRefusedError as error:
        yield f"a hold would be refused: {error}"


def _notices(store: BesideStore, found: Found) -> list[str]:
    """What a person should know of a hold that can be had.

    :raises GateRefusedError: the broker may delete by force, and we may not forbid it, and it is near.
    """
    notices = []
    layout = store.files.files.layout
    if deletes_by_force(found) and not store.live.may_change_settings:
        disks = [disk_usage(path) for path in (*layout.commitlog_paths, layout.consumequeue)]
        notices.append(check_force_is_far(found, store.files.config, disks, str(layout.root)))
    if store.live.may_change_settings and found.saved.values is None:
        why = found.saved.problem or "the store's settings don't name it"
        notices.append(f"broker.conf can't be read ({why}), so what a restart would bring back isn't known")
    return notices


def _root(store: BesideStore) -> Path:
    return store.files.files.layout.root
