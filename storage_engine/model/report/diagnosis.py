"""Findings about a store: each with its urgency and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from storage_engine.commands import Text


class Severity(StrEnum):
    URGENT = "urgent"
    """No command works before a person acts, or data is lost or something stops within a day."""
    WARNING = "warning"
    """Data is lost or something stops if nobody acts."""
    NOTE = "note"
    """Useful to know: it explains other findings."""


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding about a store.

    :param kind: a word for programs that never changes.
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


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the most urgent first, each once. Equally urgent findings keep their order."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: _ORDER.index(finding.severity)))


class SettingFrom(StrEnum):
    """Source of the value of a broker's setting."""

    CONFIG_FILE = "config-file"
    OVERRIDE = "override"
    """Given by an option or by the store's connection."""
    RUNNING_BROKER = "running-broker"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingInEffect:
    """A setting with the value that the broker uses.

    :param note: the configured value, if the broker uses another one because of a limit; else "".
    """

    name: str
    value: str
    source: SettingFrom
    note: str = ""


@dataclass(frozen=True, slots=True)
class BrokerDiagnosis:
    """A broker package's findings about a store, even if the store can't be opened.

    :param version: the broker's version, as far as it is known; "" where it is unknown.
    :param layout: clauses of a few words on the store's layout on disk.
    :param running: whether a broker runs on the store; None if unknown.
    :param running_text: the broker's process, or why a broker is believed to run; "" if unknown.
    :param live_option: option for a command that asks the running broker, as typed; "" if no broker can be
        asked.
    :param settings: the settings that decide when segments are deleted.
    :param age_setting: the setting for how long segments are kept, with its value; "" if there is no such
        setting.
    :param full_percent: above this level of its disk the broker refuses messages; None if it never does.
    :param newest_message_ms: when the newest message was stored; None if unknown.
    :param findings: findings that exist only for this kind of broker.
    :param faulty_logs: names of logs that can't be archived until a finding is corrected.
    :param refused: whether no command works with the store until a finding is corrected.
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
    """Return the first few names and the number of further names."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def reason_of(error: object) -> str:
    """Return the fact in an error's text, without its sentences on changes and remedies."""
    fact = Text(error).partition(" Nothing was changed.")[0].removesuffix(".")
    return fact.partition(", found that ")[2] or fact
