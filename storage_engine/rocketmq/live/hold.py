"""Hold of a running broker's store: while we renew it, nothing of the store is deleted without our approval.

The broker serves and deletes by its own rules. With a hold these rules find nothing to delete: the first
segments that must stay are a fence, and the broker doesn't delete by force (:mod:`fence`). A hold that isn't
renewed ends by itself, so that a dead pipeline fills no disk. An unknown state, such as an unreachable broker
or an unreadable file, never leads to a change. After a hold, every mtime and every setting is as before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.commands import join_texts
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.host import person
from storage_engine.core.wording import paths_text
from storage_engine.exceptions import BadInputError, GateRefusedError
from storage_engine.model.broker.broker_store import LockedStore
from storage_engine.model.hold import HoldMemory, HoldStatus
from storage_engine.model.store import Segment
from storage_engine.rocketmq.cleanup_rules import FIRST_PASS_MS, MANUAL_PASSES, interval_ms
from storage_engine.rocketmq.format.broker_config import RELEASE
from storage_engine.rocketmq.hold import fence, hold_state, marker
from storage_engine.rocketmq.hold.heartbeat import last_look
from storage_engine.rocketmq.hold.hold_state import (
    FORCIBLY,
    HoldState,
    Observed,
    as_looked_at,
    first_state,
    load_state,
    save_state,
    with_acceptance,
    with_moved_files,
)
from storage_engine.rocketmq.live.connect import refuse_slave
from storage_engine.rocketmq.live.drift import ENDS_TRUST, LASTS, all_drift, name_of, new_drift, with_topics
from storage_engine.rocketmq.live.identity import ask_known_frame, know_newest_frame
from storage_engine.rocketmq.live.observe import below_the_first_file, find_replicas, observe
from storage_engine.rocketmq.live.status import drift_of, notices, weaknesses
from storage_engine.rocketmq.remoting.masters import Replicas

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.observe import LiveParts

LETS_GO_MTIME_NS: Final = 0
"""Mtime of segments that may be deleted. A segment with this mtime has expired at any fileReservedTime."""

_LOOKS: Final = 5
"""Largest number of attempts to set the fence while the broker deletes. The broker deletes one file each
100 ms (deleteCommitLogFilesInterval), so an attempt soon overtakes the broker.
"""


@dataclass(frozen=True, slots=True)
class LockedLive(LockedStore):
    """A held store beside its running broker."""

    parts: LiveParts = field(kw_only=True)

    def check_deletable(self, is_replicated: Callable[[], bool]) -> None:
        replicas = find_replicas(self.parts, self.parts.admin.config(), is_replicated)
        replicas.check_only_master(self.parts.root)


def renew(parts: LiveParts, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.renew`.

    If the broker has another store or another role than before, nothing is changed, and the store isn't held.

    :raises GateRefusedError: the store can't be held; nothing was changed.
    :raises StoreBusyError: another process works on the hold.
    :raises BrokerError: the broker doesn't answer, or doesn't accept a setting.
    :raises BadInputError: the directory isn't this broker's store, or the broker is a slave.
    """
    replicas = find_replicas(parts, parts.settings)
    with marker.alone(parts.root), marker.changing(parts.root):
        return _renew(parts, now_ms, replicas)


@contextmanager
def locked(parts: LiveParts) -> Iterator[LockedLive]:
    """Hold the store, and keep other runs off its hold until the block ends. A watch may still mend it.

    :raises GateRefusedError: the store can't be held.
    """
    # Asked before the lock, so that a replica that doesn't answer keeps no watch from mending the hold.
    replicas = find_replicas(parts, parts.settings)
    with marker.alone(parts.root):
        with marker.changing(parts.root):
            status = _renew(parts, time.time_ns() // 1_000_000, replicas)
        if not status.held:
            raise GateRefusedError(join_texts("; ", status.notices))
        yield LockedLive(status.notices, parts=parts)


def expose(
    parts: LiveParts, memory: HoldMemory, state: HoldState, segments: Sequence[Segment], stays: Path
) -> HoldState:
    """Make these segments the only ones that the broker may delete. The store must be held.

    The caller must have the hold's lock (:func:`marker.changing`), as for all changes of the hold. The fence
    behind the segments is set before the first segment is made old.

    :param segments: the log's first segments, oldest first. Segments that are already deleted are skipped.
    :param stays: path of the file that must follow them in the log.
    :raises GateRefusedError: another file follows, or the fence or an mtime can't be set.
    """
    observed = observe(parts, time.time_ns() // 1_000_000)
    state = replace(state, releasing=tuple(segment.base_offset for segment in segments))
    behind = next((file for file in observed.files if file.base_offset > state.releasing[-1]), None)
    if behind is None or Path(behind.path) != stays:
        raise GateRefusedError(
            f"{stays}: expected this segment to follow the segments to delete, found "
            f"{behind.path if behind else 'no file'} in its place. Nothing was deleted. Plan again."
        )
    save_state(memory, state)
    state = _put_fence(parts, memory, state, observed)
    # The broker may delete at this moment segments that an earlier call made old.
    young = [f for f in observed.files if f.base_offset in state.releasing and f.mtime_ns != LETS_GO_MTIME_NS]
    old = [(file, LETS_GO_MTIME_NS) for file in reversed(young)]
    return hold_state.set_mtimes(parts.root, memory, state, old)


def forget_released(memory: HoldMemory, state: HoldState, min_offset: int) -> HoldState:
    """Forget the exposed segments after their deletion."""
    released = frozenset(state.releasing)
    state = replace(
        state,
        releasing=(),
        touched=tuple(touched for touched in state.touched if touched.base_offset not in released),
        segments=tuple((base, inode) for base, inode in state.segments if base not in released),
        min_offset=min_offset,
    )
    save_state(memory, state)
    return state


def _renew(parts: LiveParts, now_ms: int, replicas: Replicas) -> HoldStatus:
    memory = parts.memory
    if memory is None:
        raise GateRefusedError(f"{parts.root}: expected a journal that remembers a hold, found none.")
    if parts.live.hold_hours < 1:
        raise BadInputError(
            f"hold_hours: expected at least 1, found {parts.live.hold_hours}. Nothing was changed. "
            "Correct it: 24 is usual."
        )
    # Remains of an earlier hold still protect the store, even if no journal records that hold.
    begins = load_state(memory) is None and hold_state.left_behind(parts.root) is None
    try:
        for _ in range(_LOOKS - 1):
            with suppress(hold_state.SegmentGoneError):  # the broker deletes segments that aren't held yet
                return _renew_as_found(parts, memory, now_ms, replicas)
        return _renew_as_found(parts, memory, now_ms, replicas)
    except GateRefusedError:
        if begins:
            _undo(parts, memory)
        raise


def _undo(parts: LiveParts, memory: HoldMemory) -> None:
    """Undo the steps of a hold that could not be completed."""
    state = load_state(memory)
    if state is not None:
        hold_state.put_all_back(parts.root, memory, state)
        marker.remove_marker(parts.root, state.manager)
        save_state(memory, None)


def _renew_as_found(parts: LiveParts, memory: HoldMemory, now_ms: int, replicas: Replicas) -> HoldStatus:
    root, live = parts.root, parts.live
    before = load_state(memory)
    observed = observe(parts, now_ms, before)
    if before is None:
        refuse_slave(observed.settings, observed.address)
    else:
        observed = ask_known_frame(parts.admin, before, observed)
        before = with_moved_files(before, observed)
    lasting, new = drift_of(parts, before, observed)
    # Recorded first: once the new state is saved, a comparison with it no longer shows this drift.
    memory.record_drift(new)
    if before is not None and any(drift.kind in ENDS_TRUST for drift in lasting):
        save_state(memory, replace(before, reported=tuple(map(name_of, lasting))))
        return HoldStatus(False, disturbances=new, notices=tuple(d.detail for d in lasting))
    try:
        marker.refuse_foreign(root, before.manager if before else None, now_ms)
        reserved = fence.reserved_hours(observed, str(root))
        texts = [*notices(parts, observed), *below_the_first_file(observed, before)]
        state = before or first_state(hold_state.left_behind(root), observed)
        state = replace(state, replicas=replicas.addresses)
        state = with_acceptance(state, observed.settings.get(RELEASE, ""), live.accept_version, person())
        ends_at_ms = fence.fence(observed, state, live.hold_hours, reserved).ends_at_ms
        if before is None:  # the saved state proves that the marker is ours
            save_state(memory, state)
        texts.append(marker.write_marker(root, state.manager, ends_at_ms))
        state = _put_fence(parts, memory, state, observed)
    except GateRefusedError as error:
        if new and not isinstance(error, hold_state.SegmentGoneError):
            details = join_texts("; ", (drift.detail for drift in new))
            raise GateRefusedError(error, " Drift found: ", details) from error
        raise
    if fence.deletes_by_force(observed) and parts.live.may_change_settings:
        texts.append(fence.announce_rewrite(observed))
    state, settings = _forbid_force(parts, memory, state, observed)
    remaining = () if before is None else all_drift(before, replace(observed, settings=settings))
    state = know_newest_frame(parts.admin, as_looked_at(state, observed), observed)
    lasts = (d for d in lasting if d.kind in LASTS and d in remaining)
    state = replace(state, reported=tuple(map(name_of, lasts)))
    if state != before:
        save_state(memory, state)
    if replicas.why_kept:
        texts.append(f"nothing is deleted through this broker: {replicas.why_kept}")
    texts += weaknesses(parts, state, observed)
    return HoldStatus(
        held=state.ends_at_ms > now_ms,
        fence_offset=state.fence_offset,
        ends_at_ms=state.ends_at_ms,
        disturbances=new,
        notices=tuple(filter(None, texts)),
        deletes_from_ms=state.deletes_from_ms,
        watch=last_look(root),
        lasts_ms=state.lasts_ms,
    )


def _put_fence(parts: LiveParts, memory: HoldMemory, state: HoldState, observed: Observed) -> HoldState:
    """Set the fence that is needed now, then restore the mtimes of all other files that we touched.

    The mtimes of segments that the broker may delete now stay as they are.
    """
    reserved = fence.reserved_hours(observed, str(parts.root))
    target = fence.fence(observed, state, parts.live.hold_hours, reserved)
    # The newest first, so that the fence stands before a broker that deletes the oldest files comes there.
    young = [(file, ns) for file, ns in reversed(target.mtimes_ns) if file.mtime_ns != ns]
    state = hold_state.set_mtimes(parts.root, memory, state, young)
    fenced = tuple(file.base_offset for file, _ in target.mtimes_ns)
    put = replace(
        state,
        fence_offset=target.offset,
        ends_at_ms=target.ends_at_ms,
        fence=fenced,
        fence_count=fence.fence_count(observed.settings),
        deletes_from_ms=target.deletes_from_ms,
        lasts_ms=parts.live.hold_hours * HOUR_MS,
    )
    if put != state:
        save_state(memory, put)
    stay = {*fenced, *put.releasing}
    return hold_state.put_back(
        parts.root, memory, put, {touched.base_offset for touched in put.touched} - stay
    )


def _forbid_force(
    parts: LiveParts, memory: HoldMemory, state: HoldState, observed: Observed
) -> tuple[HoldState, Mapping[str, str]]:
    """Set the broker's deletion by force to false, if we may.

    :return: the hold's state, and the broker's settings after that.
    """
    if not fence.deletes_by_force(observed) or not parts.live.may_change_settings:
        return state, observed.settings
    forbidden = fence.with_force_ended(state, observed.settings.get(FORCIBLY, ""))
    if forbidden != state:
        save_state(memory, forbidden)
    parts.admin.update_config({FORCIBLY: "false"})
    return forbidden, {**observed.settings, FORCIBLY: "false"}


def end_hold(parts: LiveParts, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.end`.

    First the call waits until the broker's last triggered passes are over: without the fence they would
    delete more. A setting or mtime that another program has set during the hold stays. No setting is changed
    if another broker is the master now, or if the broker has another store now.

    :raises GateRefusedError: a file's mtime may not be set; the store is still held.
    :raises BrokerError: the broker doesn't answer, or doesn't accept a setting; the store is still held.
    """
    root = parts.root
    with marker.alone(root):
        state = load_state(parts.memory)
        if parts.memory is None or state is None:
            return HoldStatus(held=False, notices=("the store wasn't held",))
        _wait_for_last_pass(parts, state, parts.admin.runtime_info().boot_timestamp_ms)
        with marker.changing(root):
            # Loaded again under the lock, since a watch may have changed the hold until now.
            state = load_state(parts.memory) or state
            observed = ask_known_frame(parts.admin, state, observe(parts, now_ms, state))
            state = with_moved_files(state, observed)
            changes = with_topics(new_drift(state, observed), parts.layout)
            parts.memory.record_drift(changes)
            is_trusted = all(drift.kind not in ENDS_TRUST for drift in changes)
            settings = _put_settings_back(parts, state, observed) if is_trusted else _left_notices(state)
            notices = [*settings, *_touched_notices(state, observed)]
            hold_state.put_all_back(root, parts.memory, state)
            marker.remove_marker(root, state.manager)
            save_state(parts.memory, None)
    return HoldStatus(held=False, disturbances=changes, notices=tuple(notices))


def _put_settings_back(parts: LiveParts, state: HoldState, observed: Observed) -> Iterator[str]:
    """Restore settings that we changed. Yield a notice for each one that another program changed later."""
    for changed in state.changed_settings:
        value = observed.settings.get(changed.key)
        if value == changed.ours:
            parts.admin.update_config({changed.key: changed.original})
        elif value != changed.original:
            yield (
                f"{changed.key} is {value}: another program set it, so it wasn't put back to "
                f"{changed.original}"
            )


def _left_notices(state: HoldState) -> Iterator[str]:
    """Yield notices on settings that we changed at the former broker, which another broker has replaced."""
    for changed in state.changed_settings:
        yield (
            f"{changed.key} was set to {changed.ours} at the broker that was at {state.address}: put it back "
            f"to {changed.original} there, and in its broker.conf"
        )


def _touched_notices(state: HoldState, observed: Observed) -> Iterator[str]:
    paths = [
        touched.path
        for touched in state.touched
        if observed.file_at(touched.base_offset) is not None and not hold_state.is_ours(touched)
    ]
    if paths:
        text = "it, so its mtime wasn't" if len(paths) == 1 else "them, so their mtimes weren't"
        yield f"{paths_text(paths)}: another program touched or replaced {text} put back"


def _wait_for_last_pass(parts: LiveParts, state: HoldState, boot_timestamp_ms: int) -> None:
    """Wait until the passes of the last trigger are over. A restart ends them (CleanCommitLogService)."""
    if state.last_trigger_ms is None or boot_timestamp_ms != state.boot_timestamp_ms:
        return
    # One interval more, since the first pass may begin an interval later, and the last one takes time.
    begins_ms = max(state.last_trigger_ms, boot_timestamp_ms + FIRST_PASS_MS)
    passes_ms = (MANUAL_PASSES + 1) * interval_ms(parts.files.config)
    left_ms = begins_ms + passes_ms - time.time_ns() // 1_000_000
    if left_ms > 0:
        # Limited, since a clock that was set back would lengthen the wait.
        time.sleep(min(left_ms, FIRST_PASS_MS + passes_ms) / 1000)
