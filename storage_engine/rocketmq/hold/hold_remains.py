"""What a hold has left in a store, and nobody renews any more: a fence, a marker, changed settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from storage_engine.core.wording import count_text, time_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.hold.hold import HoldMemory
from storage_engine.model.report.diagnosis import Finding, Severity
from storage_engine.rocketmq.hold.heartbeat import no_watch
from storage_engine.rocketmq.hold.local_hold import read_local
from storage_engine.rocketmq.hold.marker import NAME, Marker, read_marker
from storage_engine.rocketmq.hold.state import HoldState, load_state

_END = "end it and put everything back: storage-engine unmanage"


def hold_remains(root: Path, memory: HoldMemory | None, now_ms: int) -> Iterator[Finding]:
    """Look for what is left of holds.

    :param memory: the journal's, of the store's hold; None: nobody named a journal.
    """
    try:
        marker, local = read_marker(root), read_local(root)
        known = load_state(memory)
    except GateRefusedError as error:
        yield Finding(Severity.WARNING, "hold", str(error))
        return
    watch = "" if marker is None else no_watch(root)
    yield from judged_hold(root, marker, local, known, knows_journal=memory is not None, now_ms=now_ms)
    if marker is not None and marker.ends_at_ms > now_ms and watch:
        yield Finding(
            Severity.NOTE,
            "no-watch",
            f"the store is held and {watch}: nobody mends a fence that somebody touches",
            "run storage-engine watch on this host",
        )


def judged_hold(
    root: Path,
    marker: Marker | None,
    local: HoldState | None,
    known: HoldState | None,
    *,
    knows_journal: bool,
    now_ms: int,
) -> Iterator[Finding]:
    """Judge what is left of a hold. Pure.

    :param marker: that says until when it stands.
    :param local: the record of it that lies with the store.
    :param known: what the journal remembers of it.
    :param knows_journal: a journal was asked.
    """
    if marker is not None and marker.ends_at_ms <= now_ms:
        yield Finding(
            Severity.WARNING,
            "dead-hold",
            f"a hold by {marker.host} ended {time_text(marker.ends_at_ms)} and was not put back"
            f"{_left(local)}",
            _END,
        )
    elif marker is not None and knows_journal and (known is None or known.manager != marker.manager):
        yield Finding(
            Severity.WARNING,
            "foreign-hold",
            f"{root / NAME}: {marker.host} holds the store until {time_text(marker.ends_at_ms)} by another "
            f"journal than this one, or its journal is gone{_left(local)}",
            "name the lake that it was held with; if its journal is gone, wait until the hold ends, then "
            "storage-engine unmanage",
        )
    elif marker is None and local is not None and (local.touched or local.changed_settings):
        yield Finding(
            Severity.WARNING, "dead-hold", f"a hold without a marker was not put back{_left(local)}", _END
        )


def _left(local: HoldState | None) -> str:
    if local is None:
        return ""
    left = [count_text(len(local.touched), "changed file time")] if local.touched else []
    left += [f"{one.key}={one.ours} (before: {one.original})" for one in local.changed_settings]
    return f": {', '.join(left)} left as it set them" if left else ""
