"""The page about a run: complete, and complete in itself."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError
from storage_engine.model.validation import CheckResult, RangeStatus, Status, ValidationResult, Where
from storage_engine.pages.report import BAR_WIDTH, READS_VERSION, bars, render_page, report_html


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
