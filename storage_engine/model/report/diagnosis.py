"""Findings about a store: each with its urgency and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.commands import Text


class Severity(StrEnum):
    URGENT = "urgent"
    """Something is lost, or stops, within a day, or nothing works before it is put right."""
    WARNING = "warning"
    """Something is lost, or stops, unless somebody does something about it."""
    NOTE = "note"
    """Good to know, as it explains what others find."""


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know.

    :param kind: a word that stays the same, for programs.
    :param what: the finding, as one sentence without its full stop.
    :param advice: the remedy, with the command or the setting; "" where there is none.
    """

    severity: Severity
    kind: str
    what: str
    advice: str = ""

    @classmethod
    def urgent(cls, kind: str, what: str, advice: str = "") -> Finding:
        return cls(Severity.URGENT, kind, what, advice)

    @classmethod
    def warning(cls, kind: str, what: str, advice: str = "") -> Finding:
        return cls(Severity.WARNING, kind, what, advice)

    @classmethod
    def note(cls, kind: str, what: str, advice: str = "") -> Finding:
        return cls(Severity.NOTE, kind, what, advice)


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the most urgent first, each once; equal ones in the order they were found in."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: _ORDER.index(one.severity)))


class SettingFrom(StrEnum):
    """Source of the value of a broker's setting."""

    CONFIG_FILE = "config-file"
    OVERRIDE = "override"
    """Given by an option or by the store's connection."""
    RUNNING_BROKER = "running-broker"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingInEffect:
    """A setting as the broker works with it.

    :param name: as the broker calls it.
    :param note: its difference from the configured value; "" where there is none.
    """

    name: str
    value: str
    source: SettingFrom
    note: str = ""


@dataclass(frozen=True, slots=True)
class BrokerDiagnosis:
    """A broker package's findings about a store, also about one that can't be opened.

    :param version: of the broker, as far as it can be told; "" where it can't be told at all.
    :param layout: how the store lies on disk, a few words each.
    :param running: a broker runs on the store; None: that can't be told.
    :param running_text: which process does, or why one is taken for running; "" likewise.
    :param live_option: the option by which a command asks that broker, as typed; "" where none can be asked.
    :param settings: those that decide when something is deleted.
    :param age_setting: the setting that says how long segments stay, and its value; "" where there is none.
    :param full_percent: above this level of its disk the broker takes no message; None: at no level.
    :param newest_message_ms: when the newest message was stored; None: it can't be told.
    :param findings: findings that only this kind of broker has.
    :param faulty_logs: names of logs that no archive takes before a finding is put right.
    :param refused: no command works with the store before a finding is put right.
    """

    version: str = ""
    layout: tuple[str, ...] = ()
    running: bool | None = None
    running_text: str = ""
    live_option: str = ""
    settings: tuple[SettingInEffect, ...] = ()
    age_setting: str = ""
    full_percent: int | None = None
    newest_message_ms: int | None = None
    findings: tuple[Finding, ...] = ()
    faulty_logs: frozenset[str] = frozenset()
    refused: bool = False


def named_in_short(names: Sequence[str], most: int = 3) -> str:
    """Return the first few of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def reason_of(error: object) -> str:
    """Return the fact that an error states, without its words on changes and remedies."""
    said = Text(error).partition(" Nothing was changed.")[0].removesuffix(".")
    return said.partition(", found that ")[2] or said
