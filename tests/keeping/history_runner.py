"""Random histories of a lake's rules, with kills and power cuts; a script of test_histories.

Each history goes on from the same store and lake. Each of its commands is killed before a durable operation,
or the power goes after one, or at the command's end; then what was to stay must be there, the command runs
again, and the same holds. What may have gone follows from the acts alone, by rules of this script's own.

Usage: python -m tests.keeping.history_runner WORK_DIRECTORY CASES SEED
"""

from __future__ import annotations

import copy
import json
import pickle
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from storage_engine.lake.acts.act_files import read_acts
from storage_engine.lake.catalog.placed_table import location_of
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.model.keep.acts import ActKind, RecordedAct
from storage_engine.model.keep.keep_rules import Scope
from tests.histories import children
from tests.histories.verbs import storage_engine
from tests.keeping.world import KEEP_DAYS, SYSTEM, World, rows_by_topic
from tests.services.forks import in_child
from tests.services.moved_clock import DAY_MS, forget_days, pass_days, passed_count
from tests.services.power_loss import Disk, Loss, disk_after, events_of, lose, names_in, record

COMMANDS_OF_A_HISTORY = 5
SEGMENTS = 6
TOPICS = (*KEEP_DAYS, "*")
REFUSED = ("removed for good", "found no file")
"""Of an undo: a removal took the files, or one that was killed took some, which the next one records."""
LOSSES = (Loss.EVERYTHING, Loss.BUT_REMOVALS, Loss.BUT_NAMES)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def begin(world: World) -> None:
    """Bring the world to where some segments are past, some are not, and the store has one still."""
    world.make_lake()
    world.keep()
    for number in range(SEGMENTS):
        pass_days(1 if number else 2)
        world.store.seal()
    world.run("archive", world.store_dir, "--lake", world.lake_dir)
    world.leave_out()
    pass_days(34)
    world.clean()
    pass_days(1)
    for _ in range(SEGMENTS):
        world.store.seal()
    world.clean()


def words_of(world: World, chance: random.Random, acts: Sequence[RecordedAct]) -> tuple[str, ...]:
    """Return a command that this history goes on with."""
    topic, lake = chance.choice(TOPICS), ("--lake", str(world.lake_dir))
    expiries = [it.sha256 for it in acts if it.act.decision.kind is ActKind.EXPIRE]
    holds = [it.sha256 for it in acts if it.act.decision.kind is ActKind.HOLD]
    choices = ["keep", "hold", "clean", "gc", *["expire"] * 5, *["remove", "undo"] * 3 * bool(expiries)]
    what = chance.choice([*choices, *["lift"] * 8 * bool(_held(acts))])
    return {
        "keep": ("lake", "keep", *lake, "--topic", topic, "--keep", chance.choice(("0 days", "40 days"))),
        "hold": ("lake", "keep", *lake, "--topic", topic, "--hold", f"case {len(acts)}"),
        "lift": ("lake", "keep", *lake, "--lift", chance.choice(holds or [""])),
        "expire": ("lake", "expire", *lake),
        "remove": ("lake", "expire", *lake, "--trash-days", "0"),
        "undo": ("lake", "expire", *lake, "--undo", chance.choice(expiries or [""])),
        "clean": ("clean", str(world.store_dir), *lake, "--manual"),
        "gc": ("gc", *lake, "--delete", "--trash-days", "0"),
    }[what]


def cut_power(world: World, words: Sequence[str], chance: random.Random, work: Path) -> bool:
    """Run a command until the power goes; returns whether it had ended well."""
    before, log = work / "before", work / "log"
    shutil.copytree(world.directory, before)
    copies = {
        path.stat().st_ino: before / path.relative_to(world.directory)
        for path in world.directory.rglob("*")
        if path.is_file()
    }
    first, number = Disk(names_in(world.directory), copies), chance.choice((-1, chance.randrange(40)))

    def run_recorded() -> Any:
        record(world.directory, log, number=number)
        return storage_engine(*words)["exit_code"]

    status, exit_code = in_child(run_recorded)
    loss = chance.choice(LOSSES)
    lose(world.directory, disk_after(first, log, loss, world.directory))
    say(f"  power cut after {len(events_of(log))} events, {loss.value}")
    shutil.rmtree(before)
    shutil.rmtree(log)
    return (status, exit_code) == (0, 0)


def check(world: World, *, is_cut_short: bool) -> list[RecordedAct]:
    """Make sure that what has to stay is there, and that what is gone has its record; returns the acts.

    :param is_cut_short: a command was, so that verify may call a failure what the command goes on with.
    """
    lake = world.lake()
    acts = list(read_acts(lake))
    (store,) = list_stores(lake)
    check_chain(receipt_history(lake, store.store_id))
    rows, there = receipts(lake, store.store_id, with_ended=True), rows_by_topic(lake)
    nowhere = set(world.store.sealed) - {row.base_offset for row in rows} - world.store.there()
    assert not nowhere, nowhere
    for row in rows:
        segment = world.store.sealed[row.base_offset]
        assert row.sha256 == segment.sha256
        taken = {
            at: topics
            for at, it in enumerate(acts)
            if (topics := _taken_by(it.act.decision, row.identity, segment.newest_ms))
        }
        removed = {
            file for it in acts if it.act.decision.kind is ActKind.REMOVED for file in it.act.decision.files
        }
        undoing = {it.sha256 for it in acts if it.act.decision.kind is ActKind.UNDO}
        undone = {it.act.decision.expiry for it in acts if it.act.decision.kind is ActKind.UNDO}
        by = {acts[at].sha256 for at in taken}
        for at, topics in taken.items():
            for topic in topics:
                newest_ms = segment.newest_ms[topic]
                assert _may_go(acts[:at], topic, newest_ms, acts[at].act.at_ms), (row.base_offset, topic)
        if row.state != "expired":
            gone = {it["name"] for it in json.loads(row.streams or "[]") if it["gone"]}
            assert bool(gone) == (row.state is not None)
            for topic, count in segment.rows.items():
                # An undo brings the rows back first.
                right = {0, count} if is_cut_short and topic in gone else {0} if topic in gone else {count}
                assert there[row.base_offset, topic] in right, (row.base_offset, topic)
        rules = {it.sha256 for it in acts if it.act.decision.kind is ActKind.ARCHIVE}
        assert row.state is None or json.loads(row.act)["sha256"] in by | undoing | rules, row.base_offset
        for file in row.proven_files:
            path = local_path(location_of(lake.messages(), file.location))
            assert path is not None
            if not path.exists():
                assert row.state is not None, f"a whole receipt without its file: {row.base_offset}"
                assert file in removed or not by <= undone, "undone, and gone"
    _check_removals(acts)
    if not is_cut_short:
        world.run("verify", world.store_dir, "--lake", world.lake_dir, "--level", "bytes")
    return acts


def _taken_by(decision: Any, identity: Any, topics: Iterable[str]) -> list[str]:
    """Return which topics of a segment an act takes: all of them, or those that it thins it by."""
    if identity in decision.segments:
        return list(topics)
    thinned = getattr(decision, "thinned", ())
    return [topic for it in thinned if it.segment == identity for topic in it.streams if topic]


def _may_go(before: Sequence[RecordedAct], topic: str, newest_ms: int, at_ms: int) -> bool:
    """Return whether the rules take a topic, and took it throughout the day before, and no hold covers it."""
    decisions = [(it.act.at_ms, it.act.decision) for it in before]
    since = [at_ms - DAY_MS, *(it for it, _ in decisions if it > at_ms - DAY_MS)]
    return all(
        _takes([it for made_ms, it in decisions if made_ms <= when], topic, newest_ms, at_ms)
        for when in since
    )


def _takes(decisions: Sequence[Any], topic: str, newest_ms: int, at_ms: int) -> bool:
    rules = next((it.rules for it in reversed(decisions) if it.kind is ActKind.KEEP), ())
    by_topic = {rule.scope.topic: rule.days for rule in rules}
    days = by_topic.get(topic, None if topic == SYSTEM else by_topic.get("*"))
    return days is not None and newest_ms + days * DAY_MS <= at_ms


def _held(acts: Sequence[RecordedAct]) -> list[Scope]:
    lifted = {it.act.decision.lifts for it in acts}
    holds = [it for it in acts if it.act.decision.kind is ActKind.HOLD]
    return [it.act.decision.scope for it in holds if it.act.decision.scope and it.sha256 not in lifted]


def _check_removals(acts: Sequence[RecordedAct]) -> None:
    for at, it in enumerate(acts):
        # A hold of one topic covers what has no topic, which each segment has.
        assert it.act.decision.kind is not ActKind.EXPIRE or not _held(acts[:at])
        if it.act.decision.kind is ActKind.REMOVED:
            (expiry,) = [old.act for old in acts[:at] if old.sha256 == it.act.decision.expiry]
            assert set(it.act.decision.files) <= set(expiry.decision.files)
            undone = {old.act.decision.expiry for old in acts[:at] if old.act.decision.kind is ActKind.UNDO}
            assert it.act.decision.expiry not in undone


def data_files(world: World) -> set[str]:
    return {path.name for path in world.lake_dir.rglob("messages/data/**/*.parquet")}


def checked(world: World, *, is_cut_short: bool = False) -> list[RecordedAct]:
    """Check in a fork: this process never opens a lake."""
    status, answer = in_child(lambda: pickle.dumps(check(world, is_cut_short=is_cut_short)).hex())
    assert status == 0, "see the traceback above"
    acts: list[RecordedAct] = pickle.loads(bytes.fromhex(answer))
    return acts


def run(words: Sequence[str], kill: int | None = None) -> children.Ended:
    """Run a command in a fork; with ``kill``, until before a durable operation."""
    ended = children.in_child(lambda: storage_engine(*words), kill)
    assert not ended.crash, ended.crash
    return ended


def live(world: World, chance: random.Random, work: Path, cases: int, done: Counter[str]) -> None:
    """Live a history of so many commands that are cut short."""
    acts = checked(world)
    for _ in range(cases):
        pass_days(chance.choice((0.01, 0.5, 1.1, 3, 8)))
        words = words_of(world, chance, acts)
        if words[0] == "clean":
            # It archives one more, by the rule that leaves a topic out.
            world.store.seal()
        held, before = words[1] == "expire" and bool(_held(acts)), data_files(world)
        options = {word.removeprefix("--") for word in words if word.startswith("--")}
        (name,) = {"undo", "hold", "lift", "keep", "trash-days"} & options or {
            words[1 if words[0] == "lake" else 0]
        }
        say(f"{name}: {' '.join(words)}")
        if chance.random() < 0.5:
            kill = chance.randrange(40)
            ended = run(words, kill)
            say(f"  killed before {kill}: {ended.killed}")
            done["killed"] += ended.killed
        else:
            ended_well = cut_power(world, words, chance, work)
            done["cut"] += 1
            if ended_well and name in ("keep", "hold", "lift"):
                # What it had promised is on disk: again it records nothing.
                left = checked(world, is_cut_short=True)
                again = run(words)
                assert again.answer["exit_code"] == 0, again
                assert checked(world) == left, "what had ended well was recorded again"
        left = checked(world, is_cut_short=True)
        assert left[: len(acts)] == acts, "an act is lost"
        again = run(words)
        refused = again.answer["exit_code"] != 0
        say(f"  again: {again.answer['exit_code']} {again.answer['err'][-300:]}")
        assert not refused or any(text in again.answer["err"] for text in REFUSED), again.answer
        done["refused"] += refused
        done[name] += 1
        acts = checked(world)
        assert not held or before <= data_files(world), "a file went that was held"


def main(work: Path, cases: int, seed: int) -> None:
    pristine, done = World(work / "world"), Counter[str]()
    begin(pristine)
    moves = passed_count()
    shutil.copytree(work / "world", work / "pristine")
    for number in range(-(-cases // COMMANDS_OF_A_HISTORY)):
        say(f"history {number} of seed {seed}")
        forget_days(moves)
        shutil.rmtree(work / "world")
        shutil.copytree(work / "pristine", work / "world")
        world = copy.deepcopy(pristine)
        live(world, random.Random(f"{seed} {number}"), work, COMMANDS_OF_A_HISTORY, done)
        status, filled = in_child(world.check_filled)
        assert status == 0
        done["filled"] += filled
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
