"""Release of exactly a prefix of a running broker's log: the broker deletes it, and nothing behind it.

A broker has no request to delete a prefix. It deletes expired segments by their mtimes, from the oldest on,
up to the first that hasn't expired. So the segments that stay are fenced, the prefix gets the oldest possible
mtime, and the broker is told to delete. Both its min offset and the files show which segments are gone. After
a kill at any moment, a new call with the rest of the prefix continues: the fence behind the prefix stands
before any segment can be deleted.

A release takes minutes, in which a watch may mend the hold. So each change reads the saved state first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.core import durable
from storage_engine.core.durable import WAIT_SECONDS
from storage_engine.exceptions import (
    BrokerError,
    BrokerRefusedError,
    BrokerUnavailableError,
    ChangedUnderUsError,
    GateRefusedError,
    ReleasedTooMuchError,
    StoreBusyError,
    StoreNotFoundError,
)
from storage_engine.model.hold import HoldMemory
from storage_engine.model.store import FileFacts, Segment
from storage_engine.rocketmq.cleanup_rules import (
    MANUAL_PASSES,
    Patience,
    interval_ms,
    segment_patience_seconds,
    until_first_pass_seconds,
)
from storage_engine.rocketmq.format.broker_config import RELEASE
from storage_engine.rocketmq.format.mapped_files import NAME_DIGITS
from storage_engine.rocketmq.hold import marker
from storage_engine.rocketmq.hold.fence import is_due
from storage_engine.rocketmq.hold.hold_state import HoldState, load_state, same_ms, save_state
from storage_engine.rocketmq.live import hold
from storage_engine.rocketmq.live.status import untried_text
from storage_engine.rocketmq.remoting.answers import RuntimeInfo
from storage_engine.same_bytes.own_acts import read_own_acts

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.observe import LiveParts

POLL_SECONDS: Final = 0.25
UNANSWERED_SECONDS: Final = 30.0
"""Longest wait for an answer of a broker that deletes, or for another process to free the hold's lock."""
_LOCK_SECONDS: Final = 1.0
"""Longest single wait for the hold's lock. After it the broker is asked again, and the lease renewed."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Segments to delete, and the first file that stays.

    :param stays: first file that stays; a broker never deletes its last file, whatever the content.
    :param directories: directories of the files, with (device, inode), to recognise an unmounted disk.
    """

    segments: tuple[Segment, ...]
    stays: Path
    directories: dict[Path, tuple[int, int]]

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


def delete_segments(
    parts: LiveParts, segments: Sequence[Segment], meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Make the broker delete these segments, the log's first ones, and return when they are durably deleted.

    :param meanwhile: called from time to time during the wait.
    :raises ChangedUnderUsError: a file isn't as it was; nothing was done.
    :raises GateRefusedError: the store isn't held, its broker restarted since it was held, or its release was
        neither tested nor accepted; nothing was done.
    :raises BrokerRefusedError: the broker didn't delete all in time; the rest may be deleted at any time.
    :raises BrokerError: the broker doesn't answer, or was replaced; all these segments may be deleted at any
        time.
    :raises ReleasedTooMuchError: more than these segments were deleted.
    :raises StoreBusyError: another process keeps the hold's lock; all these segments may be deleted at any
        time.
    """
    if not segments:
        return
    _, state = _standing_hold(parts)
    prefix = _prefix(parts, segments)
    _check_unchanged(parts, prefix, state)
    _check_release(parts, state)
    info = parts.admin.runtime_info()
    if info.boot_timestamp_ms != state.boot_timestamp_ms:
        raise GateRefusedError(
            f"{parts.admin.address}: expected the broker that was held, started at "
            f"{state.boot_timestamp_ms} ms, found one started at {info.boot_timestamp_ms} ms. Nothing was "
            "deleted. Run the same command again: it looks at the new broker."
        )
    _check_not_too_much(parts, info, prefix)
    state = _expose(parts, prefix)
    patience = Patience(
        segment_patience_seconds(parts.files.config),
        until_first_pass_seconds(info.boot_timestamp_ms),
        meanwhile,
    )
    _delete_prefix(parts, state, prefix, patience)
    for directory in prefix.directories:
        durable.fsync_path(directory)
    # If the lock is busy, the next look at the hold forgets the segments.
    with suppress(StoreBusyError), _changing(parts, UNANSWERED_SECONDS) as (memory, state):
        hold.forget_released(memory, state, prefix.end_offset)


@contextmanager
def _changing(parts: LiveParts, wait_seconds: float = WAIT_SECONDS) -> Iterator[tuple[HoldMemory, HoldState]]:
    """Give the hold's present state, under the lock for its changes.

    :raises GateRefusedError: the store isn't held.
    :raises StoreBusyError: another process has the lock for longer than ``wait_seconds``.
    """
    with marker.changing(parts.root, wait_seconds):
        yield _standing_hold(parts)


def _expose(parts: LiveParts, prefix: Prefix, wait_seconds: float = WAIT_SECONDS) -> HoldState:
    """Expose the prefix, see :func:`hold.expose`."""
    with _changing(parts, wait_seconds) as (memory, state):
        return hold.expose(parts, memory, state, prefix.segments, prefix.stays)


def _standing_hold(parts: LiveParts) -> tuple[HoldMemory, HoldState]:
    state = load_state(parts.memory)
    if parts.memory is None or state is None:
        raise GateRefusedError(
            f"{parts.root}: expected the store to be held, found no hold of it. Nothing "
            "was deleted. Hold it first."
        )
    return parts.memory, state


def _check_release(parts: LiveParts, state: HoldState) -> None:
    """Ask for the broker's release again, since it may have been upgraded after the store was opened.

    The caller must ask for the boot time afterwards, to show that the same process answered both times.

    :raises GateRefusedError: deletion by this release of the broker was not tested, and no person accepts it.
    """
    settings = parts.admin.config()
    if not state.may_delete(settings.get(RELEASE, "")):
        raise GateRefusedError(
            f"{parts.root}: {untried_text(settings)}. Nothing was deleted. What was archived stays archived."
        )


def _prefix(parts: LiveParts, segments: Sequence[Segment]) -> Prefix:
    """Return the segments as a prefix, with the first file that stays.

    :raises GateRefusedError: no file follows the last segment, so nothing would be left.
    """
    name = str(segments[-1].end_offset).zfill(NAME_DIGITS)
    paths = parts.layout.log_paths
    stays = next((path / name for path in paths if (path / name).exists()), None)
    if stays is None:
        raise GateRefusedError(
            f"{', '.join(map(str, paths))}: expected segment {name} after the last segment to delete, "
            "found no such file. Nothing was deleted. Plan again."
        )
    directories = sorted({Path(s.facts.path).parent for s in segments} | {stays.parent})
    return Prefix(tuple(segments), stays, {path: _identity(path) for path in directories})


def _identity(directory: Path) -> tuple[int, int]:
    stat = directory.stat()
    return stat.st_dev, stat.st_ino


def _check_unchanged(parts: LiveParts, prefix: Prefix, state: HoldState) -> None:
    """Check that the segments' files are as they were.

    :raises ChangedUnderUsError: another process touched a file, and none of our releases has begun.
    :raises GateRefusedError: another process touched a file after one of our releases has begun, so that the
        release's segments may still be deleted.
    """
    acts = read_own_acts(parts.root)
    for segment in prefix.segments:
        try:
            facts = FileFacts.of(segment.facts.path)
        except FileNotFoundError:
            if segment.base_offset in state.releasing:
                continue
            facts = None
        if facts is not None and acts.same_file(facts, segment.facts):
            continue
        text = (
            f"{segment.facts.path}: expected it as it was a moment ago, {segment.facts}, found "
            f"{facts or 'no file'}: another program changes the store while we hold it."
        )
        if state.releasing:
            raise GateRefusedError(
                f"{text} Segments that an earlier call exposed may still be deleted. Stop the program that "
                "does it."
            )
        raise ChangedUnderUsError(f"{text} Nothing was deleted. Stop the program that does it.")


def _delete_prefix(parts: LiveParts, state: HoldState, prefix: Prefix, patience: Patience) -> None:
    """Trigger the broker's passes until its min offset and its files show that exactly the prefix is gone."""
    one_trigger_seconds = (MANUAL_PASSES - 1) * interval_ms(parts.files.config) / 1000
    triggered: float | None = None
    before: tuple[int, int] | None = None
    busy_since: float | None = None
    while True:
        info = _ask(parts, state, patience)
        paths = _list_remaining(prefix)
        _check_not_too_much(parts, info, prefix)
        if not paths and info.commitlog_min_offset == prefix.end_offset:
            return
        left_ms = state.ends_at_ms - time.time_ns() // 1_000_000
        try:
            if not _is_exposed(state) or is_due(left_ms, parts.live.hold_hours):
                # The broker flushed a segment that was just sealed, or another program touched or removed a
                # file, or the hold would end soon.
                state = _expose(parts, prefix, _LOCK_SECONDS)
            if triggered is None or time.monotonic() - triggered > one_trigger_seconds:
                state = _trigger(parts)
                triggered = time.monotonic()
            busy_since = None
        except StoreBusyError as error:
            busy_since = busy_since or time.monotonic()
            if time.monotonic() - busy_since >= UNANSWERED_SECONDS:
                raise _busy_error(parts, prefix, error) from error
        now = (info.commitlog_min_offset, len(paths))
        if before is not None and now != before:
            patience.progressed()
        before = now
        if patience.is_over:
            raise BrokerRefusedError(
                f"{parts.admin.address}: expected the log to begin at {prefix.end_offset}, found that the "
                f"broker says {info.commitlog_min_offset} and {len(paths)} of {len(prefix.segments)} files "
                f"are left after {patience.waited_seconds:.0f} s, first {paths[0] if paths else 'none'}. "
                "These files may be deleted at any time; the segments behind them stay. Look into the "
                "broker's store.log for why it doesn't delete. Run the same command again to continue.",
                may_have_acted=True,
            )
        patience.pause(POLL_SECONDS)


def _is_exposed(state: HoldState) -> bool:
    """Return whether all present files that we touched have our mtimes, and no fenced file is missing."""
    for touched in state.touched:
        try:
            if not same_ms(Path(touched.path).lstat().st_mtime_ns, touched.mtime_ns):
                return False
        except FileNotFoundError:
            if touched.base_offset in state.fence:
                return False
    return True


def _busy_error(parts: LiveParts, prefix: Prefix, error: StoreBusyError) -> StoreBusyError:
    return StoreBusyError(
        f"{parts.root}: expected to change the hold while the broker deletes, found that another process of "
        f"this machine kept the hold's lock for {UNANSWERED_SECONDS:g} s ({error}) "
        f"{len(_list_remaining(prefix))} of {len(prefix.segments)} segments are left, and may be deleted at "
        "any time. The segments behind them stay. End the process that hangs, such as a watch. Run the same "
        "command again to continue."
    )


def _trigger(parts: LiveParts) -> HoldState:
    """Trigger the broker's deletion. A lost answer is no error: the files will show whether it deletes.

    :raises BrokerError: the broker didn't get the request.
    """
    with _changing(parts, _LOCK_SECONDS) as (memory, state):
        state = replace(state, last_trigger_ms=time.time_ns() // 1_000_000)
        save_state(memory, state)
    try:
        parts.admin.delete_expired_commitlog()
    except BrokerError as error:
        if not error.may_have_acted:
            raise
    return state


def _ask(parts: LiveParts, state: HoldState, patience: Patience) -> RuntimeInfo:
    """Return the broker's state. If it doesn't answer, ask again for up to :data:`UNANSWERED_SECONDS`.

    :raises BrokerError: the broker doesn't answer in time, or another process answers in its place.
    """
    ends = time.monotonic() + UNANSWERED_SECONDS
    while True:
        try:
            info = parts.admin.runtime_info()
            break
        except BrokerError as error:
            if time.monotonic() >= ends:
                error.may_have_acted = True
                raise
        patience.pause(POLL_SECONDS)
    if info.boot_timestamp_ms != state.boot_timestamp_ms:
        raise BrokerUnavailableError(
            f"{parts.admin.address}: expected the broker that was told to delete, started at "
            f"{state.boot_timestamp_ms} ms, found one started at {info.boot_timestamp_ms} ms. The fence "
            "still protects the segments that stay. Run the same command again: it looks at the new broker, "
            "and continues.",
            may_have_acted=True,
        )
    return info


def _list_remaining(prefix: Prefix) -> list[Path]:
    """:raises StoreNotFoundError: a directory was replaced or is gone, so the remaining files are unknown."""
    paths = [Path(s.facts.path) for s in prefix.segments if Path(s.facts.path).exists()]
    for directory, identity in prefix.directories.items():
        if not directory.is_dir() or _identity(directory) != identity:
            raise StoreNotFoundError(
                f"{directory}: expected the directory of a moment ago, found another directory or none. "
                "Check that its disk is mounted, and run the same command again."
            )
    return paths


def _check_not_too_much(parts: LiveParts, info: RuntimeInfo, prefix: Prefix) -> None:
    """:raises ReleasedTooMuchError: a segment behind the prefix is gone."""
    if info.commitlog_min_offset <= prefix.end_offset and prefix.stays.exists():
        return
    if info.commitlog_min_offset > prefix.end_offset:
        text = f"the broker says that it begins at {info.commitlog_min_offset}"
        behind = f" to {info.commitlog_min_offset}"
    else:
        text, behind = f"{prefix.stays} is gone", " on"
    raise ReleasedTooMuchError(
        f"{parts.root}: expected the log to begin at {prefix.end_offset}, found that {text}: bytes from "
        f"offset {prefix.end_offset}{behind} were deleted but not approved. Find out who deletes or touches "
        "this log's files. Run verify: it shows which of these bytes are in the lake, and which are lost."
    )
