"""``storage-engine docs``: the documentation that came with this release, for a browser without a network."""

from __future__ import annotations

from pathlib import Path

import click

from storage_engine.cli.output.output import put
from storage_engine.cli.shell.command import command
from storage_engine.core.nearest import meant
from storage_engine.exceptions import BadInputError

SITE = Path(__file__).resolve().parent.parent / "site"
"""A wheel has it; a checkout after ``make docs``."""


@command()
@click.argument("page", default="index")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser, too.")
@click.option("--text", "as_text", is_flag=True, help="Print the page's text instead, for a terminal.")
def docs(page: str, opens: bool, as_text: bool) -> None:
    """Print where PAGE of this release's documentation is on this machine; default: its first page.

    It needs no network. PAGE is a name such as quickstart or troubleshooting.
    """
    if not (SITE / "index.html").is_file():
        raise BadInputError(
            f"{SITE}: expected the documentation, found none. In a checkout, make docs builds it."
        )
    names = sorted(path.relative_to(SITE).with_suffix("").as_posix() for path in SITE.rglob("*.md"))
    name = page.removesuffix(".html").removesuffix(".md")
    if name not in names:
        raise BadInputError(f"{page}: expected one of {', '.join(names)}.{meant(name, names)}")
    if as_text:
        put((SITE / f"{name}.md").read_text().rstrip())
        return
    address = (SITE / f"{name}.html").as_uri()
    put(address)
    if opens:
        click.launch(address)
