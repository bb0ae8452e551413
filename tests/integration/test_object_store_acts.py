"""Acts of a lake in a real S3 server, where no lock keeps writers apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import Acts, read_acts, record_act
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import read_mark
from storage_engine.lake.file.scan import live_data_files
from storage_engine.lake.gc import compaction
from storage_engine.lake.gc.segment_expiry import remove_expired, undo_expiry
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.storage.small_files import replace_small_file
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import decide_hold, decide_rule
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.retention.housekeeping.lake_expiry import expire_lake
from tests.fixture_stores import unpack
from tests.integration.lake_cycle import archive_some, lake_on
from tests.integration.object_store import ObjectStore
from tests.lake.gc.test_thinning import every_receipt, thin

pytestmark = pytest.mark.integration


@pytest.fixture
def lake(object_store: ObjectStore, tmp_path: Path) -> Lake:
    return make_lake(lake_on(object_store.properties(), tmp_path))


def hold(lake: Lake, topic: str) -> Acts:
    return record_act(lake, lambda acts: decide_hold(acts, Scope(topic=topic), "case 7"))


def claim(lake: Lake, name: str) -> None:
    segments = lake.segments()
    replace_small_file(segments.io, f"{segments.location()}/_storage-engine/claims/{name}", b"claimed")


def test_writers_at_the_same_time_leave_one_chain_or_one_clear_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Threads of one process wait for each other; writers on two hosts don't.
    monkeypatch.setattr(act_files, "CHANGE_LOCK", nullcontext())
    (first,) = record_act(lake, lambda acts: decide_rule(acts, Scope(topic="a*"), "30 days"))
    recorded, refused = [], []

    def write(number: int) -> None:
        try:
            hold(open_lake(lake.config), f"t{number}")
            recorded.append(f"t{number}")
        except LakeUnavailableError as error:
            refused.append(str(error))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(6)))
    acts = read_acts(lake)
    assert acts[0] == first
    assert sorted(str(it.act.decision.scope.topic) for it in acts[1:] if it.act.decision.scope) == sorted(
        recorded
    )
    assert all(
        "another process. Nothing was changed. Run the same command again" in error for error in refused
    )
    assert len(recorded) + len(refused) == 6
    acts = hold(lake, "last")
    mark = read_mark(lake.segments())
    assert mark is not None
    assert mark.act == acts[-1].sha256


def test_the_claim_of_a_writer_keeps_others_away_until_it_is_old(
    lake: Lake, object_store: ObjectStore
) -> None:
    claim(lake, "other.claim")
    with pytest.raises(LakeUnavailableError, match=r"found the claim other.claim of another process"):
        hold(lake, "orders")
    assert read_acts(lake) == ()
    old = time.time() - 3600
    (path,) = object_store.objects.rglob("other.claim")
    os.utime(path, (old, old))
    assert len(hold(lake, "orders")) == 1
    assert not [name for name in object_store.names() if name.endswith(".claim")]


@pytest.mark.again
def test_a_writer_that_took_too_long_for_its_turn_writes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(act_files, "_CLAIM_SECONDS", -1)
    with pytest.raises(LakeUnavailableError, match=r"took too long. Nothing was changed"):
        hold(lake, "orders")
    assert read_acts(lake) == ()


@pytest.mark.again
def test_what_is_past_leaves_comes_back_and_goes_for_good(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, store = lake_on(object_store.properties(), tmp_path / "expiring"), unpack("clean-stop", tmp_path)
    lake = make_lake(config)
    archive_some(config, store, 0, 3)
    # As if the log had one topic: one file takes the place of three, which are there still.
    monkeypatch.setattr(compaction, "COMPACTED_LEAST_FILES", 3)
    monkeypatch.setattr(compaction, "topic_of", lambda broker, log: "orders")
    assert compaction.compact_lake(lake).files == 3
    objects = {name for name in object_store.names() if "/messages/data/" in name and "expiring" in name}
    with monkeypatch.context() as patch:
        ago_ms = clock_ms() - 2 * DAY_MS
        patch.setattr(act_files, "clock_ms", lambda: ago_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: ago_ms * 1_000_000)
        record_act(lake, lambda acts: decide_rule(acts, Scope(), "0 days"))
    # No journal says what the store has: a person does.
    assert not expire_lake(lake, None).leaving
    done = expire_lake(lake, None, gone=("s",))
    assert (len(done.leaving), done.removed) == (3, ())
    assert [row.state for row in receipts(lake, "s", with_ended=True)] == ["expired"] * 3
    assert not live_data_files(lake.messages(), "s")
    undo_expiry(lake, done.act)
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    assert lake.messages().scan(selected_fields=("size",)).to_arrow().num_rows > 0
    assert objects <= object_store.names()
    again = expire_lake(lake, None, gone=("s",), trash_ms=0)
    assert (len(again.leaving), len(again.removed)) == (3, 4)
    assert not objects & object_store.names()
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert (found.overall, found.findings) == (Status.OK, ())
    assert [it.act.decision.kind.value for it in read_acts(lake)] == [
        "keep",
        "expire",
        "undo",
        "expire",
        "removed",
    ]


@pytest.mark.again
def test_topics_leave_come_back_and_their_file_goes_for_good(
    lake: Lake, store_copy: Callable[[str], Path], object_store: ObjectStore
) -> None:
    archive_some(lake.config, store_copy("clean-stop"), 0, 2)
    before = every_receipt(lake, "s")[0]
    acts = []
    for topic in ("orders", "ledger_ordered"):
        acts.append(thin(lake, [before], topic))
        partial = every_receipt(lake, "s")[0]
        assert (partial.state, partial.root) == ("partial", before.root)
        (found,) = verify(lake, VerifyLevel.BYTES)
        assert found.overall is Status.OK, found.findings
        if topic == "orders":
            undo_expiry(lake, acts[0])
            assert every_receipt(lake, "s")[0].proven_files == before.proven_files
    assert remove_expired(lake, trash_ms=0) == before.proven_files
    names = {name.rpartition("/")[2] for name in object_store.names()}
    assert before.data_file.rpartition("/")[2] not in names
    assert partial.data_file.rpartition("/")[2] in names
    (found,) = verify(lake, VerifyLevel.BYTES)
    assert found.overall is Status.OK, found.findings
