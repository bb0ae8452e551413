"""Feeds the codec mutated frames by the million: no crash, no hang, no misread, every byte comes back.

A round takes a segment that a real broker wrote and changes about half of its frames, each in its own way;
some rounds also cut pieces out or put garbage in. Every changed frame counts as one input. Each round is
decoded, encoded again and compared with what went in, and frames that were left alone must be read as they
were before; of some rounds a piece is also held against the plain reading that the tests have. A round that
takes far longer than others is a hang, and one that leaves the process larger than all before it a leak.
Run as a script: ``python tests/fuzz_codec.py --inputs 10000000 --seed 1``.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import resource
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_engine.rocketmq.codec.codec import CODEC

FIXTURES = Path(__file__).parent / "fixtures" / "rocketmq"
HEADER_BYTES = 88
MOST_SECONDS_A_ROUND = 30.0
"""Rounds take some 20 ms; compiling the kernels happens before the first."""
MOST_GROWTH_MIB = 64
"""Of the peak memory, over what the unchanged segments took."""
PLAIN_EVERY_ROUNDS = 20
PLAIN_BYTES = 64 << 10
"""The plain reading takes seconds for a whole segment."""
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


@dataclass(frozen=True, slots=True)
class Mutated:
    """:param chosen: numbers of the frames that were changed.
    :param spliced: whether frames may have moved as well.
    """

    data: Bytes
    chosen: npt.NDArray[np.int64]
    spliced: bool


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """:param read_plainly: rounds of which a piece was held against the plain reading."""

    inputs: int
    read_plainly: int
    slowest_seconds: float
    growth_mib: int


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


def mutate(seed: Seed, chance: np.random.Generator) -> Mutated:
    """A changed copy of a segment."""
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
    spliced = bool(chance.random() < 0.1)
    return Mutated(_splice(data, chance) if spliced else data, chosen, spliced)


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


def check(data: Bytes, base_offset: int) -> pa.Table:
    """Decode and encode; raise AssertionError unless every byte came back, once.

    :return: physical offset and size of every row that is a message.
    """
    back = np.full(len(data), 0xEE, dtype=np.uint8)
    written = 0
    covered = 0
    messages = []
    for rows, _ in CODEC.decode(memoryview(data), base_offset):
        covered += int(rows["size"].to_numpy().sum())
        written += CODEC.encode(rows, memoryview(back), base_offset)
        messages.append(rows.select(["physical_offset", "size"]).filter(rows["kind"].to_numpy() == "message"))
    assert covered == written == len(data), f"{len(data)} bytes in, rows of {covered}, {written} out"
    assert np.array_equal(data, back), f"byte {int(np.flatnonzero(data != back)[0])} came back changed"
    return pa.concat_tables(messages)


def unread(seed: Seed, mutated: Mutated, messages: pa.Table) -> npt.NDArray[np.int64]:
    """Where frames begin that were left alone and not read as what they are."""
    alone = np.delete(np.arange(len(seed.starts)), mutated.chosen)
    ends = (messages["physical_offset"].to_numpy() - seed.base_offset) << 32 | messages["size"].to_numpy()
    found = np.isin(seed.starts[alone] << 32 | seed.sizes[alone], ends)
    return seed.starts[alone][~found]


def fuzz(inputs: int, seed: int) -> Fuzzed:
    """Run rounds until ``inputs`` frames were tried."""
    originals = seeds()
    for original in originals:
        check(original.data, original.base_offset)
    at_first_mib = peak_mib()
    done, number, plain, slowest = 0, 0, 0, 0.0
    while done < inputs:
        chance = np.random.default_rng([seed, number])
        original = originals[number % len(originals)]
        mutated = mutate(original, chance)
        started = time.perf_counter()
        # Says where it hangs, and ends it.
        faulthandler.dump_traceback_later(2 * MOST_SECONDS_A_ROUND, exit=True)
        try:
            messages = check(mutated.data, original.base_offset)
            took = time.perf_counter() - started
            assert took < MOST_SECONDS_A_ROUND, f"took {took:.0f} s"
            assert peak_mib() < at_first_mib + MOST_GROWTH_MIB, f"{at_first_mib} became {peak_mib()} MiB"
            looked_at = [] if mutated.spliced else unread(original, mutated, messages)[:1].tolist()
            if number % PLAIN_EVERY_ROUNDS == 0:
                looked_at.append(int(chance.integers(len(mutated.data))))
            for at in looked_at:
                plain += 1
                check_plainly(mutated.data, original, at)
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}: python {Path(__file__).name} --seed {seed}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        slowest = max(slowest, took)
        done += len(mutated.chosen)
        number += 1
        if number % 500 == 0:
            sys.stderr.write(f"\r{done:,} of {inputs:,} frames")
    return Fuzzed(done, plain, slowest, peak_mib() - at_first_mib)


def check_plainly(data: Bytes, seed: Seed, position: int) -> None:
    """Hold the piece of a segment around ``position`` against the plain reading of the same bytes."""
    begin = int(max(position - PLAIN_BYTES // 2, 0))
    piece, base_offset = data[begin : begin + PLAIN_BYTES].tobytes(), seed.base_offset + begin
    rows, _ = _TEST_CODEC.decode(piece, base_offset)
    _TEST_CODEC.assert_reads_as(rows, _PLAIN._reference_rows(piece, base_offset))


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _load(name: str) -> ModuleType:
    """What the codec's tests compare with; tests are no package."""
    path = Path(__file__).parent / "rocketmq" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"fuzz_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TEST_CODEC, _PLAIN = _load("codec/test_codec"), _load("conftest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    seen = fuzz(arguments.inputs, arguments.seed)
    sys.stdout.write(
        f"\n{seen.inputs:,} mutated frames: every byte came back, {seen.read_plainly:,} pieces were read as "
        f"the plain reading does; slowest segment {seen.slowest_seconds:.2f} s, memory {peak_mib()} MiB, "
        f"{seen.growth_mib} MiB more than for unchanged ones\n"
    )


if __name__ == "__main__":
    main()
