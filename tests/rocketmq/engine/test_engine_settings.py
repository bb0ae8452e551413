"""Settings of the broker by which the write path and a recovery decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_engine.exceptions import BrokerConfigError
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.recover_on_demand import recover_store
from storage_engine.rocketmq.format.broker_config import load_broker_config
from tests.rocketmq.engine.scenarios import contents

SIZES = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "50", "maxIndexNum": "200"}
PROPERTIES_OF = b"KEYS\x01key%d\x02"


@pytest.mark.parametrize("key", ["duplicationEnable", "enableControllerMode"])
def test_a_store_whose_end_others_decide_is_refused_by_the_settings_name(key: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with (
        pytest.raises(BrokerConfigError, match=f"{key}: expected false, found true"),
        open_store(load_broker_config(None, {**SIZES, key: "true"}, root=root)),
    ):
        pass
    assert [path for path in root.rglob("*") if path.is_file() and path.name != "lock"] == []
    with open_store(load_broker_config(None, {**SIZES, key: "false"}, root=root)) as store:
        assert store.put(NewMessage("orders", b"body")).status is PutStatus.PUT_OK


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"brokerRole": "SLAVE"}, "brokerRole: expected a master, found SLAVE"),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}, "inSyncReplicas: expected 1, found 2"),
    ],
)
def test_what_replicas_share_is_recovered_and_never_written_to(
    settings: dict[str, str], named: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with open_store(load_broker_config(None, SIZES, root=root)) as store:
        end = store.put(NewMessage("orders", b"body")).size_bytes
    (root / "abort").touch()
    before = contents(root)
    config = load_broker_config(None, {**SIZES, **settings}, root=root)
    with pytest.raises(BrokerConfigError, match=named), open_store(config):
        pass
    assert contents(root) == before
    found = recover_store(config, dry_run=False, cut_messages=False)
    assert (found.crashed, found.log_end, found.cut_bytes) == (True, end, (1 << 16) - end)
    assert not (root / "abort").exists()
    alone = load_broker_config(None, {**SIZES, "brokerRole": "SYNC_MASTER"}, root=root)
    with open_store(alone) as store:
        assert store.put(NewMessage("orders", b"body")).physical_offset == end


@pytest.mark.parametrize(("forced", "end"), [(True, 3), (False, 10)])
def test_a_changed_key_ends_the_log_only_where_the_whole_message_is_checked(
    forced: bool, end: int, tmp_path: Path
) -> None:
    values = {**SIZES, "enabledAppendPropCRC": "true", "forceVerifyPropCRC": str(forced).lower()}
    config = load_broker_config(None, values, root=tmp_path / "store")
    offsets = []
    with open_store(config) as store:
        for number in range(10):
            offsets.append(
                store.put(NewMessage("orders", b"body", PROPERTIES_OF % number)).physical_offset,
            )
        offsets.append(store.positions().wrote)
    root = tmp_path / "store"
    assert recover_store(config, dry_run=True, cut_messages=False).log_end == offsets[10]
    log = root / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    log.write_bytes(content.replace(b"key3", b"kez3"))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    found = recover_store(config, dry_run=True, cut_messages=False)
    assert found.log_end == offsets[end]


def test_messages_without_the_crc_that_is_asked_for_count_as_damaged(tmp_path: Path) -> None:
    config = load_broker_config(None, SIZES, root=tmp_path / "store")
    with open_store(config) as store:
        store.put(NewMessage("orders", b"body", b"KEYS\x01key\x02"))
    forced = load_broker_config(None, {**SIZES, "forceVerifyPropCRC": "true"}, root=tmp_path / "store")
    assert recover_store(forced, dry_run=True, cut_messages=False).log_end == 0
