"""Restoring at once what a restore chooses."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.restore.restore import RestoredSegment, choose_segments, write_segments


def restore(
    lake: Lake,
    store_id: str,
    to_dir: str | os.PathLike[str],
    *,
    keep_mtime: bool = False,
    progress: Callable[[int], None] | None = None,
    **chosen: Any,
) -> tuple[RestoredSegment, ...]:
    """Choose archived segments, and write them.

    :param chosen: what :func:`choose_segments` takes.
    """
    segments = choose_segments(lake, store_id, **chosen)
    return write_segments(segments, to_dir, keep_mtime=keep_mtime, progress=progress)
