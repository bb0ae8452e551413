"""What an install lacks is one error that names what brings it."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from storage_engine.core.extras import AIRFLOW, POSTGRES, QUALITY, SPARK, Extra, SparkPair
from storage_engine.exceptions import MissingExtraError
from storage_engine.journal.journal import Journal
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from tests.extras import take_away
from tests.services.command_line import run_command

POSTGRES_URL = "postgresql+psycopg://me:secret@no-such-host.invalid/journal"


def test_an_extra_is_known_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert QUALITY.is_installed
    assert not Extra("x", "X", "no_such_module").is_installed
    (tmp_path / "only_a_directory").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not Extra("x", "X", "only_a_directory").is_installed
    assert "great_expectations" not in sys.modules or QUALITY.is_installed


@pytest.mark.parametrize(
    ("pyspark", "client", "unequal"),
    [
        (None, None, False),
        ("3.5.9", None, False),
        (None, "4.2.0", False),
        ("4.1.3", "4.1.3", False),
        ("4.1.4", "4.1.3", True),
        ("4.1.3", "4.2.0", True),
    ],
)
def test_pyspark_and_its_client_are_of_one_version(
    pyspark: str | None, client: str | None, unequal: bool
) -> None:
    pair = SparkPair(pyspark, client)
    assert pair.is_unequal == unequal
    if unequal:
        assert f"found {pyspark} and {client}" in pair.what
        assert pair.install.endswith(f" pyspark=={client} pyspark-client=={client}")


def test_the_pair_that_is_installed_here_is_equal() -> None:
    pair = SparkPair.installed()
    assert None not in (pair.pyspark, pair.client)
    assert not pair.is_unequal


NO_AIRFLOW = "--conn-id needs Airflow: pip install 'storage-engine[airflow]'"
NO_PROVIDER = "needs Airflow, Spark and Great Expectations: pip install airflow-provider-storage-engine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("archive", "{store}", "--lake", "{lake}", "--spark", "local[1]"),
            "archive --spark needs Spark: pip install 'storage-engine[spark]'",
        ),
        (("init-lake", "--conn-id", "orders"), NO_AIRFLOW),
        (("doctor", "--conn-id", "orders"), NO_AIRFLOW),
        (("up", "{new}"), f"up {NO_PROVIDER}"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_missing_extra_is_one_error_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def no_distribution(name: str) -> None:
        raise PackageNotFoundError(name)

    take_away(monkeypatch, AIRFLOW, SPARK)
    monkeypatch.setattr("importlib.metadata.distribution", no_distribution)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / ("0" * 20)).write_bytes(bytes(1024))
    make_lake(LakeConfig.local(tmp_path / "lake"))
    before = sorted(tmp_path.rglob("*"))
    places = {"store": tmp_path / "store", "lake": tmp_path / "lake", "new": tmp_path / "new"}
    done = run_command(*(word.format(**places) for word in words))
    assert done.exit_code == 2
    assert done.err == f"Error: {said}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_database_driver_is_named_without_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, POSTGRES.module, None)
    take_away(monkeypatch, POSTGRES)
    needs = r"needs the PostgreSQL driver psycopg: pip install 'storage-engine\[postgres\]'$"
    with pytest.raises(MissingExtraError, match=rf"^journal_url \S+ {needs}") as journal:
        Journal(POSTGRES_URL)
    properties = {"type": "sql", "uri": POSTGRES_URL, "warehouse": "/lake"}
    with pytest.raises(MissingExtraError, match=rf"^lake \S+ {needs}") as lake:
        open_lake(LakeConfig("lake", properties))
    assert "secret" not in f"{journal.value}{lake.value}"
