"""The write path against the broker's own message store, given the same messages."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from storage_engine.rocketmq.engine.engine_settings import settings_for
from storage_engine.rocketmq.engine.message_store import MessageStore, open_store
from storage_engine.rocketmq.format.index_file import read_entries, read_index_files
from storage_engine.rocketmq.format.layout import resolve_layout
from tests.integration.jvm import java_command
from tests.rocketmq.engine.scenarios import BATCH_TOPIC, contents, messages, put_all, write_conf, write_lines
from tests.rounds import ALL

pytestmark = pytest.mark.integration

QUEUES = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue")


def java_store(work: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        java_command(work, "MessageStores", arguments),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]


SETTINGS: dict[str, dict[str, object]] = {
    "plain": {},
    "everything": {
        "enableConsumeQueueExt": True,
        "enabledAppendPropCRC": True,
        "enableLmq": True,
        "enableMultiDispatch": True,
    },
    "checked": {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True},
    "slave": {"brokerRole": "SLAVE"},
}


@pytest.mark.parametrize("name", ["everything", pytest.param("plain", marks=pytest.mark.again)])
def test_the_same_messages_make_the_same_files(name: str, tmp_path: Path) -> None:
    settings = SETTINGS[name]
    sent = messages(seed=7, count=700, light=name == "everything")
    write_lines(tmp_path / "messages", sent)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_conf(tmp_path / "theirs.conf", theirs, **settings)
    said = java_store(tmp_path, "write", str(tmp_path / "theirs.conf"), str(tmp_path / "messages"), "stop")

    config = write_conf(tmp_path / "ours.conf", ours, **settings)
    log = b"".join(contents(theirs / "commitlog").values())
    times = [_store_ms(log, line) for line in said]
    ticking = iter(times)
    last, putting = 0, threading.current_thread()

    def clock() -> int:
        nonlocal last
        # The dispatch asks as well, to name an index file.
        if threading.current_thread() is putting:
            last = next(ticking) or last
        return last

    with open_store(config, clock=clock, batches=frozenset({BATCH_TOPIC})) as store:
        results = put_all(store, sent)
    heard = [
        f"{r.status} {r.physical_offset} {r.size_bytes} {r.queue_offset}" if r.size_bytes else str(r.status)
        for r in results
    ]
    assert heard == said
    for directory in QUEUES:
        mine, java = contents(ours / directory), contents(theirs / directory)
        assert mine.keys() == java.keys(), directory
        assert [path for path in java if mine[path] != java[path]] == [], directory
    assert index_content(ours) == index_content(theirs)
    assert not (ours / "abort").exists()


def _store_ms(log: bytes, said: str) -> int:
    """Return when a message was stored, by what the store said of it; 0: it was not."""
    if not said.startswith("PUT_OK"):
        return 0
    at = int(said.split()[1])
    extra = 12 if int.from_bytes(log[at + 36 : at + 40], "big") & 0x10 else 0
    return int.from_bytes(log[at + 56 + extra : at + 64 + extra], "big")


def index_content(root: Path) -> list[object]:
    """Return what index files hold but their names, which are times.

    The broker loses a file where another begins in the same millisecond; its store here never does that.
    """
    config = write_conf(root.parent / "index.conf", root)
    found = read_index_files(resolve_layout(config), config)
    return [(file.header, file.size_bytes, read_entries(file).tolist()) for file in found]


@pytest.mark.again
@pytest.mark.parametrize("name", SETTINGS)
def test_a_damaged_store_is_recovered_as_the_broker_recovers_it(name: str, tmp_path: Path) -> None:
    stores = 210 if ALL else 51
    conf = {}
    sources = []
    for seed in range(4):
        source = tmp_path / f"source{seed}"
        sources.append(source)
        # Nothing is put into a slave's store: its log is its master's.
        write_conf(tmp_path / "source.conf", source, **{**SETTINGS[name], "brokerRole": "ASYNC_MASTER"})
        write_lines(tmp_path / "messages", messages(seed, 350, light=name == "everything"))
        how = ("stop", "kill")[seed % 2]
        java_store(tmp_path, "write", str(tmp_path / "source.conf"), str(tmp_path / "messages"), how)
    for number in range(stores // len(SETTINGS)):
        chance = random.Random(number)
        ours, theirs = tmp_path / f"ours{number}", tmp_path / f"theirs{number}"
        shutil.copytree(chance.choice(sources), ours)
        damage(ours, chance)
        shutil.copytree(ours, theirs)
        conf[number] = tmp_path / f"{number}.conf"
        write_conf(conf[number], theirs, **SETTINGS[name])
    said = dict(line.split("\t", 1) for line in java_store(tmp_path, "recover", *map(str, conf.values())))
    assert len(said) == len(conf)
    for number, path in conf.items():
        ours, theirs = tmp_path / f"ours{number}", tmp_path / f"theirs{number}"
        config = write_conf(tmp_path / "ours.conf", ours, **SETTINGS[name])
        layout = resolve_layout(config)
        store = MessageStore(layout, settings_for(config, layout), batches=frozenset({BATCH_TOPIC}))
        loaded, max_offset, *queues = said[str(path)].split("\t")
        assert (loaded, int(max_offset)) == ("true", store.recovered.offset), number
        mine = sorted(
            f"{topic}/{queue}={next_}" for (topic, queue), next_ in store.queues.next_offsets.items()
        )
        assert mine == sorted(queues), number
        for directory in QUEUES:
            left, java = contents(ours / directory), contents(theirs / directory)
            assert left.keys() == java.keys(), (number, directory)
            assert [file for file in java if left[file] != java[file]] == [], (number, directory)
        assert index_content(ours) == index_content(theirs), number
        store.files.close()


def damage(root: Path, chance: random.Random) -> None:
    """Do to a store what crashes and people do."""
    log = sorted((root / "commitlog").iterdir())
    if chance.random() < 0.6:
        (root / "abort").touch()
    for _ in range(chance.randrange(1, 4)):
        kind = chance.choice(
            ["torn", "bytes", "cut", "checkpoint", "queue", "queues", "index", "zeros", "empty"]
        )
        file = chance.choice(log)
        queues = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
        if kind in ("torn", "bytes", "zeros"):
            with file.open("r+b") as opened:
                at = chance.randrange(file.stat().st_size)
                opened.seek(at)
                size = min(chance.choice([1, 40, 5000]), file.stat().st_size - at)
                opened.write(chance.randbytes(size) if kind == "bytes" else bytes(size))
        elif kind == "cut" and len(log) > 1:
            log.pop().unlink()
        elif kind == "checkpoint":
            content = (root / "checkpoint").read_bytes()
            behind = chance.choice([0, 1000, 10**6])
            times = struct.unpack_from(">3q", content)
            new = [max(0, value - behind) if behind else 0 for value in times]
            whole = struct.pack(">3q", *new) + content[24:]
            (root / "checkpoint").write_bytes((whole + whole)[: chance.choice([4096, 4096, 0, 13, 22, 5000])])
        elif kind == "queue" and queues:
            shutil.rmtree(chance.choice(queues).parent)
        elif kind == "queues" and chance.random() < 0.3:
            shutil.rmtree(root / "consumequeue", ignore_errors=True)
        elif kind == "index":
            shutil.rmtree(root / "index", ignore_errors=True)
        elif kind == "empty":
            end = int(log[-1].name) + log[-1].stat().st_size
            log.append(root / "commitlog" / f"{end:020d}")
            log[-1].write_bytes(bytes(log[0].stat().st_size))
