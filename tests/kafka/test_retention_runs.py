"""The rules of retention delete what Kafka's own classes deleted of the same logs."""

from __future__ import annotations

from collections import Counter

import pytest

from storage_engine.kafka.retention_rules import Rule, delete_old_segments
from tests.kafka.retention_runs import COUNT, VERSIONS, RetentionRun, check, kept_runs


@pytest.fixture(scope="module")
def runs() -> list[RetentionRun]:
    return kept_runs()


def test_the_rules_delete_what_the_broker_s_class_deleted(runs: list[RetentionRun]) -> None:
    assert Counter(run.version for run in runs) == dict.fromkeys(VERSIONS, COUNT)
    check(runs)


def test_the_kept_logs_ask_each_rule_and_each_guard(runs: list[RetentionRun]) -> None:
    rules = Counter[Rule]()
    stops = set()
    for run in runs:
        found = delete_old_segments(run.log, run.settings, run.now_ms)
        rules.update({one.rule for one in found.deletions})
        stops |= {halt.stop.value for halt in found.halts}
    assert all(rules[rule] > 100 for rule in Rule)
    assert stops >= {"off", "policy", "high-watermark", "empty", "future-timestamp", "kept", "end"}
    assert sum(run.copied and not run.settings.remote for run in runs) > 500 * len(VERSIONS)
    assert sum(run.deleted == tuple(one.base_offset for one in run.log.segments) for run in runs) > 20


@pytest.mark.parametrize("low", [0, -1])
def test_a_high_watermark_that_is_not_known_as_reached_frees_nothing(
    runs: list[RetentionRun], low: int
) -> None:
    for run in runs:
        log = run.log._replace(high_watermark=low)
        assert not delete_old_segments(log, run.settings, run.now_ms).deletions


def test_a_log_with_a_lower_high_watermark_loses_no_more(runs: list[RetentionRun]) -> None:
    for run in runs:
        log = run.log._replace(high_watermark=run.log.segments[len(run.log.segments) // 2].base_offset)
        found = [one.base_offset for one in delete_old_segments(log, run.settings, run.now_ms).deletions]
        if log.high_watermark <= run.log.high_watermark:
            assert tuple(found) == run.expected[: len(found)], run.line
        assert all(one < log.high_watermark for one in found), run.line
