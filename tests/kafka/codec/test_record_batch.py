"""Headers of batches, against Kafka's own classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch

from storage_engine.kafka.codec.record_batch import read_batches
from tests.kafka import batches
from tests.kafka_fixture import truth


def test_every_header_is_what_kafka_reads(node: Path) -> None:
    of_file: dict[str, list[dict[str, int]]] = {log["file"]: [] for log in truth()["log"]}
    for row in truth()["batch"]:
        of_file[row["file"]].append(row)
    ends = {row["file"]: row["validBytes"] for row in truth()["logend"]}
    for name, expected in of_file.items():
        found = read_batches((node / name).read_bytes())
        assert not found.damages
        assert found.legacy == 0
        for values, key in (
            (found.positions, "pos"),
            (found.sizes, "size"),
            (found.base_offsets, "base"),
            (found.last_offsets, "last"),
            (found.max_timestamps, "maxts"),
            (found.producer_ids, "pid"),
            (found.producer_epochs, "epoch"),
            (found.base_sequences, "bseq"),
            (found.record_counts, "count"),
            (found.leader_epochs, "ple"),
        ):
            assert values.tolist() == [row[key] for row in expected]
        assert int(found.sizes.sum()) == ends[name]


def test_who_trusts_the_bytes_needs_no_crc() -> None:
    data = bytearray(batches.batch([batches.Record(1, b"k", b"v")]))
    data[-1] ^= 1
    assert len(read_batches(bytes(data), check_crc=False).positions) == 1
    assert len(read_batches(bytes(data)).damages) == 1


def test_of_very_many_damages_the_first_ones_are_kept() -> None:
    bad = bytearray(batches.batch([batches.Record(1, b"k", b"v")]))
    bad[-1] ^= 1
    damages = read_batches(bytes(bad) * 1500).damages
    assert len(damages) == 1000
    assert sum(damage.size_bytes for damage in damages) == 1500 * len(bad)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("spoiled", [False, True])
def test_older_messages_are_whole_where_a_second_parser_says_so(magic: int, spoiled: bool) -> None:
    data = bytearray(b"".join(batches.legacy(magic, i, b"key", b"x" * i) for i in range(40)))
    if spoiled:
        data[-1] ^= 1
    last = bytes(data[-len(batches.legacy(magic, 39, b"key", b"x" * 39)) :])
    assert LegacyRecordBatch(last, magic).validate_crc() is not spoiled
    found = read_batches(bytes(data))
    assert found.legacy == 40 - spoiled
    assert len(found.damages) == spoiled


def test_what_is_no_run_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="one contiguous run"):
        read_batches(np.zeros(9, np.int16))
