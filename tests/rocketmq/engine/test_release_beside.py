"""A run that takes long keeps no pass waiting, and no process from ending."""

from __future__ import annotations

import logging
import threading

import pytest

from storage_engine.model.plan import PlanRequest
from storage_engine.rocketmq.engine import store_service
from storage_engine.rocketmq.engine.store_service import releasing_beside

SECONDS = 120


class LongRun:
    def __init__(self, *, heeds: bool = True) -> None:
        self.begun, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.heeds, self.asked = heeds, 0

    def __call__(self, request: PlanRequest) -> None:
        self.asked += 1
        self.begun.set()
        assert self.may_end.wait(SECONDS)
        self.ended.set()

    def stop(self) -> None:
        if self.heeds:
            self.may_end.set()


def test_one_run_at_a_time_goes_on_beside_the_passes_and_is_ended() -> None:
    run = LongRun()
    with releasing_beside(run) as beside:
        beside(PlanRequest())
        assert run.begun.wait(SECONDS)
        beside(PlanRequest())
        assert run.asked == 1
    assert run.ended.is_set()


def test_a_step_that_takes_long_is_left_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_service, "STOP_SECONDS", 0.01)
    run = LongRun(heeds=False)
    with releasing_beside(run) as beside:
        beside(PlanRequest())
        assert run.begun.wait(SECONDS)
    assert not run.ended.is_set()
    run.may_end.set()
    assert run.ended.wait(SECONDS)


def test_after_a_run_that_failed_the_next_pass_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(LongRun):
        def __call__(self, request: PlanRequest) -> None:
            self.asked += 1
            raise ValueError("broken")

    run = Failing()
    with caplog.at_level(logging.WARNING), releasing_beside(run) as beside:
        for _ in range(2):
            beside(PlanRequest())
            beside.stop()
    assert run.asked == 2
    assert "broken" in caplog.text
