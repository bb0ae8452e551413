"""Commitlog → Arrow with CRC, against Java's MessageDecoder with body and CRC, one thread each, same file."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import Bench, report
from benchmarks.generate import Shape, write_store
from storage_engine.rocketmq.codec.codec import CODEC

MUST = 1.0
SEGMENT_BYTES = 512 << 20
BODY_BYTES = 1024
SMALL_BODY_BYTES = 100
TURNS = 3
"""Java and we take turns, so that a busy machine slows both."""
ROUNDS_A_TURN = 5
WARM_UP_ROUNDS = 5
JAVA_PROJECT = Path(__file__).parent / "java"


@dataclass(frozen=True, slots=True)
class Round:
    """One pass over the file: time on the clock, messages and bytes of frames."""

    seconds: float
    messages: int
    frame_bytes: int


def build_java() -> str:
    """Compile the Java side and return its class path.

    :raises subprocess.CalledProcessError: when Maven fails.
    """
    target = JAVA_PROJECT / "target"
    class_path = target / "classpath.txt"
    goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={class_path}"]
    subprocess.run(["mvn", "-q", "-B", *goals], cwd=JAVA_PROJECT, check=True)
    return f"{target / 'classes'}{os.pathsep}{class_path.read_text().strip()}"


def java_rounds(class_path: str, segment: Path) -> list[Round]:
    """Run the Java side on its own virtual machine; rounds after warming up."""
    command = ["java", "-cp", class_path, "org.storageengine.benchmarks.Decode", str(segment)]
    rounds = WARM_UP_ROUNDS + ROUNDS_A_TURN
    output = subprocess.run([*command, str(rounds)], check=True, capture_output=True, text=True).stdout
    lines = [[int(figure) for figure in line.split()] for line in output.splitlines()]
    return [Round(clock / 1e9, messages, size) for clock, _, messages, size in lines[WARM_UP_ROUNDS:]]


def our_rounds(segment: Path, rounds: int) -> list[Round]:
    """Decode the mapped file into Arrow tables, each dropped before the next one."""
    data = np.memmap(segment, np.uint8, "r")
    result = []
    for _ in range(rounds):
        messages = frame_bytes = 0
        began = time.perf_counter()
        for table, damages in CODEC.decode(data, 0):
            if damages:
                raise AssertionError(f"the generated segment is damaged: {damages[0]}")
            blanks = 1 if table.column("kind")[-1].as_py() == "blank" else 0
            messages += table.num_rows - blanks
            frame_bytes += int(table.column("size").to_numpy()[: table.num_rows - blanks].sum(dtype=np.int64))
        result.append(Round(time.perf_counter() - began, messages, frame_bytes))
    return result


def compare(name: str, segment: Path, class_path: str) -> Bench:
    """Measure both sides on one segment and print their figures."""
    java: list[Round] = []
    ours: list[Round] = []
    our_rounds(segment, 2)
    for _ in range(TURNS):
        java += java_rounds(class_path, segment)
        ours += our_rounds(segment, ROUNDS_A_TURN)
    if {(r.messages, r.frame_bytes) for r in java} != {(r.messages, r.frame_bytes) for r in ours}:
        raise AssertionError("Java and we did not read the same messages")
    detail: dict[str, float | int | str] = {"messages": java[0].messages, "frame_bytes": java[0].frame_bytes}
    medians = {}
    for side, rounds in (("java", java), ("ours", ours)):
        seconds = statistics.median(r.seconds for r in rounds)
        medians[side] = seconds
        mib = rounds[0].frame_bytes / seconds / (1 << 20)
        detail[f"{side}_mib_per_second"] = round(mib, 1)
        detail[f"{side}_messages_per_second"] = round(rounds[0].messages / seconds)
        print(
            f"{name}: {side} {mib:,.0f} MiB/s, {rounds[0].messages / seconds / 1e6:.2f} M messages/s "
            f"(median of {len(rounds)}, best {min(r.seconds for r in rounds):.3f} s)"
        )
    return Bench(name, medians["java"] / medians["ours"], MUST, detail)


def run() -> list[Bench]:
    """Measure with bodies of about 1 KiB, and with small ones."""
    class_path = build_java()
    directory = Path(tempfile.mkdtemp(prefix="bench-decode-"))
    try:
        benches = {}
        for name, body_bytes in (("decode", BODY_BYTES), ("decode-small", SMALL_BODY_BYTES)):
            shape = Shape(segments=1, segment_bytes=SEGMENT_BYTES, body_bytes=body_bytes, fill_percent=100)
            (segment,) = write_store(directory / name, shape)
            benches[name] = compare(name, segment, class_path)
            shutil.rmtree(directory / name)
        return list(benches.values())
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    report(run())
