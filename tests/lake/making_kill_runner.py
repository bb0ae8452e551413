"""Kills the making of a lake, the takeover or upgrade of an older one, and the choice of its kind, at their
durable operations; a script.

As the script that kills runs of a cleanup: each attempt is a fork that dies before the chosen operation. What
it left is looked at: it is no lake yet, or a whole one. Then the same is done again, and must come to what
it comes to undisturbed. Prints one JSON object.

Usage: making_kill_runner.py make|take-over|upgrade|settle LAKE_DIRECTORY WORK_DIRECTORY MOST_KILLS
With take-over the directory has a lake that a release of version 1 made, and no other has been there; with
upgrade one of version 2; with settle an empty one that takes any kind, which becomes Kafka's.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from storage_engine.exceptions import LakeMissingError
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import LAKE_ID_PROPERTY, lake_id_of, read_mark
from storage_engine.lake.catalog.tables import DELETIONS, SCHEMA_VERSION_PROPERTY
from storage_engine.lake.catalog.writing import mark_commits, ready_to_write, settle_broker, upgrade
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.chain import check_chain
from storage_engine.lake.soundness.receipts import list_stores, receipt_history, receipts
from storage_engine.lake.soundness.soundness import Depth
from storage_engine.lake.soundness.soundness_reader import broken_receipts
from tests.retention.kill_runner import Moment, count_durable_operations, not_killed
from tests.services.forks import in_child

STEP = "lake"


def run(work: Callable[[], object], kill_before: int | None) -> list[str]:
    done, at_step = count_durable_operations(None if kill_before is None else Moment(STEP, kill_before))
    at_step(STEP)
    work()
    at_step("")
    return done


def proven(lake: Lake) -> dict[str, list[int]]:
    """Base offsets of what the lake proves, by store; each file is read."""
    found = {}
    for store in list_stores(lake):
        check_chain(receipt_history(lake, store.store_id))
        rows = receipts(lake, store.store_id)
        assert broken_receipts(lake, rows, Depth.FILES) == {}
        found[store.store_id] = [row.base_offset for row in rows]
    return found


def as_left(config: LakeConfig) -> object:
    """What a lake proves that may have been killed; None: there is none yet."""
    try:
        return proven(open_lake(config))
    except LakeMissingError:
        return None


def end_state(config: LakeConfig) -> dict[str, object]:
    lake = open_lake(config)
    tables, marks = lake.tables(), [read_mark(table) for table in lake.tables()]
    namespace = lake.catalog.load_namespace_properties(config.namespace)
    ids = {lake_id_of(table) for table in tables} | {mark.lake_id for mark in marks if mark}
    return {
        "proven": proven(lake),
        "one identity": len(ids | {namespace[LAKE_ID_PROPERTY]}) == 1 and None not in ids,
        "versions": [table.properties[SCHEMA_VERSION_PROPERTY] for table in tables],
        "marked": [
            (mark.catalog, mark.pending, mark.metadata)
            == (lake.catalog_id, False, table.metadata_location.rpartition("/")[2])
            for mark, table in zip(marks, tables, strict=True)
            if mark
        ],
        "tables": sorted(name for _, name in lake.catalog.list_tables(config.namespace)),
        "columns": [[field.name for field in table.schema().fields] for table in tables],
        # An empty table of deletions may get its mark with its first row.
        "ours": sorted(
            path.name
            for path in Path(config.location[7:]).rglob(".storage-engine-*")
            if path.parent.name != DELETIONS
        ),
    }


def main(what: str, directory: Path, work: Path, most: int) -> None:
    config = LakeConfig.local(directory)
    if what != "make":
        shutil.copytree(directory, work)

    def prepare() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        if what != "make":
            shutil.copytree(work, directory, copy_function=shutil.copy2)

    def do() -> None:
        if what == "make":
            make_lake(config)
        elif what == "settle":
            lake = open_lake(config)
            settle_broker(lake, "kafka")
            # As the commit does that comes next.
            mark_commits(lake)
        elif what == "upgrade":
            upgrade(open_lake(config))
        else:
            lake = open_lake(config)
            ready_to_write(lake)
            mark_commits(lake)

    prepare()
    _, before = in_child(lambda: as_left(config))
    status, operations = in_child(lambda: run(do, None))
    if status:
        raise SystemExit("the undisturbed one failed")
    _, expected = in_child(lambda: end_state(config))
    problems = []
    stride = max(1, len(operations) / most)
    chosen = sorted({int((number + 0.5) * stride) for number in range(min(most, len(operations)))})
    for number in chosen:
        prepare()
        status, _ = in_child(lambda number=number: run(do, number))
        found = not_killed(status)
        status, left = in_child(lambda: as_left(config))
        if status or left not in (before, expected["proven"]):
            found.append(f"left {left}")
        status, _ = in_child(lambda: run(do, None))
        _, end = in_child(lambda: end_state(config))
        if status or end != expected:
            found.append(f"done again it came to {end}, expected {expected}")
        problems += [f"killed before {number} ({operations[number]}): {what}" for what in found]
    answer = {"operations": operations, "kills": len(chosen), "end": expected, "problems": problems}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
