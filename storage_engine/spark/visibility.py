"""Whether executors see what the driver sees: the store's very files, or these by an agent, and the lake.

Asked before the work starts, of as many tasks as the cluster has cores, and again by each task before its
first segment, as an executor may come later. What they write the driver has to be able to publish, which is
tried as well: they may run as another user. An executor that looks at another file system is told by
what its files say, not by their device, which is another one on every host that mounts them.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io import load_file_io

from storage_engine.core.host import user_name
from storage_engine.core.wording import reason_text
from storage_engine.exceptions import LakeUnavailableError, StorageEngineError, StoreNotFoundError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.agent_files import files_from, leave_agent
from storage_engine.lake.file.jobs import AgentRun, SegmentJob
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
    :param token: a file that the driver has just put into the lake.
    :param agent: by which they see the segments; None: as their own files.
    """

    driver: str
    segments: tuple[FileFacts, ...]
    store_roots: tuple[str, ...]
    lake: LakeConfig
    token: str
    content: bytes
    agent: AgentRun | None = None


@contextmanager
def visible_to_executors(
    spark: SparkSession, jobs: Sequence[SegmentJob], agent: AgentRun | None = None
) -> Iterator[Sight]:
    """Make sure that executors see store and lake, as far as they are there already.

    :param agent: see :class:`Sight`.
    :return: what a task checks again with :func:`check_sight`.
    :raises StoreNotFoundError: a host doesn't see the store's files, or sees others in their place.
    :raises AgentError: a host can't reach the agent.
    :raises LakeUnavailableError: a host can't see or write the lake, or the driver can't publish what it
        wrote.
    """
    identity = uuid.uuid4().hex
    token = f"{jobs[0].data_file(identity).rpartition('/')[0]}/probe.{identity}{PARTIAL_SUFFIX}"
    by_directory = {str(Path(job.path).parent): job.facts for job in jobs}
    sight = Sight(
        driver=socket.gethostname(),
        segments=tuple(by_directory.values()),
        store_roots=tuple({job.store_root for job in jobs}),
        lake=jobs[0].lake,
        token=token,
        content=identity.encode(),
        agent=agent,
    )
    _write(sight, token)
    try:
        context = spark.sparkContext
        tasks = context.defaultParallelism
        context.setJobDescription("do executors see the store and the lake")
        probes = context.parallelize(range(tasks), tasks).map(lambda _: _probe(sight)).collect()
        written = [probe for probe in probes if isinstance(probe, str)]
        try:
            for error in probes:
                if isinstance(error, StorageEngineError):
                    raise error
            for location in written:
                _check_publishable(location)
        finally:
            for location in written:
                _remove(sight, location)
        yield sight
    finally:
        _remove(sight, token)


def check_sight(sight: Sight) -> None:
    """Make sure that this host sees the files that the driver sees.

    :raises StoreNotFoundError: it doesn't see the store's, or sees others in their place.
    :raises LakeUnavailableError: it doesn't see the lake's.
    """
    host = socket.gethostname()
    for expected in sight.segments:
        if sight.agent is not None:
            _check_served(sight.agent, expected)
            continue
        found = _facts_here(expected.path)
        may_read = os.access(expected.path, os.R_OK)
        if found is None or not may_read or not _is_same(found, expected, sight.store_roots):
            seen = "finds none there" if found is None else f"finds another there: {found}"
            if found is not None and not may_read:
                seen = f"may not read it as user {user_name(os.geteuid())}"
            raise StoreNotFoundError(
                f"{expected.path}: expected the segment file that the driver on host {sight.driver} sees, "
                f"{expected}; the executor on host {host} {seen}. Nothing was committed or deleted. Mount "
                "the store at the same path on every executor, or let them read it from an agent, or use "
                "local[N] where its disk is."
            )
    file_io = load_file_io(sight.lake.file_io_properties, sight.token)
    with lake_errors(sight.token, f"look for the driver's file on {_here()}"):
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


def _check_served(agent: AgentRun, expected: FileFacts) -> None:
    """
    :raises StoreNotFoundError: the agent serves another file, as one of another host.
    :raises AgentError: it can't be reached.
    """
    found = files_from(agent).facts(expected.path)
    if (found.inode, found.size_bytes) != (expected.inode, expected.size_bytes):
        raise StoreNotFoundError(
            f"{expected.path}: expected the segment file that the driver sees, {expected}; agent "
            f"{agent.address} "
            f"has another: {found}. Nothing was committed or deleted. Name the agent on the broker's host."
        )


def _probe(sight: Sight) -> str | StorageEngineError:
    """Return what this host wrote into the lake, or why it can't work."""
    mine = f"{sight.token.removesuffix(PARTIAL_SUFFIX)}.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
    try:
        check_sight(sight)
        _write(sight, mine)
    except StorageEngineError as error:
        return error
    finally:
        leave_agent()
    return mine


def _check_publishable(location: str) -> None:
    """Make sure that this process can give an executor's file another name, as a commit does.

    Linux lets nobody link a file of another user that he may not write (protected_hardlinks, proc(5)).
    """
    path = local_path(location)
    if path is None:
        return
    published = path.with_suffix(f".published{PARTIAL_SUFFIX}")
    try:
        os.link(path, published)
        published.unlink()
    except OSError as error:
        writer = user_name(path.stat().st_uid)
        raise LakeUnavailableError(
            f"{path.parent}: expected to publish here what executors write, found that user "
            f"{user_name(os.geteuid())} can't publish a file of user {writer}: {reason_text(error)}. Nothing "
            "was committed or deleted. Run executors as the driver's user; or let the lake's directories be "
            "of a group of both, with mode 2770."
        ) from error


def _remove(sight: Sight, location: str) -> None:
    with suppress(*LAKE_FAILURES):
        load_file_io(sight.lake.file_io_properties, location).delete(location)


def _write(sight: Sight, location: str) -> None:
    file_io = load_file_io(sight.lake.file_io_properties, location)
    with (
        lake_errors(location, f"write a file on {_here()}"),
        file_io.new_output(location).create() as stream,
    ):
        stream.write(sight.content)


def _here() -> str:
    return f"host {socket.gethostname()} as user {user_name(os.geteuid())}"


def _facts_here(path: str) -> FileFacts | None:
    try:
        return FileFacts.of(path)
    except OSError:
        return None


def _is_same(found: FileFacts, expected: FileFacts, store_roots: tuple[str, ...]) -> bool:
    # A disk mounted on several hosts is another device on each.
    found = replace(found, device=expected.device)
    return found == expected or any(read_own_acts(root).same_file(found, expected) for root in store_roots)
