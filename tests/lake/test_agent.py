"""An agent and who asks it, over real sockets: what is read is what lies there, or nothing is proven."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.agent import _segment_files
from storage_engine.cli.lake.lake import archive
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.exceptions import (
    AgentError,
    BadInputError,
    FileGoneError,
    ProofError,
    StorageEngineError,
)
from storage_engine.hooks.connection import Defaults
from storage_engine.hooks.connection import managed_store as managed_of_connection
from storage_engine.lake import agent as server
from storage_engine.lake.agent import Agent, AgentListening
from storage_engine.lake.archive.archive import archive_segment, segment_jobs
from storage_engine.lake.archive.commit import commit_segments
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file import agent_files
from storage_engine.lake.file.agent_files import (
    BLOCK_BYTES,
    PLAIN,
    AgentFiles,
    begin_run,
    files_from,
    leave_agent,
    read_access,
    read_token,
    run_of,
)
from storage_engine.lake.file.jobs import AgentAccess, SegmentJob
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.storage.pace import LimitedPace
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.retention import steps
from storage_engine.retention.store.context import opened
from storage_engine.same_bytes.own_acts import own_acts
from storage_engine.spark.archive_segments import ArchiveRequest
from storage_engine.spark.job_io import read_request, write_request
from tests.docs.code_blocks import blocks_under
from tests.fixture_stores import unpack
from tests.integration.secured import certificate
from tests.kafka_fixture import unpack as unpack_node
from tests.lake.agents import TOKEN, command, segment_files, serving
from tests.rounds import later
from tests.services.command_line import run_command
from tests.services.restoring import restore

WAYS = ("plain", "tls", "mutual")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return unpack("clean-stop", tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(LakeConfig.local(tmp_path / "lake"))


@pytest.fixture(autouse=True)
def no_connection() -> Iterator[None]:
    yield
    leave_agent()


def jobs_of(lake: Lake, store: Path) -> tuple[SegmentJob, ...]:
    chosen = [
        Segment("commitlog", int(Path(facts.path).name), facts, SegmentState.SEALED)
        for facts in segment_files(store)
    ]
    return segment_jobs(lake, chosen, store_id="store-1", lineage=0, broker="rocketmq", store_root=str(store))


@contextmanager
def proxy(port: int, change: Callable[[int, bytes], bytes | None]) -> Iterator[int]:
    """A proxy before an agent.

    :param change: is given how many bytes went to the client before, and what comes; None: cut it off.
    """
    with ExitStack() as held:
        listener = held.enter_context(socket.create_server(("127.0.0.1", 0)))

        def forward() -> None:
            while True:
                with suppress(OSError):
                    client = held.enter_context(listener.accept()[0])
                    agent = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                    threading.Thread(target=pump, args=(client, agent, None), daemon=True).start()
                    threading.Thread(target=pump, args=(agent, client, change), daemon=True).start()
                    continue
                return

        threading.Thread(target=forward, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def pump(
    source: socket.socket, target: socket.socket, change: Callable[[int, bytes], bytes | None] | None
) -> None:
    done = 0
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sent = data if change is None else change(done, data)
            if sent is None:
                break
            done += len(data)
            target.sendall(sent)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def assert_nothing_is_there(lake: Lake) -> None:
    assert receipts(lake, "store-1") == ()
    root = local_path(lake.messages().location())
    assert root is not None
    assert list(root.rglob("*.partial")) == []


@pytest.mark.parametrize("way", WAYS)
def test_segments_come_through_an_agent_byte_for_byte(
    lake: Lake, store: Path, tmp_path: Path, way: str
) -> None:
    jobs = jobs_of(lake, store)
    before = {path: path.stat() for path in store.rglob("*")}
    with serving(store, way) as (_, access), run_of(access, jobs) as run:
        proven = [archive_segment(replace(job, agent=run)) for job in jobs]
    rows = commit_segments(lake, proven)
    assert [row.sha256 for row in rows] == [archive_segment(job).sha256 for job in jobs]
    assert [row.source_ctime_ns for row in rows] == [job.facts.ctime_ns for job in jobs]
    restored = restore(lake, "store-1", tmp_path / "restored", files_only=True)
    assert [Path(one.path).read_bytes() for one in restored] == [Path(j.path).read_bytes() for j in jobs]
    after = {path: path.stat() for path in store.rglob("*")}
    assert {p: (s.st_mtime_ns, s.st_ctime_ns) for p, s in after.items()} == {
        p: (s.st_mtime_ns, s.st_ctime_ns) for p, s in before.items()
    }


_opened: list[tuple[str, int]] | None = None


def _note_opening(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str):
        _opened.append((arguments[0], arguments[2]))


sys.addaudithook(_note_opening)


def test_nothing_of_a_store_is_opened_to_be_written_nor_its_lock(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = managed_store(store)
    first = segment_files(store)[0].path
    with own_acts(store) as acts, acts.on(first, mtime_ns=10**18):
        os.utime(first, ns=(10**18, 10**18))
    job = jobs_of(lake, store)[0]
    monkeypatch.setattr("tests.lake.test_agent._opened", opened := [])
    files = list(_segment_files(managed))
    with serving(store, files=files) as (_, access), run_of(access, [job]) as run:
        archive_segment(replace(job, agent=run, lake=lake.config))
        assert files_from(run).own_acts(first).files != ()
    # Who mends a fence waits for that lock.
    assert "own-acts.lock" not in dict(opened)
    of_store = [(path, flags) for path, flags in opened if path.startswith(f"{store}/")]
    assert job.path in dict(of_store)
    assert [path for path, flags in of_store if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)] == []
    assert str(store / "lock") not in dict(of_store)
    assert (store / "lock").exists()


def test_a_job_is_told_of_an_agent_without_its_token_in_a_file(
    lake: Lake, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = AgentAccess("db:7443", TOKEN, "-----BEGIN", "/etc/driver.pem")
    request, path = ArchiveRequest(jobs_of(lake, store), access), tmp_path / "request.json"
    for name, value in write_request(path, request).items():
        monkeypatch.setenv(name, value)
    assert TOKEN not in path.read_text()
    assert TOKEN not in repr(request)
    assert read_request(path, ArchiveRequest) == request


@pytest.mark.parametrize("way", ["plain", "tls"])
@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_a_torn_or_spoiled_stream_proves_nothing(lake: Lake, store: Path, way: str, fault: str) -> None:
    job = jobs_of(lake, store)[0]

    def change(done: int, data: bytes) -> bytes | None:
        at = 500_000 - done
        if not 0 <= at < len(data):
            return data
        return None if fault == "cut" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    expected = {
        ("plain", "cut"): "the connection ended|Connection reset",
        ("plain", "flip"): "other bytes of .* behind offset",
        ("tls", "cut"): "ended|EOF|reset",
        ("tls", "flip"): "(?i)mac|decrypt",
    }[way, fault]
    with (
        serving(store, way) as (agent, access),
        run_of(access, [job]) as run,
        proxy(agent.port, change) as port,
    ):
        behind = replace(run, address=run.address.replace(str(agent.port), str(port)))
        with pytest.raises(AgentError, match=f"{expected}.*\\. Nothing was committed or deleted"):
            archive_segment(replace(job, agent=behind))
        assert_nothing_is_there(lake)
        # The agent itself goes on.
        leave_agent()
        assert archive_segment(replace(job, agent=run)).size_bytes == job.facts.size_bytes


def test_a_slow_link_changes_nothing_and_a_silent_one_ends_the_wait(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ended = jobs_of(lake, store)[0], threading.Event()

    def late(_done: int, data: bytes) -> bytes:
        time.sleep(0.05)
        return data

    def silent(done: int, data: bytes) -> bytes | None:
        # Both ends' connections stay.
        return None if done > 500_000 and ended.wait(60) else data

    with serving(store) as (agent, access), run_of(access, [job]) as run, ExitStack() as held:
        ports = [held.enter_context(proxy(agent.port, change)) for change in (late, silent)]
        slow, half_open = (replace(run, address=f"{PLAIN}127.0.0.1:{port}") for port in ports)
        assert archive_segment(replace(job, agent=slow)).sha256 == archive_segment(job).sha256
        monkeypatch.setattr(agent_files, "ANSWER_SECONDS", 0.5)
        with pytest.raises(AgentError, match="an answer in time, found none"):
            files_from(half_open).read(job.path, memoryview(bytearray(job.facts.size_bytes)), lambda _: None)
        ended.set()


def test_the_paces_of_plan_and_agent_are_kept_and_pages_forgotten(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, forgotten = dict[int, float](), list[str]()

    class Noted(LimitedPace):
        def forget(self, descriptor: int) -> None:
            super().forget(descriptor)
            forgotten.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def pace_at(speed: int) -> LimitedPace:
        return Noted(speed, clock=lambda: 0.0, sleep=lambda pause: pauses.update({speed: pause}))

    monkeypatch.setattr(server, "pace_at", pace_at)
    job = replace(jobs_of(lake, store)[0], bytes_per_second=20_000_000)
    size = job.facts.size_bytes
    with serving(store, bytes_per_second=10_000_000) as (_, access), run_of(access, [job]) as run:
        files_from(run).read(job.path, memoryview(bytearray(size)), lambda _: None)
        files_from(run).facts(job.path)
    assert pauses == {speed: pytest.approx(size / speed) for speed in (10_000_000, 20_000_000)}
    assert forgotten == [job.path] * 2


@pytest.mark.parametrize("at", [0, 300, *later(3, 40)])
def test_a_flip_in_what_is_said_is_one_clear_error(lake: Lake, store: Path, at: int) -> None:
    def change(done: int, data: bytes) -> bytes:
        spoiled = bytearray(data)
        if 0 <= at - done < len(data):
            spoiled[at - done] ^= 0x80
        return bytes(spoiled)

    with serving(store) as (agent, access), proxy(agent.port, change) as port:
        wrong = replace(access, address=f"{PLAIN}127.0.0.1:{port}")
        with pytest.raises(StorageEngineError, match="agent"), run_of(wrong, jobs_of(lake, store)) as run:
            files_from(run).facts(segment_files(store)[0].path)


def test_a_task_reads_nothing_but_what_its_plan_names(lake: Lake, store: Path) -> None:
    first, second, third = jobs_of(lake, store)
    with serving(store) as (_, access), run_of(access, [first, third]) as run:
        files = files_from(run)
        for path in (second.path, "/etc/passwd", f"{first.path}/../{Path(second.path).name}"):
            with pytest.raises(AgentError, match="a file of the run"):
                files.facts(path)
        for lock in ("lock", "abort"):
            with pytest.raises(AgentError, match="a file of the run"):
                files.read(str(store / lock), memoryview(bytearray(1)), lambda _: None)
        # Neither may it ask for another run, nor use another run's key.
        wrong = replace(access, token=run.key)
        with (
            pytest.raises(AgentError, match="expected the agent that has our token"),
            run_of(wrong, [second]),
        ):
            pass
        with run_of(access, [second]) as other, pytest.raises(AgentError, match="has our run"):
            files_from(replace(other, key=run.key))
        # Never behind what was planned.
        files = files_from(run)
        data = memoryview(bytearray(first.facts.size_bytes + 10))
        assert files.read(first.path, data, lambda _: None)[0] == first.facts.size_bytes
        assert files.read(first.path, data, lambda _: None, first.facts.size_bytes + 5)[0] == 0


def test_only_segments_of_its_own_stores_are_served(lake: Lake, store: Path, tmp_path: Path) -> None:
    job = jobs_of(lake, store)[0]
    secret = tmp_path / "secret"
    secret.write_text("x")
    others = (
        replace(job, facts=FileFacts.of(secret)),
        replace(job, facts=replace(job.facts, inode=job.facts.inode + 1)),
        replace(job, store_root=str(tmp_path)),
    )
    with serving(store) as (_, access):
        for other in others:
            why = r"expected a (segment of the agent's|store that it)"
            with pytest.raises(BadInputError, match=why), run_of(access, [job, other]):
                pass


def test_a_segment_that_goes_before_its_run_begins_keeps_no_other_out(lake: Lake, store: Path) -> None:
    gone, left, _ = jobs_of(lake, store)
    content = Path(gone.path).read_bytes()
    Path(gone.path).unlink()
    elsewhere = replace(gone, facts=replace(gone.facts, path="/nowhere/00000000000000000000"))
    with serving(store) as (_, access):
        with pytest.raises(BadInputError, match="found none"), run_of(access, [left, elsewhere]):
            pass
        with run_of(access, [gone, left]) as run:
            # What has its name by then is nothing of the run.
            for _ in range(2):
                with pytest.raises(FileGoneError):
                    archive_segment(replace(gone, agent=run))
                Path(gone.path).write_bytes(content)
            assert archive_segment(replace(left, agent=run)).size_bytes == left.facts.size_bytes


def test_another_file_in_a_segments_place_is_not_served(lake: Lake, store: Path, tmp_path: Path) -> None:
    job, other, gone = jobs_of(lake, store)
    with serving(store) as (_, access), run_of(access, [job, other, gone]) as run:
        Path(job.path).rename(tmp_path / "aside")
        shutil.copy(other.path, job.path)
        with pytest.raises(FileGoneError):
            files_from(run).read(job.path, memoryview(bytearray(9)), lambda _: None)
        with pytest.raises(ProofError, match="the file changed since it was chosen"):
            archive_segment(replace(job, agent=run))
        Path(gone.path).unlink()
        with pytest.raises(FileGoneError):
            archive_segment(replace(gone, agent=run))
    assert_nothing_is_there(lake)


@pytest.mark.parametrize("whose", ["ours", "others", "a write"])
def test_a_touch_while_it_is_read_is_told_from_a_write(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    job, hashed = jobs_of(lake, store)[0], []
    path = Path(job.path)
    read, sha256 = AgentFiles.read, AgentFiles.sha256

    def touching(self: AgentFiles, *arguments: object) -> object:
        answer = read(self, *arguments)  # type: ignore[arg-type]
        if whose == "ours" and not hashed:
            with own_acts(store) as acts, acts.on(path, mtime_ns=10**18):
                os.utime(path, ns=(10**18, 10**18))
        elif whose == "others" and not hashed:
            os.utime(path, ns=(10**18, 10**18))
        elif not hashed:
            with path.open("r+b") as file:
                file.write(b"?")
        return answer

    def hashing(self: AgentFiles, *arguments: object) -> str:
        hashed.append(path)
        return sha256(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AgentFiles, "read", touching)
    monkeypatch.setattr(AgentFiles, "sha256", hashing)
    with serving(store) as (_, access), run_of(access, [job]) as run:
        if whose == "a write":
            with pytest.raises(ProofError, match="the file changed since it was chosen"):
                archive_segment(replace(job, agent=run))
        else:
            archive_segment(replace(job, agent=run))
    assert bool(hashed) is (whose != "ours")


@pytest.mark.parametrize("way", ["plain", "tls"])
def test_a_plan_that_is_too_long_is_said_to_be_while_it_is_sent(
    store: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_PLAN_BYTES", 1 << 20)
    files = [FileFacts(f"/{number}/{'long' * 60}", 1, number, 1, 1, 1) for number in range(60_000)]
    with serving(store, way) as (_, access), pytest.raises(AgentError, match="at most 1048576 bytes, found"):
        begin_run(access, {str(store): files})


def test_a_lease_that_ran_out_and_a_restart_are_named(lake: Lake, store: Path) -> None:
    job = jobs_of(lake, store)[0]
    unknown = "expected a run that the agent knows.*restarted since, or no request came for"
    with serving(store, lease_seconds=0.2) as (_, access), run_of(access, [job]) as run:
        files = files_from(run)
        assert files.facts(job.path) == job.facts
        threading.Event().wait(0.5)
        with pytest.raises(AgentError):
            files.facts(job.path)
        leave_agent()
        with pytest.raises(AgentError, match=unknown):
            files_from(run)
    with serving(store) as (_, access), pytest.raises(AgentError, match=unknown):
        files_from(replace(run, address=access.address))
    with serving(store) as (_, access):
        with run_of(access, [job]) as ended:
            files_from(ended)
        leave_agent()
        with pytest.raises(AgentError, match=unknown):
            files_from(ended)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "tls"])
@pytest.mark.parametrize("who", ["silent", "silent behind the handshake", "dripping"])
def test_who_does_not_show_itself_in_time_keeps_no_connection(
    store: Path, monkeypatch: pytest.MonkeyPatch, way: str, who: str
) -> None:
    monkeypatch.setattr(server, "CONNECT_SECONDS", 0.5)
    with serving(store, way) as (agent, access), ExitStack() as held:
        client = held.enter_context(socket.create_connection(("127.0.0.1", agent.port)))
        if way == "tls" and who != "silent":
            context = ssl.create_default_context(cadata=access.authorities)
            client = held.enter_context(context.wrap_socket(client, server_hostname="127.0.0.1"))
        client.settimeout(0.2 if who == "dripping" else 10)
        if who == "dripping":
            client.sendall(b"\0\0\xff\xff")
        began = time.monotonic()
        with suppress(ConnectionError, ssl.SSLEOFError):
            while time.monotonic() - began < 10:
                with suppress(TimeoutError):
                    if who == "dripping":
                        client.sendall(b"{")
                    assert client.recv(1) == b""
                    break
        assert time.monotonic() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "tls"])
def test_an_agent_that_hangs_ends_the_wait_of_who_asks(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    job, answering = jobs_of(lake, store)[0], threading.Event()
    monkeypatch.setattr(agent_files, "ANSWER_SECONDS", 0.5)
    with serving(store, way) as (_, access), run_of(access, [job]) as run:
        monkeypatch.setattr(server, "settle", lambda path: answering.wait(10) and FileFacts.of(path))
        with pytest.raises(AgentError, match="an answer in time, found none"):
            files_from(run).settled(job.path)
        answering.set()


def test_a_block_of_which_the_system_takes_a_part_comes_whole(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([100, BLOCK_BYTES + 4, -1, 1, BLOCK_BYTES + 3, -1, BLOCK_BYTES + 4])
    asked: list[int] = []

    def send(connection: int, address: int, size: int, _flags: int) -> int:
        asked.append(size)
        count = next(counts, size)
        return count if count < 0 else os.write(connection, ctypes.string_at(address, count))

    monkeypatch.setattr(server, "_system_calls", system_calls(send=send))
    monkeypatch.setattr(server, "_UNPACED_BYTES", 2 * BLOCK_BYTES)
    job = jobs_of(lake, store)[0]
    with serving(store) as (_, access), run_of(access, [job]) as run:
        into = memoryview(bytearray(job.facts.size_bytes))
        assert files_from(run).read(job.path, into, lambda _: None)[0] == len(into)
    assert bytes(into) == Path(job.path).read_bytes()
    assert len(asked) > 2


def system_calls(**others: Callable[..., int]) -> Callable[[], tuple[int, int, int]]:
    """What tells the addresses of the C library's calls, with others in the place of some."""
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
    callbacks = {name: kind(call) for name, call in others.items()}
    addresses = {name: ctypes.cast(it, ctypes.c_void_p).value for name, it in callbacks.items()}
    pread, send, crc32c = server._system_calls()
    found = (addresses.get("pread") or pread, addresses.get("send") or send, crc32c)
    # With the callbacks, which would go otherwise.
    return lambda _kept=callbacks: found


def test_a_file_that_fails_while_it_is_sent_is_named_by_the_agent(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, lines = jobs_of(lake, store)[0], list[str]()
    reads = {"Input/output error": OSError(errno.EIO, os.strerror(errno.EIO)), "found 7": None}
    with serving(store) as (agent, access), run_of(access, [job]) as run:
        monkeypatch.setattr(agent, "_log", lines.append)
        for why, error in reads.items():

            def read(*_: object, error: OSError | None = error) -> int:
                if error is not None:
                    raise error
                return 7

            with monkeypatch.context() as patched:
                patched.setattr(server, "_system_calls", system_calls(pread=lambda *_: -1))
                patched.setattr(os, "preadv", read)
                with pytest.raises(AgentError, match="the connection ended"):
                    archive_segment(replace(job, agent=run))
            leave_agent()
            assert any(job.path in line and "offset 0" in line and why in line for line in lines)
    assert_nothing_is_there(lake)


def test_a_stranger_takes_neither_memory_nor_the_agent_itself(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs_of(lake, store)[0]
    refused = threading.Event()

    class NoMore(threading.Thread):
        def start(self) -> None:
            refused.set()
            raise RuntimeError("can't start new thread")

    with serving(store) as (agent, access):
        with socket.create_connection(("127.0.0.1", agent.port)) as stranger:
            stranger.settimeout(5)
            # More than a greeting has: it isn't waited for.
            stranger.sendall((1 << 20).to_bytes(4, "big"))
            assert stranger.recv(1) == b""
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", NoMore)
            with socket.create_connection(("127.0.0.1", agent.port)) as one:
                assert refused.wait(5)
                assert one.recv(1) == b""
        with run_of(access, [job]) as run:
            assert files_from(run).facts(job.path) == job.facts


def test_an_impostor_and_another_release_are_named(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(lake, store)
    with serving(store, token="f" * 32) as (_, access):
        impostor = replace(access, token=TOKEN)
        with pytest.raises(AgentError, match="expected the agent that has our token"), run_of(impostor, jobs):
            pass
    with serving(store, "tls") as (_, access):
        other = certificate(store.parent)[0].read_text()
        for wrong in (replace(access, authorities=other), replace(access, authorities="")):
            with pytest.raises(AgentError, match="an agent whose certificate we trust"), run_of(wrong, jobs):
                pass
    with serving(store, "mutual") as (_, access):
        bare = replace(access, certificate_file="")
        with pytest.raises(AgentError, match="a driver with a certificate"), run_of(bare, jobs):
            pass
    with serving(store) as (_, access):
        monkeypatch.setattr(server, "__version__", "0.0.0")
        with (
            pytest.raises(AgentError, match=r"expected to be asked by release 0\.0\.0"),
            run_of(access, jobs),
        ):
            pass


def test_bad_input_is_named_before_anything_starts(store: Path, lake: Lake, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o640)
    with pytest.raises(BadInputError, match="this user alone can read, found mode 640"):
        read_token(token)
    token.chmod(0o600)
    assert read_access("db:7443", token, None, None).token == TOKEN
    token.write_text("short")
    with pytest.raises(BadInputError, match="at least 16 characters, found 5"):
        read_token(token)
    with pytest.raises(BadInputError, match="expected HOST:PORT"):
        read_access("db", token, None, None)
    with pytest.raises(BadInputError, match="found neither"):
        read_access("db:7443", None, None, None)
    with pytest.raises(BadInputError, match="only a token shows which process answers"):
        read_access(f"{PLAIN}db:7443", None, None, token)
    with pytest.raises(BadInputError, match="expected certificates as PEM"):
        read_access("db:7443", None, token, token)
    refused = {
        AgentListening("127.0.0.1", 0): "anybody could ask",
        AgentListening("0.0.0.0", 0, token=TOKEN): "expected TLS where other hosts connect",
        AgentListening("127.0.0.1", 0, client_authorities=token): "expected TLS",
        AgentListening("127.0.0.1", 0, certificate=token, token=TOKEN): "expected a PEM file of certificates",
    }
    for listening, why in refused.items():
        with pytest.raises(BadInputError, match=why):
            Agent({}, listening, lease_seconds=1)
    (tmp_path / "old").mkdir()
    pem, key = certificate(tmp_path / "old", timedelta(hours=-1))
    expired = AgentListening("127.0.0.1", 0, pem, key, token=TOKEN)
    agent = Agent({}, expired, lease_seconds=1)
    threading.Thread(target=agent.serve, daemon=True).start()
    access = AgentAccess(f"127.0.0.1:{agent.port}", TOKEN, pem.read_text())
    with pytest.raises(AgentError, match="certificate has expired"), run_of(access, jobs_of(lake, store)):
        pass
    own = tmp_path / "own.pem"
    own.write_bytes(pem.read_bytes() + key.read_bytes())
    renewed = certificate(tmp_path / "old")[0].read_text()
    asks_for_one = Agent({}, AgentListening("127.0.0.1", 0, pem, key, own), lease_seconds=1)
    threading.Thread(target=asks_for_one.serve, daemon=True).start()
    with (
        pytest.raises(AgentError, match=r"certificate expired .* The agent refuses our certificate"),
        run_of(AgentAccess(f"127.0.0.1:{asks_for_one.port}", "", renewed, str(own)), jobs_of(lake, store)),
    ):
        pass
    asks_for_one.close()
    with (
        pytest.raises(BadInputError, match="expected a store that it serves"),
        run_of(replace(access, authorities=renewed), jobs_of(lake, store)),
    ):
        pass
    key.write_text("no key")
    with (
        pytest.raises(BadInputError, match="expected a store that it serves"),
        run_of(replace(access, authorities=renewed), jobs_of(lake, store)),
    ):
        pass
    agent.close()
    with pytest.raises(AgentError, match="Connection refused"), run_of(access, jobs_of(lake, store)):
        pass


def test_a_file_that_stays_as_it_is_is_flushed_once_for_a_run(
    lake: Lake, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    settle = server.settle
    monkeypatch.setattr(server, "settle", lambda path: flushed.append(path) or settle(path))
    job = jobs_of(lake, store)[0]
    with serving(store) as (_, access), run_of(access, [job]) as run:
        files = files_from(run)
        assert files.settled(job.path) == files.settled(job.path) == FileFacts.of(job.path)
        assert len(flushed) == 1
        with Path(job.path).open("r+b") as file:
            file.write(b"\0")
        assert files.settled(job.path) == FileFacts.of(job.path)
        assert len(flushed) == 2


def test_one_connection_more_than_an_agent_has_is_closed(lake: Lake, store: Path) -> None:
    with (
        serving(store, connections=1) as (agent, access),
        socket.create_connection(("127.0.0.1", agent.port)),
        pytest.raises(AgentError),
        run_of(access, jobs_of(lake, store)),
    ):
        pass
    assert run_command("agent", store, "--listen", "127.0.0.1:0", "--lease", 25 * 86_400).exit_code == 2


@pytest.mark.slow
def test_an_agent_that_is_killed_in_the_middle_leaves_nothing_proven(lake: Lake, store: Path) -> None:
    job = jobs_of(lake, store)[0]
    with command(store, "--archive-bytes-per-second", "400KB") as (process, port):
        access = AgentAccess(f"{PLAIN}127.0.0.1:{port}", TOKEN)
        with run_of(access, [job]) as run:
            files = files_from(run)
            data = memoryview(bytearray(job.facts.size_bytes))
            # At its pace the only block comes after two seconds.
            threading.Timer(0.3, process.kill).start()
            with pytest.raises(AgentError, match=r"the connection ended|reset"):
                files.read(job.path, data, lambda _: None)
            leave_agent()
            process.wait()
            with pytest.raises(AgentError, match="refused"):
                archive_segment(replace(job, agent=run))
    assert_nothing_is_there(lake)


def archived_through(access: AgentAccess, root: Path, lake_dir: Path) -> Sequence[Receipt]:
    """Archive all that is sealed of a store, as a job with an agent does."""

    def archive_with(jobs: Sequence[SegmentJob]) -> Sequence[Receipt]:
        with run_of(access, jobs) as run:
            proven = [archive_segment(replace(job, agent=run)) for job in jobs]
        leave_agent()
        return commit_segments(open_lake(jobs[0].lake), proven)

    with opened(managed_store(root, lake_dir)) as store:
        return steps.archive_sealed(store, "run-1", archive_with).receipts


@pytest.mark.slow
def test_the_command_serves_a_node_of_kafka_and_ends_on_sigterm(tmp_path: Path) -> None:
    properties = unpack_node(tmp_path / "node") / "server.properties"
    lake_dir = tmp_path / "lake"
    assert run_command("init-lake", "--lake", lake_dir, "--broker-type", "kafka").exit_code == 0
    with command(properties) as (process, port):
        rows = archived_through(AgentAccess(f"{PLAIN}127.0.0.1:{port}", TOKEN), properties, lake_dir)
        assert sum(row.files is not None for row in rows) > 20
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    verified = run_command("verify", properties, "--lake", lake_dir, "--level", "store", "--json")
    assert verified.json["stores"][0]["overall"] == "OK"


@pytest.mark.slow
def test_the_gate_takes_the_proof_of_what_came_through_an_agent(store: Path, lake: Lake) -> None:
    lake_dir = store.parent / "lake"
    files = list(_segment_files(managed_store(store)))
    with serving(store, "tls", files=files) as (_, access):
        assert len(archived_through(access, store, lake_dir)) == 7
    options = ("--manual", "--set", "fileReservedTime=1", "--json")
    cleaned = run_command("clean", store, "--lake", lake_dir, *options)
    assert cleaned.exit_code == 0, cleaned.err
    assert [Path(file.path).exists() for file in files[:7]] == [False] * 7
    assert len(receipts(lake, cleaned.json["report"]["store_id"])) == 7


def test_what_the_docs_show_starts_an_agent_that_drivers_reach(lake: Lake, store: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "spark.md"
    blocks = blocks_under(page, "Executors without the store's disk")
    shown = [shlex.split(part) for part in blocks["console"].replace("\\\n", "").split("$ ")[2:]]
    context = archive.make_context("archive", shown[1][2:], resilient_parsing=True)
    assert context.params["agent_address"] == "db1.example:7443"
    assert managed_of_connection("c", {"root": "/s", **json.loads(blocks["json"])}, None, Defaults("/a"))
    pem, key = certificate(store.parent)
    with command(store, "--tls-cert", str(pem), "--tls-key", str(key)) as (process, port):
        own = {"/data/store": str(store), "0.0.0.0:7443": "127.0.0.1:0", "agent.pem": str(pem)}
        own |= {"agent.key": str(key), "agent.token": str(store.parent / "token")}
        assert isinstance(process.args, list)
        assert [own.get(word, word) for word in shown[0][1:]] == process.args[1:]
        access = AgentAccess(f"127.0.0.1:{port}", TOKEN, pem.read_text())
        job = jobs_of(lake, store)[0]
        with run_of(access, [job]) as run:
            assert files_from(run).facts(job.path) == job.facts
