"""Finish deletions that a kill cut short within a segment: its own file is gone, companions are left.

The journal's intents say which these are, of whatever run. Each was judged by the gate; before it goes after
all, its receipt has to hold still, and nobody may have touched it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

from storage_engine.model.plan.plan import Plan
from storage_engine.model.store.store import SegmentId
from storage_engine.retention.proof.history import SegmentRelease, open_releases, still_proves
from storage_engine.retention.proof.proofs import Proofs, none_reachable, read_proofs
from storage_engine.retention.quarantine.set_aside import remover
from storage_engine.retention.replicas.replica_proofs import replicas_prove
from storage_engine.retention.store.context import Context, Locked
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.same_bytes.removal import remove_rest


def finish_removals(context: Context, plan: Plan, held: Locked, now_ms: int) -> tuple[str, ...]:
    """Remove what is left of segments that a run was killed in the middle of.

    A running broker deletes by itself; so does it here.

    :return: what stays, and why, as sentences.
    """
    there = [segment for log in held.snapshot.logs for segment in log.segments]
    if context.broker.is_live or not any(one.companions for one in chain(plan.to_delete, there)):
        return ()
    half_gone = list(_half_gone(context, {segment.id for segment in there}))
    if not half_gone:
        return ()
    return tuple(_finish(context, half_gone, held, now_ms))


def _half_gone(context: Context, there: Collection[SegmentId]) -> Iterator[tuple[str, SegmentRelease]]:
    """Yield what was meant to go, by the key of its run."""
    for run_key, meant in open_releases(context.journal, context.record.store_id).items():
        for release in meant.values():
            is_gone = release.segment.id not in there and not os.path.lexists(release.facts.path)
            if is_gone and any(os.path.lexists(companion.path) for companion in release.companions):
                yield run_key, release


def _finish(
    context: Context, half_gone: list[tuple[str, SegmentRelease]], held: Locked, now_ms: int
) -> Iterator[str]:
    proofs = _proofs(context, {release.segment.id: release for _, release in half_gone}, held)
    for run_key, release in half_gone:
        rows = (row for lake in proofs.asked for row in lake.valid(release.segment.id))
        is_proven = any(still_proves(row, release) for row in rows) or replicas_prove(
            proofs.asked, context.record.store_id, release, partial(context.journal.renew, held.lease)
        )
        if release.receipt_hash is not None and not is_proven:
            names = ", ".join(companion.path for companion in release.companions)
            yield f"{names}: left of a deleted segment, and no valid receipt proves it any more, so it stays"
            continue
        run = context.run(run_key)
        remove = remover(context, run, release.companions, held.lease, now_ms, begin=False)
        for path in remove_rest(release.segment, Path(context.record.real_path), remove):
            yield f"{path}: left of a deleted segment, and touched since, so it stays"


def _proofs(context: Context, wanted: Mapping[SegmentId, SegmentRelease], held: Locked) -> Proofs:
    """
    :raises LakeUnavailableError: a lake can't be asked, so that it is unknown what is proven.
    """
    if all(release.receipt_hash is None for release in wanted.values()):
        return Proofs(())
    proofs = read_proofs(
        context.store.lakes,
        context.record,
        wanted,
        known=known_heads(context.journal, context.record),
        to_delete=True,
        read_files=True,
        looked=lambda: context.journal.renew(held.lease),
    )
    if proofs.unreachable:
        raise none_reachable([reason for _, reason in proofs.unreachable])
    return proofs
