"""A store under a running broker whose segments have expired, so that only a hold keeps them."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.exceptions import BrokerError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.broker import Broker
from tests.integration.remoting import RemotingClient
from tests.lakes import make_lakes

SEND_MESSAGE, UPDATE_AND_CREATE_TOPIC = 10, 17
TOPIC = "payments"
SEGMENT_BYTES = 128 * 1024
BODY_BYTES = 20_000
EXPIRED_HOURS = 100
FLUSH_SECONDS = 1.0
"""A broker flushes every 500 ms; a full file's mtime stays from then on."""

DISK_BYTES = 96 * 1024 * 1024
"""More than a broker and its log need, little enough to fill."""

FILE_PAUSE_SECONDS = 0.1
"""deleteCommitLogFilesInterval."""

SETTINGS: Mapping[str, object] = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "fileReservedTime": 48,
    "cleanResourceInterval": 50,
    "cleanFileForciblyEnable": True,
    "timerWheelEnable": False,
}
"""A broker that deletes what is older than two days as soon as it is told to, and 20 times a second."""


@dataclass(frozen=True)
class Sent:
    """A message that the broker took."""

    offset: int
    body_sha256: str


def create_topic(client: RemotingClient) -> None:
    client.call(
        UPDATE_AND_CREATE_TOPIC,
        topic=TOPIC,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
    )


def send(client: RemotingClient, size_bytes: int = BODY_BYTES, keys: str = "") -> Sent:
    """
    :param keys: of the message.
    :raises BrokerError: the broker didn't take it, or nobody knows.
    """
    body = os.urandom(size_bytes)
    answer = client.call(
        SEND_MESSAGE,
        body=body,
        producerGroup="pg_payments",
        topic=TOPIC,
        defaultTopic="TBW102",
        defaultTopicQueueNums=1,
        queueId=0,
        sysFlag=0,
        bornTimestamp=time.time_ns() // 10**6,
        flag=0,
        properties="WAIT\x01true\x02" + (f"KEYS\x01{keys}\x02" if keys else ""),
        reconsumeTimes=0,
        unitMode=False,
        batch=False,
    )
    # An offset message id is host 4, port 4, physical offset 8 (MessageDecoder#createMessageId).
    return Sent(int(answer.fields["msgId"][16:], 16), hashlib.sha256(body).hexdigest())


class Disk:
    """A file system of its own, as full as a test wants it."""

    def __init__(self, path: Path) -> None:
        self.path, self._ballast = path, path / "ballast"

    @classmethod
    @contextmanager
    def mounted(cls, target: Path) -> Iterator[Disk]:
        """A tmpfs of DISK_BYTES for the duration of the block; the directory is created."""
        target.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(target)], check=True)
        try:
            yield cls(target)
        finally:
            subprocess.run(["umount", "--lazy", str(target)], check=True)

    def fill_to(self, percent: int) -> None:
        self._ballast.unlink(missing_ok=True)
        here = os.statvfs(self.path)
        used = (here.f_blocks - here.f_bfree) * here.f_frsize
        # A broker rounds up to the next whole percent.
        wanted = here.f_blocks * here.f_frsize * (percent * 10 - 5) // 1000 - used
        with self._ballast.open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, wanted)


@dataclass
class LiveLog:
    """The commitlog of a running broker, with what it has held.

    :param sha256: base offset → SHA-256 of every segment that was sealed and aged here.
    :param mtime_ns: base offset → the mtime that it was given then.
    """

    broker: Broker
    sent: list[Sent] = field(default_factory=list)
    sha256: dict[int, str] = field(default_factory=dict)
    mtime_ns: dict[int, int] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.broker.store / "commitlog"

    def managed(self, directory: Path, **live: object) -> ManagedStore:
        """The store as retention knows it, with its lake; that, journal and reports lie under
        ``directory``."""
        settings = {
            "address": self.broker.client.address,
            "may_change_settings": True,
            "allow_same_disk": True,
            **live,
        }
        broker = LiveBroker(**settings)  # type: ignore[arg-type]
        root = str(self.broker.store)
        return make_lakes(ManagedStore.local("live", root, directory, time_zone="UTC", live=broker))

    def names(self) -> list[int]:
        """Base offsets of the files that are there."""
        return sorted(int(path.name) for path in self.directory.iterdir())

    def path(self, base_offset: int) -> Path:
        return self.directory / f"{base_offset:020d}"

    def mtimes(self) -> dict[int, int]:
        """Base offset → mtime in ns of every file that is there, but of those that are written to."""
        end = self.broker.client.runtime_info().commitlog_max_offset - SEGMENT_BYTES
        return {base: self.path(base).stat().st_mtime_ns for base in self.names() if base < end}

    def fill(self, segments: int) -> None:
        """Send until so many more segments are behind the active one, and age all of these."""
        self.sent.append(send(self.broker.client))
        last = self.sent[-1].offset // SEGMENT_BYTES + segments
        while self.sent[-1].offset // SEGMENT_BYTES < last:
            self.sent.append(send(self.broker.client))
        deadline = time.monotonic() + 120
        while any(base not in self.sha256 for base in self.names() if base < last * SEGMENT_BYTES):
            assert time.monotonic() < deadline, f"segments that the broker still writes to: {self.names()}"
            time.sleep(0.1)
            self.age()

    def have_expired(self, segments: int) -> None:
        """Fill until there are so many aged ones, and more for the next time."""
        if len([base for base in self.names() if base in self.sha256]) < segments:
            self.fill(3 * segments)

    def age(self) -> None:
        """Let every segment behind the active one, that wasn't aged before, be older than it may become."""
        active = self.broker.client.runtime_info().commitlog_max_offset // SEGMENT_BYTES * SEGMENT_BYTES
        for base in self.names():
            path = self.path(base)
            seconds = time.time() - path.stat().st_mtime
            # A watch fences a segment by an mtime in the future, also before it was aged.
            if base < active and base not in self.sha256 and abs(seconds) > FLUSH_SECONDS:
                mtime_ns = time.time_ns() - EXPIRED_HOURS * 3600 * 10**9
                os.utime(path, ns=(mtime_ns, mtime_ns))
                self.sha256[base] = hashlib.sha256(path.read_bytes()).hexdigest()
                self.mtime_ns[base] = mtime_ns

    def wait_for_min_offset(self, offset: int, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while (found := self.broker.client.runtime_info().commitlog_min_offset) != offset:
            if time.monotonic() > deadline:
                raise BrokerError(f"expected the log to begin at {offset}, found {found} after {seconds} s")
            time.sleep(0.02)

    def others_clean(self) -> None:
        """Somebody else tells the broker to delete what has expired, and it does, in 20 passes."""
        self.others_begin_to_clean()()

    def others_begin_to_clean(self) -> Callable[[], None]:
        """The same; what is returned waits until the broker is through with it."""
        before = len(self._passes())
        self.broker.client.delete_expired_commitlog()
        return lambda: self._until_it_is_through(before)

    def wait_until_idle(self) -> None:
        """Until the broker is through with every pass that a trigger has asked it for, a late one too."""
        deadline = time.monotonic() + 120
        while self._is_busy() or self.names() != self._names_a_file_later():
            assert time.monotonic() < deadline, f"passes of the broker: {self._passes()}"

    def _is_busy(self) -> bool:
        said = re.findall(r"executeDeleteFilesManually was|manualDeleteFileSeveralTimes: \d+", self._said())
        return bool(said) and not said[-1].endswith(": 0")

    def _names_a_file_later(self) -> list[int]:
        """The names after the pause that a pass makes after each file, twice."""
        time.sleep(2 * FILE_PAUSE_SECONDS)
        return self.names()

    def _until_it_is_through(self, passes_before: int) -> None:
        deadline = time.monotonic() + 120
        while not any((passes := self._passes())[passes_before:]) or passes[-1]:
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker is not through with its passes after two minutes: {passes}")
            time.sleep(0.05)

    def _passes(self) -> list[int]:
        """How many more of those that a trigger asks for it had before it, at each pass that it told of."""
        return [int(left) for left in re.findall(r"manualDeleteFileSeveralTimes: (\d+)", self._said())]

    def _said(self) -> str:
        log = self.broker.java.home / "logs" / "rocketmqlogs" / "store.log"
        return log.read_text() if log.exists() else ""
