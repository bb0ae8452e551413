"""Tell a clone whose segment in the log was only touched from one whose segment was written to."""

from __future__ import annotations

import os
from pathlib import Path

from storage_engine.exceptions import ChangedUnderUsError
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.same_bytes.reading import Spend, paced_sha256
from storage_engine.same_bytes.settling import settle
from storage_engine.shield.links import note_segment
from storage_engine.shield.seen import SeenLink, digest_of


def log_has_bytes(root: str | os.PathLike[str], seen: SeenLink, spend: Spend) -> bool:
    """Compare a clone with its segment in the log by their bytes.

    Where they are equal, the segment's facts are recorded: it counts as not written to from then on.

    :return: whether they are provably equal.
    :raises ShieldError: the shield can't be read or written.
    """
    path = seen.link.segment.path
    try:
        facts = settle(path)
        with Path(path).open("rb", buffering=0) as file:
            sha256 = paced_sha256(file, spend)
        found = facts.of(path)
    except (ChangedUnderUsError, OSError):
        return False
    if found != facts and not read_own_acts(root).same_file(found, facts):
        return False
    if (found.device, found.inode) != (seen.link.segment.device, seen.link.segment.inode):
        return False
    if digest_of(root, seen, spend) != sha256:
        return False
    note_segment(root, seen, facts)
    return True
