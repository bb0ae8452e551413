"""How far a store has come, as who writes it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_engine.model.hold.hold import BrokerProgress


@dataclass(frozen=True, slots=True)
class StorePositions:
    """Offsets of the log up to which a step is done, each at most the one before it but for ``dispatched``.

    :param wrote: in memory at least.
    :param committed: in the files, where readers see it.
    :param flushed: on disk; None: not known.
    :param dispatched: in consume queues and index.
    :param checkpoint: values of its file by name.
    """

    wrote: int
    committed: int
    flushed: int | None
    dispatched: int
    checkpoint: Mapping[str, int]


def positions_of(progress: BrokerProgress, checkpoint: Mapping[str, int]) -> StorePositions:
    """Return the positions that a running broker says; it counts what is committed as its log."""
    behind = progress.flush_behind_bytes
    end = progress.max_offset
    return StorePositions(
        wrote=end + progress.commit_behind_bytes,
        committed=end,
        flushed=None if behind is None else max(0, end - behind),
        dispatched=max(0, end - (progress.dispatch_behind_bytes or 0)),
        checkpoint=checkpoint,
    )


@dataclass(frozen=True, slots=True)
class FlushedStore:
    """The positions before and after a flush that was asked for."""

    before: StorePositions
    after: StorePositions
