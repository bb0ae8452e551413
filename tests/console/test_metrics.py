"""What a journal knows of stores, as metrics: what isn't known has no sample."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy import event

from storage_engine.cli.metrics import Collector
from storage_engine.console.metrics import METRICS, PREFIX, MetricSample, read_samples, samples_of
from storage_engine.core.clock import clock_ms
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal, ReportRow
from storage_engine.journal.reading.queries import JournalReader
from storage_engine.journal.records import REPORT_VERSION
from storage_engine.model.disk import DiskUsage
from storage_engine.model.lag import GroupLag
from storage_engine.model.plan import PlanRequest
from tests.console.conftest import NAMES, NOW_MS
from tests.services.console_course import clock_at

HOUR_MS = 3_600_000
GIB = 1 << 30
OF_LOOKS = {
    "disk_used_ratio",
    "disk_usable_bytes",
    "retention_seconds",
    "archive_lag_bytes",
    "archive_lag_seconds",
    "due_bytes",
    "due_unproven_bytes",
    "time_to_loss_seconds",
    "lagging_groups",
    "urgent_findings",
    "alarms",
    "lost_ranges",
}


def of(samples: list[MetricSample], store: str) -> dict[str, float]:
    return {one.metric: one.value for one in samples if one.store == store}


def test_what_the_journal_knows_of_a_store_is_told(past: JournalReader) -> None:
    samples = list(read_samples(past, None, NOW_MS))
    assert {one.store for one in samples} == {*NAMES}
    found = of(samples, "store_orders")
    assert found.keys() >= OF_LOOKS | {"look_timestamp_seconds", "run_timestamp_seconds", "run_failed"}
    assert found["urgent_findings"] > 0
    assert found["lost_ranges"] == 0
    assert (found["due_bytes"], found["due_unproven_bytes"]) == (3 * GIB, GIB)
    assert found["archive_lag_seconds"] > 0
    assert found["time_to_loss_seconds"] == 5 * 3600
    assert found["validation_failed"] == 0
    assert 0 < NOW_MS / 1000 - found["validation_timestamp_seconds"] < 26 * 3600
    assert 72 * 3600 <= found["retention_seconds"] <= 96 * 3600
    assert 0 <= NOW_MS / 1000 - found["look_timestamp_seconds"] < 3600
    paths = {one.path for one in samples if one.metric == "disk_used_ratio"}
    assert all(path.startswith("/data/") for path in paths)
    assert {one.metric for one in samples if one.path} == {"disk_used_ratio", "disk_usable_bytes"}
    for store in NAMES:
        assert len([one for one in samples if one.store == store]) <= 30


def test_a_store_that_nobody_named_is_asked_for_by_its_path(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    Journal(url).add_sample(Journal(url).add_store("/data/seen", "rocketmq").store_id, (), NOW_MS, None)
    collector = Collector((JournalReader(url),), ("/data/seen",))
    collector.check()
    samples = [sample for family in collector.collect() for sample in family.samples]
    assert [one.labels["store"] for one in samples if "store" in one.labels] == ["/data/seen"]


@pytest.mark.parametrize(("outcome", "failed"), [("failed", 1), ("released-in-part", 1), ("blocked", 0)])
def test_a_run_that_refused_a_log_is_told_as_one_that_failed(
    past: JournalReader, outcome: str, failed: int
) -> None:
    (summary,) = past.summaries(["store_orders"], NOW_MS)
    assert summary.last_run is not None
    ended = replace(summary, last_run=replace(summary.last_run, outcome=outcome), lost_ranges=None)
    found = {one.metric: one.value for one in samples_of(ended, None, None, NOW_MS)}
    assert found["run_failed"] == failed
    assert "lost_ranges" not in found


def test_only_the_stores_that_are_asked_for_are_told(past: JournalReader) -> None:
    assert {one.store for one in read_samples(past, ["store_payments"], NOW_MS)} == {"store_payments"}


@pytest.mark.parametrize("later_ms", [2 * HOUR_MS, -2 * HOUR_MS])
def test_of_an_old_look_or_one_of_the_future_only_its_time_is_told(
    past: JournalReader, later_ms: int
) -> None:
    found = of(list(read_samples(past, None, NOW_MS + later_ms)), "store_orders")
    assert found.keys() & OF_LOOKS == set()
    assert "look_timestamp_seconds" in found


def test_what_is_not_known_has_no_sample(tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'journal.db'}")
    seen = journal.add_store("/data/seen", "rocketmq", name="seen")
    journal.add_store("/data/new", "rocketmq", name="new")
    unknown = DiskUsage("/data/seen", None, None, None, "can't be measured")
    journal.add_sample(seen.store_id, (unknown,), NOW_MS, None)
    # A group's place of an earlier look, which this one could not tell, and what couldn't be told.
    told = {"lag_error": "no broker", "due": None, "lost": None, "lost_ranges": None, "page_errors": ("it",)}
    with clock_at(NOW_MS):
        journal.save_findings(seen.store_id, {"lag_error": ""}, (GroupLag("a", 5, 0, 9, HOUR_MS),))
        journal.save_findings(seen.store_id, told, None)
    # Its only run validated nothing.
    run = journal.begin_run(seen.store_id, "run", PlanRequest())
    journal.save_report(run, ReportRow(REPORT_VERSION, "done", (), 0, 0, b"{}", validation=""))
    samples = list(read_samples(JournalReader(f"sqlite:///{tmp_path / 'journal.db'}"), None, NOW_MS))
    assert of(samples, "new") == {}
    found = of(samples, "seen")
    assert found.keys() == {"look_timestamp_seconds", "run_failed", "urgent_findings", "alarms"}
    assert found["look_timestamp_seconds"] == NOW_MS / 1000


def test_a_fresh_sample_makes_no_older_finding_and_no_older_lag_new(past: JournalReader) -> None:
    (summary,) = past.summaries(["store_orders"], NOW_MS)
    at_ms = NOW_MS + 2 * HOUR_MS
    # A sensor has looked now: it takes a sample, and finds nothing of what a monitor does.
    sampled = replace(summary, sampled_at_ms=at_ms)
    of_both = {"retention_seconds", "disk_used_ratio", "disk_usable_bytes"}
    for seen, more in (
        (sampled, set()),
        (replace(sampled, archive_lag_at_ms=at_ms), {"archive_lag_bytes", "archive_lag_seconds"}),
        (replace(sampled, found_at_ms=at_ms), OF_LOOKS - {"archive_lag_bytes", "archive_lag_seconds"}),
    ):
        found = {one.metric for one in samples_of(seen, None, None, at_ms)} & OF_LOOKS
        assert found == of_both | more


def test_what_is_due_may_be_known_where_no_lake_could_be_asked(tmp_path: Path) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'journal.db'}")
    seen = journal.add_store("/data/seen", "rocketmq", name="seen")
    journal.add_sample(seen.store_id, (), NOW_MS, None)
    due = {"size_bytes": 7, "unproven_bytes": None}
    with clock_at(NOW_MS):
        journal.save_findings(seen.store_id, {"due": due, "lost_ranges": 3}, None)
    found = of(
        list(read_samples(JournalReader(f"sqlite:///{tmp_path / 'journal.db'}"), None, NOW_MS)), "seen"
    )
    assert (found["due_bytes"], found["lost_ranges"], "due_unproven_bytes" in found) == (7, 3, False)


def test_prometheus_reads_what_is_given_and_the_page_names_each_metric(past: JournalReader) -> None:
    registry = CollectorRegistry()
    registry.register(Collector((past,), ()))
    text = generate_latest(registry).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families.keys() == {PREFIX + name for name in (*METRICS, "journal_readable")}
    labels = {frozenset(one.labels) for family in families.values() for one in family.samples}
    assert labels <= {frozenset({"store"}), frozenset({"store", "path"}), frozenset({"journal"})}
    page = (Path(__file__).parents[2] / "docs" / "alert.md").read_text()
    told = dict(re.findall(rf"^\| `{PREFIX}(\w+)` \| (.*) \|$", page, re.M))
    assert told.pop("journal_readable")
    assert told == METRICS
    for file in ("prometheus-alerts.yml", "grafana-dashboard.json"):
        text = (Path(__file__).parents[2] / "docs" / file).read_text()
        named = {*re.findall(rf"\b{PREFIX}\w+", text)}
        assert named, file
        assert named <= families.keys(), file


def test_the_dashboard_has_panels_that_grafana_can_place() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len({*cells}) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_a_journal_that_cannot_be_read_hides_no_other(past: JournalReader, tmp_path: Path) -> None:
    gone = JournalReader(f"sqlite:///{tmp_path / 'gone.db'}")
    readable, *others = Collector((gone, past), ()).collect()
    assert [one.value for one in readable.samples] == [0.0, 1.0]
    assert {one.labels["store"] for family in others for one in family.samples} == {*NAMES}


def test_a_scrape_asks_as_much_of_a_journal_however_many_stores_it_has(past: JournalReader) -> None:
    def asked(names: list[str] | None) -> int:
        statements: list[str] = []

        def keep(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            statements.append(statement)

        event.listen(past._engine, "before_cursor_execute", keep)
        try:
            assert list(read_samples(past, names, NOW_MS))
        finally:
            event.remove(past._engine, "before_cursor_execute", keep)
        return len(statements)

    assert asked(None) == asked(["store_orders"]) < 20


def test_two_stores_of_one_name_and_an_unknown_one_are_named_at_start(
    past: JournalReader, tmp_path: Path
) -> None:
    journal = Journal(f"sqlite:///{tmp_path / 'journal.db'}")
    journal.add_store("/data/other", "rocketmq", name="store_orders")
    other = JournalReader(f"sqlite:///{tmp_path / 'journal.db'}")
    with pytest.raises(BadInputError, match=r"store store_orders: expected one .* found 2"):
        Collector((past, other), ()).check()
    with pytest.raises(BadInputError, match=r"store nobody: expected one .* found 0"):
        Collector((past,), ("nobody",)).check()
    Collector((past, other), ("store_payments",)).check()
    # It comes after the start, and one of the two would stand for both.
    journal.add_sample(journal.all_stores()[0].store_id, (), clock_ms(), None)
    _, *families = Collector((past, other), ()).collect()
    told = {sample.labels["store"] for family in families for sample in family.samples}
    assert told == {*NAMES} - {"store_orders"}
