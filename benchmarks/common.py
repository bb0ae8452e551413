"""What every benchmark gives back, and how it is shown and kept."""

from __future__ import annotations

import json
import math
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Bench:
    """One measurement.

    :param ratio: ours over the peer's, in speed: above 1 we are faster.
    :param must: what the ratio has to reach.
    :param detail: figures behind the ratio, with units in their names.
    """

    name: str
    ratio: float
    must: float
    detail: Mapping[str, float | int | str] = field(default_factory=dict)


def print_line(bench: Bench) -> None:
    """Print the one line a benchmark that scripts read; the ratio is rounded down, never up."""
    print(
        f"bench {bench.name} ratio={math.floor(bench.ratio * 100) / 100:.2f} must={bench.must:.2f}",
        flush=True,
    )


def save(bench: Bench) -> Path:
    """Write a measurement to benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{bench.name}.json"
    content = {**asdict(bench), "machine": platform.machine(), "python": platform.python_version()}
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    return path


def report(benches: list[Bench]) -> None:
    """Print and save measurements."""
    for bench in benches:
        save(bench)
        print_line(bench)


TURNS = 5


@dataclass(frozen=True, slots=True)
class Spent:
    """Medians in seconds.

    :param processor: of all threads, and of the processes that were waited for.
    """

    processor: float
    wall: float


def in_turns(
    works: Mapping[str, Callable[[], object]], before: Mapping[str, Callable[[], object]] | None = None
) -> dict[str, Spent]:
    """Run each of some works once a turn, so that a busy machine slows all; the first turn warms up.

    :param before: what is done before a work, each time, and isn't measured.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(TURNS + 1):
        for name, work in works.items():
            if before and name in before:
                before[name]()
            processor, wall = _processor_seconds(), time.perf_counter()
            work()
            spent[name].append((_processor_seconds() - processor, time.perf_counter() - wall))
    return {name: Spent(*map(median, zip(*found[1:], strict=True))) for name, found in spent.items()}


def _processor_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_beside(commands: list[str]) -> None:
    """Run commands of the shell side by side, and wait for all.

    :raises AssertionError: one fails.
    """
    processes = [subprocess.Popen(["sh", "-c", it], stdout=subprocess.DEVNULL) for it in commands]
    ends = [process.wait() for process in processes]
    if any(ends):
        raise AssertionError(f"expected commands that end well, found {ends} of {commands}")


def machine_limit(path: Path, processors: int) -> float:
    """Return how much of a file's SHA-256 this machine makes on some processors over what it makes on one."""
    hashing = f"openssl dgst -sha256 {path}"
    works = {"one": lambda: run_beside([hashing]), "all": lambda: run_beside([hashing] * processors)}
    spent = in_turns(works)
    return processors * spent["one"].wall / spent["all"].wall
