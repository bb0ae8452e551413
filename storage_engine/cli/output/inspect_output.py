"""How an inspected store is shown to a person."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from storage_engine.cli.output.output import print_table, say, terminal_width
from storage_engine.cli.output.plan_output import print_disks
from storage_engine.cli.output.table_layout import NAME_WIDTH
from storage_engine.core.wording import bytes_text, shortened, time_text
from storage_engine.model.report.inspection import Disks, Inspection, Names, Paragraph, Table

if TYPE_CHECKING:
    from storage_engine.retention.quarantine.look import QuarantineLook


def print_inspection(found: Inspection) -> None:
    """Print what a broker says of its store, in its order."""
    for section in found.sections:
        match section:
            case Paragraph(text):
                say(text)
            case Disks(levels):
                print_disks(levels)
            case Table(title, columns, rows):
                print_table(title, columns, rows)
            case Names(title, names):
                _print_names(title, names)


def print_quarantines(found: Sequence[QuarantineLook]) -> None:
    """Print what runs have set aside, if anything."""
    if not found:
        return
    print_table(
        "Quarantine: used space until it is emptied; storage-engine undo RUN brings a run's files back",
        ("run", "files#", "size#", "until", "in"),
        (
            (
                one.run_key or "unknown",
                one.files,
                bytes_text(one.size_bytes),
                time_text(one.until_ms),
                one.directory,
            )
            for one in found
        ),
    )
    for one in found:
        if one.error:
            say(f"{one.directory}: {one.error}")


def _print_names(title: str, names: Iterable[str]) -> None:
    """A list of names, wrapped in a terminal and on one line elsewhere."""
    width = terminal_width()
    shown = [name if width is None else shortened(name, NAME_WIDTH) for name in names]
    text = f"{title} ({len(shown)}): {', '.join(shown) or 'none'}"
    if width is not None:
        text = textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)
    say(text)
