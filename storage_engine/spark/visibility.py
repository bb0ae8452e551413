"""Whether executors see what the driver sees: the store's very files, and the lake, to be written.

Asked before the work starts, of as many tasks as the cluster has cores, and again by each task before its
first segment, as an executor may come later. An executor that looks at another file system is told by
what its files say, not by their device, which is another one on every host that mounts them.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from storage_engine.exceptions import LakeUnavailableError, StorageEngineError, StoreNotFoundError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import SegmentJob
from storage_engine.lake.file.staging import PARTIAL_SUFFIX
from storage_engine.lake.storage.errors import LAKE_FAILURES, lake_errors
from storage_engine.model.store.store import FileFacts
from storage_engine.same_bytes.own_acts import read_own_acts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Sight:
    """What every executor has to see.

    :param segments: as the driver sees them; one of each directory.
    :param store_roots: whose segments they are.
    :param token: a file that the driver has just put into the lake.
    :param content: of the token.
    """

    driver: str
    segments: tuple[FileFacts, ...]
    store_roots: tuple[str, ...]
    lake: LakeConfig
    token: str
    content: bytes


@contextmanager
def visible_to_executors(spark: SparkSession, jobs: Sequence[SegmentJob]) -> Iterator[Sight]:
    """Make sure that executors see store and lake, as far as they are there already.

    :return: what a task checks again with :func:`check_sight`.
    :raises StoreNotFoundError: a host doesn't see the store's files, or sees others in their place.
    :raises LakeUnavailableError: a host can't see or write the lake.
    """
    identity = uuid.uuid4().hex
    token = f"{jobs[0].messages_location}/data/probe.{identity}{PARTIAL_SUFFIX}"
    by_directory = {str(Path(job.path).parent): job.facts for job in jobs}
    sight = Sight(
        driver=socket.gethostname(),
        segments=tuple(by_directory.values()),
        store_roots=tuple({job.store_root for job in jobs}),
        lake=jobs[0].lake,
        token=token,
        content=identity.encode(),
    )
    _write(sight, token)
    try:
        context = spark.sparkContext
        tasks = context.defaultParallelism
        context.setJobDescription("do executors see the store and the lake")
        for error in context.parallelize(range(tasks), tasks).map(lambda _: _probe(sight)).collect():
            if error is not None:
                raise error
        yield sight
    finally:
        with suppress(*LAKE_FAILURES):
            load_file_io(sight.lake.file_io_properties, token).delete(token)


def check_sight(sight: Sight) -> None:
    """Make sure that this host sees the files that the driver sees.

    :raises StoreNotFoundError: it doesn't see the store's, or sees others in their place.
    :raises LakeUnavailableError: it doesn't see the lake's.
    """
    host = socket.gethostname()
    for expected in sight.segments:
        found = _facts_here(expected.path)
        if found is None or not _is_same(found, expected, sight.store_roots):
            seen = "finds none there" if found is None else f"finds another there: {found}"
            raise StoreNotFoundError(
                f"{expected.path}: expected the segment file that the driver on host {sight.driver} sees, "
                f"{expected}; the executor on host {host} {seen}. Nothing was committed or deleted. Mount "
                "the store at the same path on every executor, or use local[N] where its disk is."
            )
    file_io = load_file_io(sight.lake.file_io_properties, sight.token)
    with lake_errors(sight.token, f"look for the driver's file on host {host}"):
        token = file_io.new_input(sight.token)
        if token.exists():
            with token.open() as stream:
                if stream.read() == sight.content:
                    return
    raise LakeUnavailableError(
        f"lake {sight.lake.location}: expected the file {sight.token}, which the driver on host "
        f"{sight.driver} wrote; the executor on host {host} doesn't see it. Nothing was committed or "
        "deleted. Mount the lake at the same path on every executor, or use one that is reached by URI."
    )


def _probe(sight: Sight) -> StorageEngineError | None:
    try:
        check_sight(sight)
        mine = sight.token.replace("/data/probe.", f"/data/probe.{uuid.uuid4().hex}.")
        _write(sight, mine)
        load_file_io(sight.lake.file_io_properties, mine).delete(mine)
    except LAKE_FAILURES as error:
        return LakeUnavailableError(f"lake {sight.lake.location}: can't remove a file: {error}")
    except StorageEngineError as error:
        return error
    return None


def _write(sight: Sight, location: str) -> None:
    file_io = load_file_io(sight.lake.file_io_properties, location)
    with (
        lake_errors(location, f"write a file on host {socket.gethostname()}"),
        file_io.new_output(location).create() as stream,
    ):
        stream.write(sight.content)


def _facts_here(path: str) -> FileFacts | None:
    try:
        return FileFacts.of(path)
    except OSError:
        return None


def _is_same(found: FileFacts, expected: FileFacts, store_roots: tuple[str, ...]) -> bool:
    # A disk mounted on several hosts is another device on each.
    found = replace(found, device=expected.device)
    return found == expected or any(read_own_acts(root).same_file(found, expected) for root in store_roots)
