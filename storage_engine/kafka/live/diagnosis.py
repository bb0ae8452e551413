"""Findings about a node whose broker runs, from its files and its cluster's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage_engine.kafka.cluster.client import Cluster
from storage_engine.kafka.cluster.consumers import listed_groups
from storage_engine.kafka.cluster.rights import lacking_rights
from storage_engine.kafka.diagnose import diagnose
from storage_engine.kafka.format.file_names import METADATA_TOPIC
from storage_engine.kafka.format.layout import Node, read_node
from storage_engine.kafka.format.server_properties import RETENTION_SETTINGS
from storage_engine.kafka.hold.hold_state import with_live
from storage_engine.kafka.live.observe import (
    live_findings,
    node_id_of,
    observe,
    offline_findings,
    waiting_files,
)
from storage_engine.kafka.metadata.consumer_offsets import TOPIC as OFFSETS_TOPIC
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.report.diagnosis import BrokerDiagnosis, Finding, SettingFrom, SettingInEffect
from storage_engine.model.settings.store_settings import WE_DELETE


def diagnose_live(settings: StoreSettings, live: LiveBroker, now_ms: int) -> BrokerDiagnosis:
    """See :meth:`storage_engine.model.broker.kind.Inspecting.diagnose`.

    :raises BrokerError: the cluster can't be asked.
    """
    cluster = Cluster(live)
    findings: list[Finding] = []
    shown: list[SettingInEffect] = []

    def look(root: Path) -> Node:
        node = read_node(root)
        names = [log.name for _, log in node.logs if log.name.topic != METADATA_TOPIC]
        facts = observe(cluster, names, now_ms)
        live_node = with_live(node, facts, cluster.address)
        findings.extend(live_findings(node, facts))
        findings.extend(offline_findings(live_node))
        topics = sorted({OFFSETS_TOPIC, *(name.topic for name in names if not name.is_internal)})
        deleting = live.deletes == WE_DELETE
        lacks = lacking_rights(cluster, topics, listed_groups(cluster), deleting=deleting)
        findings.extend(lack.finding for lack in lacks)
        if deleting:
            findings.extend(waiting_files(live_node))
        in_effect = cluster.node_settings(node_id_of(node))
        shown.extend(
            SettingInEffect(name, in_effect[name], SettingFrom.RUNNING_BROKER)
            for name in sorted(RETENTION_SETTINGS & in_effect.keys())
        )
        return live_node

    diagnosis = diagnose(settings, now_ms, look)
    return replace(
        diagnosis,
        running=True,
        running_text=f"cluster at {cluster.address}",
        settings=tuple(shown) or diagnosis.settings,
        findings=(*diagnosis.findings, *findings),
    )
