"""Configuration, queues and index for restored segments, so that a broker serves all their messages.

A broker rebuilds queues only from its last segments; their number depends on its release. So the queues are
made here from all segments, with the file sizes in the broker's settings.

A broker also needs a ``config`` directory, which is derived from the messages. Without it a broker rebuilds
its queues, but serves no topic. It would also handle all old delayed messages, timers, half messages and
unacknowledged pops again, and deliver them a second time. With the directory, the queues of such messages
count as handled up to their ends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from storage_engine.exceptions import RestoreError
from storage_engine.model.broker.codec import RestoredConfig, RestoredSetting
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.codec import frame_layout as frame
from storage_engine.rocketmq.engine.engine_settings import EngineSettings, deciding_setting, settings_for
from storage_engine.rocketmq.engine.recover_on_demand import REBUILT, rebuild_queues
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.layout import has_rocksdb_queues, store_layout, unhandled_setting
from storage_engine.rocketmq.hold.hold_state import ROLE, SLAVE
from storage_engine.rocketmq.live.identity import check_goes_on

if TYPE_CHECKING:
    from storage_engine.rocketmq.format.layout import StoreLayout

QUEUE_COLUMNS = ("kind", "topic", "queue_id", "queue_offset", "sys_flag")
"""Columns of ``messages`` from which configuration files are made."""

_TOPICS = "config/topics.json"
_DELAYS = "config/delayOffset.json"
_OFFSETS = ("config/consumerOffset.json", "config/lmqConsumerOffset.json")
"""Files with consumer offsets. The broker's setting enableLmq says which of them it reads."""
_TIMERS = "config/timercheck"

CONFIG_FILES = (_TOPICS, _DELAYS, *_OFFSETS, _TIMERS)

NO_CONFIG_QUEUES = pa.table(
    {
        "topic": pa.array([], pa.string()),
        "queue_id": pa.array([], pa.int32()),
        "last": pa.array([], pa.int64()),
        "inner_batch": pa.array([], pa.bool_()),
    }
)
"""Result of :func:`queues_of` for no rows."""

_TIMER_TOPIC = "rmq_sys_wheel_timer"
_REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
_LIGHT_QUEUE_PREFIX = "%LMQ%"
_TRANSACTION_TOPICS = ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
_TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
_REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

_QUEUES_OF_ITS_OWN = {frame.SCHEDULE_TOPIC: 18}
_REVIVE_QUEUES = 8
"""Number of queues with which a broker makes a revive topic (TopicConfigManager#init). We list no fewer."""

_READ_AND_WRITE = 6
_TIMER_CHECKPOINT_BYTES = 4096
_MAX_INT = (1 << 31) - 1
_MAX_QUEUES = 1 << 16
"""Largest number of queues of a topic in ``topics.json``. A damaged or hostile message may have any queue id,
and clients make an object for each queue of a topic. Messages with higher queue ids stay in the log, and can
be exported.
"""

_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
"""Data version in each file. It is constant, so that a repeated restore writes the same bytes."""
_NEWER_VERSION = {**_VERSION, "counter": 1}
"""Data version for a broker with RocksDB. It ignores files that have no newer version than its own data
(RocksDBTopicConfigManager#merge).
"""


def queues_of(rows: pa.Table) -> pa.Table:
    """Return these rows' queues: topic, queue_id, last queue_offset, and whether they have inner batches.

    Concatenated results of several calls are an input of :func:`merge_queues`.
    """
    # No broker serves a topic whose name isn't text. Messages that were rolled back are in no queue.
    named = pc.and_(pc.equal(rows["kind"], pa.scalar("message")), pc.is_valid(rows["topic"]))
    messages = rows.filter(named)
    ended = pc.bit_wise_and(messages["sys_flag"].cast(pa.int32()), pa.scalar(frame.TRANSACTION_MASK))
    messages = messages.filter(pc.not_equal(ended, pa.scalar(frame.TRANSACTION_ROLLBACK)))
    inner_batch = pc.bit_wise_and(messages["sys_flag"].cast(pa.int32()), pa.scalar(frame.INNER_BATCH))
    return merge_queues(
        pa.Table.from_arrays(
            [
                messages["topic"].cast(pa.string()),
                messages["queue_id"],
                messages["queue_offset"],
                pc.not_equal(inner_batch, pa.scalar(0)),
            ],
            names=NO_CONFIG_QUEUES.column_names,
        )
    )


def merge_queues(queues: pa.Table) -> pa.Table:
    """Merge rows of :func:`queues_of`, so that each queue has one row."""
    merged = queues.group_by(["topic", "queue_id"]).aggregate([("last", "max"), ("inner_batch", "max")])
    ordered = merged.select(["topic", "queue_id", "last_max", "inner_batch_max"])
    return ordered.rename_columns(NO_CONFIG_QUEUES.column_names)


def config_files(queues: pa.Table, *, into_rocksdb: bool = False) -> dict[str, bytes]:
    """Return the content of each configuration file, by its path below the store's root.

    :param queues: a result of :func:`merge_queues`.
    :param into_rocksdb: the broker keeps its configuration in RocksDB, into which it reads these files.
    """
    version = _NEWER_VERSION if into_rocksdb else _VERSION
    by_topic: dict[str, dict[int, int]] = {}
    batch_topics = set()
    for row in queues.sort_by([("topic", "ascending"), ("queue_id", "ascending")]).to_pylist():
        by_topic.setdefault(row["topic"], {})[row["queue_id"]] = row["last"] + 1
        if row["inner_batch"]:
            batch_topics.add(row["topic"])
    offsets = _json(version, {"offsetTable": _finished_offsets(by_topic)})
    return {
        _TOPICS: _json(
            version,
            {
                "topicConfigTable": {
                    topic: _topic(topic, max(ends) + 1, topic in batch_topics)
                    for topic, ends in by_topic.items()
                    if not topic.startswith(_LIGHT_QUEUE_PREFIX)
                }
            },
        ),
        # A delay level's number is its queue's plus one (ScheduleMessageService#queueId2DelayLevel).
        _DELAYS: _json(
            version,
            {
                "offsetTable": {
                    queue + 1: end
                    for queue, end in by_topic.get(frame.SCHEDULE_TOPIC, {}).items()
                    if queue < _MAX_INT
                }
            },
        ),
        **dict.fromkeys(_OFFSETS, offsets),
        _TIMERS: _timer_checkpoint(by_topic.get(_TIMER_TOPIC, {}).get(0, 0)),
    }


def _topic(topic: str, queues: int, inner_batch: bool) -> dict[str, Any]:
    """Return a TopicConfig. Its queue.type decides which type of queue the broker builds (QueueTypeUtils)."""
    least = _REVIVE_QUEUES if topic.startswith(_REVIVE_PREFIX) else _QUEUES_OF_ITS_OWN.get(topic, 1)
    number = min(max(queues, least), _MAX_QUEUES)
    return {
        "attributes": {"queue.type": "BatchCQ"} if inner_batch else {},
        "order": False,
        "perm": _READ_AND_WRITE,
        "readQueueNums": number,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": number,
    }


def _finished_offsets(by_topic: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Return the offsets of the groups with which the broker reads its own topics.

    The groups are those of TransactionalMessageBridge#fetchConsumeOffset and PopReviveService. The offsets of
    other groups are unknown: their clients decide where to begin.
    """
    return {
        f"{topic}@{_TRANSACTION_GROUP if topic in _TRANSACTION_TOPICS else _REVIVE_GROUP}": ends
        for topic, ends in by_topic.items()
        if topic in _TRANSACTION_TOPICS or topic.startswith(_REVIVE_PREFIX)
    }


def _timer_checkpoint(end: int) -> bytes:
    """Return a TimerCheckpoint: read time, log position, queue offset, and the master's queue offset.

    The broker continues from the lower of the last two (TimerMessageStore#recover).
    """
    return struct.pack(">4q", 0, 0, end, end).ljust(_TIMER_CHECKPOINT_BYTES, b"\0")


def _json(version: dict[str, int], content: dict[str, Any]) -> bytes:
    """Return a config file's content. Numbers as keys get quotes, and fastjson reads them all the same."""
    return json.dumps({"dataVersion": version, **content}, indent=1, ensure_ascii=False).encode()


_NOWHERE = Path("/no-store-yet")
"""Placeholder for the store's root while settings are read before the store exists."""
_TOPICS_IN_FILES = RestoredSetting(
    "configManagerVersion",
    "v1",
    "lake",
    "With v2 the broker doesn't read the topics that were made here, and serves none of them.",
)
"""Setting without which a broker ignores the configuration files (ConfigManagerFactory)."""
_MANY_TOPICS = (
    "queues may have messages of several topics; if some of these are gone, the messages behind them would "
    "get other queue offsets"
)
_NO_FILLER = {
    "forceVerifyPropCRC": "it would cut its log off before the first filler message, which has no such "
    "checksum",
    "enableLmq": _MANY_TOPICS,
    "enableMultiDispatch": _MANY_TOPICS,
}
_STILL_POSSIBLE = (
    "Nothing was written. To restore only the segments, use --files-only without a broker's "
    "configuration file."
)


@dataclass(frozen=True, slots=True)
class RestoredStore(RestoredConfig):
    """Configuration, queues and index of a restored RocketMQ store.

    :param conf: the broker's ``broker.conf``; None for default settings.
    """

    conf: Path | None

    FILES: ClassVar[tuple[str, ...]] = CONFIG_FILES
    COLUMNS: ClassVar[tuple[str, ...]] = QUEUE_COLUMNS
    NO_QUEUES: ClassVar[pa.Table] = NO_CONFIG_QUEUES
    ENDS_ANYWHERE: ClassVar[bool] = True
    FINISHED: ClassVar[frozenset[str]] = REBUILT

    def log_files(self, log: str) -> tuple[str, ...]:
        """Return no files: no configuration file lies in the log's own directory."""
        return ()

    def check_conf(self) -> None:
        """Check that queues can be made for a broker with this configuration file.

        :raises RestoreError: no queues can be made for such a broker.
        :raises BrokerConfigError: no broker would accept a value in the file.
        """
        config, layout = self._config(_NOWHERE, ())
        if (unhandled := unhandled_setting(config)) and not has_rocksdb_queues(config):
            kind, setting = unhandled
            raise RestoreError(
                f"{self.conf}: {setting}: expected a broker with queues in files, which can be made here, "
                f"found one with a {kind}, for which no queues can be made. {_STILL_POSSIBLE}"
            )
        if deciding := deciding_setting(config):
            setting, means = deciding
            raise RestoreError(
                f"{self.conf}: {setting}: expected false, found true: {means}, so that no queues can be made "
                f"from the log alone. {_STILL_POSSIBLE}"
            )
        settings_for(config, layout)

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        """Check that a broker would serve all restored messages.

        :raises RestoreError: with this configuration, no broker would start with the segments and serve all
            of them; or the broker is a slave, and its master's log isn't a continuation of the segments.
        """
        sizes = sorted({row.size_bytes for row in receipts})
        if len(sizes) > 1:
            text = " and ".join(map(str, sizes))
            raise RestoreError(
                f"{receipts[0].log}: expected segments of one size, found {text} bytes: no broker starts on "
                f"both. {_STILL_POSSIBLE} Segments of one size are served: choose them by --from-offset and "
                "--to-offset."
            )
        config, _ = self._config(_NOWHERE, ())
        size = config.mapped_file_size_commit_log_bytes
        if size not in (None, sizes[0]):
            raise RestoreError(
                f"{self.conf}: mappedFileSizeCommitLog: expected {sizes[0]}, as the archived segments have, "
                f"found {size}: no broker starts on files of another size. {_STILL_POSSIBLE} To restore a "
                "whole store, correct the value."
            )
        if row := next((row for row in receipts if row.damaged_bytes), None):
            raise RestoreError(
                f"receipt of {row.log}/{row.base_offset:020d}: expected whole messages, found "
                f"{row.damaged_bytes} damaged bytes, which were archived as they were: from there on no "
                f"queues can be made. {_STILL_POSSIBLE} The part before it is served: --to-offset "
                f"{row.base_offset}; the part behind it: --from-offset {row.end}."
            )
        is_slave = config.raw.get(ROLE, "").strip() == SLAVE
        is_filled = not all(receipt.is_whole for receipt in receipts)
        if is_filled or any(frame.FILLER_TOPIC in receipt.kept_streams for receipt in receipts):
            self._check_filler(config, is_slave=is_slave and is_filled)
        if is_slave:
            check_goes_on(config, receipts, read_segment)

    def _check_filler(self, config: BrokerConfig, *, is_slave: bool) -> None:
        """Check that a broker would accept filler in place of messages that are gone.

        :param is_slave: the broker is a slave, whose master may still have the messages.
        :raises RestoreError: the broker would not accept filler.
        """
        refusals = {f"{ROLE}={SLAVE}": "its master has the messages themselves"} if is_slave else {}
        for name, why in _NO_FILLER.items():
            if config.raw.get(name, "").strip().lower() == "true":
                refusals[f"{name}=true"] = why
        if refusals:
            setting, why = next(iter(refusals.items()))
            raise RestoreError(
                f"{self.conf}: expected a broker that takes filler in place of messages that are gone, "
                f"found {setting}: {why}. {_STILL_POSSIBLE}"
            )

    def queues_of(self, rows: pa.Table) -> pa.Table:
        return queues_of(rows)

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        return merge_queues(queues)

    def unfinished(self, queues: pa.Table) -> str:
        """Return "": a restored log may end anywhere. A half message without a decision waits for it."""
        return ""

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        config, _ = self._config(_NOWHERE, receipts)
        return config_files(queues, into_rocksdb=has_rocksdb_queues(config))

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        config, layout = self._config(_NOWHERE, receipts)
        as_named = load_broker_config(self.conf, {"storePathRootDir": str(_NOWHERE)}, root=_NOWHERE)
        topics = (_TOPICS_IN_FILES,) if as_named.config_manager_version.lower() == "v2" else ()
        sources = {"mappedFileSizeCommitLog": "lake", **dict.fromkeys(as_named.raw, str(self.conf))}
        if has_rocksdb_queues(config):
            return _queue_settings(receipts) + topics
        return topics + tuple(
            RestoredSetting(name, value, sources.get(name, "default"))
            for name, value in _values(settings_for(config, layout)).items()
        )

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        config, _ = self._config(root, receipts)
        if not has_rocksdb_queues(config):
            rebuild_queues(config)

    def _config(self, root: Path, receipts: Sequence[Receipt]) -> tuple[BrokerConfig, StoreLayout]:
        """Return the broker's settings and layout for a restored root, with the log in one directory."""
        here = {
            "storePathRootDir": str(root),
            "storePathCommitLog": str(root / "commitlog"),
            _TOPICS_IN_FILES.name: _TOPICS_IN_FILES.value,
        }
        config = load_broker_config(self.conf, here, root=root)
        if receipts and config.mapped_file_size_commit_log_bytes is None:
            here["mappedFileSizeCommitLog"] = str(receipts[0].size_bytes)
            config = load_broker_config(self.conf, here, root=root)
        return config, store_layout(root, config)


def _queue_settings(receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
    """Return settings with which a broker makes queues in RocksDB from all restored segments when it starts.

    A broker makes queues only from its last segments (CommitLog#recoverAbnormally, commitLogRecoverMaxNum).
    It makes no entry for the message at physical offset 0, as if that message already had one.
    """
    first = min((row.base_offset for row in receipts), default=None)
    note = (
        "The message at physical offset 0 is in no queue: such a broker passes over it." if first == 0 else ""
    )
    return (
        RestoredSetting("mappedFileSizeCommitLog", str(receipts[0].size_bytes), "lake"),
        RestoredSetting("commitLogRecoverMaxNum", str(len(receipts) + 1), "lake", note),
    )


def _values(settings: EngineSettings) -> dict[str, str]:
    """Return, by the broker's names, the settings that decide which files of queues and index are made."""
    flags = {
        "enableConsumeQueueExt": settings.ext_enable,
        "enableLmq": settings.light_queues,
        "enableMultiDispatch": settings.multi_dispatch,
        "messageIndexEnable": settings.index_enable,
    }
    return {
        "mappedFileSizeCommitLog": str(settings.commitlog_file_bytes),
        "mappedFileSizeConsumeQueue": str(settings.consume_queue_file_bytes),
        "mapperFileSizeBatchConsumeQueue": str(settings.batch_queue_file_bytes),
        **({"mappedFileSizeConsumeQueueExt": str(settings.ext_file_bytes)} if settings.ext_enable else {}),
        "maxHashSlotNum": str(settings.hash_slots),
        "maxIndexNum": str(settings.index_entries),
        **{name: str(value).lower() for name, value in flags.items()},
    }
