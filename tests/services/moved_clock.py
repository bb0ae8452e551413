"""Days that pass for a process and all that it starts, for clocks and files, as moved_clock.c lets them."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from pathlib import Path

DAY_MS = 24 * 3_600_000

_SOURCE = Path(__file__).with_suffix(".c")
_MAP_BYTES = 16 * 4096
_MOVE = struct.Struct("qq")


def with_moved_clock(directory: Path, *preloaded: Path) -> dict[str, str]:
    """Return the environment of processes for which days may pass.

    :param directory: for what is compiled, and for the moves; shared by all processes.
    :param preloaded: further libraries.
    """
    library, moves = directory / "moved_clock.so", directory / "moves"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    moves.write_bytes(bytes(_MAP_BYTES))
    libraries = os.pathsep.join(map(str, (library, *preloaded)))
    return {**os.environ, "LD_PRELOAD": libraries, "MOVED_CLOCK": str(moves)}


def pass_days(days: float) -> None:
    """Let time pass, for each process that shares this one's environment."""
    path = Path(os.environ["MOVED_CLOCK"])
    data = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("q", data)
    ahead_ns = _MOVE.unpack_from(data, _MOVE.size * count)[1] if count else 0
    at_ns = _kernel_ns()
    moved = _MOVE.pack(at_ns, ahead_ns + round(days * DAY_MS) * 1_000_000)
    # What is written from here on has another time than the kernel's last one.
    while _kernel_ns() == at_ns:
        time.sleep(0.001)
    with path.open("r+b") as file:
        file.seek(_MOVE.size * (count + 1))
        file.write(moved)
        file.flush()
        file.seek(0)
        file.write(struct.pack("q", count + 1))


def passed_count() -> int:
    """Return how often time was let pass, for :func:`forget_days`."""
    (count,) = struct.unpack_from("q", Path(os.environ["MOVED_CLOCK"]).read_bytes())
    return int(count)


def forget_days(count: int) -> None:
    """Go back to where time had passed so often, for a copy of what was there then."""
    with Path(os.environ["MOVED_CLOCK"]).open("r+b") as file:
        file.write(struct.pack("q", count))


def _kernel_ns() -> int:
    return time.clock_gettime_ns(5)  # CLOCK_REALTIME_COARSE, by which files get their times
