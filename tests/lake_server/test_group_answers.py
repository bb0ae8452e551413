"""What a coordinator and a server forget of groups that nobody uses any more, and what they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from storage_engine.lake_server.group_answers import CommittedPositions, GroupAnswers, GroupCoordinator

WEEK_SECONDS = 7 * 24 * 3600.0


def join_request(member_id: str = "", session_seconds: float = 30.0) -> Any:
    return SimpleNamespace(
        group_id="g",
        member_id=member_id,
        protocol_type="consumer",
        protocols=(SimpleNamespace(name="range", metadata=b""),),
        session_timeout=timedelta(seconds=session_seconds),
        rebalance_timeout=timedelta(seconds=session_seconds),
    )


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.02)


def test_an_id_that_nobody_comes_with_is_forgotten_and_so_is_an_empty_group() -> None:
    async def run() -> None:
        coordinator = GroupCoordinator()
        watch = asyncio.create_task(coordinator.watch())
        told = await coordinator.join(join_request(session_seconds=1), "c", "host", ask_for_id=True)
        assert told.error is ErrorCode.member_id_required
        assert told.member_id in coordinator.groups["g"].known_ids
        joined = await coordinator.join(join_request(), "other", "host", ask_for_id=False)
        await wait_until(lambda: not coordinator.groups["g"].known_ids)
        late = await coordinator.join(join_request(told.member_id), "c", "host", ask_for_id=True)
        assert late.error is ErrorCode.unknown_member_id
        assert list(coordinator.groups["g"].members) == [joined.member_id]
        gone = SimpleNamespace(group_id="g", member_id=joined.member_id)
        assert coordinator.leave(gone) is ErrorCode.none
        await wait_until(lambda: not coordinator.groups)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch

    asyncio.run(run())


def test_positions_that_nobody_uses_for_a_week_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    at = {("orders", 0): (5, None)}

    async def run(positions: CommittedPositions) -> None:
        positions.commit("idle", at)
        positions.commit("g", at)
        answers = GroupAnswers("", None, None, positions, ("host", 1))  # type: ignore[arg-type]
        later = monotonic() + WEEK_SECONDS
        assert await answers.drop_unused(later - 60) == []
        joining = asyncio.create_task(answers.groups.join(join_request(), "c", "host", ask_for_id=False))
        await wait_until(lambda: "g" in answers.groups.groups)
        assert await answers.drop_unused(later + 60) == ["idle"]
        assert await answers.drop_unused(later + 120) == []
        joining.cancel()
        answers.groups.groups.clear()
        assert await answers.drop_unused(later + WEEK_SECONDS) == []

    with closing(CommittedPositions(path)) as positions:
        asyncio.run(run(positions))
    with closing(CommittedPositions(path)) as found:
        assert list(found.groups) == ["g"]


def test_what_can_not_be_dropped_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room")

    with closing(CommittedPositions(tmp_path / "positions.json")) as positions:
        positions.commit("idle", {("orders", 0): (5, None)})
        monkeypatch.setattr("storage_engine.lake_server.group_answers.write_file", fail)
        with pytest.raises(OSError, match="no room"):
            positions.drop(["idle"])
        assert positions.of("idle", "orders", 0) == (5, None)
