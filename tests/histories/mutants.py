"""Protections that can be taken out, each with a history that loses something without it.

They show that the harness finds what it looks for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.catalog import identity
from storage_engine.lake.gc import garbage, garbage_rule
from storage_engine.lake.move import rebuilding
from tests.histories import operations as do
from tests.histories.check import check_end
from tests.histories.model import HistoryError, World


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    :param patches: what takes the protection out, in this process and its forks.
    :param history: what loses something then, and nothing else.
    """

    patches: Callable[[], tuple[AbstractContextManager[object], ...]]
    history: Callable[[World], object]


def found_in(mutant: Mutant, *, taken_out: bool) -> str:
    """Do the history of a mutant; returns what it lost, and "" where it lost nothing."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        for each in mutant.patches() if taken_out else ():
            stack.enter_context(each)
        world = World(Path(directory) / "world")
        try:
            do.begin(world)
            mutant.history(world)
            check_end(world)
        except HistoryError as error:
            return str(error)
    return ""


def _nothing(*_: object) -> str:
    return ""


def _refused(*_: object, **__: object) -> None:
    raise LakeUnavailableError("this protection was taken out")


def _collects_what_nobody_names() -> tuple[AbstractContextManager[object], ...]:
    """Orphans are garbage, and every catalog is believed."""
    judged = garbage_rule._verdict

    def verdict(candidate: garbage_rule.Candidate, kept: str, hidden_by: str) -> garbage_rule.Verdict:
        found = judged(candidate, kept, hidden_by)
        if found.standing is garbage_rule.GarbageStanding.ORPHAN:
            return garbage_rule.Verdict(garbage_rule.GarbageStanding.GARBAGE, "nobody names it")
        return found

    return (
        patch.object(garbage_rule, "_verdict", verdict),
        patch.object(garbage, "_check_heads", _nothing),
        patch.object(identity, "mark_fault", _nothing),
    )


def _yesterdays_catalog(world: World) -> None:
    """Put catalog and journal back from before the last cleanup, and collect garbage twice."""
    store, lake = world.stores[0], world.lakes[0]
    do.back_up(world, lake)
    do.seal(world, store, 2)
    do.clean(world, store, lake)
    do.roll_back(world, lake, "both")
    for _ in range(2):
        do.collect_garbage(world, lake, days=3, kill=None)
        world.check_bytes()


MUTANTS = {
    "a gc that collects what nobody names": Mutant(_collects_what_nobody_names, _yesterdays_catalog),
    "a lost catalog that nothing rebuilds": Mutant(
        lambda: (patch.object(rebuilding, "rebuild", _refused),),
        lambda world: do.lose(world, world.lakes[0], "both"),
    ),
}
