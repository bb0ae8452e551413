"""Segments whose file facts don't show every write. They are hashed again right before their deletion."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from storage_engine.commands import Command
from storage_engine.core.wording import count_text
from storage_engine.exceptions import ChangedUnderUsError, LakeConflictError
from storage_engine.lake.coverage.spans import is_same_companion
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.same_bytes.trusted_times import (
    Spend,
    mapped_for_writing,
    paced_sha256,
    settle,
    times_are_trusted,
)

RENEW_SECONDS: Final = 30.0
"""Seconds between two renewals of a lease, while a file is read slowly."""


def unseen_writes(root: str, segments: Sequence[Segment], broker_pid: int | None) -> dict[str, str]:
    """Return by path why the times of a segment's file may not show a write, or why that is unknown.

    Files whose times show each write are left out.

    :param broker_pid: process id of the held running broker, which has its files mapped, or None if unknown.
    """
    files = [file for segment in segments for file in segment.files]
    reasons: dict[str, str] = {}
    for directory in {str(Path(file.path).parent) for file in files}:
        if not times_are_trusted(directory, root):
            reason = f"the times of the file system of {directory} don't show each write"
            reasons |= {file.path: reason for file in files if str(Path(file.path).parent) == directory}
    writers = mapped_for_writing(files, () if broker_pid is None else (broker_pid,))
    if writers.unknown:
        reasons = dict.fromkeys((file.path for file in files), writers.unknown) | reasons
    return reasons | {
        path: f"process {pid} has it mapped for writing" for path, pid in writers.by_path.items()
    }


def unseen_notices(unseen: Mapping[str, str], segments: Iterable[Segment]) -> tuple[str, ...]:
    """Return a notice for each reason, with the number of segments hashed again right before their deletion.

    :param unseen: the reason by path.
    """
    reasons = ([unseen[file.path] for file in segment.files if file.path in unseen] for segment in segments)
    counts = Counter(why[0] for why in reasons if why)
    return tuple(
        f"{count_text(count, 'segment')} hashed again right before deletion, as {why}"
        for why, count in counts.items()
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read segments again.

    :param spend: waits until a number of further bytes may be read.
    :param renew: renews the lease on the store; called now and then while a file is read, and after it.
    """

    spend: Spend
    renew: Callable[[], None]


def check_bytes(segment: Segment, receipt: Receipt, root: str, otherwise: str, reading: Reading) -> None:
    """Hash the present files of a segment, and compare them with its receipt.

    The gate has already checked that the receipt has all of the segment's companions.

    :param otherwise: a sentence on the deletions so far, which an error adds to its text.
    :raises LakeConflictError: a file has other bytes.
    :raises ChangedUnderUsError: a file is written to while it is hashed.
    """
    proven = {companion.name: companion for companion in receipt.companions}
    _check_file(segment.log, segment.facts.path, receipt.sha256, root, otherwise, reading)
    for path in (Path(facts.path) for facts in segment.companions):
        companion = proven[path.name]
        says_the_same = partial(is_same_companion, receipt.broker, companion, path)
        _check_file(segment.log, str(path), companion.sha256, root, otherwise, reading, says_the_same)


def _check_file(
    log: str,
    path: str,
    expected: str,
    root: str,
    otherwise: str,
    reading: Reading,
    says_the_same: Callable[[], bool] = lambda: False,
) -> None:
    facts = settle(path)
    sha256 = digest(path, reading)
    if sha256 != expected and not says_the_same():
        raise LakeConflictError(
            f"{path}: expected SHA-256 {expected}, which its receipt proves, found {sha256}. "
            f"{otherwise} If the broker recovered from a crash and wrote these offsets again, run ",
            Command("adopt"),
            " to open a new lineage, with --conn-id if it is a store of Airflow. If the store has several "
            f"logs, --log {shlex.quote(log)} opens it for this log alone. Otherwise find out who changed "
            "the file.",
        )
    current = FileFacts.of(path)
    if current != facts and not read_own_acts(root).same_file(current, facts):
        raise ChangedUnderUsError(
            f"{path}: expected the same file as when its bytes were compared, {facts}, found {current}: "
            f"another program writes to it. {otherwise} Stop the program that does it."
        )


def digest(path: str, reading: Reading) -> str:
    renewed_at = time.monotonic()

    def spend(size_bytes: int) -> None:
        nonlocal renewed_at
        reading.spend(size_bytes)
        if time.monotonic() >= renewed_at + RENEW_SECONDS:
            reading.renew()
            renewed_at = time.monotonic()

    with Path(path).open("rb", buffering=0) as file:
        sha256 = paced_sha256(file, spend)
    reading.renew()
    return sha256
