"""Stamp a store with what its lakes hold, and say so where that can't be done."""

from __future__ import annotations

from collections.abc import Sequence

from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import GateRefusedError
from storage_engine.journal.journal import Phase, Run, Step
from storage_engine.lake.soundness.chain import check_links
from storage_engine.model.proof.deleted_range import RunDigest
from storage_engine.model.proof.receipt import LakeHead
from storage_engine.retention.proof.proofs import Proofs
from storage_engine.retention.store.context import WHOLE, Context
from storage_engine.retention.store.known_heads import KnownHeads, head_of
from storage_engine.retention.store.stamp import missing_stamps, read_stamp, update_stamp


def stamp_store(
    context: Context, run: Run, heads: Sequence[LakeHead], deletion: RunDigest | None = None
) -> str:
    """Write down in the store's directory, durably, what lakes hold of it and what its last deletion came to.

    :param deletion: None: what the stamp says of it stays.
    :return: why it can't be done, as where a directory is read-only; "" when it is done.
    :raises StoreIdentityError: another store's stamp is there, or one that can't be read.
    """
    root, record = context.store.real_root, context.record
    before = read_stamp(root)
    try:
        stamp = update_stamp(root, record.store_id, record.lineages, heads, deletion)
    except OSError as error:
        return f"{root}: the store could not be stamped ({error.strerror or error})"
    if stamp != before:
        context.journal.record(run, Step.STAMP, Phase.RESULT, [(WHOLE, to_jsonable(stamp))])
    return ""


def replaced_notices(root: str) -> tuple[str, ...]:
    """Return a notice of each directory of a store that lacks its stamp, while others have it. Asked before
    the store is stamped again.

    :raises StoreIdentityError: stamps that can't be read, or of two stores.
    """
    return tuple(
        f"{path}: expected the store's stamp, as in its other directories, found none: was its disk "
        "replaced? See whether its logs are there"
        for path in missing_stamps(root)
    )


def witness_release(context: Context, run: Run, proofs: Proofs, known: KnownHeads) -> tuple[str, ...]:
    """Stamp the store with the receipts on which segments are about to be deleted.

    :return: notices: a witness that is missing.
    :raises GateRefusedError: the store can't be stamped, and the journal doesn't know by itself what a lake
        held last. Nothing was deleted.
    """
    heads = []
    unknown = []
    for asked in proofs.asked:
        segments = asked.lake.segments()
        last = check_links(segments, context.record.store_id, known.of(asked.lake, segments))
        if last.sequence >= 0:
            heads.append(head_of(asked.lake, segments, last))
            if not known.in_journal(asked.lake, segments):
                unknown.append(asked.lake.location)
    if not heads:
        return ()
    replaced = replaced_notices(context.store.real_root)
    missing = stamp_store(context, run, heads)
    if missing and unknown:
        raise GateRefusedError(
            f"{missing}, and the journal has no receipt of it in {', '.join(unknown)}: expected a witness "
            "that the lake is not an older copy, found none. Nothing was deleted. Make the directory "
            "writable, or archive into the lake with this journal."
        )
    if missing:
        return (f"{missing}: journal and catalog agree on the last receipt",)
    return replaced
