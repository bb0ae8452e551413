"""What leaves a lake of a stopped node: what the node no longer has, and all of a topic that was deleted."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from sqlite3 import connect
from typing import Any

import pytest

from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.lake.acts import act_files
from tests.kafka.made_node import metadata_record
from tests.kafka.stopped_nodes import make_node

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plainly")]


def reasons(cli: Any, lake: Path) -> Counter[tuple[str, str]]:
    done = cli("lake", "expire", "--lake", lake, "--dry-run", "--json")
    assert done.exit_code == 0, done
    return Counter((it["segment"]["identity"]["log"], it["reason"]) for it in done.json["verdicts"])


def test_what_a_node_no_longer_has_expires_and_so_does_a_topic_that_was_deleted(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lake = make_node(tmp_path / "node"), tmp_path / "lake"
    node = made.properties
    assert cli("init-lake", "--lake", lake, "--broker-type", "kafka").exit_code == 0
    with monkeypatch.context() as patch:
        ago_ms = clock_ms() - 2 * DAY_MS
        patch.setattr(act_files, "clock_ms", lambda: ago_ms)
        patch.setattr(act_files, "read_clock_at", lambda *_: ago_ms * 1_000_000)
        assert cli("lake", "keep", "--lake", lake, "--keep", "0 days").exit_code == 0
    assert cli("archive", node, "--lake", lake).exit_code == 0
    shutil.rmtree(next(path / "b-0" for path in made.directories if (path / "b-0").exists()))
    made.write()
    assert cli("clean", node, "--lake", lake).exit_code == 1
    assert reasons(cli, lake) == {("a-0", "store-unknown"): 2, ("b-0", "store-unknown"): 2}
    # RemoveTopicRecord: the topic was deleted.
    made.more_records.append(metadata_record(9, made.topic_ids["b"].bytes))
    made.write()
    done = cli("clean", node, "--lake", lake)
    assert done.exit_code == 0, done
    assert reasons(cli, lake) == {("a-0", "past"): 2, ("b-0", "past"): 2}
    # A journal drops what it counted of topics in time: of a log that is there its name tells the topic.
    with connect(lake / "journal.db") as journal:
        counts = journal.execute("SELECT * FROM storage_engine_topic_days").fetchall()
        journal.execute("DELETE FROM storage_engine_topic_days")
    assert reasons(cli, lake) == {("a-0", "past"): 2, ("b-0", "streams-unknown"): 2}
    kept = cli("lake", "keep", "--lake", lake, "--json").json["lakes"][0]
    assert {topic["topic"] for topic in kept["topics"]} == {"a", "b"}
    with connect(lake / "journal.db") as journal:
        places = ", ".join("?" * len(counts[0]))
        journal.executemany(f"INSERT INTO storage_engine_topic_days VALUES ({places})", counts)
    done = cli("lake", "expire", "--lake", lake)
    assert "4 segments expired" in done.out
    assert cli("verify", node, "--lake", lake, "--level", "store").exit_code == 0
