"""Write what the reference pages take from the code: options of commands, settings, classes for DAGs.

Prose between the tables stays as people wrote it. A new command needs its heading in command-line.md first.

Usage: python docs/write_reference.py
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import click

from storage_engine.cli.main import COMMANDS, cli
from storage_engine.cli.options.store_argument import LIVE_OPTIONS, SHARED_STORE_OPTIONS
from storage_engine.get_provider_info import get_provider_info
from storage_engine.model.settings.policy import Policy, settings_of
from storage_engine.model.settings.store_settings import STORE_SETTINGS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_EVERYWHERE = ("help", "quiet", "wait")
_SEVERAL = 3
"""Of so many commands an option is described once."""
_KINDS = ("hooks", "operators", "sensors", "triggers")
_SKIPS_AND_FAILURES = """\
- Tasks directly downstream are skipped behind a plan that deletes nothing, behind the consumer lag of a dry
  run, and behind an approval that was rejected or not given in time.
- Give the report of a cleanup the trigger rule `all_done`, and make it the last task: it fails where any step
  of the run did. A release that refuses some logs and not all succeeds.
- Without `spark_conn_id` the two lake jobs are skipped; the other tasks do their work without Spark. A Spark
  that can't start fails the task.
- `StorageEngineDueSensor` is skipped where a run would do nothing, and fails where each DAG that would do it
  is paused.
- Sensors and triggers of a stopped broker's store look at the disks of their own host. An unknown level is
  no cause.
"""


def commands() -> dict[str, click.Command]:
    """Return commands by what is typed for them; one that groups others stands for these."""
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= {f"{name} {inner}": below for inner, below in command.commands.items()}
        else:
            found[name] = command
    return found


def own_options(command: click.Command) -> Iterator[click.Option]:
    """Yield a command's options but those that every store's command takes."""
    for option in command.params:
        is_shared = option in (*SHARED_STORE_OPTIONS, *LIVE_OPTIONS)
        if isinstance(option, click.Option) and option.name not in _EVERYWHERE and not is_shared:
            yield option


def common_rows(every: Iterable[click.Command]) -> list[str]:
    """Return the rows of options that mean the same to several commands, the most frequent first."""
    counts = Counter(
        (_name(option), _row(option)) for command in every for option in own_options(command)
    ).most_common()
    # Of an option that means several things, the most frequent one.
    meanings = dict(reversed([pair for pair, count in counts if count >= _SEVERAL]))
    return [row for (name, row), _ in counts if meanings.get(name) == row]


def options_table(options: Iterable[click.Option], common: Container[str] = ()) -> str:
    """Return the table of options; empty where there are none.

    :param common: rows that stand in a table of their own; the last row here names these options.
    """
    rows: list[str] = []
    also: list[str] = []
    for option in options:
        row = _row(option)
        required = " Required." if option.required else ""
        if row in common:
            also.append(f"`{_name(option)}`{' (required)' if required else ''}")
        else:
            rows.append(row.removesuffix(" |") + f"{required} |")
    if also:
        rows.append(f"| also | {', '.join(also)} |")
    return "\n".join(["| option | |", "|---|---|", *rows, ""]) if rows else ""


def _row(option: click.Option) -> str:
    return f"| `{_shown(option)}` | {_told(option)} |"


def _name(option: click.Option) -> str:
    return max(option.opts, key=len)


def _shown(option: click.Option) -> str:
    name = _name(option)
    if option.is_flag:
        return name
    metavar = option.make_metavar(click.Context(cli)).removeprefix("[").removesuffix("]")
    takes = f"[{metavar}]" if option._flag_needs_value else metavar
    return f"{name} {takes}".replace("|", "\\|")


def _told(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    text = text if text.endswith(".") or not text else f"{text}."
    told = (click.Choice, click.types.FloatParamType, click.types.IntParamType)
    shown = option.default if isinstance(option.type, told) and not option.is_flag else None
    return f"{text} Default: `{shown}`." if isinstance(shown, str | float | int) else text


def with_options(page: str) -> str:
    """Return the page of commands with each section's table as the code has it."""
    every = commands()
    common = common_rows(every.values())
    tables = {name: options_table(own_options(command), common) for name, command in every.items()}
    tables["Options of a store"] = options_table(SHARED_STORE_OPTIONS)
    tables["Beside a running broker"] = options_table(LIVE_OPTIONS)
    tables["Options of several commands"] = "\n".join(["| option | |", "|---|---|", *common, ""])

    def renewed(section: re.Match[str]) -> str:
        heading, text = section[1], section[2]
        named = re.match(r"`([a-z -]+?)(?:`| [A-Z\[])", heading)
        table = tables.get(named[1].strip() if named else heading)
        if table is None:
            return section[0]
        without = re.sub(r"^\| option \| \|\n(?:\|.*\n)+", "\0", text, flags=re.MULTILINE)
        if "\0" not in without and table:
            without = f"{without.rstrip()}\n\n\0\n"
        return f"## {heading}\n" + without.replace("\0", table)

    return re.sub(r"^## (.*)\n((?:(?!## ).*\n)*)", renewed, page, flags=re.MULTILINE)


def with_policy(page: str) -> str:
    """Return the page of the policy with its table as the code has it."""
    rows = [
        f"| `{one.name}` | {', '.join(one.choices) or one.expected.removeprefix('a whole number ')}"
        f" | {one.default_text or 'none'} | {one.help} |\n"
        for one in settings_of(Policy)
    ]
    head = r"(\| setting \| values \| default \| meaning \|\n\|[-|]+\n)(?:\|.*\n)+"
    return re.sub(head, lambda found: found[1] + "".join(rows), page)


def with_connection(page: str) -> str:
    """Return the page of the connection with each setting's row as the code has it.

    A new setting needs its row by hand first, under the heading where a reader looks for it.
    """
    rows = {
        one.place: f"| `{one.place}` | {f'`{one.option}`' if one.option else ''} | {one.values} "
        f"| {one.in_connection} |"
        for one in STORE_SETTINGS
    }
    return re.sub(r"^\| `([a-z_.]+)` \| .*$", lambda row: rows.get(row[1], row[0]), page, flags=re.MULTILINE)


def airflow_classes() -> str:
    """Return the page of what DAGs are made of, from the docstrings alone: Airflow isn't imported."""
    provider = get_provider_info()
    parts = [
        "# Classes for DAGs\n",
        "What `storage-engine init` writes into its DAGs, for DAGs of your own. "
        "This page is made from the code.\n",
        _SKIPS_AND_FAILURES,
    ]
    for kind in _KINDS:
        for group in provider[kind]:
            for module in group["python-modules"]:
                parts.append(f"## {kind.capitalize()}: `{module}`\n")
                parts.extend(_classes(ROOT / f"{module.replace('.', '/')}.py"))
    return "\n".join(parts)


def _classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and ast.get_docstring(node):
            yield f"### `{node.name}`\n"
            yield from _described(ast.get_docstring(node) or "")
            for member in node.body:
                said = ast.get_docstring(member) if isinstance(member, ast.FunctionDef) else None
                said = "" if (said or "").startswith(":") else said
                if isinstance(member, ast.FunctionDef) and said and not member.name.startswith("_"):
                    arguments = [one.arg for one in (*member.args.args, *member.args.kwonlyargs)][1:]
                    summary = inspect.cleandoc(said).split("\n\n")[0]
                    call = f"{member.name}({', '.join(arguments)})"
                    yield f"- `{call}`: {_plain(' '.join(summary.split()))}\n"


def _described(said: str) -> Iterator[str]:
    text, *fields = re.split(r"^:(?=param |return|raises )", inspect.cleandoc(said), flags=re.MULTILINE)
    # The rest is for who reads the code.
    summary = text.strip().split("\n\n")[0]
    yield f"{_plain(summary)}\n"
    rows = []
    for one in fields:
        name, _, meaning = one.partition(":")
        if name.startswith("param "):
            rows.append(f"| `{name.removeprefix('param ')}` | {_plain(' '.join(meaning.split()))} |")
    if rows:
        yield "\n".join(["| parameter | meaning |", "|---|---|", *rows, ""])


def _plain(text: str) -> str:
    """Return reStructuredText's roles and literals as Markdown's code."""
    roles = r":\w+:`~?([^`<]+?)(?: <[^`]*>)?`|``([^`]+)``"
    return re.sub(roles, lambda found: f"`{found[1] or found[2]}`", text)


def pages() -> dict[Path, str]:
    """Return the texts that the pages have to have."""
    command_line, retention, connection = (
        DOCS / name for name in ("command-line.md", "retention.md", "connection.md")
    )
    return {
        command_line: with_options(command_line.read_text(encoding="utf-8")),
        retention: with_policy(retention.read_text(encoding="utf-8")),
        connection: with_connection(connection.read_text(encoding="utf-8")),
        DOCS / "python.md": airflow_classes(),
    }


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
