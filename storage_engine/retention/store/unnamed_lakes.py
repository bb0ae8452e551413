"""Lakes that a store was archived into, as its stamp or journal says, and that were not asked this time."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from storage_engine.commands import Text
from storage_engine.model.proof.receipt import LakeHead

if TYPE_CHECKING:
    from storage_engine.lake.catalog.catalog import Lake


def unnamed_heads(
    heads: Iterable[LakeHead], lake_ids: Iterable[str | None], locations: Iterable[str]
) -> tuple[LakeHead, ...]:
    """Return the last receipts of a store in lakes other than the named ones, each lake once. Pure.

    :param heads: the known last receipts of the store.
    :param lake_ids: ids of the named lakes, of their ancestors, and of their originals if they are copies.
    :param locations: locations of the named lakes, for receipts without a lake id.
    """
    ids, places = set(lake_ids), set(locations)
    newest: dict[str, LakeHead] = {}
    for head in heads:
        is_named = head.lake_id in ids if head.lake_id else head.location in places
        earlier = newest.get(head.lake_id or head.location)
        if head.sequence >= 0 and not is_named and (earlier is None or earlier.sequence < head.sequence):
            newest[head.lake_id or head.location] = head
    return tuple(newest.values())


def directory_of(head: LakeHead) -> str:
    """Return the directory of a lake on a disk, or "" if the lake isn't on a disk."""
    path = unquote(urlsplit(head.location).path)
    is_local = urlsplit(head.location).scheme in ("", "file") and path.startswith("/")
    return str(Path(path).parent) if is_local else ""


def lake_name_text(head: LakeHead) -> str:
    """Return a lake's UUID and place, for a message."""
    return f"{head.lake_id or 'without a UUID'} ({directory_of(head) or head.location})"


def lake_option(head: LakeHead) -> str:
    """Return the option that names a lake, or a text with its location if no option can name it."""
    directory = directory_of(head)
    return f"--lake {shlex.quote(directory)}" if directory else f"the lake {head.location}"


def heads_unasked(
    heads: Iterable[LakeHead], asked: Sequence[Lake], unreachable: Iterable[str]
) -> tuple[LakeHead, ...]:
    """Return the last receipts of a store in lakes that the call doesn't name.

    :param heads: the known last receipts of the store.
    :param asked: the named lakes that answered.
    :param unreachable: locations of the named lakes that didn't answer.
    """
    # Imported here, because a look at a store without a lake doesn't need the lake's libraries.
    from storage_engine.lake.catalog.identity import ancestors_of, copy_of, lake_id_of

    tables = [lake.segments() for lake in asked]
    ids = [key for table in tables for key in (lake_id_of(table), copy_of(table), *ancestors_of(table))]
    places = {*(lake.location for lake in asked), *unreachable}
    return tuple(head for head in unnamed_heads(heads, ids, places) if head.location not in places)


def lakes_unasked(
    heads: Iterable[LakeHead], asked: Sequence[Lake], unreachable: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a clause for each lake that wasn't named or didn't answer, with the option that names it.

    :param heads: the known last receipts of the store.
    :param asked: the named lakes that answered.
    :param unreachable: by location, why a named lake didn't answer.
    """
    return (
        *(
            f"lake {lake_name_text(head)} has receipts of the store up to number {head.sequence} and was not "
            f"named ({lake_option(head)})"
            for head in heads_unasked(heads, asked, unreachable)
        ),
        *(
            Text(f"the lake at {location} can't be asked: ", why.removesuffix("."))
            for location, why in unreachable.items()
        ),
    )
