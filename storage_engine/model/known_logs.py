"""Logs that have an identity of their own, and whether one that isn't here any more should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from storage_engine.model.store import Segment, SegmentId, StoreSnapshot


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log it is, whatever has its name.

    :param log_id: as receipts have it; "": it can't be told.
    :param told_at: how far the broker's own knowledge of its logs reached; an earlier state tells nothing.
    """

    log_id: str = ""
    told_at: int = 0


def may_be_one(log_id: str, other_id: str) -> bool:
    """Return whether two identities may be of one log; "" is of any."""
    return len({log_id, other_id} - {""}) < 2


def log_label(log: str, log_id: str) -> str:
    """Return what a log is called once another one has its name."""
    return f"{log} ({log_id})"


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a log isn't here.

    :param is_right: it was deleted, or belongs elsewhere by now.
    :param why: a clause.
    :param is_unknown: nobody can tell whether it should be here, or it may lie where it isn't served from.
    """

    is_right: bool
    why: str
    is_unknown: bool = False


class IdentifiedLogs:
    """What a store knows of which logs it has. By default nothing.

    :cvar tells_absences: it can tell why a log isn't here; otherwise nothing is remembered of its logs.
    """

    __slots__ = ()

    tells_absences: ClassVar[bool] = False

    def log_identities(self, snapshot: StoreSnapshot) -> Mapping[str, LogIdentity]:
        """Return which logs a snapshot has, by name.

        :raises OSError: a file can't be read.
        """
        return {}

    def absences(self, logs: Mapping[str, LogIdentity]) -> Mapping[str, Absence]:
        """Say of logs that were seen before, and that aren't here, why that is.

        :raises OSError: a file can't be read.
        """
        return {}

    def own_ends(self, segments: Sequence[Segment]) -> Mapping[SegmentId, int]:
        """Return the ends of sealed segments behind which something is missing before the next one.

        :raises OSError: a file can't be read.
        """
        return {}
