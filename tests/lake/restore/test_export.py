"""Messages that are exported are those that were asked for, each as the broker's own classes read it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_engine.core.long_work import listening
from storage_engine.exceptions import BadInputError, ExportError, ProofError
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.restore.export import Exported, Selection, export_messages, has_key
from storage_engine.lake.restore.export_format import ExportFormat
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.rocketmq.codec.message_schema import COLUMNS
from tests.fixture_stores import unpack
from tests.heard import Heard
from tests.lakes import path_of

SEGMENTS = 7
END = SEGMENTS << 20
KEY = "ORD-1200006"
MIDDLE_MS = 1795180500543


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory, make_jobs) -> Lake:
    """Every sealed segment of a store that has compressed bodies, keys of every kind, and transactions."""
    base = tmp_path_factory.mktemp("export")
    unpack("clean-stop", base)
    lake = make_lake(LakeConfig.local(base / "lake"))
    paths = sorted((base / "A" / "commitlog").iterdir())[:SEGMENTS]
    archive_all(lake, make_jobs(lake, *paths))
    return lake


@pytest.fixture(scope="module")
def truth(ground_truth: Callable[[str, str], Any]) -> list[dict[str, Any]]:
    frames = ground_truth("clean-stop", "commitlog")
    return [frame for frame in frames if frame["kind"] == "message" and frame["physicOffset"] < END]


def _keys(frame: dict[str, Any]) -> set[str]:
    properties = frame["properties"] or {}
    return {*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY")}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _body(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["body"]) if row["body_encoding"] == "base64" else row["body"].encode()


SELECTIONS: dict[str, tuple[Selection, Callable[[dict[str, Any]], bool]]] = {
    "everything": (Selection(), lambda frame: True),
    "a topic": (Selection(topic="tx_topic"), lambda frame: frame["topic"] == "tx_topic"),
    "a queue": (
        Selection(topic="orders", queue_id=3),
        lambda frame: (frame["topic"], frame["queueId"]) == ("orders", 3),
    ),
    "a key": (Selection(key=KEY), lambda frame: KEY in _keys(frame)),
    "a key of a topic": (
        Selection(key=KEY, topic="tx_topic"),
        lambda frame: KEY in _keys(frame) and frame["topic"] == "tx_topic",
    ),
    "a span of time": (
        Selection(from_ms=MIDDLE_MS, to_ms=MIDDLE_MS + 1000),
        lambda frame: MIDDLE_MS <= frame["storeTimestamp"] < MIDDLE_MS + 1000,
    ),
    "no message": (Selection(topic="nobody's"), lambda frame: False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("file_format", ExportFormat)
def test_what_is_exported_is_what_was_asked_for(
    archived: Lake, truth: list[dict[str, Any]], tmp_path: Path, name: str, file_format: ExportFormat
) -> None:
    selection, wanted = SELECTIONS[name]
    expected = {frame["physicOffset"]: frame for frame in truth if wanted(frame)}
    path = tmp_path / "messages"
    result = export_messages(archived, path, selection, file_format=file_format)
    if file_format is ExportFormat.PARQUET:
        rows = pq.read_table(path).to_pylist()
        bodies = {row["physical_offset"]: row["body"] for row in rows}
    else:
        rows = _lines(path)
        bodies = {row["physical_offset"]: _body(row) for row in rows}
    assert result.message_count == len(rows) == len(expected)
    assert {offset: hashlib.sha256(body).hexdigest() for offset, body in bodies.items()} == {
        offset: frame["bodySha256"] for offset, frame in expected.items()
    }
    for row in rows:
        assert dict(row["properties"] or {}) == (expected[row["physical_offset"]]["properties"] or {})
    stored = [frame["storeTimestamp"] for frame in expected.values()]
    assert (result.first_store_timestamp_ms, result.last_store_timestamp_ms) == (
        min(stored, default=None),
        max(stored, default=None),
    )
    assert result.size_bytes == path.stat().st_size
    assert [entry.name for entry in tmp_path.iterdir()] == ["messages"]


@pytest.mark.slow
def test_messages_of_a_queue_are_in_their_order(archived: Lake, tmp_path: Path) -> None:
    export_messages(
        archived, tmp_path / "rows", Selection(topic="orders"), file_format=ExportFormat.JSON_LINES
    )
    last: dict[int, int] = {}
    for row in _lines(tmp_path / "rows"):
        assert row["queue_offset"] == last.get(row["queue_id"], row["queue_offset"] - 1) + 1
        last[row["queue_id"]] = row["queue_offset"]
    assert len(last) == 8


def test_only_files_that_can_hold_them_are_read(archived: Lake, tmp_path: Path) -> None:
    everything = export_messages(archived, tmp_path / "all", Selection())
    few = export_messages(archived, tmp_path / "few", Selection(topic="tx_topic"))
    assert everything.files_total == few.files_total == SEGMENTS
    assert (few.files_read, few.row_groups_read) == (1, 1)
    key = export_messages(archived, tmp_path / "key", Selection(key=KEY))
    assert key.bytes_read < everything.bytes_read / 5


def test_bodies_are_decompressed_on_request(
    archived: Lake, truth: list[dict[str, Any]], tmp_path: Path
) -> None:
    stored = export_messages(archived, tmp_path / "stored", Selection())
    assert stored.still_compressed == sum(frame["sysFlag"] & 1 for frame in truth) > 100
    plain = export_messages(archived, tmp_path / "plain", Selection(), decompress=True)
    assert plain.still_compressed == 0
    rows = pq.read_table(tmp_path / "plain", columns=["physical_offset", "body"]).to_pylist()
    assert {row["physical_offset"]: hashlib.sha256(row["body"]).hexdigest() for row in rows} == {
        frame["physicOffset"]: frame.get("bodyDecompressedSha256", frame["bodySha256"]) for frame in truth
    }


def test_times_are_exact_and_have_their_zone(
    archived: Lake, truth: list[dict[str, Any]], tmp_path: Path
) -> None:
    export_messages(
        archived, tmp_path / "rows", Selection(topic="tx_topic"), file_format=ExportFormat.JSON_LINES
    )
    stored = {frame["physicOffset"]: frame["storeTimestamp"] for frame in truth}
    for row in _lines(tmp_path / "rows"):
        moment = datetime.fromisoformat(row["store_timestamp"])
        assert round(moment.timestamp() * 1000) == stored[row["physical_offset"]]


def test_nothing_is_overwritten(archived: Lake, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.write_bytes(b"already")
    with pytest.raises(ExportError, match="expected no file of this name, found a file"):
        export_messages(archived, target, Selection())
    assert target.read_bytes() == b"already"


def test_a_file_that_appears_meanwhile_is_not_overwritten(archived: Lake, tmp_path: Path) -> None:
    target = tmp_path / "there"
    late = Heard(lambda _: target.write_bytes(b"x"))
    with listening(late), pytest.raises(ExportError, match="found a file"):
        export_messages(archived, target, Selection())
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert target.read_bytes() == b"x"


def test_two_exports_into_one_file_end_in_a_whole_file_and_one_error(archived: Lake, tmp_path: Path) -> None:
    target = tmp_path / "rows"
    both = threading.Barrier(2)
    outcomes: list[Exported | ExportError] = []

    def run() -> None:
        met = []

        def meet(_: int) -> None:
            if not met:
                met.append(both.wait())

        try:
            with listening(Heard(meet)):
                outcomes.append(export_messages(archived, target, Selection(topic="orders")))
        except ExportError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (done,) = [outcome for outcome in outcomes if isinstance(outcome, Exported)]
    (refused,) = [outcome for outcome in outcomes if isinstance(outcome, ExportError)]
    assert "expected no file of this name, found a file" in str(refused)
    assert pq.read_table(target).num_rows == done.message_count
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_bytes_that_somebody_else_writes_into_the_new_file_are_found(
    archived: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync

    def disturb(fd: int) -> None:
        flush(fd)
        for partial in tmp_path.glob(".rows*"):
            with partial.open("r+b") as file:
                file.write(b"\xff")

    monkeypatch.setattr("storage_engine.core.durable.os.fsync", disturb)
    with pytest.raises(ExportError, match="expected to read back the written bytes"):
        export_messages(archived, tmp_path / "rows", Selection(topic="tx_topic"))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_removed_by_the_next(archived: Lake, tmp_path: Path) -> None:
    left = tmp_path / ".rows.0123456789abcdef.exporting"
    left.touch()
    os.utime(left, (0, 0))
    export_messages(archived, tmp_path / "rows", Selection(topic="tx_topic"))
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_a_target_that_is_a_link_is_not_followed(archived: Lake, tmp_path: Path) -> None:
    (tmp_path / "rows").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ExportError, match="expected no file of this name, found a file"):
        export_messages(archived, tmp_path / "rows", Selection())
    assert not (tmp_path / "nowhere").exists()


def test_nothing_is_exported_among_a_stores_own_files(archived: Lake, tmp_path: Path) -> None:
    for name in ("commitlog", "consumequeue"):
        (tmp_path / name).mkdir()
    with pytest.raises(BadInputError, match="expected a place outside a broker's store"):
        export_messages(archived, tmp_path / "commitlog" / "rows", Selection())
    assert list((tmp_path / "commitlog").iterdir()) == []


@pytest.mark.parametrize("span_ms", [0, -1])
def test_a_span_that_ends_before_it_begins_is_refused(archived: Lake, tmp_path: Path, span_ms: int) -> None:
    reversed_span = Selection(from_ms=1_795_180_500_000, to_ms=1_795_180_500_000 + span_ms)
    with pytest.raises(BadInputError, match="a span of time that begins before it ends, found 2026-11-20"):
        export_messages(archived, tmp_path / "out.parquet", reversed_span)
    assert not (tmp_path / "out.parquet").exists()


def test_an_empty_key_is_refused(archived: Lake, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="expected a key, found an empty text"):
        export_messages(archived, tmp_path / "rows", Selection(key=""))
    rows = pa.table({"keys": ["", "a  b", None], "unique_key": ["", None, None]})
    assert has_key(rows, "", COLUMNS).to_pylist() == [False] * 3


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ExportFormat)
def test_bodies_that_are_too_much_for_an_array_are_exported_in_parts(
    archived: Lake,
    truth: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_format: ExportFormat,
) -> None:
    monkeypatch.setattr("storage_engine.rocketmq.codec.body._MAX_ARRAY_BYTES", 2000)
    path = tmp_path / "rows"
    found = export_messages(archived, path, Selection(), file_format=file_format, decompress=True)
    assert (found.message_count, found.still_compressed) == (len(truth), 0)


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    archived: Lake, mount_tmpfs: Callable[[int], Path]
) -> None:
    target = mount_tmpfs(1 << 16) / "messages"
    for file_format in ExportFormat:
        with pytest.raises(ExportError, match="No space left on device"):
            export_messages(archived, target, Selection(), file_format=file_format)
        assert list(target.parent.iterdir()) == []


def test_a_directory_that_is_missing_is_one_clear_error(archived: Lake, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="can't export there: No such file or directory"):
        export_messages(archived, tmp_path / "no" / "where", Selection())


@pytest.mark.slow
def test_rows_that_another_engine_deleted_or_rewrote_are_as_it_left_them(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    archive_all(lake, make_jobs(lake, *segments))
    before = export_messages(lake, tmp_path / "before", Selection(topic="orders"))
    table = lake.messages()
    table.overwrite(table.scan().to_arrow())
    after: Exported = export_messages(lake, tmp_path / "after", Selection(topic="orders"))
    assert after.message_count == before.message_count > 0
    columns = ["physical_offset", "body", "properties"]
    old, new = (pq.read_table(tmp_path / name, columns=columns) for name in ("before", "after"))
    assert old.sort_by("physical_offset").equals(new.sort_by("physical_offset"))


def test_a_torn_data_file_is_one_clear_error(
    lake: Lake, segments: list[Path], make_jobs, tmp_path: Path
) -> None:
    archive_all(lake, make_jobs(lake, *segments))
    path = path_of(lake, receipts(lake, "store-1")[1])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ProofError, match="expected a whole Parquet file"):
        export_messages(lake, tmp_path / "rows", Selection(topic="orders"))
    assert not (tmp_path / "rows").exists()
    assert list(tmp_path.glob(".rows*")) == []
