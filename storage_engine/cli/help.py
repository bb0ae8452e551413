"""man, docs, completion, options: help beyond the ``--help`` of one command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from storage_engine import __version__
from storage_engine.cli.options.store_argument import LIVE_OPTIONS, SHARED_STORE_OPTIONS
from storage_engine.cli.output.output import put, say
from storage_engine.cli.shell.shared_options import GROUPS, QUIET, WAIT, command, records_of
from storage_engine.cli.shell.values import NamedPath
from storage_engine.commands import Command
from storage_engine.core.durable import make_dirs, write_file
from storage_engine.core.wording import count_text, did_you_mean
from storage_engine.exceptions import BadInputError, StorageEngineError

_EXIT_CODES = (
    ("0", "Done."),
    ("1", "A check failed, or work was refused."),
    ("2", "Usage or bad input; nothing was changed."),
    ("3", "A second person has to approve the plan; nothing was deleted."),
    ("130, 143", "Ctrl-C or SIGTERM; nothing is half done, and the same command continues the work."),
    ("141", "The reader of the output has ended."),
)
PROGRAM = "storage-engine"
VARIABLE = "_STORAGE_ENGINE_COMPLETE"
"""Environment variable with which a shell's script asks for completions."""
SHELLS = ("bash", "zsh", "fish")
SITE = Path(__file__).resolve().parent.parent / "site"
"""Pages of the documentation. A wheel contains them; a checkout has them after ``make docs``."""


@command()
@click.argument("directory", required=False, type=NamedPath(file_okay=False))
def man(directory: Path | None) -> None:
    """Write a manual page for each command into DIRECTORY, or print the program's page.

    man looks in a directory such as ~/.local/share/man/man1.
    """
    program = click.get_current_context().find_root()
    pages = dict(_pages(program))
    if directory is None:
        put(pages["storage-engine"])
        return
    make_dirs(directory.absolute())
    for name, text in pages.items():
        write_file(directory.absolute() / f"{name}.1", f"{text}\n".encode())
    say(f"{count_text(len(pages), 'page')} in {directory}. Next: man -l {directory / 'storage-engine.1'}")


def _pages(context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the pages of a command and of all its subcommands."""
    group = context.command
    below: list[tuple[str, str]] = []
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            inner_command = group.get_command(context, name)
            assert inner_command is not None
            inner = click.Context(inner_command, info_name=name, parent=context)
            below.append((_page_name(inner), inner_command.get_short_help_str(limit=100)))
            yield from _pages(inner)
    yield _page_name(context), "\n".join(_page(context, below))


def _page_name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, below: Sequence[tuple[str, str]]) -> Iterator[str]:
    name, command = _page_name(context), context.command
    yield f'.TH "{_text(name.upper())}" "1" "" "storage-engine {_text(__version__)}" "User Commands"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(command.get_short_help_str(limit=100).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f"\\fB{_text(context.command_path)}\\fR {_text(' '.join(command.collect_usage_pieces(context)))}"
    yield ".SH DESCRIPTION"
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        yield _line(" ".join(paragraph.split()))
    yield from _options(context)
    if below:
        yield ".SH COMMANDS"
        for title, summary in below:
            yield from _entry(f"\\fB{_text(title)}\\fR(1)", summary)
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from _entry(_text(code), meaning)
    if context.parent is not None:
        yield ".SH SEE ALSO"
        yield f"\\fB{_text(_page_name(context.parent))}\\fR(1)"


def _options(context: click.Context) -> Iterator[str]:
    groups = records_of(context.command, context)
    if any(groups.values()):
        yield ".SH OPTIONS"
    for title, records in groups.items():
        if records and title != GROUPS[0]:
            yield f".SS {_text(title)}"
        for option, text in records:
            yield from _entry(f"\\fB{_text(option)}\\fR", text)


def _entry(title: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield title
    yield _line(" ".join(text.split()))


def _line(text: str) -> str:
    """Return a text as a line of roff. A first character that would begin a request is escaped."""
    return re.sub(r"^([.'])", r"\\&\1", _text(text))


def _text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


@command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script with which SHELL completes commands, options, choices and files.

    Evaluate it where the shell starts, such as in ~/.bashrc: eval "$(storage-engine completion bash)".
    """
    completer = get_completion_class(shell)
    if completer is None:
        raise StorageEngineError(
            f"{shell}: click {click.__version__} can't make completions for this shell. Update click."
        )
    put(completer(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())


@command()
@click.argument("page", default="index")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser, too.")
@click.option("--text", "as_text", is_flag=True, help="Print the page's text instead, for a terminal.")
def docs(page: str, opens: bool, as_text: bool) -> None:
    """Print the path of PAGE of this release's documentation on this machine; default: its first page.

    It needs no network. PAGE is a name such as quickstart or troubleshooting.
    """
    if not (SITE / "index.html").is_file():
        raise BadInputError(
            f"{SITE}: expected the documentation, found none. In a checkout, make docs builds it."
        )
    names = sorted(path.relative_to(SITE).with_suffix("").as_posix() for path in SITE.rglob("*.md"))
    name = page.removesuffix(".html").removesuffix(".md")
    if name not in names:
        raise BadInputError(f"{page}: expected one of {', '.join(names)}.{did_you_mean(name, names)}")
    if as_text:
        put((SITE / f"{name}.md").read_text().rstrip())
        return
    address = (SITE / f"{name}.html").as_uri()
    put(address)
    if opens:
        click.launch(address)


@command()
def options() -> None:
    """List the options that many commands share: for a store, for its running broker, for the output."""
    say("STORE is the directory of a store, or its name in stores.toml (", Command("docs"), ").\n")
    context = click.get_current_context()
    formatter = context.make_formatter()
    for title, shared in (
        ("Of every command that takes STORE", SHARED_STORE_OPTIONS),
        ("Where the broker runs on", LIVE_OPTIONS),
        ("Of every command", (WAIT, QUIET)),
    ):
        with formatter.section(title):
            formatter.write_dl([row for option in shared if (row := option.get_help_record(context))])
    say(formatter.getvalue().rstrip("\n"))
