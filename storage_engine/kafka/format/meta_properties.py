"""The identity of a log directory, ``meta.properties``, and the marker of a clean stop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import javaproperties

from storage_engine.core.untrusted import MALFORMED
from storage_engine.kafka.format.file_names import corrupt, read_stored

NAME = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
ZOOKEEPER_VERSION = 0
KRAFT_VERSION = 1
_REMEDY = "Bring it back from a backup: a broker doesn't start without it."


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The node and the cluster that a log directory belongs to (MetaProperties).

    :param version: 0 in a cluster with ZooKeeper, 1 in a cluster with KRaft.
    :param directory_id: id of the directory within its node; None if it was formatted before Kafka 3.7.
    """

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None

    @property
    def zookeeper(self) -> bool:
        """Return whether topics and their settings are in ZooKeeper, not on this disk."""
        return self.version == ZOOKEEPER_VERSION


def read_meta_properties(path: Path) -> MetaProperties:
    """Read a log directory's identity.

    :raises CorruptFileError: the file contains no identity.
    :raises OSError: the file can't be read.
    """
    return parse_meta_properties(read_stored(path), str(path))


def parse_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Return the identity in a file's bytes; see :func:`read_meta_properties`."""
    values = parse_properties(data, path)
    version = _whole_number(values, "version", path)
    if version not in (ZOOKEEPER_VERSION, KRAFT_VERSION):
        raise corrupt(path, 0, "version 0 or 1", str(values.get("version", "nothing")), _REMEDY)
    node = "broker.id" if version == ZOOKEEPER_VERSION else "node.id"
    meta = MetaProperties(
        version, values.get("cluster.id"), _whole_number(values, node, path), values.get("directory.id")
    )
    if version == KRAFT_VERSION and (meta.cluster_id is None or meta.node_id is None):
        raise corrupt(path, 0, "cluster.id and node.id", ", ".join(values) or "nothing", _REMEDY)
    return meta


def parse_properties(data: bytes, path: str) -> Mapping[str, str]:
    """Return the entries of a Java properties file.

    :raises CorruptFileError: the file is no Java properties file.
    """
    try:
        return dict(javaproperties.loads(data.decode("latin-1")))
    except MALFORMED as error:
        raise corrupt(path, 0, "a Java properties file", str(error), "Compare it with a backup.") from error


def _whole_number(values: Mapping[str, str], name: str, path: str) -> int | None:
    if name not in values:
        return None
    try:
        return int(values[name])
    except ValueError as error:
        raise corrupt(path, 0, f"{name} as a whole number", repr(values[name][:60]), _REMEDY) from error


def read_clean_shutdown(path: Path) -> int | None:
    """Return the epoch that the broker had at its stop; None if the marker is empty, as before Kafka 3.7.

    :raises CorruptFileError: the marker is neither empty nor in the form that a broker writes.
    :raises OSError: the marker can't be read. If it is missing, the broker runs or did not stop cleanly.
    """
    return parse_clean_shutdown(read_stored(path), str(path))


def parse_clean_shutdown(data: bytes, path: str) -> int | None:
    """Return the epoch in a marker's bytes; see :func:`read_clean_shutdown`."""
    if not data.strip():
        return None
    remedy = "Leave it: a broker treats the stop as unclean, and reads its logs again."
    try:
        marker = json.loads(data)
        version, epoch = marker["version"], marker["brokerEpoch"]
    except MALFORMED as error:
        raise corrupt(path, 0, "version and brokerEpoch as JSON", repr(data[:60]), remedy) from error
    if version != 0 or not isinstance(epoch, int):
        raise corrupt(path, 0, "version 0 and a broker's epoch", repr(data[:60]), remedy)
    return epoch
