"""Putting messages of 1 KiB into a store, against Java's DefaultMessageStore, in turns on the same disk.

One message a call with asynchronous flush, batches of 32, and one message a call from four threads that wait
for the disk each (SYNC_FLUSH). Each side puts for the same time into a new store, while it dispatches. Those
that wait for no disk are judged by the machine: by what filling as many new pages of mapped files, and CRC of
what they hold, allow in C alone.

Then both make the consume queues and the index of one log again, which is a sample store's. How fast that is
written is compared with a plain write of its log's bytes, where nothing is synced to a disk.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from isal import isal_zlib

from benchmarks.common import Bench, report
from storage_engine.model.broker.kind import SampleRequest
from storage_engine.rocketmq.engine.append.append import NewBatch, NewMessage, PutResult, PutStatus
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.recover_on_demand import rebuild_queues
from storage_engine.rocketmq.format.broker_config import load_broker_config
from storage_engine.rocketmq.sample.writing import write_sample
from tests.integration.jars import JAVA_PROJECTS, class_path, java
from tests.rocketmq.engine.scenarios import encode_batch

BODY_BYTES = 1024
BATCH = 32
THREADS = 4
"""That wait for the disk."""
PUTS_A_LOOK = 16
REST_SECONDS = 10.0
"""Before a turn that waits for the disk: many disks take more for some seconds, and less behind that."""
SECONDS = 4.0
TURNS = 5
REBUILT_MESSAGES = 400_000
SAMPLE_FILE_BYTES = 16 << 20
SAMPLE_MB_PER_SECOND = 200
"""What writing a sample store has to reach; its ratio is to this."""
SETTINGS = {"mappedFileSizeCommitLog": 1 << 28, "maxHashSlotNum": 500_000, "maxIndexNum": 2_000_000}
_BLOCK_BYTES = 1 << 20
_PROPERTIES = b"KEYS\x01key\x02TAGS\x01tag\x02WAIT\x01true\x02"
_OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


def run() -> list[Bench]:
    """Measure all three in turns with Java."""
    body = np.random.default_rng(1).bytes(BODY_BYTES)
    batch = encode_batch([(body, _PROPERTIES, 0)] * BATCH)
    # As on Java's side, a thread puts the same message again and again.
    single = [NewMessage("orders", body, _PROPERTIES, thread) for thread in range(THREADS)]
    batches = [NewBatch("orders", batch, b"", thread) for thread in range(THREADS)]
    benches = []
    for name, threads, flush, sent, must in (
        ("engine_append", 1, "ASYNC_FLUSH", single, 0.5),
        ("engine_append_batches", 1, "ASYNC_FLUSH", batches, 0.8),
        ("engine_append_sync", THREADS, "SYNC_FLUSH", single, 1.0),
    ):
        ours, theirs, limits = [], [], []
        rest_seconds = REST_SECONDS if flush == "SYNC_FLUSH" else 0.0
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as directory:
                time.sleep(rest_seconds)
                theirs.append(_java(Path(directory), threads, flush))
            # Memory that was in use before is cleared several times as quick: each finds what the other left.
            filled = [_filled_bytes_per_second()] if flush == "ASYNC_FLUSH" else []
            with tempfile.TemporaryDirectory() as directory:
                time.sleep(rest_seconds)
                rate, message_bytes = _measured(Path(directory), threads, flush, sent)
                ours.append(rate)
            if filled:
                limits += [each / message_bytes for each in (*filled, _filled_bytes_per_second())]
        peer = limits or theirs
        detail: dict[str, float | int | str] = {
            "threads": threads,
            "flush": flush,
            "ours_per_second": round(float(np.median(ours))),
            "java_per_second": round(float(np.median(theirs))),
            "of_java": round(float(np.median(ours) / np.median(theirs)), 2),
            "limit_per_second": round(float(np.median(peer))),
        }
        benches.append(Bench(name, float(np.median(ours) / np.median(peer)), must, detail))
    return [*benches, _rebuild(), _sample()]


def _filled_bytes_per_second() -> float:
    """Return how fast new pages of mapped files are filled and read for a CRC, with no call a message."""
    file_bytes, block = SETTINGS["mappedFileSizeCommitLog"], bytes(_BLOCK_BYTES)
    filled, begin = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        while time.perf_counter() < begin + SECONDS:
            with (Path(directory) / str(filled)).open("w+b") as file:
                os.posix_fallocate(file.fileno(), 0, file_bytes)
                with mmap.mmap(file.fileno(), file_bytes) as mapped:
                    for at in range(0, file_bytes, _BLOCK_BYTES):
                        mapped[at : at + _BLOCK_BYTES] = block
                        isal_zlib.crc32(block)
            filled += file_bytes
        return filled / (time.perf_counter() - begin)


def _sample() -> Bench:
    """Measure writing a sample store into memory, where fsync costs nothing, against its bytes alone."""
    ours, by_processor, plain = [], [], []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for turn in range(TURNS + 1):
            target = Path(directory) / str(turn)
            request = SampleRequest(target, REBUILT_MESSAGES, 8, 7, 1, 1_795_000_000_000, SAMPLE_FILE_BYTES)
            begin, worked = time.perf_counter(), time.process_time()
            written = write_sample(request)
            seconds, worked = time.perf_counter() - begin, time.process_time() - worked
            log = sorted((Path(written.store) / "commitlog").iterdir())
            contents = [path.read_bytes() for path in log]
            begin = time.perf_counter()
            for path, content in zip(log, contents, strict=True):
                path.with_suffix(".plain").write_bytes(content)
            if turn:  # the first one compiles
                ours.append(written.log_bytes / 1e6 / seconds)
                by_processor.append(written.log_bytes / 1e6 / worked)
                plain.append(sum(map(len, contents)) / 1e6 / (time.perf_counter() - begin))
            shutil.rmtree(target)
    median = float(np.median(ours))
    detail: dict[str, float | int | str] = {
        "ours_mb_per_second": round(median),
        "ours_mb_per_processor_second": round(float(np.median(by_processor))),
        "plain_mb_per_second": round(float(np.median(plain))),
        "of_plain": round(float(np.median(ours) / np.median(plain)), 2),
    }
    return Bench("engine_sample", median / SAMPLE_MB_PER_SECOND, 1.0, detail)


def _rebuild() -> Bench:
    """Measure how long each takes from a log without queues until each message has its entries."""
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        request = SampleRequest(work / "sample", REBUILT_MESSAGES, 16, 3, 1, 1_795_000_000_000, 1 << 28)
        written = write_sample(request)
        conf, store = Path(written.configuration), Path(written.store)
        config = load_broker_config(conf, root=store)
        for _ in range(TURNS):
            for directory_name in ("consumequeue", "index"):
                shutil.rmtree(store / directory_name, ignore_errors=True)
            # As after a crash before anything was dispatched.
            (store / "checkpoint").unlink(missing_ok=True)
            (store / "abort").touch()
            theirs.append(float(_java_says(work, "reput", str(conf))))
            begin = time.perf_counter()
            rebuild_queues(config)
            ours.append(time.perf_counter() - begin)
    log_mb = written.log_bytes / 1e6
    detail: dict[str, float | int | str] = {
        "messages": written.messages,
        "ours_mb_per_second": round(log_mb / float(np.median(ours))),
        "java_mb_per_second": round(log_mb / float(np.median(theirs))),
    }
    return Bench("engine_rebuild", float(np.median(theirs) / np.median(ours)), 1.0, detail)


def _java(work: Path, threads: int, flush: str) -> float:
    values = {
        "storePathRootDir": work / "s",
        "storePathCommitLog": work / "s/commitlog",
        "flushDiskType": flush,
    }
    conf = work / "broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in {**values, **SETTINGS}.items()))
    return float(_java_says(work, "measure", str(conf), str(threads), str(BODY_BYTES), str(SECONDS)))


def _java_says(work: Path, *words: str) -> str:
    command = [
        java(),
        *_OPENED,
        f"-Duser.home={work}",
        "-cp",
        class_path(JAVA_PROJECTS),
        "MessageStores",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("> "))
    return said[2:]


def _measured(
    work: Path, threads: int, flush: str, sent: Sequence[NewMessage] | Sequence[NewBatch]
) -> tuple[float, float]:
    """Return how many messages a second are put, and how many bytes one takes in the log."""
    settings = {**{key: str(value) for key, value in SETTINGS.items()}, "flushDiskType": flush}
    counts = [0] * threads

    def produce(thread: int) -> None:
        begin = time.perf_counter() + SECONDS / 2
        end = begin + SECONDS
        message = sent[thread]
        put: Callable[..., PutResult] = store.put if isinstance(message, NewMessage) else store.put_batch
        done = PutStatus.PUT_OK
        while (now := time.perf_counter()) < end:
            # To look at the clock and to count takes a tenth of a put's time.
            for _ in range(PUTS_A_LOOK):
                result = put(message)
                if result.status is not done:
                    raise RuntimeError(f"expected a put to be done, found {result}")
            if now >= begin:
                counts[thread] += PUTS_A_LOOK * result.messages

    with open_store(load_broker_config(None, settings, root=work / "s")) as store:
        store.put(NewMessage("orders", b"", _PROPERTIES))
        store.put_batch(NewBatch("orders", encode_batch([(b"", b"", 0)])))
        first = sent[0]
        result = store.put(first) if isinstance(first, NewMessage) else store.put_batch(first)
        store.wait_until_dispatched()
        producers = [threading.Thread(target=produce, args=(thread,)) for thread in range(threads)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
    return sum(counts) / SECONDS, result.size_bytes / result.messages


if __name__ == "__main__":
    report(run())
