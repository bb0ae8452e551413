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
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.histories import operations as do
from tests.histories.check import check_end
from tests.histories.model import Lake, Store, World

NUMBER = st.integers(0, 5)
YES = st.booleans()
KILL = st.one_of(st.none(), st.none(), st.integers(0, 150))
WHAT = st.sampled_from(sorted(do.DATABASES))
_MEMORY = Path("/dev/shm")

has_lake_commands = precondition(lambda _: do.HAS_LAKE_COMMANDS)
has_maintain = precondition(lambda _: do.HAS_MAINTAIN)


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
        self.histories += 1
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

    def act(self, operation: Callable[..., object], *args: Any, **named: Any) -> None:
        if time.monotonic() > tally.deadline:
            return
        try:
            operation(self.world, *args, **named)
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

    def store(self, number: int) -> Store:
        return self.world.stores[number % len(self.world.stores)]

    def lake(self, number: int) -> Lake:
        return self.world.mounted[number % len(self.world.mounted)]

    @initialize()
    def begin(self) -> None:
        self.act(do.begin)

    # The engine's daily work comes more often than anything else.

    @rule(store=NUMBER, lake=NUMBER, count=st.integers(1, 2), kill=KILL)
    def day(self, store: int, lake: int, count: int, kill: int | None) -> None:
        self.act(do.seal, self.store(store), count)
        self.act(do.clean, self.store(store), self.lake(lake), kill=kill)

    @rule(store=NUMBER, kill=KILL)
    def day_in_first_lake(self, store: int, kill: int | None) -> None:
        self.act(do.seal, self.store(store), 1)
        self.act(do.clean, self.store(store), self.lake(0), kill=kill)

    @rule(store=NUMBER, lake=NUMBER, second=NUMBER, kill=KILL)
    def day_with_second_lake(self, store: int, lake: int, second: int, kill: int | None) -> None:
        self.act(do.seal, self.store(store), 1)
        self.act(do.clean, self.store(store), self.lake(lake), self.lake(second), most=2, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, kill=KILL)
    def archive(self, store: int, lake: int, kill: int | None) -> None:
        self.act(do.seal, self.store(store), 1)
        self.act(do.archive, self.store(store), self.lake(lake), kill=kill)

    @rule(number=NUMBER, kill=KILL)
    def resume(self, number: int, kill: int | None) -> None:
        self.act(do.resume, number, kill)

    @rule(kill=KILL)
    def follow_advice(self, kill: int | None) -> None:
        self.act(do.follow_advice, kill)

    @rule(store=NUMBER, lake=NUMBER)
    def clean_without_archive(self, store: int, lake: int) -> None:
        self.act(do.clean, self.store(store), self.lake(lake), most=1, off=True)

    @rule(store=NUMBER, lake=NUMBER)
    def waive(self, store: int, lake: int) -> None:
        self.act(do.waive, self.store(store), self.lake(lake))

    @rule(store=NUMBER, lake=NUMBER)
    def accept_loss(self, store: int, lake: int) -> None:
        self.act(do.accept_loss, self.store(store), self.lake(lake))

    @rule(store=NUMBER, lake=NUMBER, renew=YES, with_store=YES, kill=KILL)
    def verify(self, store: int, lake: int, renew: bool, with_store: bool, kill: int | None) -> None:
        chosen = self.store(store) if with_store else None
        self.act(do.verify, self.lake(lake), renew=renew, store=chosen, kill=kill)

    @rule(lake=NUMBER, days=st.sampled_from([0, 3, 3]), kill=KILL)
    def collect_garbage(self, lake: int, days: int, kill: int | None) -> None:
        self.act(do.collect_garbage, self.lake(lake), days=days, kill=kill)

    @has_lake_commands
    @rule(lake=NUMBER, kill=KILL)
    def undo_garbage(self, lake: int, kill: int | None) -> None:
        self.act(do.undo_garbage, self.lake(lake), kill)

    @has_maintain
    @rule(lake=NUMBER, kill=KILL)
    def maintain(self, lake: int, kill: int | None) -> None:
        self.act(do.maintain, self.lake(lake), kill)

    @rule(store=NUMBER, lake=NUMBER, force=YES, kill=KILL)
    def adopt(self, store: int, lake: int, force: bool, kill: int | None) -> None:
        self.act(do.adopt, self.store(store), self.lake(lake), force=force, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, new=YES, kill=KILL)
    def stamp(self, store: int, lake: int, new: bool, kill: int | None) -> None:
        self.act(do.stamp, self.store(store), self.lake(lake), new=new, kill=kill)

    # Lakes as directories

    @rule()
    def new_lake(self) -> None:
        self.act(do.new_lake)

    @rule(lake=NUMBER, kill=KILL)
    def make_lake_in_place(self, lake: int, kill: int | None) -> None:
        self.act(do.make_lake_in_place, self.lake(lake), kill)

    @rule(lake=NUMBER)
    def share_warehouse(self, lake: int) -> None:
        self.act(do.share_warehouse, self.lake(lake))

    @rule(lake=NUMBER)
    def copy_plainly(self, lake: int) -> None:
        self.act(do.copy_plainly, self.lake(lake))

    @has_lake_commands
    @rule(lake=NUMBER, kill=KILL)
    def copy_by_command(self, lake: int, kill: int | None) -> None:
        self.act(do.copy_by_command, self.lake(lake), kill)

    @has_lake_commands
    @rule(lake=NUMBER, to=NUMBER, kill=KILL)
    def copy_again(self, lake: int, to: int, kill: int | None) -> None:
        self.act(do.copy_again, self.lake(lake), self.lake(to), kill)

    @has_lake_commands
    @rule(
        lake=NUMBER,
        named=st.sampled_from(
            [
                "lake rebuild",
                "lake relocate",
                "lake promote",
                "lake info",
                "lake rebuild --take-over",
                "lake relocate --take-over",
                "lake rebuild --dry-run",
            ]
        ),
        kill=KILL,
    )
    def mend(self, lake: int, named: str, kill: int | None) -> None:
        self.act(do.mend, self.lake(lake), named, kill=kill)

    @has_lake_commands
    @rule(lake=NUMBER)
    def move(self, lake: int) -> None:
        self.act(do.move, self.lake(lake))

    @has_lake_commands
    @rule(lake=NUMBER, other=NUMBER)
    def swap(self, lake: int, other: int) -> None:
        self.act(do.swap, self.lake(lake), self.lake(other))

    @rule(lake=NUMBER)
    def unmount(self, lake: int) -> None:
        self.act(do.unmount, self.lake(lake))

    @rule(number=NUMBER)
    def mount(self, number: int) -> None:
        away = do.pick([lake for lake in self.world.lakes if lake.path != lake.home], number)
        if away is not None:
            self.act(do.mount, away)

    # Catalogs and journals

    @rule(lake=NUMBER)
    def back_up(self, lake: int) -> None:
        self.act(do.back_up, self.lake(lake))

    @rule(number=NUMBER, what=WHAT)
    def roll_back(self, number: int, what: str) -> None:
        self.act(do.roll_back, number, what if do.HAS_LAKE_COMMANDS else "journal")

    @rule(lake=NUMBER, what=WHAT)
    def lose(self, lake: int, what: str) -> None:
        self.act(do.lose, self.lake(lake), what if do.HAS_LAKE_COMMANDS else "journal")

    # Other engines, brokers, and stores as directories

    @rule(lake=NUMBER)
    def compact(self, lake: int) -> None:
        self.act(lambda world: world.verb("compact", self.lake(lake).path))

    @rule(lake=NUMBER)
    def expire(self, lake: int) -> None:
        self.act(lambda world: world.verb("expire", self.lake(lake).path))

    @rule()
    def new_store(self) -> None:
        self.act(do.new_store)

    @rule(store=NUMBER, keep=st.integers(0, 2))
    def recover(self, store: int, keep: int) -> None:
        self.act(do.recover, self.store(store), keep)

    @rule(store=NUMBER)
    def delete_oldest(self, store: int) -> None:
        self.act(do.delete_oldest, self.store(store))

    @rule(store=NUMBER)
    def copy_store(self, store: int) -> None:
        self.act(do.copy_store, self.store(store))

    @rule(store=NUMBER)
    def move_store(self, store: int) -> None:
        self.act(do.move_store, self.store(store))

    @rule(store=NUMBER)
    def lose_stamp(self, store: int) -> None:
        self.act(do.lose_stamp, self.store(store))
