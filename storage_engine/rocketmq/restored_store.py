"""Files that make restored segments a store that a broker serves whole: configuration, queues and index.

A broker makes queues again from its last segments alone, and how many these are depends on its version. So
they are made here, of all segments, by the sizes of files that the broker is going to have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from storage_engine.exceptions import RestoreError
from storage_engine.model.broker.codec import RestoredConfig, RestoredSetting
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.codec.frame import FILLER_TOPIC
from storage_engine.rocketmq.engine.engine_settings import EngineSettings, deciding_setting, settings_for
from storage_engine.rocketmq.engine.recovering import REBUILT, rebuild_queues
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.layout import has_rocksdb_queues, store_layout, unhandled_setting
from storage_engine.rocketmq.hold.state import ROLE, SLAVE
from storage_engine.rocketmq.live.master_log import check_goes_on
from storage_engine.rocketmq.store import restored_config

if TYPE_CHECKING:
    from storage_engine.rocketmq.format.layout import StoreLayout

_NOWHERE = Path("/no-store-yet")
"""A root for asking what settings say before anything is there."""
_TOPICS_IN_FILES = RestoredSetting(
    "configManagerVersion",
    "v1",
    "lake",
    "With v2 the broker reads no topic of those that were made here, and serves none of them.",
)
"""Content by which a broker reads the configuration that is made (ConfigManagerFactory)."""
_MANY_TOPICS = (
    "queues may have messages of several topics, of which some are gone, and those behind would get "
    "other queue offsets"
)
_NO_FILLER = {
    "forceVerifyPropCRC": "it would cut its log off before the first, which has no such checksum",
    "enableLmq": _MANY_TOPICS,
    "enableMultiDispatch": _MANY_TOPICS,
}
_STILL_POSSIBLE = "Nothing was written. --files-only, without a broker's file, restores the segments alone."


@dataclass(frozen=True, slots=True)
class RestoredStore(RestoredConfig):
    """RestoredConfig of a broker by its ``broker.conf``; None: of one with the default settings."""

    conf: Path | None

    FILES: ClassVar[tuple[str, ...]] = restored_config.FILES
    COLUMNS: ClassVar[tuple[str, ...]] = restored_config.COLUMNS
    NO_QUEUES: ClassVar[pa.Table] = restored_config.NO_QUEUES
    ENDS_ANYWHERE: ClassVar[bool] = True
    FINISHED: ClassVar[frozenset[str]] = REBUILT

    def log_files(self, log: str) -> tuple[str, ...]:
        """Return nothing: a broker has one log, and all files are beside it."""
        return ()

    def check_conf(self) -> None:
        """Make sure that queues can be made for a broker of the configuration file.

        :raises RestoreError: no queues can be made for a broker of this configuration.
        :raises BrokerConfigError: a value that no broker would work with.
        """
        config, layout = self._config(_NOWHERE, ())
        if (unhandled := unhandled_setting(config)) and not has_rocksdb_queues(config):
            kind, setting = unhandled
            raise RestoreError(
                f"{self.conf}: {setting}: expected a broker with queues in files, which can be made, found "
                f"one with a {kind}, for which they can't. {_STILL_POSSIBLE}"
            )
        if deciding := deciding_setting(config):
            setting, means = deciding
            raise RestoreError(
                f"{self.conf}: {setting}: expected false, found true: {means}, so that no queues can be made "
                f"without them. {_STILL_POSSIBLE}"
            )
        settings_for(config, layout)

    def check(self, receipts: Sequence[Receipt], read_segment: Callable[[Receipt], bytearray]) -> None:
        """Make sure that a broker would serve what is restored.

        :raises RestoreError: no broker of this configuration would start on the segments and serve them all;
            or it is a slave's, and its master's log doesn't go on where they end.
        """
        sizes = sorted({row.size_bytes for row in receipts})
        if len(sizes) > 1:
            found = " and ".join(map(str, sizes))
            raise RestoreError(
                f"{receipts[0].log}: expected segments of one size, found {found} bytes: no broker starts on "
                f"both. {_STILL_POSSIBLE} Those of one size are served: choose them by --from-offset and "
                "--to-offset."
            )
        config, _ = self._config(_NOWHERE, ())
        said = config.mapped_file_size_commit_log_bytes
        if said not in (None, sizes[0]):
            raise RestoreError(
                f"{self.conf}: mappedFileSizeCommitLog: expected {sizes[0]}, as the archived segments have, "
                f"found {said}: no broker starts on files of another size. {_STILL_POSSIBLE} Or correct the "
                "value."
            )
        for row in (row for row in receipts if row.damaged_bytes):
            raise RestoreError(
                f"receipt of {row.log}/{row.base_offset:020d}: expected whole messages, found "
                f"{row.damaged_bytes} damaged bytes, which were archived as they were: from there on no "
                f"queues can be made. {_STILL_POSSIBLE} What lies before it is served: "
                f"--to-offset {row.base_offset}; the part behind it: --from-offset {row.end}."
            )
        is_slave, is_filled = (
            config.raw.get(ROLE, "").strip() == SLAVE,
            not all(it.is_whole for it in receipts),
        )
        if is_filled or any(FILLER_TOPIC in it.kept_streams for it in receipts):
            self._check_filler(config, is_slave=is_slave and is_filled)
        if is_slave:
            check_goes_on(config, receipts, read_segment)

    def _check_filler(self, config: BrokerConfig, *, is_slave: bool) -> None:
        """Check that a broker would take filler in place of messages that are gone.

        :param is_slave: of a master that may have what is filled here.
        :raises RestoreError: it would not.
        """
        for setting, is_set, why in (
            (f"{ROLE}={SLAVE}", is_slave, "its master has the messages themselves"),
            *(
                (f"{name}=true", config.raw.get(name, "").strip().lower() == "true", why)
                for name, why in _NO_FILLER.items()
            ),
        ):
            if is_set:
                raise RestoreError(
                    f"{self.conf}: expected a broker that takes filler in place of messages that are gone, "
                    f"found {setting}: {why}. {_STILL_POSSIBLE}"
                )

    def queues_of(self, rows: pa.Table) -> pa.Table:
        return restored_config.queues_of(rows)

    def merge_queues(self, queues: pa.Table) -> pa.Table:
        return restored_config.merge_queues(queues)

    def unfinished(self, queues: pa.Table) -> str:
        """Return "": a half message waits for its end, wherever the log ends."""
        return ""

    def config_files(self, queues: pa.Table, receipts: Sequence[Receipt]) -> Mapping[str, bytes]:
        config, _ = self._config(_NOWHERE, receipts)
        return restored_config.config_files(queues, into_rocksdb=has_rocksdb_queues(config))

    def settings(self, receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
        config, layout = self._config(_NOWHERE, receipts)
        as_named = load_broker_config(self.conf, {"storePathRootDir": str(_NOWHERE)}, root=_NOWHERE)
        topics = (_TOPICS_IN_FILES,) if as_named.config_manager_version.lower() == "v2" else ()
        if has_rocksdb_queues(config):
            return _made_by_the_broker(receipts) + topics
        return topics + tuple(
            RestoredSetting(name, value, self._source(name, name in as_named.raw))
            for name, value in _values(settings_for(config, layout)).items()
        )

    def finish(self, root: Path, receipts: Sequence[Receipt]) -> None:
        config, _ = self._config(root, receipts)
        if not has_rocksdb_queues(config):
            rebuild_queues(config)

    def _source(self, name: str, is_named: bool) -> str:
        if is_named:
            return str(self.conf)
        return "lake" if name == "mappedFileSizeCommitLog" else "default"

    def _config(self, root: Path, receipts: Sequence[Receipt]) -> tuple[BrokerConfig, StoreLayout]:
        """Return the broker's settings at a restored root, whose log is in one directory."""
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


def _made_by_the_broker(receipts: Sequence[Receipt]) -> tuple[RestoredSetting, ...]:
    """Return the settings by which a broker makes queues in RocksDB of all restored segments at its start.

    It makes them of its last segments (CommitLog#recoverAbnormally, commitLogRecoverMaxNum), and takes the
    message at physical offset 0 for one that is there already.
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
    """Return the settings that decide which files of queues and index there are, by the broker's names."""
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
