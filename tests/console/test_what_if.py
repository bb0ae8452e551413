"""What would become of a store by other settings, by the broker's own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.console.forecast import question_of, what_if, what_if_settings
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import BadInputError, SimulationTooLongError
from storage_engine.journal.journal import Journal
from storage_engine.journal.reading.queries import JournalReader
from tests.console.conftest import NOW_MS

GIB = 1 << 30


def test_settings_come_with_their_values_today_and_the_ingest_that_samples_tell(past: JournalReader) -> None:
    found = what_if_settings(past, "store_payments", NOW_MS)
    assert (found.can, found.why) == (True, "")
    values = {one.name: one.value for one in found.settings}
    assert (values["fileReservedTime"], values["deleteWhen"]) == ("72", "04")
    assert found.disk_bytes == 1_000 * GIB
    assert found.ingest is not None
    assert 100 * GIB < found.ingest.bytes_per_day < 140 * GIB
    # More comes from 09 to 22 h in Shanghai than in the night.
    assert min(found.ingest.profile[10:20]) > max(found.ingest.profile[0:6])


def test_a_longer_time_fills_the_disk_more_and_nothing_changed_is_as_today(past: JournalReader) -> None:
    same = what_if(past, "store_payments", question_of({}), NOW_MS)
    assert same.today == same.changed
    assert 0 < len(same.today.times_ms) <= 2_000
    asked = question_of({"values": {"fileReservedTime": "120"}, "ingest": {"factor": 1.5}, "days": 14})
    longer = what_if(past, "store_payments", asked, NOW_MS)
    assert longer.today == same.today
    assert longer.changed.summary.highest_percent > longer.today.summary.highest_percent
    assert {one.kind for one in longer.advice} >= {"does-not-fit"}
    larger = what_if(past, "store_payments", question_of({"disk_bytes": 4_000 * GIB}), NOW_MS)
    assert larger.changed.summary.highest_percent < larger.today.summary.highest_percent
    json.dumps(to_jsonable(longer), allow_nan=False)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "expected an object"),
        ({"values": {"brokerName": "x"}}, "brokerName"),
        ({"values": {"fileReservedTime": "x" * 201}}, "at most 200"),
        ({"values": {"fileReservedTime": "soon"}}, "fileReservedTime"),
        ({"days": 5_000}, "1 to 90"),
        ({"disk_bytes": 0}, "disk_bytes"),
        ({"disk_bytes": 1 << 30}, "disk_bytes: expected [0-9]{12,} to 1152921504606846976, found 1073741824"),
        ({"disk_bytes": 1 << 61}, "disk_bytes: expected [0-9]+ to 1152921504606846976, found"),
        ({"ingest": {"profile": [0] * 24}}, "profile: expected weights of 0 or more, not all 0"),
        ({"ingest": {"profile": [1, 2]}}, "24 weights"),
        ({"ingest": {"factor": -1}}, "factor"),
        ({"why": 1}, "why"),
    ],
)
def test_a_question_that_is_none_is_refused_by_name(past: JournalReader, body: object, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        what_if(past, "store_payments", question_of(body), NOW_MS)


def test_a_course_has_a_limit_of_time(past: JournalReader) -> None:
    with pytest.raises(SimulationTooLongError):
        what_if(past, "store_payments", question_of({"days": 90}), NOW_MS, limit_seconds=0.0)


def test_where_nothing_can_be_computed_it_says_why(past: JournalReader, tmp_path: Path) -> None:
    assert what_if_settings(past, "nope", NOW_MS).why == "no-store"
    url = f"sqlite:///{tmp_path}/journal.db"
    journal, reader = Journal(url), JournalReader(url)
    store_id = journal.add_store("/s", "rocketmq", name="s").store_id
    assert what_if_settings(reader, "s", NOW_MS).why == "no-rules"
    journal.add_store("/k", "kafka", name="k")
    assert what_if_settings(reader, "k", NOW_MS).why == "not-simulated"
    journal.save_rules(store_id, {"settings": {}, "levels": {}, "windows": None})
    assert what_if_settings(reader, "s", NOW_MS).why == "no-start"
    journal.save_rules(store_id, {"settings": {}, "unsupported": "its disks are two"})
    found = what_if_settings(reader, "s", NOW_MS)
    assert (found.can, found.why) == (False, "its disks are two")
    with pytest.raises(BadInputError, match="its disks are two"):
        what_if(reader, "s", question_of({}), NOW_MS)
