"""A log that was made again under a name hides no loss of the one before, however far it reaches."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.kafka.format.partition_metadata import text_of
from storage_engine.model.report.validation import VerifyLevel
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.ranges.missing_logs import kept_logs
from storage_engine.retention.ranges.verification import verify_store
from storage_engine.retention.steps import monitor
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import CLUSTER, MadeNode, batch_of
from tests.kafka.stopped_nodes import archived, make_node

AGAIN = uuid.uuid5(uuid.NAMESPACE_DNS, "another")


@pytest.fixture
def made(tmp_path: Path) -> MadeNode:
    """Logs a-0 and b-0 in a directory each, with offsets [0, 6); the active segment begins at 4."""
    return make_node(tmp_path / "node")


@pytest.fixture
def store(made: MadeNode, tmp_path: Path) -> ManagedStore:
    """Its store, of which what is sealed is in a lake, and which was looked at."""
    store = archived(tmp_path / "managed", made.root)
    assert gone(store) == []
    return store


def gone(store: ManagedStore) -> list[str]:
    return [one for one in monitor(store, "look").alarms if one.startswith("segment-gone")]


def label(made: MadeNode) -> str:
    """Return what the log before is called."""
    return f"a-0 ({CLUSTER}/{text_of(made.topic_ids['a'])}/0)"


def make_again(made: MadeNode, records: int = 20) -> None:
    """Make a-0 another topic's log, that reaches further, though the node's metadata still have the first."""
    shutil.rmtree(made.directories[0] / "a-0")
    path = made.add("a-0", {0: [batch_of(0, records)]})
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {text_of(AGAIN)}")
    made.write()


def rows(store: ManagedStore, log: str) -> list[tuple[int, int, str, str]]:
    """Return what verify says of a log, which validation has to say, too."""
    (verified,) = verify_store(store, VerifyLevel.STORE)
    validated = collect_facts(store, None, full=False, with_lake=True)
    found, again = (
        [
            (one.start_offset, one.end_offset, one.where.value, one.status.value)
            for one in ranges
            if one.log == log
        ]
        for ranges in (verified.ranges, validated.ranges)
    )
    assert found == again
    return found


def test_a_log_that_was_made_again_hides_no_loss_of_the_one_before(
    store: ManagedStore, made: MadeNode
) -> None:
    make_again(made)
    (alarm,) = gone(store)
    assert "and another one has its name by now; by its copy of the cluster's metadata" in alarm
    assert alarm.endswith(f"{label(made)} [4, 6) is LOST.")
    assert gone(store) == [alarm]
    assert rows(store, label(made)) == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "FAILURE")]


@pytest.mark.again
def test_the_loss_is_told_until_a_person_accepts_it(store: ManagedStore, made: MadeNode) -> None:
    make_again(made)
    assert len(gone(store)) == 1
    with pytest.raises(BadInputError, match=r"LOST or UNKNOWN are: a-0 \(.*/0\) \[4, 6\)"):
        steps.accept_loss(store, 0, 6, "anna", "made again", "a-0")
    loss = steps.accept_loss(store, 4, 6, "anna", "made again", "a-0")
    assert loss.log == "a-0"
    assert f"a-0 ({loss.log_id})" == label(made)
    assert gone(store) == []
    assert rows(store, label(made)) == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "WARNING")]


@pytest.mark.again
def test_what_was_accepted_of_one_log_excuses_nothing_of_the_next(
    store: ManagedStore, made: MadeNode
) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    assert len(gone(store)) == 1
    steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "a-0")
    assert gone(store) == []
    made.topic_ids["a"] = AGAIN
    made.add("a-0", {0: [batch_of(0, 20)]})
    made.write()
    # The first one's topic is gone by the metadata, so that it is forgotten.
    assert gone(store) == []
    shutil.rmtree(made.directories[0] / "a-0")
    (alarm,) = gone(store)
    assert "had offsets [0, 20)" in alarm


@pytest.mark.again
def test_an_accepted_loss_stays_accepted_once_another_log_has_the_name(
    store: ManagedStore, made: MadeNode
) -> None:
    shutil.rmtree(made.directories[0] / "a-0")
    steps.accept_loss(store, 4, 6, "anna", "the disk is broken", "a-0")
    (made.directories[0] / "a-0").mkdir()
    make_again(made)
    assert gone(store) == []
    assert rows(store, label(made)) == [(0, 4, "ARCHIVED", "OK"), (4, 6, "LOST", "WARNING")]


@pytest.mark.again
def test_after_another_cluster_was_made_what_the_first_one_had_stays_unknown(
    store: ManagedStore, made: MadeNode
) -> None:
    first = label(made)
    make_again(made)
    for path in (*made.directories, made.root / "meta"):
        properties = path / "meta.properties"
        properties.write_text(properties.read_text().replace("cluster.id=", "cluster.id=X"))
    (alarm,) = (one for one in gone(store) if "a-0" in one)
    assert alarm.endswith(f"{first} [4, 6) is UNKNOWN.")
    steps.accept_loss(store, 4, 6, "anna", "the cluster was made again", first)
    assert not [one for one in gone(store) if "a-0" in one]


def test_without_an_archive_all_of_it_is_lost(store: ManagedStore, made: MadeNode) -> None:
    without = replace(store, policy=replace(store.policy, archive=ArchiveMode.OFF))
    make_again(made)
    (alarm,) = gone(without)
    assert alarm.endswith(f"{label(made)} [0, 6) is LOST.")


def test_both_logs_stay_remembered(store: ManagedStore, made: MadeNode) -> None:
    make_again(made)
    gone(store)
    store_id = collect_facts(store, None, full=False, with_lake=True).store_id
    known = kept_logs(store.journal_url, str(store_id))
    assert known is not None
    assert [(one.end_offset, text_of(AGAIN) in one.identity.log_id) for one in known if one.log == "a-0"] == [
        (6, False),
        (20, True),
    ]
