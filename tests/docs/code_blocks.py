"""Code blocks of the pages, with what comments above them say to the tests.

A comment ``<!-- key: value -->`` right above a block, which no reader sees, is one of:

- ``start``: the data that this block and those after it begin with, one of :data:`tests.docs.sandbox.STARTS`;
- ``before``: a command that makes what the block is about, such as a broker's crash;
- ``exit``: the exit code of the block's last command; without it 0;
- ``engine``: what runs it: duckdb, pyiceberg, pandas or spark;
- ``is``: what the text has to be, one of :data:`tests.docs.fragments.PARSERS`;
- ``file``: the path at which commands after it find the text;
- ``tested by``: the test file that runs it, which names this page; ``all tested by`` says so of all below;
- ``not run``: why it can't be run here; its commands and options are checked all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md")
KEYS = ("start", "before", "exit", "engine", "is", "file", "tested by", "not run")
LANGUAGES = ("console", "python", "sql", "json", "ini", "toml")

_COMMENT = re.compile(r"^<!-- ([a-z ]+): (.+) -->$")
_FENCE = re.compile(r"^```(.*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    :param line: of its opening fence.
    :param said: what the comments above it say, by key.
    """

    page: Path
    line: int
    language: str
    text: str
    said: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a console block, and what it prints; None where the page leaves that out."""

    line: str
    prints: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield a page's fenced blocks in their order."""
    said: dict[str, str] = {}
    of_all: dict[str, str] = {}
    lines = page.read_text(encoding="utf-8").splitlines()
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence:
                first, language = opened
                yield Block(page, first, language, "\n".join(lines[first : number - 1]) + "\n", of_all | said)
                opened, said = None, {}
        elif fence:
            opened = number, fence[1]
        elif comment := _COMMENT.match(line):
            key = comment[1].removeprefix("all ")
            (said if key == comment[1] else of_all)[key] = comment[2]
        elif line.strip():
            said = {}
    assert opened is None, f"{page}: the last block has no end"


def blocks_under(page: Path, heading: str) -> dict[str, str]:
    """Return a page's blocks under a heading, by language and engine."""
    lines = page.read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {heading}") + 1
    end = next((n for n, line in enumerate(lines) if n > first and line.startswith("## ")), len(lines))
    return {
        f"{block.language} {block.said.get('engine', '')}".strip(): block.text
        for block in blocks_of(page)
        if first <= block.line <= end
    }


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block: what follows ``$``, with lines that a backslash continues."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"{block.place}: expected a command after $, found {parts[0]!r}"
    for part in parts[1:]:
        line, _, printed = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield Command(line, printed if printed.strip() else None)
