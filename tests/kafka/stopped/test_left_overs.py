"""What a stopped broker was about to remove goes only where a lake has it, or a person says so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal, Phase, Step
from storage_engine.kafka import BROKER
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.stopped.stopped_release import StoppedNode, read_stopped
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.broker_store import StoreSettings
from storage_engine.model.settings.policy import ArchiveMode
from storage_engine.retention import steps
from storage_engine.retention.monitor.broker_tasks import check_topic_words
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.left_over_node import GONE, delete_first_segment, make_left_over, run
from tests.kafka.stopped_nodes import files_of
from tests.services.lock_holder import lock_held

TRIAL = {"gone": "the topic was a trial"}
DELETED = [f"{0:020d}.{kind}.deleted" for kind in ("index", "log", "timeindex", "txnindex")]


@pytest.fixture
def store(tmp_path: Path) -> ManagedStore:
    return make_left_over(tmp_path)


def first(store: ManagedStore) -> Path:
    return Path(store.root).parent / "first"


def test_what_a_lake_has_goes_and_the_rest_is_as_it_was(store: ManagedStore) -> None:
    log = first(store) / "a-0"
    before = files_of(log)
    assert [name for name in before if name.endswith(".deleted")] == DELETED
    found = run(store)
    assert found["cleanupLogs"].removed_files == len(DELETED)
    assert found["cleanupLogs"].kept == ()
    assert files_of(log) == [name for name in before if name not in DELETED]
    assert found["deleteLogs"].removed_files == 4
    assert not (first(store) / GONE).exists()
    assert [one.alarms for one in found.values()] == [()] * 5
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    (meant, done) = (
        [event.subject for event in journal.store_events(record.store_id, Step.BROKER_TASK, phase)]
        for phase in (Phase.INTENT, Phase.RESULT)
    )
    assert meant == [subject for subject in done if subject] == [f"{log}/{0:020d}", f"{first(store) / GONE}"]
    # Once a run: what is asked again is what it came to.
    assert run(store) == found
    assert {one.removed_files for one in run(store, "again").values()} == {0}


def test_nothing_goes_before_its_delay_is_over(store: ManagedStore) -> None:
    found = {one.name: one for one in steps.run_broker_tasks(store, "soon", now_ms=clock_ms() + 30_000)}
    assert "stay until their delay is over" in found["cleanupLogs"].kept[0]
    assert found["deleteLogs"].kept[0].endswith("its delay isn't over")
    assert (first(store) / GONE).exists()


def test_other_bytes_than_the_lakes_stay(store: ManagedStore) -> None:
    path = first(store) / "a-0" / DELETED[1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = run(store)
    assert found["cleanupLogs"].removed_files == 0
    assert "differs from a lake's copy" in found["cleanupLogs"].kept[0]
    assert set(DELETED) <= set(files_of(first(store) / "a-0"))


def test_what_no_lake_has_of_a_deleted_topic_goes_by_a_persons_word_alone(store: ManagedStore) -> None:
    (first(store) / GONE / f"{2:020d}.log").write_bytes(b"what was written last")
    found = run(store)
    assert found["deleteLogs"].removed_files == 0
    assert "--deleted-topic gone=REASON" in found["deleteLogs"].kept[0]
    found = run(store, "second", words=TRIAL)
    assert found["deleteLogs"].removed_files == 4
    assert "was deleted by a person's decision" in found["deleteLogs"].unproven[0]
    assert not (first(store) / GONE).exists()


def test_a_word_is_for_its_topic_and_for_what_no_lake_has_alone(store: ManagedStore, tmp_path: Path) -> None:
    (first(store) / GONE / f"{2:020d}.log").write_bytes(b"what was written last")
    assert run(store, "other", words={"go": "a trial"})["deleteLogs"].removed_files == 0
    with pytest.raises(BadInputError, match="expected a reason"):
        run(store, "empty", words={"gone": " "})
    missing = LakeConfig.local(tmp_path / "elsewhere")
    found = run(replace(store, second_lake=missing), "unreachable", words=TRIAL)
    assert found["deleteLogs"].removed_files == 0
    assert "a lake could not be asked" in found["deleteLogs"].kept[0]
    path = first(store) / GONE / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = run(store, "contradicted", words=TRIAL)
    assert found["deleteLogs"].removed_files == 0
    assert "differs from a lake's copy" in found["deleteLogs"].kept[0]
    assert (first(store) / GONE / f"{2:020d}.log").exists()


def test_a_word_for_a_topic_that_is_there_is_refused_before_anything_goes(store: ManagedStore) -> None:
    with pytest.raises(BadInputError, match=r"topic a: expected a deleted topic, found that the clu"):
        run(store, words={"a": "a trial", **TRIAL})
    assert (first(store) / GONE).exists()
    assert set(DELETED) <= set(files_of(first(store) / "a-0"))
    # Where only its directory says so, that counts.
    (first(store).parent / "meta/__cluster_metadata-0" / f"{0:020d}.log").unlink()
    with pytest.raises(BadInputError, match=r"its log .*/first/a-0 is in use"):
        check_topic_words(store, "tasks", {"a": "a trial"})


def test_a_topic_that_was_made_again_may_have_left_something(store: ManagedStore) -> None:
    left = (first(store) / GONE).rename(first(store) / GONE.replace("gone-0", "b-1"))
    (left / f"{2:020d}.log").write_bytes(b"what was written last")
    assert check_topic_words(store, "tasks", {"b": "a trial"}) == ()
    assert run(store, words={"b": "a trial"})["deleteLogs"].removed_files == 4
    # The run that goes on finds it gone, and another one has no use for the word.
    assert check_topic_words(store, "tasks", {"b": "a trial"}) == ()
    with pytest.raises(BadInputError, match="topic b: expected a deleted topic"):
        check_topic_words(store, "another", {"b": "a trial"})


def test_a_word_for_nothing_says_so(store: ManagedStore) -> None:
    (said,) = check_topic_words(store, "tasks", {"gonee": "a trial", **TRIAL})
    assert said == (
        "Topic gonee: no -delete directory of this node has its name, so nothing of it is left to be "
        "removed. Did you mean gone?"
    )
    with lock_held(first(store) / ".lock"):
        (said,) = check_topic_words(store, "tasks", TRIAL)
        assert said.startswith("While the broker runs, no file is removed by a person's decision")
    assert check_topic_words(store, "tasks", {}) == ()


def test_where_nothing_is_archived_a_persons_word_alone_lets_anything_go(store: ManagedStore) -> None:
    store = replace(store, policy=replace(store.policy, archive=ArchiveMode.OFF))
    found = run(store)
    assert [one.removed_files for one in found.values()] == [0] * 5
    assert "as nothing is archived" in found["cleanupLogs"].kept[0]
    assert "--deleted-topic gone=REASON" in found["deleteLogs"].kept[0]
    found = run(store, "second", words=TRIAL)
    assert [one.removed_files for one in found.values()] == [0, 0, 0, 0, 4]
    assert set(DELETED) <= set(files_of(first(store) / "a-0"))


def test_a_word_for_deleted_topics_lets_no_segment_of_another_topic_go(store: ManagedStore) -> None:
    path = first(store) / "a-0" / DELETED[1]
    path.write_bytes(path.read_bytes() + b"x")
    assert run(store, words=TRIAL)["cleanupLogs"].removed_files == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda gone: (gone / "notes.txt").write_text("mine"), "notes.txt in it is no file of a log"),
        (lambda gone: (gone / "partition.metadata").unlink(), "its topic isn't certain"),
        (
            lambda gone: (gone / "partition.metadata").write_bytes(
                (gone.parent / "a-0" / "partition.metadata").read_bytes()
            ),
            "still exists",
        ),
        (
            lambda gone: (gone.parent.parent / "meta/__cluster_metadata-0" / f"{0:020d}.log").rename(
                gone.parent.parent / "meta/__cluster_metadata-0" / f"{7:020d}.log"
            ),
            "expected segments that begin at or before offset 0",
        ),
    ],
)
def test_a_directory_stays_where_anything_of_it_is_unknown(
    store: ManagedStore, change: object, why: str
) -> None:
    change(first(store) / GONE)  # type: ignore[operator]
    found = run(store, words=TRIAL)
    assert found["deleteLogs"].removed_files == 0
    assert why in found["deleteLogs"].kept[0]
    assert (first(store) / GONE / f"{0:020d}.log").exists()


def test_a_kept_segments_snapshot_never_goes(store: ManagedStore) -> None:
    log = first(store) / "a-0"
    kept = log / f"{2:020d}.snapshot"
    (log / f"{kept.name}.deleted").write_bytes(kept.read_bytes())
    run(store)
    assert {kept.name, f"{kept.name}.deleted"} <= set(files_of(log))


def test_nothing_goes_beside_what_the_cleaner_left(store: ManagedStore) -> None:
    (first(store) / "a-0" / f"{2:020d}.log.swap").write_bytes(b"")
    assert "stay beside" in run(store)["cleanupLogs"].kept[0]


def test_nothing_goes_after_a_crash_and_the_tasks_say_so(store: ManagedStore) -> None:
    (first(store) / ".kafka_cleanshutdown").unlink()
    found = run(store, words=TRIAL)
    assert "did not stop cleanly" in found["cleanupLogs"].kept[0]
    assert "did not stop cleanly" in found["deleteLogs"].kept[0]
    assert found["cleanupLogs"].removed_files == found["deleteLogs"].removed_files == 0
    assert "the last stop wasn't clean" in found["flushDirtyLogs"].text


def test_a_link_is_named_and_left_alone_while_the_rest_is_done(store: ManagedStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(first(store) / GONE, elsewhere)
    behind = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    links = [first(store) / GONE.replace("gone-0", name) for name in ("gone-1", "gone-2")]
    for link, target in zip(links, (elsewhere, tmp_path / "nowhere"), strict=True):
        link.symlink_to(target)
    found = run(store, words=TRIAL)
    assert (found["cleanupLogs"].removed_files, found["deleteLogs"].removed_files) == (len(DELETED), 4)
    assert not (first(store) / GONE).exists()
    assert [one.is_symlink() for one in links] == [True, True]
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == behind
    for link, said in zip(links, found["deleteLogs"].kept, strict=True):
        assert said.startswith(f"{link}: it is a symbolic link to {tmp_path}/")
    named = [
        one.what for one in BROKER.inspection.diagnose(StoreSettings(store.root), None, clock_ms()).findings
    ]
    assert [link for link in links if not any(f"{link} is a symbolic link" in what for what in named)] == []


def test_what_has_a_link_in_it_stays_and_the_rest_is_done(store: ManagedStore, tmp_path: Path) -> None:
    gone, (index, *_) = first(store) / GONE, DELETED
    for path in (gone / f"{0:020d}.log", first(store) / "a-0" / index):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    second = first(store).parent / "second" / "b-0"
    delete_first_segment(second)
    found = run(store, words=TRIAL)
    assert found["cleanupLogs"].removed_files == len(DELETED)
    assert set(DELETED) <= set(files_of(first(store) / "a-0"))
    assert not set(DELETED) & set(files_of(second))
    assert found["deleteLogs"].removed_files == 0
    assert found["cleanupLogs"].kept[0].startswith(f"{first(store)}/a-0/{index}: it is a symbolic link to")
    assert found["deleteLogs"].kept[0].startswith(f"{gone}/{0:020d}.log: it is a symbolic link to")


def test_a_log_whose_copy_is_a_link_is_copied_still(store: ManagedStore) -> None:
    copy = "b-0.0123456789abcdef0123456789abcdef-future"
    (first(store) / copy).symlink_to(first(store).parent / "second")
    found = read_stopped(read_node(Path(store.root)))
    assert isinstance(found, StoppedNode)
    assert found.copied == {"b-0"}
