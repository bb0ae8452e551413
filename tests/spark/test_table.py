"""A store's rows as one table: each once, wherever they are, and no hole that isn't named."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_engine.brokers import find_broker
from storage_engine.exceptions import AgentError, BadInputError, LakeUnavailableError, StoreNotFoundError
from storage_engine.kafka.format.checkpoints import HIGH_WATERMARK
from storage_engine.kafka.format.partition_metadata import NAME as PARTITION_METADATA
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import data_file_of
from storage_engine.lake.coverage.coverage import log_ranges, names_of_logs
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.file.source_file import LocalFiles
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.model.keep.keep_rules import ArchiveRule, Scope
from storage_engine.model.report.validation import Where
from storage_engine.model.store import Lineages, Segment, SegmentState
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import update_stamp
from storage_engine.spark.query_plan import (
    RowsMissingError,
    StoreLook,
    _limits,
    _list_cut_parts,
    look_at_store,
)
from storage_engine.spark.session import spark_session
from storage_engine.spark.table import Options, ReadTask, StoreReader, StoreTable, table
from tests.archive_rules import permits_of
from tests.docs.code_blocks import blocks_under
from tests.fixture_stores import unpack
from tests.integration.broker import FIXTURE_SIZES
from tests.integration.stores import Truth, open_store
from tests.kafka import lakes as kafka_lakes
from tests.kafka.stopped_nodes import make_node
from tests.kafka_fixture import truth
from tests.kafka_fixture import unpack as unpack_node
from tests.lake.agents import TOKEN, serving
from tests.lake.gc.test_segment_expiry import expire
from tests.lake.gc.test_thinning import EVENTS, LEDGER, ORDERS, thin
from tests.other_engine import delete_position
from tests.rounds import rounds

SETTINGS = ",".join(f"{name}={value}" for name, value in FIXTURE_SIZES.items())
STORE = "store-1"
EXAMPLES = rounds("STORAGE_ENGINE_TABLE_EXAMPLES", 6, 60)
DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"
TRUTH = Truth.of("clean-stop")


@dataclass(frozen=True)
class Place:
    """A stopped RocketMQ store beside a lake."""

    root: Path
    lake_dir: Path

    @property
    def lake(self) -> Lake:
        return open_lake(LakeConfig.local(self.lake_dir))

    @property
    def sealed(self) -> Sequence[Segment]:
        return open_store(self.root).snapshot(0).logs[0].sealed

    def archive(self, segments: Sequence[Segment], lineage: int = 1) -> None:
        root = str(self.root.resolve())
        known = {"store_id": STORE, "lineage": lineage, "broker": "rocketmq", "store_root": root}
        archive_all(self.lake, segment_jobs(self.lake, segments, **known))

    def release(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            Path(segment.facts.path).unlink()

    def reader(self, *columns: str, **options: str) -> StoreReader:
        named = {"lake": str(self.lake_dir), "store": str(self.root), "set": SETTINGS, "storeId": STORE}
        return reader_of({**named, **options}, columns)


def reader_of(options: dict[str, str], columns: Sequence[str] = (), **more: str) -> StoreReader:
    options = options | more
    given_options = Options.read({**options, "columns": ",".join(columns)})
    return StoreReader(given_options, StoreTable({**options, "columns": ",".join(columns)}).schema().names)


def planned(reader: StoreReader) -> list[ReadTask]:
    """The tasks of a scan, as executors get them."""
    return [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]


def read(reader: StoreReader, tasks: Sequence[ReadTask] | None = None) -> pa.Table:
    tasks = planned(reader) if tasks is None else tasks
    batches = [batch for task in tasks for batch in reader.read(task)]
    return pa.Table.from_batches(batches, tasks[0].scan.schema)


def frames_of(rows: pa.Table) -> dict[int, str]:
    """SHA-256 of the bytes that messages are made again of, by physical offset; each is there once."""
    codec = find_broker("rocketmq").codec
    is_message = pa.array([kind == "message" for kind in rows["kind"].to_pylist()])
    rows = rows.filter(is_message).sort_by("physical_offset")
    offsets, sizes = rows["physical_offset"].to_pylist(), rows["size"].to_pylist()
    assert len(set(offsets)) == len(offsets)
    if not offsets:
        return {}
    out = bytearray(offsets[-1] + sizes[-1] - offsets[0])
    codec.encode(rows.select(codec.encoded_columns), memoryview(out), offsets[0])
    starts = [offset - offsets[0] for offset in offsets]
    return {
        offset: hashlib.sha256(out[start : start + size]).hexdigest()
        for offset, start, size in zip(offsets, starts, sizes, strict=True)
    }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    lake_dir = tmp_path / "lake"
    make_lake(LakeConfig.local(lake_dir))
    return Place(unpack("clean-stop", tmp_path / "store"), lake_dir)


@settings(
    max_examples=rounds("STORAGE_ENGINE_TABLE_EXAMPLES", 6, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(archived=st.sets(st.integers(0, 6)), released=st.integers(0, 7))
def test_every_row_is_there_once_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, archived: set[int], released: int
) -> None:
    base = tmp_path_factory.mktemp("place")
    make_lake(LakeConfig.local(base / "lake"))
    place = Place(unpack("clean-stop", base / "store"), base / "lake")
    sealed = place.sealed
    place.archive([sealed[at] for at in sorted({*archived, *range(released)})])
    place.release(sealed[:released])
    assert frames_of(read(place.reader())) == TRUTH.frames


def test_a_segment_that_leaves_between_planning_and_reading_is_read_from_the_lake(place: Place) -> None:
    reader, sealed = place.reader(), place.sealed
    place.archive(sealed[:1])
    tasks = planned(reader)
    place.archive(sealed[1:3])
    place.release(sealed[:3])
    assert frames_of(read(reader, tasks)) == TRUTH.frames


def test_a_segment_that_is_sealed_and_archived_between_both_looks_is_none_that_differs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.archive(place.sealed[:6])
    last, looks = place.sealed[5], list[int]()

    def look(store: ManagedStore) -> StoreLook:
        looks.append(1)
        found = look_at_store(store)
        if len(looks) > 1:
            return found
        (log,) = found.snapshot.logs
        segments = (*log.segments[:5], replace(last, state=SegmentState.ACTIVE))
        log = replace(log, segments=segments, max_offset=last.end_offset - 1, dispatched_offset=0)
        return replace(found, snapshot=replace(found.snapshot, logs=(log,)))

    monkeypatch.setattr("storage_engine.spark.table.look_at_store", look)
    assert frames_of(read(place.reader())) == TRUTH.frames
    assert len(looks) == 2


def test_a_segment_that_leaves_and_is_in_no_lake_ends_the_query(place: Place) -> None:
    reader, sealed = place.reader(), place.sealed
    place.archive(sealed[:1])
    tasks = planned(reader)
    place.release(sealed[1:2])
    with pytest.raises(RowsMissingError, match=r"offset 1048576 of log commitlog .* isn't in the lake"):
        read(reader, tasks)


def test_segments_of_the_store_come_from_an_agent_and_what_left_it_from_the_lake(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    files = [segment.facts for segment in open_store(place.root).snapshot(0).logs[0].segments]
    sealed = place.sealed
    place.archive(sealed[:2])
    with serving(place.root.resolve(), files=files) as (_, access):
        reader = place.reader(agent=access.address, agentToken=str(token))
        tasks = planned(reader)
        place.archive(sealed[2:4])
        place.release(sealed[:4])
        monkeypatch.setattr(LocalFiles, "read", None)
        assert frames_of(read(reader, tasks)) == TRUTH.frames
    with pytest.raises(AgentError, match="Connection refused"):
        read(reader, tasks)


def test_another_file_in_a_segments_place_is_not_read(place: Place) -> None:
    reader, sealed = place.reader(), place.sealed
    tasks = planned(reader)
    path = Path(sealed[0].facts.path)
    content = path.read_bytes()
    path.rename(path.with_suffix(".before"))
    path.write_bytes(content)
    with pytest.raises(RowsMissingError, match="offset 0 of log commitlog"):
        read(reader, tasks)


def test_lost_segments_are_named_and_read_over_where_that_is_asked_for(place: Place) -> None:
    sealed = place.sealed
    place.archive(sealed[:1])
    place.release(sealed[:3])
    with pytest.raises(RowsMissingError, match=r"commitlog \[1048576, 3145728\) LOST: neither on disk nor"):
        planned(place.reader())
    found = frames_of(read(place.reader(holes="skip")))
    assert found == {at: sha for at, sha in TRUTH.frames.items() if not 1048576 <= at < 3145728}
    # Nothing that is asked for may have been there.
    assert read(place.reader("log", where="log = 'another'")).num_rows == 0


def test_expired_rows_are_named_unless_none_of_them_is_asked_for(place: Place) -> None:
    sealed, lake = place.sealed, place.lake
    place.archive(sealed[:4])
    place.release(sealed[:4])
    rows = receipts(lake, STORE)
    expire(lake, rows[:1])
    thin(lake, rows[1:2], EVENTS, LEDGER)
    with pytest.raises(RowsMissingError, match=r"commitlog \[0, 1048576\) EXPIRED: .*policy"):
        planned(place.reader())
    later = "physical_offset >= 0 and segment_base_offset >= 1048576"
    with pytest.raises(RowsMissingError, match=r"\[1048576, 2097152\) EXPIRED: in the lake in part only"):
        planned(place.reader(where=later))
    # The rows of a topic that stayed are all there.
    orders = read(place.reader("physical_offset", where=f"{later} and topic = '{ORDERS}'"))
    assert orders.num_rows > 100
    last_ms = rows[1].last_store_timestamp_ms
    assert last_ms is not None
    behind = f"store_timestamp > '{pa.scalar(last_ms + 1, pa.timestamp('ms', 'UTC')).as_py().isoformat()}'"
    assert read(place.reader("physical_offset", where=behind)).num_rows > 100
    skipped = read(place.reader("physical_offset", "topic", holes="skip"))
    assert min(skipped["physical_offset"].to_pylist()) >= 1048576
    of_thinned = [row["topic"] for row in skipped.to_pylist() if row["physical_offset"] < 2097152]
    assert set(of_thinned) == {ORDERS, None}


def test_topics_that_a_rule_left_out_are_named_unless_others_are_asked_for(place: Place) -> None:
    sealed, root = place.sealed, str(place.root.resolve())
    rule = ArchiveRule("a" * 64, Scope(topic=LEDGER), False, "anna", 0)
    known = {"store_id": STORE, "lineage": 1, "broker": "rocketmq", "store_root": root}
    archive_all(place.lake, segment_jobs(place.lake, sealed[:2], **known, permits=permits_of([rule])))
    assert frames_of(read(place.reader())) == TRUTH.frames
    place.release(sealed[:2])
    with pytest.raises(RowsMissingError, match=r"NOT ARCHIVED: not archived, by rule aaaaaaaaaaaa"):
        planned(place.reader())
    with pytest.raises(RowsMissingError, match="NOT ARCHIVED"):
        planned(place.reader(where=f"topic = '{LEDGER}'"))
    every = read(place.reader("physical_offset", "topic", holes="skip")).to_pylist()
    orders = read(place.reader("physical_offset", where=f"topic = '{ORDERS}'"))
    assert orders.num_rows == sum(row["topic"] == ORDERS for row in every) > 0
    assert all(row["topic"] != LEDGER for row in every if row["physical_offset"] < 2097152)


def test_a_segment_on_disk_is_whole_where_the_lake_has_a_part(place: Place) -> None:
    place.archive(place.sealed[:2])
    thin(place.lake, receipts(place.lake, STORE)[1:2], EVENTS)
    assert frames_of(read(place.reader())) == TRUTH.frames


def test_a_segment_whose_bytes_are_others_than_the_lakes_ends_the_query(place: Place) -> None:
    segment = place.sealed[0]
    place.archive([segment])
    content = bytearray(Path(segment.facts.path).read_bytes())
    content[100] ^= 1
    Path(segment.facts.path).write_bytes(content)
    with pytest.raises(RowsMissingError, match=r"SHA-256 .* on disk, .* in the lake"):
        planned(place.reader(holes="skip"))


def test_of_several_lineages_the_newest_counts(place: Place) -> None:
    sealed = place.sealed
    place.archive(sealed[:2], lineage=1)
    place.archive(sealed[:3], lineage=2)
    rows = read(place.reader())
    assert frames_of(rows) == TRUTH.frames
    assert set(rows["lineage"].to_pylist()) == {2}


def test_what_an_older_lineage_alone_has_is_read(place: Place) -> None:
    sealed = place.sealed
    place.archive(sealed[:4], lineage=1)
    place.release(sealed[:2])
    for lineage in 2, 3:
        place.archive(sealed[lineage:5], lineage=lineage)
    assert frames_of(read(place.reader())) == TRUTH.frames
    rows = read(place.reader("lineage", "segment_base_offset", "kind"))
    of_segments = {(row["segment_base_offset"] // 1048576, row["lineage"]) for row in rows.to_pylist()}
    assert of_segments == {(0, 1), (1, 1), *((at, 3) for at in range(2, 8))}
    alone = frames_of(read(reader_of({"lake": str(place.lake_dir)})))
    assert alone == {at: sha for at, sha in TRUTH.frames.items() if at < 5 * 1048576}


def test_a_segment_that_a_newer_lineage_begins_within_is_named(tmp_path: Path) -> None:
    node, lake = unpack_node(tmp_path / "node"), kafka_lakes.new_lake(tmp_path / "lake")
    (first, second, *_) = (one for one in kafka_lakes.archivable_segments(node) if one.log == "tinyseg-0")
    (row,) = kafka_lakes.archive(lake, node, [first])
    (newer,) = kafka_lakes.archive(lake, node, [second])
    assert row.end == newer.base_offset
    cut = replace(row, end_offset=row.end + 1), replace(newer, lineage=newer.lineage + 1)
    names = names_of_logs({}, cut, ())
    (span,) = _list_cut_parts(cut, names, _limits(cut, names, {}, None))
    (found,) = log_ranges([], cut[1:], released=[span])[:1]
    assert (found.start_offset, found.end_offset, found.where) == (row.base_offset, row.end, Where.UNKNOWN)


def test_damage_within_the_active_segment_is_a_row(place: Place) -> None:
    place.release(open_store(place.root).snapshot(0).logs[0].segments[6:])
    active = place.sealed[-1].end_offset
    path = place.root / "commitlog" / f"{active:020d}"
    before = read(place.reader("physical_offset", "size", "kind")).sort_by("physical_offset").to_pylist()
    of_active = [row for row in before if row["physical_offset"] >= active]
    damaged = of_active[len(of_active) // 2]
    content = bytearray(path.read_bytes())
    content[damaged["physical_offset"] - active + 5] ^= 0xFF
    path.write_bytes(content)
    after = read(place.reader("physical_offset", "size", "kind")).sort_by("physical_offset").to_pylist()
    assert after == [{**row, "kind": "undecodable"} if row == damaged else row for row in before]


def test_a_store_needs_no_directory_that_its_broker_may_do_without(place: Place) -> None:
    shutil.rmtree(place.root / "index")
    assert frames_of(read(place.reader())) == TRUTH.frames


def test_a_lake_is_read_without_its_store(place: Place) -> None:
    place.archive(place.sealed)
    options = {"lake": str(place.lake_dir)}
    found = frames_of(read(reader_of(options)))
    assert found == {at: sha for at, sha in TRUTH.frames.items() if at < 7 * 1048576}


def test_a_store_of_which_nothing_is_archived_has_no_id_yet(place: Place) -> None:
    named = {"lake": str(place.lake_dir), "store": str(place.root), "set": SETTINGS}
    rows = read(reader_of(named))
    assert frames_of(rows) == TRUTH.frames
    assert set(rows["store_id"].to_pylist()) == {None}


def test_only_what_is_asked_for_is_read(place: Place) -> None:
    place.archive(place.sealed[:3])
    where = f"topic = '{ORDERS}' and queue_id = 1"
    rows = read(place.reader("queue_offset", "properties", "body", where=where))
    every = read(place.reader())
    wanted = [row for row in every.to_pylist() if (row["topic"], row["queue_id"]) == (ORDERS, 1)]
    assert rows.column_names == ["queue_offset", "properties", "body"]
    assert Counter(map(str, rows.to_pylist())) == Counter(
        str({name: row[name] for name in rows.column_names}) for row in wanted
    )
    assert all(dict(row["properties"])["UNIQ_KEY"] for row in wanted)


def test_rows_that_another_engine_deleted_are_not_passed_over(place: Place) -> None:
    place.archive(place.sealed[:1])
    lake = place.lake
    (row,) = receipts(lake, STORE)
    delete_position(lake, row, 3)
    with pytest.raises(LakeUnavailableError, match="some of its rows count as deleted"):
        planned(place.reader())


def test_a_data_file_that_is_not_there_ends_the_query(place: Place) -> None:
    place.archive(place.sealed[:1])
    lake, reader = place.lake, place.reader()
    (row,) = receipts(lake, STORE)
    path = local_path(data_file_of(lake.messages(), row))
    assert path is not None
    path.unlink()
    with pytest.raises(LakeUnavailableError, match="No such file"):
        read(reader)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Expected option lake"),
        ({"lake": "/l", "hole": "skip"}, "found hole. Did you mean holes"),
        ({"lake": "/l", "holes": "no"}, "refuse or skip, found 'no'"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        Options.read(options)


def test_a_column_or_an_expression_that_is_wrong_is_named(place: Place) -> None:
    with pytest.raises(BadInputError, match=r"found topics. Did you mean topic"):
        place.reader("topics")
    for where in ("topic =", "topics = 'a'", "queue_id = 'a'"):
        with pytest.raises(BadInputError, match="Option where: expected an expression"):
            planned(place.reader(where=where))


@pytest.mark.parametrize("name", ["properties", "gone"])
def test_an_expression_over_what_isnt_stored_is_named(place: Place, name: str) -> None:
    place.archive(place.sealed[:1])
    with pytest.raises(BadInputError, match=f"Option where: expected .*, found {name}"):
        planned(place.reader(where=f"{name} is null"))


def test_a_column_that_decides_may_be_younger_than_a_data_file(place: Place) -> None:
    place.archive(place.sealed[:2])
    every = read(place.reader("physical_offset"))
    (row, _) = receipts(place.lake, STORE)
    path = local_path(data_file_of(place.lake.messages(), row))
    assert path is not None
    rows = pq.read_table(path)
    pq.write_table(rows.drop_columns(["unique_key"]), path)
    without, having = (
        read(place.reader("physical_offset", where=f"unique_key is {word}")) for word in ("null", "not null")
    )
    assert without.num_rows > rows.num_rows
    assert sorted(pa.concat_tables([without, having])["physical_offset"].to_pylist()) == sorted(
        every["physical_offset"].to_pylist()
    )


def test_a_lake_of_another_broker_is_named(tmp_path: Path) -> None:
    node = unpack_node(tmp_path / "node")
    make_lake(LakeConfig.local(tmp_path / "lake"))
    with pytest.raises(
        BadInputError, match=r"expected columns of .*Kafka, the broker of .*, found columns of .*RocketMQ"
    ):
        reader_of({"lake": str(tmp_path / "lake"), "store": str(node / "server.properties")})


def test_a_lake_of_several_stores_asks_which_one(place: Place) -> None:
    place.archive(place.sealed[:1])
    known: dict[str, Any] = {"store_id": "other", "lineage": 1, "broker": "rocketmq", "store_root": "/other"}
    archive_all(place.lake, segment_jobs(place.lake, place.sealed[:1], **known))
    with pytest.raises(BadInputError, match=r"found other \(/other\), store-1"):
        planned(reader_of({"lake": str(place.lake_dir)}))


def test_another_machines_store_is_not_taken_for_one_at_its_path(place: Place) -> None:
    root = str(place.root.resolve())
    known: dict[str, Any] = {"store_id": "other", "lineage": 1, "broker": "rocketmq", "store_root": root}
    archive_all(place.lake, segment_jobs(place.lake, place.sealed[:1], **known, store_host="another-machine"))
    named = {"lake": str(place.lake_dir), "store": str(place.root), "set": SETTINGS}
    with pytest.raises(
        BadInputError, match=r"expected exactly one store to read, found other .*option storeId"
    ):
        planned(reader_of(named))
    assert read(reader_of(named, ("store_id",), storeId=STORE))["store_id"].unique().to_pylist() == [STORE]


def test_rows_of_another_store_than_the_stamp_says_are_not_read(place: Place) -> None:
    place.archive(place.sealed[:1])
    update_stamp(str(place.root.resolve()), "other", Lineages(1), ())
    with pytest.raises(
        BadInputError, match=r"expected store store-1, which option storeId names, found .* other"
    ):
        planned(place.reader())


def test_records_of_a_kafka_node_are_there_once(tmp_path: Path) -> None:
    node, lake = unpack_node(tmp_path / "node"), kafka_lakes.new_lake(tmp_path / "lake")
    archivable = kafka_lakes.archivable_segments(node)
    kafka_lakes.archive(lake, node, archivable[::2])
    options = {
        "lake": str(tmp_path / "lake"),
        "store": str(node / "server.properties"),
        "storeId": kafka_lakes.STORE,
    }
    rows = read(reader_of(options, ("log", "kind", "offset")))
    offsets = Counter((row["log"], row["offset"]) for row in rows.to_pylist() if row["kind"] == "message")
    assert set(offsets.values()) == {1}
    true = Counter[str]()
    for batch in truth()["batch"]:
        log = batch["file"].split("/")[1]
        if batch["file"].endswith(".log") and not batch["control"] and log in set(rows["log"].to_pylist()):
            true[log] += batch["count"]
    assert len(true) > 10
    assert Counter(log for log, _ in offsets) == true


def test_another_file_with_a_segments_name_and_inode_is_not_read(tmp_path: Path) -> None:
    node = unpack_node(tmp_path / "node")
    kafka_lakes.new_lake(tmp_path / "lake")
    options = {"lake": str(tmp_path / "lake"), "store": str(node / "server.properties")}
    reader = reader_of(options, ("log", "kind"), where="log = 'tinyseg-0'")
    tasks = planned(reader)
    path = Path(kafka_lakes.segments_of(node, "tinyseg-0")[0].facts.path)
    # As a file system does that gives the inode of a file that went to the next one.
    path.write_bytes(path.read_bytes())
    with pytest.raises(RowsMissingError, match=r"offset 0 of log tinyseg-0 .* left the store or changed"):
        read(reader, tasks)


def test_a_topic_that_was_made_again_is_read_beside_the_one_before(tmp_path: Path) -> None:
    node, lake = unpack_node(tmp_path / "node"), kafka_lakes.new_lake(tmp_path / "lake")
    log = "tinyseg-0"
    archivable = [one for one in kafka_lakes.archivable_segments(node) if one.log == log]
    options = {"lake": str(tmp_path / "lake"), "store": str(node / "server.properties")}
    options["storeId"] = kafka_lakes.STORE
    kafka_lakes.archive(lake, node, archivable)
    begin_of_active = kafka_lakes.segments_of(node, log)[-1].base_offset
    where = f"log = '{log}' and kind = 'message'"
    first = read(reader_of(options, ("offset",), where=where))["offset"].to_pylist()
    (path,) = node.rglob(f"{log}/{PARTITION_METADATA}")
    path.write_text(f"version: 0\ntopic_id: {text_of(uuid.UUID(int=7))}")
    reader = reader_of(options, ("offset",), where=where)
    tasks = planned(reader)
    of_both = Counter(first) + Counter(offset for offset in first if offset < begin_of_active)
    assert Counter(read(reader, tasks)["offset"].to_pylist()) == of_both
    # What the one before had is not taken for what is gone of this one.
    Path(archivable[0].facts.path).unlink()
    with pytest.raises(RowsMissingError, match=rf"offset 0 of log {log} .* isn't in the lake"):
        read(reader, tasks)


def test_records_above_the_high_watermark_are_not_there_yet(tmp_path: Path) -> None:
    node, lake_dir = unpack_node(tmp_path / "node"), tmp_path / "lake"
    kafka_lakes.new_lake(lake_dir)
    options = {"lake": str(lake_dir), "store": str(node / "server.properties")}
    before = messages(read(reader_of(options, ("log", "kind", "offset"))))
    log = max(before, key=lambda name: before[name])
    (path,) = {one for one in node.rglob(HIGH_WATERMARK) if f"{log.rpartition('-')[0]} " in one.read_text()}
    topic, _, number = log.rpartition("-")
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{topic} {number} "))
    end = int(lines[at].rsplit(" ", 1)[1])
    lines[at] = f"{topic} {number} {end - 1}"
    path.write_text("\n".join(lines) + "\n")
    rows = read(reader_of(options, ("log", "kind", "offset")))
    highest = max(
        row["offset"] for row in rows.to_pylist() if row["log"] == log and row["offset"] is not None
    )
    assert highest < end - 1


def test_a_log_that_should_be_on_disk_and_isnt_is_named(tmp_path: Path) -> None:
    made, lake = make_node(tmp_path / "node"), kafka_lakes.new_lake(tmp_path / "lake")
    kafka_lakes.archive(lake, made.root, kafka_lakes.archivable_segments(made.root))
    options = {"lake": str(tmp_path / "lake"), "store": str(made.root / "server.properties")}
    options["storeId"] = kafka_lakes.STORE
    assert messages(read(reader_of(options, ("log", "kind")))) == {"a-0": 6, "b-0": 6}
    log = next(made.root.rglob("b-0"))
    log.rename(tmp_path / "away")
    with pytest.raises(RowsMissingError, match=r"b-0 \[4, 4\) UNKNOWN: the part after it isn't on disk"):
        planned(reader_of(options))
    assert messages(read(reader_of(options, ("log", "kind"), holes="skip"))) == {"a-0": 6, "b-0": 4}
    assert messages(read(reader_of(options, ("log", "kind"), where="log = 'a-0'"))) == {"a-0": 6}
    # Of an unmounted disk the mount point is left.
    log.parent.rename(tmp_path / "disk")
    log.parent.mkdir()
    with pytest.raises(
        StoreNotFoundError, match=f"{log.parent.name}: expected .* Check that its disk is mounted"
    ):
        planned(reader_of(options, holes="skip"))


def messages(rows: pa.Table) -> dict[str, int]:
    """Number of messages by log."""
    return dict(Counter(row["log"] for row in rows.to_pylist() if row["kind"] == "message"))


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_spark_reads_it_and_a_filter_of_one_query_is_none_of_the_next(place: Place) -> None:
    sealed = place.sealed
    place.archive(sealed[:3])
    place.release(sealed[:2])
    with spark_session("table", settings={"spark.sql.python.filterPushdown.enabled": "true"}) as spark:
        frame = table(spark, place.lake_dir, place.root, storeId=STORE, set=SETTINGS)
        of_orders = frame.where("topic = 'orders' and kind = 'message'")
        orders = {row.physical_offset for row in of_orders.select("physical_offset").collect()}
        rows = frame.where("kind = 'message'").select("physical_offset", "topic").collect()
        assert Counter(row.physical_offset for row in rows) == Counter(TRUTH.frames.keys())
        assert orders == {row.physical_offset for row in rows if row.topic == "orders"}
        (code,) = blocks_under(DOCUMENT, "Store and lake as one table").values()
        assert str(place.root) not in code
        names: dict[str, Any] = {"spark": spark}
        settings_too = f'"{place.root}", set="{SETTINGS}", storeId="{STORE}"'
        exec(code.replace('"/lake"', f'"{place.lake_dir}"').replace('"/data/store"', settings_too), names)
        assert sum(row["count"] for row in names["by_queue"].collect()) == len(orders) > 100
        place.release(sealed[2:4])
        lost = table(spark, place.lake_dir, place.root, storeId=STORE, set=SETTINGS)
        with pytest.raises(Exception, match=r"RowsMissingError.*commitlog \[3145728, 4194304\) LOST"):
            lost.count()
