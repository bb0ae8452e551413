"""What to type for a node whose broker is stopped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.made_node import MadeNode
from tests.kafka.stopped_nodes import LOGS, make_node
from tests.services.lock_holder import lock_held


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    return make_node(tmp_path / "node")


def next_command(cli: Any, node: Path, lake: Path) -> str:
    """Return doctor's next command, without the store and the lake."""
    found = cli("doctor", node, "--lake", lake, "--json").json["next"]["command"] or ""
    return str(found).replace(f" {node} --lake {lake}", "")


@pytest.mark.again
def test_doctor_and_archive_name_the_cleanup(cli: Any, made: MadeNode, tmp_path: Path) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    assert next_command(cli, node, lake) == "storage-engine archive"
    archived = cli("archive", node, "--lake", lake)
    assert archived.out.splitlines()[-1] == f"Next: storage-engine clean {node} --lake {lake}"
    assert next_command(cli, node, lake) == "storage-engine clean"
    assert cli("clean", node, "--lake", lake).exit_code == 0
    assert next_command(cli, node, lake) == ""


def test_doctor_asks_for_the_word_of_a_person_where_other_nodes_have_replicas(
    cli: Any, made: MadeNode, tmp_path: Path
) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    made.replicas |= dict.fromkeys(LOGS, (1, 2))
    made.write()
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    cli("archive", node, "--lake", lake)
    assert next_command(cli, node, lake) == "storage-engine clean --replicas-stopped REASON"


def test_a_node_that_was_not_stopped_cleanly_is_not_cleaned_by_rocketmqs_sign(
    cli: Any, made: MadeNode, tmp_path: Path
) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    (made.directories[0] / ".kafka_cleanshutdown").unlink()
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    cli("archive", node, "--lake", lake)
    found = cli("doctor", node, "--lake", lake, "--json").json["next"]
    assert found["command"] is None
    assert "start the broker and stop it cleanly" in found["why"]


def test_a_dry_run_does_not_take_unknown_consumers_for_none(cli: Any, made: MadeNode, tmp_path: Path) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    said = cli("clean", node, "--lake", lake, "--dry-run").out
    assert "Consumers: no group is known to be behind." in said
    assert "WARNING no partition of __consumer_offsets is on this node" in said
    shown = cli("clean", node, "--lake", lake, "--dry-run", "--json").json
    assert shown["groups"] == []
    (notice,) = shown["source"]["notices"]
    assert notice.startswith("no partition of __consumer_offsets is on this node")
    blocked = cli("clean", node, "--lake", lake, "--dry-run", "--lag-policy", "block").out
    assert "lag-blocked: it was not measured which messages of log a-0 consumers have not read" in blocked
    assert "Nothing would be deleted now." in blocked


def test_beside_a_running_broker_a_cleanup_is_refused_also_where_nothing_has_expired(
    cli: Any, made: MadeNode, tmp_path: Path
) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    made.node_settings["log.retention.ms"] = "-1"
    made.write()
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    lock = made.directories[1] / ".lock"
    with lock_held(lock) as holder:
        refused = cli("clean", node, "--lake", lake)
        assert refused.exit_code == 1
        assert f"{lock} is locked by process {holder} (" in refused.err
        assert "--broker ADDRESS with --deletes-us" in refused.err
        assert cli("clean", node, "--lake", lake, "--dry-run").exit_code == 0
        assert cli("plan", node).exit_code == 0
        assert cli("kafka", "run-tasks", node, "--lake", lake).exit_code == 0
    assert cli("clean", node, "--lake", lake).exit_code == 0


ROCKETMQS = re.compile(
    r"commit ?log|consume ?queue|deleteWhen|name.?servers?\b|rocketmq|broker\.conf|fileReserved|mappedFile"
    r"|\bqueues?\b",
    re.IGNORECASE,
)


@pytest.mark.again
@pytest.mark.usefixtures("plainly")
def test_nothing_that_is_said_of_a_node_is_in_rocketmqs_words(
    cli: Any, made: MadeNode, tmp_path: Path
) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    said = [cli(command, node) for command in ("plan", "doctor", "inspect", "lag")]
    said += [cli(command, node, "--lake", lake) for command in ("hold", "unmanage", "shield")]
    said += [cli("plan", node, "--deletes-us"), cli("clean", node, "--lake", lake, "--dry-run")]
    said += [cli(command, node, "--lake", lake) for command in ("archive", "clean", "doctor")]
    said += [cli("validate", node, "--lake", lake, "--full"), cli("kafka", "run-tasks", node, "--lake", lake)]
    (page,) = (lake / "reports").glob("*/clean-*/report.html")
    texts = [one.out + one.err for one in said]
    texts += [re.sub(r"<style>.*?</style>|<[^>]*>", " ", page.read_text(), flags=re.DOTALL)]
    texts += [(page.parent / name).read_text() for name in ("report.txt", "summary.txt", "summary.html")]
    assert [match[0] for text in texts for match in ROCKETMQS.finditer(text)] == []
    assert "Indexes" in texts[-4]
    assert "Indexes" in texts[-3]


def test_a_node_that_is_stopped_needs_no_hold_and_has_no_shield(
    cli: Any, made: MadeNode, tmp_path: Path
) -> None:
    node, lake = made.root / "server.properties", tmp_path / "lake"
    cli("init-lake", "--lake", lake, "--broker-type", "kafka")
    for command in ("hold", "unmanage"):
        refused = cli(command, node, "--lake", lake)
        assert refused.exit_code == 2
        assert (
            "--broker or --client-config, which names the running broker of STORE, found no such option"
            in refused.err
        )
    refused = cli("plan", node, "--deletes-us")
    assert "--deletes-us: expected --broker or --client-config with it, found none" in refused.err
    for more in ((), ("--remove",)):
        refused = cli("shield", node, "--lake", lake, *more)
        assert refused.exit_code == 2
        assert "expected a store that can have a shield, found one of Apache Kafka" in refused.err
