"""Keeps in the journal where logs were seen, in a table of its own that the first look makes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.exceptions import RunStateError
from storage_engine.retention.proof.kept_rows import KeptRows
from storage_engine.retention.ranges.seen_logs import SeenLog

_VERSION = 1

_SEEN = KeptRows("storage_engine_seen_logs", "logs")


@dataclass(frozen=True, slots=True)
class _Logs:
    logs: tuple[SeenLog, ...]


def kept_logs(journal_url: str, store_id: str) -> tuple[SeenLog, ...] | None:
    """Return the logs of a store as they were seen; None: nothing was ever kept. Nothing is made or changed.

    :raises RunStateError: a newer release has kept it.
    :raises StorageEngineError: the journal can't be read.
    """
    found = _SEEN.read(journal_url, store_id)
    if found is None:
        return None
    version, content = found
    if version != _VERSION:
        raise RunStateError(
            f"store {store_id}: expected its logs as they were seen in version {_VERSION}, found version "
            f"{version}. Nothing was changed. Use the release of storage-engine that wrote it."
        )
    return from_jsonable(_Logs, json.loads(zlib.decompress(content))).logs


def keep_logs(journal_url: str, store_id: str, logs: Sequence[SeenLog]) -> None:
    """Keep them, in place of what was kept.

    :raises StorageEngineError: the journal can't be written.
    """
    _SEEN.write(journal_url, store_id, _VERSION, json.dumps(to_jsonable(_Logs(tuple(logs)))))
