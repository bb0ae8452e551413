"""One store on its page."""

from __future__ import annotations

import json
from itertools import pairwise

from storage_engine.console.rules import RecordedLevels, Windows
from storage_engine.console.store import one_store, runs_page
from storage_engine.journal.queries import JournalReader
from storage_engine.model.jsonable import to_jsonable
from tests.console.conftest import NOW_MS


def test_a_store_is_told_with_all_that_stands_for_it(past: JournalReader) -> None:
    answer = one_store(past, "store_orders", NOW_MS)
    assert answer.row.store == "store_orders"
    assert [one.consumer_group for one in answer.groups] == ["cg_billing", "cg_search", "cg_done"]
    assert {one.topic for one in answer.topics} >= {"orders", "RMQ_SYS_TRACE_TOPIC"}
    standing = answer.standing
    assert standing is not None
    assert standing.hold is not None
    assert standing.hold.held
    assert [one.person for one in standing.waivers] == ["ben"]
    assert [one.person for one in standing.losses] == ["ann"]
    assert answer.findings is not None
    assert [one.severity for one in answer.findings.doctor] == ["urgent", "warning", "note"]
    assert answer.findings.alarms
    assert answer.ranges is not None
    assert {one.where for one in answer.ranges} == {"archived", "lost", "due", "both", "local"}
    assert all(one.end_offset == other.start_offset for one, other in pairwise(answer.ranges))
    assert standing.shield is not None
    assert (standing.shield.segments, standing.shield.gone_bytes) == (3, 1 << 30)
    assert answer.rules is not None
    assert answer.rules.settings["fileReservedTime"] == "72"
    assert answer.rules.windows == Windows((4,), "Asia/Shanghai")
    assert answer.rules.levels == RecordedLevels(70, 75, 85, 90, 85)
    json.dumps(to_jsonable(answer))


def test_of_an_unknown_store_only_its_line_is_told(past: JournalReader) -> None:
    answer = one_store(past, "nope", NOW_MS)
    assert "knows no store" in answer.row.problem
    assert (answer.standing, answer.findings, answer.groups) == (None, None, ())
    assert runs_page(past, "nope").runs == ()


def test_runs_come_page_by_page_until_there_are_none(past: JournalReader) -> None:
    ids: list[int] = []
    page = runs_page(past, "store_payments")
    while page.runs:
        ids += [one.id for one in page.runs]
        page = runs_page(past, "store_payments", before_id=ids[-1])
    assert len(ids) == 45
    assert all(later > earlier for later, earlier in pairwise(ids))
