"""Brokers of each version and layout on what we leave and give back: the table of docs/upgrade.md.

A row writes a store with the real broker, archives and cleans it, and starts that broker on the rest and
on what comes back from the lake. Beside the running one it holds, has a rival delete, releases and
unmanages. Each row is a process of its own. Needs Java and Maven. Ends with 1 where a row fails.

Usage: python -m tests.integration.rocketmq_matrix [VERSION | VERSION/LAYOUT ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.codec.frame_layout import PHYSICAL_OFFSET_AT
from storage_engine.rocketmq.live import hold as live_hold
from tests.fixture_stores import file_sha256
from tests.integration.broker import (
    CLEANS_AT_ONCE,
    CONTROLLED,
    Broker,
    controller,
    name_server,
    running_broker,
)
from tests.integration.live_store import (
    EXPIRED_HOURS,
    SETTINGS,
    TOPIC,
    UPDATE_AND_CREATE_TOPIC,
    LiveLog,
    send,
)
from tests.services.command_line import Outcome, run_command

ROOT = Path(__file__).resolve().parents[2]
HEAD = (
    "| version | layout | archived, cleaned | the broker on the rest | on what came back | beside it |\n"
    "|---|---|---|---|---|---|"
)
MESSAGES = 100
"""So many of 20 kB make 16 segments of 128 KiB: more than the 10 of which some make queues by themselves."""
GONE = 3
"""Segments that each clean deletes."""
ROW_SECONDS = 900
FILES = "files"


@dataclass(frozen=True)
class Row:
    """:param settings: of broker.conf, beyond the usual ones.
    :param words: of the command line, that such a store's clean needs.
    :param refused: what an error says of a store that is archived alone; "": it is cleaned.
    :param skips: messages at the log's begin that such a broker doesn't serve from the lake.
    :param live: whether its broker's own deletion is let go, too.
    :param attributes: of the topic.
    """

    version: str
    layout: str = FILES
    settings: Mapping[str, object] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    refused: str = ""
    skips: int = 0
    live: bool = True
    attributes: str = ""

    @property
    def name(self) -> str:
        return f"{self.version}/{self.layout}"


ROCKSDB = {"storeType": "defaultRocksDB"}
VERSIONS = ("4.9.7", "5.0.0", "5.1.4", "5.2.0", "5.3.3", "5.4.0", "5.5.1")
ROWS = (
    *(Row(version) for version in VERSIONS),
    *(
        Row(
            version, "storeType=defaultRocksDB", ROCKSDB, refused="RocksDB consume queue", skips=1, live=False
        )
        for version in ("5.3.3", "5.5.1")
    ),
    Row(
        "5.5.1",
        "configManagerVersion=v2",
        {"configManagerVersion": "v2"},
        refused="RocksDB configuration",
        live=False,
    ),
    Row(
        "5.5.1",
        "timerRocksDBEnable",
        {"timerRocksDBEnable": True, "timerWheelEnable": True},
        ("--pending-policy", "warn"),
    ),
    Row("5.5.1", "transRocksDBEnable", {"transRocksDBEnable": True}, ("--pending-policy", "warn")),
    Row(
        "5.3.3",
        "compaction topics",
        refused="compaction topics",
        live=False,
        attributes="+cleanup.policy=COMPACTION",
    ),
    *(Row(version, "controller mode", CONTROLLED) for version in ("5.3.3", "5.5.1")),
)


@dataclass(frozen=True)
class Round:
    """What a row's commands work on."""

    row: Row
    work: Path
    name_server_port: int
    controller_port: int

    @property
    def root(self) -> Path:
        return self.work / "store"

    @property
    def conf(self) -> Path:
        return self.work / "first" / "broker.conf"

    def run(self, command: str, *words: object, code: int = 0) -> Outcome:
        """Run a command on the store, which ends with this exit code."""
        where = (self.root, "--lake", self.work / "lake", "--broker-conf", self.conf)
        done = run_command(command, *where, *words)
        assert done.exit_code == code, f"{command} ended with {done.exit_code}: {done.out}\n{done.err}"
        return done

    @contextmanager
    def broker(self, store: Path, name: str, **more: object) -> Iterator[Broker]:
        settings = {**SETTINGS, **self.row.settings, **more}
        if self.controller_port:
            # A controller knows the replicas of a name: what is restored is no replica of the others.
            settings |= {"controllerAddr": f"127.0.0.1:{self.controller_port}", "brokerName": store.name}
        with running_broker(
            store,
            self.work / name,
            self.name_server_port,
            settings,
            version=self.row.version,
            main_class=CLEANS_AT_ONCE,
        ) as broker:
            deadline = time.monotonic() + 60
            while broker.client.config()["brokerRole"] == "SLAVE":
                assert time.monotonic() < deadline, "its controller doesn't make it the master"
                time.sleep(0.1)
            yield broker

    def segments(self) -> dict[str, str]:
        return {path.name: file_sha256(path) for path in sorted((self.root / "commitlog").iterdir())}


def measure(row: Row, work: Path) -> tuple[str, ...]:
    """Do the round and check each of its steps; return the row's cells."""
    live_hold.FIRST_PASS_MS = 0  # type: ignore[misc]  # these brokers' passes begin as they start
    is_controlled = row.settings is CONTROLLED
    with controller(work) if is_controlled else name_server(work) as ports:
        around = Round(row, work, *ports if is_controlled else (ports, 0))
        written = _write(around)
        cells = [_archive_and_clean(around), _serve_rest(around, written), _serve_restored(around, written)]
        cells.append(_beside(around) if row.live else "not tried")
    return tuple(cells)


def _write(around: Round) -> dict[int, bytes]:
    """Fill a store; return the messages of its queue by offset, as the broker serves them."""
    with around.broker(around.root, "first") as broker:
        _create_topic(broker, around.row.attributes)
        for number in range(MESSAGES):
            send(broker.client, keys=f"k{number}" if around.row.attributes else "")
        served = _served(broker, 0)
        broker.stop()
    assert len(served) == MESSAGES
    return served


def _archive_and_clean(around: Round) -> str:
    old = time.time() - EXPIRED_HOURS * 3600
    before = around.segments()
    for path in (around.root / "commitlog").iterdir():
        os.utime(path, (old, old))
    assert run_command("init-lake", "--lake", around.work / "lake").exit_code == 0
    around.run("archive")
    around.run("verify")
    words = ("--manual", "--max-segments", GONE, "--time-zone", "UTC", *around.row.words)
    if around.row.refused:
        refused = around.run("clean", *words, code=2)
        assert around.row.refused in refused.err, refused.err
        assert around.segments() == before
        return "archived; not cleaned"
    report = around.run("clean", *words, "--json").json["report"]
    gone = [segment for segment in report["segments"] if segment["fate"] == "deleted"]
    assert (report["outcome"], len(gone)) == ("done", GONE), report
    assert around.segments() == dict(list(before.items())[GONE:])
    return f"{GONE} of {len(before)} segments"


def _serve_rest(around: Round, written: Mapping[int, bytes]) -> str:
    with around.broker(around.root, "rest") as broker:
        begin = broker.client.min_offset(TOPIC, 0) if around.row.version > "5" else _first(broker)
        served = _served(broker, begin)
        broker.stop()
    assert served == {offset: frame for offset, frame in written.items() if offset >= begin}
    assert (begin > 0) is not bool(around.row.refused)
    return f"{len(served)} of {MESSAGES} messages"


def _serve_restored(around: Round, written: Mapping[int, bytes]) -> str:
    back = around.work / "back"
    conf = around.work / "restored.conf"
    # By a controller's, a restore is refused: up to where consumers may read is that one's word.
    settings = around.conf.read_text().replace("enableControllerMode=true", "enableControllerMode=false")
    conf.write_text(settings.replace("brokerRole=SLAVE", "brokerRole=ASYNC_MASTER"))
    words = ("restore", "--lake", around.work / "lake", "--to", back, "--for-store", conf, "--json")
    done = run_command(*words)
    assert done.exit_code == 0, f"restore ended with {done.exit_code}: {done.out}{done.err}"
    settings = {row["name"]: row["value"] for row in done.json["settings"]}
    archived = _messages_of(back)
    # A compaction log gives the messages that it copies offsets of its own.
    at = _without_place if around.row.attributes else bytes
    assert {o: at(archived[o]) for o in archived} == {o: at(written[o]) for o in archived}
    skipped = dict(list(archived.items())[around.row.skips :])
    with around.broker(back, "back", **settings) as broker:
        served = broker.client.queue(TOPIC, 0, min(skipped), max(skipped) + 1)
    assert served == skipped
    return f"{len(served)} of {len(archived)} archived messages"


def _beside(around: Round) -> str:
    with around.broker(around.root, "beside") as broker:
        log = LiveLog(broker)
        log.fill(GONE + 12)
        before, mtimes, settings = log.names(), log.mtimes(), broker.client.config()
        live = ("--broker", broker.client.address, "--may-change-settings", "--allow-same-disk")
        live = (*live, "--time-zone", "UTC")
        around.run("archive", *live)
        around.run("hold", *live)
        log.others_clean()
        assert log.names() == before, "a rival's deletion went through the hold"
        words = (*live, "--manual", "--max-segments", GONE, *around.row.words, "--json")
        report = around.run("clean", *words).json["report"]
        assert report["outcome"] == "done", report
        assert log.names() == before[GONE:]
        assert broker.client.runtime_info().commitlog_min_offset == before[GONE]
        around.run("unmanage", *live)
        left = {base: mtimes[base] for base in log.names() if base in mtimes}
        assert {base: log.mtimes()[base] for base in left} == left
        assert broker.client.config() == settings
    return f"{GONE} of {len(before)} segments, exactly"


def _create_topic(broker: Broker, attributes: str) -> None:
    broker.client.call(
        UPDATE_AND_CREATE_TOPIC,
        topic=TOPIC,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
        attributes=attributes,
    )


def _first(broker: Broker) -> int:
    return broker.client.topic_stats(TOPIC)[0].min_offset


def _served(broker: Broker, begin: int) -> dict[int, bytes]:
    deadline = time.monotonic() + 60
    while (end := broker.client.topic_stats(TOPIC)[0].max_offset) < MESSAGES:
        assert time.monotonic() < deadline, f"{end} of {MESSAGES} messages are served after a minute"
        time.sleep(0.1)
    return broker.client.queue(TOPIC, 0, begin, end)


def _without_place(frame: bytes) -> bytes:
    return frame[:PHYSICAL_OFFSET_AT] + frame[PHYSICAL_OFFSET_AT + 8 :]


def _messages_of(root: Path) -> dict[int, bytes]:
    """Return the messages of the topic's queue by their offsets in it."""
    messages = {}
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        for table, _ in CODEC.decode(memoryview(data), int(path.name)):
            for row in table.to_pylist():
                if (row["kind"], row["topic"]) == ("message", TOPIC):
                    at = row["physical_offset"] - int(path.name)
                    messages[row["queue_offset"]] = data[at : at + row["size"]]
    return messages


def _in_a_process(row: Row) -> tuple[str, bool]:
    """:return: the row's line, and whether it holds."""
    command = [sys.executable, "-m", "tests.integration.rocketmq_matrix", "--row", row.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_SECONDS, check=False, cwd=ROOT)
    if done.returncode == 0:
        cells = json.loads(done.stdout.splitlines()[-1])
    else:
        sys.stderr.write(f"--- {row.name}\n{done.stderr}\n")
        cells = [f"fails: {done.stderr.strip().splitlines()[-1][:200]}"]
    return f"| {row.version} | {row.layout} | {' | '.join(cells)} |", done.returncode == 0


def main(words: list[str]) -> int:
    by_name = {row.name: row for row in ROWS}
    if words[:1] == ["--row"]:
        with tempfile.TemporaryDirectory(prefix="rocketmq-matrix-") as directory:
            sys.stdout.write(json.dumps(measure(by_name[words[1]], Path(directory))) + "\n")
        return 0
    chosen = [row for row in ROWS if not words or row.name in words or row.version in words]
    lines = [_in_a_process(row) for row in chosen]
    sys.stdout.write("\n".join([HEAD, *(line for line, _ in lines)]) + "\n")
    return int(not lines or not all(holds for _, holds in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
