"""Real brokers on log directories that were restored from the lake: same records, and writing goes on.

Of each version one node writes, stops, is archived and loses the log. Its restored directory is all that it
gets back. The newest version opens those of the others, too.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from storage_engine.exceptions import RestoreError
from storage_engine.kafka.checkpoints import LeaderEpoch, read_leader_epochs
from storage_engine.lake.catalog import Lake
from storage_engine.lake.restore import restore
from storage_engine.lake.restore_span import Span
from storage_engine.model.receipt import Receipt
from storage_engine.project.kafka import watermarks
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.integration.kafka_broker import SECONDS, admin_of, make_topics, running_kafka
from tests.kafka.lakes import STORE, archive, new_lake, segments_of
from tests.services.command_line import run_command

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1_200)]

VERSIONS = ("3.9.2", "4.1.2", "4.3.1", "4.4.0")
NEWEST = VERSIONS[-1]
TOPIC = "payments"
NAME = f"{TOPIC}-0"
SEGMENT_BYTES = 6_000
SUFFIXES = (".log", ".txnindex", ".snapshot")

Records = list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]


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
    roll = "segment_bytes" if version.startswith("3.") else "internal_segment_bytes"
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
    receipts = archive(lake, root, sealed)
    original = root / "original"
    directory.rename(original)
    end = _last_end(lake, receipts, root, lake_directory.parent / "tried")
    return Written(version, root, lake_directory, lake, receipts, original, end, records)


def forget(address: str, setting: str) -> None:
    """Take a setting of its own from the topic."""
    operation = ConfigEntry(setting, None, incremental_operation=AlterConfigOpType.DELETE)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[operation])
    admin = admin_of(address)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS)


def _last_end(lake: Lake, receipts: Sequence[Receipt], root: Path, target: Path) -> int:
    """Return up to where a broker can serve it, as the refusal says: the active segment may have a marker."""
    try:
        restore(lake, STORE, target, serving=[root / "server.properties"])
    except RestoreError as error:
        (hint,) = re.findall(r"--log payments-0 --to-offset (\d+)", str(error))
        end = int(hint)
    else:
        end = receipts[-1].end
    assert end in [row.end for row in receipts[len(receipts) // 2 :]]
    return end


LEVELS = ("read_committed", "read_uncommitted")


def write(address: str, rounds: int) -> None:
    """Write transactions of two producers that overlap; some are aborted. And records outside of any.

    Now and then there is no transaction for a whole segment.
    """
    chance = random.Random(rounds)
    common = {"bootstrap.servers": address, "linger.ms": 0, "log_level": 0}
    outer = Producer({**common, "transactional.id": "outer", "compression.type": "lz4"})
    inner = Producer({**common, "transactional.id": "inner"})
    plain = Producer({**common, "enable.idempotence": True, "compression.type": "zstd"})
    for producer in (outer, inner):
        producer.init_transactions(SECONDS)
    for number in range(rounds):
        outer.begin_transaction()
        send(outer, chance, f"outer-{number}", 4)
        if number % 3 == 0:
            inner.begin_transaction()
        send(plain, chance, f"plain-{number}", 2)
        if number % 3 < 2:
            send(inner, chance, f"inner-{number}", 2)
        (outer.abort_transaction if number % 4 == 1 else outer.commit_transaction)(SECONDS)
        if number % 3 == 1:
            (inner.abort_transaction if number % 2 else inner.commit_transaction)(SECONDS)
        for place in range(6 if number % 9 == 8 else 0):
            send(plain, chance, f"between-{number}-{place}", 5)
    if (rounds - 1) % 3 == 0:
        inner.commit_transaction(SECONDS)


def send(producer: Producer, chance: random.Random, key: str, count: int) -> None:
    for place in range(count):
        value = None if chance.random() < 0.1 else chance.randbytes(200)
        headers = [("n", str(place).encode()), ("n", b"again")]
        producer.produce(TOPIC, value, f"{key}-{place}", 0, headers=headers)
    assert producer.flush(SECONDS) == 0


def consumed(address: str, level: str) -> Records:
    """Return all that a consumer gets, from the log's start to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": level,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        start, _ = watermarks(consumer, TopicPartition(TOPIC, 0), SECONDS)
        consumer.assign([TopicPartition(TOPIC, 0, start)])
        found: Records = []
        while (message := consumer.poll(SECONDS)) is not None:
            if message.error():
                return found
            headers = tuple(message.headers() or ())
            found.append((message.offset(), message.timestamp()[1], message.key(), message.value(), headers))
        raise AssertionError(f"nothing came for {SECONDS:.0f} s")
    finally:
        consumer.close()


def limits(address: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "looker", "log_level": 0})
    try:
        start, end = watermarks(consumer, TopicPartition(TOPIC, 0), SECONDS)
        return start, end
    finally:
        consumer.close()


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


def in_force(epochs: tuple[LeaderEpoch, ...], first: int, end: int) -> list[LeaderEpoch]:
    begun = [one for one in epochs if one.start_offset <= first][-1:]
    behind = [one for one in epochs if first < one.start_offset < end]
    return [*(LeaderEpoch(one.epoch, first) for one in begun), *behind]


def test_the_same_version_serves_all_of_it(written: Written, tmp_path: Path) -> None:
    serves_all(written, written.version, tmp_path, Span(to_offset=written.end))


def test_the_same_version_serves_it_from_a_later_segment_on(written: Written, tmp_path: Path) -> None:
    middle = written.receipts[len(written.receipts) // 2]
    serves_all(written, written.version, tmp_path, Span(middle.base_offset, written.end))


def test_the_newest_version_serves_it(written: Written, tmp_path: Path) -> None:
    if written.version == NEWEST:
        pytest.skip("it did in the test before")
    serves_all(written, NEWEST, tmp_path, Span(to_offset=written.end))


def test_kafka_s_own_tool_prints_the_same_of_original_and_restored(written: Written, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    restore(
        written.lake,
        STORE,
        target,
        serving=[written.root / "server.properties"],
        span=Span(None, written.end),
    )
    dump = [java(), "-cp", class_path(JAVA_PROJECTS / "kafka" / "dump_log"), "kafka.tools.DumpLogSegments"]
    printed = []
    for directory in (target / NAME, written.original):
        files = sorted(path for path in (target / NAME).iterdir() if path.suffix in SUFFIXES)
        names = ",".join(str(directory / path.name) for path in files)
        command = [*dump, "--print-data-log", "--files", names]
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.replace(str(directory).encode(), b"DIR"))
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
