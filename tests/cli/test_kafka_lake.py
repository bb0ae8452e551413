"""The commands of a lake on a node of Kafka: from making one to what comes back out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_fixture import unpack


@pytest.mark.again
@pytest.mark.slow
def test_a_node_is_archived_verified_exported_and_restored(cli: Any, tmp_path: Path) -> None:
    node = unpack(tmp_path / "node") / "server.properties"
    lake = tmp_path / "lake"
    made = cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    assert made.out.splitlines()[-1] == f"Next: storage-engine archive STORE --lake {lake}"
    archived = cli("archive", node, "--lake", lake)
    assert archived.exit_code == 0
    # A base offset alone names a segment in each log.
    assert "txn-1/00000000000000000000 " in archived.out
    info = cli("lake", "info", "--lake", lake).out
    assert "segments of  kafka" in info
    assert "txn-1 " in info
    assert "records " in info
    assert cli("verify", node, "--lake", lake, "--level", "store").exit_code == 0
    exported = cli(
        "export", "--lake", lake, "--to", tmp_path / "txn.jsonl", "--topic", "txn", "--queue", "1", "--json"
    )
    lines = [json.loads(line) for line in (tmp_path / "txn.jsonl").read_text().splitlines()]
    assert exported.json["message_count"] == len(lines) > 1000
    assert {line["partition"] for line in lines} == {1}
    back = tmp_path / "back"
    restored = cli(
        "restore", "--lake", lake, "--to", back, "--log", "txn-1", "--from-offset", "300", "--json"
    )
    assert len(restored.json["restored"]) > 3
    for row in restored.json["restored"]:
        path = Path(row["path"])
        assert path.read_bytes() == (node.parent / "logs/txn-1" / path.name).read_bytes()
    assert "No garbage" in cli("gc", "--lake", lake).out


def test_advice_to_make_a_lake_knows_the_kind_of_the_store(cli: Any, tmp_path: Path, store: Path) -> None:
    node, away = unpack(tmp_path / "node") / "server.properties", tmp_path / "away"
    made = "storage-engine init-lake --lake {} --broker-type kafka"
    for lake, named in (((), "DIRECTORY"), (("--lake", away), away)):
        found = cli("doctor", node, *lake, "--json").json
        assert found["next"]["command"] == made.format(named)
        (unproven,) = (one for one in found["findings"] if one["kind"] == "unproven")
        assert unproven["advice"].endswith(made.format("DIRECTORY"))
    for words in (("archive", node), ("clean", "--broker-type", "kafka", node)):
        assert f"there: {made.format(away)}" in cli(*words, "--lake", away).err
    assert cli("doctor", store, "--json").json["next"]["command"].endswith("init-lake --lake DIRECTORY")
    lake = tmp_path / "lake"
    said = cli("init-lake", "--lake", lake, "--broker-type", "rocketmq").out
    assert "sealed segments of STORE (Apache RocketMQ), with proof.\n" in said
    refused = cli("archive", node, "--lake", lake)
    assert refused.exit_code == 2
    assert "init-lake --broker-type kafka --lake DIRECTORY" in refused.err


def test_a_lake_for_no_kind_is_told_as_that_and_takes_the_first_stores(
    cli: Any, tmp_path: Path, store: Path
) -> None:
    node, lake = unpack(tmp_path / "node") / "server.properties", tmp_path / "lake"
    said = cli("init-lake", "--lake", lake).out
    assert "segments of STORE, with proof; from then on it is for stores of that kind.\n" in said
    assert said.endswith(f"Next: storage-engine archive STORE --lake {lake}\n")
    assert cli("init-lake", "--lake", lake, "--json").json["lakes"][0]["broker"] == ""
    assert "segments of  the first store's kind" in cli("lake", "info", "--lake", lake).out
    for root in (node, store):
        kinds = [one["kind"] for one in cli("doctor", root, "--lake", lake, "--json").json["findings"]]
        assert "lake-broker" not in kinds
    assert cli("archive", node, "--lake", lake).exit_code == 0
    assert "segments of  kafka" in cli("lake", "info", "--lake", lake).out
    refused = cli("archive", store, "--lake", lake)
    assert (refused.exit_code, "found one for those of kafka. Nothing was changed" in refused.err) == (
        2,
        True,
    )
