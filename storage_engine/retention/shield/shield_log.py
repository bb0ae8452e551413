"""The log that a shield is of, as far as it can be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import StorageEngineError, StoreLayoutError
from storage_engine.model.store.store import Segment
from storage_engine.retention.store.broker_answers import take_sealed_files
from storage_engine.retention.store.context import Context


@dataclass(frozen=True, slots=True)
class ShieldedLog:
    """
    :param sealed: its sealed segments, oldest first.
    :param is_whole: nothing is missing between them; otherwise some may not be listed.
    :param is_known: it could be looked at.
    """

    sealed: tuple[Segment, ...] = ()
    is_whole: bool = True
    is_known: bool = True


def look_at_log(context: Context, notices: list[str]) -> ShieldedLog:
    """Return a log's sealed segments, even where somebody removed some from the middle of it.

    :param notices: what a person should know is added.
    """
    try:
        try:
            snapshot = context.snapshot(clock_ms())
            return ShieldedLog(tuple(segment for log in snapshot.logs for segment in log.sealed))
        except StoreLayoutError as error:
            notices.append(f"the log isn't whole: {error}")
            return ShieldedLog(
                take_sealed_files(context.broker, context.store.broker),
                is_whole=False,
            )
    except (StorageEngineError, OSError) as error:
        notices.append(f"no further segment is shielded: the log can't be looked at: {reason_text(error)}")
        return ShieldedLog(is_known=False)
