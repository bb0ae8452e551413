"""A store together with everything that managing it takes: settings, lake, journal, reports, policy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.brokers import cleanups_of, default_broker
from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.kind import Cleanups
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.policy import (
    LONGEST_UNDO_HOURS,
    ArchiveMode,
    ArchiveWhen,
    Policy,
    archive_limit,
)

USUAL_SEGMENT_BYTES = 1 << 30
"""Default segment size of both brokers."""


@dataclass(frozen=True, slots=True)
class ManagedStore:
    """The store that an Airflow connection or a command line describes; crosses processes as JSON.

    :param name: the store's name for people; names its reports, and keys the journal where it was stated.
    :param root: the broker's storePathRootDir. The store's identity hangs on its real path.
    :param journal_url: SQLAlchemy URL, such as ``sqlite:////var/lib/storage-engine/journal.db``.
    :param report_dir: directory that receives one JSON and one text report a run.
    :param broker: its kind, as it is registered.
    :param broker_conf: the broker's own config file; None: the broker's defaults.
    :param overrides: broker settings by the broker's names, which win over ``broker_conf``.
    :param time_zone: IANA name of the zone in which deleteWhen is meant; None: this machine's.
    :param second_lake: receives segments while ``lake`` can't be reached. Segments in either count.
    :param host: where the store's disk is, by host name or machine id; "*": mounted on every host; None: the
        host on which it was first seen.
    :param live: the broker that runs on the store; None: it is stopped.
    :param engine: this package's own engine writes the store, or will: a running one is asked, a stopped one
        is opened.
    :param named: somebody stated the name, as a connection's id or an option; it is not only its path's.
    """

    name: str
    root: str
    lake: LakeConfig
    journal_url: str = field(repr=False)
    report_dir: str
    broker: str = field(default_factory=default_broker)
    broker_conf: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    time_zone: str | None = None
    policy: Policy = field(default_factory=Policy)
    second_lake: LakeConfig | None = None
    host: str | None = None
    live: LiveBroker | None = None
    named: bool = False
    engine: bool = False

    def __post_init__(self) -> None:
        if self.second_lake == self.lake:
            raise BadInputError(
                f"second lake {self.lake.location}: expected another one than the lake, found the same. "
                "Nothing was changed. Name another directory or catalog, or none."
            )

        window_hours = self.policy.undo_window_hours
        if window_hours is not None and (self.is_live or self.engine):
            raise BadInputError(
                f"store {self.name}: expected no undo_window_hours beside a running broker, which deletes by "
                f"itself, found {window_hours}. Nothing was changed. Leave it empty, or stop the broker."
            )
        if window_hours is not None and not 1 <= window_hours <= LONGEST_UNDO_HOURS:
            raise BadInputError(
                f"store {self.name}: undo_window_hours: expected 1 to {LONGEST_UNDO_HOURS}, found "
                f"{window_hours}. Nothing was changed. Choose a shorter time."
            )

    @property
    def lakes(self) -> tuple[LakeConfig, ...]:
        """The lake, and the second one if there is one."""
        return (self.lake,) if self.second_lake is None else (self.lake, self.second_lake)

    @property
    def archives(self) -> bool:
        """Return whether its policy is that segments go into a lake before they are deleted."""
        return self.policy.archive is not ArchiveMode.OFF

    @property
    def archive_lakes(self) -> tuple[LakeConfig, ...]:
        """Return its lakes; none where nothing is archived."""
        return self.lakes if self.archives else ()

    @property
    def archives_ahead(self) -> bool:
        """Return whether segments are archived once sealed: by policy, or for their kind of broker."""
        policy = self.policy
        at_seal = policy.archive_when is ArchiveWhen.SEAL or self._cleanups(None) is not Cleanups.WHEN_DUE
        return self.archives and at_seal

    @property
    def cleans_up(self) -> bool:
        """Return whether it may be held and deleted from; otherwise it is only archived."""
        return self._cleanups(self.live) is Cleanups.WHEN_DUE

    @property
    def cleans_up_on_request(self) -> bool:
        """Return whether segments may be deleted from it when a cleanup is requested."""
        return self._cleanups(self.live) in (Cleanups.WHEN_DUE, Cleanups.ON_REQUEST)

    def _cleanups(self, live: LiveBroker | None) -> Cleanups:
        return cleanups_of(self.broker, live)

    @property
    def is_live(self) -> bool:
        """Return whether the store's broker runs on, by its settings; an open store asks its broker."""
        return self.live is not None

    @property
    def may_share_disks(self) -> bool:
        """Return whether our files may lie on a disk that the broker writes to."""
        return self.live is None or self.live.allow_same_disk

    @property
    def real_root(self) -> str:
        return os.path.realpath(self.root)

    @classmethod
    def local(cls, name: str, root: str, directory: str | os.PathLike[str], **settings: Any) -> ManagedStore:
        """A store whose lake, journal and reports all lie under one local directory.

        :param settings: any other field.
        """
        base = Path(directory).absolute()
        return cls(
            name=name,
            root=root,
            lake=settings.pop("lake", None) or LakeConfig.local(str(base / "lake")),
            journal_url=f"sqlite:///{base / 'journal.db'}",
            report_dir=str(base / "reports"),
            **settings,
        )

    @property
    def may_have_journal(self) -> bool:
        """Return whether its journal may exist; needs no library that reads one."""
        file = self.journal_url.removeprefix("sqlite:///")
        return bool(file) and (file == self.journal_url or Path(file).exists())

    def to_json(self) -> str:
        return json.dumps(to_jsonable(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ManagedStore:
        """Inverse of :meth:`to_json`.

        :raises BadInputError: not JSON, or an unknown, missing or ill-typed key; names it.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            # Not quoted: they may hold credentials.
            raise BadInputError(f"store settings: expected JSON, found something else ({error})") from None
        return from_jsonable(cls, data, "store settings")


def archive_threads_of(store: ManagedStore, segment_bytes: int = USUAL_SEGMENT_BYTES) -> int:
    """Return how many segments of a store its tasks archive at a time, but in an emergency.

    :param segment_bytes: of the largest.
    """
    from storage_engine.lake.archive.threads import threads_here

    pace = archive_limit(store.policy, beside=store.is_live, emergency=False)
    return threads_here(segment_bytes, pace)


def store_name(store: ManagedStore) -> str:
    """Return the name of a store: as it was stated, or its journal has it; else by its place."""
    if store.journal_url and not store.named:
        from storage_engine.journal.journal import Journal

        with suppress(StorageEngineError):
            known = Journal(store.journal_url, read_only=True).find_store(store.real_root, store.host)
            if known is not None and known.name:
                return known.name
    return store.name
