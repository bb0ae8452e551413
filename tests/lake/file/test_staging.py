from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.file.jobs import ProvenSegment, attempt_of, split_data_file_name
from storage_engine.lake.file.staging import discard, publish, staged_location, sweep

NAME = f"0-commitlog-{0:020d}-{'ab' * 8}.parquet"


def _proven(data_file: str, content: bytes, staged_file: str | None = None) -> ProvenSegment:
    return ProvenSegment(
        store_id="store-1",
        lineage=0,
        log="commitlog",
        base_offset=0,
        size_bytes=1,
        sha256="ab" * 32,
        broker="rocketmq",
        store_root="/store",
        message_count=0,
        row_count=1,
        damaged_bytes=0,
        first_store_timestamp_ms=None,
        last_store_timestamp_ms=None,
        source_path="/store/commitlog/0",
        source_device=0,
        source_inode=0,
        source_mtime_ns=0,
        source_ctime_ns=0,
        data_file=data_file,
        data_file_bytes=len(content),
        data_file_sha256=hashlib.sha256(content).hexdigest(),
        proof_version=1,
        proven_at_ms=0,
        staged_file=staged_file or staged_location(data_file),
        manifest_facts=b"",
    )


@pytest.fixture
def staged(tmp_path: Path) -> ProvenSegment:
    proven = _proven(f"file://{tmp_path}/{NAME}", b"rows")
    Path(proven.staged_file.removeprefix("file://")).write_bytes(b"rows")
    return proven


def test_two_attempts_never_share_a_staged_file() -> None:
    assert staged_location("file:///lake/x.parquet") != staged_location("file:///lake/x.parquet")


def test_an_object_store_has_no_staged_files() -> None:
    published = _proven("s3://bucket/x.parquet", b"", "s3://bucket/x.parquet")
    publish([published])
    discard([published])
    sweep([published])


def test_publishing_gives_the_final_name_and_can_be_repeated(tmp_path: Path, staged: ProvenSegment) -> None:
    publish([staged])
    publish([staged])
    assert (tmp_path / NAME).read_bytes() == b"rows"
    sweep([staged])
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_publishing_finds_what_another_attempt_published(tmp_path: Path, staged: ProvenSegment) -> None:
    (tmp_path / NAME).write_bytes(b"rows")
    publish([staged])
    sweep([staged])
    publish([staged])
    assert (tmp_path / NAME).read_bytes() == b"rows"


def test_a_name_that_a_killed_attempt_left_unsynced_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("storage_engine.lake.file.staging.fsync_path", synced.append)
    data_file = f"file://{tmp_path}/{NAME}"
    publish([_proven(data_file, b"rows", staged_file=data_file)])
    assert synced == [tmp_path]


@pytest.mark.parametrize("swept", [False, True])
def test_a_published_file_with_other_bytes_is_never_overwritten(
    tmp_path: Path, staged: ProvenSegment, swept: bool
) -> None:
    (tmp_path / NAME).write_bytes(b"wors")
    if swept:
        discard([staged])
    (published,) = publish([staged])
    assert (tmp_path / NAME).read_bytes() == b"wors"
    name = published.data_file.rpartition("/")[2]
    assert split_data_file_name(name) == split_data_file_name(NAME)
    assert attempt_of(name) != ""
    assert replace(published, data_file=staged.data_file) == staged
    there = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    assert there == {NAME: b"wors"} | ({} if swept else {name: b"rows"})


def test_a_staged_file_that_is_gone_cannot_be_published(staged: ProvenSegment) -> None:
    discard([staged])
    with pytest.raises(LakeUnavailableError, match="No such file"):
        publish([staged])


def test_discarding_takes_only_this_attempts_file(tmp_path: Path, staged: ProvenSegment) -> None:
    other = tmp_path / f"{NAME}.other.partial"
    other.touch()
    publish([staged])
    discard([staged])
    discard([staged])
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, other.name]


def test_sweeping_takes_every_attempts_files_of_these_segments_only(
    tmp_path: Path, staged: ProvenSegment
) -> None:
    (tmp_path / f"{NAME}.killed.partial").touch()
    (tmp_path / "y.parquet.alive.partial").touch()
    sweep([staged])
    assert [path.name for path in tmp_path.iterdir()] == ["y.parquet.alive.partial"]
