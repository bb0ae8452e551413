"""A running broker and a hold in words, for reports and people."""

from __future__ import annotations

from storage_engine.model.hold import Drift, HoldStatus
from storage_engine.model.live import RunningBroker
from storage_engine.wording import bytes_text, time_text


def broker_text(broker: RunningBroker) -> str:
    """Return what a broker says of itself, in one line."""
    if broker.described:
        return broker.described
    return (
        f"Broker {broker.name} at {broker.address}: {broker.role}, {broker.version}, up since "
        f"{time_text(broker.boot_timestamp_ms)}; offsets {broker.min_offset} to {broker.max_offset}, "
        f"consume queues {bytes_text(broker.dispatch_behind_bytes)} behind"
    )


def hold_text(status: HoldStatus) -> str:
    """A hold in one line: until when it stands, and what comes then if nobody renews it."""
    if not status.held:
        return "not held: the broker deletes by its own rules"
    until = f"until {time_text(status.ends_at_ms)}" if status.ends_at_ms is not None else "until unmanaged"
    if status.described:
        text = f"held {until}: {status.described}"
        if status.deletes_from_ms is None:
            return text
        return f"{text}; if nobody renews it, the broker deletes from {time_text(status.deletes_from_ms)} on"
    what = f"from offset {status.fence_offset} on" if status.fence_offset >= 0 else "only the active segment"
    text = f"held {until}: {what}"
    if status.deletes_from_ms is None:
        return text
    return (
        f"{text}; if nobody renews it, the broker deletes from {time_text(status.deletes_from_ms)} on, "
        "fileReservedTime later; a disk that fills before takes no message, where it may not delete by force"
    )


def drift_text(drift: Drift) -> str:
    """Return what others did in one line."""
    place = ""
    if drift.start_offset >= 0:
        place = f" {drift.log} [{drift.start_offset}, {drift.end_offset})"
    return f"{drift.kind.value}{place}: {drift.detail}"
