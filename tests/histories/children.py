"""Doing something in a fork of this process, which may be killed before any of its durable operations.

This process has imported everything and never opens a store or a lake itself: a fork is as good as a new
process of the command line, and costs milliseconds instead of seconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event

DURABLE = ("fsync", "unlink", "remove", "rename", "replace", "link", "mkdir", "rmdir", "symlink")
"""Functions of ``os`` that change what a crash leaves; a database's commit counts, too."""

_PATIENCE_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child came to its end.

    :param answer: what its work returned; None where it was killed.
    :param killed: by itself, at the moment that was asked for.
    :param crash: traceback of an error that nobody expected; "" where there was none.
    """

    answer: Any
    killed: bool
    crash: str


def in_child(work: Callable[[], Any], kill_before: int | None = None) -> Ended:
    """Run ``work`` in a fork.

    :param kill_before: number of the durable operation, from 0, before which it dies; None, or more than it
        does: it lives.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _answer(work, kill_before, writer)
    os.close(writer)
    said, hung = _read_all(reader)
    if hung:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if hung:
        return Ended(None, False, f"expected an end within {_PATIENCE_SECONDS} s, found none\n{said!r}")
    if os.WIFSIGNALED(status):
        signal_number = os.WTERMSIG(status)
        if signal_number == signal.SIGKILL and kill_before is not None:
            return Ended(None, True, "")
        return Ended(None, False, f"died of signal {signal_number}")
    answer, crash = json.loads(said)
    return Ended(answer, False, crash)


def _answer(work: Callable[[], Any], kill_before: int | None, writer: int) -> None:
    said: tuple[Any, str] = (None, "no answer")
    try:
        _count_durable_operations(kill_before)
        said = (work(), "")
    except BaseException:
        said = (None, traceback.format_exc())
    finally:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(said).encode())
        os._exit(0)


def _read_all(reader: int) -> tuple[bytes, bool]:
    said = b""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return said, True
            block = pipe.read(1 << 16)
            if not block:
                return said, False
            said += block


def _count_durable_operations(kill_before: int | None) -> None:
    """Patch this process so that it dies before the operation of a number."""
    if kill_before is None:
        return
    done = 0

    def count() -> None:
        nonlocal done
        if done == kill_before:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            count()
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in DURABLE:
        counted(name)

    def commit(connection: Connection) -> None:
        if not connection.get_execution_options().get("storage_engine_read_only"):
            count()

    event.listen(Engine, "commit", commit)
