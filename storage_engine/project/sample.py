"""The sample store: what a real RocketMQ 5.3.3 broker wrote and closed cleanly, made to look its age."""

from __future__ import annotations

import os
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from storage_engine.resources import project_path

RESERVED_HOURS = 72
_ARCHIVE = ("sample/rocketmq-store.tar.xz", "tests/fixtures/rocketmq/clean-stop.tar.xz")
"""Its names in the wheel and in a checkout."""
_OLD_SEGMENTS = 5
_DAYS_OLD = 10


@dataclass(frozen=True, slots=True)
class SampleStore:
    """An unpacked sample.

    :param root: its storePathRootDir.
    :param broker_conf: the config of the broker that it would belong to.
    :param old: segments that are past their reserved time, oldest first.
    """

    root: Path
    broker_conf: Path
    old: tuple[Path, ...]


def unpack_sample_store(directory: Path) -> SampleStore:
    """Unpack the sample into ``directory/store`` and date its oldest segments back.

    Only modification times are set, since a broker tells a segment's age by nothing else; no byte of
    what the broker wrote is touched. The other segments are as old as the unpacking.
    """
    with tarfile.open(project_path(*_ARCHIVE)) as archive:
        archive.extractall(directory, filter="data")
    (unpacked,) = (path for path in directory.iterdir() if (path / "commitlog").is_dir())
    root = unpacked.rename(directory / "store")
    segments = sorted((root / "commitlog").iterdir())
    old = segments[:_OLD_SEGMENTS]
    now = time.time()
    for path in segments:
        modified = now - _DAYS_OLD * 86400 if path in old else now
        os.utime(path, (modified, modified))
    broker_conf = directory / "broker.conf"
    broker_conf.write_text(_broker_conf(root))
    return SampleStore(root=root, broker_conf=broker_conf, old=tuple(old))


def _broker_conf(root: Path) -> str:
    """Every hour is a deleteWhen hour, so that the sample's window is open whenever somebody looks."""
    hours = ";".join(f"{hour:02}" for hour in range(24))
    return (
        "brokerClusterName=DefaultCluster\n"
        "brokerName=broker-a\n"
        "brokerId=0\n"
        f"storePathRootDir={root}\n"
        f"deleteWhen={hours}\n"
        f"fileReservedTime={RESERVED_HOURS}\n"
    )
