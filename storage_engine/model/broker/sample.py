"""What a sample store is to be like, and what was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample store to write. The same request gives the same bytes.

    :param directory: new or empty; it gets the store and its broker's configuration.
    :param messages: at least so many; those that the broker itself adds for delays and transactions count.
    :param end_ms: store time of the last message.
    :param segment_bytes: size of a file of the log.
    """

    directory: Path
    messages: int
    topics: int
    days: float
    seed: int
    end_ms: int
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class SampleStore:
    """A sample store that was written.

    :param store: the broker's root directory.
    :param configuration: the broker's own file, which commands and a broker take.
    :param lagging_groups: of ``groups``, those that are far behind.
    :param pending: delayed messages that are not due yet, and undecided transactions.
    """

    store: str
    configuration: str
    messages: int
    log_bytes: int
    log_files: int
    topics: int
    groups: int
    lagging_groups: int
    pending: int
