"""Our processes beside each other: readers are known by their lock, and who changes a store takes turns."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from storage_engine.core.turns import SharedLock, command_text, has_shared_lock, take_turn, waiting_at_most
from storage_engine.exceptions import StorageEngineError, StoreBusyError, TurnTakenError
from storage_engine.kafka.stopped.store_lock import is_locked_by_us
from storage_engine.kafka.stopped.store_lock import lock as lock_node
from storage_engine.lake.catalog.writing import nobody_commits_at
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.store.store_lock import lock
from tests.rounds import again_but, rounds
from tests.services.other_user import as_nobody

SEGMENT = "00000000000000000000"
READS = """
import mmap, sys
from pathlib import Path
from storage_engine.core.turns import SharedLock
lock = SharedLock([sys.argv[2]])
file = open(sys.argv[1], sys.argv[3])
kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if sys.argv[3] == "rb" else None
if sys.argv[4:]:
    kept = mmap.mmap(file.fileno(), 0); file.close()
"""
"""Reads as an executor does: a path, the directory that it locks, how it opens the path, whether it maps."""
STRANGE = "import sys; lock = open(sys.argv[1], 'rb')"
HAS_STORE = """
import sys
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.store.store_lock import lock
layout = resolve_layout(load_broker_config(None, root=sys.argv[1]))
kept = lock(layout); kept.__enter__()
"""
HAS_NODE = """
import sys
from pathlib import Path
from storage_engine.kafka.stopped.store_lock import lock
kept = lock([Path(sys.argv[1])]); kept.__enter__()
"""


HAS_LAKE = """
import sys
from storage_engine.lake.catalog.writing import nobody_commits_at
kept = nobody_commits_at(sys.argv[1]); kept.__enter__()
"""


@contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code``, and stays as it is until the block ends."""
    words = [sys.executable, "-c", f"{code}\nprint(flush=True); sys.stdin.read()", *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        try:
            yield process
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()


@pytest.fixture
def layout(store_copy: Callable[[str], Path]) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=store_copy("edge-frames")))


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node" / "topic-0").mkdir(parents=True)
    (tmp_path / "node" / "meta.properties").write_text("version=1\n")
    (tmp_path / "node" / "topic-0" / f"{SEGMENT}.log").write_bytes(b"batch")
    return tmp_path / "node"


def test_one_of_ours_that_reads_keeps_nobody_from_deleting(layout: StoreLayout, node: Path) -> None:
    segment = layout.commitlog_paths[0] / SEGMENT
    with running(READS, segment, segment.parent, "rb"), lock(layout):
        pass
    batch = node / "topic-0" / f"{SEGMENT}.log"
    for locked in (node, batch.parent):
        with running(READS, batch, locked, "rb"), lock_node([node]):
            pass


@pytest.mark.parametrize("how", ["r+b", "r+b mapped"])
def test_one_that_could_write_is_refused_with_or_without_our_lock(layout: StoreLayout, how: str) -> None:
    segment = layout.commitlog_paths[0] / SEGMENT
    words = how.split()
    with (
        running(READS, segment, segment.parent, *words) as writer,
        pytest.raises(StoreBusyError, match=rf"process {writer.pid} .*{SEGMENT}"),
        lock(layout),
    ):
        pass


@pytest.mark.parametrize("elsewhere", ["/", "root"])
def test_a_stranger_that_reads_is_refused(layout: StoreLayout, elsewhere: str) -> None:
    """A lock of another directory is none of ours; nor is one that nobody has."""
    segment = layout.commitlog_paths[0] / SEGMENT
    code = READS if elsewhere == "/" else STRANGE
    with (
        running(code, segment, elsewhere, "rb") as reader,
        pytest.raises(StoreBusyError, match=f"process {reader.pid} "),
        lock(layout),
    ):
        pass


def test_the_lock_is_the_kernels_word_on_the_directory(tmp_path: Path) -> None:
    directory = {str(tmp_path)}
    assert not has_shared_lock(os.getpid(), directory)
    reading = SharedLock([tmp_path])
    assert has_shared_lock(os.getpid(), directory)
    assert not has_shared_lock(os.getpid(), {str(tmp_path.parent)})
    del reading
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert not has_shared_lock(os.getpid(), directory)  # open, and not locked
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert not has_shared_lock(os.getpid(), directory)
    (tmp_path / "file").touch()
    with SharedLock([tmp_path / "file"]):
        assert has_shared_lock(os.getpid(), directory)
        assert not has_shared_lock(os.getpid(), {str(tmp_path.parent)})
    with SharedLock([tmp_path]):  # who keeps the directory keeps no reader waiting
        assert not has_shared_lock(os.getpid(), directory)
    os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
def test_who_may_only_read_a_directory_can_lock_it(layout: StoreLayout) -> None:
    for path in (layout.root, *layout.root.parents):
        path.chmod(path.stat().st_mode | 0o555)
    log = layout.commitlog_paths[0]
    log.chmod(0o555)
    with as_nobody():
        reading = SharedLock([log])
    assert has_shared_lock(os.getpid(), {str(log)})
    reading.close()


def test_a_run_waits_for_another_one_and_gets_the_store(layout: StoreLayout) -> None:
    with running(HAS_STORE, layout.root) as other, waiting_at_most(120):
        got = threading.Event()

        def run() -> None:
            with lock(layout):
                got.set()

        waiter = threading.Thread(target=run)
        waiter.start()
        assert not got.wait(1)
        assert other.stdin is not None
        other.stdin.close()
        assert got.wait(60)
        waiter.join(60)


def test_who_waited_in_vain_is_told_which_command_has_it_since_when(layout: StoreLayout, node: Path) -> None:
    with (
        running(HAS_STORE, layout.root) as other,
        waiting_at_most(0.3),
        pytest.raises(TurnTakenError, match=rf"\(process {other.pid}, since 2.*waited 0 s; --wait"),
        lock(layout),
    ):
        pass
    with running(HAS_NODE, node), waiting_at_most(0.3):
        assert is_locked_by_us(node)
        with pytest.raises(TurnTakenError, match="another run of storage-engine"), lock_node([node]):
            pass


@pytest.mark.parametrize("turn", again_but(["store", "node", "lake"], "store"))
def test_a_process_that_is_killed_while_it_has_or_waits_for_a_turn_keeps_nobody(
    layout: StoreLayout, node: Path, tmp_path: Path, turn: str
) -> None:
    """The kernel gives back what a killed process has, and who waits has nothing yet."""
    turns: dict[str, tuple[str, Path, Callable[[], AbstractContextManager[object]]]] = {
        "store": (HAS_STORE, layout.root, lambda: lock(layout)),
        "node": (HAS_NODE, node, lambda: lock_node([node])),
        "lake": (HAS_LAKE, tmp_path / "lake", lambda: nobody_commits_at(str(tmp_path / "lake"))),
    }
    code, place, take = turns[turn]
    # Says so right before it waits, and not behind that.
    waiting = code.replace("kept =", "print(flush=True); kept =")
    with take():
        pass
    files = sorted(tmp_path.rglob("*"))
    for _ in range(rounds("STORAGE_ENGINE_TURN_KILLS", 1, 10)):
        with running(code, place) as has, running(waiting, place) as waits:
            with waiting_at_most(0), pytest.raises(StorageEngineError, match=r"another run|process"), take():
                pass
            assert waits.poll() is None
            for killed in (waits, has):
                killed.kill()
                killed.wait(60)
            with waiting_at_most(0), take():
                pass
        assert sorted(tmp_path.rglob("*")) == files


def test_a_broker_is_waited_for_by_nobody(layout: StoreLayout, node: Path) -> None:
    """Its lock is of its process, and it has no lock of ours."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'a+b'); fcntl.lockf(file, fcntl.LOCK_EX)"
    begun = time.monotonic()
    with running(code, layout.lock) as broker, waiting_at_most(600):
        with (
            pytest.raises(StoreBusyError, match=f"process {broker.pid} .*a broker runs") as raised,
            lock(layout),
        ):
            pass
        assert not isinstance(raised.value, TurnTakenError)
    with running(code, node / ".lock"), waiting_at_most(600):
        assert not is_locked_by_us(node)
        with pytest.raises(StoreBusyError, match="a broker runs"), lock_node([node]):
            pass
    assert time.monotonic() - begun < 300


def test_a_turn_is_tried_until_it_comes() -> None:
    tries: list[int] = []

    def attempt() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise TurnTakenError("store: taken.")
        return 7

    with waiting_at_most(60):
        assert take_turn(attempt) == 7
    tries.clear()
    with waiting_at_most(0), pytest.raises(TurnTakenError, match=r"store: taken\. This run waited 0 s"):
        take_turn(attempt)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["/v/bin/python", "/v/bin/storage-engine", "clean", "/data/store", "--lake", "/l"],
            "storage-engine clean",
        ),
        (
            ["/v/bin/python3.11", "-m", "storage_engine.cli", "lake", "gc", "--lake"],
            "storage_engine.cli lake gc",
        ),
        (["storage-engine", "--wait", "3"], "storage-engine"),
        (["python"], "python"),
        ([], ""),
    ],
)
def test_a_command_is_told_without_paths_and_options(words: list[str], expected: str) -> None:
    assert command_text(words) == expected
