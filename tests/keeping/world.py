"""A store, its lake and the lake's rules, and what has to be there at each moment: by rules of its own."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from storage_engine.core.clock import clock_ms
from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.placed_table import proven_files
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.restore.restore_span import Span
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.model.keep.acts import ActKind
from storage_engine.model.proof.receipt import PARTIAL, Receipt
from storage_engine.rocketmq.codec.codec import CODEC
from storage_engine.rocketmq.codec.frame_layout import FILLER_TOPIC
from tests.histories.verbs import storage_engine
from tests.keeping.store import TopicStore
from tests.services.moved_clock import DAY_MS
from tests.services.restoring import restore

TRASH_DAYS = 7
KEEP_DAYS = {"brief": 0, "month": 30, "years": 7 * 366}
"""What has no rule is kept for ever, such as a topic of the broker's own."""
LEFT_OUT = "debug"
"""Isn't archived, once the rule counts; it has no rule that says how long it is kept."""
SYSTEM = "SCHEDULE_TOPIC_XXXX"
KINDS: Sequence[Sequence[str]] = (
    ("brief", "brief"),
    ("month",),
    ("brief", "month", "brief"),
    ("years", "brief", "month"),
    ("brief", "month", LEFT_OUT),
    ("month", LEFT_OUT, "month", "brief", SYSTEM),
)
"""The segments of a log, one after the other, and again from the first."""


def topics_of(number: int) -> Sequence[str]:
    return KINDS[number % len(KINDS)]


class World:
    """
    :param held: topics that a hold covers; "*": all.
    :param gone_before: base offsets that the store had lost before its last plan.
    """

    def __init__(self, directory: Path, kinds: Callable[[int], Sequence[str]] = topics_of) -> None:
        self.directory = directory
        self.lake_dir, self.store_dir = directory / "lake", directory / "store"
        self.store = TopicStore(self.store_dir, kinds)
        self.gone_before: set[int] = set()

    def run(self, *words: object, exit_code: int = 0) -> str:
        """Run a command line to its good end."""
        done = storage_engine(*map(str, words))
        assert done["exit_code"] == exit_code, (words, done)
        return str(done["out"])

    def make_lake(self) -> None:
        self.run("init-lake", "--lake", self.lake_dir)

    def keep(self) -> None:
        """Record the rules."""
        for topic, days in KEEP_DAYS.items():
            self.run("lake", "keep", "--lake", self.lake_dir, "--topic", topic, "--keep", f"{days} days")

    def leave_out(self) -> None:
        """Record that a topic isn't archived, also in the journal once that knows the store."""
        self.run("lake", "keep", "--lake", self.lake_dir, "--topic", LEFT_OUT, "--archive", "no")

    def clean(self) -> None:
        there = self.store.there()
        self.run("clean", self.store_dir, "--lake", self.lake_dir, "--manual")
        self.gone_before = set(self.store.sealed) - there

    def expire(self) -> None:
        self.run("lake", "expire", "--lake", self.lake_dir, "--trash-days", TRASH_DAYS)

    def lake(self) -> Lake:
        return open_lake(LakeConfig.local(self.lake_dir))

    def check(self, *, settled: bool, since_ms: int = 0) -> Counter[str]:
        """Make sure that what has to stay is there and proves itself, and that what is gone has its record.

        :param settled: the lake was just expired, so that what is past has left.
        :param since_ms: when the rules were recorded.
        :return: how many segments are in which state.
        """
        self.run("verify", self.store_dir, "--lake", self.lake_dir, "--level", "store")
        lake, now_ms = self.lake(), clock_ms()
        (store,) = list_stores(lake)
        check_chain(receipt_history(lake, store.store_id))
        acts = {it.sha256: it.act for it in read_acts(lake)}
        by_rule = {sha256[:12] for sha256, it in acts.items() if it.decision.kind is ActKind.ARCHIVE}
        removed = {
            file for it in acts.values() if it.decision.kind is ActKind.REMOVED for file in it.decision.files
        }
        by_offset = {row.base_offset: row for row in receipts(lake, store.store_id, with_ended=True)}
        assert set(by_offset) | self.store.there() >= set(self.store.sealed), "a segment is nowhere"
        rows = rows_by_topic(lake)
        states: Counter[str] = Counter()
        for base_offset, row in by_offset.items():
            segment = self.store.sealed[base_offset]
            assert row.sha256 == segment.sha256
            states[row.state or "whole"] += 1
            left_out = {name for name, it in row.gone_streams.items() if it["gone"] in by_rule}
            assert left_out <= {LEFT_OUT}
            states["left out"] += bool(left_out)
            newest_ms = {topic: ms for topic, ms in segment.newest_ms.items() if topic not in left_out}
            past = {topic: _is_past(topic, ms, now_ms) for topic, ms in newest_ms.items()}
            for topic, count in segment.rows.items():
                there = rows[base_offset, topic]
                right = {0} if topic in left_out else {count, 0} if past[topic] else {count}
                assert there in right, (base_offset, topic, there)
                assert there == count or row.state is not None, "rows are gone, and no receipt says so"
            # What is partly gone has its record as well.
            act = acts[json.loads(row.act)["sha256"]] if row.act else None
            assert row.state is None or act is not None
            if settled and all(past.values()) and base_offset in self.gone_before:
                due_ms = max((*(_goes_ms(*it) for it in newest_ms.items()), since_ms + DAY_MS))
                assert row.state == "expired" or due_ms > now_ms, (base_offset, row.state)
            if row.state == "expired" and act is not None:
                assert (act.decision.kind, row.identity in act.decision.segments) == (ActKind.EXPIRE, True)
                self._check_files(lake, row, act.at_ms, set(row.proven_files) <= removed, settled=settled)
        return states

    def check_filled(self) -> int:
        """Make sure that what stays of segments comes back with filler for the rest; return how many do."""
        lake, target = self.lake(), self.directory / "filled"
        (store,) = list_stores(lake)
        partly = [row for row in receipts(lake, store.store_id, with_ended=True) if row.state == PARTIAL]
        for row in partly:
            span = Span(segments=(row.base_offset,))
            (done,) = restore(lake, store.store_id, target, span=span, files_only=True, with_filler=True)
            found: Counter[str] = Counter()
            for rows, damage in CODEC.decode(memoryview(Path(done.path).read_bytes()), row.base_offset):
                assert not damage
                topics = (topic or "" for topic in rows["topic"].to_pylist())
                found.update(topic for topic in topics if not FILLER_TOPIC.startswith(topic))
            of_segment = self.store.sealed[row.base_offset].rows
            assert found == {
                topic: of_segment[topic] for topic in of_segment if topic not in row.gone_streams
            }
            shutil.rmtree(target)
        return len(partly)

    def _check_files(self, lake: Lake, row: Receipt, at_ms: int, is_removed: bool, *, settled: bool) -> None:
        for file in proven_files(lake.messages(), row):
            path = local_path(file.location)
            assert path is not None
            assert path.exists() != is_removed
        if settled:
            assert is_removed == (clock_ms() >= at_ms + TRASH_DAYS * DAY_MS)


def _goes_ms(topic: str, newest_ms: int) -> int:
    return newest_ms + KEEP_DAYS[topic] * DAY_MS


def _is_past(topic: str, newest_ms: int, now_ms: int) -> bool:
    return topic in KEEP_DAYS and _goes_ms(topic, newest_ms) <= now_ms


def rows_by_topic(lake: Lake) -> Counter[tuple[int, str]]:
    columns: dict[str, list[Any]] = (
        lake.messages().scan(selected_fields=("segment_base_offset", "topic")).to_arrow().to_pydict()
    )
    return Counter(zip(columns["segment_base_offset"], columns["topic"], strict=True))
