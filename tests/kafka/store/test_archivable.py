"""What of a node may be archived, what a receipt says of it, and what shows that a log is another one."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import CorruptFileError
from storage_engine.kafka.format.checkpoints import LeaderEpoch
from storage_engine.kafka.format.layout import read_node
from storage_engine.kafka.format.log_end import end_offset
from storage_engine.kafka.format.partition_metadata import read_topic_id, text_of
from storage_engine.kafka.format.transaction_index import ENTRY_BYTES, parse_transaction_index
from storage_engine.kafka.store.archivable import epochs_in
from storage_engine.kafka.store.store import KafkaStore, OpenNode
from storage_engine.kafka.transactions import open_transactions
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.store import Archivable, SegmentId, StoreSnapshot
from tests.kafka_fixture import truth

NOW_MS = 1_795_190_000_000
_LAST_AT = 18
"""Of an entry of a transaction index: version, producer and first offset lie before it."""


def archivable(node: Path) -> tuple[KafkaStore, StoreSnapshot, Archivable]:
    store = KafkaStore(OpenNode(node / "server.properties"))
    snapshot = store.snapshot(NOW_MS)
    return store, snapshot, store.archivable(snapshot)


def spans(found: Archivable, log: str) -> list[tuple[int, int]]:
    return [(one.base_offset, one.end_offset) for one in found.segments if one.log == log]


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


def without_line(text: str, start: str) -> str:
    head, count, *lines = text.splitlines()
    left = [line for line in lines if not line.startswith(start)]
    return "\n".join([head, str(int(count) - len(lines) + len(left)), *left]) + "\n"


def test_all_sealed_segments_may_be_archived_but_those_of_compacted_topics(node: Path) -> None:
    _, snapshot, found = archivable(node)
    compacted = {"compacted-0", "compdel-0"}
    sealed = {one.id for log in snapshot.logs for one in log.sealed if log.name not in compacted}
    assert {one.id for one in found.segments} == sealed
    assert len(sealed) > 90
    assert set(found.kept_out) == {"compacted-0"}
    assert found.kept_out["compacted-0"].startswith(
        "its cleanup.policy contains compact, so the cleaner rewrites"
    )


def test_nothing_is_archived_above_the_high_watermark(copy: Path) -> None:
    _, _, whole = archivable(copy)
    checkpoint = copy / "logs" / "replication-offset-checkpoint"
    (first, end), *_ = spans(whole, "plain-0")
    lines = checkpoint.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("plain 0 "))
    for watermark, expected in ((end, [(first, end)]), (end - 1, [])):
        lines[place] = f"plain 0 {watermark}"
        checkpoint.write_text("\n".join(lines) + "\n")
        _, _, found = archivable(copy)
        assert spans(found, "plain-0") == expected
        assert f"above the high watermark {watermark}" in found.kept_out["plain-0"]
    edit(checkpoint, lambda text: without_line(text, "plain 0 "))
    _, _, found = archivable(copy)
    assert not spans(found, "plain-0")
    assert "expected its high watermark, found none" in found.refused["plain-0"]
    assert len(found.segments) == len(whole.segments) - len(spans(whole, "plain-0"))


def test_nothing_is_archived_above_the_first_offset_of_an_open_transaction(copy: Path) -> None:
    log = next(
        log
        for _, log in read_node(copy / "server.properties").logs
        if log.name.topic == "txn" and open_transactions(log, end_offset(log))
    )
    (open_now,) = open_transactions(log, end_offset(log))
    _, _, found = archivable(copy)
    assert all(end <= open_now.first_offset for _, end in spans(found, log.name.log))
    # The broker was killed when it had just begun a segment, in the middle of a transaction.
    place = next(
        place for place, one in enumerate(log.segments) if place and open_transactions(log, one.base_offset)
    )
    active = log.segments[place].base_offset
    oldest = open_transactions(log, active)[0]
    first = oldest.first_offset
    for file in (copy / "logs" / log.name.log).iterdir():
        if file.stem.isdecimal() and int(file.stem) > active:
            file.unlink()
        elif file.stem.isdecimal() and int(file.stem) == active and file.suffix != ".snapshot":
            file.write_bytes(b"")
    _, _, found = archivable(copy)
    ends = [one.base_offset for one in log.segments[1 : place + 1]]
    assert [end for _, end in spans(found, log.name.log)] == [end for end in ends if end <= first]
    assert ends[-1] > first
    said = f"a transaction of producer {oldest.producer_id} is open from offset {first} on, until it ends"
    assert found.kept_out[log.name.log] == said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda log: (log / "partition.metadata").unlink(), "expected the topic's id, found no file"),
        (
            lambda log: edit(log / "partition.metadata", lambda text: text[:-4] + "AAAA"),
            "and the cluster's metadata have",
        ),
        (lambda log: (log / "partition.metadata").write_text("version: 1\n"), "expected 'version: 0'"),
    ],
)
def test_a_log_whose_topic_is_not_certain_is_refused(
    copy: Path, change: Callable[[Path], object], reason: str
) -> None:
    change(copy / "logs" / "plain-0")
    _, _, found = archivable(copy)
    assert not spans(found, "plain-0")
    assert reason in found.refused["plain-0"]


def test_of_settings_that_are_not_known_nothing_is_archived(copy: Path) -> None:
    (metadata,) = copy.rglob("__cluster_metadata-0")
    shutil.rmtree(metadata)
    _, snapshot, found = archivable(copy)
    assert found.segments == ()
    assert set(found.refused) == {log.name for log in snapshot.logs if log.sealed}


def test_a_segments_context_names_its_log_its_epochs_and_what_was_aborted(node: Path) -> None:
    store, _, found = archivable(node)
    contexts = store.replicas.contexts(found.segments)
    assert contexts.keys() == {one.id for one in found.segments}
    topic_id = text_of(read_topic_id(node / "logs" / "txn-0" / "partition.metadata"))
    known = [
        (entry["pid"], entry["first"], entry["last"])
        for index in truth()["txnindex"]
        if index["file"].startswith("logs/txn-0/")
        for entry in index["entries"]
    ]
    across = 0
    for segment in found.segments:
        context = contexts[segment.id]
        said = json.loads(context.codec)
        first, end = segment.base_offset, segment.end_offset
        assert (said["topic"], said["partition"], said["end"]) == (
            segment.log.rpartition("-")[0],
            int(segment.log.rpartition("-")[2]),
            end,
        )
        if segment.log == "txn-0":
            assert context.log_id is not None
            assert context.log_id.endswith(f"/{topic_id}/0")
            assert context.evidence["leader_epochs"][0][1] <= first
            assert {tuple(one) for one in said["aborted_later"]} == {
                one for one in known if one[1] < end <= one[2]
            }
            before = {(producer, begun) for producer, begun, last in known if begun < first <= last}
            assert before <= {tuple(one) for one in said["open_before"]}
            across += len(before)
    assert across


def test_a_transaction_that_began_in_what_was_deleted_keeps_nothing(copy: Path) -> None:
    """As a broker leaves it that has started on the rest: the first segment's snapshot is gone, too."""
    log = copy / "logs" / "txn-0"
    bases = sorted(int(path.stem) for path in log.glob("*.log"))
    entries = {
        base: parse_transaction_index(path.read_bytes(), str(path))
        for base in bases[1:-1]
        if (path := log / f"{base:020d}.txnindex").exists()
    }
    first = next(base for base, index in entries.items() if any(one.first_offset < base for one in index))
    for path in log.iterdir():
        if path.name[:20].isdigit() and int(path.name[:20]) < first:
            path.unlink()
    (log / f"{first:020d}.snapshot").unlink()
    store, _, found = archivable(copy)
    contexts = store.replicas.contexts([one for one in found.segments if one.log == "txn-0"])
    assert json.loads(contexts[SegmentId("txn-0", first)].codec)["open_before"] == []
    # The markers decide all the same: an index that names another end than theirs is refused.
    index = log / f"{first:020d}.txnindex"
    place = next(at for at, one in enumerate(entries[first]) if one.first_offset < first)
    damaged = bytearray(index.read_bytes())
    struct.pack_into(">q", damaged, place * ENTRY_BYTES + _LAST_AT, entries[first][place].last_offset + 1)
    index.write_bytes(damaged)
    with pytest.raises(CorruptFileError, match=rf"at byte {place * ENTRY_BYTES}"):
        store.replicas.contexts([one for one in found.segments if one.log == "txn-0"])


def receipt(**fields: Any) -> Receipt:
    defaults: dict[str, Any] = dict.fromkeys(Receipt.__dataclass_fields__, 0)
    return Receipt(**{**defaults, "moved_to": None, **fields})


def test_a_log_is_another_one_by_its_topic_its_end_or_its_leaders_epochs(copy: Path) -> None:
    store, snapshot, found = archivable(copy)
    contexts = store.replicas.contexts(found.segments)
    rows = [
        receipt(
            log=one.log,
            base_offset=one.base_offset,
            end_offset=one.end_offset,
            log_id=contexts[one.id].log_id,
            evidence=json.dumps(contexts[one.id].evidence),
        )
        for one in found.segments
        if one.log == "plain-0"
    ]
    assert store.identities.contradiction("plain-0", rows) == ""
    assert store.identities.contradiction("plain-0", []) == ""
    end = next(log.max_offset for log in snapshot.logs if log.name == "plain-0")
    other = replace(rows[0], log_id=f"{rows[0].log_id}1")
    assert "and the archived log is" in store.identities.contradiction("plain-0", [other])
    longer = replace(rows[-1], end_offset=end + 1)
    assert store.identities.contradiction("plain-0", [*rows, longer]) == (
        f"it ends at {end}, and offsets up to {end + 1} are archived"
    )
    inside = rows[1].base_offset + 1
    checkpoint = copy / "logs" / "plain-0" / "leader-epoch-checkpoint"
    checkpoint.write_text(f"0\n2\n0 0\n1 {inside}\n")
    assert f"1 from {inside} on, and the archived ones are" in store.identities.contradiction("plain-0", rows)
    # A new leader behind all that is archived contradicts nothing, nor does a log that begins later.
    for said in (f"0\n2\n0 0\n1 {rows[-1].end}\n", f"0\n1\n0 {inside}\n"):
        checkpoint.write_text(said)
        assert store.identities.contradiction("plain-0", rows) == ""
    checkpoint.write_text(f"0\n1\n1 {inside}\n")
    assert store.identities.contradiction("plain-0", rows)


def test_epochs_of_a_span_begin_with_the_one_in_force_there() -> None:
    epochs = [LeaderEpoch(0, 0), LeaderEpoch(2, 10), LeaderEpoch(3, 20)]
    assert epochs_in(epochs, 0, 10) == (epochs[0],)
    assert epochs_in(epochs, 5, 11) == (epochs[0], epochs[1])
    assert epochs_in(epochs, 10, 20) == (epochs[1],)
    assert epochs_in(epochs, 25, 30) == (epochs[2],)
    assert epochs_in([], 0, 1) == ()


def test_segments_go_in_their_order_when_they_are_old_enough(node: Path) -> None:
    store, snapshot, _ = archivable(node)
    moments = store.course.deletes_at_ms(snapshot, NOW_MS)
    plan = store.plan(snapshot, NOW_MS, PlanRequest())
    for log in snapshot.logs:
        told = [moments.get(SegmentId(log.name, one.base_offset)) for one in log.sealed]
        known = [at_ms for at_ms in told if at_ms is not None]
        assert known == sorted(known)
    going = {one.id for one in plan.to_delete}
    assert going
    assert {one for one, at_ms in moments.items() if at_ms == NOW_MS} == going
