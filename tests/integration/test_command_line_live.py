"""A person at a shell holds, cleans and leaves a store whose broker runs on the whole time.

With today's package alone, and going on from a hold of the released one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.main import main
from storage_engine.core.durable import DIRECTORY
from storage_engine.hooks.check import check_store
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.store.managed_store import ManagedStore
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.stores import unpack
from tests.lakes import make_lakes
from tests.services.command_line import run_command
from tests.services.released import Kill, Released
from tests.services.released_state import RUN, State, expired, leases_run_out

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("cleans_at_once"),
    pytest.mark.usefixtures("plainly"),
]

SETTINGS = {
    "fileReservedTime": 48,
    "cleanResourceInterval": 100,
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
class Shell:
    """The command line as used for one store, which its broker serves."""

    broker: Broker
    lake: Path

    def run(self, command: str, *words: object, code: int = 0, allowed: bool = True) -> Any:
        """A command's JSON, which ends with this exit code."""
        options = ["--broker", self.broker.client.address, "--json", *words]
        if allowed:
            options += ["--allow-same-disk", "--may-change-settings", "--time-zone", "UTC"]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main([command, str(self.broker.store), *map(str, options)])
        assert stopped.value.code == code, out.getvalue() + err.getvalue()
        found = json.loads(out.getvalue())
        assert found["kind"] == ("error" if "error" in found else command)
        return found

    def mtimes(self) -> dict[str, int]:
        log = self.broker.store / "commitlog"
        return {path.name: path.stat().st_mtime_ns for path in sorted(log.iterdir())[:-1]}


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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Broker]:
    """Eight segments, of which the first test to delete some leaves six."""
    work = tmp_path_factory.mktemp("shell")
    store = unpack("clean-stop", work / "store")
    expired(store, work)
    with running_broker(
        store, work / "broker", name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE
    ) as broker:
        yield broker


@pytest.fixture
def live(broker: Broker, tmp_path: Path) -> Live:
    state = expired(broker.store, tmp_path / "lake")
    return Live(broker, state, mtimes_ns(state))


@pytest.fixture
def shell(broker: Broker, tmp_path: Path) -> Shell:
    expired(broker.store, tmp_path / "lake")
    make_lake(LakeConfig.local(tmp_path / "lake"))
    return Shell(broker, tmp_path / "lake")


@pytest.mark.again
def test_a_hold_that_was_half_made_is_ended(live: Live, released: Released) -> None:
    released.killed_cli(HALF_HELD, *live.words("hold"))
    leases_run_out(live.state)
    assert not live.is_as_before()
    live.run("unmanage")
    assert live.is_as_before()
    assert len(live.state.there) == 8


@pytest.mark.again
def test_a_held_stores_run_is_finished_and_its_hold_renewed_and_ended(
    live: Live, released: Released, tmp_path: Path
) -> None:
    go_on_from_a_held_run(live, released, tmp_path)


def go_on_from_a_held_run(live: Live, released: Released, tmp_path: Path) -> None:
    """Let a released package hold the store and be killed during a release; today's ends both."""
    first, second, third, *_ = live.state.there
    released.cli(*live.words("hold"))
    held = released.cli(*live.words("inspect")).json["hold"]
    assert (held["held"], held["fence_offset"]) == (True, first)
    released.killed_cli(HALF_RELEASED, *live.words(*CLEAN))
    leases_run_out(live.state)
    assert live.state.there[0] == third
    assert live.state.lost(tmp_path / "after-the-kill") == []

    report = live.run(*CLEAN)["report"]
    assert (report["outcome"], report["hold"]["held"], report["hold"]["disturbances"]) == ("done", True, [])
    gone = [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"]
    assert gone == [first, second]
    assert live.run("hold")["status"]["held"]
    live.run("unmanage")
    assert live.is_as_before()
    assert live.state.lost(tmp_path / "at-the-end") == []


def test_a_store_is_held_cleaned_and_left_while_its_broker_runs(shell: Shell, tmp_path: Path) -> None:
    first = shell.mtimes()
    lake = ("--lake", shell.lake)
    seen = shell.run("inspect", allowed=False)
    assert (seen["broker"]["role"], seen["hold"]["held"]) == ("ASYNC_MASTER", False)

    asked = shell.run("simulate", "--ingest-per-day", "1GB", "--set", "fileReservedTime=1", allowed=False)
    config = shell.broker.client.config()
    assert asked["today"]["settings"]["fileReservedTime"] == config["fileReservedTime"]
    assert asked["changed"]["settings"]["fileReservedTime"] == "1"
    assert asked["today"]["course"]["times_ms"]

    alone = run_command("doctor", shell.broker.store, "--json").json
    assert alone["broker"]["running"]
    assert "running" in {one["kind"] for one in alone["findings"]}
    told = _told(shell, allowed=False)
    assert (told["broker"]["running"], told["broker"]["version"]) == (True, seen["broker"]["version"])
    sources = {one["name"]: one["source"] for one in told["settings"]}
    assert sources["fileReservedTime"] == "running-broker"
    assert {"not-held", "same-disk"} <= {one["kind"] for one in told["findings"]}

    empty = set(shell.lake.rglob("*"))
    refused = shell.run("clean", *lake, "--manual", code=2, allowed=False)
    assert "--allow-same-disk" in refused["error"]["message"]
    assert set(shell.lake.rglob("*")) == empty

    held = shell.run("hold", *lake)
    assert held["status"]["held"]
    assert shell.broker.client.config()["cleanFileForciblyEnable"] == "false"
    assert shell.mtimes() != first
    renewed = shell.run("monitor", *lake)
    assert (renewed["hold"]["held"], renewed["alarms"], renewed["lag_error"]) == (True, [], "")
    assert renewed["hold"]["ends_at_ms"] >= held["status"]["ends_at_ms"]

    told = _told(shell)
    assert not {"not-held", "clock", "dead-hold", "foreign-hold"} & {one["kind"] for one in told["findings"]}
    assert told["next"]["command"].startswith("storage-engine archive")
    assert f"--broker {shell.broker.client.address}" in told["next"]["command"]

    planned = shell.run("plan", *lake, "--manual")
    assert planned["delete_offsets"] == [int(name) for name in first]

    make_lake(LakeConfig.local(tmp_path / "other"))
    other = shell.run("hold", "--lake", tmp_path / "other", code=1)
    assert ".storage-engine-hold" in other["error"]["message"]

    new_min_offset = int(list(first)[3])
    report = shell.run("clean", *lake, "--manual", "--max-segments", 3)["report"]
    assert (report["outcome"], report["hold"]["held"]) == ("done", True)
    assert report["new_min_offset"] == new_min_offset
    assert shell.broker.client.runtime_info().commitlog_min_offset == new_min_offset
    assert list(shell.mtimes()) == list(first)[3:]
    (page,) = (shell.lake / "reports").rglob("report.html")
    assert "Hold beside the running broker" in page.read_text()
    assert shell.run("lag", allowed=False)["rows"]
    assert shell.run("verify", *lake, "--level", "store")["stores"][0]["overall"] != "FAILURE"

    live = LiveBroker(address=shell.broker.client.address, allow_same_disk=True)
    store = ManagedStore.local("s", str(shell.broker.store), tmp_path / "else", live=live)
    said = check_store(make_lakes(store))
    assert "ASYNC_MASTER" in said
    assert "a hold would be refused" in said

    shell.run("unmanage", *lake)
    assert shell.mtimes() == {name: first[name] for name in list(first)[3:]}
    assert shell.broker.client.config()["cleanFileForciblyEnable"] == "true"
    assert not shell.run("inspect", *lake)["hold"]["held"]


def _told(shell: Shell, *, allowed: bool = True) -> Any:
    """Return what doctor says, which leaves the broker, the store and its lake as they were."""
    before = shell.mtimes(), shell.broker.client.config(), sorted(shell.lake.rglob("*"))
    words = ["--lake", shell.lake, "--broker", shell.broker.client.address]
    words += ["--allow-same-disk", "--may-change-settings"] if allowed else []
    outcome = run_command("doctor", shell.broker.store, *words, "--time-zone", "UTC", "--json")
    assert outcome.exit_code == outcome.json["urgent"], outcome.out + outcome.err
    assert (shell.mtimes(), shell.broker.client.config(), sorted(shell.lake.rglob("*"))) == before
    return outcome.json


@pytest.mark.again
def test_a_held_run_of_the_package_before_the_seam_is_finished_and_ended(
    live: Live, before_the_seam: Released, tmp_path: Path
) -> None:
    # Today's stamp, of the tests before, names what that package doesn't know; it would refuse the store.
    (live.state.store / DIRECTORY / "stamp.json").unlink(missing_ok=True)
    before_the_seam.cli("init-lake", "--lake", live.state.lake)
    go_on_from_a_held_run(live, before_the_seam, tmp_path)
