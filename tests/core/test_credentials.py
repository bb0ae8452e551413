"""No password passes for something that may be shown, however it is given."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from storage_engine.core.credentials import (
    _ARGUMENTS,
    check_database_url,
    shown_url,
    url_secrets,
    without_secrets,
)
from storage_engine.exceptions import BadInputError
from storage_engine.journal.journal import Journal


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("postgresql+psycopg://u:p%40ss%2Fw@db/x", {"p%40ss%2Fw", "p@ss/w"}),
        ("postgresql+psycopg://u:hu/sh@db/x", {"hu/sh"}),
        ("postgresql+psycopg://u:hu?sh@db/x", {"hu?sh"}),
        ("postgresql+psycopg://u:hu@sh@db/x", {"hu@sh", "sh"}),
        ("postgresql+psycopg://db/x?user=u&password=hu%26sh", {"hu%26sh", "hu&sh"}),
        ("postgresql+psycopg://db/x?user=u&password=hu@sh", {"hu@sh"}),
        ("postgresql+psycopg://db:5432/x?password=hu@sh", {"hu@sh", "sh"}),
        ("postgresql+psycopg://u:hush@db:port/x", {"hush"}),
        ("https://u:hush@catalog/api?token=other", {"hush", "other"}),
    ],
)
def test_every_password_of_a_url_is_found(url: str, secrets: set[str]) -> None:
    assert secrets <= url_secrets(url)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////a@b/journal.db?timeout=60",
        "s3://bucket/a:b@c",
        "file:///a:b@c",
        "http://catalog:8181/a/@b",
        "postgresql+psycopg://u@db:5432/x?sslmode=require",
        "thrift://a:9083,thrift://b:9083",
    ],
)
def test_what_opens_nothing_is_no_password(url: str) -> None:
    assert not url_secrets(url)


def test_a_url_is_shown_without_its_passwords() -> None:
    assert shown_url("postgresql://u:hush@db/x?sslpassword=hush") == "postgresql://u:***@db/x?sslpassword=***"
    assert shown_url("sqlite:////a/journal.db") == "sqlite:////a/journal.db"


@pytest.mark.parametrize("url", ["hush", "postgresql://u:hush@db:port/x", "postgresql://u:hu@sh@db/x"])
def test_what_is_no_url_is_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|password") as caught:
        shown_url(url)
    assert "sh" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_longest_secret_is_hidden_first() -> None:
    assert without_secrets("id:hush and hush", {"hush", "id:hush"}) == "*** and ***"


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
