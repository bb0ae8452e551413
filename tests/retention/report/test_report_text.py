"""A report in words, also one that an older release has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.journal.reading.answers import StoredReport
from storage_engine.retention.report.finishing import report_of_stored
from storage_engine.retention.report.report_text import report_text

WRITTEN = Path(__file__).parents[2] / "fixtures" / "reports" / "before-lake-uuid.json"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return report_text(report_of_stored(StoredReport(1, 0, json.loads(WRITTEN.read_text())))).splitlines()


def test_moments_are_told_as_such(lines: list[str]) -> None:
    assert "  physic_msg_timestamp 2026-11-20 13:17:00Z" in lines
    assert "  confirm_phy_offset 0" in lines
    assert "  the next loss by age: now" in lines


def test_no_queue_and_no_notice_is_told_twice(lines: list[str]) -> None:
    queues = [line.split(": ")[0].strip() for line in lines if line.endswith(" behind")]
    assert len(queues) == len(set(queues))
    assert "cg_orders orders/0" in queues
    (unchecked,) = (line for line in lines if "could not be checked" in line)
    assert unchecked.startswith(
        "  while segments were deleted, and while queues and index were cleaned: 1 process"
    )


def test_kept_segments_of_one_reason_are_told_once() -> None:
    content = json.loads(WRITTEN.read_text())
    kept = next(one for one in content["segments"] if one["fate"] == "kept")
    for number in range(3):
        detail = f"last written 2026-11-2{number} 13:17:00Z, so it stays"
        content["segments"].append(
            {**kept, "base_offset": 9000 + number, "reason": "not-expired", "detail": detail}
        )
    told = report_text(report_of_stored(StoredReport(1, 0, content))).splitlines()
    (line,) = [line for line in told if "so it stays" in line]
    assert (
        f"{9000:020d} … {9002:020d} (3 segments)  not-expired: last written 2026-11-20 13:17:00Z to" in line
    )
    assert "2026-11-22 13:17:00Z, so it stays" in line


def test_a_report_of_another_version_is_refused() -> None:
    with pytest.raises(BadInputError, match="expected a report of version 1, found version 2"):
        report_of_stored(StoredReport(2, 0, {"run_key": "r"}))
