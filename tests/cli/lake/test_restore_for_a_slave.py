"""A restore for a slave: its master is asked first whether its log is the archived one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.command import RemotingCommand
from tests.cli.lake.test_restore_for_a_broker import SIZES
from tests.integration.stores import Truth
from tests.rocketmq.remoting.peer import Peer, answer
from tests.rounds import later

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 1 << 20


@dataclass(frozen=True)
class Master:
    """Answers as the name server and the master of a log.

    :param role: its brokerRole.
    :param refuses: says that who asks may not.
    """

    log: Path
    min_offset: int = 0
    role: str = "ASYNC_MASTER"
    change: Callable[[bytes], bytes] = bytes
    refuses: bool = False

    def behave(self, connection: socket.socket, request: RemotingCommand) -> None:
        host, port = connection.getsockname()
        body: bytes | dict[str, object]
        if request.code == command.GET_BROKER_CLUSTER_INFO:
            members = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": f"{host}:{port}"}}
            body = {"brokerAddrTable": {"b": members}, "clusterAddrTable": {"c": ["b"]}}
        elif self.refuses:
            answer(command.NO_PERMISSION)(connection, request)
            return
        elif request.code == command.GET_BROKER_CONFIG:
            body = f"brokerName=b\nbrokerRole={self.role}\n".encode()
        elif request.code == command.GET_BROKER_RUNTIME_INFO:
            table = {"brokerVersionDesc": "V5_3_3", "consumeQueueDiskRatio": "0.1"}
            table |= dict.fromkeys(("bootTimestamp", "earliestMessageTimeStamp", "commitLogMaxOffset"), "1")
            table |= dict.fromkeys(("dispatchBehindBytes", "timerOffsetBehind"), "0")
            body = {"table": {**table, "commitLogMinOffset": str(self.min_offset)}}
        else:
            assert request.code == command.VIEW_MESSAGE_BY_ID
            base, at = divmod(int(request.fields["offset"]), SEGMENT_BYTES)
            data = (self.log / f"{base * SEGMENT_BYTES:020d}").read_bytes()
            body = self.change(data[at : at + int.from_bytes(data[at : at + 4])])
        answer(body=body if isinstance(body, bytes) else json.dumps(body).encode())(connection, request)


@pytest.fixture
def restore(cli, archived, tmp_path):
    """Restore for a slave of a master that answers so."""
    conf = tmp_path / "slave.conf"

    def run(master: Master, *words: object, **changes: str):
        with Peer(master.behave) as peer:
            says = {"brokerRole": "SLAVE", "brokerName": "b", "namesrvAddr": peer.address, **SIZES, **changes}
            conf.write_text("".join(f"{key}={value}\n" for key, value in says.items()))
            to = ("--to", tmp_path / "back", "--for-store", conf)
            return cli("restore", "--lake", archived.lake, *to, *words), peer.requests

    return run


@pytest.fixture
def master(archived) -> Master:
    return Master(archived.store / "commitlog")


def test_a_master_with_the_archived_log_is_gone_on_from(restore, master, tmp_path) -> None:
    done, _ = restore(master)
    assert done.exit_code == 0, done.err
    assert len(list((tmp_path / "back" / "commitlog").iterdir())) == 7


@pytest.mark.parametrize("segments", [7, *later(*range(1, 7))])
def test_the_last_message_is_what_is_asked_for(restore, master, segments) -> None:
    """Also where the last segment is one blank frame, as the seventh is."""
    end = segments * SEGMENT_BYTES
    done, requests = restore(master, "--to-offset", end)
    assert done.exit_code == 0, done.err
    (asked,) = (one for one in requests if one.code == command.VIEW_MESSAGE_BY_ID)
    assert int(asked.fields["offset"]) == max(
        offset for offset in Truth.of("clean-stop").frames if offset < end
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), "found another"),
        (lambda frame: b"", "found no message that begins at this offset"),
        (lambda frame: bytes(len(frame)), "found no message that begins at this offset"),
    ],
)
def test_a_master_with_another_message_there_is_refused(restore, master, tmp_path, change, says) -> None:
    refused, _ = restore(replace(master, change=change))
    assert refused.exit_code == 1
    for part in (says, "continues differently from the archived one", "Nothing was written"):
        assert part in refused.err
    assert not (tmp_path / "back").exists()


def test_a_master_that_begins_behind_the_last_message_is_refused(restore, master, tmp_path) -> None:
    refused, _ = restore(replace(master, min_offset=7 * SEGMENT_BYTES))
    assert refused.exit_code == 1
    for part in (f"begins at {7 * SEGMENT_BYTES}", "wait for ever", "Nothing was written"):
        assert part in refused.err
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"namesrvAddr": ""}, 1, "found namesrvAddr='' and brokerName='b'"),
        ({"namesrvAddr": "127.0.0.1:1"}, 1, "it can't be asked"),
        ({"brokerName": "other"}, 1, "expected broker 'other', found b"),
    ],
)
def test_a_slave_whose_master_can_not_be_asked_is_refused(
    restore, master, tmp_path, changes, code, says
) -> None:
    refused, _ = restore(master, **changes)
    assert refused.exit_code == code
    assert says in refused.err
    assert "Nothing was written" in refused.err
    assert not (tmp_path / "back").exists()


def test_a_master_that_lets_nobody_ask_is_not_passed_by(restore, master, tmp_path) -> None:
    """To make the store a master's would keep anybody from asking."""
    refused, _ = restore(replace(master, refuses=True))
    assert refused.exit_code == 1
    for part in ("it can't be asked", "without an access key and without TLS", "Nothing was written"):
        assert part in refused.err
    assert "ASYNC_MASTER" not in refused.err
    assert not (tmp_path / "back").exists()


def test_a_slave_of_a_slave_is_refused(restore, master, tmp_path) -> None:
    refused, _ = restore(replace(master, role="SLAVE"))
    assert refused.exit_code == 2
    assert "expected a master, found a slave" in refused.err
    assert not (tmp_path / "back").exists()
