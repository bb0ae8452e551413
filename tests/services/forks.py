"""Forks of this process: what it imported, compiled and cached is there in each of them."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Case = TypeVar("Case")


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run ``work`` in a fork; returns its wait status and what it came to."""
    return begun(work)()


def begun(work: Callable[[], Any]) -> Callable[[], tuple[int, Any]]:
    """Begin ``work`` in a fork; returns what waits for its end, as ``in_child``."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # To look for garbage in what was there before would copy all of it.
        gc.freeze()
        code = 1
        try:
            os.close(reader)
            answer = json.dumps(work()).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)

    def end() -> tuple[int, Any]:
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        return status, json.loads(answer) if answer else None

    return end


def in_forks(cases: Sequence[Case], work: Callable[[Case, str], Any]) -> list[Any]:
    """Deal cases out to a fork for each processor; returns what each came to, in their order.

    :param work: does a case; its other argument is the fork's number, for a directory of its own.
    """
    forks = min(os.cpu_count() or 1, len(cases))

    def share(number: int) -> list[Any]:
        return [work(case, str(number)) for case in cases[number::forks]]

    ends = [begun(lambda number=number: share(number)) for number in range(forks)]
    shares = [end() for end in ends]
    if any(status for status, _ in shares):
        raise SystemExit(f"forks ended with statuses {[status for status, _ in shares]}")
    return [shares[at % forks][1][at // forks] for at in range(len(cases))]
