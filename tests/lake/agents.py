"""Agents of tests, in this process and as a person starts one."""

from __future__ import annotations

import subprocess
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from storage_engine.lake.agent import Agent, AgentListening
from storage_engine.lake.file.agent_files import PLAIN
from storage_engine.lake.file.jobs import AgentAccess
from storage_engine.model.store import FileFacts
from tests.integration.secured import certificate

TOKEN = "0123456789abcdef0123456789abcdef"


def segment_files(store: Path) -> list[FileFacts]:
    return [FileFacts.of(path) for path in sorted((store / "commitlog").iterdir())[:3]]


@contextmanager
def serving(
    store: Path,
    way: str = "plain",
    *,
    port: int = 0,
    lease_seconds: float = 60.0,
    connections: int = 256,
    token: str = TOKEN,
    files: Sequence[FileFacts] | None = None,
    bytes_per_second: int | None = None,
) -> Iterator[tuple[Agent, AgentAccess]]:
    """An agent for one store, and how a driver reaches it."""
    listening, address, pem, key = AgentListening("127.0.0.1", port, token=token), PLAIN, None, None
    if way != "plain":
        directory = store.parent / way
        directory.mkdir(exist_ok=True)
        pem, key = certificate(directory)
        ours = pem if way == "mutual" else None
        listening = replace(listening, certificate=pem, key=key, client_authorities=ours)
        address = ""
    if way == "mutual":
        listening = replace(listening, token="")
    agent = Agent(
        {str(store): lambda: segment_files(store) if files is None else files},
        listening,
        lease_seconds=lease_seconds,
        connections=connections,
        bytes_per_second=bytes_per_second,
    )
    thread = threading.Thread(target=agent.serve, daemon=True)
    thread.start()
    both = None
    if way == "mutual":
        assert pem is not None
        assert key is not None
        both = pem.with_name("both.pem")
        both.write_bytes(pem.read_bytes() + key.read_bytes())
    access = AgentAccess(
        f"{address}127.0.0.1:{agent.port}",
        "" if way == "mutual" else token,
        "" if pem is None else pem.read_text(),
        "" if both is None else str(both),
    )
    try:
        yield agent, access
    finally:
        agent.close()
        thread.join()


@contextmanager
def command(store: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The agent as a person starts it, and its port."""
    token = store.parent / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    words = [str(Path(sysconfig.get_path("scripts"), "storage-engine")), "agent", str(store)]
    words += ["--listen", "127.0.0.1:0", "--token-file", str(token), *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, int(line.rpartition(":")[2].strip().rstrip("."))
        finally:
            process.kill()
