"""Lag beside a real broker: positions by its word, by its files when it is gone, none smaller than it is."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerError
from storage_engine.model.lag import PositionsFrom
from storage_engine.model.live import LiveBroker
from storage_engine.retention.lag_table import read_lag_table
from storage_engine.rocketmq.lag import queue_lags
from storage_engine.spark.consumer_lag import (
    ConsumerLagRequest,
    ConsumerLagResult,
    lag_without_spark,
    prepare,
)
from storage_engine.spark.job_io import read_result, write_request
from storage_engine.spark.session import spark_environment, spark_settings
from tests.integration.broker import FIXTURE_SIZES
from tests.integration.remoting import RemotingClient
from tests.integration.secured import Secured, secured_broker
from tests.integration.stores import unpack

pytestmark = pytest.mark.integration

JOB = Path(__file__).resolve().parents[2] / "spark_jobs" / "consumer_lag.py"
UPDATE_CONSUMER_OFFSET, HEART_BEAT, UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 15, 34, 200
TOPIC, GROUP = "orders", "cg_orders"
SECRET = "admin-secret"
DOOMED = (0, 1 << 20)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[Secured]:
    """A broker with users on a store with many groups, that doesn't write offsets down in a test's time."""
    work = tmp_path_factory.mktemp("lag")
    store = unpack("clean-stop", work / "store")
    settings = {"flushConsumerOffsetInterval": 3_600_000}
    with secured_broker(store, work, name_server_port, settings) as secured:
        yield secured


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose only Java is the bundled one."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def request(secured: Secured, work: Path, **settings: Any) -> ConsumerLagRequest:
    tls = secured.access.tls
    assert tls is not None
    live = LiveBroker(
        address=secured.broker.client.address,
        access_key="admin",
        secret_key=SECRET,
        tls=True,
        tls_ca_file=tls.ca_file or "",
    )
    return ConsumerLagRequest(
        str(secured.broker.store),
        str(work / "table"),
        overrides={key: str(size) for key, size in FIXTURE_SIZES.items()},
        time_zone="UTC",
        plan_base_offsets=DOOMED,
        live=live,
        **settings,
    )


def rows(asked: ConsumerLagRequest) -> dict[tuple[str, str, int], dict[str, Any]]:
    found = queue_lags(*prepare(asked)).to_pylist()
    return {(row["group"], row["topic"], row["queue_id"]): row for row in found}


def test_positions_are_the_brokers_and_not_those_that_it_wrote_down(secured: Secured, tmp_path: Path) -> None:
    client = secured.broker.client
    asked = request(secured, tmp_path)
    before = rows(asked)[GROUP, TOPIC, 0]
    moved = before["committed_offset"] - 7
    client.call(UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, topic=TOPIC, queueId=0, commitOffset=moved)
    after = rows(asked)[GROUP, TOPIC, 0]
    assert after["committed_offset"] == moved
    assert after["lag_messages"] == before["lag_messages"] + 7
    done = lag_without_spark(asked, 10**6)
    assert done is not None
    assert (done.summary.source.positions, done.summary.source.written_at_ms) == (PositionsFrom.BROKER, None)


def test_every_figure_is_what_the_brokers_consume_stats_say(secured: Secured, tmp_path: Path) -> None:
    found = rows(request(secured, tmp_path))
    compared = 0
    groups = {group for group, _, _ in found if not group.startswith(("CID_RMQ_SYS_", "%LMQ%"))}
    with secured.ask(secured.access) as admin:
        for group in groups:
            for (topic, queue_id), stats in admin.consume_stats(group).items():
                row = found.get((group, topic, queue_id))
                if row is None or row["committed_offset"] is None:
                    continue
                assert (row["committed_offset"], row["max_offset"]) == (
                    stats.consumer_offset,
                    stats.broker_offset,
                ), (group, topic, queue_id)
                assert row["min_offset"] == admin.min_offset(topic, queue_id)
                compared += 1
    assert compared > 15


def test_light_message_queues_have_positions_as_well(secured: Secured, tmp_path: Path) -> None:
    client = secured.broker.client
    light = sorted(path.name for path in (secured.broker.store / "consumequeue").glob("%LMQ%*"))
    client.call(UPDATE_CONSUMER_OFFSET, consumerGroup=light[0], topic=light[0], queueId=0, commitOffset=1)
    assert rows(request(secured, tmp_path))[light[0], light[0], 0]["committed_offset"] == 1


def test_group_that_is_connected_and_never_committed_is_unknown_in_what_it_subscribes_to(
    secured: Secured, tmp_path: Path
) -> None:
    with ExitStack() as members:
        for group, model in (("fresh", "CLUSTERING"), ("everyone", "BROADCASTING")):
            # Its members aren't told of each other: this client takes answers only.
            quiet = {"groupName": group, "notifyConsumerIdsChangedEnable": False}
            body = json.dumps(quiet).encode()
            secured.broker.client.call(UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=body)
            member = members.enter_context(RemotingClient(secured.broker.port, secured.access))
            _heart_beat(member, group, model, TOPIC)
        with secured.ask(secured.access) as admin:
            assert admin.clustering_subscriptions("fresh") >= {TOPIC}
            assert admin.clustering_subscriptions("everyone") == frozenset()
            assert admin.clustering_subscriptions("nobody") == frozenset()
        found = rows(request(secured, tmp_path))
    fresh = [row for (group, topic, _), row in found.items() if (group, topic) == ("fresh", TOPIC)]
    assert len(fresh) == 8
    assert all(row["committed_offset"] is None and row["at_risk"] for row in fresh)
    assert not [key for key in found if key[:2] == ("everyone", TOPIC)]


def test_submitted_job_on_the_bundled_java_gets_the_secret_in_its_environment_alone(
    secured: Secured, tmp_path: Path, without_java: None
) -> None:
    assert spark_environment()["JAVA_HOME"].startswith(str(tmp_path / "cache"))
    asked = request(secured, tmp_path, now_ms=1_900_000_000_000)
    paths = [tmp_path / "private" / name for name in ("request.json", "result.json")]
    environment = {**spark_environment(), **write_request(paths[0], asked)}
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", "local[1]"]
    for setting in spark_settings().items():
        command += ["--conf", "=".join(setting)]
    ended = subprocess.run(
        [*command, str(JOB), *map(str, paths)],
        env={**os.environ, **environment},
        cwd=tempfile.mkdtemp(dir=tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = read_result(paths[1], paths[0], ConsumerLagResult)
    assert result.summary.source.positions is PositionsFrom.BROKER
    written = read_lag_table(asked.table_path).to_pylist()
    assert sorted(map(str, written)) == sorted(map(str, rows(asked).values()))
    assert result.summary.groups == len({row["group"] for row in written})
    said = [ended.stdout, ended.stderr, repr(asked), *(path.read_text() for path in paths)]
    assert not [text for text in said if SECRET in text]


def test_what_the_broker_wrote_down_counts_when_it_cannot_be_asked_and_says_how_old_it_is(
    secured: Secured, tmp_path: Path
) -> None:
    asked = request(secured, tmp_path)
    secured.broker.client.close()
    secured.broker.java.kill()
    began = time.monotonic()
    done = lag_without_spark(asked, 10**6)
    assert time.monotonic() - began < 60
    assert done is not None
    source = done.summary.source
    written = secured.broker.store / "config" / "lmqConsumerOffset.json"
    assert source.positions is PositionsFrom.FILES
    assert source.written_at_ms == written.stat().st_mtime_ns // 10**6
    assert "could not be asked" in source.notices[0]
    assert SECRET not in source.notices[0]
    for path in written.parent.glob("*onsumerOffset.json*"):
        path.unlink()
    with pytest.raises(BrokerError):
        lag_without_spark(asked, 10**6)


def _heart_beat(member: RemotingClient, group: str, model: str, topic: str) -> None:
    """Say that a member of a group is there, until the client asks for another change or closes."""
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": f"test@{group}", "producerDataSet": [], "consumerDataSet": [consumer]}
    member.call(HEART_BEAT, body=json.dumps(body).encode())
