"""A person at a shell holds, cleans and leaves a store whose broker runs on the whole time."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli import main
from storage_engine.hooks.check import check_store
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.making import make_lake
from storage_engine.model.live import LiveBroker
from storage_engine.retention.managed_store import ManagedStore
from tests.integration.broker import CLEANS_AT_ONCE, Broker, running_broker
from tests.integration.stores import unpack
from tests.lakes import make_lakes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

SEGMENT_BYTES = 1048576
EXPIRED_NS = 100 * 3600 * 10**9
SETTINGS = {
    "fileReservedTime": 48,
    "cleanResourceInterval": 100,
    "cleanFileForciblyEnable": True,
    # A broker walks the whole wheel each time that it is asked how it is.
    "timerWheelEnable": False,
}


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
        return json.loads(out.getvalue())

    def mtimes(self) -> dict[str, int]:
        log = self.broker.store / "commitlog"
        return {path.name: path.stat().st_mtime_ns for path in sorted(log.iterdir())[:-1]}


@pytest.fixture
def shell(tmp_path: Path, name_server_port: int) -> Iterator[Shell]:
    store = unpack("clean-stop", tmp_path / "store")
    then_ns = time.time_ns() - EXPIRED_NS
    for path in (store / "commitlog").iterdir():
        os.utime(path, ns=(then_ns, then_ns))
    work = tmp_path / "broker"
    with running_broker(store, work, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker:
        make_lake(LakeConfig.local(tmp_path / "lake"))
        yield Shell(broker, tmp_path / "lake")


def test_a_store_is_held_cleaned_and_left_while_its_broker_runs(shell: Shell, tmp_path: Path) -> None:
    first = shell.mtimes()
    lake = ("--lake", shell.lake)
    seen = shell.run("inspect", allowed=False)
    assert (seen["broker"]["role"], seen["hold"]["held"]) == ("ASYNC_MASTER", False)

    empty = set(shell.lake.rglob("*"))
    refused = shell.run("clean", *lake, "--manual", code=2, allowed=False)
    assert "--allow-same-disk" in refused["error"]["message"]
    assert set(shell.lake.rglob("*")) == empty

    held = shell.run("hold", *lake)
    assert held["status"]["held"]
    assert shell.broker.client.config()["cleanFileForciblyEnable"] == "false"
    assert shell.mtimes() != first

    planned = shell.run("plan", *lake, "--manual")
    assert planned["delete_offsets"] == [int(name) for name in first]

    make_lake(LakeConfig.local(tmp_path / "other"))
    other = shell.run("hold", "--lake", tmp_path / "other", code=1)
    assert ".storage-engine-hold" in other["error"]["message"]

    report = shell.run("clean", *lake, "--manual", "--max-segments", 3)
    assert (report["outcome"], report["hold"]["held"]) == ("done", True)
    assert report["new_min_offset"] == 3 * SEGMENT_BYTES
    assert shell.broker.client.runtime_info().commitlog_min_offset == 3 * SEGMENT_BYTES
    assert list(shell.mtimes()) == list(first)[3:]
    (page,) = (shell.lake / "reports").rglob("report.html")
    assert "Hold beside the broker" in page.read_text()
    assert shell.run("lag", allowed=False)
    assert shell.run("verify", *lake, "--level", "store")[0]["overall"] != "FAILURE"

    live = LiveBroker(address=shell.broker.client.address, allow_same_disk=True)
    store = ManagedStore.local("s", str(shell.broker.store), tmp_path / "else", live=live)
    said = check_store(make_lakes(store))
    assert "ASYNC_MASTER" in said
    assert "a hold would be refused" in said

    shell.run("unmanage", *lake)
    assert shell.mtimes() == {name: first[name] for name in list(first)[3:]}
    assert shell.broker.client.config()["cleanFileForciblyEnable"] == "true"
    assert not shell.run("inspect", *lake)["hold"]["held"]
