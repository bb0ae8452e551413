"""Hypothesis draws histories of a world: what is done, to which store and lake, and where it is killed."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.histories import operations as do
from tests.histories.check import check_end
from tests.histories.lake_directories import TO_DIRECTORIES
from tests.histories.model import World

NUMBER = st.integers(0, 5)
KILL = st.one_of(st.none(), st.integers(0, 40), st.integers(0, 140))
THEN = st.sampled_from(sorted(do.THEN))
_LAKES = ("lake", "second", "other")
_MEMORY = Path("/dev/shm")


class Tally:
    """What was run, and the shortest history that failed.

    :param deadline: moment of ``time.monotonic`` after which no operation is begun.
    """

    def __init__(self) -> None:
        self.deadline = float("inf")
        self.histories = 0
        self.operations: Counter[tuple[str, str]] = Counter()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.failed = ""

    def take(self, world: World, failure: BaseException | None) -> None:
        self.histories += bool(world.lines)
        self.operations += world.counts
        self.refusals += world.refusals
        if failure is not None:
            # Hypothesis looks for a shorter one from here on, and stops by itself.
            self.deadline = float("inf")
            said = "\n".join(f"# {line}" for line in str(failure).strip().splitlines())
            script = f"{world.script()}{said}\n"
            if not self.failed or len(script) <= len(self.failed):
                self.failed = script


tally = Tally()


class Histories(RuleBasedStateMachine):
    """One history."""

    def __init__(self) -> None:
        super().__init__()
        fast = _MEMORY if _MEMORY.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="histories-", dir=fast))
        self.world = World(self.directory / "world")
        self.failure: BaseException | None = None

    def act(self, operation: Callable[..., object], **named: Any) -> None:
        """Do an operation; stores and lakes are given as numbers."""
        if time.monotonic() > tally.deadline:
            return
        try:
            operation(self.world, **{name: self.chosen(name, value) for name, value in named.items()})
            self.world.check_bytes()
        except BaseException as error:
            self.failure = error
            raise

    def teardown(self) -> None:
        try:
            if self.failure is None:
                self.act(check_end)
        finally:
            tally.take(self.world, self.failure)
            shutil.rmtree(self.directory)

    def chosen(self, name: str, value: Any) -> Any:
        choices = {"store": self.world.stores, **dict.fromkeys(_LAKES, self.world.mounted)}.get(name)
        return value if choices is None or value is None else choices[value % len(choices)]

    @initialize()
    def begin(self) -> None:
        self.act(do.begin)

    @rule(store=NUMBER, kill=KILL)
    def day(self, store: int, kill: int | None) -> None:
        self.act(do.seal, store=store, count=2)
        self.act(do.clean, store=store, lake=0, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, kill=KILL)
    def day_with_mending(self, store: int, lake: int, kill: int | None) -> None:
        """Clean; where that is refused, do what the refusal names, and clean again."""
        self.act(do.seal, store=store, count=1)
        self.act(do.clean_with_mending, store=store, lake=lake, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, second=NUMBER, kill=KILL)
    def day_with_second_lake(self, store: int, lake: int, second: int, kill: int | None) -> None:
        self.act(do.seal, store=store, count=1)
        self.act(do.clean, store=store, lake=lake, second=second, most=2, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, kill=KILL)
    def archive(self, store: int, lake: int, kill: int | None) -> None:
        self.act(do.seal, store=store, count=1)
        self.act(do.archive, store=store, lake=lake, kill=kill)

    @rule(number=NUMBER, kill=KILL)
    def resume(self, number: int, kill: int | None) -> None:
        self.act(do.resume, number=number, kill=kill)

    @rule(what=st.sampled_from(sorted(do.TO_LAKES)), lake=NUMBER, kill=KILL)
    def work_on_lake(self, what: str, lake: int, kill: int | None) -> None:
        self.act(do.TO_LAKES[what], lake=lake, kill=kill)

    @rule(lake=NUMBER, days=st.sampled_from([3, 0]), kill=KILL)
    def collect_garbage(self, lake: int, days: int, kill: int | None) -> None:
        self.act(do.collect_garbage, lake=lake, days=days, kill=kill)

    @rule(kill=KILL)
    def follow_advice(self, kill: int | None) -> None:
        self.act(do.follow_advice, kill=kill)

    @rule(what=st.sampled_from(sorted(TO_DIRECTORIES)), lake=NUMBER, other=NUMBER, kill=KILL, then=THEN)
    def move_things(self, what: str, lake: int, other: int, kill: int | None, then: str) -> None:
        self.act(TO_DIRECTORIES[what], lake=lake, other=other, kill=kill)
        self.act(do.THEN[then], store=0, lake=lake)

    @rule(lake=NUMBER)
    def back_up(self, lake: int) -> None:
        self.act(do.back_up, lake=lake)

    @rule(lake=NUMBER, databases=st.sampled_from(sorted(do.DATABASES)), then=THEN)
    def roll_back(self, lake: int, databases: str, then: str) -> None:
        self.act(do.roll_back, lake=lake, databases=databases)
        self.act(do.THEN[then], store=0, lake=lake)

    @rule(lake=NUMBER, databases=st.sampled_from(sorted(do.DATABASES)), then=THEN)
    def lose(self, lake: int, databases: str, then: str) -> None:
        self.act(do.lose, lake=lake, databases=databases)
        self.act(do.THEN[then], store=0, lake=lake)

    @rule(what=st.sampled_from(sorted(do.TO_STORES)), store=NUMBER, lake=NUMBER, kill=KILL)
    def decide(self, what: str, store: int, lake: int, kill: int | None) -> None:
        self.act(do.TO_STORES[what], store=store, lake=lake, kill=kill)
