"""Feeds the codec mutated frames by the million: no crash, no hang, every byte comes back.

A round takes a segment that a real broker wrote and changes about half of its frames, each in its own way;
some rounds also cut pieces out or put garbage in. Every changed frame counts as one input. Each round is
decoded, encoded again and compared with what went in; a round that takes far longer than others have is a
hang. Run as a script: ``python tests/fuzz_codec.py --inputs 10000000 --seed 1``.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_engine.rocketmq.codec import CODEC

FIXTURES = Path(__file__).parent / "fixtures" / "rocketmq"
HEADER_BYTES = 88
MOST_SECONDS_A_ROUND = 30.0
INTERESTING = np.array(
    [0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF, 0xC0, 0xDA, 0xA3, 0x20, 0xA7], dtype=np.uint8
)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Seed:
    """A real segment and where its frames are."""

    base_offset: int
    data: Bytes
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def seeds() -> list[Seed]:
    """Every commitlog segment of the fixture stores that has frames."""
    found = []
    for archive_path in sorted(FIXTURES.glob("*.tar.xz")):
        with tarfile.open(archive_path) as archive:
            for member in archive:
                parts = Path(member.name).parts
                if member.isfile() and parts[-2] in ("commitlog", "cl1", "cl2"):
                    content = archive.extractfile(member)
                    assert content is not None
                    found.append(_seed(int(parts[-1]), np.frombuffer(content.read(), dtype=np.uint8)))
    return [seed for seed in found if len(seed.starts)]


def _seed(base_offset: int, data: Bytes) -> Seed:
    starts, sizes = [], []
    for rows, _ in CODEC.decode(memoryview(data.copy()), base_offset):
        frames = rows.drop(["body", "raw"]).filter(rows["kind"].to_numpy() == "message")
        starts.append(frames["physical_offset"].to_numpy() - base_offset)
        sizes.append(frames["size"].to_numpy())
    return Seed(base_offset, data, np.concatenate(starts), np.concatenate(sizes).astype(np.int64))


def mutate(seed: Seed, chance: np.random.Generator) -> tuple[Bytes, int]:
    """A changed copy of a segment, and how many of its frames were changed."""
    data = seed.data.copy()
    chosen = np.flatnonzero(chance.random(len(seed.starts)) < 0.5)
    for _ in range(int(chance.integers(1, 5))):
        in_header = chance.random(len(chosen)) < 0.6
        reach = np.where(in_header, np.minimum(HEADER_BYTES, seed.sizes[chosen]), seed.sizes[chosen])
        at = seed.starts[chosen] + (chance.random(len(chosen)) * reach).astype(np.int64)
        random_values = chance.integers(0, 256, len(chosen), dtype=np.uint8)
        data[at] = np.where(
            chance.random(len(chosen)) < 0.5, random_values, chance.choice(INTERESTING, len(chosen))
        )
    if chance.random() < 0.1:
        data = _splice(data, chance)
    return data, len(chosen)


def _splice(data: Bytes, chance: np.random.Generator) -> Bytes:
    at, size = int(chance.integers(len(data))), int(chance.integers(1, 5000))
    garbage = chance.integers(0, 256, size, dtype=np.uint8)
    match int(chance.integers(3)):
        case 0:
            return np.concatenate([data[:at], data[at + size :]])
        case 1:
            return np.concatenate([data[:at], garbage, data[at:]])
        case _:
            return np.concatenate([data[:at], data[max(at - size, 0) : at], data[at:]])


def check(data: Bytes, base_offset: int) -> None:
    """Decode and encode; raise AssertionError unless every byte came back, once."""
    back = np.full(len(data), 0xEE, dtype=np.uint8)
    written = 0
    covered = 0
    for rows, _ in CODEC.decode(memoryview(data), base_offset):
        covered += int(rows["size"].to_numpy().sum())
        written += CODEC.encode(rows, memoryview(back), base_offset)
    assert covered == written == len(data), f"{len(data)} bytes in, rows of {covered}, {written} out"
    assert np.array_equal(data, back), f"byte {int(np.flatnonzero(data != back)[0])} came back changed"


def fuzz(inputs: int, seed: int) -> tuple[int, float]:
    """Run rounds until ``inputs`` frames were tried.

    :return: frames tried, and the slowest round in seconds.
    """
    originals = seeds()
    done, number, slowest = 0, 0, 0.0
    while done < inputs:
        chance = np.random.default_rng([seed, number])
        original = originals[number % len(originals)]
        data, changed = mutate(original, chance)
        started = time.perf_counter()
        try:
            check(data, original.base_offset)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}: python {Path(__file__).name} --seed {seed}")
            raise
        took = time.perf_counter() - started
        assert took < MOST_SECONDS_A_ROUND, f"seed {seed}, round {number}: took {took:.0f} s"
        slowest = max(slowest, took)
        done += changed
        number += 1
        if number % 500 == 0:
            sys.stderr.write(f"\r{done:,} of {inputs:,} frames")
    return done, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    done, slowest = fuzz(arguments.inputs, arguments.seed)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(
        f"\n{done:,} mutated frames: every byte came back; slowest segment {slowest:.2f} s, "
        f"peak memory {peak_mib} MiB\n"
    )


if __name__ == "__main__":
    main()
