"""Go on from a hold of the released package while the broker runs on: renew it, finish its run, end it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.stores import unpack
from tests.services.command_line import run_command
from tests.services.released import Kill, Released
from tests.services.released_state import MIB, RUN, State, expired, leases_run_out

pytestmark = pytest.mark.integration

SETTINGS = {
    "fileReservedTime": 48,
    "cleanResourceInterval": 200,
    "cleanFileForciblyEnable": True,
    # A broker walks the whole wheel each time that it is asked how it is.
    "timerWheelEnable": False,
}
MARKER = ".storage-engine-hold"
CLEAN = ("clean", "--manual", "--max-segments", 2, "--run-key", RUN)

HALF_HELD = Kill("hold", "commit", 14)
"""The fence has its new time, the broker its new setting; neither is confirmed yet."""
HALF_RELEASED = Kill("release", "commit", 16)
"""The broker has deleted what it was told to; nothing says so yet."""


@dataclass(frozen=True)
class Live:
    """A store whose broker runs on.

    :param mtimes_ns: mtime of each sealed segment, by file name, before anything held the store.
    """

    broker: Broker
    state: State
    mtimes_ns: Mapping[str, int]

    def words(self, command: str, *more: object) -> list[object]:
        where = (self.state.store, "--lake", self.state.lake, "--broker", self.broker.client.address)
        return [command, *where, "--allow-same-disk", "--may-change-settings", "--json", *more]

    def run(self, command: str, *more: object) -> Any:
        """Run today's command, which has to end well; returns its JSON."""
        outcome = run_command(*self.words(command, *more))
        assert outcome.exit_code == 0, outcome.out + outcome.err
        return outcome.json

    def is_as_before(self) -> bool:
        """Whether nothing of a hold is left: in the times of what is there, in the settings, in the store."""
        there = mtimes_ns(self.state)
        return (
            there == {name: self.mtimes_ns[name] for name in there}
            and self.broker.client.config()["cleanFileForciblyEnable"] == "true"
            and not (self.state.store / MARKER).exists()
        )


def mtimes_ns(state: State) -> dict[str, int]:
    *sealed, _active = sorted(state.segments.iterdir())
    return {path.name: path.stat().st_mtime_ns for path in sealed}


@pytest.fixture
def live(tmp_path: Path, name_server_port: int) -> Iterator[Live]:
    state = expired(unpack("clean-stop", tmp_path / "store"), tmp_path / "lake")
    start = running_broker(
        state.store,
        tmp_path / "broker",
        name_server_port,
        SETTINGS,
        main_class=CLEANS_AT_ONCE,
    )
    with start as broker:
        yield Live(broker, state, mtimes_ns(state))


def test_a_hold_that_was_half_made_is_ended(live: Live, released: Released) -> None:
    released.killed_cli(HALF_HELD, *live.words("hold"))
    leases_run_out(live.state)
    assert not live.is_as_before()
    live.run("unmanage")
    assert live.is_as_before()
    assert len(live.state.there) == 8


def test_a_held_stores_run_is_finished_and_its_hold_renewed_and_ended(
    live: Live, released: Released, tmp_path: Path
) -> None:
    released.cli(*live.words("hold"))
    held = released.cli(*live.words("inspect")).json["hold"]
    assert (held["held"], held["fence_offset"]) == (True, 0)
    released.killed_cli(HALF_RELEASED, *live.words(*CLEAN))
    leases_run_out(live.state)
    assert live.state.there[0] == 2 * MIB
    assert live.state.lost(tmp_path / "after-the-kill") == []

    report = live.run(*CLEAN)
    assert (report["outcome"], report["hold"]["held"], report["hold"]["disturbances"]) == ("done", True, [])
    assert [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"] == [0, MIB]
    assert live.run("hold")["status"]["held"]
    live.run("unmanage")
    assert live.is_as_before()
    assert live.state.lost(tmp_path / "at-the-end") == []
