"""Bodies of answers: what isn't whole is refused by name; nothing else is ever raised."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.brokers import reading
from storage_engine.rocketmq.remoting import answers
from storage_engine.rocketmq.remoting.answers import AnswerError

READERS: dict[Callable[[bytes], Any], bytes] = {
    answers.runtime_info: json.dumps(
        {
            "table": {
                "brokerVersionDesc": "V5_3_3",
                "bootTimestamp": "1795233765982",
                "commitLogMinOffset": "0",
                "commitLogMaxOffset": "7443298",
                "commitLogDiskRatio": "-1.0",
                "commitLogDiskRatio_/a": "0.61",
                "commitLogDiskRatio_/b": "-1.0",
                "consumeQueueDiskRatio": "0.61",
                "earliestMessageTimeStamp": "-1",
                "dispatchBehindBytes": "0",
                "timerOffsetBehind": "0",
            }
        }
    ).encode(),
    answers.config: b"a=1\nb=c=d\n",
    reading.topic_config: b'{"topicName":"t","readQueueNums":4,"writeQueueNums":8,"perm":6}',
    answers.confirmed_offset: (
        b'{"haConnectionInfo":[{"addr":"h:1","inSync":true,"slaveAckOffset":70},'
        b'{"addr":"h:2","inSync":false,"slaveAckOffset":5}],'
        b'"inSyncSlaveNums":1,"master":true,"masterCommitLogMaxOffset":90}'
    ),
    answers.groups: b'{"subscriptionGroupTable":{"g":{"groupName":"g"}}}',
    reading.topic_stats: (
        b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:'
        b'{"lastUpdateTimestamp":0,"maxOffset":4,"minOffset":1}}}'
    ),
    reading.consume_stats: (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:'
        b'{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":5,"pullOffset":4}}}'
    ),
    answers.cluster_info: (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["b"]}}'
    ),
    lambda body: reading.topic_route("t", body): (
        b'{"brokerDatas":[{"brokerAddrs":{1:"h:2"},"brokerName":"b","cluster":"c"}],'
        b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":8}]}'
    ),
    reading.split_frames: b"",
    answers.parse_in_sync: b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}',
    answers.has_slaves: b'{"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true}',
}
EVERY = pytest.mark.parametrize(("read", "good"), READERS.items(), ids=map(str, range(len(READERS))))


@EVERY
@given(data=st.data())
def test_damaged_body_is_refused_or_read(
    read: Callable[[bytes], Any], good: bytes, data: st.DataObject
) -> None:
    garbage = st.binary(max_size=30)
    body = bytearray(good)
    start = data.draw(st.integers(0, len(body)))
    body[start : start + data.draw(st.integers(0, 10))] = data.draw(garbage)
    try:
        read(bytes(body))
    except AnswerError as error:
        assert "expected" in str(error)  # noqa: PT017


@EVERY
def test_other_json_is_refused(read: Callable[[bytes], Any], good: bytes) -> None:
    for body in (b"[]", b"1", b"null", b'{"table":[1]}', b'{"offsetTable":{"a":1}}', b"\xff", b"[" * 100_000):
        if read is answers.cluster_info and body.startswith(b"{"):
            continue  # an object without brokers is a name server that knows none
        with pytest.raises(AnswerError):
            read(body)
    read(good)


def test_what_a_broker_does_not_know_is_none() -> None:
    info = answers.runtime_info(READERS[answers.runtime_info])
    assert info.commitlog_used_percent == {"/a": 61.0, "/b": None}
    assert info.earliest_message_timestamp_ms is None
    assert reading.topic_stats(READERS[reading.topic_stats])[3].last_update_timestamp_ms is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((b"", b""), 5),  # also what the master doesn't take for in sync
        ((b'"slaveAckOffset":5', b'"slaveAckOffset":80'), 70),
        ((b'true,"slaveAckOffset":70', b'false,"slaveAckOffset":70'), None),
        ((b'"inSyncSlaveNums":1', b'"inSyncSlaveNums":2'), None),
        ((b'"inSyncSlaveNums":1', b'"inSyncSlaveNums":-1'), None),
        ((b'"inSync":false', b'"inSync":true'), None),
        ((b"70", b"-1"), -1),
        ((b'"master":true', b'"master":false'), None),
        ((b"90", b"3"), 3),
    ],
)
def test_a_log_is_confirmed_up_to_what_all_connected_replicas_have(
    change: tuple[bytes, bytes], expected: int | None
) -> None:
    assert answers.confirmed_offset(READERS[answers.confirmed_offset].replace(*change)) == expected


def test_a_master_alone_confirms_its_log() -> None:
    alone = b'{"haConnectionInfo":[],"inSyncSlaveNums":0,"master":true,"masterCommitLogMaxOffset":90}'
    assert answers.confirmed_offset(alone) == 90
    # No controller has chosen it yet.
    assert answers.confirmed_offset(alone.replace(b'Nums":0', b'Nums":-1')) is None


def test_passwords_among_the_settings_are_left_out() -> None:
    body = b'authenticationEnabled=true\ninitAuthenticationUser={"username":"a","password":"b"}\n'
    assert answers.config(body) == {"authenticationEnabled": "true"}


def test_master_is_the_broker_with_id_0() -> None:
    members = answers.cluster_info(READERS[answers.cluster_info]).brokers["b"]
    assert (members.master, reading.slaves_of(members)) == ("h:1", ("h:2",))


def test_brokers_without_a_master_have_none() -> None:
    (members,) = reading.topic_route("t", list(READERS.values())[8]).brokers
    assert (members.master, reading.slaves_of(members)) == (None, ("h:2",))


def test_another_releases_runtime_info_is_refused_by_the_missing_key() -> None:
    body = READERS[answers.runtime_info].replace(b"bootTimestamp", b"started")
    with pytest.raises(AnswerError, match="expected a value for bootTimestamp"):
        answers.runtime_info(body)
