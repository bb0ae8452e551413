"""Words of one kind of broker for the engine's texts, and the places for deleted files of its stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class BrokerWords:
    """Words for texts about one kind of broker. The defaults fit any kind.

    :param address_options: options of a command; each of them names a running broker.
    :param by_hand: how a cleanup by a person goes beyond the rules, as a sentence without full stop, or "".
    :param causes: the words for each cause of a run.
    :param errors: remedies by the name of an error's class.
    :param checks: remedies by the name of an expectation that rows break.
    :param dependents: heading for the files that are deleted after segments because they pointed into them.
    :param queue: the word for the part of a topic that has messages, such as a queue or partition.
    :param crash_sign: the sign in a store that its broker didn't stop cleanly.
    :param files_only: sentences on the brokers that serve segments restored without further files.
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
    files_only: str = "For a broker that serves them, restore for its node with --for-store."


class Aside(Enum):
    """Places where deleted files of a store can be kept for a while."""

    IN_STORE = auto()
    """Our directory in the store, for deleted files and second names of segments. The broker tolerates it."""
    OUTSIDE = auto()
    """Directories that a person names. They are only for stores from which we delete ourselves."""
