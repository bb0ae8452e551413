"""Runs histories for a time; or one line of one, such as ``python -m tests.histories seal stores/0 2 serial``.

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

from storage_engine.lake.codecs import codec_for
from tests.histories import broker
from tests.histories.children import in_child
from tests.histories.machine import Histories, tally
from tests.histories.verbs import VERBS, print_held

_LEFT_OUT = ("storage_engine.quality", "great_expectations")
BATCH = 10
"""Histories that hypothesis draws together; the time is looked at within them, too."""


def main(words: list[str]) -> int:
    if words and not words[0].startswith("-"):
        return _one(words)
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long; default: an hour")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=14, help="operations of a history, at most")
    options = parser.parse_args(words)
    return _many(options.seconds, options.seed, options.steps)


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


def _many(seconds: float, first_seed: int, steps: int) -> int:
    begun = time.monotonic()
    warm_up()
    tally.deadline = begun + seconds
    number = 0
    failure: BaseException | None = None
    while failure is None and time.monotonic() < tally.deadline:
        failure = _batch(first_seed * 1_000_000 + number, steps)
        number += 1
    _say(
        f"{tally.histories} histories, {sum(tally.operations.values())} operations, "
        f"{time.monotonic() - begun:.0f} s, seed {first_seed}, {number} batches"
    )
    _print_table(tally.operations)
    for (kind, why), count in tally.refusals.most_common(60):
        _say(f"{count:5}  {kind}: {why}")
    if failure is None:
        return 0
    _say(f"FAILED in batch {number - 1}: {type(failure).__name__}: {failure}")
    for note in getattr(failure, "__notes__", ()):
        _say(str(note))
    _say(f"----\n{tally.failed}----")
    return 1


def _batch(number: int, steps: int) -> BaseException | None:
    run = settings(
        max_examples=BATCH,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(seed(number)(Histories), settings=run)
    except Exception as error:
        return error
    return None


def warm_up() -> None:
    """Import and compile once what each child would by itself."""
    with tempfile.TemporaryDirectory() as directory:
        modules = in_child(lambda: _rehearse(Path(directory))).answer
        for name in modules:
            with suppress(ImportError):
                importlib.import_module(name)
        broker.make_store(Path(directory) / "warm")
        segment = broker.path_of(Path(directory) / "warm", 0).read_bytes()
    codec = codec_for("rocketmq")
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
