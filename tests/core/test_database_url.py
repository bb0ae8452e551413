"""A database's URL loads nothing: neither a driver or plugin that isn't ours, nor what its arguments name."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from storage_engine.core.database_url import _ARGUMENTS, check_database_url
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal

TEXT = st.text(st.sampled_from("?&=@/:%4#;+ab"), max_size=24)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////journal.db?plugin=hostile",
        "sqlite:////journal.db?%70lugin=hostile",
        "sqlite:////journal.db?timeout=1&plugin=hostile",
        "sqlite://u:p?timeout=1@h/db?plugin=hostile",
        "sqlite+pysqlcipher:////journal.db",
        "sqlite:///file:/journal.db?uri=true&vfs=hostile",
        "sqlite:///file:/journal.db?uri=true&nolock=1",
        "postgresql+psycopg://db/journal?service=hostile",
        "postgresql+psycopg://db/journal?sslkey=engine:key",
        "postgresql+psycopg://db/journal?sslkey=a&sslkey=engine%3Akey",
        "postgresql+psycopg://db/journal?oauth_issuer=x",
        "postgresql+psycopg://db/journal?cursor_factory=x",
        "postgresql+pg8000://db/journal",
        "hostile://db/journal",
    ],
)
def test_what_would_load_something_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"one whose scheme|the argument|an sslkey"):
        check_database_url(url)
    with pytest.raises(BadInputError, match="journal_url: expected an SQLAlchemy URL"):
        Journal(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////lake/catalog.db?timeout=60",
        "sqlite:///file:/lake/catalog.db?uri=true",
        "postgresql://me@db/journal",
        "postgresql+psycopg2://db/journal?host=a&host=b&target_session_attrs=read-write",
        "postgresql+psycopg://u:hu?sh@db/journal?sslmode=verify-full&sslrootcert=/ca.pem&sslkey=/own.key",
        "postgresql+psycopg://db/journal?options=-c%20search_path%3Dstorage&application_name=a:b",
    ],
)
def test_how_a_database_is_reached_stays(url: str) -> None:
    check_database_url(url)


def test_libpq_knows_every_argument() -> None:
    for name in _ARGUMENTS["postgresql"].split():
        make_conninfo("", **{name: "1"})


@given(TEXT, st.sampled_from(["plugin", "%70lugin"]), TEXT)
@example("u:p?timeout=1@h/db", "plugin", "")
def test_no_argument_that_sqlalchemy_reads_is_overlooked(before: str, name: str, after: str) -> None:
    for separator in "?&":
        url = f"sqlite://{before}{separator}{name}=x{after}"
        try:
            read = make_url(url).query
        except (ArgumentError, ValueError):
            continue
        if "plugin" in read:
            with pytest.raises(ValueError, match=r"(the|an) argument"):
                check_database_url(url)
