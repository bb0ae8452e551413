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
from tests.histories.model import World

NUMBER = st.integers(0, 5)
YES = st.booleans()
KILL = st.one_of(st.none(), st.integers(0, 40), st.integers(0, 140))
WHAT = st.sampled_from(sorted(do.DATABASES))
_LAKES = ("lake", "second", "other", "target")
_MEMORY = Path("/dev/shm")

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

    # The engine's daily work comes more often than anything else.

    @rule(store=NUMBER, lake=NUMBER, count=st.integers(1, 2), kill=KILL)
    def day(self, store: int, lake: int, count: int, kill: int | None) -> None:
        self.act(do.seal, store=store, count=count)
        self.act(do.clean, store=store, lake=lake, kill=kill)

    @rule(store=NUMBER, kill=KILL)
    def day_in_first_lake(self, store: int, kill: int | None) -> None:
        self.act(do.seal, store=store, count=1)
        self.act(do.clean, store=store, lake=0, kill=kill)

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

    @rule(kill=KILL)
    def follow_advice(self, kill: int | None) -> None:
        self.act(do.follow_advice, kill=kill)

    @rule(store=NUMBER, lake=NUMBER)
    def clean_without_archive(self, store: int, lake: int) -> None:
        self.act(do.clean, store=store, lake=lake, most=1, off=True)

    @rule(store=NUMBER, lake=NUMBER)
    def waive(self, store: int, lake: int) -> None:
        self.act(do.waive, store=store, lake=lake)

    @rule(store=NUMBER, lake=NUMBER)
    def accept_loss(self, store: int, lake: int) -> None:
        self.act(do.accept_loss, store=store, lake=lake)

    @rule(store=NUMBER, lake=NUMBER, renew=YES, with_store=YES, kill=KILL)
    def verify(self, store: int, lake: int, renew: bool, with_store: bool, kill: int | None) -> None:
        self.act(do.verify, lake=lake, renew=renew, store=store if with_store else None, kill=kill)

    @rule(lake=NUMBER, days=st.sampled_from([0, 3, 3]), kill=KILL)
    def collect_garbage(self, lake: int, days: int, kill: int | None) -> None:
        self.act(do.collect_garbage, lake=lake, days=days, kill=kill)

    @rule(lake=NUMBER, kill=KILL)
    def undo_garbage(self, lake: int, kill: int | None) -> None:
        self.act(do.undo_garbage, lake=lake, kill=kill)

    @has_maintain
    @rule(lake=NUMBER, kill=KILL)
    def maintain(self, lake: int, kill: int | None) -> None:
        self.act(do.maintain, lake=lake, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, force=YES, kill=KILL)
    def adopt(self, store: int, lake: int, force: bool, kill: int | None) -> None:
        self.act(do.adopt, store=store, lake=lake, force=force, kill=kill)

    @rule(store=NUMBER, lake=NUMBER, new=YES, kill=KILL)
    def stamp(self, store: int, lake: int, new: bool, kill: int | None) -> None:
        self.act(do.stamp, store=store, lake=lake, new=new, kill=kill)

    # Lakes as directories

    @rule()
    def new_lake(self) -> None:
        self.act(do.new_lake)

    @rule(lake=NUMBER, kill=KILL)
    def make_lake_in_place(self, lake: int, kill: int | None) -> None:
        self.act(do.make_lake_in_place, lake=lake, kill=kill)

    @rule(lake=NUMBER)
    def share_warehouse(self, lake: int) -> None:
        self.act(do.share_warehouse, lake=lake)

    @rule(lake=NUMBER)
    def copy_plainly(self, lake: int) -> None:
        self.act(do.copy_plainly, lake=lake)

    @rule(lake=NUMBER, kill=KILL)
    def copy_by_command(self, lake: int, kill: int | None) -> None:
        self.act(do.copy_by_command, lake=lake, kill=kill)

    @rule(lake=NUMBER, to=NUMBER, kill=KILL)
    def copy_again(self, lake: int, to: int, kill: int | None) -> None:
        self.act(do.copy_again, lake=lake, target=to, kill=kill)

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
        self.act(do.mend, lake=lake, named=named, kill=kill)

    @rule(lake=NUMBER)
    def move(self, lake: int) -> None:
        self.act(do.move, lake=lake)

    @rule(lake=NUMBER, other=NUMBER)
    def swap(self, lake: int, other: int) -> None:
        self.act(do.swap, lake=lake, other=other)

    @rule(lake=NUMBER)
    def unmount(self, lake: int) -> None:
        self.act(do.unmount, lake=lake)

    @rule(number=NUMBER)
    def mount(self, number: int) -> None:
        self.act(do.mount_one, number=number)

    # Catalogs and journals

    @rule(lake=NUMBER)
    def back_up(self, lake: int) -> None:
        self.act(do.back_up, lake=lake)

    @rule(number=NUMBER, what=WHAT)
    def roll_back(self, number: int, what: str) -> None:
        self.act(do.roll_back, number=number, what=what)

    @rule(lake=NUMBER, what=WHAT)
    def lose(self, lake: int, what: str) -> None:
        self.act(do.lose, lake=lake, what=what)

    # Other engines, brokers, and stores as directories

    @rule(lake=NUMBER)
    def compact(self, lake: int) -> None:
        self.act(do.compact, lake=lake)

    @rule(lake=NUMBER)
    def expire(self, lake: int) -> None:
        self.act(do.expire, lake=lake)

    @rule()
    def new_store(self) -> None:
        self.act(do.new_store)

    @rule(store=NUMBER, keep=st.integers(0, 2))
    def recover(self, store: int, keep: int) -> None:
        self.act(do.recover, store=store, keep=keep)

    @rule(store=NUMBER)
    def delete_oldest(self, store: int) -> None:
        self.act(do.delete_oldest, store=store)

    @rule(store=NUMBER)
    def copy_store(self, store: int) -> None:
        self.act(do.copy_store, store=store)

    @rule(store=NUMBER)
    def move_store(self, store: int) -> None:
        self.act(do.move_store, store=store)

    @rule(store=NUMBER)
    def lose_stamp(self, store: int) -> None:
        self.act(do.lose_stamp, store=store)
