from __future__ import annotations

from pathlib import Path

from storage_engine.rocketmq.beside.finding import saved_settings


def test_broker_conf_tells_what_a_restart_brings_back(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"# \xe4\nbrokerName = b\nfileReservedTime=72 \ncleanFileForciblyEnable : true\n")
    assert saved_settings(str(conf)).values == {"fileReservedTime": "72", "cleanFileForciblyEnable": "true"}


def test_what_can_not_be_read_is_unknown(tmp_path: Path) -> None:
    missing = saved_settings(str(tmp_path / "none.conf"))
    assert missing.values is None
    assert "No such file" in missing.problem
    damaged = tmp_path / "broker.conf"
    damaged.write_text("fileReservedTime=\\uXYZ1\n")
    assert saved_settings(str(damaged)).values is None
    assert saved_settings(None).path is None
