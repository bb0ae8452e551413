"""What consumers have not read of what only the shield has is said by plan, lag, release and report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.cli.output.lag import in_process_lag
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import LagPolicy, Policy, ShieldMode
from storage_engine.retention import steps
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.shield.index import look_at_shield, shield_path
from storage_engine.shield.links import drop_links
from tests.retention.consumers import move_group
from tests.rounds import later

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
GONE = "37 unread messages of cg_orders in orders are gone from the broker and only in the shield"
NOTHING = PlanRequest()
MIB = 1 << 20


def lose(store: ManagedStore, *numbers: int) -> None:
    """Delete segments as somebody else does, once the shield has them."""
    assert tend_shield(store).links
    for number in numbers:
        (Path(store.root) / "commitlog" / f"{number * MIB:020d}").unlink()


@pytest.mark.again
@pytest.mark.parametrize("lag_policy", [LagPolicy.BLOCK, *later(LagPolicy.WARN)])
def test_plan_lag_and_report_say_it(managed: Make, lake_dir: Path, lag_policy: LagPolicy) -> None:
    store = managed(policy=Policy(shield=ShieldMode.ON, lag_policy=lag_policy))
    assert steps.make_plan(store, "before", NOTHING).unread == ()
    lose(store, 0, 1, 2, 3, 4)
    (row,) = preview(store, NOTHING).unread.shielded
    assert (row.group, row.topic, row.messages) == ("cg_orders", "orders", 37)
    assert in_process_lag(store, ()).source.notices == (GONE,)
    (line,) = steps.make_plan(store, "r", NOTHING).unread
    assert line.startswith(f"{GONE} until a lake has them. To get them then: storage-engine export --lake ")
    assert f"{lake_dir} --topic orders --from-time '20" in line
    assert f"WARNING {GONE}" in report_text(build_report(store, "r"))
    assert tend_shield(store).archived == tuple(number * MIB for number in range(5))
    assert steps.make_plan(store, "after", NOTHING).unread == ()


def test_a_release_says_it_beside_what_it_takes_itself(managed: Make) -> None:
    store = managed(policy=Policy(shield=ShieldMode.ON))
    move_group(store, lambda _: 0)
    whole = preview(store, PlanRequest(manual=True, max_segments=5)).unread.rows
    lose(store, 0, 1, 2)
    steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=2))
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    unread = steps.release(store, "r").unread
    gone, went, all_ = (
        next(row.messages or 0 for row in rows if row.group == "cg_orders")
        for rows in (unread.shielded, unread.rows, whole)
    )
    assert gone + went == all_
    assert min(gone, went) > 0


def test_of_runs_with_a_gap_between_them_only_theirs_is_counted(managed: Make) -> None:
    store = managed(policy=Policy(shield=ShieldMode.ON))
    move_group(store, lambda _: 0)
    lose(store, 0, 1, 2, 3, 4)
    whole = {row.group: row.messages for row in preview(store, NOTHING).unread.shielded}
    (middle,) = (seen for seen in look_at_shield(store.root).links if seen.link.base_offset == 2 * MIB)
    drop_links(store.root, [middle.link.name])
    left = {row.group: row.messages for row in preview(store, NOTHING).unread.shielded}
    assert 0 < (left["cg_orders"] or 0) < (whole["cg_orders"] or 0)


def test_a_shield_that_can_not_be_read_is_unknown_and_said(managed: Make) -> None:
    store = managed(policy=Policy(shield=ShieldMode.ON))
    lose(store, 0)
    (shield_path(store.root) / "index.json").write_text("{")
    said = "consumers' unread messages that only the shield has are not completely known: "
    seen = preview(store, NOTHING)
    assert seen.unread.shielded_error
    assert any("expected the record of the shield" in notice for notice in seen.plan.notices)
    (notice,) = in_process_lag(store, ()).source.notices
    assert notice.startswith(said)


def test_a_policy_that_ignores_consumers_says_nothing(managed: Make) -> None:
    store = managed(policy=Policy(shield=ShieldMode.ON, lag_policy=LagPolicy.IGNORE))
    lose(store, 0, 1, 2, 3, 4)
    assert preview(store, NOTHING).unread.shielded == ()
