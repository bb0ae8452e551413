"""An empty lake that was made for no kind of broker takes that of the first store, once."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.catalog import check_broker, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.writing import settle_broker
from storage_engine.lake.move.making import make_lake
from tests.kafka_fixture import unpack
from tests.rounds import rounds
from tests.services.command_line import run_command

RUNNER = Path(__file__).parents[1] / "making_kill_runner.py"
KILLS = rounds("STORAGE_ENGINE_MAKING_KILLS", 4, 1_000)
"""At most so many; more than there are operations means every one of them."""
TABLES = {"kafka": "records", "rocketmq": "messages"}


def tables_of(lake: Path) -> set[str]:
    opened = open_lake(LakeConfig.local(lake))
    return {name for _, name in opened.catalog.list_tables(opened.config.namespace)}


@pytest.mark.parametrize("broker", TABLES)
def test_a_lake_takes_the_kind_of_the_first_store_and_no_other(broker: str, tmp_path: Path) -> None:
    lake = make_lake(LakeConfig.local(tmp_path / "lake"), "")
    (other,) = set(TABLES) - {broker}
    settle_broker(lake, broker)
    assert (lake.broker, tables_of(tmp_path / "lake")) == (broker, {TABLES[broker], "segments"})
    for opened in (lake, open_lake(lake.config)):
        with pytest.raises(BadInputError, match=f"segments of {other}, found one for those of {broker}"):
            settle_broker(opened, other)
    assert make_lake(lake.config).rows_table == TABLES[broker]


def test_who_opened_a_lake_before_its_kind_was_taken_is_told_of_it(tmp_path: Path) -> None:
    early = make_lake(LakeConfig.local(tmp_path / "lake"), "")
    for broker in TABLES:
        check_broker(early, broker)
    settle_broker(open_lake(early.config), "kafka")
    with pytest.raises(BadInputError, match="segments of rocketmq, found one for those of kafka"):
        settle_broker(early, "rocketmq")
    settle_broker(early, "kafka")
    assert early.messages().name()[-1] == "records"


def test_a_lake_that_was_made_for_a_kind_stays_so_while_it_is_empty(tmp_path: Path) -> None:
    lake = make_lake(LakeConfig.local(tmp_path / "lake"), "rocketmq")
    with pytest.raises(BadInputError, match="Nothing was changed"):
        settle_broker(lake, "kafka")
    assert tables_of(tmp_path / "lake") == {"messages", "segments"}


@pytest.mark.again
@pytest.mark.slow
@pytest.mark.timeout(600 if KILLS < 100 else 3600)
def test_taking_a_kind_that_was_killed_is_finished_by_whoever_archives_next(tmp_path: Path) -> None:
    make_lake(LakeConfig.local(tmp_path / "lake"), "")
    done = subprocess.run(
        [sys.executable, str(RUNNER), "settle", str(tmp_path / "lake"), str(tmp_path / "work"), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == [], done.stderr[-4000:]
    assert seen["kills"] >= min(KILLS, len(seen["operations"]))
    assert (seen["end"]["tables"], seen["end"]["marked"]) == (["records", "segments"], [True, True])


@pytest.mark.again
@pytest.mark.slow
def test_of_two_first_archives_of_different_kinds_one_wins_and_the_other_is_told(
    store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    stores = [store_copy("edge-frames"), unpack(tmp_path / "node") / "server.properties"]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    with context.Pool(2, _share, (barrier,)) as pool:
        for number in range(rounds("STORAGE_ENGINE_FIRST_ARCHIVES", 1, 10)):
            lake = tmp_path / f"lake-{number}"
            assert run_command("init-lake", "--lake", lake).exit_code == 0
            said = pool.starmap_async(_archive, [(str(store), str(lake)) for store in stores], 1).get(300)
            assert sorted(code for code, _ in said) == [0, 2], said
            (refused,) = (err for code, err in said if code)
            won, lost = ("rocketmq", "kafka") if said[0][0] == 0 else ("kafka", "rocketmq")
            assert f"expected a lake for segments of {lost}, found one for those of {won}" in refused
            assert tables_of(lake) == {TABLES[won], "segments", "deletions"}
            assert not list(lake.glob(f"warehouse/*/{TABLES[lost]}/**/*.parquet*"))
            (verified,) = run_command("verify", "--lake", lake, "--level", "bytes", "--json").json["stores"]
            assert (verified["overall"], verified["findings"]) == ("OK", [])


def _share(barrier: object) -> None:
    global _barrier
    _barrier = barrier


def _archive(store: str, lake: str) -> tuple[int, str]:
    _barrier.wait(120)
    outcome = run_command("archive", store, "--lake", lake)
    return outcome.exit_code, outcome.err
