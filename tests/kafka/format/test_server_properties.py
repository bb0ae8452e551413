"""How long a topic's segments stay, by the node's settings and its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, BrokerConfigError
from storage_engine.kafka import BROKER
from storage_engine.kafka.format.server_properties import (
    is_server_properties,
    read_server_properties,
    retention_settings,
)
from storage_engine.kafka.retention_rules import RetentionSettings
from storage_engine.model.broker.broker_store import StoreSettings

WEEK_MS = 7 * 24 * 3_600_000


@pytest.mark.parametrize(
    ("node", "topic", "expected"),
    [
        ({}, {}, RetentionSettings(retention_ms=WEEK_MS)),
        ({"log.retention.hours": "1"}, {}, RetentionSettings(retention_ms=3_600_000)),
        (
            {"log.retention.hours": "1", "log.retention.minutes": "2"},
            {},
            RetentionSettings(retention_ms=120_000),
        ),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, {}, RetentionSettings(retention_ms=3)),
        ({"log.retention.hours": "-1"}, {}, RetentionSettings(retention_ms=-1)),
        ({"log.retention.ms": "3"}, {"retention.ms": "4"}, RetentionSettings(retention_ms=4)),
        ({"log.retention.bytes": "5"}, {}, RetentionSettings(retention_bytes=5)),
        ({"log.retention.bytes": "5"}, {"retention.bytes": "-1"}, RetentionSettings()),
        ({"log.cleanup.policy": "compact"}, {}, RetentionSettings(delete=False, compact=True)),
        ({"log.cleanup.policy": "compact"}, {"cleanup.policy": "delete"}, RetentionSettings()),
        ({}, {"cleanup.policy": "compact, delete"}, RetentionSettings(compact=True)),
        ({}, {"cleanup.policy": ""}, RetentionSettings(delete=False)),
        (
            {"log.local.retention.ms": "7"},
            {"remote.storage.enable": "true", "local.retention.bytes": "8"},
            RetentionSettings(remote=True, local_retention_ms=7, local_retention_bytes=8),
        ),
        (
            {},
            {"remote.storage.enable": "true", "remote.log.copy.disable": "true", "local.retention.ms": "7"},
            RetentionSettings(remote=True, copy_disabled=True),
        ),
    ],
)
def test_a_topics_setting_wins_over_the_nodes(
    node: Mapping[str, str], topic: Mapping[str, str], expected: RetentionSettings
) -> None:
    assert retention_settings(node, topic) == expected


@pytest.mark.parametrize("topic", [{"retention.ms": "soon"}, {"cleanup.policy": "drop"}])
def test_what_a_broker_would_not_work_with_is_refused(topic: Mapping[str, str]) -> None:
    with pytest.raises(BrokerConfigError, match=r"expected .* Nothing was changed"):
        retention_settings({}, topic)


def test_directories_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=3\nlog.dirs=/a, /b,/a\n")
    found = read_server_properties(file)
    assert (found.log_dirs, found.metadata_dir, found.node_id) == ((Path("/a"), Path("/b")), Path("/a"), "3")
    file.write_text("broker.id=4\nlog.dir=/c\nmetadata.log.dir=/d\n")
    found = read_server_properties(file)
    assert (found.log_dirs, found.metadata_dir, found.node_id) == ((Path("/c"),), Path("/d"), "4")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "found neither log.dirs nor log.dir. Nothing was changed. A broker without them takes"),
        ("log.dirs=/a,${env:LOGS}", r"found \$\{env:LOGS\}. Nothing was changed. A broker fills this in"),
        (
            "log.dirs=/a\nmetadata.log.dir=${file:/x:y}",
            r"found \$\{file:/x:y\}. Nothing was changed. A broker",
        ),
        ("log.dirs=/a,b", "found b. Nothing was changed. A broker resolves a relative path from"),
    ],
)
def test_directories_that_the_file_leaves_open_are_told_with_what_to_do(
    tmp_path: Path, lines: str, said: str
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"process.roles=broker\nnode.id=3\n{lines}\n")
    assert is_server_properties(file)
    with pytest.raises(BadInputError, match=said) as refused:
        read_server_properties(file)
    assert str(refused.value).count("Nothing was changed.") == 1
    (told,) = BROKER.inspection.diagnose(StoreSettings(str(file)), None, 0).findings
    assert told.advice.startswith(("A broker", "A relative"))


def test_what_a_broker_fills_in_is_no_setting() -> None:
    with pytest.raises(
        BrokerConfigError, match=r"found '\$\{env:AGE\}'. Nothing was changed. A broker fills"
    ):
        retention_settings({"log.retention.ms": "${env:AGE}"}, {})


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("listeners=CONTROLLER://:9093,PLAINTEXT://:9092\ncontroller.listener.names=CONTROLLER", "HOST:9092"),
        ("listeners=A://:1\nadvertised.listeners=A://kafka-1:9092,B://kafka-1:9094", "kafka-1:9092"),
        ("listeners=A://[::1]:9092", "[::1]:9092"),
        ("listeners=CONTROLLER://:9093\ncontroller.listener.names= CONTROLLER", "HOST:PORT"),
        ("", "HOST:PORT"),
    ],
)
def test_clients_find_a_node_where_its_first_listener_for_them_is(
    lines: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"log.dirs=/data\n{lines}\n")
    assert read_server_properties(path).client_address == expected
