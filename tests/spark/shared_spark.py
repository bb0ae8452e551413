"""One Spark for several tests, and what of this process it must leave as it was."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

_OF_EACH_TEST = ("PYTEST_CURRENT_TEST", "STORAGE_ENGINE_WAIT")
"""Variables that are set for a test and taken back behind it."""


@dataclass(frozen=True)
class Around:
    """What of this process a session must leave as it was."""

    environment: dict[str, str]
    children: frozenset[psutil.Process]
    addresses: frozenset[Any]

    @classmethod
    def now(cls) -> Around:
        process = psutil.Process()
        return cls(
            {name: value for name, value in os.environ.items() if name not in _OF_EACH_TEST},
            frozenset(process.children(recursive=True)),
            frozenset(connection.laddr for connection in process.net_connections()),
        )

    def assert_nothing_is_left(self) -> None:
        gc.collect()
        found = Around.now()
        assert found.environment == self.environment
        assert found.children <= self.children
        # What tests before this one left open may close meanwhile.
        assert found.addresses <= self.addresses


@dataclass(frozen=True)
class SharedSpark:
    """The one Spark of a file of tests.

    :param end: stops it; doing so again does nothing.
    :param directory: where the driver works; ``printed`` in it is what the JVM prints all its life.
    :param events: has Spark's event log.
    """

    session: SparkSession
    end: Callable[[], None]
    around: Around
    directory: Path
    printed: Path
    events: Path


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Give what this process and those that it starts print to a file."""
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
