"""Queue and index files beside a running broker: it deletes them itself, once its log begins later.

That is a pass of its own, each cleanResourceInterval and only when the min offset has moved
(CleanConsumeQueueService#deleteExpiredFiles). Request 306 would not hurry it: it drops whole queues, with
their last file and their count of offsets (ConsumeQueueStore#cleanExpired).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.core import durable
from storage_engine.model.plan.plan import DependentFile
from storage_engine.rocketmq.format.rereading import ATTEMPTS
from storage_engine.rocketmq.rules.cleanup_schedule import (
    Patience,
    dependents_patience_seconds,
    until_first_pass_seconds,
)

if TYPE_CHECKING:
    from storage_engine.rocketmq.live.session import LiveParts

POLL_SECONDS: Final = 0.25


def expired(store: LiveParts, min_offsets: Mapping[str, int]) -> tuple[DependentFile, ...]:
    """The files that the broker will delete once its log begins there; it may be at it."""
    return store.files.find_dependents(min_offsets, ATTEMPTS)


def wait_until_gone(
    store: LiveParts, files: Sequence[DependentFile], meanwhile: Callable[[], object]
) -> None:
    """Wait for the broker's own pass, until none is left or no more of them go; flush their directories.

    :param meanwhile: called now and then.
    :raises BrokerError: the broker can't be asked when it was started.
    """
    paths = {Path(file.facts.path) for file in files}
    left = {path for path in paths if path.exists()}
    if left:
        first = until_first_pass_seconds(store.admin.runtime_info().boot_timestamp_ms)
        patience = Patience(dependents_patience_seconds(store.files.config), first, meanwhile)
        while left and not patience.is_over:
            patience.pause(POLL_SECONDS)
            still = {path for path in left if path.exists()}
            if still != left:
                patience.progressed()
            left = still
    for directory in {path.parent for path in paths}:
        if directory.is_dir():
            durable.fsync_path(directory)
