"""Runs histories for a time; or one line of one, as ``python -m tests.histories seal stores/0 2 serial``.

Of a history that fails it prints the shortest that was found, as a script, and exits with 1.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from storage_engine.rocketmq.codec.codec import CODEC
from tests.histories import broker
from tests.histories.children import in_child
from tests.histories.machine import Histories, tally
from tests.histories.mutants import MUTANTS, found_in
from tests.histories.verbs import VERBS, print_held

_LEFT_OUT = ("storage_engine.quality", "great_expectations")
_MOST_REFUSALS = 60
BATCH = 8
"""Histories that hypothesis draws together; the time is looked at within them, too."""


def main(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        return _one(words)
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long; default: an hour")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14, help="operations of a history, at most")
    parser.add_argument("--failures", type=int, default=1, help="go on until so many were found")
    parser.add_argument("--check", action="store_true", help="first show what is found without protections")
    parser.add_argument("--no-shrink", action="store_true", help="print failures as they were found")
    options = parser.parse_args(words)
    warm_up()
    return (options.check and _check_mutants()) or _many(options)


def _check_mutants() -> int:
    """Show that a history without one of the protections loses something, and none with it."""
    wrong = 0
    for name, mutant in MUTANTS.items():
        for taken_out in (False, True):
            found = found_in(mutant, taken_out=taken_out)
            wrong += bool(found) is not taken_out
            _say(f"{name if taken_out else 'the same history as it is'}: {found or 'nothing is lost'}")
    return 1 if wrong else 0


def _one(words: list[str]) -> int:
    """Do one verb, as a script's line asks for it."""
    if words[0] == "held":
        print_held(words[1])
        return 0
    if words[0] == "kill":
        ended = in_child(lambda: VERBS[words[2]](*words[3:]), int(words[1]))
        _say(f"{'killed' if ended.killed else 'not killed: it did fewer durable operations'}{ended.crash}")
        return 0
    answer = VERBS[words[0]](*words[1:])
    if answer:
        _say(json.dumps(answer, indent=1))
    return 0


def _many(options: argparse.Namespace) -> int:
    begun = time.monotonic()
    number, failures = 0, 0
    tally.deadline = deadline = begun + options.seconds
    while failures < options.failures and time.monotonic() < deadline:
        failure = _batch(options.seed * 1_000_000 + number, options)
        if failure is not None:
            failures += 1
            _print_failure(number, failure)
            tally.failed, tally.deadline = "", deadline
        number += 1
    _say(
        f"{tally.histories} histories, {sum(tally.operations.values())} operations, {failures} failures, "
        f"{time.monotonic() - begun:.0f} s, seed {options.seed}, {number} batches"
    )
    _print_table(tally.operations)
    for (kind, why), count in tally.refusals.most_common(_MOST_REFUSALS):
        _say(f"{count:5}  {kind}: {why}")
    return 1 if failures else 0


def _batch(number: int, options: argparse.Namespace) -> BaseException | None:
    run = settings(
        max_examples=BATCH,
        stateful_step_count=options.steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,) if options.no_shrink else (Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(seed(number)(Histories), settings=run)
    except Exception as error:
        return error
    return None


def _print_failure(number: int, failure: BaseException) -> None:
    _say(f"FAILED in batch {number}: {type(failure).__name__}: {failure}")
    for note in getattr(failure, "__notes__", ()):
        _say(str(note))
    _say(f"----\n{tally.failed}----")


def warm_up() -> None:
    """Import and compile once what each child would by itself."""
    with tempfile.TemporaryDirectory() as directory:
        ended = in_child(lambda: _rehearse(Path(directory)))
        if ended.crash:
            raise SystemExit(ended.crash)
        for name in ended.answer:
            with suppress(ImportError):
                importlib.import_module(name)
        broker.make_store(Path(directory) / "warm")
        segment = broker.path_of(Path(directory) / "warm", 0).read_bytes()
    codec = CODEC
    for rows, _ in codec.decode(memoryview(segment), 0):
        codec.encode(rows, memoryview(bytearray(len(segment))), 0)
    gc.collect()
    gc.freeze()


def _rehearse(directory: Path) -> list[str]:
    """Do what imports most; returns the names of all modules."""
    os.chdir(directory)
    broker.make_store(Path("store"))
    broker.seal(Path("store"), 2, "")
    VERBS["storage-engine"]("init-lake", "--lake", "lake")
    VERBS["storage-engine"]("clean", "store", "--lake", "lake", "--manual", "--max-segments", "1")
    for words in (["archive", "store"], ["verify", "store"], ["gc"], ["adopt", "store", "--reason", "r"]):
        VERBS["storage-engine"](*words, "--lake", "lake")
    VERBS["compact"]("lake")
    VERBS["restore-all"]("lake", "restored")
    return sorted(name for name in sys.modules if not name.startswith(_LEFT_OUT))


def _print_table(counts: Counter[tuple[str, str]]) -> None:
    for kind in sorted({kind for kind, _ in counts}):
        row: Any = (f"{counts[(kind, how)]:6} {how}" for how in ("done", "refused", "killed"))
        _say(f"{kind:16}{''.join(row)}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
