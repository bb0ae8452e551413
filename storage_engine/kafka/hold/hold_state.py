"""What a hold of topics rests on, as it is remembered.

Everything in a :class:`HoldState` was durable in the journal before it was done to the cluster: whoever comes
after a kill knows each setting's first value, and how far each log was released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from storage_engine.model.hold import HoldMemory, load_hold, save_hold

RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
HELD_SETTINGS: Final = (RETENTION_MS, RETENTION_BYTES)
"""Of a topic: by them alone its records expire."""
UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic, as the cluster says it.

    :param value: that is in effect.
    :param is_own: the topic has it itself; otherwise it is its brokers'.
    """

    value: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class HeldSetting:
    """A setting that we changed, or are about to.

    :param topic_id: of the topic; another one of its name is another topic, which we never changed.
    :param original: what was in effect before; restored by deleting it where it wasn't the topic's own.
    :param ours: values that it may have if nobody else changed it; the last one is what it is to have.
    :param is_set: the cluster said so. Otherwise it may still be as it was.
    :param counts_from_ms: from when on it holds for sure: brokers apply a change later than they show it.
    :param is_left: we need it no more; it is put back once no other store of the journal needs it either.
    :param since_ms: from when on we need it; 0: not known.
    :param until_then: the least value that brokers may work by until it holds; None: ``original``'s.
    """

    topic: str
    topic_id: str
    key: str
    original: TopicSetting
    ours: tuple[int, ...]
    is_set: bool
    counts_from_ms: int
    is_left: bool = False
    since_ms: int = 0
    until_then: int | None = None

    def least_value(self, found: int, now_ms: int) -> int:
        """Return the least value that brokers may work by, of which the cluster shows ``found``."""
        if now_ms >= self.counts_from_ms:
            return found
        return lesser(found, self.original.value if self.until_then is None else self.until_then)

    def has_set(self, found: TopicSetting) -> bool:
        """Return whether a value is one that we have set, or are about to."""
        return found.is_own and found.value in self.ours

    def is_ours(self, found: TopicSetting) -> bool:
        """Return whether nobody but us has changed the setting."""
        return self.has_set(found) or (not self.is_set and found == self.original)


def lesser(one: int, other: int) -> int:
    """Return the value that keeps less."""
    return min(one, other, key=lambda value: (value == UNLIMITED, value))


@dataclass(frozen=True, slots=True)
class Written:
    """How far a log was written at one moment.

    :param base_offset: of its active segment.
    :param size_bytes: of that segment.
    """

    at_ms: int
    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KnownLog:
    """A held log when it was last looked at. The offsets are its leader's.

    :param let_go: up to where we have released it, or are about to; -1: not at all.
    :param unproven: ranges of offsets that no lake proved, where its broker deletes by its own rules.
    :param written: how far it was written, for how fast it grows; None: not known.
    :param is_away: this node has it no more, and drift says so already; what of it is unproven isn't known.
    """

    topic_id: str
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    log_start: int
    high_watermark: int
    let_go: int = -1
    unproven: tuple[tuple[int, int], ...] = ()
    written: Written | None = None
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class HoldState:
    """Everything that has to be known again after a kill.

    :param logs: by name, those that are held.
    :param holds_for_ms: for how long what is raised keeps records from then on; 0: for ever, or not known.
    """

    looked_at_ms: int = 0
    settings: tuple[HeldSetting, ...] = ()
    logs: Mapping[str, KnownLog] = field(default_factory=dict)
    holds_for_ms: int = 0

    @property
    def ends_at_ms(self) -> int | None:
        """Return when the hold ends by itself unless it is renewed; None: never, or not known."""
        return self.looked_at_ms + self.holds_for_ms if self.holds_for_ms else None

    def has_ended(self, now_ms: int) -> bool:
        """Return whether the hold has ended by itself, as nobody has renewed it."""
        return self.ends_at_ms is not None and self.ends_at_ms < now_ms

    def has_settings(self, topic: str) -> bool:
        """Return whether we did anything to a topic's settings."""
        return any(one.topic == topic for one in self.settings)

    def setting(self, topic: str, key: str) -> HeldSetting | None:
        """Return what we did to a setting; None: nothing."""
        return next((one for one in self.settings if (one.topic, one.key) == (topic, key)), None)


def load_state(memory: HoldMemory | None) -> HoldState | None:
    """
    :raises GateRefusedError: what is remembered isn't what this release writes.
    """
    return load_hold(memory, HoldState)


def save_state(memory: HoldMemory, state: HoldState | None) -> None:
    """Durable when it returns."""
    save_hold(memory, state)
