"""A running broker's settings, as they are in effect, for a store that lies under one of our paths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from storage_engine.exceptions import BadInputError

ROOT = "storePathRootDir"
COMMIT_LOG = "storePathCommitLog"
READ_ONLY_COMMIT_LOG = "readOnlyCommitLogStorePaths"
NAME = "brokerName"
CLUSTER = "brokerClusterName"
ROLE = "brokerRole"
RESERVED = "fileReservedTime"
SLAVE = "SLAVE"


def local_settings(config: Mapping[str, str], root: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """The broker's settings with its paths as they are here.

    Paths below the broker's root are taken below ours. Others have to be the same here, unless
    ``overrides`` name them.

    :param config: the broker's, by ``BrokerAdmin.config``.
    :param root: storePathRootDir as it is mounted here.
    :param overrides: ours, which win: local paths, and JVM properties that no config shows.
    :raises BadInputError: the broker says of no root.
    """
    there = config.get(ROOT, "").strip()
    if not there:
        raise BadInputError(f"The broker's config: expected {ROOT}, found none. Check what listens there.")
    settings = dict(config)
    for key in (COMMIT_LOG, READ_ONLY_COMMIT_LOG):
        if value := config.get(key, "").strip():
            settings[key] = ",".join(_local(path, there, root) for path in value.rstrip(",").split(","))
        else:
            settings.pop(key, None)
    settings[ROOT] = root
    if config.get(RESERVED, "").startswith("-"):
        # What a running broker takes for a file that is younger than now; broker.conf is refused with it.
        settings[RESERVED] = "0"
    return settings | dict(overrides)


def refuse_slave(config: Mapping[str, str], address: str) -> None:
    """
    :raises BadInputError: the broker is a slave: it follows its master and deletes by its own clock.
    """
    if config.get(ROLE) == SLAVE:
        raise BadInputError(
            f"{address}: expected a master, found a slave (brokerRole=SLAVE). Nothing was changed. Give the "
            "master's address, or name servers and the broker's name."
        )


def refuse_other_broker(config: Mapping[str, str], name: str, address: str) -> None:
    """
    :param name: of the broker that is expected there; empty: any.
    :raises BadInputError: the broker has another name.
    """
    found = config.get(NAME, "")
    if name and found != name:
        raise BadInputError(
            f"{address}: expected broker {name!r}, found {found!r}. Nothing was changed. Check the address "
            "and the broker's name."
        )


def _local(path: str, there: str, root: str) -> str:
    try:
        below = PurePosixPath(path).relative_to(PurePosixPath(there))
    except ValueError:
        return path
    return str(PurePosixPath(root) / below)
