"""Whether all that a history's stores ever sealed is there: on disk, or back from the lakes that owe it.

A lake that is refused gets what its errors name; then what an operator tries next.
"""

from __future__ import annotations

import re

from tests.histories import lake_directories, operations
from tests.histories.model import HistoryError, Lake, World

_CURE = re.compile(
    r"storage-engine (lake relocate|lake rebuild|verify --level bytes --renew|gc --undo)", re.IGNORECASE
)
_NEXT = (
    "lake relocate",
    "lake rebuild",
    "verify --level bytes --renew",
    "gc --undo",
    "lake rebuild",
    "lake rebuild --take-over",
    "lake relocate --take-over",
)
_MOST_NAMED = 4


def check_end(world: World) -> None:
    """Make sure, at the end of a history, that everything comes back.

    :raises HistoryError: something doesn't; says what and what the lakes said.
    """
    for lake in list(world.lakes):
        lake_directories.mount(world, lake)
    world.check_bytes()
    wanted = {
        lake: {segment.key for store in world.stores for segment in store.gone() if lake in segment.owed_by}
        for lake in world.lakes
    }
    found = {lake: _come_back(world, lake, keys) for lake, keys in wanted.items() if keys}
    for store in world.stores:
        for segment in store.gone():
            if not any(segment.key in found[lake] for lake in segment.owed_by):
                lakes = ", ".join(lake.path for lake in segment.owed_by)
                raise HistoryError(
                    f"segment {segment.base_offset} of {store.path} with SHA-256 {segment.sha256} doesn't "
                    f"come back from {lakes}, whatever is tried"
                )


def _come_back(world: World, lake: Lake, wanted: set[tuple[int, str]]) -> set[tuple[int, str]]:
    """Restore what a warehouse holds, through the catalogs over it, and mend them until all is there."""
    found: set[tuple[int, str]] = set()
    for each in (
        lake,
        *(other for other in world.lakes if world.holder(other) is lake and other is not lake),
    ):
        tried: list[str] = []
        while True:
            refused = _restore(world, each, found)
            if wanted <= found:
                return found
            cure = _next_cure(" ".join(refused), tried)
            if cure is None:
                break
            tried.append(cure)
            outcome = operations.mend(world, each, cure)
            if not outcome.done:
                named = _next_cure(outcome.text, tried, only_named=True)
                if named is not None:
                    tried.append(named)
                    operations.mend(world, each, named)
    return found


def _restore(world: World, lake: Lake, found: set[tuple[int, str]]) -> list[str]:
    target = world.new_name("restored")
    said = world.verb("restore-all", lake.path, target).answer
    found |= {(base_offset, sha256) for base_offset, sha256 in said["found"]}
    return list(said["refused"])


def _next_cure(text: str, tried: list[str], *, only_named: bool = False) -> str | None:
    for named in _CURE.findall(text):
        if tried.count(named) < 1 and len(tried) < _MOST_NAMED:
            return str(named)
    if only_named:
        return None
    for cure in _NEXT:
        if tried.count(cure) < _NEXT.count(cure):
            return cure
    return None
