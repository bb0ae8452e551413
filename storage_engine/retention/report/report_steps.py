"""Which steps a run took, how long each took, and with what error it ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from storage_engine.journal.journal import Event, Phase, Step
from storage_engine.model.store.store import SegmentId
from storage_engine.retention.archive.recording_proofs import TOOK
from storage_engine.retention.store.context import RAN, WHOLE


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of one step of a run.

    :param took_ms: None while the step is not done.
    :param error: the last failure, unless the step was done since.
    """

    step: str
    done: bool
    took_ms: int | None
    error: str


def step_reports(events: Sequence[Event], unproven: Collection[SegmentId]) -> tuple[StepReport, ...]:
    """Return the steps that a run took, in their order.

    :param unproven: segments that the run wanted in a lake, and that have no receipt.
    """
    rows: list[StepReport] = []
    for step in Step:
        whole = [event for event in events if event.step == step and event.subject == WHOLE]
        if step is Step.ARCHIVE and _is_past(whole, events, unproven):
            rows += _archive_step(events, unproven)
            continue
        results = [event for event in whole if event.phase is Phase.RESULT]
        errors = [event for event in whole if event.phase is Phase.ERROR]
        if not (results or errors):
            continue
        failed = whole[-1].phase is Phase.ERROR
        rows.append(
            StepReport(
                step=step.value,
                done=bool(results),
                took_ms=results[-1].payload.get("took_ms") if results else None,
                error=f"{errors[-1].payload['type']}: {errors[-1].payload['message']}" if failed else "",
            )
        )
    return tuple(rows)


def ran_texts(events: Sequence[Event]) -> tuple[str, ...]:
    """Return where a run measured consumer lag, the last time, and archived, each time."""
    results = [
        (event.step, str(event.payload.get(RAN) or "")) for event in events if event.phase is Phase.RESULT
    ]
    lag = [ran for step, ran in results if step == Step.LAG][-1:]
    archive = [ran for step, ran in results if step in (Step.ARCHIVE, Step.SEALED)]
    told = [f"Consumer lag {ran}" for ran in lag if ran] + [f"Archive {ran}" for ran in archive if ran]
    return tuple(dict.fromkeys(told))


def _is_past(errors: Sequence[Event], events: Sequence[Event], unproven: Collection[SegmentId]) -> bool:
    """Return whether what failed of archiving was done since."""
    results = [
        event.event_id for event in events if (event.step, event.phase) == (Step.ARCHIVE, Phase.RESULT)
    ]
    return not errors or (not unproven and max(results, default=-1) > errors[-1].event_id)


def _archive_step(events: Sequence[Event], unproven: Collection[SegmentId]) -> tuple[StepReport, ...]:
    """Return the step that archives, which has results of segments only; empty where none had to go."""
    own = [event for event in events if event.step == Step.ARCHIVE]
    took = [event.payload[TOOK] for event in own if event.phase is Phase.RESULT and TOOK in event.payload]
    step = StepReport(Step.ARCHIVE.value, not unproven, sum(took) if took else None, "")
    return (step,) if own else ()
