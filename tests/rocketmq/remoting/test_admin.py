"""What a broker says is checked: a yes that changed nothing, a lost answer, a frame that isn't the one."""

from __future__ import annotations

import json
import socket
import struct

import pytest

from demo.brokers import reading
from demo.brokers.reading import PullStatus, ReadingAdmin
from storage_engine.exceptions import (
    BadInputError,
    BrokerError,
    BrokerProtocolError,
    BrokerRefusedError,
    BrokerUnavailableError,
    NotOnBrokerError,
)
from storage_engine.rocketmq.codec.frame_layout import (
    MAGIC_AT,
    MAGIC_V1,
    MIN_MESSAGE_BYTES,
    PHYSICAL_OFFSET_AT,
)
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.command import RemotingCommand
from storage_engine.rocketmq.remoting.connection import REMARK_CHARACTERS, Access
from tests.rocketmq.remoting.peer import Behaviour, Peer, answer, close, keep_silent, send

HASTY, PATIENT = Access(60, 1), Access(60, 60)
OLD, NEW = b"deleteWhen=04\nfileReservedTime=72\n", b"deleteWhen=04\nfileReservedTime=48\n"
CHANGE = {"fileReservedTime": "48"}
V4_9_7, V5_3_3 = 407, 479
"""Ordinals of releases, as brokers of these were seen to send them."""


def frame(physical_offset: int, size: int = MIN_MESSAGE_BYTES) -> bytes:
    data = bytearray(size)
    struct.pack_into(">i", data, 0, size)
    struct.pack_into(">I", data, MAGIC_AT, MAGIC_V1)
    struct.pack_into(">q", data, PHYSICAL_OFFSET_AT, physical_offset)
    return bytes(data)


def test_changed_setting_is_read_back() -> None:
    with Peer(answer(body=OLD), answer(), answer(body=NEW)) as peer, ReadingAdmin(peer.address) as admin:
        assert admin.update_config({"deleteWhen": "04", **CHANGE})["fileReservedTime"] == "48"
        assert [request.code for request in peer.requests] == [26, 25, 26]
        assert peer.requests[1].body == b"deleteWhen=04\nfileReservedTime=48\n"


def test_yes_without_the_change_is_a_refusal() -> None:
    with Peer(answer(body=OLD), answer(), answer(body=OLD)) as peer, ReadingAdmin(peer.address) as admin:
        with pytest.raises(BrokerRefusedError, match="has fileReservedTime='72' instead of '48'") as raised:
            admin.update_config(CHANGE)
        assert raised.value.may_have_acted


@pytest.mark.parametrize("lost", [close, keep_silent, send(b"\xff" * 8)], ids=["cut", "silent", "garbage"])
def test_lost_answer_to_a_change_is_settled_by_reading_back(lost: Behaviour) -> None:
    for after, succeeds in ((NEW, True), (OLD, False)):
        behaviours = (answer(body=OLD), lost, answer(body=after))
        access = HASTY if lost is keep_silent else PATIENT
        with Peer(*behaviours) as peer, ReadingAdmin(peer.address, access) as admin:
            if succeeds:
                admin.update_config(CHANGE)
            else:
                with pytest.raises(BrokerError, match="request 25"):
                    admin.update_config(CHANGE)
            assert [request.code for request in peer.requests] == [26, 25, 26]


def test_change_that_cannot_be_read_back_may_have_been_made() -> None:
    with Peer(answer(body=OLD), answer(), keep_silent) as peer, ReadingAdmin(peer.address, HASTY) as admin:
        with pytest.raises(BrokerUnavailableError, match="request 26") as raised:
            admin.update_config(CHANGE)
        assert raised.value.may_have_acted


def test_setting_that_is_not_ours_to_change_is_never_sent() -> None:
    with Peer(answer(body=OLD)) as peer, ReadingAdmin(peer.address) as admin:
        with pytest.raises(BadInputError, match="found mappedFileSizeCommitLog"):
            admin.update_config({"mappedFileSizeCommitLog": "1024"})
        with pytest.raises(NotOnBrokerError, match="expected a broker with cleanFileForciblyEnable"):
            admin.update_config({"cleanFileForciblyEnable": "false"})
        assert command.UPDATE_BROKER_CONFIG not in {request.code for request in peer.requests}


def test_queue_that_does_not_exist_is_never_asked_for() -> None:
    topic = b'{"topicName":"t","readQueueNums":4,"writeQueueNums":2,"perm":6}'
    with Peer(answer(body=topic)) as peer, ReadingAdmin(peer.address) as admin:
        for ask in (admin.min_offset, admin.max_offset, admin.earliest_message_timestamp_ms):
            for queue_id in (-1, 4):
                with pytest.raises(NotOnBrokerError, match="found 4 queues"):
                    ask("t", queue_id)
        assert {request.code for request in peer.requests} == {reading.GET_TOPIC_CONFIG}


def test_success_without_an_offset_is_no_offset() -> None:
    topic = b'{"topicName":"t","readQueueNums":4,"writeQueueNums":2,"perm":6}'
    with (
        Peer(answer(body=topic), answer()) as peer,
        ReadingAdmin(peer.address) as admin,
        pytest.raises(BrokerProtocolError, match=r"request 30 .*: expected a value for offset"),
    ):
        admin.max_offset("t", 3)


def test_message_at_another_offset_is_not_the_one() -> None:
    cut = frame(500)[:-1]
    bodies = (frame(500), frame(600), cut, b"", bytes(MIN_MESSAGE_BYTES))
    with Peer(*(answer(body=body) for body in bodies)) as peer, ReadingAdmin(peer.address) as admin:
        assert [admin.view_message(500) for _ in bodies] == [frame(500), None, None, None, None]


def test_pull_gives_whole_frames_or_fails() -> None:
    fields = {"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "2"}
    found = answer(body=frame(0) + frame(100, 200), fields=fields)
    cut = answer(body=frame(0) + frame(100)[:-1], fields=fields)
    moved = answer(reading.PULL_OFFSET_MOVED, fields=fields)
    with Peer(found, cut, moved) as peer, ReadingAdmin(peer.address) as admin:
        assert admin.pull("t", 0, 0).frames == (frame(0), frame(100, 200))
        with pytest.raises(BrokerProtocolError, match="expected whole frames"):
            admin.pull("t", 0, 0)
        assert admin.pull("t", 0, 0).status is PullStatus.OFFSET_MOVED


def test_timers_are_asked_of_releases_that_have_them() -> None:
    table = {
        "brokerVersionDesc": "V4_9_7",
        "bootTimestamp": "1",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "7",
        "consumeQueueDiskRatio": "0.5",
        "earliestMessageTimeStamp": "-1",
        "dispatchBehindBytes": "0",
    }
    body = json.dumps({"table": table}).encode()
    with (
        Peer(answer(body=body, version=V4_9_7), answer(body=body, version=V5_3_3)) as peer,
        ReadingAdmin(peer.address) as admin,
    ):
        assert admin.runtime_info().timer_behind_messages == 0
        with pytest.raises(BrokerProtocolError, match="timerOffsetBehind"):
            admin.runtime_info()


def test_what_a_release_does_not_read_is_no_setting_of_it() -> None:
    body = b"deleteFileBatchMax=3\nfileReservedTime=48\n"
    with (
        Peer(answer(body=body, version=V4_9_7), answer(body=body, version=V5_3_3)) as peer,
        ReadingAdmin(peer.address) as admin,
    ):
        assert admin.config() == {"fileReservedTime": "48", "brokerVersion": "4.9.7"}
        assert admin.config()["deleteFileBatchMax"] == "3"


def test_broken_table_of_offsets_is_no_table() -> None:
    for body in (b"{", b'{"offsetTable":{"no separator":{0:1}}}', b'{"offsetTable":{"t@g":[1]}}', b"\xff"):
        with (
            Peer(answer(body=body)) as peer,
            ReadingAdmin(peer.address) as admin,
            pytest.raises(BrokerProtocolError, match="request 43"),
        ):
            admin.consumer_offsets()


def test_lost_answer_to_a_deletion_is_not_asked_for_again() -> None:
    for act in (ReadingAdmin.delete_expired_commitlog, ReadingAdmin.clean_expired_consume_queues):
        with Peer(close) as peer, ReadingAdmin(peer.address, PATIENT) as admin:
            with pytest.raises(BrokerUnavailableError) as raised:
                act(admin)
            assert raised.value.may_have_acted
            assert len(peer.requests) == 1


def test_a_remark_of_megabytes_is_cut() -> None:
    with Peer(answer(1, remark="boom " * (1 << 20))) as peer, ReadingAdmin(peer.address) as admin:
        with pytest.raises(BrokerRefusedError, match="boom") as raised:
            admin.config()
        assert len(raised.value.remark) <= REMARK_CHARACTERS
        assert len(str(raised.value)) < REMARK_CHARACTERS + 500


@pytest.mark.parametrize(
    "body", [b'{"offsetTable":{[[[1]]]:{}}}', b'{"offsetTable":{[1,2]:{}}}', b'{"offsetTable":{"x":1e400}}']
)
def test_an_answer_that_no_broker_gives_is_none(body: bytes) -> None:
    with Peer(answer(body=body)) as peer, ReadingAdmin(peer.address) as admin:
        with pytest.raises(BrokerProtocolError):
            admin.topic_stats("t")
        with pytest.raises(BrokerProtocolError):
            admin.consumer_offsets()


def test_half_a_character_in_a_remark_can_be_shown() -> None:
    def half(connection: socket.socket, request: RemotingCommand) -> None:
        header = {
            "code": 1,
            "language": "JAVA",
            "version": 1,
            "opaque": request.opaque,
            "flag": 1,
            "remark": "\ud800",
        }
        data = json.dumps(header).encode()
        connection.sendall(struct.pack(">ii", 4 + len(data), len(data)) + data)

    with Peer(half) as peer, ReadingAdmin(peer.address) as admin:
        with pytest.raises(BrokerRefusedError) as raised:
            admin.config()
        str(raised.value).encode()


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        (answer(body=b'{"haConnectionInfo":[]}'), False),
        (answer(body=b'{"haConnectionInfo":[{"addr":"h:1"}]}'), True),
        (answer(command.REQUEST_CODE_NOT_SUPPORTED), False),
        (answer(command.NO_PERMISSION), True),
    ],
    ids=["none", "one", "4.9", "not said"],
)
def test_a_broker_that_does_not_say_whether_it_has_slaves_may_have_some(
    answered: Behaviour, expected: bool
) -> None:
    with Peer(answered) as peer, ReadingAdmin(peer.address) as admin:
        assert admin.has_slaves() is expected
