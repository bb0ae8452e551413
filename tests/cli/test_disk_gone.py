"""A store whose disk is gone is restored to its old place and goes on, as docs/restore.md shows it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.proof.receipt import Receipt
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.format.layout import resolve_layout
from storage_engine.rocketmq.store.store import RocketMQStore
from tests.lake.gc.test_thinning import EVENTS, LEDGER, thin

SEGMENT_BYTES = 1 << 20
NAMES = [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
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
    assert "This is the store's old directory." in restored.out
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


@pytest.mark.slow
def test_what_was_restored_with_filler_proposes_a_lineage_and_no_old_receipt_proves_it(
    cli, store_copy, lake, tmp_path, plainly, expire
) -> None:
    store: Path = store_copy("clean-stop")
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in SIZES.items()))
    second = tmp_path / "second"
    assert cli("init-lake", "--lake", second).exit_code == 0
    one, both = (store, "--lake", lake, "--broker-conf", conf), ("--second-lake", second)
    assert cli("archive", *one, *both).exit_code == 0
    (summary,) = list_stores(opened := open_lake(LakeConfig.local(lake)))
    partly = receipts(opened, summary.store_id)[:2]
    thin(opened, partly, EVENTS, LEDGER)
    # The second lake has them whole.
    _archive(open_lake(LakeConfig.local(second)), store, partly[0])
    shutil.rmtree(store)
    restored = cli("restore", "--lake", lake, "--to", store, "--for-store", conf, "--with-filler", "--json")
    assert restored.exit_code == 0, restored.err
    files = [row["sha256"] == row["archived_sha256"] for row in restored.json["restored"]]
    assert files == [False, False, True, True, True, True, True]
    _write(store, 400)
    assert cli("stamp", *one, "--reason", "its disk was lost").exit_code == 0
    expire(store)

    (shown,) = cli("info", "--lake", lake, "--json").json["stores"]
    assert [note.partition(" was restored with ")[0][-20:] for note in shown["filled"]] == NAMES
    for lakes in ((), both):
        for verified in cli("verify", *one, *lakes, "--json").json["stores"]:
            told = [it["detail"] for it in verified["findings"]]
            assert ["No receipt proves these bytes" in detail for detail in told] == [True, True]
    notes = cli("validate", *one, "--json").json["notes"]
    assert [note in shown["filled"] for note in notes if "filler" in note] == [True, True]
    for lakes in ((), both):
        refused = cli("clean", *one, *lakes, "--manual", "--set", "deleteWhen=99")
        assert refused.exit_code == 1, refused.out
        said = refused.out + refused.err
        assert f"{NAMES[0]}: expected SHA-256" in said
        assert "or a restore filled missing messages, run storage-engine adopt" in said
        assert len(list((store / "commitlog").iterdir())) == 8

    assert cli("adopt", *one, "--reason", "its disk was lost").exit_code == 0
    assert cli("archive", *one).exit_code == 0
    assert cli("verify", *one, "--json").json["stores"][0]["findings"] == []
    cleaned = cli("clean", *one, "--manual", "--set", "deleteWhen=99", "--max-segments", 3)
    assert cleaned.exit_code == 0, cleaned.out + cleaned.err
    assert len(list((store / "commitlog").iterdir())) == 5
    verified = cli("verify", *one, "--json").json["stores"][0]
    assert (verified["overall"], verified["findings"]) == ("OK", [])
    assert cli("info", "--lake", lake, "--json").json["stores"][0]["filled"] == []


def _archive(lake: Lake, root: Path, receipt: Receipt) -> None:
    """Archive a store's first two segments as those of a receipt's store."""
    snapshot = RocketMQStore.open(load_broker_config(None, SIZES, root=root)).snapshot(0)
    of_store = {"store_id": receipt.store_id, "lineage": receipt.lineage, "store_root": receipt.store_root}
    sealed = snapshot.logs[0].sealed[:2]
    archive_all(lake, segment_jobs(lake, sealed, broker=snapshot.broker, **of_store))


def _write(root: Path, count: int) -> None:
    """Go on with a store, as its broker does."""
    config = load_broker_config(None, SIZES, root=root)
    layout = resolve_layout(config)
    store = MessageStore(layout, settings_for(config, layout))
    store.start(services=False)
    for _ in range(count):
        assert store.put(NewMessage("orders", b"m" * 4000)).status is PutStatus.PUT_OK
    store.stop()
