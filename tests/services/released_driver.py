"""Do what a test asks, with the frozen package that PYTHONPATH names; a script of tests.services.released.

Reads one JSON request a line and answers with one JSON object a line. Each request is done in a fork of this
process, which has imported everything and never touches a store itself: a fork may be killed half-way.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import tarfile
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, Engine, event

import storage_engine

try:
    from storage_engine.cli.main import main as command_line
except ImportError:
    from storage_engine.cli import main as command_line

try:
    import storage_engine.cli.clean
    import storage_engine.cli.decisions
    import storage_engine.cli.hold
    import storage_engine.cli.lake
    import storage_engine.cli.restore
    import storage_engine.quality.validate
    import storage_engine.rocketmq.broker
    from storage_engine.cli.options import managed_store
    from storage_engine.model.hold import Disturbance, DisturbanceKind, HoldStatus
    from storage_engine.model.plan import PlanRequest
    from storage_engine.retention import steps
    from storage_engine.retention.steps.context import open_context
    from storage_engine.retention.steps.disturbances import record_disturbances
    from storage_engine.rocketmq.codec import CODEC
except ImportError:
    # Of a package whose modules lie in rooms nothing but its commands is asked, and none is killed.
    from storage_engine.rocketmq.codec.codec import CODEC

DURABLE = ("fsync", "unlink", "remove", "rename", "replace", "link", "mkdir")
STEPS = (
    "hold",
    "make_plan",
    "record_lag",
    "archive_sealed",
    "archive_planned",
    "release",
    "clean_dependents",
    "flush_checkpoint",
    "unmanage",
)
FINISH = "finish"
STORE = Path(__file__).parents[1] / "fixtures" / "rocketmq" / "clean-stop.tar.xz"


def cli(words: list[str], kill: Mapping[str, Any] | None) -> dict[str, Any]:
    """Run the command line; with ``kill``, die before an operation of one of its steps."""
    if kill is not None:
        kill_at(**kill)
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            command_line(words)
        except SystemExit as stopped:
            code = stopped.code
    return {"exit_code": code, "out": out.getvalue(), "err": err.getvalue()}


def make_plan(store: str, lake: str, run_key: str, max_segments: int | None) -> str:
    """Store a run's plan and do nothing of it; returns its digest."""
    managed = managed_store(Path(store), Path(lake))
    return steps.make_plan(managed, run_key, PlanRequest(manual=True, max_segments=max_segments)).digest


def record_gap(store: str, lake: str, start_offset: int, end_offset: int) -> None:
    """Record that a held store's segments in this range went without being archived."""
    gone = Disturbance(
        DisturbanceKind.SEGMENT_GONE, "went while held.", "commitlog", start_offset, end_offset, ("orders",)
    )
    context = open_context(managed_store(Path(store), Path(lake)))
    record_disturbances(context, HoldStatus(held=True, disturbances=(gone,)))


def no_checks(*_: object, **__: object) -> tuple[()]:
    """Judge nothing: what a frozen package thought of its own work is gone on with by nobody."""
    return ()


ENGINE = types.ModuleType("storage_engine.quality.engine")
ENGINE.run_suites = no_checks  # type: ignore[attr-defined]
sys.modules[ENGINE.__name__] = ENGINE

FUNCTIONS: dict[str, Callable[..., Any]] = {"cli": cli, "make_plan": make_plan, "record_gap": record_gap}


def kill_at(step: str, operation: str, nth: int, path: str) -> None:
    """Patch this process so that it kills itself before operation ``nth`` on such a path, in a step."""
    now, left = "", nth

    def count(what: str, on: str) -> None:
        nonlocal left
        if (now, what) == (step, operation) and path in on:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            on = args[0]
            count(name, str(Path(f"/proc/self/fd/{on}").readlink() if isinstance(on, int) else on))
            return real(*args, **kwargs)

        setattr(os, name, call)

    def named(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal now
            now = name
            return real(*args, **kwargs)

        setattr(owner, name, call)

    for name in DURABLE:
        counted(name)
    for name in STEPS:
        named(steps, name)
    named(storage_engine.cli.clean, FINISH)

    def commit(connection: Connection) -> None:
        if not connection.get_execution_options().get("storage_engine_read_only"):
            count("commit", "")

    event.listen(Engine, "commit", commit)


def in_child(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do a request in a fork: its result or traceback, or the signal that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                result = FUNCTIONS[request["function"]](**request["arguments"])
                answer = {"result": result, "modules": sorted(sys.modules)}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    answer: dict[str, Any] = json.loads(said)
    for module in answer.pop("modules", ()):  # so that no other fork has to
        with suppress(ImportError):
            importlib.import_module(module)
    return answer


def load_kernels() -> None:
    """Decode and encode a segment, so that no fork has to load the compiled kernels."""
    with tarfile.open(STORE) as archive:
        segment = archive.extractfile("A/commitlog/00000000000000000000").read()
    for rows, _ in CODEC.decode(memoryview(segment), 0):
        CODEC.encode(rows, memoryview(bytearray(len(segment))), 0)


def serve(requests: TextIO, answers: TextIO) -> None:
    assert threading.active_count() == 1, threading.enumerate()
    answers.write(json.dumps({"package": storage_engine.__file__}) + "\n")
    answers.flush()
    for line in requests:
        answers.write(json.dumps(in_child(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    protocol = os.fdopen(os.dup(1), "w")
    load_kernels()
    os.dup2(2, 1)  # what else is printed must not look like an answer
    serve(sys.stdin, protocol)
