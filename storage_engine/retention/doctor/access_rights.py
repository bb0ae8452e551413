"""Whether this process may do to a store what managing it takes, told without doing it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.core.host import user_name
from storage_engine.core.own_directory import writable_by_all
from storage_engine.model.report.diagnosis import Finding, Severity, named_in_short


@dataclass(frozen=True, slots=True)
class AccessRights:
    """
    :param user: who runs this process.
    :param owner: of the store's root.
    :param unwritable: directories in which it may delete no file.
    :param unreadable: directories that it may not list.
    :param open_to_all: our directories and files that everybody may write.
    """

    user: str
    owner: str
    unwritable: tuple[str, ...]
    unreadable: tuple[str, ...]
    open_to_all: tuple[str, ...] = ()


def look_at_access(root: str, directories: Sequence[Path]) -> AccessRights:
    """Look at the directories that segments and what points to them lie in, as far as they are there."""
    there = [path for path in dict.fromkeys((Path(root), *directories)) if path.is_dir()]
    return AccessRights(
        user=user_name(os.geteuid()),
        owner=user_name(Path(root).stat().st_uid),
        unwritable=tuple(str(path) for path in there if not _may_delete(path)),
        unreadable=tuple(str(path) for path in there if not _may(path, os.R_OK | os.X_OK)),
        open_to_all=tuple(map(str, writable_by_all(there))),
    )


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _may_delete(path: Path) -> bool:
    found = path.stat()
    if found.st_mode & stat.S_ISVTX and os.geteuid() not in (0, found.st_uid):
        return False
    # On a file system that is mounted read-only nobody may: that is told of the mount.
    return _may(path, os.W_OK | os.X_OK) or bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def access_findings(found: AccessRights) -> Iterator[Finding]:
    """Judge it. Pure."""
    advice = f"run as {found.owner}: sudo -u {found.owner} storage-engine …"
    if found.unreadable:
        yield Finding(
            Severity.WARNING,
            "access",
            f"{found.user} may not look into {named_in_short(found.unreadable)}, which {found.owner} owns",
            advice,
        )
    elif found.unwritable:
        yield Finding(
            Severity.WARNING,
            "access",
            f"{found.user} may read this store, and neither lock it nor delete in "
            f"{named_in_short(found.unwritable)}",
            advice,
        )
    if found.open_to_all:
        yield Finding(
            Severity.WARNING,
            "open-to-all",
            f"everybody may write {named_in_short(found.open_to_all)}, and so hinder a run or end a hold",
            f"run a command that records something as {found.owner}, such as archive, which takes that away",
        )
