"""Batches that few writers make: what Kafka reads is archived as records, what it doesn't as bytes."""

from __future__ import annotations

import gzip

import pytest

from storage_engine.kafka.codec import decode
from tests.kafka.batches import Record, batch, record, with_crc
from tests.kafka.made_node import WRITTEN_MS, MadeNode

pytestmark = pytest.mark.usefixtures("plainly")

RECORDS = [Record(WRITTEN_MS, b"k", b"v" * 50)] * 2
PLAIN = b"".join(record(one, WRITTEN_MS, delta) for delta, one in enumerate(RECORDS))
MEMBERS = gzip.compress(PLAIN[:30]) + gzip.compress(PLAIN[30:])
FOLLOWED = gzip.compress(PLAIN) + bytes(8)


def _node(root, logs):
    node = MadeNode(root)
    for name, payload in logs.items():
        batches = {
            base: [batch(RECORDS, base_offset=base, attributes=1, payload=payload)] for base in (0, 2, 4)
        }
        node.add(name, batches, settings={"retention.ms": "1000"})
    return node.write()


@pytest.fixture
def lake(cli, tmp_path):
    assert cli("init-lake", "--broker-type", "kafka", "--lake", tmp_path / "lake").exit_code == 0
    return tmp_path / "lake"


def test_gzip_of_two_members_and_with_zeros_behind_it_is_archived(cli, lake, tmp_path) -> None:
    properties = _node(tmp_path / "node", {"members-0": MEMBERS, "zeros-0": FOLLOWED})
    outcome = cli("archive", properties, "--lake", lake, "--json")
    assert outcome.exit_code == 0, outcome
    rows = outcome.json["archived"]
    assert [(row["message_count"], row["damaged_bytes"]) for row in rows] == [(2, 0)] * 4


def test_a_batch_that_kafka_cannot_read_is_archived_as_bytes_and_its_log_goes_on(cli, lake, tmp_path) -> None:
    properties = _node(tmp_path / "node", {"cut-0": MEMBERS[:-4], "whole-0": MEMBERS})
    outcome = cli("archive", properties, "--lake", lake, "--json")
    assert outcome.exit_code == 0, outcome
    size = len(batch(RECORDS, attributes=1, payload=MEMBERS[:-4]))
    rows = [(row["log"], row["message_count"], row["damaged_bytes"]) for row in outcome.json["archived"]]
    assert sorted(rows) == [("cut-0", 0, size)] * 2 + [("whole-0", 2, 0)] * 2
    notices = [notice for notice in outcome.json["notices"] if "damaged bytes" in notice]
    assert len(notices) == 2
    for notice in notices:
        assert "at byte 0: expected 8 bytes with a gzip stream's CRC and size, found 4 bytes" in notice
        assert "archived as found, because their checksum is right: no replica has better bytes" in notice
    assert cli("validate", properties, "--lake", lake, "--full", "--output", tmp_path / "out").exit_code == 0


def test_a_batch_that_expands_beyond_the_bound_is_archived_as_bytes(
    cli, lake, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "MAX_EXPANDED_BYTES", len(PLAIN) - 1)
    properties = _node(tmp_path / "node", {"large-0": MEMBERS})
    outcome = cli("archive", properties, "--lake", lake, "--json")
    assert outcome.exit_code == 0, outcome
    size = len(batch(RECORDS, attributes=1, payload=MEMBERS))
    rows = [(row["message_count"], row["damaged_bytes"]) for row in outcome.json["archived"]]
    assert rows == [(0, size)] * 2
    notices = [notice for notice in outcome.json["notices"] if "damaged bytes" in notice]
    assert len(notices) == 2
    for notice in notices:
        assert f"expected records that expand to at most {len(PLAIN) - 1} bytes, found more" in notice
        # It may be that Kafka can read them.
        assert "reader" not in notice


def test_a_batch_with_a_wrong_crc_is_refused(cli, lake, tmp_path) -> None:
    properties = _node(tmp_path / "node", {"cut-0": MEMBERS[:-4]})
    path = tmp_path / "node/logs/cut-0" / f"{0:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data + with_crc(data[:-1])[:-1] + b"\x07")
    outcome = cli("archive", properties, "--lake", lake)
    assert outcome.exit_code == 1
    assert f"{path}: bad frame at physical offset {len(data)}: expected CRC-32C" in outcome.err
