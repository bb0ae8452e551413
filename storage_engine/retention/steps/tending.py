"""What a store needs between its cleanups: its hold renewed, a sample taken, what is behind measured."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from storage_engine.exceptions import GateRefusedError, StorageEngineError
from storage_engine.model.hold import HoldStatus
from storage_engine.model.policy import ShieldMode
from storage_engine.retention.drift import DONE
from storage_engine.retention.steps.context import AnyStore, managed_of, open_context
from storage_engine.retention.steps.holding import hold
from storage_engine.retention.steps.recording_drift import alarms_of
from storage_engine.retention.steps.sensing import SenseResult, sense
from storage_engine.retention.steps.shield import tend_shield
from storage_engine.shield.index import shield_path


@dataclass(frozen=True, slots=True)
class TendResult:
    """:param hold: after it was renewed; None where no broker runs, or the hold was refused.
    :param alarms: all that a person should know at once.
    """

    hold: HoldStatus | None
    sensed: SenseResult
    alarms: tuple[str, ...]


def tend(store: AnyStore, run_key: str) -> TendResult:
    """Look for drift of the hold and renew it, take a sample, and measure how far the broker is behind.

    :raises BrokerError: the running broker can't be asked.
    """
    # First, as drift of a hold can't be told any more once it is renewed.
    try:
        sensed = sense(store)
    except (StorageEngineError, OSError):
        if managed_of(store).live is not None:
            # Whatever can't be told of the store, a hold that isn't renewed ends.
            with suppress(StorageEngineError):
                hold(store, run_key=run_key)
        raise
    status, alarms = None, list(sensed.alarms)
    if managed_of(store).live is not None:
        try:
            status = hold(store, run_key=run_key).status
        except GateRefusedError as error:
            alarms.append(f"the store can't be held: {error}")
        else:
            done = tuple(one for one in status.disturbances if one.kind in DONE)
            if done:
                alarms += alarms_of(open_context(store), replace(status, disturbances=done))
            if not status.held:
                alarms += [f"the store isn't held: {notice}" for notice in status.notices]
    alarms += _shield_alarms(store)
    return TendResult(status, sensed, tuple(dict.fromkeys(alarms)))


def _shield_alarms(store: AnyStore) -> tuple[str, ...]:
    """Tend the shield, where no watch does, and say what it keeps that is gone from the log."""
    managed = managed_of(store)
    if managed.policy.shield is not ShieldMode.ON and not shield_path(managed.real_root).exists():
        return ()
    try:
        result = tend_shield(store)
    except (StorageEngineError, OSError) as error:
        return (f"the shield can't be tended: {error}",)
    return result.notices if result.gone or result.given_up else ()
