"""Text on a running broker and its hold, and alarms when the broker's own work is behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from storage_engine.commands import Command, Text
from storage_engine.core.wording import bytes_text, count_text, duration_text, time_text
from storage_engine.model.broker.broker_store import StorePositions
from storage_engine.model.broker.live import RunningBroker
from storage_engine.model.hold import BrokerProgress, Drift, DueRange, HoldStatus, WatchLook
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.model.settings.policy import Policy

_MOST_ALARMS: Final = 20


def broker_text(broker: RunningBroker) -> str:
    """Describe a broker in one line."""
    if broker.described:
        return broker.described
    return (
        f"Broker {broker.name} at {broker.address}: {broker.role}, {broker.version}, up since "
        f"{time_text(broker.boot_timestamp_ms)}; offsets {broker.min_offset} to {broker.max_offset}, "
        f"consume queues {bytes_text(broker.dispatch_behind_bytes)} behind"
    )


def hold_text(status: HoldStatus) -> str:
    """Return a hold in one line: until when it lasts, and what happens then without a renewal."""
    if status.left_to_broker:
        until = f", until {time_text(status.ends_at_ms)} unless it is renewed" if status.ends_at_ms else ""
        return f"left to its broker, which deletes by its own rules; {status.described}{until}"
    if not status.held:
        return "not held: the broker deletes by its own rules"
    until = f"until {time_text(status.ends_at_ms)}" if status.ends_at_ms is not None else "until unmanaged"
    if status.described:
        text = f"held {until}: {status.described}"
        if status.unheld:
            text += f"; not held at this moment: {named_in_short(sorted(status.unheld))}"
        if status.deletes_from_ms is None:
            return text
        return f"{text}; without a renewal the broker deletes from {time_text(status.deletes_from_ms)} on"
    scope = f"from offset {status.fence_offset} on" if status.fence_offset >= 0 else "only the active segment"
    text = f"held {until}: {scope}{_watch_text(status.watch)}"
    if status.deletes_from_ms is None:
        return text
    return (
        f"{text}; without a renewal the broker deletes from {time_text(status.deletes_from_ms)} on, "
        "fileReservedTime later. If a disk is full before that, and the broker may not delete by force, it "
        "takes no message"
    )


def _watch_text(watch: WatchLook | None) -> str:
    """Return a watch's last look as a clause. Return "" without a watch, which a notice reports."""
    if watch is None:
        return ""
    return (
        f"; its watch last looked {time_text(watch.looked_at_ms)} and saw "
        f"{count_text(watch.fenced, 'segment')} fenced, {watch.mended} mended since it began"
    )


def watching_text(look: WatchLook) -> str:
    """Return the text of a watch that has no problem to report."""
    if not look.runs_out_at_ms:
        return "watching"
    return Text(
        f"watching; the hold was not renewed in time and ends by itself {time_text(look.runs_out_at_ms)}: "
        f"{count_text(look.fenced, 'fenced segment')} and all younger segments may then be deleted by the "
        "broker. Renew it: ",
        Command("hold"),
    )


def hold_end_text(status: HoldStatus, unproven: str) -> str:
    """Return when an unrenewed hold ends, and which unproven segments may be deleted within a day after that.

    :param unproven: text on these segments, or "" if there are none.
    """
    ends_ms = status.ends_at_ms or 0
    from_ms = status.deletes_from_ms or ends_ms
    loss = "all segments deleted within a day then are proven"
    if unproven:
        loss = f"{unproven} may go within a day then"
    return (
        f"the hold was not renewed in time and ends by itself {time_text(ends_ms)}; the broker deletes from "
        f"{time_text(from_ms)} on: {loss}"
    )


def due_text(due: DueRange, now_ms: int) -> str:
    """Return a range that is about to be deleted unproven, in one line."""
    when = "now" if due.at_ms <= now_ms else f"from {time_text(due.at_ms)} on"
    return (
        f"log {due.log}: records of offsets [{due.start_offset}, {due.end_offset}), "
        f"{bytes_text(due.size_bytes)}, may be deleted by the broker {when}, no lake proves them, and they "
        f"can't be held: {due.why}. Archive them, or let the broker keep them longer"
    )


def drift_text(drift: Drift) -> str:
    """Return a change that others made to a hold, in one line."""
    place = f" {drift.log} [{drift.start_offset}, {drift.end_offset})" if drift.start_offset >= 0 else ""
    return Text(f"{drift.kind.value}{place}: ", drift.detail)


def due_alarms(status: HoldStatus, now_ms: int) -> Iterator[str]:
    """Yield alarms on ranges that will soon be deleted unproven, in order of deletion; then other alarms."""
    ordered = sorted(status.due, key=lambda due: due.at_ms)
    yield from (due_text(due, now_ms) for due in ordered[:_MOST_ALARMS])
    if more := ordered[_MOST_ALARMS:]:
        size = bytes_text(sum(due.size_bytes for due in more))
        count = count_text(len(more), "more log")
        yield Text(f"the same of {count}, {size}: ", Command("hold"), " lists them")
    yield from status.alarms


_INDEX = "index_msg"


def progress_alarms(progress: BrokerProgress | None, policy: Policy) -> tuple[str, ...]:
    """Return each exceeded limit of the policy as a sentence. An unknown value exceeds no limit."""
    if progress is None:
        return ()
    alarms = []
    for behind, most, where in (
        (progress.flush_behind_bytes, policy.flush_alarm_bytes, "of the log not on disk yet"),
        (
            progress.dispatch_behind_bytes,
            policy.dispatch_alarm_bytes,
            "of the log in no consume queue and index yet",
        ),
    ):
        if behind is not None and behind > most:
            alarms.append(f"broker: expected at most {bytes_text(most)} {where}, found {bytes_text(behind)}")
    for name, behind_ms in progress.checkpoint_behind_ms.items():
        seconds = policy.index_alarm_seconds if name == _INDEX else policy.checkpoint_alarm_seconds
        if seconds is not None and behind_ms > seconds * 1000:
            alarms.append(
                f"broker: expected its checkpoint's {name} at most {duration_text(seconds * 1000)} behind "
                f"the newest message, found {duration_text(behind_ms)}"
            )
    return tuple(alarms)


def progress_text(progress: BrokerProgress) -> str:
    """Return the broker's progress in one line."""
    parts = [f"log [{progress.min_offset}, {progress.max_offset})"]
    for behind, label in (
        (progress.flush_behind_bytes, "flush"),
        (progress.dispatch_behind_bytes, "dispatch"),
    ):
        parts.append(f"{label} {'unknown' if behind is None else f'at most {bytes_text(behind)}'} behind")
    for name, behind_ms in progress.checkpoint_behind_ms.items():
        parts.append(f"checkpoint's {name} {duration_text(behind_ms)} behind")
    if progress.timer_behind_messages:
        parts.append(f"timers {count_text(progress.timer_behind_messages, 'message')} behind")
    return ", ".join(parts)


def positions_text(positions: StorePositions) -> str:
    """Return the five positions of a store in one line."""
    flushed = "unknown" if positions.flushed is None else positions.flushed
    checkpoint = ", ".join(f"{name} {value}" for name, value in positions.checkpoint.items())
    return (
        f"wrote {positions.wrote}, committed {positions.committed}, flushed {flushed}, dispatched "
        f"{positions.dispatched}; checkpoint: {checkpoint or 'none'}"
    )
