"""Lakes that a store was archived into, by its stamp or journal, and that nobody named now. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage_engine.model.heads import LakeHead


def unnamed_heads(
    heads: Iterable[LakeHead], lake_ids: Iterable[str | None], locations: Iterable[str]
) -> tuple[LakeHead, ...]:
    """Return what other lakes than the named ones held last of a store, each lake once.

    :param heads: that are known of the store.
    :param lake_ids: of the named lakes, and of those that they go on for or are copies of.
    :param locations: of the named lakes, for heads without an id.
    """
    ids, places = set(lake_ids), set(locations)
    found: dict[str, LakeHead] = {}
    for head in heads:
        is_named = head.lake_id in ids if head.lake_id else head.location in places
        known = found.get(head.lake_id or head.location)
        if head.sequence >= 0 and not is_named and (known is None or known.sequence < head.sequence):
            found[head.lake_id or head.location] = head
    return tuple(found.values())


def directory_of(head: LakeHead) -> str:
    """Return the directory of a lake that lies on a disk; "" where it doesn't."""
    path = unquote(urlsplit(head.location).path)
    is_local = urlsplit(head.location).scheme in ("", "file") and path.startswith("/")
    return str(Path(path).parent) if is_local else ""


def lake_named(head: LakeHead) -> str:
    """Return a lake's UUID and place for a message."""
    return f"{head.lake_id or 'without a UUID'} ({directory_of(head) or head.location})"


def how_to_name(head: LakeHead) -> str:
    """Return the option that names a lake, or what stands for it."""
    directory = directory_of(head)
    return f"--lake {shlex.quote(directory)}" if directory else f"the lake {head.location}"
