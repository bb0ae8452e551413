"""Real brokers on log directories that were restored from the lake: same records, and writing goes on.

Of each version one node writes, stops, is archived and loses the log. Its restored directory is all that it
gets back. The newest version opens those of the others, too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_engine.exceptions import StorageEngineError
from storage_engine.kafka.format.checkpoints import read_leader_epochs
from storage_engine.lake.acts.act_files import record_act
from storage_engine.lake.catalog.catalog import Lake
from storage_engine.lake.gc.segment_expiry import finish_acts, remove_expired
from storage_engine.lake.restore.restore_span import Span
from storage_engine.model.keep.acts import ActKind, KeepDecision, decide_rule
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.proof.receipt import Receipt
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.kafka_broker import SECONDS, any_segment_bytes, make_topics, running_kafka
from tests.integration.kafka_transactions import (
    LEVELS,
    NAME,
    SEGMENT_BYTES,
    SUFFIXES,
    TOPIC,
    Records,
    consumed,
    forget,
    in_force,
    last_end,
    limits,
    write,
)
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.services.command_line import run_command
from tests.services.restoring import restore

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]

VERSIONS = ("3.9.2", "4.1.2", "4.3.1", "4.4.0")
NEWEST = VERSIONS[-1]


@dataclass(frozen=True)
class Written:
    """A node that was stopped, its lake, and what its broker served of the log before.

    :param original: a copy of the log's directory, which the node has lost.
    :param end: behind the last segment at whose end no transaction lacks its marker.
    :param records: by isolation level.
    """

    version: str
    root: Path
    lake_directory: Path
    lake: Lake
    receipts: tuple[Receipt, ...]
    original: Path
    end: int
    records: Mapping[str, Records]


def settings_of(root: Path, *more: Path) -> dict[str, object]:
    """Settings of a node with two log directories, which deletes nothing by itself."""
    directories = [root / "first", root / "second", *more]
    return {
        "log.dirs": ",".join(map(str, directories)),
        "metadata.log.dir": root / "metadata",
        "log.retention.ms": -1,
    }


@pytest.fixture(scope="module", params=VERSIONS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    version, root = request.param, tmp_path_factory.mktemp("node")
    roll = any_segment_bytes(version)
    with running_kafka(root, version, settings_of(root)) as kafka:
        make_topics(kafka.address, TOPIC, **{roll: SEGMENT_BYTES})
        write(kafka.address, rounds=30)
        # Each start is another leader's epoch.
        kafka.stop()
        kafka.start()
        write(kafka.address, rounds=10)
        records = {level: consumed(kafka.address, level) for level in LEVELS}
        # Newer versions take none so small, and don't start on it.
        forget(kafka.address, roll.replace("_", "."))
        kafka.stop()
    (directory,) = (path for path in (root / "first" / NAME, root / "second" / NAME) if path.exists())
    lake_directory = tmp_path_factory.mktemp("lake") / "lake"
    lake = new_lake(lake_directory)
    sealed = segments_of(root, NAME)[:-1]
    # One has a data file of its own, so that it can expire alone; those on either side share one.
    third = len(sealed) // 3
    parts = (sealed[:third], sealed[third : third + 1], sealed[third + 1 :])
    receipts = tuple(row for part in parts for row in archive(lake, root, part))
    original = root / "original"
    directory.rename(original)
    end = last_end(lake, receipts, [root / "server.properties"], lake_directory.parent / "tried")
    return Written(version, root, lake_directory, lake, receipts, original, end, records)


def serves_all(written: Written, version: str, tmp_path: Path, span: Span) -> None:
    """A broker serves what was restored, and takes more; nothing of it is changed."""
    root = Path(shutil.copytree(written.root, tmp_path / "node", ignore=shutil.ignore_patterns("*.lock")))
    properties = root / "server.properties"
    properties.write_text(properties.read_text().replace(str(written.root), str(root)))
    target = tmp_path / "restored"
    rows = restore(written.lake, STORE, target, serving=[properties], span=span)
    first, end = rows[0].base_offset, written.end
    before = {path.name: path.read_bytes() for path in (target / NAME).iterdir() if path.suffix in SUFFIXES}
    assert before == {name: (written.original / name).read_bytes() for name in before}
    with running_kafka(root, version, settings_of(root, target)) as kafka:
        start, served_end = limits(kafka.address)
        # A new leader begins with no record of its own.
        assert (start, served_end) == (first, end)
        for level, records in written.records.items():
            expected = [one for one in records if first <= one[0] < end]
            assert expected
            assert consumed(kafka.address, level) == expected
        write(kafka.address, rounds=4)
        after = {level: consumed(kafka.address, level) for level in LEVELS}
        for level, records in written.records.items():
            kept = [one for one in after[level] if one[0] < end]
            assert kept == [one for one in records if first <= one[0] < end]
            assert {one[2] for one in after[level] if one[0] >= end} >= {b"outer-0-0", b"plain-3-1"}
        kafka.stop()
    epochs = read_leader_epochs(target / NAME / "leader-epoch-checkpoint")
    assert epochs[-1].start_offset == end
    known = read_leader_epochs(written.original / "leader-epoch-checkpoint")
    assert [one for one in epochs if one.start_offset < end] == in_force(known, first, end)
    own_snapshot = f"{first:020d}.snapshot"
    for name, content in before.items():
        path = target / NAME / name
        # Below a log's start a broker knows of no producer. To the last segment it has added.
        assert (name == own_snapshot and not path.exists()) or path.read_bytes().startswith(content), name
    # What was restored has no index: the broker has made them again. Entries may be others, as they depend on
    # which batches came at once. Kafka's own tool holds them against the batches.
    whole = [path.stem for path in sorted((target / NAME).glob("*.log")) if path.name in before][:-1]
    indexes = [f"{stem}{suffix}" for stem in whole for suffix in (".index", ".timeindex")]
    printed = dumped(target / NAME, *indexes)
    assert printed.count(b"Dumping") == 2 * len(whole)
    assert not re.search(rb"mismatch|out of order|corrupt", printed, re.IGNORECASE), printed


def test_the_same_version_serves_all_of_it(written: Written, tmp_path: Path) -> None:
    serves_all(written, written.version, tmp_path, Span(to_offset=written.end))


def test_the_same_version_serves_it_from_a_later_segment_on(written: Written, tmp_path: Path) -> None:
    middle = written.receipts[len(written.receipts) // 2]
    serves_all(written, written.version, tmp_path, Span(middle.base_offset, written.end))


def test_the_newest_version_serves_it(written: Written, tmp_path: Path) -> None:
    if written.version == NEWEST:
        pytest.skip("it did in the test before")
    serves_all(written, NEWEST, tmp_path, Span(to_offset=written.end))


def dumped(directory: Path, *names: str) -> bytes:
    """Return what Kafka's own tool prints of files."""
    dump = [java(), "-cp", class_path(JAVA_PROJECTS / "kafka" / "dump_log"), "kafka.tools.DumpLogSegments"]
    files = ",".join(str(directory / name) for name in names)
    command = [*dump, "--print-data-log", "--files", files]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(directory).encode(), b"DIR")


def test_kafka_s_own_tool_prints_the_same_of_original_and_restored(written: Written, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    restore(
        written.lake,
        STORE,
        target,
        serving=[written.root / "server.properties"],
        span=Span(None, written.end),
    )
    names = sorted(path.name for path in (target / NAME).iterdir() if path.suffix in SUFFIXES)
    printed = [dumped(directory, *names) for directory in (target / NAME, written.original)]
    assert printed[0] == printed[1]
    assert f"lastOffset: {written.end - 1} ".encode() in printed[0]


def test_the_command_line_restores_for_a_node_and_refuses_one_that_runs(
    written: Written, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(written.root, tmp_path / "node"))
    properties = root / "server.properties"
    properties.write_text(properties.read_text().replace(str(written.root), str(root)))
    target = tmp_path / "restored"
    arguments = ("restore", "--lake", written.lake_directory, "--to", target, "--for-store", properties)
    arguments = (*arguments, "--to-offset", written.end)
    with running_kafka(root, written.version, settings_of(root)):
        refused = run_command(*arguments)
        assert refused.exit_code != 0
        assert "expected a node that is stopped" in refused.err
        assert not target.exists()
    # Who starts a node that has lost a log gets an empty one.
    refused = run_command(*arguments)
    assert "expected node 1 to have no directory of it" in refused.err
    (empty,) = (path for path in (root / "first" / NAME, root / "second" / NAME) if path.exists())
    empty.rename(root / "empty")
    done = run_command(*arguments)
    assert done.exit_code == 0, done.err
    assert (target / "meta.properties").is_file()
    assert len(list((target / NAME).glob("*.log"))) == sum(row.end <= written.end for row in written.receipts)


def test_the_same_version_serves_what_is_left_behind_what_expired(written: Written, tmp_path: Path) -> None:
    """The last of these tests: the lake has less afterwards."""
    gone = written.receipts[len(written.receipts) // 3]
    acts = record_act(written.lake, lambda acts: decide_rule(acts, Scope(), "0 days"))
    files, policy = gone.proven_files, acts[-1].sha256
    expiry = KeepDecision(ActKind.EXPIRE, policy=policy, segments=(gone.identity,), files=files)
    record_act(written.lake, lambda _: expiry)
    finish_acts(written.lake)
    assert remove_expired(written.lake, trash_ms=0) == files
    with pytest.raises(StorageEngineError) as refused:
        restore(written.lake, STORE, tmp_path / "whole", serving=[written.root / "server.properties"])
    assert f"[{gone.base_offset}, {gone.end})" in str(refused.value)
    serves_all(written, written.version, tmp_path, Span(gone.end, written.end))
