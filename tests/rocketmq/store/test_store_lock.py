from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_engine.core import file_users
from storage_engine.exceptions import StoreBusyError
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.store.store_lock import is_locked, lock, lock_holder

LOCK = "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 0)"
MAP = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()"
OPEN = "import sys; f=open(sys.argv[1],'rb')"


@contextmanager
def other_process(code: str, path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs ``code`` on ``path`` and stays until the block ends."""
    code += "; print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def layout(store_copy: Callable[[str], Path]) -> StoreLayout:
    return resolve_layout(load_broker_config(None, root=store_copy("edge-frames")))


def bytes_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def try_lock(path: Path) -> int:
    """Exit code of another process that tries to take the lock as a broker does."""
    return subprocess.run(
        [sys.executable, "-c", LOCK, str(path)], check=False, capture_output=True
    ).returncode


def test_a_held_store_keeps_a_broker_out_until_the_block_ends(layout: StoreLayout) -> None:
    with lock(layout) as held:
        assert held.max_delete_batch == 1
        assert try_lock(layout.lock) != 0
        assert lock_holder(layout) is None  # asking must not drop our own lock
        assert is_locked(layout) is False
        assert try_lock(layout.lock) != 0
    assert try_lock(layout.lock) == 0


def test_the_lock_is_gone_after_an_error(layout: StoreLayout) -> None:
    with pytest.raises(ValueError, match="inside"), lock(layout):
        raise ValueError("inside")
    with lock(layout):
        pass


def test_a_store_that_a_broker_holds_is_busy_and_the_error_names_the_process(layout: StoreLayout) -> None:
    before = bytes_of(layout.root)
    with other_process(LOCK, layout.lock) as broker:
        with pytest.raises(StoreBusyError, match=f"process {broker.pid} "), lock(layout):
            pass
        holder = lock_holder(layout)
        assert holder is not None
        assert holder.pid == broker.pid
        assert is_locked(layout)
    assert bytes_of(layout.root) == before
    assert lock_holder(layout) is None
    assert is_locked(layout) is False


@pytest.mark.parametrize("code", [MAP, OPEN])
@pytest.mark.parametrize("file", ["commitlog/00000000000000000000", "checkpoint"])
def test_a_store_whose_files_somebody_has_open_or_mapped_is_busy(
    layout: StoreLayout, code: str, file: str
) -> None:
    with (
        other_process(code, layout.root / file) as reader,
        pytest.raises(StoreBusyError, match=rf"process {reader.pid} .*{file}"),
        lock(layout),
    ):
        pass
    with lock(layout):
        pass


def test_our_own_open_files_do_not_count(layout: StoreLayout) -> None:
    with (layout.root / "checkpoint").open("rb"), lock(layout):
        pass


def test_one_process_holds_a_store_once(layout: StoreLayout) -> None:
    with lock(layout), pytest.raises(StoreBusyError, match="another run in this process"), lock(layout):
        pass


def test_a_missing_lock_file_is_created_as_a_broker_does(layout: StoreLayout) -> None:
    layout.lock.unlink()
    assert lock_holder(layout) is None
    assert not layout.lock.exists()
    with lock(layout):
        assert layout.lock.read_bytes() == b""


def test_a_lock_that_can_not_be_opened_is_busy(layout: StoreLayout) -> None:
    layout.lock.unlink()
    layout.lock.mkdir()
    with pytest.raises(StoreBusyError, match="that this process can open"), lock(layout):
        pass


@pytest.fixture
def not_ours(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Processes put in here can't be looked into, as if they were another user's."""
    pids: set[int] = set()
    mapped_paths = file_users._mapped_paths

    def look(pid: int, directories: tuple[str, ...]) -> Iterable[str]:
        if pid in pids:
            raise PermissionError(pid)
        return mapped_paths(pid, directories)

    monkeypatch.setattr(file_users, "_mapped_paths", look)
    return pids


def test_a_process_that_we_may_not_look_into_becomes_a_notice(
    layout: StoreLayout, not_ours: set[int]
) -> None:
    with other_process(OPEN, Path(__file__)) as process:
        not_ours.add(process.pid)
        with lock(layout) as held:
            (notice,) = held.notices
            assert "could not be checked" in notice
            assert str(process.pid) in notice


def test_a_broker_that_we_may_not_look_into_is_refused(layout: StoreLayout, not_ours: set[int]) -> None:
    with other_process(OPEN, Path(__file__), "org.apache.rocketmq.broker.BrokerStartup") as broker:
        not_ours.add(broker.pid)
        with (
            pytest.raises(StoreBusyError, match=f"process {broker.pid} .*broker of another user"),
            lock(layout),
        ):
            pass


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@as_root
def test_a_lock_that_root_makes_can_be_opened_by_the_brokers_user(layout: StoreLayout) -> None:
    layout.lock.unlink()
    os.chown(layout.root, 3000, 3000)
    with lock(layout):
        made = layout.lock.stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (3000, 3000, 0o600)


def test_whoever_may_write_a_store_may_open_its_new_lock(layout: StoreLayout) -> None:
    layout.lock.unlink()
    layout.root.chmod(0o770)
    with lock(layout):
        assert stat.S_IMODE(layout.lock.stat().st_mode) == 0o660


def test_the_lock_that_a_broker_made_keeps_its_mode(layout: StoreLayout) -> None:
    layout.lock.chmod(0o644)
    with lock(layout):
        assert stat.S_IMODE(layout.lock.stat().st_mode) == 0o644


def test_a_lock_that_is_a_symbolic_link_makes_no_file_elsewhere(layout: StoreLayout, tmp_path: Path) -> None:
    layout.lock.unlink()
    layout.lock.symlink_to(tmp_path / "made")
    with pytest.raises(StoreBusyError, match="found a symbolic link"), lock(layout):
        pass
    assert not (tmp_path / "made").exists()


def test_no_file_of_another_process_is_looked_at_while_the_lock_is_ours(
    layout: StoreLayout, tmp_path: Path
) -> None:
    """One on a dead network file system would keep us there, with the broker's lock."""
    strange = tmp_path / "on-a-dead-disk"
    strange.touch()
    script = (
        "import sys; from pathlib import Path;"
        "from storage_engine.rocketmq.format.broker_config import load_broker_config;"
        "from storage_engine.rocketmq.format.layout import resolve_layout;"
        "from storage_engine.rocketmq.store.store_lock import lock;"
        "layout = resolve_layout(load_broker_config(None, root=Path(sys.argv[1])));"
        "names = [];"
        "sys.addaudithook(lambda name, args: names.append((name, str(args[0]) if args else '')));"
        "import os; stat = os.stat;"
        "os.stat = lambda path, **more: (names.append(('stat', str(path))), stat(path, **more))[1];"
        "held = lock(layout); held.__enter__();"
        "print(*(f'{name} {path}' for name, path in names), sep=chr(10))"
    )
    with other_process(OPEN, strange) as reader:
        done = subprocess.run(
            [sys.executable, "-c", script, str(layout.root)], check=True, capture_output=True, text=True
        )
        assert f"/proc/{reader.pid}/fd" in done.stdout
    assert str(strange) not in done.stdout
    assert "isfile" not in done.stdout


def test_a_broker_that_serves_deleted_segments_is_told_of(layout: StoreLayout) -> None:
    """It had mapped them, and not locked the store yet, when they went."""
    code = f"{MAP}; {LOCK.removeprefix('import fcntl,sys; ').replace('sys.argv[1]', 'sys.argv[2]')}"
    segment = layout.commitlog_paths[0] / "00000000000000000000"
    with other_process(f"import fcntl; {code}", segment, str(layout.lock)) as broker:
        segment.unlink()
        with (
            pytest.raises(StoreBusyError, match=rf"Process {broker.pid} still maps 1 segment file that"),
            lock(layout),
        ):
            pass
