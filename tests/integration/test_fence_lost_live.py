"""A fence that is lost in every way before a real broker that is told to delete each second.

Once the watch has looked, nothing that was acknowledged and was still there goes.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerError
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import Acceptance
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.hold.heartbeat import last_look, no_watch
from storage_engine.rocketmq.remoting.admin import BrokerAdmin
from tests.integration.broker import CLEANS_AT_ONCE, running_broker, start_again
from tests.integration.live_store import SETTINGS, LiveLog, create_topic
from tests.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("cleans_at_once")]

FENCED, ENOUGH = 11, 45
IN_ADVANCE = 3
"""The last files: a broker writes to one of them, and makes the next two before it needs them."""
SECONDS = 180
RIVALS_SECONDS = 4
GRACE_MS = 250
WATCH = "from storage_engine.cli.main import main; main()"
WAYS = (
    "removed",
    "touched",
    "unmounted",
    "replaced",
    "one-path",
    "half-removed",
    "one-unmounted",
    "half-touched",
)
CASES = [(way, when) for when in ("after", "between", "before") for way in WAYS]
ROUNDS = rounds("STORAGE_ENGINE_FENCE_ROUNDS", 1, len(CASES))


@dataclass
class TwoPaths(LiveLog):
    """A commitlog in a directory on each of two disks."""

    disks: list[Path] = field(default_factory=list)
    images: list[Path] = field(default_factory=list)

    @property
    def directories(self) -> list[Path]:
        return [disk / "log" for disk in self.disks]

    def names(self) -> list[int]:
        found = [path.name for one in self.directories if one.is_dir() for path in one.iterdir()]
        return sorted(map(int, found))

    def path(self, base_offset: int) -> Path:
        name = f"{base_offset:020d}"
        return next((one / name for one in self.directories if (one / name).exists()), Path("/none") / name)


@contextmanager
def mounted(image: Path, target: Path) -> Iterator[None]:
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount(image, target)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(target)], check=False)


def mount(image: Path, target: Path) -> None:
    done = subprocess.run(["mount", "-o", "loop", str(image), str(target)], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no mounts are allowed here")
    shutil.rmtree(target / "lost+found", ignore_errors=True)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[TwoPaths]:
    work = tmp_path_factory.mktemp("lost")
    disks, images = [work / "disk0", work / "disk1"], [work / "image0", work / "image1"]
    with mounted(images[0], disks[0]), mounted(images[1], disks[1]):
        more = {
            "storePathCommitLog": ",".join(str(disk / "log") for disk in disks),
            # Slow enough that something is left when a watch has started on a busy machine.
            "deleteCommitLogFilesInterval": 400,
        }
        with running_broker(
            work / "store", work, name_server_port, {**SETTINGS, **more}, main_class=CLEANS_AT_ONCE
        ) as broker:
            create_topic(broker.client)
            log = TwoPaths(broker, disks=disks, images=images)
            log.fill(1)  # an empty store can't be held
            yield log


@dataclass
class Rival:
    """Another operator, who has the broker delete what has expired each second; and what is there."""

    log: TwoPaths
    seen: list[tuple[int, frozenset[int]]] = field(default_factory=list)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        ends = threading.Event()
        admin = BrokerAdmin(self.log.broker.client.address)

        def delete() -> None:
            while not ends.wait(1.0):
                with suppress(BrokerError):
                    admin.delete_expired_commitlog()

        def look() -> None:
            while not ends.wait(0.02):
                self.seen.append((time.time_ns() // 10**6, frozenset(self.log.names())))

        threads = [threading.Thread(target=work) for work in (delete, look)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ends.set()
            for thread in threads:
                thread.join()

    def there_at(self, at_ms: int) -> frozenset[int]:
        return next(names for seen_ms, names in self.seen if seen_ms >= at_ms)


@contextmanager
def watch_of(store: ManagedStore, said: Path) -> Iterator[None]:
    lake = str(Path(store.report_dir).parent)
    words = [sys.executable, "-u", "-c", WATCH, "watch", store.root, "--lake", lake]
    with said.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(SECONDS)


def until(is_so: Callable[[], bool], said: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)


def has_looked_since(store: ManagedStore, at_ms: int) -> bool:
    look = last_look(Path(store.root))
    return look is not None and look.looked_at_ms > at_ms


def lose(log: TwoPaths, way: str) -> None:
    """Lose the fence; what can be mounted again is by :func:`find_again`."""
    fence = log.names()[:FENCED]
    if way in ("removed", "touched", "half-removed", "half-touched"):
        for base in fence[::2] if way.startswith("half") else fence:
            path = log.path(base)
            path.unlink() if way.endswith("removed") else os.utime(path, ns=(0, 0))
    elif way == "one-path":
        keep = set(log.names()[-IN_ADVANCE:])
        for path in log.path(fence[0]).parent.iterdir():
            if int(path.name) not in keep:
                path.unlink()
    elif way == "replaced":
        for directory in log.directories:
            replace_directory(directory, log.names()[-IN_ADVANCE:])
    else:
        for disk in log.disks[: 1 if way == "one-unmounted" else 2]:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


def replace_directory(directory: Path, in_use: list[int]) -> None:
    """Put copies that have expired in the place of all files that are not written to."""
    aside = directory.with_name("aside")
    directory.rename(aside)
    directory.mkdir()
    for path in sorted(aside.iterdir()):
        if int(path.name) in in_use:
            path.rename(directory / path.name)
        else:
            shutil.copyfile(path, directory / path.name)
            os.utime(directory / path.name, ns=(0, 0))
    shutil.rmtree(aside)


def find_again(log: TwoPaths, way: str) -> None:
    for disk, image in zip(log.disks, log.images, strict=True):
        if way.endswith("unmounted") and not os.path.ismount(disk):
            mount(image, disk)


def sha256_of(log: TwoPaths, base: int) -> str:
    return hashlib.sha256(log.path(base).read_bytes()).hexdigest()


@pytest.mark.timeout(3600)
def test_however_a_fence_is_lost_nothing_that_is_there_goes_once_the_watch_has_looked(
    log: TwoPaths, tmp_path: Path, name_server_port: int
) -> None:
    store = log.managed(tmp_path / "managed")
    for number, (way, when) in enumerate(itertools.islice(itertools.cycle(CASES), ROUNDS)):
        log.wait_until_idle()
        assert steps.hold(store).status.held
        if len([base for base in log.names() if base in log.sha256]) < ENOUGH:
            log.fill(ENOUGH)
        assert steps.hold(store).status.held
        one_round(log, store, way, when, tmp_path / f"said-{number}")
        if way.endswith("unmounted"):
            # It has forgotten files whose disk went.
            log.wait_until_idle()
            log.broker.client.close()
            log.broker.java.kill()
            start_again(log.broker, log.images[0].parent, name_server_port, main_class=CLEANS_AT_ONCE)
    log.wait_until_idle()
    # What the rounds took leaves holes, in which nobody can count what goes: only a person's word ends this.
    accepted = Acceptance(len(log.names()), "ann", "the rounds are over")
    assert not steps.unmanage(store, acceptance=accepted).status.held


def one_round(log: TwoPaths, store: ManagedStore, way: str, when: str, said: Path) -> None:
    rival = Rival(log)
    with rival.at_work():
        if when == "after":
            lose(log, way)
            time.sleep(1.5)
        with watch_of(store, said):
            began_ms = time.time_ns() // 10**6
            if when == "before":
                until(lambda: has_looked_since(store, 0), said)
            if when != "after":
                lose(log, way)
                began_ms = time.time_ns() // 10**6
            if way.endswith("unmounted"):
                until(lambda: "isn't mounted" in said.read_text(), said)
                # Whose disk is away doesn't know, and says that it doesn't.
                until(lambda: "hasn't seen the whole fence" in no_watch(Path(store.root)), said)
                there_at_away = frozenset(log.names())
                time.sleep(RIVALS_SECONDS)
                assert frozenset(log.names()) >= without_ends(there_at_away), said.read_text()
                find_again(log, way)
                began_ms = time.time_ns() // 10**6
            until(lambda: has_looked_since(store, began_ms), said)
            look = last_look(Path(store.root))
            assert look is not None
            # A broker that read a time just before it was set deletes that file.
            kept_ms = look.looked_at_ms + GRACE_MS
            until(lambda: rival.seen[-1][0] >= kept_ms, said)
            there = rival.there_at(kept_ms)
            time.sleep(RIVALS_SECONDS)
            left = frozenset(log.names())
    assert len(there) > IN_ADVANCE
    assert left >= there, f"{way} {when}: {sorted(there - left)}\n{said.read_text()}"
    assert all(sha256_of(log, base) == log.sha256[base] for base in there if base in log.sha256)
    if way not in ("unmounted", "one-unmounted"):
        assert "fence-mended" in said.read_text()
    log.sha256 = {base: known for base, known in log.sha256.items() if base in left}


def without_ends(names: frozenset[int]) -> frozenset[int]:
    """All but the last files, which no watch fences."""
    return frozenset(sorted(names)[:-IN_ADVANCE])
