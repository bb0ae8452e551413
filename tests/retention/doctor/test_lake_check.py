"""A lake is judged by whether it opens, by what it proves, and by the disk that it lies on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from storage_engine.core.clock import DAY_MS
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.model.report.diagnosis import Severity
from storage_engine.retention.doctor.lake_check import (
    CheckedLake,
    find_other_lake,
    has_segments_of,
    lake_findings,
    lake_text,
    misplaced_findings,
)
from storage_engine.retention.store.stamp import Stamp
from tests.retention.doctor.stores import GIB, NOW_MS, disk

WELL = CheckedLake("lake", "/lake", "", None, "toy", ("s",), 7, disk(50), NOW_MS - DAY_MS, 0)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, []),
        ({"refused": "its disk isn't mounted."}, ["lake-refused"]),
        ({"copy_of": "another"}, ["lake-copy"]),
        ({"ignored": (("segments", ("location",)), ("", ("s3.endpoint",)))}, ["lake-properties"] * 2),
        ({"broker": "other"}, ["lake-broker"]),
        ({"broker": None}, []),
        ({"faults": 2}, ["lake-faults"]),
        ({"verified_at_ms": None}, ["lake-unverified"]),
        ({"verified_at_ms": NOW_MS - 40 * DAY_MS}, ["lake-unverified"]),
        ({"verified_at_ms": None, "segments": 0}, []),
        ({"disk": disk(96)}, ["lake-full"]),
        ({"disk": disk(95, total_gib=40)}, ["lake-full"]),
        ({"disk": None}, []),
    ],
)
def test_each_fault_has_its_kind(change: dict[str, Any], kinds: list[str]) -> None:
    lake = replace(WELL, **change)
    assert [one.kind for one in lake_findings([lake], "toy", GIB, NOW_MS)] == kinds


def test_what_tables_and_catalogs_say_and_nobody_follows_is_named_with_its_cure() -> None:
    said = (("segments", ("location", "s3.endpoint")), ("messages", ("location",)), ("", ("s3.signer",)))
    table, location, catalog = lake_findings([replace(WELL, ignored=said)], "toy", GIB, NOW_MS)
    assert (
        "table segments of the lake /lake says location, s3.endpoint, which this package ignores"
        in table.what
    )
    assert "ALTER TABLE segments UNSET TBLPROPERTIES ('s3.endpoint'" in table.advice
    assert location.advice == "bring the table back to its place: storage-engine lake relocate"
    assert "the catalog of the lake /lake says s3.signer" in catalog.what
    names = tuple(f"p{number}" for number in range(9))
    (many,) = lake_findings([replace(WELL, ignored=(("messages", names),))], "toy", GIB, NOW_MS)
    assert "p4 and 4 more, which" in many.what


def test_what_does_not_fit_any_more_is_told_once() -> None:
    (finding,) = lake_findings([replace(WELL, disk=disk(95))], "toy", 6 * GIB, NOW_MS)
    assert finding.what == "6.0 GiB have to be archived, the disk of the lake has 5.0 GiB left"


def test_a_lake_is_told_in_a_line() -> None:
    assert lake_text(WELL, NOW_MS) == "/lake: 7 segments of this store, verified 1 d ago, 50.0 GiB free"
    assert lake_text(replace(WELL, refused="x"), NOW_MS) == "/lake: can't be used"
    assert lake_text(replace(WELL, verified_at_ms=None, disk=None, segments=1), NOW_MS) == (
        "/lake: 1 segment of this store, never verified"
    )


def test_a_store_that_no_journal_knows_is_found_in_a_lake_by_stamp_or_place() -> None:
    lake, stamp = replace(WELL, store_ids=("id",), roots=("/s",)), Stamp("id", 1, "here", "/s")
    assert has_segments_of([WELL, lake], stamp, "/s")
    assert has_segments_of([WELL, lake], None, "/s")
    assert not has_segments_of([WELL, lake], replace(stamp, store_id="another"), "/s")
    assert not has_segments_of([WELL, lake], None, "/t")


def test_a_lake_without_any_of_a_store_that_its_stamp_places_elsewhere_is_urgent() -> None:
    head = LakeHead("first", "file:///my%20lake/warehouse", 6, "hash")
    heads = (head, replace(head, sequence=4))
    other = replace(WELL, lake_id="other", store_ids=("another",))
    assert find_other_lake("id", heads, [other]) == head
    (finding,) = misplaced_findings(find_other_lake("id", heads, [other]), [other])
    assert (finding.kind, finding.severity) == ("other-lake", Severity.URGENT)
    assert "into lake first (/my lake), as its stamp or its journal says" in finding.what
    assert "; this lake, /lake, has none of it" in finding.what
    assert finding.advice.startswith("name that lake: --lake '/my lake'")
    for fine in (
        [replace(other, store_ids=("id",))],  # such as a copy that was promoted
        [other, replace(other, lake_id="first")],  # what it lacks then is told elsewhere
        [replace(other, copy_of="first")],
        [other, replace(other, refused="gone")],  # nobody knows what that one has
        [],
    ):
        assert find_other_lake("id", heads, fine) is None
    assert find_other_lake(None, heads, [other]) is None
    assert find_other_lake("id", (), [other]) is None
    assert not list(misplaced_findings(None, [other]))
