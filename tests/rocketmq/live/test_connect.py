from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.format.broker_config import CLEAN_FORCIBLY_PROPERTY, load_broker_config
from storage_engine.rocketmq.live.connect import local_settings, refuse_other_broker, refuse_slave
from tests.services.lock_holder import lock_held

THERE = {"storePathRootDir": "/home/rocketmq/store", "fileReservedTime": "48"}


def test_paths_below_the_brokers_root_are_below_ours() -> None:
    config = {
        **THERE,
        "storePathCommitLog": "/home/rocketmq/store/commitlog/a,/disk2/commitlog,/home/rocketmq/store/b,",
        "readOnlyCommitLogStorePaths": "/home/rocketmq/store/old",
    }
    assert local_settings(config, "/mnt/b0", {}) == {
        "storePathRootDir": "/mnt/b0",
        "fileReservedTime": "48",
        "storePathCommitLog": "/mnt/b0/commitlog/a,/disk2/commitlog,/mnt/b0/b",
        "readOnlyCommitLogStorePaths": "/mnt/b0/old",
    }


def test_a_neighbour_of_the_root_is_not_below_it() -> None:
    config = {**THERE, "storePathCommitLog": "/home/rocketmq/store2/commitlog"}
    assert local_settings(config, "/mnt/b0", {})["storePathCommitLog"] == "/home/rocketmq/store2/commitlog"


@pytest.mark.parametrize("unset", ["", " "])
def test_a_path_that_the_broker_does_not_name_is_where_it_looks_by_itself(unset: str) -> None:
    settings = local_settings({**THERE, "storePathCommitLog": unset}, "/mnt/b0", {})
    assert settings.keys() == {"storePathRootDir", "fileReservedTime"}


def test_our_paths_win() -> None:
    config = {**THERE, "storePathCommitLog": "/disk2/commitlog"}
    ours = {"storePathCommitLog": "/mnt/disk2/commitlog"}
    assert local_settings(config, "/mnt/b0", ours)["storePathCommitLog"] == "/mnt/disk2/commitlog"


def test_the_disk_levels_that_the_broker_was_started_with_win_over_its_config(tmp_path: Path) -> None:
    config = {"storePathRootDir": str(tmp_path), "diskSpaceCleanForciblyRatio": "80"}
    with lock_held(tmp_path / "lock", f"-D{CLEAN_FORCIBLY_PROPERTY}=0.4", "-Dother=1"):
        settings = local_settings(config, str(tmp_path), {})
        by_name = local_settings(config, str(tmp_path), {CLEAN_FORCIBLY_PROPERTY: "0.5"})
    assert settings == {**config, CLEAN_FORCIBLY_PROPERTY: "0.4"}
    assert load_broker_config(None, settings, root=tmp_path).disk_space_clean_forcibly_percent == 40
    assert by_name[CLEAN_FORCIBLY_PROPERTY] == "0.5"


def test_what_has_no_root_is_no_broker() -> None:
    with pytest.raises(BadInputError, match="expected storePathRootDir"):
        local_settings({"fileReservedTime": "48"}, "/mnt/b0", {})


def test_only_a_master_will_do() -> None:
    refuse_slave({"brokerRole": "SYNC_MASTER"}, "broker:10911")
    with pytest.raises(BadInputError, match=r"broker:10911: expected a master.*Give the master's address"):
        refuse_slave({"brokerRole": "SLAVE"}, "broker:10911")


def test_a_broker_of_another_name_is_refused() -> None:
    refuse_other_broker({"brokerName": "a"}, "a", "broker:10911")
    refuse_other_broker({"brokerName": "a"}, "", "broker:10911")
    with pytest.raises(BadInputError, match="expected broker 'b', found 'a'"):
        refuse_other_broker({"brokerName": "a"}, "b", "broker:10911")
