"""Commands that a message names, with the arguments that they take here: what can be pasted helps.

What finds out that a lake or a store needs another command doesn't know what a person called them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_LAKE_OR_CONNECTION = ("lake info", "lake relocate", "lake promote")
_LAKE_AND_CONNECTION = ("lake rebuild", "gc --undo")
_LAKE = "verify --level bytes --renew"
_STORE_OR_CONNECTION = ("stamp --new", "stamp", "adopt")
_MOVE = "move "
_NAME = r"""(?:'[^']*'|"'"|[\w@%+=:,./-])+(?<=['\w@%+=/-])"""
"""A word as a shell takes it, without what ends a clause."""
_STORE = "archive"
_INIT = "init-lake"
_REASON = ("lake promote", *_STORE_OR_CONNECTION)
_STORE_WITH_LAKE = (_STORE, "clean --manual", "clean", "verify", "hold", "unmanage", "shield")
_BOTH_LAKES = (_STORE, "clean --manual", "clean", "verify")
_STORE_ALONE = ("lag", "doctor")
"""Need no lake, and are told no name; doctor takes a lake."""
_OF_STORE = (*_STORE_OR_CONNECTION, *_STORE_WITH_LAKE, *_STORE_ALONE)
_COMMANDS = (
    *_LAKE_OR_CONNECTION,
    *_LAKE_AND_CONNECTION,
    _LAKE,
    *_STORE_OR_CONNECTION,
    *_STORE_WITH_LAKE,
    *_STORE_ALONE,
    _INIT,
)

_NAMED = re.compile(rf"storage-engine (?P<command>{'|'.join(_COMMANDS)}|{_MOVE}{_NAME})(?![\w-])")
_CLAUSE = re.compile(r"(?:(?![.,;:)](?:\s|$)).)*", re.DOTALL)
_ARGUMENT = re.compile(r"\s+(?:[-/.~'\"\d]|(?:STORE|DIRECTORY|LAKE|PASS)\b)")
_SOME_CONNECTION = re.compile(r"--conn-id ID\b")


def with_arguments(text: str, said: Mapping[str, Any]) -> str:
    """Give each command in a text that has none the arguments that stand for a store and its lake.

    A text that has got them stays as it is.

    :param said: what is known, by the names that commands' parameters have: store, lake_dir,
        second_lake_dir, conn_id; ``store_options`` are words that each command of the store takes; with
        ``is_named`` the store's name stands for its lakes too, unless it ``has_own_lake``.
    """
    connection = said.get("conn_id")
    if not isinstance(connection, str):
        connection = None
    is_named = bool(said.get("is_named"))

    def complete(found: re.Match[str]) -> str:
        command, rest = found["command"], text[found.end() :]
        lake = _lake_of(text, said)
        second = said.get("second_lake_dir") if lake == said.get("lake_dir") else None
        of_store = command in _OF_STORE or command.startswith(_MOVE)
        words = _words(command, said.get("store"), lake, second, connection)
        if is_named and of_store:
            words = [str(said["store"]), *(words[1:] if said.get("has_own_lake") else ())]
        if words and command in (*_STORE_WITH_LAKE, *_STORE_ALONE) and "--conn-id" not in words:
            options = tuple(said.get("store_options", ()))
            if command in _STORE_ALONE and "--name" in options:
                at = options.index("--name")
                options = (*options[:at], *options[at + 2 :])
            words += options
        if not words or _has_arguments(rest):
            return found[0]
        reason = " --reason TEXT" if command in _REASON else ""
        return f"{found[0]} {' '.join(map(_quoted, words))}{reason}"

    told = _NAMED.sub(complete, text)
    if connection is None:
        return told
    named = f"--conn-id {_quoted(connection)}"
    return _SOME_CONNECTION.sub(lambda _: named, told)


def first_named(text: str, places: Sequence[str]) -> int | None:
    """Return which of some places a text names first; None: it names none."""
    found = [(text.find(place), -len(place), number) for number, place in enumerate(places)]
    return min((item for item in found if item[0] >= 0), default=(0, 0, None))[2]


def _words(command: str, store: object, lake: object, second: object, connection: str | None) -> list[str]:
    """Return a command's arguments; none where they aren't known."""
    of_lake = [] if lake is None else ["--lake", str(lake)]
    of_connection = [] if connection is None else ["--conn-id", connection]
    of_store = command in _STORE_OR_CONNECTION or command.startswith(_MOVE)
    if of_store and of_connection:
        return of_connection
    if command == "doctor" and of_connection:
        return of_connection
    if command in _STORE_ALONE:
        with_lake = of_lake if command == "doctor" else []
        return [] if store is None else [_as_path(str(store)), *with_lake]
    if of_store or command in _STORE_WITH_LAKE:
        if store is None or lake is None:
            return []
        of_second = ["--second-lake", str(second)] if second and command in _BOTH_LAKES else []
        return [str(store), *of_lake, *of_second]
    if command in _LAKE_AND_CONNECTION:
        return [*of_lake, *of_connection]
    if command in _LAKE_OR_CONNECTION:
        return of_lake or of_connection
    return of_connection or of_lake if command == _INIT else of_lake


def _as_path(store: str) -> str:
    """Return a path that no word of a sentence is taken for."""
    return store if store[:1] in tuple("/.~'\"0123456789-") else f"./{store}"


def _has_arguments(rest: str) -> bool:
    """Return whether what follows a command's name are arguments of it, and not the rest of a sentence."""
    clause = _CLAUSE.match(rest)
    said = "" if clause is None else clause[0]
    return _ARGUMENT.match(rest) is not None or "--lake" in said or "--conn-id" in said


def _quoted(word: str) -> str:
    """Return a word as a shell takes it, so that its end isn't taken for that of a sentence."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and word.endswith((".", ",", ":")) else quoted


def _lake_of(text: str, said: Mapping[str, Any]) -> object:
    """Return the lake's directory that a text is about: the one that it names first."""
    first, second = said.get("lake_dir"), said.get("second_lake_dir")
    if first is None or second is None:
        return first
    named = first_named(text, [f"{os.path.realpath(lake)}/" for lake in (first, second)])
    return second if named == 1 else first
