"""init: a project that is put in place, for a store that is there."""

from __future__ import annotations

import json
from pathlib import Path

from storage_engine.project.init import STORE_CONNECTION
from tests.kafka_fixture import unpack


def test_init_puts_a_project_in_place_and_says_what_comes_next(cli, archived, tmp_path) -> None:
    made = cli("init", tmp_path / "project", "--store", archived.store, "--time-zone", "Asia/Shanghai")
    assert made.exit_code == 0
    for part in ("dags", "spark_jobs", "expectations"):
        assert list((tmp_path / "project" / part).iterdir())
    assert made.out.strip()


def test_init_refuses_a_store_that_is_not_there_and_an_unknown_zone(cli, archived, tmp_path) -> None:
    missing = cli("init", tmp_path / "project", "--store", tmp_path / "none")
    assert missing.exit_code == 2
    assert f"'{tmp_path}/none' does not exist" in missing.err
    zone = cli("init", tmp_path / "project", "--store", archived.store, "--time-zone", "Mars/Base")
    assert zone.exit_code == 2
    assert "Mars/Base" in zone.err
    assert not (tmp_path / "project").exists()


def test_the_connection_says_whose_store_it_is(cli, tmp_path) -> None:
    logs = unpack(tmp_path / "node") / "logs"
    assert cli("init", tmp_path / "project", "--store", logs).exit_code == 0
    (file,) = (tmp_path / "project").glob("connections.json")
    assert json.loads(json.loads(file.read_text())[STORE_CONNECTION]["extra"])["broker_type"] == "kafka"


def test_constraints_are_those_of_this_release(cli) -> None:
    printed = cli("constraints")
    assert printed.out == (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert "index" not in printed.out


def test_init_takes_a_directory_or_an_airflow(cli, tmp_path) -> None:
    for words in ((), (tmp_path / "project", "--airflow")):
        refused = cli("init", *words)
        assert refused.exit_code == 2
        assert "Expected either DIRECTORY, for a project of its own, or --airflow." in refused.err
    only = cli("init", tmp_path / "project", "--conn-id", "orders")
    assert only.exit_code == 2
    assert "--conn-id: expected --airflow with it." in only.err
    assert not (tmp_path / "project").exists()


def test_init_refuses_an_airflow_that_would_not_start(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONFIG", raising=False)
    absent = cli("init", "--airflow")
    assert absent.exit_code == 2
    assert f"{tmp_path}/airflow.cfg: expected the settings of an Airflow" in absent.err
    assert "storage-engine docs airflow" in absent.err
    (tmp_path / "airflow.cfg").write_text("[storage_engine]\nlake = /l\n\n[storage_engine]\n")
    twice = cli("init", "--airflow")
    assert twice.exit_code == 2
    assert "airflow.cfg, line 4: expected the section [storage_engine] once, found it twice" in twice.err
    assert [path.name for path in tmp_path.iterdir()] == ["airflow.cfg"]


def test_init_refuses_an_id_that_airflow_does_not_take(cli) -> None:
    refused = cli("init", "--airflow", "--conn-id", "orders/a")
    assert refused.exit_code == 2
    assert "found 'orders/a'" in refused.err
