from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from storage_engine.core.jsonable import from_jsonable, to_jsonable
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.file.jobs import (
    ProvenSegment,
    SegmentJob,
    data_file_name,
    file_name,
    new_attempt,
    slot_prefix,
    split_data_file_name,
)
from storage_engine.lake.file.staging import staged_location
from storage_engine.model.proof.receipt import Receipt, SegmentIdentity
from storage_engine.model.store import FileFacts


@pytest.fixture
def job(tmp_path: Path) -> SegmentJob:
    path = tmp_path / "00000000000001048576"
    path.touch()
    return SegmentJob(
        store_id="store-1",
        lineage=2,
        broker="rocketmq",
        store_root=str(tmp_path),
        log="commitlog",
        base_offset=1048576,
        facts=FileFacts.of(path),
        lake=LakeConfig.local(tmp_path / "lake"),
        messages_location="file:///lake/messages",
    )


def test_a_job_survives_json_and_pickle(job: SegmentJob) -> None:
    assert from_jsonable(SegmentJob, to_jsonable(job)) == job
    assert pickle.loads(pickle.dumps(job)) == job


def test_a_data_file_is_named_by_the_identity_of_its_segment(job: SegmentJob) -> None:
    assert job.data_file("0123456789abcdef" + 48 * "f") == (
        "file:///lake/messages/data/store_id=store-1/"
        "2-commitlog-00000000000001048576-0123456789abcdef.parquet"
    )


@pytest.mark.parametrize(
    "log", ["commitlog", "orders-0", "a-00000000000000000001", "x/y", f"{'t' * 249}-2147483647"]
)
def test_a_data_files_name_tells_slot_and_content_apart(log: str) -> None:
    identity = SegmentIdentity("store-1", 3, log, 77, "ab" * 32)
    name = data_file_name(identity)
    assert split_data_file_name(name) == (slot_prefix(identity), "ab" * 8)
    assert len(file_name(staged_location(f"file:///lake/{data_file_name(identity, new_attempt())}"))) <= 255
    assert file_name(f"s3://bucket/x/{name}") == name


@pytest.mark.parametrize("name", ["00000-0-5ab3.parquet", "x", "1-commitlog-00000000000001048576-.parquet"])
def test_another_programs_file_has_no_slot(name: str) -> None:
    assert split_data_file_name(name) == ("", "")


def test_a_receipt_has_every_field_that_was_proven() -> None:
    proven = {field.name for field in fields(ProvenSegment)} - {"staged_file", "manifest_facts"}
    chain = {"moved_to", "sequence", "previous_hash", "row_hash"}
    # What a broker with several files a segment, or with logs that change their names, will say.
    unused = {"end_offset", "files", "log_id", "digest"} | {"row_groups", "state", "act"}
    assert {field.name for field in fields(Receipt)} == proven | chain | unused
