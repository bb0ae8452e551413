"""Airflow's settings file as a person keeps it: one option is set, and all other lines stay. Pure."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

from storage_engine.exceptions import BadInputError

PAGE = "own-airflow"
"""Of the documentation, about all that is set up in an Airflow."""


def parsed(text: str, path: Path) -> configparser.ConfigParser:
    """Return a settings file as Airflow reads it.

    :param path: names it in errors.
    :raises BadInputError: Airflow would not start with it; names the line.
    """
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, source=str(path))
    except configparser.DuplicateSectionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the section [{error.section}] once, found it again. No "
            "Airflow starts with it. Nothing was changed. Move the options of the second one into the first "
            "one, and remove it.",
            page=PAGE,
        ) from None
    except configparser.DuplicateOptionError as error:
        raise BadInputError(
            f"{path}, line {error.lineno}: expected the option {error.option} of [{error.section}] once, "
            "found it again. No Airflow starts with it. Nothing was changed. Remove one of the two.",
            page=PAGE,
        ) from None
    except configparser.Error as error:
        raise BadInputError(f"{path}: expected settings of an Airflow: {error}", page=PAGE) from None
    return parser


def with_option(text: str, section: str, option: str, value: str) -> str:
    """Return a settings file in which an option has a value; its section is made where there is none.

    :param text: that :func:`parsed` can read.
    """
    lines = text.splitlines(keepends=True)
    said = f"{option} = {value}\n"
    start = next((i + 1 for i, line in enumerate(lines) if line.strip() == f"[{section}]"), None)
    if start is None:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{section}]\n{said}"
    end = next((i for i in range(start, len(lines)) if lines[i].startswith("[")), len(lines))
    named = re.compile(rf"{re.escape(option)}\s*[=:]", re.IGNORECASE)
    found = next((i for i in range(start, end) if named.match(lines[i])), None)
    if found is None:
        return "".join([*lines[:start], said, *lines[start:]])
    behind = found + 1
    while behind < end and lines[behind].strip() and lines[behind][0] in " \t":
        behind += 1
    return "".join([*lines[:found], said, *lines[behind:]])


def with_store(listed: str, conn_id: str, *, without: str = "", **places: str) -> str:
    """Return the option ``stores`` with one more store, unless it is there.

    :param listed: as :func:`~storage_engine.hooks.configured_stores.configured_stores` reads it.
    :param without: what the option has where nobody said anything, and no connection is; "": nothing.
    :param places: what the store's entry says of where its tasks run, such as ``queue``; it says that then.
    :raises BadInputError: it is no list of stores.
    """
    if listed.lstrip().startswith("["):
        try:
            entries = json.loads(listed)
            there = [entry["conn_id"] for entry in entries]
        except (ValueError, TypeError, KeyError):
            raise BadInputError(
                "[storage_engine] stores: expected a JSON list of objects with conn_id, found another text. "
                "Nothing was changed. Correct it first.",
                page=PAGE,
            ) from None
    else:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        if not places:
            return listed if conn_id in names else ",".join([*(it for it in names if it != without), conn_id])
        there = [it for it in names if it != without or it == conn_id]
        entries = [{"conn_id": it} for it in there]
    if conn_id not in there:
        entries.append({"conn_id": conn_id})
    found = [{**entry, **places} if entry["conn_id"] == conn_id else entry for entry in entries]
    return listed if found == entries and conn_id in there else json.dumps(found)
