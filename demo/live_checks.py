"""What has to hold after a live demo, found out from broker, files and lake, not from what the run says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.brokers.reading import PullStatus, ReadingAdmin
from demo.checks import DemoCheck, check_report
from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.file.scan import all_equal
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import current, list_stores, receipt_history
from storage_engine.lake.soundness.segment_reader import message_batches
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.codec.frame_layout import BODY_AT, BODY_LENGTH_AT, QUEUE_OFFSET_AT
from storage_engine.rocketmq.hold.hold_state import read_local

Messages = Mapping[tuple[int, int], str]
"""SHA-256 of a body by queue and queue offset."""


@dataclass(frozen=True, slots=True)
class BrokerBefore:
    """The broker as it was before anything was done to it.

    :param settings: its live config.
    :param mtimes: of the segments that were full then, in ns, by name.
    :param old: SHA-256 of the segments that are past their reserved time, by name.
    """

    settings: Mapping[str, str]
    mtimes: Mapping[str, int]
    old: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """What was seen of a live demo.

    :param keeps_up: the consumer group that does.
    :param lags: the one that doesn't.
    :param min_offset: where the log begins now, by the broker.
    :param began_at_until_release: where it began, whenever it was asked before the release.
    :param positions: the lagging group's next queue offset by queue, before the release.
    :param held: whether the hold stood before the broker had a reason to delete.
    :param run_state: final state of the DAG run.
    :param result: what its report task gave.
    :param records: what the load has written down.
    :param summary: the load's.
    :param served: every message that the broker serves.
    """

    topic: str
    keeps_up: str
    lags: str
    before: BrokerBefore
    settings_after: Mapping[str, str]
    mtimes_after: Mapping[str, int]
    min_offset: int
    began_at_until_release: frozenset[int]
    positions: Mapping[int, int]
    held: bool
    run_state: str
    result: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]
    served: Messages


def mtimes(root: Path) -> dict[str, int]:
    """Modification times in ns of all segments that are certainly full and on disk, by name."""
    full = sorted((root / "commitlog").iterdir())[:-3]
    return {path.name: path.stat().st_mtime_ns for path in full}


def served_messages(address: str, topic: str, queues: int) -> dict[tuple[int, int], str]:
    """Pull every message that a broker has of a topic."""
    found = {}
    with ReadingAdmin(address) as admin:
        for queue in range(queues):
            offset = admin.min_offset(topic, queue)
            while (pulled := admin.pull(topic, queue, offset)).status is PullStatus.FOUND:
                found.update({(queue, _queue_offset(frame)): _body_hash(frame) for frame in pulled.frames})
                offset = pulled.next_offset
    return found


def check_live(store: ManagedStore, outcome: LiveOutcome) -> tuple[DemoCheck, ...]:
    """Compare broker, store, lake and report with what they have to be."""
    sent = {
        (record["queue"], record["queueOffset"]): record["sha256"]
        for record in outcome.records
        if record.get("sent") == outcome.topic
    }
    return (
        DemoCheck(outcome.run_state == "success", f"the DAG run ended: {outcome.run_state}"),
        *_check_log(store, outcome),
        *_check_clients(outcome, sent),
        *_check_lake(store, outcome, sent),
        check_report(outcome.result),
        *_check_unmanaged(store, outcome),
    )


def _check_log(store: ManagedStore, outcome: LiveOutcome) -> tuple[DemoCheck, ...]:
    """Nothing went before it was approved, then exactly the expired segments."""
    old = sorted(outcome.before.old)
    stays = min(set(outcome.before.mtimes) - set(old))
    first = min(path.name for path in (Path(store.root) / "commitlog").iterdir())
    nothing_went = outcome.held and outcome.began_at_until_release == {0}
    return (
        DemoCheck(
            nothing_went, "until the release nothing had gone, though the broker had a cause of its own"
        ),
        DemoCheck(
            first == stays and outcome.min_offset == int(stays),
            f"exactly the {len(old)} expired segments are gone: the log begins at {first} by the files, at "
            f"{outcome.min_offset} by the broker",
        ),
    )


def _check_clients(outcome: LiveOutcome, sent: Messages) -> tuple[DemoCheck, ...]:
    groups = outcome.summary["groups"]
    keeps_up, lags = groups[outcome.keeps_up], groups[outcome.lags]
    failed = outcome.summary["failed"]
    return (
        DemoCheck(not failed and bool(sent), f"no put failed: {len(sent)} sent, {failed} failed"),
        DemoCheck(
            keeps_up["failed"] == keeps_up["moved"] == 0 and keeps_up["pulled"] > 0,
            f"no pull of group {outcome.keeps_up} failed, and no position of it went",
        ),
        DemoCheck(
            lags["failed"] == 0 and lags["moved"] > 0,
            f"no pull of group {outcome.lags} failed; {lags['moved']} were told that their position is gone",
        ),
    )


def _check_lake(store: ManagedStore, outcome: LiveOutcome, sent: Messages) -> tuple[DemoCheck, ...]:
    """The lake proves what is gone, and has what the lagging group was about to read."""
    try:
        lake = open_lake(store.lake)
        (archived,) = list_stores(lake)
        history = receipt_history(lake, archived.store_id)
        check_chain(history)
        proven = {f"{row.base_offset:020d}": row.sha256 for row in current(history)}
        in_lake = {
            (row["queue_id"], row["queue_offset"]): hashlib.sha256(row["body"]).hexdigest()
            for batch in message_batches(
                lake.messages(), all_equal({"topic": outcome.topic}), ("queue_id", "queue_offset", "body")
            )
            for row in batch.to_pylist()
        }
    except (StorageEngineError, ValueError) as error:
        return (DemoCheck(False, f"the lake can be read: {error}"),)
    lost = _lost_positions(outcome)
    from_lake = {key: in_lake.get(key) for key in lost}
    return (
        DemoCheck(
            proven == outcome.before.old,
            f"the lake has a receipt for each of them, {len(proven)} in an unbroken chain",
        ),
        DemoCheck(
            bool(lost) and from_lake == {key: sent.get(key) for key in lost},
            f"the {len(lost)} messages that group {outcome.lags} had not read and that are gone, read from "
            "the lake, are what the producers sent, by SHA-256",
        ),
        DemoCheck(
            {**in_lake, **outcome.served} == sent,
            f"each of the {len(sent)} messages sent is in the lake ({len(in_lake)}) or served by the broker "
            f"({len(outcome.served)}), by SHA-256",
        ),
    )


def _lost_positions(outcome: LiveOutcome) -> list[tuple[int, int]]:
    """Queue and queue offset of what is gone and the lagging group had not read.

    A broker moves a group on in more ways than one: it says that a position is gone, or finds nothing up to
    the next file of the queue.
    """
    return [
        (record["queue"], record["queueOffset"])
        for record in outcome.records
        if record.get("sent") == outcome.topic
        and record["physicalOffset"] < outcome.min_offset
        and record["queueOffset"] >= outcome.positions.get(record["queue"], 0)
    ]


def _check_unmanaged(store: ManagedStore, outcome: LiveOutcome) -> tuple[DemoCheck, ...]:
    before = outcome.before
    changed = sorted(
        key for key, value in before.settings.items() if outcome.settings_after.get(key) != value
    )
    stayed = {name: mtime for name, mtime in before.mtimes.items() if name not in before.old}
    touched = [name for name, mtime in stayed.items() if outcome.mtimes_after.get(name) != mtime]
    # Our directory stays, with the stamp that says which store it is.
    left = [path.name for path in Path(store.root).glob(".storage-engine*") if path.name != DIRECTORY]
    left += ["a hold that is remembered"] if read_local(Path(store.root)) else []
    return (
        DemoCheck(not changed, f"unmanaged, the broker's settings are as before{_found(changed)}"),
        DemoCheck(
            bool(stayed) and not touched, f"so are the times of the segments that stayed{_found(touched)}"
        ),
        DemoCheck(not left, f"and no hold is left in its store{_found(left)}"),
    )


def _found(names: list[str]) -> str:
    return f"; found {', '.join(names)}" if names else ""


def _queue_offset(frame: bytes) -> int:
    return int.from_bytes(frame[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8])


def _body_hash(frame: bytes) -> str:
    """Of a frame with IPv4 addresses."""
    length = int.from_bytes(frame[BODY_LENGTH_AT:BODY_AT])
    return hashlib.sha256(frame[BODY_AT : BODY_AT + length]).hexdigest()
