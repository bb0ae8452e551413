"""Sample stores: what is in them, read as any store, and that the same request gives the same bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import signal
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, StoreBusyError
from storage_engine.model.broker.kind import SampleRequest, SampleStore
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.recover_on_demand import preview_recovery
from storage_engine.rocketmq.format import consume_queue
from storage_engine.rocketmq.format.broker_config import BrokerConfig, load_broker_config
from storage_engine.rocketmq.format.layout import StoreLayout, resolve_layout
from storage_engine.rocketmq.format.mapped_files import MappedFile
from storage_engine.rocketmq.inspect import look_up
from storage_engine.rocketmq.lag.consumer_offsets import consumer_offsets
from storage_engine.rocketmq.pending import read_undecided, waiting_in_levels
from storage_engine.rocketmq.sample import writing
from storage_engine.rocketmq.sample.writing import write_sample
from storage_engine.rocketmq.store.store_lock import lock

END_MS = 1_795_000_000_000
DAY_MS = 86_400_000
SEGMENT_BYTES = 1 << 20


def request(directory: Path, **changes: object) -> SampleRequest:
    made = SampleRequest(directory, 4000, 3, 5, 1, END_MS, SEGMENT_BYTES)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def contents(root: Path) -> dict[str, tuple[str, int]]:
    """By path: the SHA-256 of the bytes, and the mtime."""
    return {
        str(path.relative_to(root)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@dataclasses.dataclass(frozen=True)
class Sample:
    written: SampleStore
    config: BrokerConfig
    layout: StoreLayout


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    written = write_sample(request(tmp_path_factory.mktemp("sample")))
    config = load_broker_config(Path(written.configuration), root=Path(written.store))
    return Sample(written, config, resolve_layout(config))


def test_the_same_request_gives_the_same_bytes_and_another_seed_others(
    sample: Sample, tmp_path: Path
) -> None:
    again = write_sample(request(tmp_path / "again"))
    assert contents(Path(again.store)) == contents(Path(sample.written.store))
    assert len(contents(Path(again.store))) > 30
    other = write_sample(request(tmp_path / "other", seed=2))
    log = f"commitlog/{0:020d}"
    assert contents(Path(other.store))[log] != contents(Path(again.store))[log]


def test_every_message_is_whole_and_has_its_place_in_a_queue(sample: Sample) -> None:
    kinds: dict[str, int] = {}
    queues: dict[tuple[str, int], list[int]] = {}
    for path in sorted((sample.layout.root / "commitlog").iterdir()):
        written = sample.written.log_bytes - int(path.name)
        for table, _ in CODEC.decode(memoryview(path.read_bytes())[:written], int(path.name)):
            for row in table.select(["kind", "topic", "queue_id", "queue_offset"]).to_pylist():
                kinds[row["kind"]] = kinds.get(row["kind"], 0) + 1
                if row["kind"] == "message":
                    queues.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
    assert kinds["message"] == sample.written.messages >= 4000
    assert set(kinds) <= {"message", "blank"}
    for (topic, queue_id), offsets in queues.items():
        assert offsets == list(range(len(offsets)))
        files = consume_queue.FORMAT.files(sample.layout.consumequeue / topic / str(queue_id))
        entries = consume_queue.FORMAT.read_queue(files)
        assert len(entries) == len(offsets)


def test_a_recovery_finds_nothing_to_do(sample: Sample) -> None:
    found = preview_recovery(sample.layout, settings_for(sample.config, sample.layout))
    assert not found.crashed
    assert (found.missing_messages, found.stray_entries, found.cut_messages) == (0, 0, 0)
    assert found.log_end == sample.written.log_bytes


def test_delayed_messages_and_transactions_are_pending_at_the_end(sample: Sample) -> None:
    _, due = waiting_in_levels(sample.layout)
    assert (due > END_MS).all()
    log = [
        MappedFile(path, int(path.name), SEGMENT_BYTES)
        for path in sorted((sample.layout.root / "commitlog").iterdir())
    ]
    halves = read_undecided(sample.layout, log)
    assert len(due) >= 1
    assert len(halves) >= 1
    assert len(due) + len(halves) == sample.written.pending


def test_some_groups_are_far_behind_and_no_group_is_ahead(sample: Sample) -> None:
    rows = consumer_offsets(sample.layout).to_pylist()
    lagging = set()
    for row in rows:
        files = consume_queue.FORMAT.files(sample.layout.consumequeue / row["topic"] / str(row["queue_id"]))
        end = len(consume_queue.FORMAT.read_queue(files))
        assert 0 <= row["committed_offset"] <= end
        if row["committed_offset"] < 0.8 * end and not row["topic"].startswith("RMQ_SYS"):
            lagging.add(row["group"])
    assert len(lagging) == sample.written.lagging_groups == 2


def test_files_have_the_mtimes_that_they_would_have(sample: Sample) -> None:
    paths = sorted((sample.layout.root / "commitlog").iterdir())
    times = [path.stat().st_mtime_ns // 1_000_000 for path in paths]
    assert len(paths) == sample.written.log_files >= 4
    assert times == sorted(times)
    assert times[-1] == END_MS
    assert END_MS - 5 * DAY_MS < times[0] < END_MS - 3 * DAY_MS


def test_a_key_is_found_in_the_index(sample: Sample) -> None:
    found = [
        look_up(sample.layout, sample.config, topic, "SPC-0000000001") for topic in ("orders", "payments")
    ]
    assert sum(len(one.offsets) for one in found) >= 1
    assert not any(one.unread for one in found)


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(BadInputError, match="new or empty"):
        write_sample(request(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_sample_that_was_cut_short_is_written_again(sample: Sample, tmp_path: Path) -> None:
    again = request(tmp_path / "again")
    child = os.fork()
    if child == 0:
        try:
            writing._set_times = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            write_sample(again)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert [path.name for path in again.directory.iterdir()] == [".unfinished"]
    (again.directory / "mine").touch()
    with pytest.raises(BadInputError, match="new or empty"):
        write_sample(again)
    (again.directory / "mine").unlink()
    unfinished = resolve_layout(load_broker_config(None, {}, root=again.directory / ".unfinished"))
    with lock(unfinished), pytest.raises(StoreBusyError):
        write_sample(again)
    write_sample(again)
    assert contents(again.directory / "store") == contents(sample.layout.root)


@pytest.mark.parametrize("changes", [{"segment_bytes": 4096}, {"days": 30_000}, {"days": math.nan}])
def test_what_no_store_can_be_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="Nothing was written"):
        write_sample(request(tmp_path / "new", **changes))
    assert not (tmp_path / "new").exists()
