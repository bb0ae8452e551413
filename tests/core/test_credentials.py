"""No password passes for something that may be shown, however it is given."""

from __future__ import annotations

import pytest

from storage_engine.core.credentials import shown_url, url_secrets, without_secrets


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
