"""A project is put in place whole, with its secrets kept, and never over somebody's files."""

from __future__ import annotations

import configparser
import json
import re
import stat
from pathlib import Path

import pytest

from storage_engine import resources
from storage_engine.cli.main import main
from storage_engine.exceptions import BadInputError
from storage_engine.get_provider_info import form_fields
from storage_engine.project.init import init_project, next_steps
from storage_engine.project.up import unpack_sample_store

REPOSITORY = Path(__file__).parents[2]


def test_a_project_has_everything_that_airflow_needs(tmp_path: Path) -> None:
    project = init_project(tmp_path / "p")
    for tree in ("dags", "plugins", "spark_jobs", "expectations"):
        expected = sorted(path.name for path in (REPOSITORY / tree).iterdir() if path.name != "__pycache__")
        assert sorted(path.name for path in (project.home / tree).iterdir()) == expected
        assert expected
    settings = configparser.RawConfigParser()
    settings.read(project.settings_file)
    assert settings["core"]["dags_folder"] == str(project.home / "dags")
    assert settings["storage_engine"]["stores"] == "storage_engine_default"


@pytest.mark.parametrize("wanted", [True, False])
def test_older_dag_ids_are_listed_and_there_for_who_asks(tmp_path: Path, wanted: bool) -> None:
    project = init_project(tmp_path / "p", older_dag_ids=wanted)
    assert (project.home / "dags" / "older_dag_ids.py").exists() is wanted
    said = next_steps(project, store_is_known=False)
    assert re.search(r"storage_flush_checkpoint +storage_monitor__storage_engine_default\n", said)
    assert ("init --older-dag-ids" in said) is not wanted


def test_everything_listens_on_loopback_only(tmp_path: Path) -> None:
    text = init_project(tmp_path / "p").settings_file.read_text()
    assert "host = 127.0.0.1" in text
    assert "0.0.0.0" not in text


def test_settings_with_secrets_are_private_and_differ_between_projects(tmp_path: Path) -> None:
    one, other = init_project(tmp_path / "one"), init_project(tmp_path / "other")
    assert stat.S_IMODE(one.settings_file.stat().st_mode) == 0o600
    secrets = []
    for project in (one, other):
        settings = configparser.RawConfigParser()
        settings.read(project.settings_file)
        secrets.append((settings["core"]["fernet_key"], settings["api_auth"]["jwt_secret"]))
    assert secrets[0] != secrets[1]


def test_the_connection_names_the_store_that_was_given(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.touch()
    project = init_project(tmp_path / "p", store_root=tmp_path, broker_conf=conf, time_zone="Asia/Shanghai")
    connections = json.loads(project.connections_file.read_text())
    assert set(connections) == {"storage_engine_default", "spark_default"}
    extra = json.loads(connections["storage_engine_default"]["extra"])
    assert {name: value for name, value in extra.items() if value is not None} == {
        "root": str(tmp_path),
        "broker_conf": str(conf),
        "time_zone": "Asia/Shanghai",
        "mode": "offline",
        "broker_tls": "off",
        "spark_conn_id": "spark_default",
    }
    assert set(extra) == set(form_fields()), "Airflow's form for editing shows no others"
    assert connections["storage_engine_default"]["port"] == 0, "with none, Airflow's form refuses to test"
    assert project.store_root == str(tmp_path)


@pytest.mark.parametrize("name", ["dags", "spark_jobs", "expectations", "airflow.cfg"])
def test_what_is_there_is_never_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInputError, match=f"found {name}. Nothing was written"):
        init_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_init_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(tmp_path / "p")])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"storage-engine up {tmp_path / 'p'}" in said
    assert "storage-engine init --airflow\n" in said
    assert "Archive and consumer lag run as Spark jobs by the connection spark_default" in said
    assert "names no store yet" in said


def test_init_refuses_a_time_zone_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(tmp_path / "p"), "--time-zone", "Mars/Olympus"])
    assert ended.value.code == 2
    assert not (tmp_path / "p").exists()


def test_files_come_from_the_installed_package_where_there_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_PACKAGED", tmp_path / "installed")
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path / "nowhere")
    (tmp_path / "installed" / "dags").mkdir(parents=True)
    assert resources.project_path("dags") == tmp_path / "installed" / "dags"
    with pytest.raises(BadInputError, match="spark_jobs: expected this path"):
        resources.project_path("spark_jobs")


def test_only_the_ages_of_the_sample_are_made_up(tmp_path: Path) -> None:
    sample = unpack_sample_store(tmp_path)
    segments = sorted((sample.root / "commitlog").iterdir())
    assert [path.name for path in sample.old] == [path.name for path in segments[:5]]
    oldest_kept, newest_old = segments[5].stat().st_mtime, sample.old[-1].stat().st_mtime
    assert oldest_kept - newest_old > 72 * 3600
    assert f"storePathRootDir={sample.root}" in sample.broker_conf.read_text()
