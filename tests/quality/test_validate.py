"""Validation after a run on a real store, and what it says to every kind of fault."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from storage_engine.core.extras import QUALITY
from storage_engine.exceptions import LakeUnavailableError, RunStateError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.lake.verify.reproof import reprove
from storage_engine.model.report.validation import Status, ValidationResult, Where
from storage_engine.quality.validate import validate_store
from storage_engine.retention.decisions import stamp
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.managed_store import DATA_DOCS, DATA_DOCS_DIRECTORY
from tests.extras import take_away
from tests.lakes import path_of
from tests.quality.cases import RELEASED, RUN, SEGMENT, Case, fresh_case
from tests.quality.faults import (
    FAULTS,
    cut_a_data_file,
    dig_a_hole,
    drop_a_data_file_from_the_table,
    edit_a_receipt,
    flip,
    flip_a_bit_in_a_data_file,
    lose_a_segment,
    point_an_entry_below_the_log,
    raise_the_checkpoint,
    remove_a_receipt,
)

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shown:
    """What one validation of a store without a fault came to; its pages lie in a directory of their own."""

    result: ValidationResult
    reported: ValidationResult | None
    pages: Path
    has_changed_something: bool


@pytest.fixture(scope="module")
def shown(base: Path) -> Shown:
    """Validate the case once by Great Expectations."""
    case = fresh_case(base)
    before = everything(case)
    result = case.validate(full=True)
    changed = everything(case) != before
    pages = shutil.copytree(case.output, base / "shown")
    return Shown(result, build_report(case.store, RUN).validation, pages, changed)


def everything(case: Case) -> dict[Path, bytes]:
    trees = (case.root, case.lake)
    return {path: path.read_bytes() for tree in trees for path in tree.rglob("*") if path.is_file()}


def failed(result: ValidationResult) -> set[str]:
    return {check.expectation for check in result.failures}


def places(result: ValidationResult) -> list[tuple[int, Where, Status]]:
    return [(row.start_offset // SEGMENT, row.where, row.status) for row in result.ranges]


# What holds


def test_a_clean_run_is_valid_and_taken_down(shown: Shown) -> None:
    result = shown.result
    assert result.overall is Status.OK, result.failures
    assert places(result) == [
        (0, Where.ARCHIVED, Status.OK),
        (RELEASED, Where.BOTH, Status.OK),
        (7, Where.LOCAL, Status.OK),
    ]
    assert ValidationResult.from_dict(json.loads((shown.pages / "validation.json").read_bytes())) == result
    assert shown.reported == result
    page = (shown.pages / "report.html").read_text()
    assert all(f"{number * SEGMENT:020d}" in page for number in range(8))
    assert json.loads((shown.pages / "report.json").read_bytes())["run_key"] == RUN


@pytest.mark.usefixtures("plainly")
def test_a_full_validation_without_a_run_is_valid_too(case: Case) -> None:
    result = case.validate(None, full=True)
    assert result.overall is Status.OK, result.failures
    counts = {check.expectation: check.checked_count for check in result.checks}
    assert counts["ExpectRowsToCoverSegments"] == 7
    assert counts["ExpectFramesToBeWhole"] == 4
    assert counts["ExpectMessagesToBeInTheirQueues"] > 0


def test_validation_changes_neither_store_nor_lake(shown: Shown) -> None:
    assert not shown.has_changed_something


@pytest.mark.usefixtures("plainly")
def test_a_store_is_validated_without_a_lake(case: Case) -> None:
    result = validate_store(case.store, with_lake=False, output_dir=case.output)
    assert result.overall is Status.OK
    assert places(result) == [(RELEASED, Where.LOCAL, Status.OK)]
    assert any("lake was not asked" in note for note in result.notes)


def test_a_lake_that_is_gone_is_an_error_not_a_pass(case: Case) -> None:
    case.lake.rename(case.lake.with_name("elsewhere"))
    with pytest.raises(LakeUnavailableError):
        case.validate(None)


def test_a_run_nobody_knows_is_refused(case: Case) -> None:
    with pytest.raises(RunStateError, match="no-such-run"):
        case.validate("no-such-run")


class _Fetched(HTMLParser):
    """Whatever a browser would fetch to show a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = ("src", "srcset", "data", "href") if tag not in ("a", "area") else ("src",)
        self.addresses += [value or "" for name, value in attrs if name in names]


def test_every_page_reads_offline(shown: Shown) -> None:
    pages = sorted(shown.pages.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        assert _Fetched(text).addresses == [], page
        assert "<script" not in text, page
        assert "url(" not in text, page
        assert "http://" not in text, page
        assert "https://" not in text, page


def test_a_topic_that_is_called_like_markup_is_text_on_every_page(case: Case) -> None:
    """Producers choose such names, and whoever writes to a store."""
    topic = "<img src=x onerror=alert(1)>"
    queue = case.root / "consumequeue" / topic / "0"
    shutil.copytree(case.root / "consumequeue" / "orders" / "0", queue)
    for path in queue.iterdir():
        flip(path, 7)
    result = case.validate(full=True)
    assert result.overall is Status.FAILURE
    assert any(topic in example for check in result.failures for example in check.examples)
    pages = [page.read_text() for page in case.output.rglob("*.html")]
    assert sum(escape(topic) in page for page in pages) >= 2
    for page in pages:
        assert "<img" not in page
        assert "Content-Security-Policy" in page
        assert "default-src 'none'" in page


def test_links_between_pages_lead_somewhere(shown: Shown) -> None:
    site = (shown.pages / DATA_DOCS).parent

    class Links(HTMLParser):
        found: tuple[str, ...] = ()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += tuple(v for n, v in attrs if tag == "a" and n == "href" and v)

    for page in (shown.pages / "report.html", *site.rglob("*.html")):
        links = Links()
        links.feed(page.read_text())
        for link in links.found:
            if not link.startswith("#"):
                assert (page.parent / unquote(link)).is_file(), (page, link)


def test_the_project_opens_in_great_expectations(shown: Shown) -> None:
    from storage_engine.quality.engine import gx

    context = gx.get_context(mode="file", context_root_dir=str(shown.pages / DATA_DOCS_DIRECTORY / "gx"))
    assert {checkpoint.name for checkpoint in context.checkpoints.all()} >= {
        "store_segments",
        "across_ranges",
    }


def test_great_expectations_is_only_imported_when_it_runs() -> None:
    """It takes seconds, and every command and every DAG would pay for it."""
    said = "import sys, storage_engine.quality.validate; print('great_expectations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# What doesn't


@pytest.fixture
def judge_plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call this to let validations judge by the rules alone from then on, in a tenth of the time."""

    def switch() -> None:
        take_away(monkeypatch, QUALITY)

    return switch


AT_ONCE = (
    lose_a_segment,
    flip_a_bit_in_a_data_file,
    edit_a_receipt,
    point_an_entry_below_the_log,
    raise_the_checkpoint,
)
"""Faults of five fact tables."""
SAID_BY_OTHERS = (dig_a_hole, cut_a_data_file, drop_a_data_file_from_the_table, remove_a_receipt)
"""Faults of which another one breaks all rules that they break."""


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(AT_ONCE, id="five_at_once"),
        *(pytest.param((fault,), marks=pytest.mark.again, id=fault.__name__) for fault, _ in FAULTS),
    ],
)
def test_great_expectations_says_of_a_fault_what_the_rules_say(
    case: Case, faults: tuple[Callable[[Case], None], ...], judge_plainly: Callable[[], None]
) -> None:
    for fault in faults:
        fault(case)
    by_great_expectations = case.validate(full=True)
    judge_plainly()
    assert by_great_expectations.overall is Status.FAILURE
    assert by_great_expectations.checks == case.validate(full=True).checks
    for fault, expected in FAULTS:
        assert fault not in faults or expected <= failed(by_great_expectations)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(
            *row, marks=pytest.mark.again if row[0] in (*AT_ONCE, *SAID_BY_OTHERS) else (), id=row[0].__name__
        )
        for row in FAULTS
    ],
)
@pytest.mark.usefixtures("plainly")
def test_a_fault_is_named(case: Case, fault: Callable[[Case], None], expected: set[str]) -> None:
    fault(case)
    result = case.validate()
    assert result.overall is Status.FAILURE
    assert expected <= failed(result)
    named = [check for check in result.failures if check.expectation in expected]
    assert all(check.examples for check in named)


@pytest.mark.usefixtures("plainly")
def test_a_full_walk_finds_a_bad_frame_that_boundaries_do_not_touch(case: Case) -> None:
    flip(case.segment(5), 100)
    result = case.validate(None, full=True)
    assert {"ExpectFramesToBeWhole", "ExpectOverlapsToHoldTheSameBytes"} <= failed(result)


@pytest.mark.usefixtures("plainly")
def test_a_left_over_queue_file_is_only_a_warning(case: Case) -> None:
    """A broker deletes it by itself; nobody reads it."""
    queue = case.root / "consumequeue" / "orders" / "3"
    first = min(queue.iterdir())
    assert int(first.name) > 0
    shutil.copy(first, queue / f"{int(first.name) - 6000:020d}")
    data = bytearray((queue / f"{int(first.name) - 6000:020d}").read_bytes())
    for at in range(0, len(data), 20):
        struct.pack_into(">qi", data, at, 100 + at, 90)
    (queue / f"{int(first.name) - 6000:020d}").write_bytes(data)
    result = case.validate()
    assert result.overall is Status.WARNING
    (check,) = [c for c in result.checks if c.status is Status.WARNING]
    assert check.expectation == "ExpectDependentsToFollowTheLog"


@pytest.mark.usefixtures("plainly")
def test_what_the_journal_says_was_deleted_is_missed(case: Case) -> None:
    """The lake forgets everything: what was released is lost, though no gap shows in the store."""
    lake = open_lake(case.store.lake)
    lake.segments().delete("base_offset >= 0")
    with pytest.raises(LakeUnavailableError, match="storage-engine lake rebuild"):
        case.validate(None)
    stamp(case.store, "ann", "nothing of it can be brought back")
    result = case.validate(None)
    assert places(result)[0] == (0, Where.LOST, Status.FAILURE)
    assert "ExpectNoLostRanges" in failed(result)


@pytest.mark.usefixtures("plainly")
def test_rows_that_another_engine_rewrote_still_prove_their_segment(case: Case) -> None:
    table = open_lake(case.store.lake).messages()
    rows = table.scan(row_filter=f"segment_base_offset = {SEGMENT}").to_arrow()
    table.overwrite(rows, overwrite_filter=f"segment_base_offset = {SEGMENT}")
    result = case.validate()
    assert result.overall is Status.WARNING, result.failures
    (check,) = [c for c in result.checks if c.status is Status.WARNING]
    assert (check.expectation, check.unexpected_count) == ("ExpectRowsToBeWhereTheyWereProven", 1)
    assert any("prove the same bytes" in note for note in result.notes)


@pytest.mark.usefixtures("plainly")
def test_a_receipt_that_was_renewed_counts_and_the_chain_is_judged_with_the_one_before(case: Case) -> None:
    lake = open_lake(case.store.lake)
    table = lake.messages()
    table.overwrite(
        table.scan(row_filter=f"segment_base_offset = {SEGMENT}").to_arrow(),
        f"segment_base_offset = {SEGMENT}",
    )
    store_id = list_stores(lake)[0].store_id
    (renewed,) = reprove(lake, store_id, receipts(lake, store_id))
    result = case.validate(None, full=True)
    assert result.overall is Status.OK, result.failures
    counts = {check.expectation: check.checked_count for check in result.checks}
    assert counts["ExpectReceiptsToFormAChain"] == 8
    path = path_of(lake, renewed)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "ExpectDataFilesToMatchReceipts" in failed(case.validate(None, full=True))
