"""What every benchmark gives back, and how it is shown and kept."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
