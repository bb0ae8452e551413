"""Approval of a plan by a second person: who began a run, what was asked, and what was answered.

Nothing here permits anything: :mod:`storage_engine.retention.proof.gate` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from storage_engine.model.settings.policy import ApprovalPolicy


class Realm(StrEnum):
    """What vouches for a person's name. Names from two of these can't be compared."""

    SHELL = "shell"
    """The operating system: the real user id of a process."""
    AIRFLOW = "airflow"
    """Airflow's auth manager."""


@dataclass(frozen=True, slots=True)
class Person:
    """:param uid: real user id, of an account at a shell.
    :param behind: who took the account by sudo, as its environment says; "": nobody, or not known.
    :param host: the machine whose account it is.
    :param user_id: of a user of Airflow.
    """

    realm: Realm
    name: str
    uid: int | None = None
    behind: str = ""
    host: str = ""
    user_id: str = ""

    @property
    def text(self) -> str:
        """Return who it is, for messages."""
        if self.realm is Realm.AIRFLOW:
            return f"{self.name} (Airflow)"
        return f"{self.name} (uid {self.uid}{f', for {self.behind}' if self.behind else ''})"

    def is_another(self, other: Person) -> bool:
        """Return whether the two are certainly not one person; what can't be compared counts as one."""
        if self.realm is not other.realm:
            return False
        names = [{name.casefold() for name in (one.name, one.behind) if name} for one in (self, other)]
        return all(names) and not names[0] & names[1] and (self.uid is None or self.uid != other.uid)


@dataclass(frozen=True, slots=True)
class Starter:
    """Who began a run.

    :param person: None: nobody did, as where a schedule or an asset begins a run of Airflow.
    """

    realm: Realm
    person: Person | None


class Said(StrEnum):
    APPROVED = "approved"
    REJECTED = "rejected"
    TIMED_OUT = "timed-out"
    REFUSED = "refused"
    """Approved by who may not: the starter, or a user who isn't on the list."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered about a plan.

    :param person: None where nobody did.
    :param at_ms: when, by the clock of the machine that took the answer.
    :param detail: why an answer doesn't count.
    """

    digest: str
    said: Said
    person: Person | None
    at_ms: int
    detail: str = ""

    @property
    def approver(self) -> Person | None:
        """Return who approved the plan; None: nobody did by this."""
        return self.person if self.said is Said.APPROVED else None


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What was asked, while nobody has answered.

    :param why: why a second person has to approve the plan, as a clause.
    :param until_ms: an answer from that moment on doesn't count; None: any time will do, as at a shell.
    :param link: where to answer.
    """

    digest: str
    why: str
    asked_at_ms: int
    until_ms: int | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class RecordedPolicy:
    """The most that a store's policy has asked for, until two persons lowered it.

    :param minimum_retention_hours: the longest that it had meanwhile; a run with less counts as forced.
    :param persons: who lowered it: who asked for it and who approved it.
    :param at_ms: since when it holds: of what journal and stamp say, the later one counts.
    :param kept_ms: the longest for which settings kept segments meanwhile, likewise; None: none was known.
    """

    approval: ApprovalPolicy
    minimum_retention_hours: int | None = None
    persons: tuple[Person, ...] = ()
    at_ms: int = 0
    kept_ms: int | None = None

    def raised_by(
        self, approval: ApprovalPolicy, minimum_hours: int | None, kept_ms: int | None = None
    ) -> RecordedPolicy:
        """Return what holds once settings say this: they may ask for more, never for less."""
        hours = [one for one in (self.minimum_retention_hours, minimum_hours) if one is not None]
        kept = [one for one in (self.kept_ms, kept_ms) if one is not None]
        strictest = max(self.approval, approval, key=lambda one: one.rank)
        if strictest is ApprovalPolicy.NONE:
            return self
        most = max(hours, default=None), self.persons, self.at_ms, max(kept, default=None)
        return RecordedPolicy(strictest, *most)


NOTHING_RECORDED = RecordedPolicy(ApprovalPolicy.NONE)
