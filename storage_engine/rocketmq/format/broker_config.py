"""Storage settings of broker.conf, as the broker's effective values.

The file has java.util.Properties syntax, and its values have the broker's own types and limits. A value is an
error here if the broker would silently replace it with its default, or if it would stop the broker's
cleaning. A plan must not depend on a setting that the broker doesn't follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import javaproperties

from storage_engine.core.untrusted import read_file
from storage_engine.exceptions import BrokerConfigError, CorruptFileError

RELEASE: Final = "brokerVersion"
"""Key under which the broker's release, such as ``4.9.7``, is added to its settings."""

TRIED: Final = ("4.9", "5.0", "5.1", "5.2", "5.3", "5.4", "5.5")
"""Release lines that were tested: their brokers deleted exactly the files that they were told to."""

TRIED_FROM: Final = "4.9.4"
"""First tested release. Earlier releases have no request to delete expired files
(RequestCode.DELETE_EXPIRED_COMMITLOG).
"""

DELETE_FILES_BATCH_MAX: Final = 10
"""Default of deleteFileBatchMax (until 4.9 the constant MappedFileQueue.DELETE_FILES_BATCH_MAX)."""

_FROM_5_0: Final = frozenset(
    {
        "deleteFileBatchMax",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "logicalDiskSpaceCleanForciblyThreshold",
        "replicasPerDiskPartition",
    }
)
"""Settings of cleanup rules that 4.x ignores, although it reports them if broker.conf has them."""

_TRACES: Final = (("rocksdbstore", "5.4"), ("timerlog", "5.0"), ("timerwheel", "5.0"))
"""Files, each with the first release that makes it in all stores (StorePathConfigHelper and its callers)."""

WITHOUT_DIRECTORIES: Final = "5.1"
"""First release that starts although a directory is among its segments (MappedFileQueue#load)."""

SERVED_WITHOUT_QUEUES: Final = (
    "Then 4.9.7 and 5.3.3 serve all messages, 5.0 to 5.2 serve none, and 5.4 and 5.5 serve those of the last "
    "10 segments."
)
"""Which messages a broker serves from a store without queues. The broker makes queues again from the last
segments; their number depends on its release (CommitLog#recoverNormally, commitLogRecoverMaxNum).
"""

_V4_0_0, _V5_9_9 = 213, 611
_PATCHES = 10


def release_of(ordinal: int) -> str:
    """Return the release that is named in the header of each of a broker's answers.

    :param ordinal: place in MQVersion.Version, where each release has two entries, the snapshot first.
    :return: the release; outside of 4.0.0 to 5.9.9, the number itself.
    """
    if not _V4_0_0 <= ordinal <= _V5_9_9:
        return str(ordinal)
    minors, patch = divmod((ordinal + 1 - _V4_0_0) // 2, _PATCHES)
    major, minor = divmod(minors, _PATCHES)
    return f"{4 + major}.{minor}.{patch}"


def is_tried(release: str) -> bool:
    """Return whether tests of this release's line showed that it deletes exactly the files that it should."""
    # Texts can be compared: only line 4.9 has untested releases, and no part of a release has two digits.
    return release.rpartition(".")[0] in TRIED and release >= TRIED_FROM


def has_timers(release: str) -> bool:
    """Return whether the runtime info has the lag of timers (TimerMessageStore, from 5.0 on)."""
    return not release.startswith("4.")


def known_by_traces(root: Path) -> str:
    """Return a text on the earliest release that a store's files suggest; "" if they suggest none."""
    for name, release in _TRACES:
        if (root / name).exists():
            return f"{release} or later, as {name} is there"
    return ""


def with_release(settings: Mapping[str, str], ordinal: int) -> dict[str, str]:
    """Return the settings without those that the broker's release ignores, and with the release added."""
    release = release_of(ordinal)
    ignored = _FROM_5_0 if release.startswith("4.") else ()
    return {key: value for key, value in settings.items() if key not in ignored} | {RELEASE: release}


CONTROLLER_MODE = "enableControllerMode"
CONSUME_QUEUE_ENTRY_BYTES = 20
BATCH_CONSUME_QUEUE_ENTRY_BYTES = 46
MULTI_PATH_SPLITTER = ","
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
WARNING_LEVEL_PROPERTY = "rocketmq.broker.diskSpaceWarningLevelRatio"
CLEAN_FORCIBLY_PROPERTY = "rocketmq.broker.diskSpaceCleanForciblyRatio"
LEVEL_PROPERTIES = (WARNING_LEVEL_PROPERTY, CLEAN_FORCIBLY_PROPERTY)
"""System properties of the broker's JVM with fractions like 0.90, which override broker.conf. No file of the
broker has them, so they can only be given as overrides.
"""

_JAVA_INT = re.compile(r"[+-]?[0-9]{1,400}")
_LINE_END = re.compile(r"\r\n|\r|\n")
_INT_MAX = 2**31 - 1
MAX_CONF_BYTES = 4 << 20


def setting_field(key: str, default: Any = MISSING) -> Any:
    """Make a dataclass field for a setting of the broker."""
    return field(default=default, metadata={"key": key})


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Broker settings in effect. Names are the broker's in snake_case, with the unit appended.

    A file size is None if nothing sets it; then the size of the existing files counts.

    :param source: path of broker.conf; None without such a file.
    :param raw: unparsed values of broker.conf and of overrides.
    """

    store_path_root_dir: str = setting_field("storePathRootDir")
    store_path_commit_log: tuple[str, ...] = setting_field("storePathCommitLog")
    read_only_commit_log_store_paths: tuple[str, ...] = setting_field("readOnlyCommitLogStorePaths", ())
    mapped_file_size_commit_log_bytes: int | None = setting_field("mappedFileSizeCommitLog", None)
    mapped_file_size_consume_queue_bytes: int | None = setting_field("mappedFileSizeConsumeQueue", None)
    enable_consume_queue_ext: bool = setting_field("enableConsumeQueueExt", False)
    mapped_file_size_consume_queue_ext_bytes: int | None = setting_field(
        "mappedFileSizeConsumeQueueExt", None
    )
    mapped_file_size_batch_consume_queue_bytes: int | None = setting_field(
        "mapperFileSizeBatchConsumeQueue", None
    )
    max_hash_slot_num: int | None = setting_field("maxHashSlotNum", None)
    max_index_num: int | None = setting_field("maxIndexNum", None)
    max_msgs_num_batch: int = setting_field("maxMsgsNumBatch", 64)
    delete_when: str = setting_field("deleteWhen", "04")
    file_reserved_time_hours: int = setting_field("fileReservedTime", 72)
    disk_max_used_space_ratio_percent: int = setting_field("diskMaxUsedSpaceRatio", 75)
    disk_space_warning_level_percent: int = setting_field("diskSpaceWarningLevelRatio", 90)
    disk_space_clean_forcibly_percent: int = setting_field("diskSpaceCleanForciblyRatio", 85)
    logical_disk_space_clean_forcibly_threshold_percent: int = setting_field(
        "logicalDiskSpaceCleanForciblyThreshold", 80
    )
    clean_file_forcibly_enable: bool = setting_field("cleanFileForciblyEnable", True)
    delete_file_batch_max: int = setting_field("deleteFileBatchMax", 10)
    delete_commit_log_files_interval_ms: int = setting_field("deleteCommitLogFilesInterval", 100)
    delete_consume_queue_files_interval_ms: int = setting_field("deleteConsumeQueueFilesInterval", 100)
    destroy_mapped_file_interval_forcibly_ms: int = setting_field("destroyMapedFileIntervalForcibly", 120_000)
    redelete_hanged_file_interval_ms: int = setting_field("redeleteHangedFileInterval", 120_000)
    replicas_per_disk_partition: int = setting_field("replicasPerDiskPartition", 1)
    store_type: str = setting_field("storeType", "default")
    rocksdb_cq_double_write_enable: bool = setting_field("rocksdbCQDoubleWriteEnable", False)
    rocksdb_cq_selective_double_write_enable: bool = setting_field(
        "rocksdbCQSelectiveDoubleWriteEnable", False
    )
    combine_cq_use_rocksdb_for_lmq: bool = setting_field("combineCQUseRocksdbForLmq", False)
    timer_rocksdb_enable: bool = setting_field("timerRocksDBEnable", False)
    trans_rocksdb_enable: bool = setting_field("transRocksDBEnable", False)
    enable_dledger_commit_log: bool = setting_field("enableDLegerCommitLog", False)
    config_manager_version: str = setting_field("configManagerVersion", "v1")
    message_delay_level: str = setting_field("messageDelayLevel", DEFAULT_DELAY_LEVELS)
    source: str | None = None
    raw: Mapping[str, str] = field(default_factory=dict)


SETTING_NAMES: Mapping[str, str] = {
    setting.name: setting.metadata["key"] for setting in fields(BrokerConfig) if "key" in setting.metadata
}
"""The broker's name of each setting, by its field."""

KNOWN_SETTINGS = frozenset(
    {*SETTING_NAMES.values(), *LEVEL_PROPERTIES, CONTROLLER_MODE, "cleanResourceInterval"}
)
"""The broker's names of all settings that this package uses."""


@dataclass(frozen=True, slots=True)
class _Property:
    """One setting and its place in a file, for error messages."""

    key: str
    value: str
    where: str

    def error(self, expected: str) -> BrokerConfigError:
        return BrokerConfigError(f"{self.where}: {self.key}: expected {expected}, found {self.value!r}.")


def load_broker_config(
    path: str | Path | None, overrides: Mapping[str, str] | None = None, *, root: str | Path | None
) -> BrokerConfig:
    """Read broker.conf and compute the settings in effect.

    :param path: broker.conf, in java.util.Properties syntax; None for the broker's defaults.
    :param overrides: values under the broker's keys, which override the file (for what-if questions).
    :param root: the store's root directory; None for storePathRootDir's value.
    :raises BrokerConfigError: the file can't be read or parsed, the broker would not accept a value, or the
        root is missing or contradictory.
    """
    properties = _read(Path(path)) if path is not None else {}
    for key, value in (overrides or {}).items():
        properties[key] = _Property(key, value, "--set, or the connection's settings")
    return _effective(properties, source=None if path is None else str(path), root=root)


def usable_broker_config(
    path: str | Path | None, *, root: str | Path | None
) -> tuple[BrokerConfig, tuple[BrokerConfigError, ...]]:
    """Compute the settings in effect, without values that the broker refuses. For callers that only read.

    :return: the settings, and an error for each value that was left out.
    :raises BrokerConfigError: the file can't be read or parsed, or the root is missing or contradictory.
    """
    properties = _read(Path(path)) if path is not None else {}
    source = None if path is None else str(path)
    errors: list[BrokerConfigError] = []
    while True:
        try:
            return _effective(properties, source=source, root=root), tuple(errors)
        except BrokerConfigError as error:
            text = str(error)
            bad = [key for key, item in properties.items() if text.startswith(f"{item.where}: {key}: ")]
            if not bad or bad == ["storePathRootDir"]:
                raise
            errors.append(error)
            for key in bad:
                del properties[key]


def parse_delete_when(delete_when: str) -> tuple[int, ...]:
    """Return deleteWhen's hours, joined by ";" (UtilAll#isItTimeToDo), also hours that no clock shows.

    :raises ValueError: the broker can't parse an hour; it would abort the whole cleaning pass.
    """
    hours = delete_when.split(";")
    while delete_when and hours and not hours[-1]:  # String#split drops empty parts at the end
        hours.pop()
    if any(not _JAVA_INT.fullmatch(hour) or abs(int(hour)) > _INT_MAX for hour in hours):
        raise ValueError(f"not hours joined by ';': {delete_when!r}")
    return tuple(int(hour) for hour in hours)


def _read(path: Path) -> dict[str, _Property]:
    """Parse a properties file as Properties#load does: in ISO 8859-1, and the last of equal keys counts."""
    try:
        content = read_file(path, MAX_CONF_BYTES)
    except CorruptFileError as error:
        raise BrokerConfigError(f"broker.conf: {error}") from error
    except OSError as error:
        raise BrokerConfigError(
            f"{path}: can't read broker.conf: {error.strerror}. Name the file that the broker was started "
            "with, and run as a user who may read it."
        ) from error
    properties = {}
    line = 1
    try:
        for element in javaproperties.parse(content):
            if isinstance(element, javaproperties.KeyValue):
                properties[element.key] = _Property(element.key, element.value, f"{path}, line {line}")
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError as error:
        raise BrokerConfigError(
            f"{path}, line {line} or after: expected \\u and four hex digits, found {error.escape!r}; "
            "the broker does not start with this file."
        ) from error
    return properties


def _effective(
    properties: dict[str, _Property], *, source: str | None, root: str | Path | None
) -> BrokerConfig:
    read = _Reader(properties)
    root_dir = _root(properties, root)
    commit_log = read.paths("storePathCommitLog") or (f"{root_dir}/commitlog",)
    consume_queue_bytes = read.size("mappedFileSizeConsumeQueue")
    if consume_queue_bytes is not None:  # MessageStoreConfig#getMappedFileSizeConsumeQueue: whole entries
        consume_queue_bytes = -(-consume_queue_bytes // CONSUME_QUEUE_ENTRY_BYTES) * CONSUME_QUEUE_ENTRY_BYTES
    warning = read.fraction(WARNING_LEVEL_PROPERTY, read.integer("diskSpaceWarningLevelRatio", 90))
    forcibly = read.fraction(CLEAN_FORCIBLY_PROPERTY, read.integer("diskSpaceCleanForciblyRatio", 85))
    # CleanCommitLogService limits these levels from 5.0 on. An unknown release counts as such a release.
    is_unlimited = read.text(RELEASE, "").startswith("4.")
    special: dict[str, Any] = {
        "store_path_root_dir": root_dir,
        "store_path_commit_log": commit_log,
        # CommitLog#<init>: with one path the broker ignores read-only paths
        "read_only_commit_log_store_paths": (
            read.paths("readOnlyCommitLogStorePaths") if len(commit_log) > 1 else ()
        ),
        "mapped_file_size_consume_queue_bytes": consume_queue_bytes,
        "max_msgs_num_batch": read.integer("maxMsgsNumBatch", 64, minimum=0),
        "delete_when": read.delete_when("04"),
        "file_reserved_time_hours": read.integer("fileReservedTime", 72, minimum=0),
        "disk_max_used_space_ratio_percent": _clamp(read.integer("diskMaxUsedSpaceRatio", 75), 10, 95),
        "disk_space_warning_level_percent": warning if is_unlimited else _clamp(warning, 35, 90),
        "disk_space_clean_forcibly_percent": forcibly if is_unlimited else _clamp(forcibly, 30, 85),
        "logical_disk_space_clean_forcibly_threshold_percent": read.fraction(
            "logicalDiskSpaceCleanForciblyThreshold", 80
        ),
        # MappedFileQueue#deleteExpiredFileByTime compares after a deletion: with less than 1 it deletes one
        "delete_file_batch_max": max(1, read.integer("deleteFileBatchMax", DELETE_FILES_BATCH_MAX)),
        "delete_commit_log_files_interval_ms": max(0, read.integer("deleteCommitLogFilesInterval", 100)),
        "delete_consume_queue_files_interval_ms": max(
            0, read.integer("deleteConsumeQueueFilesInterval", 100)
        ),
        "replicas_per_disk_partition": max(1, read.integer("replicasPerDiskPartition", 1)),
        "source": source,
        "raw": {key: item.value for key, item in properties.items()},
    }
    plain = {
        setting.name: read.like(setting.metadata["key"], setting.default)
        for setting in fields(BrokerConfig)
        if setting.name not in special
    }
    return BrokerConfig(**special, **plain)


def _root(properties: Mapping[str, _Property], root: str | Path | None) -> str:
    """Return the store's root. If caller and configuration both name it, they must agree."""
    configured = properties.get("storePathRootDir")
    value = configured.value.strip() if configured is not None else ""
    if root is None:
        if not value:
            raise BrokerConfigError(
                "No store root: expected storePathRootDir in broker.conf or a store directory, found "
                "neither. Nothing was changed. Name the store's directory."
            )
        return value
    if configured is not None and value and Path(value).resolve() != Path(root).resolve():
        error = configured.error(f"the store that was named, {Path(root).resolve()}")
        raise BrokerConfigError(f"{error} {_hint(properties, value, Path(root).resolve())}")
    return str(root)


def _hint(properties: Mapping[str, _Property], configured: str, root: Path) -> str:
    """Return advice to name the paths on this host in place of a container's paths."""
    settings = [f"storePathRootDir={root}"]
    for key in ("storePathCommitLog", "readOnlyCommitLogStorePaths"):
        text = properties[key].value.strip() if key in properties else ""
        if configured in text:
            settings.append(f"{key}={text.replace(configured.rstrip('/'), str(root))}")
    return container_hint(settings)


def container_hint(settings: Iterable[str]) -> str:
    """Return advice to name a container's paths on this host by options ``--set KEY=PATH``."""
    options = " ".join(f"--set {setting}" for setting in settings)
    return f"If broker.conf has the paths inside a container, give the paths on this host: {options}"


def _clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


class _Reader:
    """Typed access to properties, converted as MixAll#properties2Object does: only texts are trimmed."""

    def __init__(self, properties: Mapping[str, _Property]) -> None:
        self._properties = properties

    def text(self, key: str, default: str) -> str:
        item = self._properties.get(key)
        return default if item is None else item.value.strip()

    def like(self, key: str, default: Any) -> Any:
        """Return a value of the default's type. Without a default, the value is a size."""
        if default is None:
            return self.size(key)
        if isinstance(default, bool):
            return self.boolean(key, default)
        return self.text(key, default) if isinstance(default, str) else self.integer(key, default)

    def integer(self, key: str, default: int, *, minimum: int = -_INT_MAX) -> int:
        item = self._properties.get(key)
        if item is None:
            return default
        expected = "a whole number" + ("" if minimum == -_INT_MAX else f" of at least {minimum}")
        if not _JAVA_INT.fullmatch(item.value):
            raise item.error(f"{expected} without blanks around it")
        value = int(item.value)
        if not minimum <= value <= _INT_MAX:
            raise item.error(f"{expected}, at most {_INT_MAX}")
        return value

    def size(self, key: str) -> int | None:
        return self.integer(key, 0, minimum=1) if key in self._properties else None

    def boolean(self, key: str, default: bool) -> bool:
        item = self._properties.get(key)
        if item is None:
            return default
        if item.value.lower() not in ("true", "false"):
            raise item.error("true or false (the broker takes everything else for false)")
        return item.value.lower() == "true"

    def fraction(self, key: str, default_percent: int) -> int:
        """Return a fraction like 0.85 as whole percent, rounded down.

        Used percents are whole, so rounding down changes no comparison "used > level".
        """
        item = self._properties.get(key)
        if item is None or not item.value:
            return default_percent
        try:
            value = Decimal(item.value.strip())
        except InvalidOperation:
            value = Decimal("NaN")
        if not value.is_finite():
            raise item.error("a fraction like 0.85")
        return int((value * 100).to_integral_value(rounding="ROUND_FLOOR"))

    def delete_when(self, default: str) -> str:
        item = self._properties.get("deleteWhen")
        if item is None:
            return default
        value = item.value.strip()
        try:
            parse_delete_when(value)
        except ValueError:
            raise item.error(
                "hours joined by ';' without blanks, like 04 or 2;14 (an hour the broker can't parse "
                "aborts its whole cleaning pass)"
            ) from None
        return value

    def paths(self, key: str) -> tuple[str, ...]:
        """Split directories joined by ",". They are neither trimmed nor expanded, as in the broker."""
        item = self._properties.get(key)
        if item is None or not item.value.strip():
            return ()
        paths = item.value.strip().rstrip(MULTI_PATH_SPLITTER).split(MULTI_PATH_SPLITTER)
        if any(not path or path != path.strip() for path in paths):
            raise item.error(
                "directories joined by ',' without blanks (the broker takes a blank for a part of the name)"
            )
        return tuple(dict.fromkeys(paths))
