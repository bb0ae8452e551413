"""Places for the files of reports and of running jobs, and owners of directories in which files are replaced.

A job's directory goes with it, or is swept after its death.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_engine.core.durable import make_dirs, write_file
from storage_engine.exceptions import BadInputError
from storage_engine.retention.store.managed_store import ManagedStore

_PREFIX = ".spark-job-"


@contextmanager
def job_directory(parent: Path) -> Iterator[Path]:
    """Make a directory that only this user can read, and remove it at the end.

    It is locked until then, so that :func:`sweep_job_files` tells it from those of killed processes. These
    are removed first.
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
    :return: those that were removed, or would be.
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
    """A new directory and the descriptor that locks it; a sweep may come between the two."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        lock = _try_lock(directory)
        if lock is None:
            continue
        if directory.exists():
            return directory, lock
        os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """The descriptor of a lock on a directory; None where another process has it, or it isn't our lock."""
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
"""File in a directory whose reports and Data Docs are ours to replace."""

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
"""Data Docs, below Great Expectations' own directory."""
DATA_DOCS = f"{DATA_DOCS_DIRECTORY}/{DATA_DOCS_SITE}/index.html"
"""The first page of a run's Data Docs, below the run's directory."""
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
"""Files that a run's directory may have beside its report and its Data Docs."""

_HASH_DIGITS = 8


def run_directory(store: ManagedStore, run_key: str) -> Path:
    """The directory of a run's own files under the store's reports."""
    return Path(store.report_dir) / store_directory(store) / report_name(run_key)


def store_directory(store: ManagedStore) -> str:
    """The name of a store's directory among the reports.

    A store that is called as its directory, as at a shell, has the hash of its path in it: others may be too.
    """
    if store.name == Path(store.root).name:
        return f"{report_name(store.name)}-{short_hash(store.real_root)}"
    return report_name(store.name)


def report_name(text: str) -> str:
    """A file name made of any text, another one for each text.

    Airflow's run ids have colons and plus signs, which not every file system and tool takes: such a text gets
    eight digits of its hash.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")
    return plain if plain and plain == text else f"{plain or 'run'}-{short_hash(text)}"


def short_hash(text: str) -> str:
    """Eight hexadecimal digits that tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def page_links(directory: Path) -> dict[str, str]:
    """Return the files beside a page: title → relative address."""
    beside = {"Data Docs": DATA_DOCS, "Report as text": REPORT_TEXT, "Report as JSON": REPORT_JSON}
    links = {**beside, "Validation as JSON": VALIDATION_JSON, "Retention report": USAGE_PAGE}
    return {title: path for title, path in links.items() if (directory / path).is_file()}


def refuse_foreign(directory: Path, names: Iterable[str]) -> None:
    """Make sure that what a directory holds under these names is ours to replace.

    :raises BadInputError: it holds something under one of them, and nobody claimed it.
    """
    marker = directory / MARKER
    if marker.is_file() and not marker.is_symlink():
        return
    for path in (directory / name for name in names):
        if path.exists() or path.is_symlink():
            raise BadInputError(
                f"{directory}: expected a new directory, or one that reports of storage-engine are in, found "
                f"{path.name} of something else. Nothing was changed. Name another directory."
            )


def claim(directory: Path) -> None:
    """Make a directory and mark it as ours, after :func:`refuse_foreign`."""
    make_dirs(directory)
    write_file(directory / MARKER, b"Reports of storage-engine, which replaces them each time.\n")
