"""What the broker's releases differ in, as far as anything depends on it. Nothing else asks for a release.

Read in the sources of 4.9.7 to 5.3.3 and seen with brokers of each of :data:`TRIED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

RELEASE: Final = "brokerVersion"
"""By this name a release stands among the settings of the broker that said it, as in ``4.9.7``."""

TRIED: Final = ("4.9", "5.0", "5.1", "5.2", "5.3", "5.4", "5.5")
"""Lines of releases of which a broker deleted exactly what it was told to."""

TRIED_FROM: Final = "4.9.4"
"""Earlier ones know no request to delete what has expired (RequestCode.DELETE_EXPIRED_COMMITLOG)."""

DELETE_FILES_BATCH_MAX: Final = 10
"""Files that a pass deletes where no setting says so (MappedFileQueue.DELETE_FILES_BATCH_MAX until 4.9)."""

_FROM_5_0: Final = frozenset(
    {
        "deleteFileBatchMax",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "logicalDiskSpaceCleanForciblyThreshold",
        "replicasPerDiskPartition",
    }
)
"""Settings of the rules that 4.x doesn't read, and shows all the same where its broker.conf has them."""

_TRACES: Final = (("rocksdbstore", "5.4"), ("timerlog", "5.0"), ("timerwheel", "5.0"))
"""What releases from this one on make in every store (StorePathConfigHelper and who calls it)."""

WITHOUT_DIRECTORIES: Final = "5.1"
"""Before this release no broker starts beside a directory among its segments (MappedFileQueue#load)."""

SERVED_WITHOUT_QUEUES: Final = (
    "Of the messages 4.9.7 and 5.3.3 then serve all, 5.0 to 5.2 none, 5.4 and 5.5 those of the last 10 "
    "segments."
)
"""What brokers make queues of by themselves (CommitLog#recoverNormally, commitLogRecoverMaxNum)."""

_V4_0_0, _V5_9_9 = 213, 611
_PATCHES = 10


def release_of(ordinal: int) -> str:
    """Return the release that a broker names in the header of each answer.

    :param ordinal: its place among MQVersion.Version: two a release, of which the first is a snapshot.
    :return: the number itself where it is none of 4.0.0 to 5.9.9.
    """
    if not _V4_0_0 <= ordinal <= _V5_9_9:
        return str(ordinal)
    minors, patch = divmod((ordinal + 1 - _V4_0_0) // 2, _PATCHES)
    major, minor = divmod(minors, _PATCHES)
    return f"{4 + major}.{minor}.{patch}"


def is_tried(release: str) -> bool:
    """Return whether brokers of this release's line were seen to delete exactly what they were told to."""
    # Of all tried lines only 4.9 has earlier releases, and no part of a release has two digits.
    return release.rpartition(".")[0] in TRIED and release >= TRIED_FROM


def clamps_levels(release: str) -> bool:
    """Return whether a release keeps its disk levels within bounds (CleanCommitLogService, from 5.0 on).

    :param release: "": it isn't known; then they are.
    """
    return not release.startswith("4.")


def has_timers(release: str) -> bool:
    """Return whether the runtime info says how far timers are behind (TimerMessageStore, from 5.0 on)."""
    return not release.startswith("4.")


def known_by_traces(root: Path) -> str:
    """Return what a store's own files say of its release: no file of a broker names it; "": nothing."""
    for name, release in _TRACES:
        if (root / name).exists():
            return f"{release} or later, as {name} is there"
    return ""


def with_release(settings: Mapping[str, str], ordinal: int) -> dict[str, str]:
    """Return a broker's settings as it works by them, and its release among them."""
    release = release_of(ordinal)
    ignored = _FROM_5_0 if release.startswith("4.") else ()
    return {key: value for key, value in settings.items() if key not in ignored} | {RELEASE: release}
