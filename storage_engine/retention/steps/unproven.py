"""What a broker may delete by its own rules though no lake proves it."""

from __future__ import annotations

from collections.abc import Iterator

from storage_engine.exceptions import StorageEngineError
from storage_engine.model.plan import PlanRequest
from storage_engine.model.policy import ArchiveMode
from storage_engine.retention.broker_answers import propose
from storage_engine.retention.known_heads import known_heads
from storage_engine.retention.proofs import read_proofs
from storage_engine.retention.steps.archiving import slots
from storage_engine.retention.steps.context import Context
from storage_engine.retention.steps.sealed import still_unproven
from storage_engine.wording import bytes_text, count_text


def may_go_unproven(context: Context, now_ms: int) -> Iterator[str]:
    """Say how much of a store that nobody holds its broker may delete at once, and no lake proves.

    What has expired counts, or all that a full disk makes expire whatever its age.
    """
    if context.store.policy.archive is ArchiveMode.OFF:
        return
    try:
        snapshot = context.snapshot(now_ms)
        most = sum(len(log.segments) for log in snapshot.logs)
        # As if deleteWhen had come, pass after pass.
        plan = propose(context.broker, snapshot, now_ms, PlanRequest(manual=True, max_segments=most))
        known = known_heads(context.journal, context.record)
        proofs = read_proofs(context.store.lakes, context.record, slots(plan.to_delete), known=known)
        unproven = still_unproven(context.journal, context.record, proofs, plan.to_delete)
    except (StorageEngineError, OSError) as error:
        yield f"how many segments the broker may delete that no lake proves isn't known: {error}"
        return
    if unproven:
        size = bytes_text(sum(segment.facts.size_bytes for segment in unproven))
        yield (
            f"{count_text(len(unproven), 'segment')} that no lake proves, {size}, the oldest "
            f"{unproven[0].name}, may be deleted by the broker's own rules from now on: hold the store "
            "again, or archive them at once"
        )
