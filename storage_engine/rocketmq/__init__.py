"""Apache RocketMQ: its formats, rules and stores, behind the contract of ``model.broker.kind``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.model.broker.broker_store import BrokerStore, FenceWatch, StoreSettings
from storage_engine.model.broker.broker_words import Aside, BrokerWords
from storage_engine.model.broker.kind import (
    Broker,
    BrokerEngine,
    Inspecting,
    Places,
    ReceiptRules,
    RowTraits,
    RunningKind,
    SettingNames,
    Topics,
)
from storage_engine.rocketmq.format.broker_config import SERVED_WITHOUT_QUEUES

if TYPE_CHECKING:
    from storage_engine.model.broker.broker_store import Watch
    from storage_engine.model.broker.codec import RestoredConfig, SegmentCodec
    from storage_engine.model.broker.kind import LagJob, LagRequest, SampleRequest, SampleStore
    from storage_engine.model.broker.live import LiveBroker, RunningBroker
    from storage_engine.model.hold import HoldMemory
    from storage_engine.model.plan import Release
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.model.report.diagnosis import BrokerDiagnosis
    from storage_engine.model.report.facts import FactsScope, StoreFacts
    from storage_engine.model.report.inspection import Inspection, KeyLookup, StoreRecovery
    from storage_engine.model.simulation import BrokerRules
    from storage_engine.model.store import StoreSnapshot
    from storage_engine.rocketmq.store.broker import RocketMQBrokerStore


_QUEUES = (
    "The log itself is whole. Stop the broker and move its whole directories consumequeue and index away: "
    "it builds them again from the log when it starts."
)

WORDS: Final = BrokerWords(
    title="Apache RocketMQ",
    crash_sign="the file 'abort' is there",
    address_options=("--broker", "--name-servers"),
    by_hand="It deletes outside deleteWhen, too",
    causes={"time-up": "It was an hour that deleteWhen names"},
    errors={
        "BrokerConfigError": "Correct the key in broker.conf, or in the connection, then run again.",
        "CorruptFileError": (
            "Compare the file with a replica. A stopped broker's whole directories consumequeue and index "
            "can be moved away: it builds them again from the log when it starts."
        ),
    },
    checks={
        "ExpectSegmentsToHaveTheConfiguredSize": (
            "Check mappedFileSizeCommitLog in broker.conf: it must be the size with which the store was "
            "written."
        ),
        "ExpectOffsetsToBeContiguous": f"A consume queue has a hole. {_QUEUES}",
        "ExpectFirstLiveEntryAtOrAboveMinOffset": f"A consume queue points at deleted segments. {_QUEUES}",
        "ExpectEntriesToPointIntoTheLog": f"A consume queue or index points behind the log's end. {_QUEUES}",
        "ExpectFirstLiveEntryToNameItsMessage": f"A consume queue points at another message. {_QUEUES}",
        "ExpectMessagesToBeInTheirQueues": (
            f"Consumers may not see these messages, unless the topic was deleted and made again. {_QUEUES}"
        ),
    },
    dependents="Consume queues and index",
    files_only=(
        "Put the old store's config directory beside them before a broker starts: without it no topic is "
        f"served, and old delayed messages are delivered again. {SERVED_WITHOUT_QUEUES} Restored without "
        "--files-only, each of these releases serves all."
    ),
)


def _store_files(settings: StoreSettings) -> RocketMQBrokerStore:
    """Open a store to read only its files.

    :raises BrokerError: the running broker doesn't answer.
    """
    from storage_engine.rocketmq.store.broker import open_files

    if settings.live is not None:
        from storage_engine.rocketmq.live.connect import settings_in_effect

        settings = settings_in_effect(settings, settings.live)
    return open_files(settings)


class RocketMQEngine(BrokerEngine):
    """Writes stores as a broker does."""

    def recover(
        self, settings: StoreSettings, *, dry_run: bool, cut_messages: bool, whole_index: bool
    ) -> StoreRecovery:
        from storage_engine.rocketmq.engine.recover_on_demand import recover_store

        config = _store_files(settings).config
        return recover_store(config, dry_run=dry_run, cut_messages=cut_messages, whole_index=whole_index)

    def rebuild_queues(self, settings: StoreSettings) -> StoreRecovery:
        from storage_engine.rocketmq.engine.recover_on_demand import rebuild_queues

        return rebuild_queues(_store_files(settings).config)

    def write_sample(self, request: SampleRequest) -> SampleStore:
        from storage_engine.rocketmq.sample.writing import write_sample

        return write_sample(request)

    def serve(
        self,
        settings: StoreSettings,
        topic: str | None,
        lines: Iterable[bytes],
        ends: threading.Event,
        release: Release | None,
    ) -> None:
        from storage_engine.rocketmq.engine.store_service import serve_store

        serve_store(settings, topic, lines, ends, release)


class RunningRocketMQ(RunningKind):
    def ask(self, live: LiveBroker) -> RunningBroker:
        from storage_engine.rocketmq.live.connect import running_broker

        return running_broker(live)

    def watch_fence(self, settings: StoreSettings) -> FenceWatch:
        from storage_engine.rocketmq.live.fence_mending import FenceKeeper

        return FenceKeeper(Path(settings.root))

    def watch_store(self, settings: StoreSettings, live: LiveBroker, now_ms: int) -> Watch:
        from storage_engine.rocketmq.live.live_store import watch_store

        return watch_store(settings, live, now_ms)


class RocketMQInspection(Inspecting):
    def inspect(
        self,
        settings: StoreSettings,
        now_ms: int,
        *,
        messages: bool,
        queues: bool,
        snapshot: StoreSnapshot | None = None,
    ) -> Inspection:
        from storage_engine.rocketmq.inspect import describe, inspect

        store = _store_files(settings)
        description = inspect(store.files, now_ms, messages=messages, queues=queues, snapshot=snapshot)
        return describe(description, store.data_paths, messages=messages)

    def diagnose(self, settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
        from storage_engine.rocketmq.diagnose import diagnose

        return diagnose(settings, memory, now_ms)

    def look_up(self, settings: StoreSettings, topic: str, key: str, max_count: int | None) -> KeyLookup:
        from storage_engine.rocketmq.inspect import look_up

        store = _store_files(settings)
        return look_up(store.files.layout, store.config, topic, key, max_count)

    def unindexed(self, settings: StoreSettings) -> tuple[tuple[int, int | None], ...]:
        from storage_engine.rocketmq.inspect import unindexed_ranges

        store = _store_files(settings)
        return unindexed_ranges(store.files.layout, store.config)


class RocketMQTopics(Topics):
    def is_system(self, topic: str) -> bool:
        """Return whether a topic is the broker's own (TopicValidator#isSystemTopic).

        The prefix may have capital letters, as in newer system topics.
        """
        from storage_engine.rocketmq.codec.frame_layout import SYSTEM_PREFIX, SYSTEM_TOPICS

        return topic in SYSTEM_TOPICS or topic.lower().startswith(SYSTEM_PREFIX)


class RocketMQReceipts(ReceiptRules):
    def continues(self, left: Receipt, right: Receipt) -> bool:
        from storage_engine.rocketmq.store.broker import continues

        return continues(left, right)


class RocketMQPlaces(Places):
    def store_around(self, path: Path) -> Path | None:
        from storage_engine.rocketmq.format.layout import store_around

        return store_around(path)


class RocketMQSettings(SettingNames):
    @property
    def known(self) -> frozenset[str]:
        from storage_engine.rocketmq.format.broker_config import KNOWN_SETTINGS

        return KNOWN_SETTINGS

    @property
    def of_age(self) -> frozenset[str]:
        return frozenset({"fileReservedTime"})


class RocketMQ(Broker):
    """RocketMQ. An offline store is read from its files alone. For a live store, its broker is asked, too."""

    name = "rocketmq"
    words = WORDS
    places = RocketMQPlaces()
    is_default = True
    aside = Aside.IN_STORE
    engine = RocketMQEngine()
    receipts = RocketMQReceipts()
    settings = RocketMQSettings()
    topics = RocketMQTopics()
    inspection = RocketMQInspection()
    running = RunningRocketMQ()
    rows = RowTraits(
        task_modules=(
            "storage_engine.rocketmq.codec.codec",
            "storage_engine.rocketmq.codec.decode",
            "storage_engine.rocketmq.codec.encode",
        ),
        sets_times=True,
    )

    @property
    def codec(self) -> SegmentCodec:
        from storage_engine.rocketmq.codec.codec import CODEC

        return CODEC

    def restored_config(self, serving: Sequence[Path]) -> RestoredConfig:
        from storage_engine.rocketmq.restored_store import RestoredStore

        super().restored_config(serving[1:])
        config = RestoredStore(serving[0] if serving else None)
        config.check_conf()
        return config

    @property
    def rules(self) -> BrokerRules:
        from storage_engine.rocketmq.simulation import RULES

        return RULES

    def open_store(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        if settings.live is not None:
            from storage_engine.rocketmq.live.live_store import open_live

            return open_live(settings, settings.live, memory)
        if settings.engine:
            from storage_engine.rocketmq.engine.served_store import open_served

            return open_served(settings)
        from storage_engine.rocketmq.store.broker import open_any

        return open_any(settings)

    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        from storage_engine.rocketmq.file_facts import collect

        return collect(settings, scope)

    def lag(self, request: LagRequest) -> LagJob:
        from storage_engine.rocketmq.lag_job import lag_job

        return lag_job(request)


BROKER = RocketMQ()
