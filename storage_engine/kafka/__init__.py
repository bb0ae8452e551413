"""Apache Kafka: formats of log directories, rules of retention, and checks of the files on a node's disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage_engine.model.broker.broker_store import BrokerStore, StoreSettings
from storage_engine.model.broker.broker_words import Aside, BrokerWords
from storage_engine.model.broker.kind import (
    Broker,
    Cleanups,
    Inspecting,
    Places,
    ReceiptRules,
    RowTraits,
    RunningKind,
    SettingNames,
    Topics,
)
from storage_engine.model.settings.store_settings import WE_DELETE

if TYPE_CHECKING:
    from storage_engine.model.broker.codec import RestoredConfig, SegmentCodec
    from storage_engine.model.broker.kind import LagJob, LagRequest
    from storage_engine.model.broker.live import LiveBroker, RunningBroker
    from storage_engine.model.hold import HoldMemory
    from storage_engine.model.proof.receipt import Receipt
    from storage_engine.model.report.diagnosis import BrokerDiagnosis
    from storage_engine.model.report.facts import FactsScope, StoreFacts
    from storage_engine.model.report.inspection import Inspection
    from storage_engine.model.store import StoreSnapshot


WORDS: Final = BrokerWords(
    title="Apache Kafka",
    crash_sign="log directories have no marker of a clean stop, or markers of different stops",
    address_options=("--broker", "--client-config"),
    errors={
        "BrokerConfigError": "Correct the key in server.properties, then run again.",
        "CorruptFileError": (
            "Compare the file with a replica's. A broker that starts creates missing indexes of a log; it "
            "restores no other file of the log."
        ),
    },
    dependents="Indexes",
    queue="partition",
)


class RunningKafka(RunningKind):
    client_connection = "kafka"

    def ask(self, live: LiveBroker) -> RunningBroker:
        from storage_engine.kafka.live.live_store import running_cluster

        return running_cluster(live)

    def open_to_make_room(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        from storage_engine.kafka.reclaim import open_room

        return open_room(settings, memory)


class KafkaInspection(Inspecting):
    def inspect(
        self,
        settings: StoreSettings,
        now_ms: int,
        *,
        messages: bool,
        queues: bool,
        snapshot: StoreSnapshot | None = None,
    ) -> Inspection:
        from storage_engine.kafka.inspect import inspect

        return inspect(settings, messages=messages)

    def diagnose(self, settings: StoreSettings, memory: HoldMemory | None, now_ms: int) -> BrokerDiagnosis:
        if settings.live is not None:
            from storage_engine.kafka.live.diagnosis import diagnose_live

            return diagnose_live(settings, settings.live, now_ms)
        from storage_engine.kafka.diagnose import diagnose

        return diagnose(settings, now_ms)


class KafkaTopics(Topics):
    def is_system(self, topic: str) -> bool:
        from storage_engine.kafka.format.file_names import INTERNAL_TOPICS

        return topic in INTERNAL_TOPICS

    def of_log(self, log: str) -> str | None:
        from storage_engine.kafka.format.file_names import partition_directory

        directory = partition_directory(log)
        return None if directory is None or directory.log != log else directory.topic


class KafkaReceipts(ReceiptRules):
    def continues(self, left: Receipt, right: Receipt) -> bool:
        from storage_engine.kafka.restored_log import continues

        return continues(left, right)

    def same_companion(self, name: str, archived: bytes, found: bytes) -> bool:
        """Return whether two versions of a file beside a segment are the same: equal bytes or, for producer
        snapshots, equal producers.

        A broker that recovers from a crash writes its snapshots again.
        """
        from storage_engine.kafka.format.file_names import FileKind, log_file
        from storage_engine.kafka.format.producer_snapshot import same_producers

        file = log_file(name)
        is_snapshot = file is not None and file.kind is FileKind.SNAPSHOT
        return archived == found or (is_snapshot and same_producers(archived, found, name))

    def drops_companion(self, name: str) -> bool:
        """Return whether a broker that starts may remove the file: whether it is a producer snapshot.

        The broker removes the snapshot at the log's start, because no earlier record is left
        (ProducerStateManager#truncateAndReload).
        """
        from storage_engine.kafka.format.file_names import FileKind, log_file

        file = log_file(name)
        return file is not None and file.kind is FileKind.SNAPSHOT


class KafkaPlaces(Places):
    def store_around(self, path: Path) -> Path | None:
        from storage_engine.kafka.format.layout import store_around

        return store_around(path)

    def stamped_directories(self, root: Path) -> tuple[Path, ...]:
        """Return all ``log.dirs``: segments are archived and deleted only in these directories."""
        from storage_engine.kafka.format.server_properties import read_server_properties

        return read_server_properties(root).log_dirs

    def default_name(self, root: Path) -> str:
        """Return a name made of the node's id and cluster: every node's file is ``server.properties``."""
        from storage_engine.kafka.format.layout import node_name

        return node_name(root)

    def segment_path(self, log: str, base_offset: int) -> str:
        return f"{log}/{base_offset:020d}.log"


class KafkaSettings(SettingNames):
    @property
    def of_age(self) -> frozenset[str]:
        return frozenset()


class Kafka(Broker):
    """A Kafka node, known from the files in its log directories and, if it runs, from its cluster's answers.

    Its segments are archived, proven, restored and deleted.
    """

    name = "kafka"
    words = WORDS
    places = KafkaPlaces()
    aside = Aside.OUTSIDE
    rows = RowTraits(
        table="records",
        task_modules=("storage_engine.kafka.codec.codec", "storage_engine.kafka.codec.decode"),
        offsets_count_bytes=False,
    )
    running = RunningKafka()
    receipts = KafkaReceipts()
    settings = KafkaSettings()
    topics = KafkaTopics()
    inspection = KafkaInspection()

    @property
    def codec(self) -> SegmentCodec:
        from storage_engine.kafka.codec.codec import CODEC

        return CODEC

    def cleanups(self, live: LiveBroker | None) -> Cleanups:
        """Return when a node is cleaned.

        A stopped node is cleaned only on request. If we delete, a running node is cleaned when
        segments are due. If its broker deletes by its own rules, the node is never cleaned.
        """
        if live is None:
            return Cleanups.ON_REQUEST
        return Cleanups.WHEN_DUE if live.deletes == WE_DELETE else Cleanups.NEVER

    def restored_config(self, serving: Sequence[Path]) -> RestoredConfig | None:
        """Return the configuration that makes a restored log directory fit its nodes.

        :param serving: each node's ``server.properties``. If empty, return None: only segments are restored.
        """
        if not serving:
            return None
        from storage_engine.kafka.restored_log import RestoredLogDirectory, read_serving_nodes

        return RestoredLogDirectory(read_serving_nodes(serving))

    def open_store(self, settings: StoreSettings, memory: HoldMemory | None) -> BrokerStore:
        if settings.live is not None:
            from storage_engine.kafka.live.live_store import open_live

            return open_live(settings, settings.live, memory)
        from storage_engine.kafka.store.store import open_store

        return open_store(settings)

    def collect_facts(self, settings: StoreSettings, scope: FactsScope) -> StoreFacts:
        from storage_engine.kafka.facts import collect

        return collect(settings, scope)

    def lag(self, request: LagRequest) -> LagJob:
        from storage_engine.kafka.lag_job import lag_job

        return lag_job(request)


BROKER = Kafka()
