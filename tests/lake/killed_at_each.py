"""A piece of work on a lake, killed before each of its durable operations, or before some of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from tests.retention.kill_runner import Moment, count_durable_operations, not_killed
from tests.rounds import ALL
from tests.services.forks import in_child


def killed_at_each(
    directory: Path,
    config: LakeConfig,
    run: Callable[[Lake], None],
    *,
    least: int,
    few: int,
    first: int | None = None,
) -> Iterator[tuple[Lake, str]]:
    """Yield the lake as each kill leaves it, and the operation that was not done. It begins anew each time.

    :param directory: where the lake lies, in its directory ``lake``.
    :param least: so many operations there are at least.
    :param few: about how many of them are tried in ``make test``.
    :param first: of these, the number of the first; None: the first or the second, by their number.
    """
    here, pristine = directory / "lake", directory / "pristine"
    shutil.copytree(here, pristine)

    def work(kill_before: int | None) -> list[str]:
        done, at_step = count_durable_operations(None if kill_before is None else Moment("act", kill_before))
        at_step("act")
        run(open_lake(config))
        at_step("")
        return done

    status, operations = in_child(lambda: work(None))
    assert status == 0
    assert len(operations) >= least
    begin = len(operations) % 2 if first is None else first
    some = range(begin, len(operations), max(1, len(operations) // few))
    for number in range(len(operations)) if ALL else some:
        shutil.rmtree(here)
        shutil.copytree(pristine, here)
        status, _ = in_child(lambda number=number: work(number))
        assert not_killed(status) == []
        yield open_lake(config), operations[number]
