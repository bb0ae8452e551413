"""The third-party broker of ``tests/toy_broker``: its wheel, and stores of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from storage_engine import brokers
from storage_engine.model.settings.policy import Policy
from storage_engine.retention.store.managed_store import ManagedStore
from tests.toy_broker import toy_broker

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "tests" / "toy_broker"

OLD_HOURS = 100
LOGS = ("access", "errors")
KINDS = (".txt", ".count", ".index")
"""Of a segment's files: its own, its companion, and what depends on it."""
LINES = 300


def build_wheel(source: Path, to: Path) -> Path:
    """Build a package's wheel with what is installed here."""
    before = set(to.glob("*.whl"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(to), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (wheel,) = set(to.glob("*.whl")) - before
    return wheel


@contextmanager
def installed(directory: Path) -> Iterator[None]:
    """Have the wheel in this process's path, as another package that brings a broker is."""
    wheel = build_wheel(PACKAGE, directory)
    with zipfile.ZipFile(wheel) as files:
        files.extractall(directory / "installed")
    sys.path.append(str(directory / "installed"))
    brokers.forget()
    try:
        yield
    finally:
        sys.path.remove(str(directory / "installed"))
        sys.modules.pop("toy_broker", None)
        brokers.forget()


@contextmanager
def registered(directory: Path) -> Iterator[ModuleType]:
    """Have the broker found by its entry point as where it is installed, without building its wheel.

    :param directory: takes the entry point; it is made.
    :return: the broker's module.
    """
    metadata = directory / "toy_broker-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-broker\nVersion: 0\n")
    point = f"{toy_broker.BROKER.name} = {toy_broker.__name__}:BROKER"
    (metadata / "entry_points.txt").write_text(f"[{brokers.GROUP}]\n{point}\n")
    sys.path.append(str(directory))
    brokers.forget()
    try:
        yield toy_broker
    finally:
        sys.path.remove(str(directory))
        brokers.forget()


def make_store(root: Path) -> dict[str, tuple[Path, ...]]:
    """Write a store of two logs, the files of which are old but for the newest two, or one.

    :return: the old files of each log; the count and the index of each lie beside it.
    """
    root.mkdir(parents=True)
    (root / "toy.store").touch()
    access, errors = LOGS
    return {access: write_log(root / access, 4, old=2), errors: write_log(root / errors, 2, old=1)}


def lose_index(path: Path) -> None:
    """Let what depends on a segment's file be unreadable."""
    index = path.with_suffix(".index")
    index.unlink()
    index.symlink_to("nowhere")


def write_log(directory: Path, files: int, *, old: int) -> tuple[Path, ...]:
    """Write a log of so many files.

    :return: the old ones.
    """
    directory.mkdir()
    paths = []
    for number in range(files):
        path = directory / f"{number * LINES:020d}.txt"
        data = b"".join(
            b"%s: line %d of file %d\n" % (directory.name.encode(), k, number) for k in range(LINES)
        )
        # The last line of a file that is written to may lack its end.
        path.write_bytes(data + (b"and so on" if number == files - 1 else b""))
        path.with_suffix(".count").write_text(f"{LINES + (number == files - 1)}\n")
        path.with_suffix(".index").write_text(f"every {LINES} lines: 0\n")
        if number < old:
            then = time.time() - OLD_HOURS * 3600
            os.utime(path, (then, then))
        paths.append(path)
    return tuple(paths[:old])


def managed(directory: Path, **settings: Any) -> ManagedStore:
    """Return settings for the store in ``directory / "store"``, with lake and journal beside it."""
    policy = settings.pop("policy", Policy())
    return ManagedStore.local(
        "toy", str(directory / "store"), directory / "managed", broker="toy", policy=policy, **settings
    )
