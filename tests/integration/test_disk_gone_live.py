"""A store whose disk is gone is restored to its old place, and a real broker goes on there."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.broker import BROKER_CONF, running_broker, start_again
from tests.integration.jvm import write_properties
from tests.integration.live_store import LiveLog, create_topic, send
from tests.integration.stores import Truth, served, unpack
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.usefixtures("plainly")]

BODY_AT = 88
"""In a frame; its length stands before it."""
OLD_S = 1_700_000_000


@pytest.mark.timeout(900)
def test_a_broker_goes_on_at_the_old_place_of_a_store_whose_disk_is_gone(
    tmp_path: Path, name_server_port: int, truth: Truth
) -> None:
    lake, work, store = tmp_path / "lake", tmp_path / "work", unpack("clean-stop", tmp_path / "data")
    conf = tmp_path / "broker.conf"
    write_properties(
        conf, {**BROKER_CONF, "storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
    )
    of_store = (store, "--lake", lake, "--broker-conf", conf)

    def run(*words: object, code: int = 0) -> Outcome:
        done = run_command(*map(str, words))
        assert done.exit_code == code, (words, done.out, done.err)
        return done

    run("init-lake", "--lake", lake)
    run("archive", *of_store)
    end = int(sorted((store / "commitlog").iterdir())[-2].name)
    archived = truth.messages(0, end)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").mkdir()
    assert (
        "This is the store's old directory."
        in run("restore", "--lake", lake, "--to", store, "--for-store", conf).out
    )

    with running_broker(store, work, name_server_port) as broker:
        assert served(broker.client, archived) == archived
        create_topic(broker.client)
        log = LiveLog(broker)
        sent = [send(broker.client, 50_000)]
        assert sent[0].offset == end
        # Over the end of the segment that was the active one.
        while sent[-1].offset < end + (1 << 20):
            sent.append(send(broker.client, 50_000))
        broker.stop()

        for command in ("clean", "archive", "verify"):
            assert "storage-engine stamp" in run(command, *of_store, code=1).err
        run("stamp", *of_store, "--reason", "its disk was lost")
        run("verify", *of_store, code=1)
        run("adopt", *of_store, "--reason", "its disk was lost")
        before = log.names()
        for base in before[:2]:
            os.utime(log.path(base), (OLD_S, OLD_S))
        run("clean", *of_store, "--manual", "--set", "fileReservedTime=72")
        for _ in range(2):
            checked = run("verify", *of_store, "--level", "store", "--json")
            assert checked.json["stores"][0]["overall"] == "OK"
            run("archive", *of_store)
        run("validate", *of_store, "--full")
        left = log.names()
        assert left == before[2:]

        start_again(broker, work, name_server_port)
        assert broker.client.runtime_info().commitlog_min_offset == left[0]
        for one in sent:
            frame = broker.client.view(one.offset)
            assert frame is not None
            length = int.from_bytes(frame[BODY_AT - 4 : BODY_AT])
            assert hashlib.sha256(frame[BODY_AT : BODY_AT + length]).hexdigest() == one.body_sha256
        send(broker.client)
        broker.stop()
    run("clean", *of_store)
    assert run("verify", *of_store, "--level", "store", "--json").json["stores"][0]["overall"] == "OK"
