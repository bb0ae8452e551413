"""Lives a year with a store, a lake and rules, in a process whose clock is moved; a script of test_year.

Usage: python -m tests.keeping.year_runner WORK_DIRECTORY ROUNDS DAYS_OF_A_ROUND
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from storage_engine.core.clock import clock_ms
from tests.keeping.world import World
from tests.services.moved_clock import pass_days


def main(work: Path, rounds: int, days: float) -> None:
    world = World(work)
    world.make_lake()
    world.keep()
    began_ms, seen = clock_ms(), []
    for number in range(rounds):
        pass_days(days)
        world.store.seal()
        if number % 3 == 0:
            world.run("archive", world.store_dir, "--lake", world.lake_dir)
        world.leave_out()
        world.clean()
        world.expire()
        if number % 5 == 2:
            world.run("gc", "--lake", world.lake_dir, "--delete")
            world.run("maintain", "--lake", world.lake_dir)
        seen.append(world.check(settled=True, since_ms=began_ms))
    # A day for what the last plan listed, and seven years for what is kept so long.
    for longer in (7 * 366, 1, 8):
        pass_days(longer)
        world.clean()
        world.expire()
        seen.append(world.check(settled=True, since_ms=began_ms))
    sys.stdout.write(json.dumps({"states": seen, "days": (clock_ms() - began_ms) / 86_400_000}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
