"""Processes for functions of a test: each is forked from one that has imported what archiving needs."""

from __future__ import annotations

import multiprocessing
from multiprocessing.pool import Pool

PRELOADED = ["storage_engine.lake.archive.archive", "storage_engine.lake.move.making", "psycopg"]


def pool_of_processes(size: int) -> Pool:
    """A pool whose processes share nothing with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context.Pool(size)
