from __future__ import annotations

import errno
import json
import os
import re
from importlib import import_module
from pathlib import Path

import pytest
from pyarrow.fs import S3RetryStrategy
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from storage_engine.exceptions import BadInputError, LakeUnavailableError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import _CLASSES, LakeConfig
from storage_engine.lake.move.making import make_lake


def test_a_configuration_survives_json(tmp_path: Path) -> None:
    config = LakeConfig.local(tmp_path / "lake")
    assert LakeConfig.from_json(config.to_json()) == config


def test_a_relative_directory_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LakeConfig.local("lake") == LakeConfig.local(tmp_path / "lake")


@pytest.mark.parametrize("name", ["what?", "100%", "a#b"])
def test_a_path_that_a_uri_would_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="can't contain"):
        LakeConfig.local(tmp_path / name)


def test_files_are_durable(tmp_path: Path) -> None:
    properties = LakeConfig.local(tmp_path).file_io_properties
    assert properties["py-io-impl"] == "storage_engine.lake.durable_io.DurableFileIO"


@pytest.mark.parametrize(
    "name",
    [
        "py-catalog-impl",
        "py-io-impl",
        "s3.retry-strategy-impl",
        "s3.retry-strategy-imp1-impl",
        "auth",
        "write.py-location-provider.impl",
        "metrics-reporter-impl",
    ],
)
def test_a_class_is_imported_from_the_list_alone(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hostile_catalog.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nAny = object"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (lake := tmp_path / "lake").mkdir()
    properties = {"type": "rest", "uri": "http://127.0.0.1:1", name: "hostile_catalog.Any"}
    (lake / "lake.json").write_text(json.dumps(properties))
    with pytest.raises(BadInputError, match=rf"lake property {name}: expected .* Nothing was changed\."):
        open_lake(LakeConfig.local(lake))
    assert not (tmp_path / "ran").exists()


def test_every_class_of_the_list_is_one_of_its_kind() -> None:
    for name, kind in (
        ("py-io-impl", PyArrowFileIO),
        ("py-catalog-impl", Catalog),
        ("s3.retry-strategy-impl", S3RetryStrategy),
    ):
        for path in _CLASSES[name]:
            assert LakeConfig("x", {name: path}).properties == {name: path}
            module, _, class_name = path.rpartition(".")
            if not module.endswith(("hive", "glue", "dynamodb", "bigquery_metastore")):
                assert issubclass(getattr(import_module(module), class_name), kind)


def test_a_class_that_is_mistyped_is_told_the_nearest() -> None:
    with pytest.raises(BadInputError, match=r"Did you mean pyarrow\.fs\.AwsStandardS3RetryStrategy\?"):
        LakeConfig("x", {"s3.retry-strategy-impl": "pyarrow.fs.AwsStandardRetryStrategy"})


@pytest.mark.parametrize("kind", [{}, {"type": "sql"}])
@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:////x/catalog.db?plugin=hostile",
        "sqlite:////x/catalog.db?uri=true&vfs=hostile",
        "postgresql+psycopg://db/lake?service=hostile",
        "mysql+hostile://db/lake",
    ],
)
def test_a_catalogs_url_loads_nothing(kind: dict[str, str], uri: str) -> None:
    with pytest.raises(BadInputError, match="lake property uri: expected a SQLAlchemy URL, found"):
        LakeConfig("x", {**kind, "uri": uri, "warehouse": "/w"})


def test_what_is_no_json_is_bad_input() -> None:
    with pytest.raises(BadInputError, match="expected JSON"):
        LakeConfig.from_json("catalog: x")


SECRETS = {"object-secret", "id-and-secret", "client:id-and-secret", "p@ss", "p%40ss"}
PROPERTIES = {
    "type": "sql",
    "uri": "postgresql+psycopg://lake:p%40ss@db:5432/lake",
    "warehouse": "s3://lake/warehouse",
    "s3.access-key-id": "key-id",
    "s3.secret-access-key": "object-secret",
    "credential": "client:id-and-secret",
    "token-refresh-enabled": "true",
}


def test_secrets_are_known_by_their_properties_and_in_urls() -> None:
    assert LakeConfig("x", PROPERTIES).secrets == SECRETS


def test_a_printed_configuration_shows_where_the_lake_is_and_no_secret() -> None:
    shown = repr(LakeConfig("x", PROPERTIES))
    assert "s3://lake/warehouse" in shown
    assert not [secret for secret in SECRETS if secret in shown]


def test_a_malformed_configuration_is_refused_without_quoting_it() -> None:
    with pytest.raises(BadInputError) as caught:
        LakeConfig.from_json('{"properties": {"s3.secret-access-key": "object-secret"')
    assert "object-secret" not in str(caught.value)


def test_an_object_store_that_stalls_is_given_up_unless_the_configuration_says_otherwise() -> None:
    assert LakeConfig("x", {}).file_io_properties["s3.request-timeout"] == "30"
    patient = LakeConfig("x", {"s3.request-timeout": "600"})
    assert patient.file_io_properties["s3.request-timeout"] == "600"


def test_no_region_is_asked_for_where_an_endpoint_is_named() -> None:
    assert "s3.region" not in LakeConfig("x", {}).file_io_properties
    assert LakeConfig("x", {"s3.endpoint": "http://store"}).file_io_properties["s3.region"] == "us-east-1"
    other = LakeConfig("x", {"s3.endpoint": "http://store", "s3.region": "eu-west-1"})
    assert other.file_io_properties["s3.region"] == "eu-west-1"


def test_a_directory_may_say_that_its_lake_is_elsewhere(tmp_path: Path) -> None:
    described = tmp_path / "lake.json"
    described.write_text(json.dumps(PROPERTIES))
    described.chmod(0o600)
    assert LakeConfig.local(tmp_path) == LakeConfig("storage_engine", PROPERTIES)


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    described = tmp_path / "lake.json"
    described.write_text(json.dumps(PROPERTIES))
    described.chmod(0o644)
    with pytest.raises(BadInputError, match="only its owner can read") as caught:
        LakeConfig.local(tmp_path)
    assert "object-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "properties",
    [
        {"uri": "postgresql+psycopg://db/lake?user=lake&password=S3CR3T"},
        {"uri": "postgresql+psycopg://lake:S3C/R3T@db/lake"},
        {"uri": "https://keeper:S3CR3T@catalog/api"},
        {"header.X-Api-Key": "S3CR3T"},
        {"header.Cookie": "session=S3CR3T"},
        {"basic-auth": "keeper:S3CR3T"},
        {"access_key": "S3CR3T"},
        {"apikey": "S3CR3T"},
    ],
    ids=["query", "slash", "http", "api key header", "cookie", "basic", "access key", "apikey"],
)
def test_no_way_of_giving_a_password_passes_for_something_open(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    config = LakeConfig("x", {**properties, "warehouse": "s3://lake"})
    secret = "S3C/R3T" if "S3C/R3T" in str(properties) else "S3CR3T"
    assert secret in config.secrets
    assert config.without_secrets(f"refused with {secret}") == "refused with ***"
    described = tmp_path / "lake.json"
    described.write_text(json.dumps(properties))
    described.chmod(0o644)
    with pytest.raises(BadInputError, match="only its owner can read") as caught:
        LakeConfig.local(tmp_path)
    assert secret not in str(caught.value)


def test_a_header_that_opens_nothing_is_no_secret() -> None:
    assert not LakeConfig("x", {"header.X-Iceberg-Access-Delegation": "vended-credentials"}).secrets


def test_a_password_that_would_be_read_as_a_host_is_refused_without_quoting_it() -> None:
    with pytest.raises(BadInputError, match=r"property uri: .* %40") as caught:
        LakeConfig("x", {"uri": "postgresql+psycopg://lake:S3C@R3T@db/lake"})
    assert not {"S3C", "R3T"} & set(re.split(r"\W", str(caught.value)))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_description_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "lake.json").write_text(content)
    with pytest.raises(BadInputError, match="expected a JSON object"):
        LakeConfig.local(tmp_path)


def make(directory: Path) -> str:
    """Why ``init-lake`` refuses what a ``lake.json`` says; nothing but that file is there after it."""
    directory.mkdir(exist_ok=True)
    with pytest.raises(BadInputError) as caught:
        make_lake(LakeConfig.local(directory))
    assert [path.name for path in directory.iterdir()] == ["lake.json"]
    return str(caught.value)


@pytest.mark.parametrize("warehouse", ["warehouse", "~/lake", "file:lake", "file://host/lake", 5])
def test_a_warehouse_that_depends_on_the_working_directory_is_refused(
    tmp_path: Path, warehouse: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "cwd").mkdir()
    monkeypatch.chdir(elsewhere)
    (described := tmp_path / "lake").mkdir()
    uri = f"sqlite:///{described}/catalog.db"
    (described / "lake.json").write_text(json.dumps({"uri": uri, "warehouse": warehouse}))
    assert "expected an absolute path" in make(described)
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"uri": "sqlite:///here.db", "warehouse": "/w"}, "expected an absolute path"),
        ({"uri": "sqlite:////DIRECTORY/catalog.db"}, "expected the property 'warehouse'"),
        ({"uri": "sqlite:////DIRECTORY/catalog.db", "warehouse": None}, "expected a text for warehouse"),
        ({"uri": "sqlite:////DIRECTORY/catalog.db", "warehouse": "ftp://x/y"}, "that can be written"),
        ({"type": "in-memory"}, "expected the property uri"),
        ({"type": "sql", "warehouse": "/w"}, "SQL connection URI is required"),
        ({"type": "dynamodb", "py-catalog-impl": "os.system"}, "expected one of pyiceberg.catalog.rest."),
    ],
)
def test_properties_that_make_no_lake_are_bad_input(
    tmp_path: Path, properties: dict[str, object], why: str
) -> None:
    text = json.dumps(properties).replace("/DIRECTORY", str(tmp_path / "lake"))
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake/lake.json").write_text(text)
    assert why in make(tmp_path / "lake")


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_a_description_that_cannot_be_read_is_no_missing_one(tmp_path: Path, kind: str) -> None:
    (tmp_path / "lake").mkdir()
    described = tmp_path / "lake/lake.json"
    if kind == "link":
        described.symlink_to(tmp_path / "unmounted/lake.json")
    elif kind == "directory":
        described.mkdir()
    else:
        os.mkfifo(described)
    assert "expected a file with a JSON object" in make(tmp_path / "lake")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_description_that_cannot_be_looked_for_is_no_missing_one(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.lstat

    def failing(path: str | os.PathLike[str], **more: int) -> os.stat_result:
        if Path(path).name == "lake.json":
            raise OSError(code, os.strerror(code), str(path))
        return real(path, **more)

    monkeypatch.setattr(os, "lstat", failing)
    with pytest.raises(LakeUnavailableError, match=os.strerror(code)):
        LakeConfig.local(tmp_path)


def test_an_absolute_sqlite_uri_is_absolute(tmp_path: Path) -> None:
    uri = f"sqlite:///file:{tmp_path}/catalog.db?uri=true"
    config = LakeConfig("x", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})
    make_lake(config)
    open_lake(config)
    assert (tmp_path / "catalog.db").is_file()
    with pytest.raises(BadInputError, match="expected an absolute path"):
        LakeConfig("x", {"uri": "sqlite:///file:catalog.db?uri=true", "warehouse": "/w"})
