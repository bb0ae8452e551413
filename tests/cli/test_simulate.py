"""simulate at the shell: from a real store's files and its journal's samples, changing nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from storage_engine.core.extras import CHARTS
from storage_engine.journal.journal import Journal
from storage_engine.journal.records import Extent
from storage_engine.model.disk import DiskUsage
from storage_engine.model.store import TopicDay
from tests.extras import take_away

MIB = 1 << 20
HOUR_NS = 3_600 * 10**9


@pytest.fixture
def aged(store: Path) -> Path:
    """A store whose segments were written six hours apart."""
    now_ns = time.time_ns()
    for age, file in enumerate(sorted((store / "commitlog").iterdir(), reverse=True)):
        os.utime(file, ns=(now_ns - age * 6 * HOUR_NS,) * 2)
    return store


def test_todays_course_stands_beside_the_changed_one_and_nothing_is_changed(cli, aged, files) -> None:
    before = files(aged)
    done = cli(
        "simulate", aged, "--set", "fileReservedTime=24", "--days", "3", "--time-zone", "Asia/Shanghai"
    )
    assert done.exit_code == 0, done.err
    assert "Changed: fileReservedTime 24\n" in done.out
    assert "by the times of its segments" in done.out
    assert "messages stay at least" in done.out
    assert "Day by day, in Asia/Shanghai" in done.out
    assert "Today: 72 h fit this disk at this ingest" in done.out
    assert "Changed: 24 h fit this disk at this ingest" in done.out
    assert files(aged) == before


def test_json_has_both_courses_with_what_they_rest_on(cli, aged) -> None:
    asked = ["--set", "diskMaxUsedSpaceRatio=99", "--disk-bytes", "3TB", "--ingest-factor", "2"]
    found = cli("simulate", aged, *asked, "--json").json
    assert (found["kind"], found["version"], found["ingest_from"]) == ("simulate", 1, "segments")
    today, changed = found["today"], found["changed"]
    assert today["settings"]["diskMaxUsedSpaceRatio"] == "75"
    assert changed["settings"]["diskMaxUsedSpaceRatio"] == "95"
    assert (changed["disk_bytes"], changed["ingest"]["factor"]) == (3 * 10**12, 2)
    assert today["ingest"]["bytes_per_day"] == pytest.approx(4 * MIB, rel=0.3)
    course = today["course"]
    assert len(course["times_ms"]) == len(course["used_percent"]) == len(course["retention_ms"]) <= 2_000
    assert course["times_ms"][0] == found["now_ms"]
    assert course["times_ms"][-1] == found["end_ms"] == found["now_ms"] + 14 * 86_400_000
    assert {run["causes"][0] for run in course["deletions"]} == {"time-up"}
    assert {advice["kind"] for advice in changed["advice"]} >= {"fits", "ratio-too-high"}


def test_without_a_question_there_is_todays_course_alone(cli, aged) -> None:
    done = cli("simulate", aged, "--days", "2")
    assert "changed" not in done.out.lower()
    assert cli("simulate", aged, "--days", "2", "--json").json["changed"] is None


def test_a_journals_samples_tell_the_ingest_and_the_share_of_the_trace_topic(cli, aged, lake) -> None:
    assert cli("archive", aged, "--lake", lake).exit_code == 0
    journal = Journal(f"sqlite:///{lake / 'journal.db'}")
    record = journal.find_store(os.path.realpath(aged), None)
    assert record is not None
    now_ms = time.time_ns() // 10**6
    for hours in range(48, -1, -1):
        extent = Extent(0, (100 - hours) * MIB)
        journal.add_sample(record.store_id, [DiskUsage("/d", 40)], now_ms - hours * 3_600_000, extent=extent)
    today = now_ms // 86_400_000
    trace = TopicDay("RMQ_SYS_TRACE_TOPIC", today, 300 * MIB, 1)
    journal.save_topic_days(record.store_id, {("other", 0): [trace, TopicDay("orders", today, 700 * MIB, 1)]})
    found = cli("simulate", aged, "--lake", lake, "--json").json
    assert found["ingest_from"] == "samples"
    assert found["today"]["ingest"]["bytes_per_day"] == pytest.approx(24 * MIB, rel=0.01)
    (advice,) = [one for one in found["today"]["advice"] if one["kind"] == "trace-topic"]
    assert 25 < advice["numbers"]["share_percent"] <= 30
    assert "RMQ_SYS_TRACE_TOPIC takes" in cli("simulate", aged, "--lake", lake).out


def test_an_ingest_that_nothing_tells_has_to_be_said(cli, store) -> None:
    now_ns = time.time_ns()
    for file in (store / "commitlog").iterdir():
        os.utime(file, ns=(now_ns + HOUR_NS, now_ns + HOUR_NS))
    refused = cli("simulate", store)
    assert (refused.exit_code, "Name the ingest: --ingest-per-day SIZE" in refused.err) == (2, True)
    done = cli("simulate", store, "--ingest-per-day", "5GB", "--json").json
    assert (done["ingest_from"], done["today"]["ingest"]["bytes_per_day"]) == ("person", 5 * 10**9)
    assert done["changed"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "fileReservedTim=3"), "Did you mean fileReservedTime?"),
        (("--set", "fileReservedTime=soon"), "expected a whole number"),
        (("--set", "listenPort=3"), "expected one of fileReservedTime, deleteWhen"),
        (("--disk-bytes", "0"), "expected at least one byte"),
        (("--ingest-factor", "-1"), "expected 0 to 1,000,000, found -1"),
        (("--ingest-factor", "nan"), "expected 0 to 1,000,000, found nan"),
        (("--days", "0"), "1<=x<=366"),
    ],
)
def test_what_can_not_be_asked_is_one_error(cli, aged, words: tuple[str, ...], said: str) -> None:
    done = cli("simulate", aged, *words)
    assert (done.exit_code, said in done.err) == (2, True), done.err


def test_a_store_on_several_disks_is_refused_with_the_reason(cli, aged, tmp_path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={aged}/commitlog,{tmp_path}/second\n")
    (tmp_path / "second").mkdir()
    done = cli("simulate", aged, "--broker-conf", conf)
    assert (done.exit_code, "several disks" in done.err) == (2, True), done.err


def test_pictures_are_new_files_outside_of_the_store(cli, aged, tmp_path) -> None:
    svg = tmp_path / "course.svg"
    assert f"Drawn: {svg}" in cli("simulate", aged, "--set", "fileReservedTime=24", "--svg", svg).out
    root = ElementTree.parse(svg).getroot()
    assert "fileReservedTime 24" in "".join(root.itertext())
    before = svg.read_bytes()
    again = cli("simulate", aged, "--svg", svg)
    assert (again.exit_code, "expected no file yet" in again.err, svg.read_bytes()) == (2, True, before)
    inside = cli("simulate", aged, "--svg", aged / "commitlog" / "course.svg")
    assert (inside.exit_code, "outside a broker's store" in inside.err) == (2, True)


@pytest.mark.skipif(not CHARTS.is_installed, reason="needs the extra charts")
def test_a_png_is_drawn_beside_the_svg(cli, aged, tmp_path) -> None:
    done = cli("simulate", aged, "--svg", tmp_path / "a.svg", "--png", tmp_path / "a.png")
    assert done.exit_code == 0, done.err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.svg").exists()


def test_a_png_without_the_extra_is_one_error_that_names_it(cli, aged, tmp_path, monkeypatch) -> None:
    take_away(monkeypatch, CHARTS)
    done = cli("simulate", aged, "--svg", tmp_path / "a.svg", "--png", tmp_path / "a.png")
    assert done.exit_code == 2
    assert (
        "simulate --png needs the picture library resvg_py: pip install 'storage-engine[charts]'" in done.err
    )
    assert sorted(tmp_path.glob("a.*")) == []
