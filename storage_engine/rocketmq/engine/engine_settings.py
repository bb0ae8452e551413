"""Settings of the write path, with the broker's names and defaults (MessageStoreConfig)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from storage_engine.core.clock import DAY_MS, HOUR_MS
from storage_engine.exceptions import BrokerConfigError
from storage_engine.rocketmq.format import batch_consume_queue, consume_queue
from storage_engine.rocketmq.format.broker_config import (
    BATCH_CONSUME_QUEUE_ENTRY_BYTES,
    CONSUME_QUEUE_ENTRY_BYTES,
    CONTROLLER_MODE,
    DEFAULT_DELAY_LEVELS,
    BrokerConfig,
    setting_field,
)
from storage_engine.rocketmq.format.consume_queue import iter_queues
from storage_engine.rocketmq.format.index_file import read_index_files
from storage_engine.rocketmq.format.layout import StoreLayout
from storage_engine.rocketmq.format.mapped_files import list_raw_files

LIGHT_PREFIX = "%LMQ%"
"""Prefix of light message queues, which share the messages of other queues (MixAll#LMQ_PREFIX)."""
NO_LIGHT_QUEUES = ("%RETRY%", "rmq_sys_")
"""Prefixes of topics whose messages get no entries in light queues."""
DISPATCH, DISPATCH_OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
"""Properties of a message in light queues: the queues' names, and the message's offset in each queue."""
_UNITS_MS = {"s": 1000, "m": 60_000, "h": HOUR_MS, "d": DAY_MS}
_ENTRIES_OF_A_QUEUE_FILE = 300_000
_FILES_TO_LOOK_AT = 200
_SHARED_DECISIONS = {
    "duplicationEnable": "other replicas decide how much of the log is confirmed",
    CONTROLLER_MODE: "a controller and other replicas decide how much of the log is confirmed",
}
"""Settings under which consumers may not read the whole log, and why (CommitLog#getConfirmOffset)."""


class FlushMode(StrEnum):
    """Whether a message counts as stored before or after its flush to disk (FlushDiskType)."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the write path. Many names are the broker's in snake_case, with the unit appended."""

    commitlog_file_bytes: int = 1 << 30
    consume_queue_file_bytes: int = _ENTRIES_OF_A_QUEUE_FILE * CONSUME_QUEUE_ENTRY_BYTES
    ext_file_bytes: int = 48 << 20
    batch_queue_file_bytes: int = _ENTRIES_OF_A_QUEUE_FILE * BATCH_CONSUME_QUEUE_ENTRY_BYTES
    hash_slots: int = 5_000_000
    index_entries: int = 20_000_000
    flush_mode: FlushMode = FlushMode.ASYNC
    flush_interval_ms: int = setting_field("flushIntervalCommitLog", 500)
    flush_least_pages: int = setting_field("flushCommitLogLeastPages", 4)
    flush_thorough_interval_ms: int = setting_field("flushCommitLogThoroughInterval", 10_000)
    sync_flush_timeout_ms: int = setting_field("syncFlushTimeout", 5_000)
    transient_pool_enable: bool = setting_field("transientStorePoolEnable", False)
    transient_pool_size: int = setting_field("transientStorePoolSize", 5)
    commit_interval_ms: int = setting_field("commitIntervalCommitLog", 200)
    commit_least_pages: int = setting_field("commitCommitLogLeastPages", 4)
    commit_thorough_interval_ms: int = setting_field("commitCommitLogThoroughInterval", 200)
    flush_queue_interval_ms: int = setting_field("flushIntervalConsumeQueue", 1_000)
    flush_queue_least_pages: int = setting_field("flushConsumeQueueLeastPages", 2)
    flush_queue_thorough_interval_ms: int = setting_field("flushConsumeQueueThoroughInterval", 60_000)
    max_message_bytes: int = setting_field("maxMessageSize", 4 << 20)
    append_property_crc: bool = setting_field("enabledAppendPropCRC", False)
    long_topics: bool = setting_field("autoMessageVersionOnTopicLen", True)
    index_enable: bool = setting_field("messageIndexEnable", True)
    index_safe: bool = setting_field("messageIndexSafe", False)
    check_crc_on_recover: bool = setting_field("checkCRCOnRecover", True)
    force_verify_property_crc: bool = setting_field("forceVerifyPropCRC", False)
    ext_enable: bool = False
    light_queues: bool = setting_field("enableLmq", False)
    multi_dispatch: bool = setting_field("enableMultiDispatch", False)
    delay_levels: str = DEFAULT_DELAY_LEVELS

    def delays_ms(self) -> tuple[int, ...]:
        """Return the delay of each level, level 1 first (DefaultMessageStore#parseDelayLevel)."""
        return tuple(int(level[:-1]) * _UNITS_MS[level[-1]] for level in self.delay_levels.split(" "))


def check_writable(config: BrokerConfig) -> None:
    """Refuse a store whose messages come from a master, or have to be copied to slaves.

    :raises BrokerConfigError: the broker is a slave, or a SYNC_MASTER that waits for slaves.
    """
    read = _Values(config.raw, config.source or "settings")
    role = read.text("brokerRole", "ASYNC_MASTER")
    if role == "SLAVE":
        raise BrokerConfigError(
            f"{read.source}: brokerRole: expected a master, found SLAVE: a slave's log is a copy of its "
            "master's, so only the master may write to it. Nothing was changed. Write to the master's store. "
            "After a crash, run recover or rebuild-queues on the slave's store."
        )
    copies = read.number("inSyncReplicas", 1)
    if role == "SYNC_MASTER" and copies > 1:
        raise BrokerConfigError(
            f"{read.source}: inSyncReplicas: expected 1, found {copies} with brokerRole SYNC_MASTER: a "
            "message would count as stored before slaves have it. Nothing was changed. Let the broker write "
            "the store."
        )


def deciding_setting(config: BrokerConfig) -> tuple[str, str] | None:
    """Return a setting that makes other nodes decide how far consumers may read the log, and who decides.

    Return None if no such setting is on.

    :raises BrokerConfigError: a value that the broker would not accept.
    """
    read = _Values(config.raw, config.source or "settings")
    return next(((key, means) for key, means in _SHARED_DECISIONS.items() if read.flag(key, False)), None)


def settings_for(config: BrokerConfig, layout: StoreLayout) -> EngineSettings:
    """Return the settings of a store's broker. Sizes that aren't configured are those of the store's files.

    :raises BrokerConfigError: a value that the broker would not accept.
    :raises CorruptFileError: the numbers of slots and entries of the index files are unknown.
    """
    defaults = EngineSettings()
    read = _Values(config.raw, config.source or "settings")
    if deciding := deciding_setting(config):
        key, means = deciding
        raise BrokerConfigError(
            f"{read.source}: {key}: expected false, found true: {means}. Without these nodes the store can't "
            "be written or recovered. Nothing was changed. Start the broker, which recovers the store."
        )
    slots, entries = _index_shape(config, layout)
    if config.source is None:
        # The broker's settings are unknown, but its files show which features were on.
        light = any(queue.topic.startswith(LIGHT_PREFIX) for queue in iter_queues(layout.consumequeue))
        extended = any(list_raw_files((queue.path,)) for queue in iter_queues(layout.consumequeue_ext))
        defaults = replace(defaults, light_queues=light, multi_dispatch=light, ext_enable=extended)
    return EngineSettings(
        commitlog_file_bytes=config.mapped_file_size_commit_log_bytes
        or _common_size(layout.log_paths)
        or defaults.commitlog_file_bytes,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue_bytes
        or _queue_file_bytes(layout.consumequeue, consume_queue.DTYPE.itemsize)
        or defaults.consume_queue_file_bytes,
        ext_file_bytes=config.mapped_file_size_consume_queue_ext_bytes
        or _queue_file_bytes(layout.consumequeue_ext, consume_queue.HEADER_BYTES)
        or defaults.ext_file_bytes,
        batch_queue_file_bytes=config.mapped_file_size_batch_consume_queue_bytes
        or _queue_file_bytes(layout.batchconsumequeue, batch_consume_queue.DTYPE.itemsize)
        or defaults.batch_queue_file_bytes,
        hash_slots=slots or defaults.hash_slots,
        index_entries=entries or defaults.index_entries,
        flush_mode=FlushMode(read.text("flushDiskType", defaults.flush_mode)),
        ext_enable=config.enable_consume_queue_ext or defaults.ext_enable,
        delay_levels=config.message_delay_level,
        **{
            setting.name: read.like(setting.metadata["key"], getattr(defaults, setting.name))
            for setting in fields(EngineSettings)
            if "key" in setting.metadata
        },
    )


@dataclass(frozen=True, slots=True)
class _Values:
    raw: Mapping[str, str]
    source: str

    def text(self, key: str, default: str) -> str:
        value = self.raw.get(key, default).strip()
        if key == "flushDiskType" and value not in list(FlushMode):
            raise BrokerConfigError(
                f"{self.source}: {key}: expected {' or '.join(FlushMode)}, found {value!r}. Correct it."
            )
        return value

    def like(self, key: str, default: int) -> Any:
        """Return a flag if the default is a flag, else a number."""
        return self.flag(key, default) if isinstance(default, bool) else self.number(key, default)

    def number(self, key: str, default: int) -> int:
        value = self.raw.get(key, str(default)).strip()
        if not value.isdecimal():
            raise BrokerConfigError(
                f"{self.source}: {key}: expected a whole number, found {value!r}. Correct it."
            )
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw.get(key, str(default)).strip().lower()
        if value not in ("true", "false"):
            raise BrokerConfigError(
                f"{self.source}: {key}: expected true or false, found {value!r}. Correct it."
            )
        return value == "true"


def _common_size(directories: Iterable[Path]) -> int:
    """Return the most frequent size of files in these directories; 0 without files."""
    sizes = Counter(size for _, size in list_raw_files(tuple(directories)) if size > 0)
    return sizes.most_common(1)[0][0] if sizes else 0


def _queue_file_bytes(directory: Path, unit_bytes: int) -> int:
    sizes: Counter[int] = Counter()
    for queue in iter_queues(directory):
        sizes.update(size for _, size in list_raw_files((queue.path,)) if size >= unit_bytes)
        if sizes.total() >= _FILES_TO_LOOK_AT:
            break
    return sizes.most_common(1)[0][0] if sizes else 0


def _index_shape(config: BrokerConfig, layout: StoreLayout) -> tuple[int | None, int | None]:
    if config.max_hash_slot_num and config.max_index_num:
        return config.max_hash_slot_num, config.max_index_num
    files = read_index_files(layout, config)
    if files:
        return files[0].hash_slots, files[0].capacity
    return config.max_hash_slot_num, config.max_index_num
