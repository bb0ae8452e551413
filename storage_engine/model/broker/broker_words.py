"""Words of one kind of broker for texts that the engine writes; and where deleted files of its stores can be
kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class BrokerWords:
    """The defaults fit any kind.

    :param title: the name of this kind.
    :param address_options: options of a command, by any of which its running broker is named.
    :param by_hand: the effect of a cleanup by a person beyond the rules, as a sentence without its full stop;
        "": none.
    :param causes: by a cause of a run, that cause in words.
    :param errors: remedies by the name of an error's class.
    :param checks: remedies by the name of an expectation that rows break.
    :param dependents: heading of the files deleted after segments, as they pointed into them.
    :param queue: the part of a topic that has its messages.
    :param crash_sign: how its stores tell that their broker didn't stop cleanly.
    :param files_only: which brokers serve segments that were restored alone, as sentences.
    """

    title: str = ""
    address_options: tuple[str, ...] = ("--broker",)
    by_hand: str = ""
    causes: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, str] = field(default_factory=dict)
    dependents: str = "Files that pointed into deleted segments"
    queue: str = "queue"
    crash_sign: str = "its files say so"
    files_only: str = "A broker serves them after a restore for its node: --for-store."


class Aside(Enum):
    """Places where deleted files of a store can be kept for a while."""

    IN_STORE = auto()
    """In our own directory within it, which its broker bears: deleted files, second names of
    segments."""
    OUTSIDE = auto()
    """Only for stores whose deletions are ours, and in directories that a person names."""
