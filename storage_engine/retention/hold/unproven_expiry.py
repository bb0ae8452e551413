"""What a broker that deletes by its own rules is about to delete, though no lake has it."""

from __future__ import annotations

from storage_engine.core.clock import HOUR_MS
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.report.diagnosis import named_in_short
from storage_engine.retention.archive.sealed import MeasuredLag
from storage_engine.retention.store.broker_answers import ask
from storage_engine.retention.store.context import Context


def expiry_alarms(context: Context, measured: MeasuredLag, now_ms: int) -> tuple[str, ...]:
    """Say which segments go within the policy's margin, and are proven in no lake.

    What may not be archived by now counts, too, as for an open transaction: it goes all the same.

    :raises OSError: a file can't be read.
    """
    snapshot, until_ms = measured.snapshot, now_ms + context.store.policy.archive_margin_hours * HOUR_MS
    moments = ask(
        context.store.broker, "tell when it deletes", lambda: context.broker.deletes_at_ms(snapshot, now_ms)
    )
    going = {
        segment.id: (at_ms, segment)
        for log in snapshot.logs
        for segment in log.sealed
        if segment.id not in measured.archived
        and segment.facts.size_bytes
        and (at_ms := moments.get(segment.id)) is not None
        and at_ms <= until_ms
    }
    if not going:
        return ()
    first_ms = min(at_ms for at_ms, _ in going.values())
    logs = list(dict.fromkeys(one.log for one in going))
    size = bytes_text(sum(segment.disk_bytes for _, segment in going.values()))
    when = "now" if first_ms <= now_ms else f"from {time_text(first_ms)} on"
    return (
        f"{count_text(len(going), 'segment')}, {size}, of {named_in_short(logs)} may be deleted by the "
        f"broker {when}, and no lake proves them: archive them, or let it keep them longer",
    )
