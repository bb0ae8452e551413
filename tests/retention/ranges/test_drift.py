"""What others deleted is recorded once, and is ARCHIVED or LOST by what the lakes prove."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import (
    WATCH_RUN,
    Phase,
    Step,
    hold_memory,
    record_under_watch,
    untold_mends,
)
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.model.report.validation import Status, VerifyLevel, Where
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.quality.facts import collect_facts
from storage_engine.retention import steps
from storage_engine.retention.decisions import accept_loss, adopt
from storage_engine.retention.hold.holding import alarms_of, record_hold_drift
from storage_engine.retention.ranges.drift import gone_ranges, gone_spans
from storage_engine.retention.ranges.verification import verify_lake
from storage_engine.retention.report.report import build_report
from storage_engine.retention.store.context import Context, open_context
from storage_engine.retention.store.managed_store import ManagedStore

pytestmark = pytest.mark.slow

SIZE = 1048576
GONE = Drift(
    DriftKind.SEGMENT_GONE, "no run deleted them, of topics: orders.", "commitlog", 0, 2 * SIZE, ("orders",)
)
RESTARTED = Drift(DriftKind.BROKER_RESTARTED, "it began again.")


def archived(store: ManagedStore, segments: int) -> None:
    """Archive the log's first segments."""
    steps.archive_sealed(
        store, "ahead", lambda jobs: steps.archive(store, "ahead", jobs), budget_bytes=segments * SIZE
    )


def record(store: ManagedStore, *found: Drift) -> Context:
    context = open_context(store)
    record_hold_drift(context, HoldStatus(held=True, disturbances=found))
    return context


def events(context: Context) -> list[str]:
    found = context.journal.store_events(context.record.store_id, Step.DRIFT, Phase.RESULT)
    return [event.payload["disturbance"]["kind"] for event in found]


def ranges_of(context: Context, *found: Drift) -> list[tuple[int, int, Where, Status]]:
    rows = gone_ranges(context.journal, context.record, context.store, found)
    return [(row.start_offset, row.end_offset, row.where, row.status) for row in rows]


def test_a_disturbance_is_taken_down_once_until_the_hold_is_renewed(
    managed: Callable[..., ManagedStore],
) -> None:
    store = managed()
    context = record(store, RESTARTED)
    record(store, RESTARTED, GONE)
    assert events(context) == ["broker-restarted", "segment-gone"]
    context.save(context.run(WATCH_RUN), Step.HOLD, HoldStatus(held=True), 0)
    record(store, RESTARTED)
    assert events(context) == ["broker-restarted", "segment-gone", "broker-restarted"]


def test_what_a_renewal_finds_is_recorded_by_what_remembers_the_hold(
    managed: Callable[..., ManagedStore],
) -> None:
    context = record(managed(), RESTARTED)
    memory = hold_memory(context.journal, context.record.store_id)
    memory.record_drift(())
    memory.record_drift((RESTARTED, GONE))
    assert events(context) == ["broker-restarted", "segment-gone"]


def test_what_was_given_up_is_alarmed_on_by_the_next_visit_alone(
    managed: Callable[..., ManagedStore],
) -> None:
    store = managed()
    given_up = replace(GONE, kind=DriftKind.GIVEN_UP, detail="given up for space.")
    context = record(store, given_up)
    assert untold_mends(context.journal, context.record) == (given_up,)
    (alarm,) = alarms_of(context, HoldStatus(held=True, disturbances=(given_up,)))
    assert f"[0, {2 * SIZE}) is LOST" in alarm
    context.save(context.run(WATCH_RUN), Step.HOLD, HoldStatus(held=True, disturbances=(given_up,)), 0)
    assert untold_mends(context.journal, context.record) == ()


def test_a_mend_is_told_once_also_one_that_is_recorded_while_a_run_looks_at_the_hold(
    managed: Callable[..., ManagedStore],
) -> None:
    store = managed()
    context = open_context(store)

    def mend(path: str) -> Drift:
        mended = Drift(DriftKind.FENCE_MENDED, f"{path}: touched.", "commitlog")
        record_under_watch(context.journal, context.record, [mended])
        return mended

    def tell(*meanwhile: str) -> tuple[Drift, ...]:
        """A run's look at the hold."""
        untold = untold_mends(context.journal, context.record)
        more = tuple(mend(path) for path in meanwhile)
        assert len(more) == len(meanwhile)
        context.save(context.run(WATCH_RUN), Step.HOLD, HoldStatus(held=True, disturbances=untold), 0)
        return untold

    first = mend("first")
    assert tell("meanwhile") == (first,)
    (missed,) = tell()
    assert missed.detail == "meanwhile: touched."
    assert tell() == ()
    # The same file, touched in the same way, is news once more.
    assert mend("first") == first
    assert tell() == (first,)
    assert tell() == ()


def test_what_is_proven_is_archived_and_the_rest_is_lost(managed: Callable[..., ManagedStore]) -> None:
    store = managed()
    archived(store, 1)
    context = record(store, GONE)
    assert ranges_of(context, RESTARTED, GONE) == [
        (0, SIZE, Where.ARCHIVED, Status.OK),
        (SIZE, 2 * SIZE, Where.LOST, Status.FAILURE),
    ]
    restarted, gone = alarms_of(context, HoldStatus(held=True, disturbances=(RESTARTED, GONE)))
    assert restarted == "broker-restarted: it began again."
    assert f"[0, {SIZE}) is ARCHIVED, [{SIZE}, {2 * SIZE}) is LOST" in gone


def test_a_damaged_archive_proves_nothing(managed: Callable[..., ManagedStore]) -> None:
    store = managed()
    archived(store, 2)
    (first, *_) = sorted((Path(store.report_dir).parent / "lake").rglob("*commitlog-0000*.parquet"))
    first.write_bytes(first.read_bytes()[:-1])
    (lost, kept) = ranges_of(record(store, GONE), GONE)
    assert (lost[2:], kept[2]) == ((Where.LOST, Status.FAILURE), Where.ARCHIVED)


def test_what_an_unreachable_lake_has_is_not_taken_for_lost(managed: Callable[..., ManagedStore]) -> None:
    store = managed()
    archived(store, 1)
    context = record(store, GONE)
    shutil.rmtree(Path(store.report_dir).parent / "lake")
    assert ranges_of(context, GONE) == [
        (0, SIZE, Where.ARCHIVED, Status.WARNING),
        (SIZE, 2 * SIZE, Where.UNKNOWN, Status.FAILURE),
    ]


def test_what_a_run_of_ours_deleted_did_not_go_without_us(
    planned: Callable[..., ManagedStore],
) -> None:
    store = planned()
    steps.archive_planned(store, "r", lambda jobs: steps.archive(store, "r", jobs))
    steps.release(store, "r")
    rows = ranges_of(record(store, GONE), GONE)
    assert {row[2] for row in rows} == {Where.ARCHIVED}


def test_validation_and_report_have_what_is_lost_with_its_topics(
    managed: Callable[..., ManagedStore],
) -> None:
    store = managed()
    archived(store, 1)
    context = record(store, GONE)
    for base in (0, SIZE):
        (Path(store.root) / "commitlog" / f"{base:020d}").unlink()
    found = {row.start_offset: row for row in collect_facts(store, None, full=False, with_lake=True).ranges}
    assert found[0].where is Where.ARCHIVED
    assert (found[SIZE].where, found[SIZE].status) == (Where.LOST, Status.FAILURE)
    assert "orders" in found[SIZE].detail
    context.save(context.run(WATCH_RUN), Step.HOLD, HoldStatus(held=True, disturbances=(GONE,)), 0)
    (alarm,) = build_report(store, WATCH_RUN).alarms
    assert f"[{SIZE}, {2 * SIZE}) is LOST" in alarm


def test_a_loss_that_grew_is_one_range(managed: Callable[..., ManagedStore]) -> None:
    store = managed()
    record(store, GONE)
    grown = replace(GONE, detail="no run deleted them, of topics: orders, tx.", end_offset=3 * SIZE)
    context = record(store, grown)
    (span,) = gone_spans(context.journal, context.record)
    assert (span.start_offset, span.end_offset, span.others) == (0, 3 * SIZE, grown.detail)


def test_a_new_lineage_closes_what_was_lost_before(managed: Callable[..., ManagedStore]) -> None:
    store = managed()
    record(store, GONE)
    adopt(store, "a person", "restored from a backup", force=True)
    context = open_context(store)
    (span,) = gone_spans(context.journal, context.record)
    assert "in lineage 1, which is closed" in span.excused


def test_without_an_archive_all_that_went_is_lost(managed: Callable[..., ManagedStore]) -> None:
    store = managed(policy=Policy(archive=ArchiveMode.OFF))
    assert ranges_of(record(store, GONE), GONE) == [(0, 2 * SIZE, Where.LOST, Status.FAILURE)]


@pytest.mark.parametrize(("own_segments", "is_renewed"), [(1, False), (0, False), (0, True)])
def test_what_another_broker_of_the_pair_archived_is_no_loss(
    managed: Callable[..., ManagedStore], tmp_path: Path, own_segments: int, is_renewed: bool
) -> None:
    """Whichever of this store's own receipts say which log it is, and though the other's are new by now."""
    one = managed(overrides={"brokerClusterName": "c", "brokerName": "b"})
    other = replace(one, name="other", root=str(tmp_path / "other"))
    shutil.copytree(one.root, other.root)
    if own_segments:
        archived(other, own_segments)
    archived(one, 7)
    archived(other, 7)
    if is_renewed:
        messages = open_lake(one.lakes[0]).messages()
        messages.overwrite(messages.scan().to_arrow())
        (renewed,) = verify_lake(one.lakes[0], one.journal_url, VerifyLevel.BYTES, renew=True)
        assert renewed.renewed_count == 7
    gone = replace(GONE, start_offset=2 * SIZE, end_offset=4 * SIZE)
    for number in range(4):
        (Path(other.root) / "commitlog" / f"{number * SIZE:020d}").unlink()
    context = record(other, gone)
    assert ranges_of(context, gone) == [(2 * SIZE, 4 * SIZE, Where.ARCHIVED, Status.OK)]
    with pytest.raises(BadInputError, match="LOST or UNKNOWN are: none"):
        accept_loss(other, 2 * SIZE, 4 * SIZE, "ann", "it is gone")
