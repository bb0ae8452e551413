"""A store's shield, for reports on where bytes are and how much space a deletion frees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_engine.commands import Command, Text
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.exceptions import ShieldError
from storage_engine.lake.coverage.coverage import LocalSpan, ReleasedSpan
from storage_engine.model.store import Lineages, Segment
from storage_engine.shield.index import SeenLink, Shield, digest_of, look_at_shield

COMMAND = Command("shield")
WAY_OUT = "Nothing waits for this file once a person has moved it out of the shield (mv)"
"""Remedy for a file that can't be archived, if it is unknown whether a lake has the file."""


def shielded_spans(root: str | os.PathLike[str], lineages: Lineages) -> tuple[LocalSpan, ...]:
    """Return ranges that are gone from the log and unchanged in the shield, to compare with store and lake.

    :param lineages: the store's lineages. Segments of an older lineage no longer belong to its log.
    :raises ShieldError: the shield's content is unknown.
    """
    return tuple(
        LocalSpan(
            link.log,
            link.base_offset,
            link.end_offset,
            Path(link.segment.path).name,
            shielded=True,
            lineage=link.lineage,
        )
        for link in (file.link for file in look_at_shield(root).gone if _has_its_bytes(root, file))
        if link.lineage == lineages.of(link.log)
    )


def changed_spans(root: str | os.PathLike[str], lineages: Lineages) -> tuple[ReleasedSpan, ...]:
    """Return the ranges that are gone from the log and whose link has changed, or may have changed.

    :raises ShieldError: the shield's content is unknown.
    """
    return tuple(
        ReleasedSpan(
            file.link.log,
            file.link.base_offset,
            file.link.end_offset,
            others=changed_text(file),
            lineage=file.link.lineage,
        )
        for file in look_at_shield(root).gone
        if file.link.lineage == lineages.of(file.link.log) and not _has_its_bytes(root, file)
    )


def _has_its_bytes(root: str | os.PathLike[str], file: SeenLink) -> bool:
    """Return whether a link has the bytes that were linked. If its times changed, its digest decides."""
    sha256 = file.link.sha256
    return file.is_same or (bool(sha256) and digest_of(root, file, lambda count: None) == sha256)


def changed_text(seen: SeenLink) -> str:
    """Return the text on a link whose file was written to or touched after it was linked."""
    return (
        f"{seen.facts.path}: expected the file as it was when it was linked, {seen.link.kept}, found "
        f"{seen.facts}: another program wrote to it or touched it, so it is kept and not archived as that "
        f"segment. {WAY_OUT}"
    )


def written_text(seen: SeenLink) -> str:
    """Return the text on a clone which may have bytes that the segment in the log no longer has."""
    return (
        f"{seen.link.segment.path}: expected the file as it was when it was linked, {seen.link.segment}, "
        f"found it written to or touched since: {seen.facts.path} keeps the bytes that it had. {WAY_OUT}"
    )


@dataclass(frozen=True, slots=True)
class AskedGone:
    """What lakes and journal know of segments that are gone from the log.

    :param unproven: segments that none of our runs deleted, and that none of the answering lakes proves.
    :param unreachable: why lakes couldn't be asked.
    """

    unproven: tuple[SeenLink, ...] = ()
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShieldSummary:
    """Contents of a store's shield.

    :param gone: base offsets of the linked segments that are gone from the log. No lake was asked about them.
    """

    links: int
    kept_bytes: int
    gone: tuple[int, ...]
    notices: tuple[str, ...]

    @property
    def text(self) -> str:
        return (
            f"{count_text(self.links, 'segment')} kept ({bytes_text(self.kept_bytes)}), {len(self.gone)} of "
            "them gone from the log"
        )


def shield_summary(root: str | os.PathLike[str]) -> ShieldSummary | None:
    """Return a summary of a shield, or None if it has no files. If it is unreadable, a notice says why."""
    try:
        shield = look_at_shield(root)
        if not (shield.links or shield.foreign):
            return None
        return ShieldSummary(
            links=len(shield.links),
            kept_bytes=sum(file.link.segment.size_bytes for file in shield.links),
            gone=tuple(file.link.base_offset for file in shield.left_log),
            notices=tuple(_notices(shield, (), None)),
        )
    except ShieldError as error:
        return ShieldSummary(0, 0, (), (Text(error),))


def shield_notices(
    root: str | os.PathLike[str],
    going: Sequence[Segment] = (),
    ask: Callable[[Shield], AskedGone] | None = None,
) -> tuple[str, ...]:
    """Return notices on the shield.

    :param ask: asks lakes and journal about segments that are gone from the log. Without it, the notices on
        these segments don't mention lakes.
    :raises ShieldError: the shield's content is unknown.
    """
    shield = look_at_shield(root)
    return tuple(_notices(shield, going, None if ask is None else ask(shield)))


def _notices(shield: Shield, going: Sequence[Segment], answer: AskedGone | None) -> Iterator[str]:
    unproven = [file for file in (shield.left_log if answer is None else answer.unproven) if file.is_same]
    if unproven:
        if answer is None:
            lake = ""
        elif answer.unreachable:
            lake = f" and in no lake that could be asked ({'; '.join(answer.unreachable)})"
        else:
            lake = " and not in the lake yet"
        yield Text(
            f"{_size_text(unproven)} gone from the log, from offset {unproven[0].link.base_offset} on, "
            f"{'is' if len(unproven) == 1 else 'are'} in the shield{lake}: their space comes back once they "
            "are archived, which a watch does, and ",
            COMMAND,
        )
    yield from (changed_text(file) for file in shield.left_log if not file.is_same)
    inodes = {(segment.facts.device, segment.facts.inode) for segment in going}
    linked = [file for file in shield.links if (file.link.segment.device, file.link.segment.inode) in inodes]
    if linked:
        yield (
            f"deleting frees no space of {_size_text(linked)}: the shield keeps their bytes until the lake "
            "proves them and a release removes their links"
        )
    if shield.foreign:
        yield (
            f"{count_text(len(shield.foreign), 'file')} in the shield, the first is {shield.foreign[0]}, "
            "are of another store or were put there by another program: they keep nothing of this one"
        )


def _size_text(files: Sequence[SeenLink]) -> str:
    size = sum(file.link.segment.size_bytes for file in files)
    return f"{count_text(len(files), 'segment')} ({bytes_text(size)})"


def kept_text(root: str | os.PathLike[str], segment: Segment) -> str:
    """Return a sentence if the shield has a segment that is gone from the log, or else "".

    :raises ShieldError: the shield's content is unknown.
    """
    if not any(
        file.link.slot == segment.id and _has_its_bytes(root, file) for file in look_at_shield(root).gone
    ):
        return ""
    return Text(" The shield has its bytes: a watch archives them, and so does ", COMMAND, ".")
