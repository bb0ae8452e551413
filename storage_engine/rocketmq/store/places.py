"""Whose directories these are: a broker that finds strange files among its own does not start."""

from __future__ import annotations

import os
from pathlib import Path

_ANCHORS = ("commitlog", "consumequeue")
_USUAL = (*_ANCHORS, "index", "config", "checkpoint", "lock", "abort")

_OWN = frozenset(
    {
        *_USUAL,
        "abort.bak",
        "batchconsumequeue",
        "brokerIdentity",
        "combineconsumequeue",
        "compaction",
        "consumequeue_ext",
        "consumequeue_rocksdb",
        "controllerDleger",
        "epochFileCheckpoint",
        "kvStore",
        "rocksdbstore",
        "tieredStore",
        "timerlog",
        "timerrocksdb",
        "timerwheel",
        "transrocksdb",
    }
)
"""Files that releases from 4.9 to 5.5 keep in a store's root (StorePathConfigHelper and its callers)."""


def store_around(path: Path) -> Path | None:
    """See :meth:`storage_engine.model.broker.kind.Places.store_around`."""
    real = Path(os.path.realpath(path))
    for root in (real, *real.parents):
        if _is_store(root) and (root == real or real.relative_to(root).parts[0] in _OWN):
            return root
    return None


def _is_store(root: Path) -> bool:
    if not any((root / name).is_dir() for name in _ANCHORS):
        return False
    return sum((root / name).exists() for name in _USUAL) > 1
