"""A store whose disk is gone is restored to its old place and goes on, as docs/restore.md and
runbooks/host-lost.md show it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.rocketmq.engine.append.new_message import NewMessage, PutStatus
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout

SEGMENT_BYTES = 1 << 20
SIZES = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


@pytest.mark.slow
@pytest.mark.parametrize("messages", [3, pytest.param(400, marks=pytest.mark.again)])
def test_a_store_whose_disk_is_gone_goes_on_at_its_old_place(
    cli, store_copy, lake, tmp_path, plainly, messages
) -> None:
    """With 3 more messages the last restored segment is active again, with 400 it is sealed again."""
    store: Path = store_copy("clean-stop")
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SIZES.items()))
    of_store = (store, "--lake", lake, "--broker-conf", conf)
    assert cli("archive", *of_store).exit_code == 0
    last = sorted((store / "commitlog").iterdir())[-2]
    shutil.rmtree(store)
    restored = cli("restore", "--lake", lake, "--to", store, "--for-store", conf)
    assert restored.exit_code == 0, restored.err
    assert "This is the store's old place." in restored.out
    _write(store, messages)
    active = sorted((store / "commitlog").iterdir())[-1]
    assert (active == last) is (messages == 3)

    for command in ("clean", "archive", "verify"):
        refused = cli(command, *of_store)
        assert refused.exit_code == 1
        assert "storage-engine stamp" in refused.err
    assert cli("stamp", *of_store, "--reason", "its disk was lost").exit_code == 0
    assert cli("verify", *of_store).exit_code == 1
    assert cli("adopt", *of_store, "--reason", "its disk was lost").exit_code == 0
    cleaned = cli("clean", *of_store)
    assert cleaned.exit_code == 0, cleaned.out + cleaned.err
    for _ in range(2):
        checked = cli("verify", *of_store, "--level", "store", "--json")
        assert checked.exit_code == 0, checked.out
        assert checked.json["stores"][0]["overall"] == "OK"
        assert cli("archive", *of_store).exit_code == 0
    assert cli("validate", *of_store, "--full").exit_code == 0


def _write(root: Path, count: int) -> None:
    """Go on with a store, as its broker does."""
    config = load_broker_config(None, SIZES, root=root)
    layout = resolve_layout(config)
    store = MessageStore(layout, settings_for(config, layout))
    store.start(services=False)
    for _ in range(count):
        assert store.put(NewMessage("orders", b"m" * 4000)).status is PutStatus.PUT_OK
    store.stop()
