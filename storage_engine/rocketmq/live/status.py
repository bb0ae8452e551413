"""State of a hold: what it protects, which events it doesn't protect against, and the broker's progress."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from storage_engine.commands import Command, Text
from storage_engine.core.clock import HOUR_MS
from storage_engine.core.durable import DIRECTORY
from storage_engine.core.wording import time_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.disk import DiskUsage, fills_in_ms, room_of_disks
from storage_engine.model.hold import BrokerProgress, Drift, DriftKind, HoldStatus
from storage_engine.rocketmq.format.broker_config import RELEASE, TRIED, TRIED_FROM
from storage_engine.rocketmq.hold import fence, marker
from storage_engine.rocketmq.hold.heartbeat import last_look, no_watch
from storage_engine.rocketmq.hold.hold_state import (
    FORCIBLY,
    RESERVED,
    HoldState,
    Observed,
    load_state,
    original_mtime_ns,
    read_local,
)
from storage_engine.rocketmq.live.drift import ENDS_TRUST, all_drift, name_of, with_topics
from storage_engine.rocketmq.live.identity import ask_known_frame
from storage_engine.rocketmq.live.observe import below_the_first_file, observe
from storage_engine.rocketmq.remoting.answers import RuntimeInfo

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.observe import LiveParts


def look(parts: LiveParts, now_ms: int) -> HoldStatus:
    """See :meth:`storage_engine.model.broker.broker_store.StoreHold.status`."""
    state = load_state(parts.memory)
    if state is None:
        return HoldStatus(held=False, notices=("the store isn't held", *_preview_hold(parts, now_ms)))
    return _status(parts, state, ask_known_frame(parts.admin, state, observe(parts, now_ms, state)))


def drift_of(
    parts: LiveParts, state: HoldState | None, observed: Observed
) -> tuple[tuple[Drift, ...], tuple[Drift, ...]]:
    """Return all drift of a held store, and the drift not reported before. Both are empty without a state."""
    if state is None:
        return (), ()
    lasting = all_drift(state, observed)
    new = tuple(drift for drift in lasting if name_of(drift) not in state.reported)
    return lasting, with_topics(new, parts.layout)


def notices(parts: LiveParts, observed: Observed) -> list[str]:
    """Return notices on a store that can be held.

    :raises GateRefusedError: a disk is near the force level, and we may not forbid deletion by force.
    """
    texts, layout = [], parts.layout
    if fence.deletes_by_force(observed) and not parts.live.may_change_settings:
        disks = [DiskUsage.of(path) for path in (*layout.commitlog_paths, layout.consumequeue)]
        texts.append(fence.check_force_is_far(observed, parts.files.config, disks, str(layout.root)))
    if parts.live.may_change_settings and observed.saved.values is None:
        why = observed.saved.problem or "the store's settings don't name it"
        texts.append(f"broker.conf can't be read ({why}), so what a restart would bring back isn't known")
    return texts


def weaknesses(parts: LiveParts, state: HoldState, observed: Observed) -> Iterator[str]:
    """Yield notices on events against which a standing hold doesn't protect."""
    if (reserved := fence.reserved_hours(observed, str(parts.root))) <= 0:
        yield (
            f"{RESERVED} is {reserved} at broker {observed.address}: whatever is sealed has expired at once, "
            "so that only the fence keeps it; set it to 48 or so"
        )
    if not state.may_delete(observed.settings.get(RELEASE, "")):
        yield f"nothing is deleted through this broker: {untried_text(observed.settings)}"
    if why := no_watch(parts.root):
        yield Text(
            f"{why}: until the next run no watch mends a fence that another program touches or removes; "
            f"once its {len(state.fence) or 1} files are, the broker deletes what is behind them. Run ",
            Command("watch"),
            " on this host",
        )
    elif read_local(parts.root) is None:
        yield (
            f"{parts.root / DIRECTORY}: no space for the hold, or an older release made it: until it is "
            "renewed with some space no watch can mend its fence"
        )
    disks = [DiskUsage.of(path) for path in parts.layout.commitlog_paths]
    limit = parts.files.config.disk_space_warning_level_percent
    if fills_before(observed, state, disks, limit):
        yield (
            f"as fast as the log has grown lately, its disk is above {limit} % before the broker's own "
            f"deletion begins again, without a renewal of the hold; while {FORCIBLY} is false the broker "
            f"then takes no message. Lower hold_hours or {RESERVED}, or add space"
        )


def untried_text(settings: Mapping[str, str]) -> str:
    """Return a text that this release of the broker was not tested, and how a person can accept it."""
    release = settings.get(RELEASE, "unknown")
    return (
        f"expected a broker of a release that was tried, from {TRIED_FROM} to {TRIED[-1]}, found {release}, "
        "which may delete by other rules. See whether a newer storage-engine knows it, or try it on a store "
        f"of no worth and accept it by name: --accept-version {release}"
    )


def _status(parts: LiveParts, state: HoldState, observed: Observed) -> HoldStatus:
    lasting, new = drift_of(parts, state, observed)
    texts = [d.detail for d in lasting if d.kind in ENDS_TRUST]
    stands, place, ends_at_ms, deletes_from_ms = not texts, -1, observed.at_ms, observed.at_ms
    try:
        reserved = fence.reserved_hours(observed, str(parts.root))
        files = fence.first_that_stay(observed, state.releasing)
        if files:
            place = files[0].base_offset
            ends_at_ms = fence.stands_until_ms(files[0].mtime_ns, reserved)
            deletes_from_ms = fence.expires_at_ms(files[0].mtime_ns, reserved)
        else:
            ends_at_ms = deletes_from_ms = observed.at_ms + reserved * HOUR_MS
        texts += notices(parts, observed)
        was_set = any(changed.key == FORCIBLY for changed in state.changed_settings)
        forbidden = was_set or state.expected_settings.get(FORCIBLY) == "false"
        # If we may not set it, a renewal that reported it holds the store all the same.
        is_reported = all(drift.kind is not DriftKind.SETTING_CHANGED for drift in new)
        accepted = is_reported and not parts.live.may_change_settings
        if fence.deletes_by_force(observed) and forbidden and not accepted:
            stands = False
            texts.append(
                f"{FORCIBLY} is not false at broker {observed.address}: until the hold is renewed, the "
                "broker deletes whatever is held above its force level"
            )
        if stands and ends_at_ms <= observed.at_ms < deletes_from_ms:
            texts.append(
                f"the hold ended {time_text(ends_at_ms)}; by {RESERVED}={reserved} the broker itself begins "
                f"to delete {time_text(deletes_from_ms)}"
            )
        texts += [*weaknesses(parts, state, observed), *below_the_first_file(observed, state)]
    except GateRefusedError as error:
        stands = False
        texts.append(Text(error))
    stands = stands and ends_at_ms > observed.at_ms
    ends = (ends_at_ms, deletes_from_ms) if stands else (None, None)
    lasts_ms, watch = state.lasts_ms or None, last_look(parts.root)
    return HoldStatus(stands, place, ends[0], new, tuple(texts), ends[1], watch=watch, lasts_ms=lasts_ms)


def _preview_hold(parts: LiveParts, now_ms: int) -> Iterator[str]:
    """Yield notices on the changes that a hold of a store would make, and on obstacles."""
    observed = observe(parts, now_ms)
    try:
        marker.refuse_foreign(parts.root, None, now_ms)
        fence.reserved_hours(observed, str(parts.root))
        yield from notices(parts, observed)
        if fence.deletes_by_force(observed) and parts.live.may_change_settings:
            yield fence.announce_rewrite(observed)
    except GateRefusedError as error:
        yield Text("a hold would be refused: ", error)


LATELY_HOURS: Final = 24


def fills_before(
    observed: Observed, state: HoldState, disks: Sequence[DiskUsage], limit_percent: int
) -> bool:
    """Return whether the disks will be above ``limit_percent`` before the broker may delete again.

    :param state: has the time from which the broker may delete, and the segments' original mtimes.
    :param disks: disks of the log; a disk of unknown size raises no alarm.
    """
    room, grown = room_of_disks(disks, limit_percent), _growth(observed, state)
    if room is None or grown is None:
        return False
    fills_ms = fills_in_ms(room, *grown)
    return fills_ms is not None and fills_ms < state.deletes_from_ms - observed.at_ms


def _growth(observed: Observed, state: HoldState) -> tuple[int, int] | None:
    """Return the log's recent growth in bytes, and its duration in ms; None without a sealed segment.

    Both count from the newest seal that is at least 24 hours old, or else from the oldest seal.
    """
    since_ms = observed.at_ms - LATELY_HOURS * HOUR_MS
    sealed = [
        (original_mtime_ns(state, file) // 1_000_000, file.end_offset)
        for file in observed.files
        if file.end_offset <= observed.max_offset
    ]
    earlier = [item for item in sealed if item[0] < observed.at_ms]
    before = [item for item in earlier if item[0] <= since_ms]
    if not earlier:
        return None
    at_ms, end_offset = max(before) if before else min(earlier)
    return observed.max_offset - end_offset, observed.at_ms - at_ms


FLUSH_KEY = "remainHowManyDataToFlush"
COMMIT_KEY = "remainHowManyDataToCommit"
PUT_P99_KEY = "putLatency99"
_TIMESTAMP = "_timestamp_ms"
_BYTE_COUNT = re.compile(r"(-?[0-9]+) B|([0-9]+)[.,]([0-9]) ([KMGTPE])iB")


def progress(
    info: RuntimeInfo,
    checkpoint: Mapping[str, int],
    now_ms: int,
    newest_message_timestamp_ms: int | None = None,
) -> BrokerProgress:
    """Return a broker's progress with its log, from its own figures.

    :param info: the broker's state at ``now_ms``.
    :param checkpoint: values of the checkpoint file by name, read before the newest message was looked up.
    :param newest_message_timestamp_ms: store time of the log's newest message. If it is None, the
        checkpoint's age is left out: there is no message, or it was not looked up.
    """
    oldest_ms = info.earliest_message_timestamp_ms
    return BrokerProgress(
        sampled_at_ms=now_ms,
        min_offset=info.commitlog_min_offset,
        max_offset=info.commitlog_max_offset,
        earliest_message_timestamp_ms=oldest_ms,
        flush_behind_bytes=at_most_bytes(info.values.get(FLUSH_KEY, "")),
        # It may be negative, since the broker reads its two offsets one after the other
        # (ReputMessageService#behind).
        dispatch_behind_bytes=max(0, info.dispatch_behind_bytes),
        checkpoint_behind_ms=checkpoint_behind_ms(checkpoint, newest_message_timestamp_ms, oldest_ms),
        timer_behind_messages=max(0, info.timer_behind_messages),
        commit_behind_bytes=at_most_bytes(info.values.get(COMMIT_KEY, "")) or 0,
        put_p99_ms=milliseconds(info.values.get(PUT_P99_KEY, "")),
    )


def checkpoint_behind_ms(
    checkpoint: Mapping[str, int], newest_message_ms: int | None, oldest_message_ms: int | None
) -> dict[str, int]:
    """Return by how much each checkpoint value, by name, is older than the newest message.

    :param newest_message_ms: store time of the newest message. If it is None, the result is empty.
    :param oldest_message_ms: store time of the oldest message; None if unknown.
    """
    if newest_message_ms is None:
        return {}
    # A part that was never flushed has the time 0, and misses the whole log. Its age is that of the oldest
    # message; if that is unknown, the part is left out.
    oldest_ms = oldest_message_ms or 0
    return {
        name.removesuffix(_TIMESTAMP): max(0, newest_message_ms - max(value, oldest_ms))
        for name, value in checkpoint.items()
        if name.endswith(_TIMESTAMP) and (value or oldest_ms)
    }


def milliseconds(text: str) -> float | None:
    """Return the time in a text like ``3.25``; None for another text.

    The broker writes two decimals, in its locale (StoreStatsService#getRuntimeInfo).
    """
    return float(text.replace(",", ".")) if re.fullmatch(r"[0-9]{1,12}[.,][0-9]{2}", text) else None


def at_most_bytes(text: str) -> int | None:
    """Return the largest number of bytes that rounds to a text like ``1.2 KiB``; None for another text.

    The broker rounds to one decimal, in its locale (MixAll#humanReadableByteCount).
    """
    match = _BYTE_COUNT.fullmatch(text)
    if match is None:
        return None
    if match[1] is not None:
        return max(0, int(match[1]))
    unit: int = 1024 ** ("KMGTPE".index(match[4]) + 1)
    # Halves round up, so the number is less than half a decimal above the text.
    return math.ceil((int(match[2]) * 20 + int(match[3]) * 2 + 1) * unit / 20) - 1
