"""A store that a running broker can be kept from deleting of. By default there is no hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage_engine.model.hold.hold import HoldStatus
from storage_engine.model.store.store import FileFacts, Segment, SegmentId

NO_HOLD: Final = HoldStatus(held=False, notices=("no broker runs, so nothing has to be held between runs",))
"""Of a store whose broker is stopped."""


@dataclass(frozen=True, slots=True)
class UnheldSegments:
    """Segments that the broker's own rules take by some moment, of a store that is held no more.

    :param unknown: what else they may take, and can't be told, a clause each.
    """

    segments: tuple[Segment, ...]
    unknown: tuple[str, ...] = ()


class HeldStore:
    """What is done to a hold, and asked of it."""

    __slots__ = ()

    def renew_hold(self, now_ms: int) -> HoldStatus:
        """Begin or renew a hold that outlives this process, and report the drift found on it.

        Only a running broker needs one: of a stopped one's store, it says so and does nothing.

        :raises GateRefusedError: the store can't be held; says why, and the remedy. Nothing was changed.
        """
        return NO_HOLD

    def hold_due(self, proven: Mapping[SegmentId, FileFacts], margin_ms: int, now_ms: int) -> HoldStatus:
        """Hold what goes soon though no lake has it, and put back what was held for that and is archived.

        Asked where the running broker is left to its own rules (:meth:`Broker.cleans_up`).

        :param proven: segments that a lake is known to prove, with the files that it does so for.
        :param margin_ms: how long before its broker deletes it something is held.
        :return: ``due`` is what goes within the margin and can't be held.
        :raises GateRefusedError: nothing can be held; says why, and the remedy. Nothing was changed.
        """
        return NO_HOLD

    def hold_status(self, now_ms: int) -> HoldStatus:
        """Return what ``renew_hold`` would find, without changing anything."""
        return NO_HOLD

    def held_until_ms(self) -> int | None:
        """Return until when the store is held by what lies with it, whoever's journal knows of that.

        :return: None: nothing that lies with it says that it is held.
        :raises StorageEngineError: what lies with it can't be read.
        """
        return None

    def holds(self, log: str) -> bool:
        """Return whether something of a log is held, as far as is remembered: unknown counts as that.

        Asked where the running broker is left to its own rules (:meth:`Broker.cleans_up`).
        """
        return True

    def unheld_segments(self, now_ms: int, until_ms: int) -> UnheldSegments:
        """Return what the broker's rules take by a moment if the hold ends now: by age, size and disk level.

        Decided by the settings as they are once they are put back. By default nothing of it is known.

        :raises StorageEngineError: the store can't be looked at, or its broker can't be asked.
        :raises OSError: a file can't be read.
        """
        return UnheldSegments((), ("its broker doesn't tell what it deletes of a store that isn't held",))

    def end_hold(self, now_ms: int) -> HoldStatus:
        """End the hold: put every file's time and every setting back as they were."""
        return NO_HOLD
