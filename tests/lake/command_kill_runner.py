"""Kills relocate, copy, promote, rebuild and acts at their durable operations, and runs them again; a script.

As the script that kills runs of a cleanup: each attempt is a fork that dies before the chosen operation. What
it left is looked at: a lake that opens must be whole. Then the same command is run again, and must come to
what one that nobody killed comes to. Prints one JSON object.

Usage: command_kill_runner.py SEGMENTS_DIRECTORY WORK_DIRECTORY MOST_KILLS_PER_COMMAND [NAME_OF_A_CASE ...]
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.acts.act_files import read_acts, record_act
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import copy_of, read_mark
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import decide_hold, decide_rule
from storage_engine.model.keep.keep_rules import Scope
from storage_engine.model.report.validation import Status, VerifyLevel
from storage_engine.model.store import FileFacts, Segment, SegmentState
from tests.lake.lake_acts import held, old_release, tree
from tests.retention.kill_runner import Moment, count_durable_operations, not_killed
from tests.services.forks import in_child

STEP = "command"
KEEP = partial(decide_rule, scope=Scope(topic="a*"), keep="30 days")
HOLD = partial(decide_hold, scope=Scope(topic="orders"), reason="case 7")


@dataclass(frozen=True, slots=True)
class Case:
    """:param prepare: puts everything as it is before the command.
    :param lake: the directory that the command changes.
    :param untouched: a directory that it must leave as it is.
    :param segments: how many the lake has in the end.
    :param tidy: no metadata file may be left of an attempt; a commit of the table's own leaves one.
    """

    prepare: Callable[[], object]
    command: Callable[[], object]
    lake: Path
    untouched: Path | None
    segments: int
    is_copy: bool
    tidy: bool = True


def at(directory: Path) -> LakeConfig:
    return LakeConfig.local(directory)


def archive(lake: Lake, *paths: Path) -> None:
    chosen = [Segment("commitlog", int(p.name), FileFacts.of(p), SegmentState.SEALED) for p in paths]
    store = str(paths[0].parents[1])
    archive_all(
        lake, segment_jobs(lake, chosen, store_id="store-1", lineage=0, broker="rocketmq", store_root=store)
    )


def cases(work: Path, segments: list[Path]) -> dict[str, Case]:
    lake, copy, back = work / "lake", work / "copy", work / "back"
    archive(make_lake(at(lake)), segments[0])
    record_act(open_lake(at(lake)), KEEP)
    shutil.copy2(lake / "catalog.db", work / "first.db")
    archive(open_lake(at(lake)), segments[1])
    shutil.copytree(lake, work / "two")
    copy_lake(open_lake(at(lake)), at(back))
    shutil.copytree(back, work / "back-of-two")
    shutil.copy2(work / "first.db", lake / "catalog.db")
    with old_release():
        archive(open_lake(at(lake)), segments[2])
    shutil.copytree(lake, work / "branches")

    def put(**directories: str | None) -> None:
        for name, template in directories.items():
            shutil.rmtree(work / name, ignore_errors=True)
            if template is not None:
                shutil.copytree(work / template, work / name, copy_function=shutil.copy2)

    def three() -> None:
        put(lake="two", back="back-of-two", copy=None)
        archive(open_lake(at(lake)), segments[2])
        record_act(open_lake(at(lake)), HOLD)

    return {
        "hold": Case(
            lambda: put(lake="two"), lambda: record_act(open_lake(at(lake)), HOLD), lake, None, 2, False
        ),
        "relocate a moved lake": Case(
            lambda: put(lake=None, copy="two"), lambda: relocate(at(copy)), copy, None, 2, False
        ),
        "relocate a plain copy": Case(
            lambda: put(lake="two", copy="two"), lambda: relocate(at(copy)), copy, lake, 2, True
        ),
        "copy": Case(
            lambda: put(lake="two", back=None),
            lambda: copy_lake(open_lake(at(lake)), at(back)),
            back,
            lake,
            2,
            True,
        ),
        "copy what is new": Case(
            three, lambda: copy_lake(open_lake(at(lake)), at(back)), back, lake, 3, True
        ),
        "promote": Case(
            lambda: put(lake="two", back="back-of-two"),
            lambda: promote(open_lake(at(back)), "ann", "why"),
            back,
            lake,
            2,
            False,
            tidy=False,
        ),
        "rebuild two branches": Case(
            lambda: put(lake="branches"), lambda: rebuild(at(lake), {}), lake, None, 3, False
        ),
        "rebuild a plain copy": Case(
            lambda: (put(lake="two", copy="two"), (copy / "catalog.db").unlink()),
            lambda: rebuild(at(copy), {}),
            copy,
            lake,
            2,
            True,
        ),
    }


def run(case: Case, kill_before: int | None) -> list[str]:
    moment = None if kill_before is None else Moment(STEP, kill_before)
    done, at_step = count_durable_operations(moment)
    at_step(STEP)
    case.command()
    at_step("")
    return done


def whole(directory: Path) -> list[str]:
    """Which receipts prove nothing in a lake, if it opens.

    A data file whose receipt is still to come is no fault: every archiving that is killed may leave one.
    """
    try:
        lake = open_lake(at(directory))
    except (StorageEngineError, OSError):
        return []
    check_chain(receipt_history(lake, "store-1"))
    read_acts(lake)
    return list(broken_receipts(lake, receipts(lake, "store-1"), Depth.FILES).values())


def end_state(case: Case) -> dict[str, object]:
    lake = open_lake(at(case.lake))
    (found,) = verify(lake, VerifyLevel.BYTES)
    acts, mark = read_acts(lake), read_mark(lake.segments())
    return {
        "acts": [recorded.act.decision.kind.value for recorded in acts],
        "newest is marked": mark is not None and mark.act == acts[-1].sha256,
        "verified": found.overall is Status.OK,
        "segments": held(case.lake),
        "is_copy": copy_of(lake.segments()) is not None,
        "marks": sorted(path.name for path in case.lake.rglob(".storage-engine-*")),
        "metadata": len(list(case.lake.rglob("*.metadata.json"))) if case.tidy else None,
        "partial": [path.name for path in case.lake.rglob("*.partial")],
    }


def kill(name: str, case: Case, most: int) -> tuple[int, list[str]]:
    """Kill one command at its operations.

    :return: how often, and what was not as it has to be.
    """
    case.prepare()
    status, operations = in_child(lambda: run(case, None))
    if status:
        raise SystemExit(f"{name}: the undisturbed command failed")
    _, expected = in_child(lambda: end_state(case))
    problems = []
    if (len(expected["segments"]), expected["is_copy"], expected["verified"]) != (
        case.segments,
        case.is_copy,
        True,
    ):
        problems.append(f"{name}: ended as {expected}")
    stride = max(1, len(operations) / most)
    chosen = sorted({int((number + 0.5) * stride) for number in range(min(most, len(operations)))})
    for number in chosen:
        case.prepare()
        before = tree(case.untouched) if case.untouched else {}
        status, _ = in_child(lambda number=number: run(case, number))
        found = not_killed(status)
        _, faults = in_child(lambda: whole(case.lake))
        found += faults if faults is not None else ["the lake that was left could not be looked at"]
        status, _ = in_child(lambda: run(case, None))
        _, end = in_child(lambda: end_state(case))
        if status or end != expected:
            found.append(f"run again it came to {end}, expected {expected}")
        if case.untouched and tree(case.untouched) != before:
            found.append(f"{case.untouched.name} was changed")
        problems += [f"{name}, killed before {number} ({operations[number]}): {what}" for what in found]
    return len(chosen), problems


def main(directory: Path, work: Path, most: int, names: list[str]) -> None:
    work.mkdir()
    kills, problems = {}, []
    for name, case in cases(work, sorted(directory.iterdir())).items():
        if name in names or not names:
            kills[name], found = kill(name, case, most)
            problems += found
    sys.stdout.write(json.dumps({"kills": kills, "problems": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
