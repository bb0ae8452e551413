"""Links of a shield that are clones, on file systems that share no blocks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from storage_engine.model.store import FileFacts
from storage_engine.shield.index import (
    LinkKind,
    locked_shield,
    read_index,
    replace_links,
    shield_path,
    write_index,
)


def as_clone(root: str | Path, base_offset: int) -> Path:
    """Make a file of its own of a link, recorded as a clone of its segment as it is now; return its path."""
    with locked_shield(root) as directory:
        assert directory is not None
        links = read_index(directory, root)
        (link,) = (link for link in links if link.base_offset == base_offset)
        path = shield_path(root) / link.name
        copy = path.with_suffix(".copy")
        shutil.copy2(path, copy)
        copy.replace(path)
        segment = FileFacts.of(link.segment.path)
        kept = replace(FileFacts.of(path), path=link.name)
        write_index(
            directory, replace_links(links, replace(link, kind=LinkKind.CLONE, segment=segment, kept=kept))
        )
    return path
