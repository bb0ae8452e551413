"""What stands in the place of our files in a root: no command hangs over it, or reads without bound."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.hold import WatchLook
from storage_engine.rocketmq.hold import heartbeat, hold_state, marker
from storage_engine.rocketmq.hold.heartbeat import no_watch, watching
from storage_engine.rocketmq.hold.hold_state import read_local
from storage_engine.rocketmq.hold.marker import read_marker
from storage_engine.same_bytes import own_acts, trusted_times
from storage_engine.same_bytes.own_acts import OwnActs, read_own_acts
from storage_engine.shield.index import INDEX, locked_shield, read_index, shield_path

SECONDS = 60.0
HUGE_BYTES = 2 << 30
READ_AT_MOST_BYTES = 512 << 20


def pipe(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    path.write_bytes(b'{"files": [')
    os.truncate(path, HUGE_BYTES)


def nested(path: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def read_shield(root: Path) -> None:
    with locked_shield(root) as directory:
        assert directory is not None
        read_index(directory, root)


READERS: dict[str, Callable[[Path], object]] = {
    f"{DIRECTORY}/{own_acts.NAME}": read_own_acts,
    f"{DIRECTORY}/{trusted_times.NAME}": lambda root: trusted_times.times_are_trusted(root, root),
    f"{DIRECTORY}/{hold_state.RECORD}": read_local,
    f"{DIRECTORY}/{heartbeat.NAME}": no_watch,
    f"{DIRECTORY}/shield/{INDEX}": read_shield,
    marker.NAME: read_marker,
}


def in_time(act: Callable[[], object]) -> object:
    """What an act returns, or the error that it raises; one that waits for a pipe's other end fails."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize("make", [pipe, huge, nested])
@pytest.mark.parametrize("name", READERS)
def test_what_stands_in_the_place_of_one_of_our_files_is_unknown_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(trusted_times, "_answers", {})
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    make(path)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = in_time(lambda: READERS[name](tmp_path))
    if isinstance(found, BaseException):
        assert isinstance(found, StorageEngineError)
        assert path.name in str(found)
    read_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert read_kib < READ_AT_MOST_BYTES >> 10


def test_an_act_is_recorded_anew_where_a_pipe_was(tmp_path: Path) -> None:
    segment, record = tmp_path / "segment", tmp_path / DIRECTORY / own_acts.NAME
    segment.write_bytes(b"x")
    record.parent.mkdir()
    pipe(record)

    def act() -> OwnActs:
        with own_acts.own_acts(tmp_path) as acts, acts.on(segment, mtime_ns=0):
            os.utime(segment, ns=(0, 0))
        return read_own_acts(tmp_path)

    found = in_time(act)
    assert isinstance(found, OwnActs)
    assert [file.paths for file in found.files] == [(str(segment),)]


def test_a_watch_shows_that_it_is_alive_where_a_pipe_was(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    pipe(tmp_path / DIRECTORY / heartbeat.NAME)

    def beat() -> str:
        with watching(tmp_path) as own:
            assert own is not None
            own.beat(WatchLook(time.time_ns() // 10**6))
            return no_watch(tmp_path)

    assert in_time(beat) == ""


def test_a_shield_without_a_readable_record_names_it(tmp_path: Path) -> None:
    shield_path(tmp_path).mkdir(parents=True, mode=0o700)
    pipe(shield_path(tmp_path) / INDEX)
    assert INDEX in str(in_time(lambda: read_shield(tmp_path)))
