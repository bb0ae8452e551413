"""stores.toml: a name on a command line is a store with its lake, broker and policy, or a clear error."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.cli.options.stores_file import FILE, VARIABLE, find_named, named_stores, stores_file
from storage_engine.core.host import ANY_HOST
from storage_engine.exceptions import BadInputError
from storage_engine.hooks.connection import Defaults, managed_store
from tests.kafka_fixture import unpack
from tests.services.command_line import Outcome

pytestmark = pytest.mark.usefixtures("plainly")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of stores, which isn't there yet."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / FILE
    file.parent.mkdir(parents=True)
    file.parent.chmod(0o755)
    return file


def write(file: Path, name: str = "main", **fields: Any) -> None:
    text = file.read_text() if file.exists() else ""
    lines = [f"{key} = {value if value[:1] == '{' else json.dumps(value)}" for key, value in fields.items()]
    file.write_text("\n".join([text, f"[{json.dumps(name)}]", *lines, ""]))
    file.chmod(0o644)


@pytest.fixture
def main(config: Path, lake: Path, store: Path) -> Path:
    write(config, root=str(store), lake=str(lake), policy="{ minimum_retention_hours = 1000000 }")
    return config


def decisions(outcome: Outcome) -> Any:
    return outcome.json["decisions"]


def test_a_name_is_store_lake_and_policy(cli, main: Path, lake: Path, store: Path) -> None:
    assert cli("archive", "main").exit_code == 0
    by_path = ("plan", store, "--lake", lake, "--manual", "--json")
    by_name = decisions(cli("plan", "main", "--manual", "--json"))
    assert by_name == decisions(cli(*by_path, "--minimum-retention-hours", 1_000_000))
    assert by_name != decisions(cli(*by_path))
    done = cli("verify", "main", "--level", "receipts")
    assert done.exit_code == 0
    assert done.out.rstrip().endswith("Next: storage-engine verify main --level bytes")


def test_nobody_types_less_approval_than_the_file_says(cli, config: Path, lake: Path, store: Path) -> None:
    write(config, root=str(store), lake=str(lake), approval="always")
    for less in ("none", "forced"):
        refused = cli("clean", "main", "--manual", "--approval", less)
        assert (
            refused.exit_code,
            f"expected --approval always, as in the file, or more, found {less}" in refused.err,
        ) == (2, True)
    assert cli("clean", "main", "--manual", "--approval", "always").exit_code == 3


def test_what_is_typed_comes_before_the_file(cli, main: Path, store: Path, tmp_path: Path) -> None:
    typed = ("--manual", "--minimum-retention-hours", 1, "--json")
    assert decisions(cli("plan", "main", *typed)) == decisions(cli("plan", store, *typed))
    other = tmp_path / "other lake"
    cli("init-lake", "--lake", other)
    assert len(cli("archive", "main", "--lake", other, "--json").json["archived"]) == 2
    done = cli("verify", "main", "--lake", other, "--set", "fileReservedTime=48", "--level", "receipts")
    own = f"main --lake {shlex.quote(str(other))} --set fileReservedTime=48"
    assert done.out.rstrip().endswith(f"Next: storage-engine verify {own} --level bytes")
    refused = cli("plan", "main", "--broker", "10.0.0.1:10911")
    told = "store main: expected no option for a setting that only the file may have, found --broker"
    assert (refused.exit_code, told in refused.err) == (2, True)
    refused = cli("plan", "main", "--engine", "--access-key", "me")
    told = "found --access-key, --engine. Nothing was changed."
    assert (refused.exit_code, told in refused.err) == (2, True)
    refused = cli("plan", "main", "--set", "deletewhen=04")
    assert (refused.exit_code, "Did you mean deleteWhen?" in refused.err) == (2, True)


def test_the_environment_says_nothing_beside_a_name(
    cli, main: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cli("archive", "main").exit_code == 0
    monkeypatch.setenv("STORAGE_ENGINE_LAKE", str(tmp_path))
    monkeypatch.setenv("STORAGE_ENGINE_BROKER", "127.0.0.1:1")
    assert cli("verify", "main", "--level", "receipts").exit_code == 0


def test_a_name_needs_its_lake_where_a_path_does(cli, config: Path, store: Path) -> None:
    write(config, root=str(store))
    assert cli("plan", "main").exit_code == 0
    refused = cli("clean", "main")
    assert (refused.exit_code, "Missing option '--lake'" in refused.err) == (2, True)


def test_the_file_means_what_a_connection_with_these_keys_means(config: Path, tmp_path: Path) -> None:
    fields = {
        "root": "/data/store",
        "broker_conf": "/etc/broker.conf",
        "mode": "live",
        "broker_address": "10.0.0.1:10911",
        "time_zone": "Asia/Shanghai",
        "lake": str(tmp_path),
        "second_lake": str(tmp_path / "second"),
        "policy": {"lag_policy": "block", "undo_directories": ["/data/undo"]},
        "broker_settings": {"overrides": {"fileReservedTime": "48"}, "hold_hours": 12},
    }
    file_fields = {
        **{key: value for key, value in fields.items() if isinstance(value, str)},
        "policy": '{ lag_policy = "block", undo_directories = ["/data/undo"] }',
        "broker_settings": '{ overrides = { fileReservedTime = "48" }, hold_hours = 12 }',
    }
    write(config, **file_fields)
    named = named_stores()["main"]
    journal = f"sqlite:///{tmp_path / 'journal.db'}"
    defaults = Defaults(str(tmp_path), journal_url=journal, report_dir=str(tmp_path / "reports"))
    of_connection = managed_store("main", fields, None, defaults)
    of_file = named.managed(named.path("lake"), named.path("second_lake"))
    assert of_file == replace(of_connection, host=ANY_HOST)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"root": "/data", "brokr_conf": "/x"}, "Did you mean broker_conf?"),
        ({"root": "data"}, "expected an absolute path"),
        ({"root": "/data", "lake": "lake"}, "lake.json"),
        ({"root": "/data", "lake": '{ type = "sql" }'}, "lake.json"),
        ({"root": "/data", "queue": "q"}, "have a meaning without Airflow, found queue"),
        ({"root": "/data", "policy": '{ lag_policy = "blok" }'}, "lag_policy"),
        ({"root": "/data", "access_key": "me"}, "found no running broker"),
        (
            {"root": "/data", "access_key": "me", "mode": "live", "broker_address": "10.0.0.1:1"},
            "no secret key in STORAGE_ENGINE_SECRET_KEY",
        ),
        ({"lake": "/lake"}, "expected a table with root"),
    ],
)
def test_a_field_that_cannot_be_used_is_named_with_its_file(
    cli, config: Path, fields: dict[str, str], told: str
) -> None:
    write(config, **fields)
    refused = cli("plan", "main")
    assert refused.exit_code == 2
    assert str(config) in refused.err
    assert told in refused.err, refused.err


def test_a_brokers_keys_come_from_the_file_and_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, root="/data", mode="live", broker_address="10.0.0.1:10911", access_key="me")
    monkeypatch.setenv("STORAGE_ENGINE_SECRET_KEY", "secret")
    live = named_stores()["main"].managed(None, None).live
    assert live is not None
    assert (live.access_key, live.secret_key, live.address) == ("me", "secret", "10.0.0.1:10911")


def test_a_word_is_a_name_or_a_path_and_never_both(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_named("main") is None
    write(config, root="/data")
    monkeypatch.chdir(tmp_path)
    named = find_named("main")
    assert named is not None
    assert named.path("root") == Path("/data")
    assert [find_named(word) for word in ("./main", "/main", ".", "..", "")] == [None] * 5
    with pytest.raises(BadInputError, match=r"\(main\) or a path, found neither\. Did you mean main\?"):
        find_named("mian")
    (tmp_path / "main").mkdir()
    with pytest.raises(BadInputError, match=r"found both\. .* \./main"):
        find_named("main")
    (tmp_path / "other").mkdir()
    assert find_named("other") is None


def test_its_place_is_the_variables_the_users_or_the_machines_never_here(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stores.toml").write_text('[here]\nroot = "/data"\n')
    monkeypatch.chdir(tmp_path)
    assert stores_file() is None
    write(config, root="/data")
    assert stores_file() == config
    monkeypatch.setenv(VARIABLE, str(tmp_path / "stores.toml"))
    assert stores_file() == tmp_path / "stores.toml"
    monkeypatch.setenv(VARIABLE, "")
    assert named_stores() == {}
    for wrong in ("stores.toml", str(tmp_path / "none.toml")):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(BadInputError, match="expected the absolute path"):
            stores_file()


def test_a_file_that_others_may_write_is_refused(config: Path) -> None:
    write(config, root="/data")
    above = config.parent.parent
    for path, mode in ((config, 0o664), (config, 0o646), (config.parent, 0o775), (above, 0o757)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(BadInputError, match="only you or root may write"):
            find_named("main")
        path.chmod(before)
    config.parent.chmod(0o1777)
    assert find_named("main") is not None
    config.parent.chmod(0o755)
    # Who may write where a link is can put another one there.
    config.rename(above / "linked.toml")
    config.symlink_to(above / "linked.toml")
    assert find_named("main") is not None
    config.parent.chmod(0o757)
    with pytest.raises(BadInputError, match=f"{config.parent}: expected that only you or root may write"):
        find_named("main")


def test_a_user_without_a_home_has_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in (VARIABLE, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert stores_file() in (None, Path("/etc") / FILE)


@pytest.mark.parametrize("text", ["[main", "main = 1\n", '["a/b"]\nroot = "/data"\n', '[" "]\nroot = "/d"\n'])
def test_a_file_that_is_none_is_refused_by_name(config: Path, text: str) -> None:
    config.write_text(text)
    config.chmod(0o644)
    with pytest.raises(BadInputError, match=str(config)):
        named_stores()


def test_info_lists_and_shows_them_and_doctor_looks_at_each(
    cli, main: Path, store: Path, tmp_path: Path
) -> None:
    assert cli("archive", "main").exit_code == 0
    write(main, "away", root=str(tmp_path / "not there"))
    listed = cli("info").out
    assert str(main) in listed
    assert [line.split()[0] for line in listed.splitlines()[3:]] == ["away", "main"]
    assert cli("info", "main", "--json").json["stores"][0]["path"] == str(store)
    looked = cli("doctor")
    assert "not there" in looked.out + looked.err
    assert "storage-engine" in looked.out
    assert looked.exit_code > 0


def test_init_writes_a_store_into_the_file_and_leaves_the_others(
    cli, config: Path, lake: Path, store: Path
) -> None:
    config.parent.rmdir()
    named = ("init", "--store", store, "--lake", lake, "--name")
    assert "Next: storage-engine doctor 'a \"b\" c'" in cli(*named, 'a "b" c').out
    assert config.stat().st_mode & 0o077 == 0
    config.write_text("# mine\n" + config.read_text())
    done = cli(*named, "main", "--broker", "10.0.0.1:10911", "--time-zone", "Asia/Shanghai")
    assert done.out.rstrip().endswith("Next: storage-engine doctor main")
    assert config.read_text().startswith("# mine\n")
    fields = {"root": str(store.resolve()), "lake": str(lake)}
    live = {"mode": "live", "broker_address": "10.0.0.1:10911", "time_zone": "Asia/Shanghai"}
    assert {name: it.fields for name, it in named_stores().items()} == {
        'a "b" c': fields,
        "main": fields | live,
    }
    assert cli("archive", 'a "b" c').exit_code == 0
    before = config.read_text()
    for name in ("main", "a/b", " ", "-x", "..", "del\x7f", "two\nlines"):
        assert "expected a new name without a slash" in cli(*named, name).err
    away = ("init", "--store", store, "--lake", "s3://bucket/lake", "--name", "other")
    assert "--lake: expected a directory, found s3:/bucket/lake" in cli(*away).err
    odd = store.with_name("del\x7f")
    odd.symlink_to(store)
    assert (
        "printable text, as TOML requires"
        in cli("init", "--store", store, "--lake", odd, "--name", "other").err
    )
    assert "expected --store and --lake with it" in cli("init", "--name", "other", "--store", store).err
    assert config.read_text() == before


def test_no_store_is_written_where_no_file_is_read(
    cli, config: Path, lake: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    refused = cli("init", "--name", "main", "--store", store, "--lake", lake)
    assert refused.exit_code == 2
    assert f"found {VARIABLE} empty" in refused.err
    assert not config.exists()


def test_init_names_a_store_by_its_broker_and_writes_nothing_that_is_refused(
    cli, config: Path, lake: Path, store: Path, tmp_path: Path
) -> None:
    node = unpack(tmp_path / "node") / "server.properties"
    assert cli("init", "--store", node, "--lake", tmp_path / "away", "--name", "node").exit_code == 0
    assert named_stores()["node"].fields["broker_type"] == "kafka"
    assert cli("doctor", "node").exit_code == 0
    before = config.read_text()
    assert "server.properties' is a file" in cli("init", "--store", node, tmp_path / "project").err
    refused = cli("init", "--store", store, "--lake", lake, "--name", "main", "--broker", "nowhere")
    assert "store main: field broker_address: expected host:port" in refused.err
    assert config.read_text() == before
