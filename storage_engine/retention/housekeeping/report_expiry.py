"""Removes directories of reports that have expired, with their Data Docs; nothing else that is in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage_engine.core import durable
from storage_engine.retention.housekeeping.maintenance import DAY_MS, Expiry, OldReport
from storage_engine.retention.store.report_files import DATA_DOCS_DIRECTORY, REPORT_JSON, RUN_FILES


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
