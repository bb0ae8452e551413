"""A store with everything that is needed to manage it: settings, lake, journal, reports and policy.

The module also names the places of reports' files and of running jobs' files. A marker shows the directories
in which we may replace files. A job's directory is removed at its end, or by a sweep if the job died.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_engine.brokers import cleanups_of, default_broker
from storage_engine.core.durable import make_dirs, write_file
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
"""Default segment size of both brokers, in bytes."""


@dataclass(frozen=True, slots=True)
class ManagedStore:
    """The store that an Airflow connection or a command line describes.

    It is passed between processes as JSON.

    :param name: the store's name for people and reports. If a person stated it, it is also the journal's key.
    :param root: the broker's storePathRootDir. The store's identity depends on its real path.
    :param journal_url: SQLAlchemy URL, such as ``sqlite:////var/lib/storage-engine/journal.db``.
    :param report_dir: directory that receives one JSON report and one text report for each run.
    :param broker: the kind of broker, by its registered name.
    :param broker_conf: the broker's own config file; None for the broker's defaults.
    :param overrides: broker settings under the broker's names. They take precedence over ``broker_conf``.
    :param time_zone: IANA name of deleteWhen's time zone; None for this machine's zone.
    :param second_lake: receives segments while ``lake`` can't be reached. Segments in either lake
        count as archived.
    :param host: host of the store's disk, by host name or machine id; "*" if it is mounted on every host;
        None for the host on which the store was first seen.
    :param live: the broker that runs on the store; None if it is stopped.
    :param engine: this package's engine writes the store. A running engine is asked; without one, the store
        is opened.
    :param named: a person stated the name, as a connection's id or an option. Otherwise the path gives it.
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
                f"second lake {self.lake.location}: expected another lake than the first, found the same. "
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
        """Return the lake, and the second lake if there is one."""
        return (self.lake,) if self.second_lake is None else (self.lake, self.second_lake)

    @property
    def archives(self) -> bool:
        """Return whether the policy requires that segments are archived before they are deleted."""
        return self.policy.archive is not ArchiveMode.OFF

    @property
    def archive_lakes(self) -> tuple[LakeConfig, ...]:
        """Return the store's lakes; empty if nothing is archived."""
        return self.lakes if self.archives else ()

    @property
    def archives_ahead(self) -> bool:
        """Return whether segments are archived as soon as they are sealed, by policy or kind of broker."""
        at_seal = self.policy.archive_when is ArchiveWhen.SEAL
        at_seal = at_seal or cleanups_of(self.broker, None) is not Cleanups.WHEN_DUE
        return self.archives and at_seal

    @property
    def cleans_up(self) -> bool:
        """Return whether the store may be held and deleted from; otherwise it is only archived."""
        return cleanups_of(self.broker, self.live) is Cleanups.WHEN_DUE

    @property
    def cleans_up_on_request(self) -> bool:
        """Return whether a requested cleanup may delete segments from the store."""
        return cleanups_of(self.broker, self.live) in (Cleanups.WHEN_DUE, Cleanups.ON_REQUEST)

    @property
    def is_live(self) -> bool:
        """Return whether the settings say that the store's broker runs. An open store asks its broker
        instead.
        """
        return self.live is not None

    @property
    def may_share_disks(self) -> bool:
        """Return whether our files may be on a disk that the broker writes to."""
        return self.live is None or self.live.allow_same_disk

    @property
    def real_root(self) -> str:
        return os.path.realpath(self.root)

    @classmethod
    def local(cls, name: str, root: str, directory: str | os.PathLike[str], **settings: Any) -> ManagedStore:
        """Return a store whose lake, journal and reports are all below one local directory."""
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
        """Return whether the store's journal may exist, without loading the database's libraries."""
        file = self.journal_url.removeprefix("sqlite:///")
        return bool(file) and (file == self.journal_url or Path(file).exists())

    def to_json(self) -> str:
        return json.dumps(to_jsonable(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ManagedStore:
        """Return a store from the text of :meth:`to_json`.

        :raises BadInputError: no JSON, or a key is unknown, missing or of a wrong type; the error names it.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            # The error doesn't quote the settings, because they may contain credentials.
            raise BadInputError(f"store settings: expected JSON, found something else ({error})") from None
        return from_jsonable(cls, data, "store settings")


def archive_threads_of(store: ManagedStore, segment_bytes: int = USUAL_SEGMENT_BYTES) -> int:
    """Return how many of a store's segments its tasks archive at a time, except in an emergency.

    :param segment_bytes: size of the largest segment.
    """
    from storage_engine.lake.archive.threads import threads_here

    return threads_here(segment_bytes, archive_limit(store.policy, beside=store.is_live, emergency=False))


def store_name(store: ManagedStore) -> str:
    """Return the name of a store: the stated one, or the journal's, or else one from its path."""
    if store.journal_url and not store.named:
        from storage_engine.journal.journal import Journal

        with suppress(StorageEngineError):
            record = Journal(store.journal_url, read_only=True).find_store(store.real_root, store.host)
            if record is not None and record.name:
                return record.name
    return store.name


_PREFIX = ".spark-job-"


@contextmanager
def job_directory(parent: Path) -> Iterator[Path]:
    """Make a directory that only this user can read, and remove it at the end.

    A lock shows that the directory's process is alive. Directories of dead processes are removed first.
    """
    make_dirs(parent)
    sweep_job_files(parent)
    directory, lock = _locked_directory(parent)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def sweep_job_files(parent: Path, *, dry_run: bool = False) -> tuple[Path, ...]:
    """Remove the directories of jobs whose process is dead.

    :param dry_run: only find them.
    :return: paths of the directories that were removed, or would be.
    """
    dead = []
    for directory in sorted(parent.glob(f"{_PREFIX}*")):
        lock = _try_lock(directory)
        if lock is None:
            continue
        try:
            dead.append(directory)
            if not dry_run:
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
    return tuple(dead)


def _locked_directory(parent: Path) -> tuple[Path, int]:
    """Return a new directory and the descriptor that locks it.

    If a sweep removes the directory before it is locked, another one is made.
    """
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _try_lock(directory)
        if lock is None:
            continue
        if directory.exists():
            return directory, lock
        os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """Lock a directory and return its descriptor, or None if it is locked already or can't be opened."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


MARKER = ".storage-engine-reports"
"""File that marks a directory: we may replace reports and Data Docs in it."""

REPORT_JSON = "report.json"
REPORT_TEXT = "report.txt"
PAGE = "report.html"
SUMMARY_TEXT = "summary.txt"
SUMMARY_HTML = "summary.html"
VALIDATION_JSON = "validation.json"
LAG_TABLE = "consumer_lag"
USAGE_PAGE = "usage.html"
USAGE_TABLE = "usage.parquet"
DATA_DOCS_DIRECTORY = "great_expectations"
DATA_DOCS_SITE = "gx/uncommitted/data_docs/storage_engine"
"""Directory of Data Docs, inside Great Expectations' own directory."""
DATA_DOCS = f"{DATA_DOCS_DIRECTORY}/{DATA_DOCS_SITE}/index.html"
"""First page of a run's Data Docs, relative to the run's directory."""
RUN_FILES = (
    PAGE,
    REPORT_TEXT,
    SUMMARY_TEXT,
    SUMMARY_HTML,
    VALIDATION_JSON,
    LAG_TABLE,
    USAGE_PAGE,
    USAGE_TABLE,
    MARKER,
)
"""Files that a run's directory may have besides its report and its Data Docs."""

_HASH_DIGITS = 8


def run_directory(store: ManagedStore, run_key: str) -> Path:
    """Return the directory of a run's own files, below the store's reports."""
    return Path(store.report_dir) / store_directory(store) / report_name(run_key)


def store_directory(store: ManagedStore) -> str:
    """Return the name of a store's directory among the reports.

    A store that is named by its root directory gets a hash of the path: another root may have the same name.
    """
    if store.name == Path(store.root).name:
        return f"{report_name(store.name)}-{short_hash(store.real_root)}"
    return report_name(store.name)


def report_name(text: str) -> str:
    """Return a file name for any text, a different one for each text.

    A text with characters that some file systems refuse, such as colons in Airflow's run ids, gets a hash.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")
    return plain if plain and plain == text else f"{plain or 'run'}-{short_hash(text)}"


def short_hash(text: str) -> str:
    """Return eight hexadecimal digits of a text's hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def page_links(directory: Path) -> dict[str, str]:
    """Return the files beside a page: title → relative address."""
    beside = {"Data Docs": DATA_DOCS, "Report as text": REPORT_TEXT, "Report as JSON": REPORT_JSON}
    links = {**beside, "Validation as JSON": VALIDATION_JSON, "Retention report": USAGE_PAGE}
    return {title: path for title, path in links.items() if (directory / path).is_file()}


def refuse_foreign(directory: Path, names: Iterable[str]) -> None:
    """Make sure that files with these names in a directory are ours to replace.

    :raises BadInputError: a file with such a name exists, and the directory isn't marked as ours.
    """
    marker = directory / MARKER
    if marker.is_file() and not marker.is_symlink():
        return
    for path in (directory / name for name in names):
        if path.exists() or path.is_symlink():
            raise BadInputError(
                f"{directory}: expected a new directory or one with reports of storage-engine, found a "
                f"foreign {path.name}. Nothing was changed. Name another directory."
            )


def claim(directory: Path) -> None:
    """Make a directory and mark it as ours, after the check of :func:`refuse_foreign`."""
    make_dirs(directory)
    write_file(directory / MARKER, b"Reports of storage-engine, which replaces them each time.\n")
