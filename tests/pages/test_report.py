"""The page about a run: complete, and complete in itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.model.plan import Reason
from storage_engine.model.report.validation import CheckResult, RangeStatus, Status, ValidationResult, Where
from storage_engine.pages.report import (
    BAR_WIDTH,
    LISTED,
    READS_VERSION,
    bars,
    render_page,
    report_html,
    segment_groups,
)
from storage_engine.retention.report.report import Fate
from tests.pages.reports import DONE, MIB, NOTHING, plain, segment, unread

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "reports"


class _Reader(HTMLParser):
    """Collects tags and whatever a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "srcset", "data", "poster")]
        if tag == "link":
            self.fetched.append(str(attrs))


def range_status(start: int, end: int, where: Where = Where.LOCAL, status: Status = Status.OK) -> RangeStatus:
    return RangeStatus("commitlog", start, end, where, status, (f"{start:020d}",), "because")


def validation(*ranges: RangeStatus, check: Status = Status.OK, example: str = "x") -> ValidationResult:
    checks = (
        CheckResult("across_ranges", "ExpectNoLostRanges", "Nothing is lost.", check, 3, 1, (example,)),
        CheckResult("store_index_files", "ExpectEntriesToPointIntoTheLog", "", Status.OK, 0, 0),
    )
    return ValidationResult("/store", None, None, "boundaries", 0, 1500, ranges, checks, ("a note",))


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=300))
def test_the_bar_is_filled_and_no_range_is_invisible(lengths: list[int]) -> None:
    placed = bars([range_status(0, length) for length in lengths])
    assert abs(placed[-1].x + placed[-1].width - BAR_WIDTH) < 1e-6
    assert all(bar.width >= min(8, BAR_WIDTH / len(lengths)) for bar in placed)


def test_the_page_needs_nothing_beyond_itself() -> None:
    text = render_page(None, validation(range_status(0, 10)), links={"Data Docs": "docs/index.html"})
    reader = _Reader(text)
    assert reader.fetched == []
    assert not {"script", "link", "iframe", "img"} & set(reader.tags)
    assert "@import" not in text
    assert "url(" not in text


def test_every_range_and_check_is_on_the_page() -> None:
    text = render_page(
        None,
        validation(
            range_status(0, 1_048_576, Where.ARCHIVED),
            range_status(1_048_576, 2_097_152, Where.LOST, Status.FAILURE),
            check=Status.FAILURE,
            example="commitlog [1048576, 2097152)",
        ),
        links={},
    )
    assert "Failure" in text
    assert "[1,048,576, 2,097,152)" in text
    assert text.count("<rect") == 2
    assert "ExpectNoLostRanges" in text
    assert "commitlog [1048576, 2097152)" in text
    assert "nothing to check" in text
    assert "a note" in text


def test_a_command_of_a_remedy_is_code() -> None:
    page = render_page(None, validation(range_status(0, 9), check=Status.FAILURE), links={})
    assert '<code class="typed">storage-engine accept-loss</code>.' in page


def test_what_a_message_or_file_is_called_cannot_change_the_page() -> None:
    text = render_page(None, validation(range_status(0, 1), example="<script>alert(1)</script>"), links={})
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_a_web_server_that_imports_pages_imports_nothing_heavy() -> None:
    code = "import sys, storage_engine.pages.report; print(*{n.partition('.')[0] for n in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "airflow",
        "great_expectations",
        "numba",
        "numpy",
        "pandas",
        "pyarrow",
        "pyiceberg",
        "sqlalchemy",
    }
    assert not heavy & set(ran.stdout.split())


def test_a_report_of_a_newer_release_is_refused() -> None:
    with pytest.raises(BadInputError, match="newer release"):
        report_html({"run_key": "r"}, version=READS_VERSION + 1)


def test_the_page_of_a_run_is_made_of_its_json_alone() -> None:
    page = report_html(json.loads(json.dumps(plain())), links={"Data Docs": "docs/index.html"})
    assert "<h1>2 segments (2.0 MiB) were archived, proven and deleted" in page
    assert '<a href="docs/index.html">Data Docs</a>' in page
    assert "archive and prove" in page
    assert _Reader(page).fetched == []


def test_a_report_of_an_older_release_has_a_page() -> None:
    report = json.loads((FIXTURES / "before-lake-uuid.json").read_bytes())
    page = report_html(report, version=1)
    assert "<h1>7 segments (7.0 MiB) were archived, proven and deleted" in page
    assert page.count('<li><span class="mono"') == 7
    assert len(page) < 60_000


def test_every_time_has_one_form() -> None:
    page = report_html(plain(unread=unread(), unread_lines=("x",)))
    assert len(re.findall(r"\d\d:\d\d:\d\dZ", page)) > 5
    assert not re.search(r"\d{4}-\d\d-\d\dT|\+00:00| UTC<|\d\d:\d\d:\d\d(?!Z)", page)
    assert page.count("Times are UTC") == 1


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_page_stays_small_whatever_the_number_of_segments(count: int) -> None:
    stay = [segment(i, Fate.KEPT, Reason.NOT_EXPIRED, f"expires at {i}") for i in range(count)]
    page = report_html(plain(NOTHING, segments=tuple(stay)))
    assert len(page) < 60_000
    assert f"<b>{count:,} segments</b>" in page
    assert f"And {count - LISTED:,} more: see report.json." in page


def test_lists_of_any_length_leave_the_page_small() -> None:
    report = plain(unproven=tuple(range(20_000)), notices=("n",) * 20_000, archived=DONE.archived * 20_000)
    report["dependents"] = [
        {"kind": "index", "facts": {"path": f"/i/{i}", "size_bytes": 1}, "detail": "below"}
        for i in range(20_000)
    ]
    assert len(report_html(report)) < 150_000


def test_segments_are_grouped_by_what_became_of_them_and_why() -> None:
    rows = plain()["segments"]
    first, last = segment_groups(rows)
    assert (first.fate, first.count, first.last_offset, first.size_bytes) == ("deleted", 2, MIB, 2 * MIB)
    assert (last.reason, last.count, last.more) == ("active", 1, 0)
