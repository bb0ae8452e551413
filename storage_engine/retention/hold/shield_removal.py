"""Remove a store's shield: only what is in the log, proven in a lake, or accepted as lost."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.commands import Command, Text, join_texts
from storage_engine.core.clock import clock_ms
from storage_engine.core.wording import count_text
from storage_engine.exceptions import GateRefusedError
from storage_engine.lake.storage.pace import pace_at
from storage_engine.model.broker.broker_store import hold_of
from storage_engine.model.settings.policy import ArchiveMode, archive_limit
from storage_engine.retention.hold.leaving_unproven import (
    Acceptance,
    check_unproven,
    record_intent,
    record_result,
)
from storage_engine.retention.ranges.losses import accepted_losses
from storage_engine.retention.shield import asked_notices, tend_shield
from storage_engine.retention.store.context import Context, opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import mark_shield
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.shield.comparing import log_has_bytes
from storage_engine.shield.index import remove_shield, shield_path
from storage_engine.shield.links import drop_links
from storage_engine.shield.seen import Place, SeenLink, log_was_written, look_at_shield


def remove_shield_of(store: ManagedStore, acceptance: Acceptance | None = None) -> tuple[str, ...]:
    """Remove a shield, whatever the store's policy says of one.

    :param acceptance: a person's word that some goes unproven then; None: nobody has given it.
    :return: what a person should know of what is left.
    :raises GateRefusedError: it has what is nowhere else, or nothing else protects what the running broker
        deletes within a day; nothing was deleted.
    """
    with opened(store) as context:
        make_removable(context)
        unproven, now_ms = None, clock_ms()
        if context.broker.is_live and not hold_of(context.broker).status(now_ms).held:
            unproven = check_unproven(context, acceptance, now_ms)
        record_intent(context, unproven, acceptance)
        left = remove_all(context)
        record_result(context)
        return left


def make_removable(context: Context) -> None:
    """Bring what only the shield has into a lake.

    :raises GateRefusedError: it has what is neither in the log nor provably in a lake after that, or what the
        log had before it was written to.
    """
    store, said = context.store, ""
    if _alone(store) and store.policy.archive is not ArchiveMode.OFF:
        said = join_texts(" ", (Text(notice, ".") for notice in tend_shield(store, tends=True).notices))
    left = [seen for seen in _alone(store) if not _is_accepted(context, seen)]
    _refuse_written(store.real_root, [seen for seen in left if seen.place is Place.IN_LOG])
    if left:
        raise GateRefusedError(
            f"{store.real_root}: expected a shield whose segments are all in the log or proven in a "
            f"lake, found {count_text(len(left), 'segment')} that only the shield has, "
            f"{_at_offset(left)}. Nothing was deleted. ",
            said,
            " Have the lake take them, or accept what is lost of them (",
            Command("accept-loss"),
            f"), or move their files out of {shield_path(store.real_root)}, and run this again.",
        )


def _refuse_written(root: str, written: Sequence[SeenLink]) -> None:
    """Refuse to remove a shield whose segments in the log were written to since they were linked.

    :raises GateRefusedError: there are such segments, of which the shield has clones; nothing was deleted.
    """
    if written:
        raise GateRefusedError(
            f"{root}: expected segments in the log as they were when they were linked, found "
            f"{count_text(len(written), 'segment')} written to since, {_at_offset(written)}. Nothing was "
            "deleted: the shield alone has the bytes that they had before. Move their files out of "
            f"{shield_path(root)}, such as {written[0].facts.path}, and run this again."
        )


def _at_offset(links: Sequence[SeenLink]) -> str:
    offsets = ", ".join(str(seen.link.base_offset) for seen in links[:5])
    return f"at offset {offsets}{', …' if len(links) > 5 else ''}"


def remove_all(context: Context) -> tuple[str, ...]:
    """Remove a shield once it is removable; what is gone from the log since stays.

    :return: what a person should know of what is left.
    """
    root, record = context.store.real_root, context.record
    alone = _alone(context.store)
    drop_links(root, [seen.link.name for seen in alone if _is_accepted(context, seen)])
    names = {seen.link.name for seen in alone}
    there = look_at_shield(root).links
    drop_links(root, [seen.link.name for seen in there if seen.link.name not in names], in_log=True)
    if not look_at_shield(root).links and remove_shield(root):
        mark_shield(root, record.store_id, record.lineages, False)
    return asked_notices(context.store, context.journal, record)


def _alone(store: ManagedStore) -> list[SeenLink]:
    """Return the links that may have what the log has no more; what was only touched is told by its bytes."""
    root = store.real_root
    links, acts = look_at_shield(root).links, read_own_acts(root)
    spend = pace_at(archive_limit(store.policy, beside=store.is_live, emergency=False)).spend
    return [
        seen
        for seen in links
        if seen.place is not Place.IN_LOG
        or (log_was_written(seen, acts) and not log_has_bytes(root, seen, spend))
    ]


def _is_accepted(context: Context, seen: SeenLink) -> bool:
    """Return whether a person goes on without a link's segment."""
    link = seen.link
    of_lineage = context.record.at_lineage(link.lineage, [link.log])
    return any(
        loss.log == link.log and loss.start_offset <= link.base_offset and link.end_offset <= loss.end_offset
        for loss in accepted_losses(context.journal, of_lineage)
    )
