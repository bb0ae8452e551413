"""A node's ``server.properties``: its log directories, and its default settings for topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.clock import HOUR_MS
from storage_engine.exceptions import BadInputError, BrokerConfigError, CorruptFileError
from storage_engine.kafka.format.file_names import read_stored
from storage_engine.kafka.format.meta_properties import parse_properties
from storage_engine.kafka.retention_rules import LIKE_RETENTION, UNLIMITED, RetentionSettings

_MAX_BYTES = 1 << 20
_DIRECTORIES = ("log.dirs", "log.dir")
_ROLES = "process.roles"
_ANY_NODE = ("node.id", "broker.id", _ROLES, "zookeeper.connect")
_DEFAULT_DIRECTORY = "/tmp/kafka-logs"
_PLACEHOLDER = "${"
_PLACEHOLDER_REMEDY = (
    "A broker fills this in from its config.providers when it starts, but we don't ask them. Write the "
    "value into a copy of the file, and name the copy as STORE."
)
_MINUTE_MS = 60_000
_OWN_SEGMENT_BYTES = "internal.segment.bytes"
"""Setting that wins over segment.bytes. It may be smaller than Kafka 4 allows for segment.bytes."""

RETENTION_SETTINGS = frozenset(
    {
        "log.cleanup.policy",
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.bytes",
        "log.local.retention.ms",
        "log.local.retention.bytes",
    }
)
"""A node's settings for retention. They apply to topics that have no such settings of their own."""


@dataclass(frozen=True, slots=True)
class ServerProperties:
    """A node's ``server.properties``. ``metadata_dir`` has the cluster's metadata, on a node of KRaft."""

    path: Path
    values: Mapping[str, str]
    log_dirs: tuple[Path, ...]
    metadata_dir: Path

    @property
    def node_id(self) -> str:
        """Return the node's id; "" if ZooKeeper assigns it."""
        return self.values.get("node.id", self.values.get("broker.id", ""))

    @property
    def client_address(self) -> str:
        """Return the address for the node's clients, as host:port, with HOST or PORT for a missing part."""
        listeners = self.values.get("advertised.listeners") or self.values.get("listeners", "")
        controllers = self.values.get("controller.listener.names", "").split(",")
        for listener in filter(None, map(str.strip, listeners.split(","))):
            name, _, address = listener.partition("://")
            host, _, port = address.rpartition(":")
            if name not in map(str.strip, controllers) and port:
                return f"{host or 'HOST'}:{port}"
        return "HOST:PORT"


def is_server_properties(path: Path) -> bool:
    """Return whether a file is a node's: it has roles, or log directories with an id or ZooKeeper."""
    if not path.is_file():
        return False
    try:
        values = parse_properties(read_stored(path, _MAX_BYTES), str(path))
    except (CorruptFileError, OSError):
        return False
    named = any(name in values for name in _DIRECTORIES) and any(name in values for name in _ANY_NODE)
    return named or _ROLES in values


def read_server_properties(path: Path) -> ServerProperties:
    """Read a node's file.

    :raises BadInputError: the file can't be read, or names a log directory by a relative path.
    :raises CorruptFileError: the file is no Java properties file.
    """
    try:
        values = parse_properties(read_stored(path, _MAX_BYTES), str(path))
    except OSError as error:
        raise BadInputError(
            f"{path}: expected a node's server.properties, found {error.strerror}. Nothing was changed. Name "
            "the file that the broker is started with."
        ) from error
    listed = values.get("log.dirs") or values.get("log.dir", "")
    directories = tuple(dict.fromkeys(Path(name.strip()) for name in listed.split(",") if name.strip()))
    metadata = Path(values.get("metadata.log.dir") or next(iter(directories), Path()))
    if fault := _directories_fault(dict.fromkeys((*directories, metadata)) if directories else ()):
        raise BadInputError(f"{path}: log.dirs: expected absolute directories, found {fault}")
    return ServerProperties(path, values, directories, metadata)


def _directories_fault(directories: Collection[Path]) -> str:
    """Return the fault of a node's directories and the remedy, as sentences; "" if there is no fault."""
    relative = [str(path) for path in directories if not path.is_absolute()]
    if not directories:
        return (
            "neither log.dirs nor log.dir. Nothing was changed. A broker without them takes "
            f"{_DEFAULT_DIRECTORY}: write log.dirs={_DEFAULT_DIRECTORY} into a copy of the file, and name "
            "the copy as STORE."
        )
    if not relative:
        return ""
    remedy = (
        "A broker resolves a relative path from its working directory: write the full path into a copy of "
        "the file, and name the copy as STORE."
    )
    if any(_PLACEHOLDER in name for name in relative):
        remedy = _PLACEHOLDER_REMEDY
    return f"{', '.join(relative)}. Nothing was changed. {remedy}"


def retention_settings(node: Mapping[str, str], topic: Mapping[str, str]) -> RetentionSettings:
    """Return how long a topic's segments stay (KafkaConfig, LogConfig).

    :param topic: settings of the topic itself. They win over the node's.
    :raises BrokerConfigError: a setting has a value that the broker would refuse.
    """

    def number(own: str, of_node: str, default: int) -> int:
        if own in topic:
            return _number(own, topic[own])
        return _number(of_node, node[of_node]) if of_node in node else default

    policy = topic.get("cleanup.policy", node.get("log.cleanup.policy", "delete"))
    policies = {word.strip() for word in policy.lower().split(",") if word.strip()}
    if not policies <= {"delete", "compact"}:
        raise _unusable("cleanup.policy", policy, "delete, compact, both or none")
    remote = _is_true(topic, "remote.storage.enable")
    copy_disabled = _is_true(topic, "remote.log.copy.disable")
    copies = remote and not copy_disabled
    local_ms = number("local.retention.ms", "log.local.retention.ms", LIKE_RETENTION)
    local_bytes = number("local.retention.bytes", "log.local.retention.bytes", LIKE_RETENTION)
    return RetentionSettings(
        delete="delete" in policies,
        compact="compact" in policies,
        retention_ms=number("retention.ms", "log.retention.ms", _default_retention_ms(node)),
        retention_bytes=number("retention.bytes", "log.retention.bytes", UNLIMITED),
        remote=remote,
        local_retention_ms=local_ms if copies else LIKE_RETENTION,
        local_retention_bytes=local_bytes if copies else LIKE_RETENTION,
        local_without_delete=copies and not policies,
        segment_ms=number("segment.ms", "log.roll.ms", _hours_ms(node, "log.roll.hours")),
        segment_bytes=number(
            _OWN_SEGMENT_BYTES if _OWN_SEGMENT_BYTES in topic else "segment.bytes",
            "log.segment.bytes",
            1 << 30,
        ),
        copy_disabled=copy_disabled,
    )


def _is_true(topic: Mapping[str, str], name: str) -> bool:
    return topic.get(name, "false").lower() == "true"


def _default_retention_ms(node: Mapping[str, str]) -> int:
    """Return a node's retention in ms without ``log.retention.ms`` (KafkaConfig#logRetentionTimeMillis)."""
    if "log.retention.minutes" in node:
        value = _number("log.retention.minutes", node["log.retention.minutes"])
        return UNLIMITED if value < 0 else value * _MINUTE_MS
    return _hours_ms(node, "log.retention.hours")


def _hours_ms(node: Mapping[str, str], name: str) -> int:
    """Return the milliseconds of a setting in hours; a week if the setting is missing."""
    value = _number(name, node.get(name, "168"))
    return UNLIMITED if value < 0 else value * HOUR_MS


def _number(name: str, text: str) -> int:
    try:
        return int(text.strip())
    except ValueError as error:
        raise _unusable(name, text, "a whole number") from error


def _unusable(name: str, text: str, expected: str) -> BrokerConfigError:
    remedy = _PLACEHOLDER_REMEDY if _PLACEHOLDER in text else "Correct the setting."
    return BrokerConfigError(
        f"{name}: expected {expected}, found {text[:60]!r}. Nothing was changed. {remedy}"
    )
