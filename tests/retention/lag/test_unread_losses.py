"""What consumers lose is said by plan, release and report, found again right before the deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.output.lag import in_process_lag
from storage_engine.exceptions import GateRefusedError
from storage_engine.model.lag import Unread, UnreadMessages
from storage_engine.model.plan import PlanRequest
from storage_engine.model.settings.policy import ArchiveMode, LagPolicy, Policy
from storage_engine.pages.report import render_page
from storage_engine.retention import steps
from storage_engine.retention.lag.lag_table import lag_part, merge
from storage_engine.retention.lag.unread_losses import unread_lines
from storage_engine.retention.plan.preview import preview
from storage_engine.retention.report.finishing import finish, report_json
from storage_engine.retention.report.report import build_report
from storage_engine.retention.report.report_text import report_text
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.rocketmq.store import broker as rocketmq
from tests.retention.consumers import move_group

pytestmark = pytest.mark.slow

Make = Callable[..., ManagedStore]
WOULD_BE = "37 unread messages of cg_orders in orders would be only in the lake if deleted"
ARE = "37 unread messages of cg_orders in orders are only in the lake now"


def test_a_plan_and_its_preview_say_what_consumers_would_lose(planned: Make, lake_dir: Path) -> None:
    store = planned("clean-stop", max_segments=5)
    plan = steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=5))
    assert plan.unread_messages == 37
    (line,) = plan.unread
    assert line.startswith(WOULD_BE)
    assert f"storage-engine export --lake {lake_dir} --topic orders --from-time '20" in line
    (row,) = preview(store, PlanRequest(manual=True, max_segments=5)).unread.rows
    assert (row.group, row.messages) == ("cg_orders", 37)
    assert WOULD_BE in report_text(build_report(store, "r"))


@pytest.mark.parametrize("policy", [LagPolicy.IGNORE, LagPolicy.BLOCK])
def test_what_a_policy_ignores_or_keeps_is_not_said_to_be_lost(planned: Make, policy: LagPolicy) -> None:
    store = planned("clean-stop", policy=Policy(lag_policy=policy))
    assert preview(store, PlanRequest(manual=True)).unread.rows == ()


def test_it_is_found_again_right_before_the_deletion(archived: Make) -> None:
    store = archived("clean-stop", max_segments=5)
    # What is archived is deleted by a release alone.
    said = report_text(build_report(store, "r"))
    assert (WOULD_BE in said, ARE in said) == (True, False)
    move_group(store, lambda offset: offset + 10**6)  # the group has read everything meanwhile
    assert steps.release(store, "r").unread.rows == ()
    assert build_report(store, "r").unread_lines == ()


def test_the_verdict_of_a_run_that_took_unread_messages_is_a_warning(archived: Make) -> None:
    store = archived("clean-stop", max_segments=5)
    (row,) = steps.release(store, "r").unread.rows
    assert row.messages == 37
    steps.clean_dependents(store, "r")
    finished = finish(store, "r")
    assert finished.ok
    assert finished.unread[0].startswith(ARE)
    report = build_report(store, "r")
    assert f"WARNING {ARE}" in report_text(report)
    page = render_page(report_json(report), None, links={})
    assert '<span class="badge warn">Done</span>' in page
    assert "1 consumer group missed 37 messages not read yet; they are only in the lake." in page


def test_what_was_found_before_the_first_segment_went_stands(
    archived: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a segment is gone, nobody can find out any more what was unread in it."""
    store = archived("clean-stop", max_segments=5)
    unlink, gone = rocketmq.remove_unchanged, 0

    def unlink_three(*segment_and_root: Any) -> None:
        nonlocal gone
        if gone == 3:
            raise KeyboardInterrupt
        gone += 1
        unlink(*segment_and_root)

    monkeypatch.setattr(rocketmq, "remove_unchanged", unlink_three)
    with pytest.raises(KeyboardInterrupt):
        steps.release(store, "r")
    monkeypatch.undo()
    (row,) = steps.release(store, "r").unread.rows
    assert row.messages == 37


def test_where_lag_blocks_a_group_that_was_set_back_since_keeps_its_messages(archived: Make) -> None:
    store = archived("clean-stop", max_segments=5, policy=Policy(lag_policy=LagPolicy.BLOCK))
    move_group(store, lambda offset: offset + 10**6)
    asked = steps.lag_question(store, "r")
    tables = in_process_lag(store, asked.segments)
    steps.record_lag(store, "r", *merge(map(lag_part, tables), tables.source))
    move_group(store, lambda offset: offset - 10**6)
    with pytest.raises(GateRefusedError, match="37 unread messages of cg_orders"):
        steps.release(store, "r")
    assert len(list((Path(store.root) / "commitlog").iterdir())) == 8


def test_positions_that_can_not_be_read_are_unknown_and_said(planned: Make) -> None:
    store = planned("clean-stop", max_segments=5)
    for name in ("lmqConsumerOffset.json", "lmqConsumerOffset.json.bak"):
        (Path(store.root) / "config" / name).write_text("{")
    unread = preview(store, PlanRequest(manual=True)).unread
    assert "lmqConsumerOffset.json" in unread.error
    for done, segments in ((False, "segments to delete"), (True, "deleted segments")):
        said = f"it is unknown which messages of the {segments} consumers have not read: {unread.error}"
        assert said in unread_lines(store, unread, done=done)


def test_without_an_archive_they_are_said_to_be_gone(planned: Make) -> None:
    store = planned("clean-stop", max_segments=5, policy=Policy(archive=ArchiveMode.OFF))
    steps.release(store, "r")
    (line,) = build_report(store, "r").unread_lines
    assert line == "37 unread messages of cg_orders in orders are gone, unless a lake has them"


@pytest.mark.parametrize("count", [None, 1, 2])
@pytest.mark.parametrize(
    ("done", "waived", "said"),
    [
        (False, False, "would be only in the lake if deleted"),
        (False, True, "would be gone if deleted, unless a lake has them"),
        (True, False, "{is_} only in the lake now"),
        (True, True, "{is_} gone, unless a lake has them"),
    ],
)
def test_only_of_what_was_deleted_it_is_said_that_it_is_gone(
    tmp_path: Path, count: int | None, done: bool, waived: bool, said: str
) -> None:
    store = ManagedStore.local("s", str(tmp_path / "store"), tmp_path / "managed")
    unread = Unread(rows=(UnreadMessages("g", "orders", count, 1, None),))
    (line,) = unread_lines(store, unread, done=done, waived=waived)
    assert said.format(is_="are" if count == 2 else "is") in line
    assert ("from now on" in line, " now" in line) == (False, done and not waived)


def test_reports_of_runs_before_this_have_no_such_line(archived: Make) -> None:
    store = archived("clean-stop", max_segments=5)
    steps.release(store, "r")
    report = report_json(replace(build_report(store, "r")))
    del report["unread"], report["unread_lines"]
    page = render_page(report, None, links={})
    assert "It is not known whether consumers had read all messages of these segments." in page


def test_what_is_to_be_known_of_the_positions_is_said_by_plan_release_and_report(
    managed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a running broker can't be asked, and its files are older."""
    said = "groups' positions are those that it wrote down 3 min ago"
    found = rocketmq.FileConsumers.unread
    monkeypatch.setattr(
        rocketmq.FileConsumers,
        "unread",
        lambda *args, **options: replace(found(*args, **options), notices=(said,)),
    )
    store = managed()
    assert said in steps.make_plan(store, "r", PlanRequest(manual=True, max_segments=1)).notices
    steps.archive(store, "r", steps.archive_jobs(store, "r"))
    assert said in steps.release(store, "r").notices
    assert said in report_text(build_report(store, "r"))
