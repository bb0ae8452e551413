"""A text keeps its commands as parts, and who shows it gives them its reader's arguments, to be pasted."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import storage_engine.commands as module
from storage_engine.cli.main import cli as group
from storage_engine.cli.options.store_argument import managed_store
from storage_engine.cli.shell.shared_options import parameters_of, with_store_of_connection
from storage_engine.commands import (
    Arguments,
    Command,
    Text,
    commands_in,
    join_texts,
    render_command,
    then,
    with_arguments,
)
from storage_engine.core.jsonable import to_jsonable
from storage_engine.exceptions import (
    BadInputError,
    BrokerRefusedError,
    ChangedUnderUsError,
    GateRefusedError,
    LakeUnavailableError,
)
from storage_engine.journal.journal import Phase, Step
from storage_engine.lake.coverage.coverage import judge_absent
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.hold import Drift, DriftKind
from storage_engine.retention.proof.gate import Passage
from storage_engine.retention.ranges.drift import drift_alarms
from storage_engine.retention.release import judging
from storage_engine.retention.report.report import step_reports
from storage_engine.retention.store.context import Context
from tests.cli.every_command import EVERY

PACKAGE = Path(__file__).resolve().parents[1] / "storage_engine"
HERE = Arguments(store="store", lake_dir="the lake")
NAMES = [
    name
    for names in vars(module).values()
    if isinstance(names, tuple) and names and all(isinstance(name, str) for name in names)
    for name in names
]
"""Commands that take arguments of what is known."""
REBUILD = Text("Bring it back by ", Command("lake rebuild"), ", and archive again.")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (Command("lake relocate"), "lake relocate --lake 'the lake'"),
        (Command("lake rebuild"), "lake rebuild --lake 'the lake'"),
        (Command("stamp"), "stamp store --lake 'the lake' --reason TEXT"),
        (Command("stamp --new"), "stamp --new store --lake 'the lake' --reason TEXT"),
        (Command("move orders"), "move orders store --lake 'the lake'"),
        (Command("move 'ann'\"'\"'s'"), "move 'ann'\"'\"'s' store --lake 'the lake'"),
        (Command("archive"), "archive store --lake 'the lake'"),
        (Command("init-lake"), "init-lake --lake 'the lake'"),
        (Command("doctor"), "doctor store --lake 'the lake'"),
        (Command("lag"), "lag store"),
        (Command("lake rebuild", "--lake /other"), "lake rebuild --lake /other"),
        (Command("lake copy"), "lake copy"),
        (Command("watch"), "watch"),
    ],
)
def test_a_command_gets_the_arguments_of_the_call_unless_it_has_some(command: Command, told: str) -> None:
    text = Text("run ", command, ", or {else}")
    assert with_arguments(text, HERE) == f"run storage-engine {told}, or {{else}}"
    assert then(text, HERE) == [f"storage-engine {told}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_command_is_given_options_that_it_has(name: str) -> None:
    options = ("--name", "orders", "--broker-conf", "c")
    known = Arguments("s", "l", "l2", store_options=options)
    _check(render_command(Command(name), known))
    _check(render_command(Command(name), Arguments(conn_id="c")))
    if name in module._STORE_ALONE:
        assert "--name" not in render_command(Command(name), known)


def test_what_is_not_known_is_left_out() -> None:
    text = Text("run ", Command("adopt"), ", or ", Command("lake rebuild"))
    assert (
        with_arguments(text, Arguments())
        == text
        == "run storage-engine adopt, or storage-engine lake rebuild"
    )
    assert with_arguments(text, Arguments(lake_dir="l")) == f"{text} --lake l"
    of_connection = "run storage-engine adopt --conn-id c --reason TEXT, or storage-engine lake rebuild"
    assert with_arguments(text, Arguments(conn_id="c")) == f"{of_connection} --conn-id c"
    # A lake that was named beside a connection need not be that connection's.
    assert (
        with_arguments(text, Arguments(conn_id="c", lake_dir="l")) == f"{of_connection} --lake l --conn-id c"
    )
    some = Command("init", "--airflow --conn-id ID")
    assert render_command(some, Arguments(conn_id="a b")) == "storage-engine init --airflow --conn-id 'a b'"
    assert render_command(some, Arguments()) == str(some)


def test_a_text_about_the_second_lake_names_that_one() -> None:
    known = Arguments("s", "/first", "/second", places=("/first/", "/second/"))
    about = Text("/second/catalog.db: what is in /first/ too. Run ", Command("lake rebuild"))
    assert then(about, known) == ["storage-engine lake rebuild --lake /second"]
    assert then(Text("nothing: ", about[10:]), known) == ["storage-engine lake rebuild --lake /first"]
    assert then(about, replace(known, second_lake_dir=None)) == ["storage-engine lake rebuild"]
    assert then(Text(Command("archive")), known) == [
        "storage-engine archive s --lake /first --second-lake /second"
    ]


def test_a_name_stands_for_its_store_and_lakes() -> None:
    named = Arguments("main", "/lake", is_named=True, store_options=("--set", "a=b"))
    assert render_command(Command("clean"), named) == "storage-engine clean main --set a=b"
    assert render_command(Command("stamp"), named) == "storage-engine stamp main --reason TEXT"
    own = replace(named, has_own_lake=True)
    assert render_command(Command("verify"), own) == "storage-engine verify main --lake /lake --set a=b"


def test_prose_and_what_only_looks_like_a_command_stay_as_they_are() -> None:
    text = "an older run said: storage-engine lake rebuild {lake}, and 100 %s"
    assert with_arguments(text, HERE) == text
    assert with_arguments(Text(f"{text}: ", Command("lake info")), HERE) == (
        f"{text}: storage-engine lake info --lake 'the lake'"
    )
    assert commands_in(text) == ()


def test_texts_keep_their_commands_where_they_are_put_together() -> None:
    command = Command("lake rebuild")
    for text in (
        "before " + REBUILD,
        REBUILD + " after",
        REBUILD.removesuffix("."),
        REBUILD.partition(", and ")[0],
        REBUILD.without(", and archive again"),
        REBUILD.each(str.upper),
        REBUILD[6:],
        join_texts("; ", ["one", REBUILD]),
        Text("it is said: ", LakeUnavailableError(REBUILD)),
    ):
        assert commands_in(text) == (command,), text
    assert commands_in(REBUILD[:20]) == ()
    assert REBUILD[:20] == str(REBUILD)[:20]
    assert [REBUILD.without("storage"), REBUILD.partition("no"), REBUILD[-1]] == [
        str(REBUILD).replace("storage", ""),
        (REBUILD, "", ""),
        ".",
    ]
    long = Text("x" * 20_000, ": ", REBUILD).cut(10_000)
    assert len(long) <= 10_000
    assert commands_in(long) == (command,)


def test_what_is_said_of_drift_and_of_ranges_keeps_its_commands() -> None:
    command = Command("lake rebuild")
    for kind in (DriftKind.FENCE_MENDED, DriftKind.SEGMENT_GONE):
        (alarm,) = drift_alarms([Drift(kind, REBUILD)], ())
        assert commands_in(alarm) == (command,), alarm
    absent = judge_absent((), (f"no lake: {REBUILD}", REBUILD), has_receipt=False)
    assert commands_in(absent.detail) == (command,)


def test_a_refusal_of_segments_keeps_the_commands_of_each() -> None:
    segment = SimpleNamespace(id=1, log="log", base_offset=0, facts=SimpleNamespace(path="/segment"))
    verdict = SimpleNamespace(segment=segment, passage=Passage.REFUSED, detail=REBUILD)
    plan, proofs = SimpleNamespace(digest="0"), SimpleNamespace(asked=[SimpleNamespace(faults={1: "lost"})])
    (refusal,) = judging._refuse_unproven(plan, [verdict], proofs)  # type: ignore[arg-type, list-item]
    commands = (Command("lake rebuild"), Command("verify --level bytes --renew"))
    assert isinstance(refusal.error, GateRefusedError)
    assert refusal.error.then == commands
    assert (*commands_in(refusal.said.why), *commands_in(refusal.said.remedy)) == commands


@pytest.mark.parametrize(
    "error",
    [
        LakeUnavailableError(REBUILD, " Or ", Command("lake info"), "."),
        BadInputError(REBUILD, page="lake"),
        ChangedUnderUsError(REBUILD, path="/a"),
        BrokerRefusedError(REBUILD, code=3, may_have_acted=True),
    ],
)
def test_errors_that_are_pickled_keep_their_commands(error: Any) -> None:
    for one in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(one) is type(error)
        assert (str(one), one.then, vars(one)) == (str(error), error.then, vars(error))
        assert with_arguments(Text(one), HERE).startswith(
            "Bring it back by storage-engine lake rebuild --lake 'the lake', and"
        )
    assert type(str(error)) is str
    assert error.then[0] == Command("lake rebuild")


def test_an_error_is_told_by_its_own_words() -> None:
    class OwnError(LakeUnavailableError):
        def __str__(self) -> str:
            return "said otherwise"

    assert Text("it is said: ", OwnError(REBUILD)) == "it is said: said otherwise"
    assert OwnError(REBUILD).then == ()
    for error in (OSError(2, "none", "file"), KeyError("key"), ValueError(), LakeUnavailableError()):
        assert Text(error) == str(error)


def test_an_error_that_a_step_recorded_keeps_its_commands_for_the_report() -> None:
    recorded: list[Any] = []
    journal = SimpleNamespace(record=lambda run, step, phase, said: recorded.extend(said))
    context: Any = SimpleNamespace(journal=journal)
    run: Any = None
    Context.record_error(context, run, Step.PLAN, LakeUnavailableError(REBUILD))
    ((subject, said),) = json.loads(json.dumps(recorded))
    event: Any = SimpleNamespace(step=Step.PLAN, subject=subject, phase=Phase.ERROR, payload=said)
    (row,) = step_reports([event], ())
    assert (row.error, commands_in(row.error)) == (
        f"LakeUnavailableError: {REBUILD}",
        (Command("lake rebuild"),),
    )
    # As an older release records it.
    del said["parts"]
    assert step_reports([event], ()) == (row,)


def test_json_has_a_text_as_a_string() -> None:
    assert type(to_jsonable({"a": [REBUILD]})["a"][0]) is str
    assert Text.from_json(json.loads(json.dumps(REBUILD.to_json()))).parts == REBUILD.parts


def test_a_connection_s_store_is_named_where_a_command_takes_no_connection() -> None:
    store = replace(
        managed_store(Path("/a store"), broker_conf=Path("/b.conf"), overrides={"deleteWhen": "05"}),
        live=LiveBroker(address="host:10911", secret_key="never shown"),
    )
    known = with_store_of_connection(Arguments(conn_id="c"), store)
    assert render_command(Command("lag"), known) == (
        "storage-engine lag '/a store' --broker-conf /b.conf --set deleteWhen=05 --broker host:10911"
    )
    assert render_command(Command("doctor"), known) == "storage-engine doctor --conn-id c"


@pytest.mark.parametrize("words", [[], ["nothing"], ["lake"], ["lake", "nothing"], ["verify", "--nothing"]])
def test_a_call_that_names_no_command_has_no_parameters(words: list[str]) -> None:
    assert parameters_of(group, words) == Arguments()


def _check(told: str) -> None:
    """Make sure that the shell has a command and its options."""
    words = shlex.split(told)[1:]
    context = group.make_context("storage-engine", list(words), resilient_parsing=True)
    name, found, rest = group.resolve_command(context, words)
    while isinstance(found, click.Group) and rest:
        name, found, rest = found.resolve_command(context, rest)
    assert found is not None, told
    has = {word for option in found.get_params(context) for word in option.opts}
    assert {word for word in rest if word.startswith("--")} <= has, (told, name)


def _literal(node: ast.expr) -> str:
    """Return a string of a source, with X for each value that is put into it."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    values = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in values)


@cache
def _sources() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return tuple((str(path.relative_to(PACKAGE)), ast.parse(path.read_text())) for path in paths)


def test_each_command_that_a_text_names_is_one_of_the_shell_with_options_that_it_has() -> None:
    found = 0
    for _, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Command":
                words, *given = map(_literal, node.args)
                if words and "X" not in words.partition("move ")[0]:
                    _check(f"storage-engine {words} {' '.join(given)}")
                    found += 1
    assert found > 150


NAMED = re.compile(rf"storage-engine (?:{'|'.join(map(re.escape, EVERY))})(?![\w-])")
HELP = {"help", "short_help", "epilog", "at_shell"}
OF_FILES = {"project/into_airflow.py"}
"""Writes into a file's head by what it was written."""


def test_no_text_names_a_command_that_is_none() -> None:
    told = [
        f"{name}:{node.lineno}: {text}"
        for name, tree in _sources()
        if name not in OF_FILES
        for node in _texts(tree)
        if NAMED.search(text := _literal(node))
    ]
    assert told == []
    said = (
        "def f():\n    'As storage-engine doctor.'\n"
        "    g(f'{a}: storage-engine '\n    'archive', help='storage-engine doctor')"
    )
    assert [NAMED.findall(_literal(node)) for node in _texts(ast.parse(said))] == [["storage-engine archive"]]


def _texts(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the strings of a source without docstrings and helps."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.keyword) and node.arg in HELP:
            continue
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            yield node
        else:
            yield from _texts(node)


def test_no_text_glues_a_word_to_a_command() -> None:
    glued = [
        f"{path}:{call.lineno}: {ast.unparse(after)[:40]}"
        for path, tree in _sources()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call.func).endswith(("Text", "Error"))
        for before, after in pairwise(call.args)
        if isinstance(before, ast.Call) and _name(before.func) == "Command" and _begins_with_word(after)
    ]
    assert not glued


def test_no_text_has_a_blank_too_many_after_a_part() -> None:
    spaced = [
        f"{path}:{call.lineno}: {ast.unparse(text)[:40]}"
        for path, tree in _sources()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call.func).endswith(("Text", "Error"))
        for text in call.args[1:]
        if _beginning(text).startswith(("  ", " .", " ,", " ;"))
    ]
    assert not spaced


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _begins_with_word(text: ast.expr) -> bool:
    return _beginning(text)[:1].isalnum()


def _beginning(text: ast.expr) -> str:
    first = text.values[0] if isinstance(text, ast.JoinedStr) and text.values else text
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
