"""Remove what has expired of reports and journal, in this order: quarantines whose window is over; files of
dead jobs; reports with their Data Docs; runs with their plans and events; samples; lists of decisions that no
run's plan is made of.

Reports go before the events that they are made of. Each step may be killed at any instant and run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage_engine.brokers import store_called
from storage_engine.commands import Text
from storage_engine.core import durable
from storage_engine.core.clock import DAY_MS, clock_ms, jumped_forward_ms, read_clock
from storage_engine.core.host import this_host
from storage_engine.core.wording import duration_text
from storage_engine.exceptions import StoreBusyError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.journal.tables.database import missing_sqlite_file
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.gc.compaction import maintain_compaction
from storage_engine.lake.gc.maintenance import LakeMaintenance, LakePolicy, maintain_lake
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.retention.housekeeping.journal_expiry import (
    ExpiredRows,
    Expiry,
    JournalExpiry,
    OldReport,
    reports_to_expire,
)
from storage_engine.retention.housekeeping.lake_expiry import maintain_expiry
from storage_engine.retention.quarantine.emptying import Keeper, empty_expired
from storage_engine.retention.ranges.recording_deletions import write_deletions
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.report_files import (
    DATA_DOCS_DIRECTORY,
    REPORT_JSON,
    RUN_FILES,
    sweep_job_files,
)


def old_reports(stores: Iterable[Path], now_ms: int, expiry: Expiry) -> Iterator[OldReport]:
    """Find reports that are old enough to be looked at, except the newest one of each store.

    What has none of our reports in it is passed over, and so is whatever a link leads to.

    :param stores: directories with one directory a run.
    """
    before_ns = (now_ms - expiry.report_days * DAY_MS) * 10**6
    for store in stores:
        written = {path: path.stat().st_mtime_ns for path in store.glob(f"*/{REPORT_JSON}") if _is_ours(path)}
        newest = max(written, key=lambda path: written[path], default=None)
        for path in sorted(path for path, at_ns in written.items() if at_ns < before_ns and path != newest):
            found = _read(path)
            if found is not None:
                yield found


def emptied_directories(stores: Iterable[Path], now_ms: int, expiry: Expiry) -> Iterator[Path]:
    """Find the directories that :func:`remove_report` emptied before it was killed."""
    before_ns = (now_ms - expiry.report_days * DAY_MS) * 10**6
    for directory in sorted(path for store in stores for path in store.glob("*")):
        if directory.is_dir() and not directory.is_symlink() and directory.stat().st_mtime_ns < before_ns:
            yield from () if any(directory.iterdir()) else (directory,)


def remove_report(directory: Path) -> None:
    """Remove what we wrote there, then the directory if nothing else is in it.

    The report itself goes last: where this is killed, the directory is found again by it.
    """
    data_docs = directory / DATA_DOCS_DIRECTORY
    if data_docs.is_dir() and not data_docs.is_symlink():
        shutil.rmtree(data_docs)
    for name in RUN_FILES:
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            durable.unlink(path)
    durable.fsync_path(directory)
    durable.unlink(directory / REPORT_JSON)
    if not any(directory.iterdir()):
        directory.rmdir()


def _is_ours(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and not path.parent.is_symlink()


def _read(path: Path) -> OldReport | None:
    """A report by its own JSON; None: it isn't our report."""
    try:
        found = json.loads(path.read_bytes())
        ended = found["finished_at_ms"]
        return OldReport(
            path=str(path.parent),
            store_id=str(found["store_id"]),
            run_key=str(found["run_key"]),
            finished_at_ms=None if ended is None else int(ended),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class MaintainResult:
    """What was removed, or would be.

    :param job_directories: of Spark jobs whose process is dead.
    :param report_directories: of reports, each with its Data Docs.
    :param rows: of the journal.
    :param notices: what was left alone, and why.
    :param quarantines: those whose window is over, each with what became of it, as sentences.
    """

    dry_run: bool
    job_directories: tuple[str, ...]
    report_directories: tuple[str, ...]
    rows: ExpiredRows
    notices: tuple[str, ...]
    quarantines: tuple[str, ...] = ()


def maintain_store(
    store: ManagedStore, now_ms: int | None = None, expiry: Expiry | None = None, *, dry_run: bool = False
) -> MaintainResult:
    """Remove what has expired of one store's quarantines, reports and journal.

    :param now_ms: the moment to decide for; None: this machine's clock.
    """
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    emptied = _empty(Keeper(journal, record, store.lakes), now_ms, dry_run)
    lakes = store.lakes if store.policy.archive is not ArchiveMode.OFF else ()
    # Rows first: events that they are made of may expire.
    unwritten = () if dry_run else write_deletions(lakes, store.journal_url, record)
    done = _maintain(store.journal_url, Path(store.report_dir), {record.store_id}, now_ms, expiry, dry_run)
    return replace(done, quarantines=emptied, notices=(*done.notices, *unwritten))


def maintain_lakes(
    store: ManagedStore, now_ms: int | None = None, *, compact: bool = False
) -> tuple[LakeMaintenance, ...]:
    """Expire what a store's lakes need no more, and what their rules no longer keep.

    Of stores that share a lake, the first one's call does it.

    :param now_ms: the moment to decide for; None: this machine's clock.
    :param compact: write the store's small data files again as larger ones, too.
    :raises StorageEngineError: as ``open_lake`` and ``maintain_lake`` do.
    """
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(store.journal_url)
    record = identify(store, journal)
    known = known_heads(journal, record)
    done = []
    for config in store.lakes:
        lake = open_lake(config)
        heads = {record.store_id: known.of(lake, lake.segments())}
        expired = maintain_expiry(lake, store.journal_url)
        compacted = maintain_compaction(lake, record.store_id) if compact else ()
        maintained = maintain_lake(lake, LakePolicy(), now_ms, known_heads=heads)
        done.append(replace(maintained, notices=(*maintained.notices, *expired, *compacted)))
    return tuple(done)


def maintain_directory(
    journal_url: str,
    reports: Path,
    now_ms: int | None = None,
    expiry: Expiry | None = None,
    *,
    dry_run: bool = False,
    lakes: Sequence[LakeConfig] = (),
) -> MaintainResult:
    """Remove what has expired of all stores that a journal knows; without a journal there is nothing to do.

    :param reports: with one directory a store.
    :param lakes: that prove what lies in quarantines; what none of them proves stays there.
    """
    if missing_sqlite_file(journal_url):
        return MaintainResult(dry_run, (), (), ExpiredRows(), ())
    now_ms = clock_ms() if now_ms is None else now_ms
    journal = Journal(journal_url)
    # Another machine's disk is its own to look at.
    here = [record for record in journal.all_stores() if record.host in (None, this_host())]
    emptied = [line for record in here for line in _empty(Keeper(journal, record, lakes), now_ms, dry_run)]
    known = JournalExpiry(journal_url).store_ids()
    unwritten = [
        line
        for record in journal.all_stores()
        if not dry_run
        for line in write_deletions(lakes, journal_url, record)
    ]
    done = _maintain(journal_url, reports, known, now_ms, expiry, dry_run)
    return replace(done, quarantines=tuple(emptied), notices=(*done.notices, *unwritten))


def _empty(keeper: Keeper, now_ms: int, dry_run: bool) -> tuple[str, ...]:
    try:
        return empty_expired(keeper, now_ms, dry_run=dry_run)
    except StoreBusyError as error:
        return (Text(f"no quarantine of store {_called(keeper.record)} was emptied: ", error),)


def _called(record: StoreRecord) -> str:
    return store_called(record.name, record.broker, record.real_path)


def _maintain(
    journal_url: str,
    reports: Path,
    store_ids: Collection[str],
    now_ms: int,
    expiry: Expiry | None,
    dry_run: bool,
) -> MaintainResult:
    expiry = expiry or Expiry()
    journal, rows = JournalExpiry(journal_url), ExpiredRows()
    names = {record.store_id: _called(record) for record in Journal(journal_url).all_stores()}
    jumped = {store_id: _jumped(journal_url, store_id) for store_id in store_ids}
    trusted = [store_id for store_id in store_ids if not jumped[store_id]]
    jobs = sweep_job_files(reports, dry_run=dry_run)
    protected = {(store_id, key) for store_id in trusted for key in journal.protected_runs(store_id)}
    directories = sorted(path for path in reports.glob("*") if path.is_dir() and not path.is_symlink())
    found = [one for one in old_reports(directories, now_ms, expiry) if one.store_id in trusted]
    expired = reports_to_expire(found, protected, now_ms, expiry)
    if not dry_run:
        for report in expired:
            remove_report(Path(report.path))
        for directory in emptied_directories(directories, now_ms, expiry):
            directory.rmdir()
    for store_id in trusted:
        rows += journal.expire(store_id, now_ms, expiry, dry_run=dry_run)
    return MaintainResult(
        dry_run=dry_run,
        job_directories=tuple(map(str, jobs)),
        report_directories=tuple(report.path for report in expired),
        rows=rows,
        notices=tuple(f"store {names[store_id]}: {why}" for store_id, why in jumped.items() if why),
    )


def _jumped(journal_url: str, store_id: str) -> str:
    """Return why nothing of a store expires now; "" where the clock can be believed."""
    ahead_ms = jumped_forward_ms(read_clock(), Journal(journal_url).clock_readings(store_id))
    if not ahead_ms:
        return ""
    return (
        f"nothing expires, as the clock was set forward by {duration_text(ahead_ms)} within the last day. If "
        "it is right, this goes on a day after it was set."
    )
