"""A store as it would be without our hold: what its segments' ages and its broker's rules are decided by."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from storage_engine.exceptions import GateRefusedError
from storage_engine.model.hold import HoldMemory
from storage_engine.model.store import LogSnapshot, Segment
from storage_engine.rocketmq.live.fence import same_ms
from storage_engine.rocketmq.live.local_hold import read_local
from storage_engine.rocketmq.live.state import HoldState, load_state


def with_original_times(log: LogSnapshot, memory: HoldMemory | None, root: Path) -> LogSnapshot:
    """Return the log with the mtimes that its segments had before a hold set them.

    One that has another mtime than the hold gave it was touched by somebody else: it is as it is found.

    :param memory: what the journal knows; None, or without a hold: what lies with the store counts.
    :param root: the store's.
    """
    state = load_state(memory)
    if state is None:
        # Without what lies with the store its segments only look younger than they are.
        with suppress(GateRefusedError):
            state = read_local(root)
    if state is None or not state.touched:
        return log
    return replace(log, segments=tuple(_with_original_time(segment, state) for segment in log.segments))


def with_original_settings(settings: Mapping[str, str], memory: HoldMemory | None) -> dict[str, str]:
    """A broker's settings as they were before a hold changed them: what its rules mean is decided by these.

    One that somebody else has set since is as it is found.
    """
    state = load_state(memory)
    changed = () if state is None else state.changed_settings
    return {**settings, **{c.key: c.original for c in changed if settings.get(c.key) == c.ours}}


def _with_original_time(segment: Segment, state: HoldState) -> Segment:
    touched = state.touched_at(segment.base_offset)
    if touched is None or touched.inode != segment.facts.inode:
        return segment
    if not any(same_ms(segment.facts.mtime_ns, ours) for ours in touched.possible_mtimes_ns):
        return segment
    return replace(segment, original_mtime_ns=touched.original_mtime_ns)
