"""Checkpoints, identities and markers of log directories."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format import checkpoints, meta_properties, partition_metadata
from storage_engine.kafka.format.checkpoints import LeaderEpoch, parse_leader_epochs, parse_offsets
from storage_engine.kafka.format.meta_properties import parse_clean_shutdown, parse_meta_properties
from storage_engine.kafka.format.partition_metadata import parse_topic_id, text_of
from tests.kafka_fixture import FIXTURES, truth


def test_all_small_files_of_a_node_are_read(node: Path) -> None:
    readers = {
        checkpoints.RECOVERY_POINT: checkpoints.read_offsets,
        checkpoints.LOG_START: checkpoints.read_offsets,
        checkpoints.HIGH_WATERMARK: checkpoints.read_offsets,
        checkpoints.CLEANER: checkpoints.read_offsets,
        checkpoints.LEADER_EPOCHS: checkpoints.read_leader_epochs,
        partition_metadata.NAME: partition_metadata.read_topic_id,
        meta_properties.CLEAN_SHUTDOWN: meta_properties.read_clean_shutdown,
    }
    seen = set()
    for row in truth()["file"]:
        path = node / row["file"]
        if path.name != "server.properties":  # names the directory that it was unpacked to
            assert path.read_bytes() == bytes.fromhex(row["hex"])
        if path.name in readers:
            readers[path.name](path)
            seen.add(path.name)
    assert seen == set(readers)


def test_offsets_are_those_that_the_broker_reports(node: Path) -> None:
    reported = json.loads((FIXTURES / "clean-stop.offsets.json").read_text())
    ends = checkpoints.read_offsets(node / "logs" / checkpoints.RECOVERY_POINT)
    watermarks = checkpoints.read_offsets(node / "logs" / checkpoints.HIGH_WATERMARK)
    starts = checkpoints.read_offsets(node / "logs" / checkpoints.LOG_START)
    assert {log: ends[log] for log in reported} == {log: end for log, (_, end) in reported.items()}
    assert {log: watermarks[log] for log in reported} == {log: end for log, (_, end) in reported.items()}
    assert {log: start for log, start in starts.items() if log in reported}.items() <= {
        log: start for log, (start, _) in reported.items()
    }.items()
    assert starts["delrec-0"] == 2000


def test_identities_and_markers(node: Path) -> None:
    meta = meta_properties.read_meta_properties(node / "logs" / meta_properties.NAME)
    assert (meta.version, meta.node_id, meta.zookeeper) == (1, 1, False)
    assert meta.cluster_id == "r8MMkFXnTH6hs0mB1uUMyw"
    assert meta.directory_id == "F80zj7r5cNHHUDYyTlvL6w"
    assert meta_properties.read_clean_shutdown(node / "logs" / meta_properties.CLEAN_SHUTDOWN) == 9
    topic = partition_metadata.read_topic_id(node / "logs/plain-0" / partition_metadata.NAME)
    assert text_of(topic) == "SpW3_o3XTRKH1zPnJ4tcEQ"


def test_meta_properties_of_other_clusters() -> None:
    old = parse_meta_properties(b"#\nversion=0\nbroker.id=3\ncluster.id=abc\n", "m")
    assert (old.zookeeper, old.node_id, old.cluster_id, old.directory_id) == (True, 3, "abc", None)
    new = parse_meta_properties(b"version=1\nnode.id=3\ncluster.id=abc\n", "m")
    assert (new.zookeeper, new.node_id, new.directory_id) == (False, 3, None)
    assert parse_clean_shutdown(b"", "c") is None


def test_what_brokers_accept_is_accepted() -> None:
    assert parse_offsets(b"", "c") == {}
    assert parse_offsets(b"0\n0\n", "c") == {}
    assert parse_offsets(b"0\r\n2\r\na-b 1 20\r\na.b 0 7", "c") == {"a-b-1": 20, "a.b-0": 7}
    assert parse_leader_epochs(b"0\n2\n0 0\n4 17\n", "c") == (LeaderEpoch(0, 0), LeaderEpoch(4, 17))


@pytest.mark.parametrize(
    ("parse", "data", "at", "expected", "found"),
    [
        (parse_offsets, b"1\n0\n", 0, "version 0", "'1'"),
        (parse_offsets, b"0\n", 2, "the number of lines", "nothing"),
        (parse_offsets, b"0\nmany\n", 2, "the number of lines", "'many'"),
        (parse_offsets, b"0\n2\na 0 1\n", 2, "2 lines behind it", "1"),
        (parse_offsets, b"0\n1\na 0 1\nb 0 1\n", 2, "1 lines behind it", "2"),
        (parse_offsets, b"0\n1\na 0\n", 4, "topic, partition and offset", "'a 0'"),
        (parse_offsets, b"0\n2\na 0 1\na b c\n", 10, "topic, partition and offset", "'a b c'"),
        (parse_offsets, b"0\n1\na 0 -1\n", 4, "topic, partition and offset", "'a 0 -1'"),
        (parse_offsets, b"0\n1\na 0 9223372036854775808\n", 4, "topic, partition", "9223372036854775808"),
        (parse_offsets, b"0\n1\na\xff 0 1\n", 5, "UTF-8", "xff"),
        (parse_leader_epochs, b"0\n1\n0\n", 4, "epoch and start offset", "'0'"),
        (parse_leader_epochs, b"0\n2\n3 0\n3 9\n", 8, "an epoch above 3", "'3 9'"),
        (parse_leader_epochs, b"0\n2\n3 10\n4 9\n", 9, "begins at 10 or behind", "'4 9'"),
        (parse_topic_id, b"version: 1\ntopic_id: x", 0, "version: 0", "version: 1"),
        (parse_topic_id, b"version: 0", 10, "one line with the topic_id", "b''"),
        (parse_topic_id, b"version: 0\ntopic_id: short", 11, "22 characters of base64", "'short'"),
        (parse_topic_id, b"version: 0\ntopic_id: " + b"A" * 22, 11, "an id", "means no topic"),
        (parse_meta_properties, b"version=2\n", 0, "version 0 or 1", "2"),
        (parse_meta_properties, b"version=one\n", 0, "version as a whole number", "'one'"),
        (parse_meta_properties, b"version=1\nnode.id=1\n", 0, "cluster.id and node.id", "version, node.id"),
        (parse_meta_properties, b"a=\\u12", 0, "a Java properties file", ""),
        (parse_clean_shutdown, b"{", 0, "as JSON", "{"),
        (parse_clean_shutdown, b'{"version":1,"brokerEpoch":2}', 0, "version 0", "version"),
        (parse_clean_shutdown, b"[]", 0, "as JSON", "[]"),
    ],
)
def test_what_no_broker_writes_is_one_error(
    parse: Any, data: bytes, at: int, expected: str, found: str
) -> None:
    message = rf"the/file: at byte {at} expected .*{re.escape(expected)}.*, found .*{re.escape(found)}"
    with pytest.raises(CorruptFileError, match=message):
        parse(data, "the/file")


@pytest.mark.parametrize(
    "parse", [parse_offsets, parse_leader_epochs, parse_topic_id, parse_meta_properties, parse_clean_shutdown]
)
@given(data=st.one_of(st.binary(max_size=60), st.text("0123 \n\ra-{}=", max_size=40).map(str.encode)))
def test_any_bytes_are_read_or_one_error(parse: Any, data: bytes) -> None:
    said = ""
    try:
        parse(data, "the/file")
    except CorruptFileError as error:
        said = str(error)
    assert re.match("the/file: at byte [0-9]+ expected |$", said)


@given(value=st.binary(min_size=16, max_size=16).filter(any))
def test_an_id_is_written_as_it_is_read(value: bytes) -> None:
    topic = uuid.UUID(bytes=value)
    assert parse_topic_id(f"version: 0\ntopic_id: {text_of(topic)}".encode(), "p") == topic
