"""validate: a verdict on store and lake, with a page, and a name for what is wrong."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from storage_engine.core.extras import QUALITY
from storage_engine.quality.expectation_rules import NOTE
from storage_engine.retention.store.managed_store import DATA_DOCS
from tests.extras import take_away

pytestmark = pytest.mark.slow

MIB = 1 << 20


def test_a_store_alone_is_judged_without_a_lake(cli, archived, tmp_path, monkeypatch, files) -> None:
    monkeypatch.chdir(tmp_path)
    before = files(archived.store)
    result = cli("validate", archived.store)
    assert result.exit_code == 0
    assert "\nValidation (boundaries): OK\n" in result.out
    assert "the lake was not asked" in result.out
    (page,) = (tmp_path / "storage-engine-reports").glob(f"{archived.store.name}-*/report.html")
    assert str(page.relative_to(tmp_path)) in result.out
    assert files(archived.store) == before


def test_store_and_lake_are_judged_together(cli, archived, tmp_path) -> None:
    words = ("validate", archived.store, "--lake", archived.lake, "--full", "--output", tmp_path / "out")
    result = cli(*words, "--json")
    assert result.exit_code == 0
    assert result.json["overall"] == "OK"
    assert [(row["start_offset"], row["where"]) for row in result.json["ranges"]] == [
        (0, "BOTH"),
        (7 * MIB, "LOCAL"),
    ]
    written = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert {"kind": "validate", "version": 1, **written} == result.json


def test_without_great_expectations_the_same_rules_judge_and_that_is_said_once(
    cli, archived, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "out"
    words = ("validate", archived.store, "--lake", archived.lake, "--output", out)
    with_it, checks = cli(*words), json.loads((out / "validation.json").read_text())["checks"]
    assert (out / DATA_DOCS).exists()
    assert NOTE not in with_it.out + (out / "report.html").read_text()
    take_away(monkeypatch, QUALITY)
    without = cli(*words)
    assert without.exit_code == with_it.exit_code == 0
    assert json.loads((out / "validation.json").read_text())["checks"] == checks
    assert without.out.count(NOTE) == 1
    page = html.unescape((out / "report.html").read_text())
    assert page.count(NOTE) == 1
    assert "Data Docs</a>" not in page
    assert not (out / "great_expectations").exists()


def test_a_hole_fails_the_validation_and_is_named(cli, store_copy, tmp_path) -> None:
    store: Path = store_copy("edge-frames")
    (store / "commitlog" / f"{MIB:020d}").unlink()
    result = cli("validate", store, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert "FAILURE ExpectSegmentsToBeBackToBack" in result.out
    assert "\n→ The log has a hole or an overlap. Compare the named files with a replica" in result.out


def test_no_store_is_no_validation(cli, tmp_path) -> None:
    result = cli("validate", tmp_path / "none", "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert f"{tmp_path}/none" in result.err
    assert not (tmp_path / "out").exists()


def test_options_of_rows_that_contradict_each_other_are_named(cli, archived) -> None:
    for words, said in (
        (("--spark", "local[1]"), "--spark: expected --rows with it"),
        (("--rows",), "--rows: expected --lake with it"),
        (("--rows", "--full", "--lake", archived.lake), "--rows: expected --lake with it, and no --full"),
    ):
        result = cli("validate", archived.store, *words)
        assert result.exit_code == 2
        assert said in result.err


@pytest.mark.again
@pytest.mark.integration
def test_rows_of_a_lake_are_judged_in_spark(cli, archived, tmp_path) -> None:
    words = ("validate", archived.store, "--lake", archived.lake, "--output", tmp_path / "out", "--rows")
    result = cli(*words, "--spark", "local[1]", "--json")
    assert result.exit_code == 0, result.err
    assert (result.json["overall"], result.json["scope"]) == ("OK", "rows")
    assert {check["suite"] for check in result.json["checks"]} == {"rows_segments", "rows_queues"}
    assert (tmp_path / "out" / DATA_DOCS).is_file()
