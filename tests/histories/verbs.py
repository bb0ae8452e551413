"""What a history does beside the command line: what a broker, a database tool and another engine do.

Each verb can be called by a person as well: ``python -m tests.histories VERB ...``; that is how a failing
history is printed. Paths are relative to the directory that the history lives in.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage_engine.cli.main import main as command_line
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.catalog import Lake, connect, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.report.validation import ValidationResult
from storage_engine.retention.steps import record_validation
from storage_engine.retention.store.context import AnyStore, managed_of
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.store import store_lock
from tests.histories import broker

_DAYS_NS = 24 * 3600 * 10**9


def storage_engine(*words: str) -> dict[str, Any]:
    """Run the command line.

    Left out is what costs most and decides nothing here: Great Expectations, and the look at what files all
    other processes of this machine map.
    """
    sys.modules["storage_engine.quality.validate"] = _without_expectations()
    store_lock._check_nobody_else = lambda *_: ()
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            command_line(list(words))
        except SystemExit as stopped:
            code = stopped.code
    return {"exit_code": code, "out": out.getvalue(), "err": err.getvalue()}


def _without_expectations() -> types.ModuleType:
    def validate_store(store: AnyStore, run_key: str, **_: object) -> ValidationResult:
        result = ValidationResult(managed_of(store).real_root, None, run_key, "boundaries", 0, 0, (), ())
        record_validation(store, run_key, result)
        return result

    module = types.ModuleType("storage_engine.quality.validate")
    module.validate_store = validate_store  # type: ignore[attr-defined]
    return module


def make_store(store: str) -> None:
    broker.make_store(Path(store))


def seal(store: str, count: str, serial: str) -> None:
    broker.seal(Path(store), int(count), serial)


def recover(store: str, keep: str, serial: str) -> None:
    broker.recover(Path(store), int(keep), serial)


def delete_oldest(store: str) -> None:
    broker.delete_oldest(Path(store))


def copy_database(source: str, target: str) -> None:
    """Copy a SQLite database as ``.backup`` does; what a killed process left beside it goes with it."""
    for path in Path(target).parent.glob(f"{Path(target).name}*"):
        path.unlink()
    with closing(sqlite3.connect(source)) as database, closing(sqlite3.connect(target)) as copy:
        database.backup(copy)


def age(directory: str, days: str) -> None:
    """Let files be older by so many days."""
    for path in Path(directory).rglob("*"):
        if path.is_file():
            stat = path.stat()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(days) * _DAYS_NS))


def compact(lake: str) -> str:
    """Put all rows into other files, as another engine does; says what keeps it from it."""
    with suppress_missing() as failure:
        table = connect(LakeConfig.local(lake)).messages()
        table.overwrite(table.scan().to_arrow())
    return failure.text


def expire(lake: str) -> str:
    """Expire all snapshots but the last, and delete the data files that only they have, as Spark does."""
    with suppress_missing() as failure:
        for table in connect(LakeConfig.local(lake)).tables():
            before = _files_of_snapshots(table)
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
            for location in before - _files_of_snapshots(table.refresh()):
                Path(location.removeprefix("file://")).unlink(missing_ok=True)
    return failure.text


def _files_of_snapshots(table: Any) -> set[str]:
    found: set[str] = set()
    for snapshot in table.snapshots():
        found |= set(table.inspect.files(snapshot.snapshot_id)["file_path"].to_pylist())
    return found


class suppress_missing:  # noqa: N801
    """Another engine that can't do it says so, and nothing more."""

    text = ""

    def __enter__(self) -> suppress_missing:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if isinstance(error, Exception):
            self.text = f"{type(error).__name__}: {error}"
        return isinstance(error, Exception)


def restore_all(lake: str, target: str) -> dict[str, Any]:
    """Restore each lineage of each store of a lake; where that fails, each of its segments by itself.

    :return: ``found``: base offset and SHA-256 of each file; ``refused``: what the errors said.
    """
    try:
        opened = open_lake(LakeConfig.local(lake))
    except StorageEngineError as error:
        return {"found": [], "refused": [str(error)]}
    refused: list[str] = []
    rows: dict[tuple[str, int], list[int]] = {}
    try:
        for store_id in _store_ids(opened):
            for row in receipts(opened, store_id):
                rows.setdefault((store_id, row.lineage), []).append(row.base_offset)
    except StorageEngineError as error:
        refused.append(str(error))
    for number, ((store_id, lineage), offsets) in enumerate(rows.items()):
        words = ["restore", "--lake", lake, "--store-id", store_id, "--lineage", str(lineage), "--files-only"]
        said = storage_engine(*words, "--to", f"{target}/{number}")
        if said["exit_code"] == 0:
            continue
        for offset in offsets:
            said = storage_engine(*words, "--to", f"{target}/{number}-{offset}", "--segments", str(offset))
            if said["exit_code"] != 0:
                refused.append(said["err"])
    found = [
        (int(path.name), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in Path(target).glob("*/commitlog/*")
    ]
    return {"found": found, "refused": refused}


def _store_ids(lake: Lake) -> list[str]:
    return sorted(set(lake.segments().scan(selected_fields=("store_id",)).to_arrow()["store_id"].to_pylist()))


def held_by(files: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Return by data file the base offset and SHA-256 of each segment whose every byte is in it."""
    codec = CODEC
    found: dict[str, list[tuple[int, str]]] = {}
    for name in files:
        found[name] = []
        with suppress(pa.ArrowException, OSError):
            rows = pq.ParquetFile(name).read(use_threads=False)
            if not {"segment_base_offset", *codec.schema.names} <= set(rows.column_names):
                continue
            groups = ("store_id", "lineage", "segment_base_offset")
            for key in set(zip(*(rows[column].to_pylist() for column in groups), strict=True)):
                mask = np.ones(rows.num_rows, bool)
                for column, value in zip(groups, key, strict=True):
                    mask &= np.array([each == value for each in rows[column].to_pylist()])
                out = bytearray(broker.SEGMENT_BYTES)
                of_segment = rows.filter(pa.array(mask)).select(codec.schema.names).cast(codec.schema)
                codec.encode(of_segment, memoryview(out), key[2])
                if sum(of_segment["size"].to_pylist()) == len(out):
                    found[name].append((key[2], hashlib.sha256(out).hexdigest()))
    return found


def print_held(directory: str) -> None:
    """Print which segments the data files below a directory hold."""
    files = sorted(str(path) for path in Path(directory).rglob("*.parquet"))
    sys.stdout.write(json.dumps(held_by(files), indent=1) + "\n")


VERBS: dict[str, Callable[..., Any]] = {
    "make-store": make_store,
    "seal": seal,
    "recover": recover,
    "delete-oldest": delete_oldest,
    "copy-database": copy_database,
    "age": age,
    "compact": compact,
    "expire": expire,
    "restore-all": restore_all,
    "storage-engine": storage_engine,
}
"""What a line of a history may begin with, beside plain shell."""
