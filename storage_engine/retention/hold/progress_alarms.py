"""Whether a running broker is too far behind with its own work."""

from __future__ import annotations

from storage_engine.core.wording import bytes_text, count_text, duration_text
from storage_engine.model.broker.broker_store import StorePositions
from storage_engine.model.hold import BrokerProgress
from storage_engine.model.settings.policy import Policy

_INDEX = "index_msg"


def progress_alarms(progress: BrokerProgress | None, policy: Policy) -> tuple[str, ...]:
    """The policy's limits that are exceeded, each as a sentence. What isn't known exceeds none."""
    if progress is None:
        return ()
    found = []
    for behind, most, where in (
        (progress.flush_behind_bytes, policy.flush_alarm_bytes, "of the log not on disk yet"),
        (
            progress.dispatch_behind_bytes,
            policy.dispatch_alarm_bytes,
            "of the log in no consume queue and index yet",
        ),
    ):
        if behind is not None and behind > most:
            found.append(f"broker: expected at most {bytes_text(most)} {where}, found {bytes_text(behind)}")
    for name, behind_ms in progress.checkpoint_behind_ms.items():
        seconds = policy.index_alarm_seconds if name == _INDEX else policy.checkpoint_alarm_seconds
        if seconds is not None and behind_ms > seconds * 1000:
            found.append(
                f"broker: expected its checkpoint's {name} at most {duration_text(seconds * 1000)} behind "
                f"the newest message, found {duration_text(behind_ms)}"
            )
    return tuple(found)


def progress_text(progress: BrokerProgress) -> str:
    """Return how far the broker is, in one line."""
    parts = [f"log [{progress.min_offset}, {progress.max_offset})"]
    for behind, what in (
        (progress.flush_behind_bytes, "flush"),
        (progress.dispatch_behind_bytes, "dispatch"),
    ):
        parts.append(f"{what} {'unknown' if behind is None else f'at most {bytes_text(behind)}'} behind")
    for name, behind_ms in progress.checkpoint_behind_ms.items():
        parts.append(f"checkpoint's {name} {duration_text(behind_ms)} behind")
    if progress.timer_behind_messages:
        parts.append(f"timers {count_text(progress.timer_behind_messages, 'message')} behind")
    return ", ".join(parts)


def positions_text(positions: StorePositions) -> str:
    """Return the five positions of a store as one line."""
    flushed = "unknown" if positions.flushed is None else positions.flushed
    checkpoint = ", ".join(f"{name} {value}" for name, value in positions.checkpoint.items())
    return (
        f"wrote {positions.wrote}, committed {positions.committed}, flushed {flushed}, dispatched "
        f"{positions.dispatched}; checkpoint: {checkpoint or 'none'}"
    )
