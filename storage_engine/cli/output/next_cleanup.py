"""Whether a cleanup would delete anything, and how to ask for it: what to type after an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.cli.output.next_line import say_next
from storage_engine.cli.output.output import say
from storage_engine.core.wording import count_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.model.plan.plan import PlanRequest
from storage_engine.retention.doctor.next_step import LOOK_FIRST

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


def say_cleanup(managed: ManagedStore, asked: PlanRequest | None = None) -> None:
    """Say which cleanup would delete segments now, with what consumers would lose by it.

    :param asked: what was asked for already, and deleted nothing.
    """
    from storage_engine.brokers import find_broker
    from storage_engine.retention.lag.unread import unread_lines
    from storage_engine.retention.plan.preview import preview
    from storage_engine.retention.store.brokers import assumes_defaults, may_clean_now

    if not may_clean_now(managed):
        return
    requests = [("clean", PlanRequest()), ("clean --manual", PlanRequest(manual=True))]
    if asked is not None:
        requests = [] if asked.manual else requests[1:]
    for command, request in requests:
        try:
            seen = preview(managed, request)
        except StorageEngineError as error:
            # What was asked for is done: a cleanup is told about its error when somebody asks for one.
            say_next("doctor", f"No cleanup can be planned now: {str(error).removesuffix('.')}")
            return
        if going := seen.plan.to_delete:
            for line in unread_lines(managed, seen.unread, done=False):
                say(f"WARNING {line}")
            told = f"{count_text(len(going), 'segment')} would be deleted"
            if assumes_defaults(managed):
                # Its own settings may keep what the defaults delete.
                say_next("clean", f"{told} by the broker's defaults, which were assumed", LOOK_FIRST)
            elif request.manual:
                beyond = find_broker(managed.broker).words.by_hand
                why = f"{told} if a person asks: they have expired"
                say_next(command, f"{why}. {beyond}" if beyond else why)
            else:
                say_next(command, f"{told} by its rules now, once proven")
            return
    say_next("doctor", "Nothing may be deleted yet, and doctor says when")
