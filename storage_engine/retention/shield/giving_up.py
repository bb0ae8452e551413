"""Give up what only the shield has, on a disk that is too full to keep it: one by one, never silently."""

from __future__ import annotations

from collections.abc import Mapping

from storage_engine.core.jsonable import to_jsonable
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.model.hold.hold import Drift, DriftKind
from storage_engine.retention.store.context import Context
from storage_engine.shield.index import Link
from storage_engine.shield.links import drop_links
from storage_engine.shield.seen import Shield, look_at_shield
from storage_engine.shield.size import to_give_up


def give_up(context: Context, run: Run, reasons: Mapping[str, str], notices: list[str]) -> tuple[int, ...]:
    """Give up the oldest of these links that is a last name, while the disk is above the policy's level.

    One a call, after a new look at the disk: its space may come back late, as while a process has it open. It
    is recorded as a loss before it goes.

    :param reasons: by name of a link that the caller has just tried to bring into a lake: why it is in none.
        Another link was deleted from the log since, and is tried first.
    :param notices: what was given up is added.
    :return: base offsets.
    """
    root, percent = context.store.real_root, context.store.policy.shield_give_up_percent
    used_percent = context.broker.shield_need().used_percent
    tried = tuple(seen for seen in look_at_shield(root).links if seen.link.name in reasons)
    seen = to_give_up(Shield(tried), used_percent, percent)
    if seen is None:
        return ()
    loss = _loss(seen.link, used_percent, percent, reasons[seen.link.name])
    _record_once(context, run, seen.link, loss)
    drop_links(root, [seen.link.name])
    notices.append(loss.detail)
    return (seen.link.base_offset,)


def _loss(link: Link, used_percent: int | None, percent: int, why: str) -> Drift:
    return Drift(
        DriftKind.GIVEN_UP,
        f"expected room for the log's bytes [{link.base_offset}, {link.end_offset}), which somebody else "
        f"deleted and only the shield had, found the disk {used_percent} % full, above "
        f"shield_give_up_percent {percent}: they were given up for space. Not archived before: {why}.",
        log=link.log,
        start_offset=link.base_offset,
        end_offset=link.end_offset,
    )


def _record_once(context: Context, run: Run, link: Link, loss: Drift) -> None:
    """Record a loss before the deed; a call that was killed between the two has recorded it."""
    subject = f"{loss.kind.value}: {loss.log} [{loss.start_offset}, {loss.end_offset})"
    known = context.journal.store_events(context.record.store_id, Step.DRIFT, Phase.RESULT)
    if any(event.subject == subject and event.payload["lineage"] == link.lineage for event in known):
        return
    said = {"lineage": link.lineage, "disturbance": to_jsonable(loss)}
    context.journal.record(run, Step.DRIFT, Phase.RESULT, [(subject, said)])
