"""docker-compose.yml and what it names: valid, pinned, on loopback, and wired to what really exists here."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from storage_engine.get_provider_info import get_provider_info
from storage_engine.hooks.connection import Defaults, managed_store
from storage_engine.rocketmq.format.broker_config import load_broker_config

ROOT = Path(__file__).resolve().parents[1]
COMPOSE_FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "airflow" / "Dockerfile"
BROKER_CONF = ROOT / "docker" / "rocketmq" / "broker.conf"

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")
_SECRET_NAME = re.compile(r"PASSWORD$|SECRET|FERNET|SQL_ALCHEMY_CONN|JOURNAL_URL|__LAKE$")
_PINNED_TAG = re.compile(r":v?\d+\.\d+(\.\d+)?(-[\w.-]+)?$")


def _with_defaults(value: Any) -> Any:
    """What compose makes of a value when no variable is set."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: match["default"] or "", value)
    if isinstance(value, dict):
        return {key: _with_defaults(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_defaults(item) for item in value]
    return value


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compose(raw: dict[str, Any]) -> dict[str, Any]:
    return _with_defaults(raw)


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


@pytest.fixture(scope="module")
def airflow_environment(services: dict[str, dict[str, Any]]) -> dict[str, str]:
    return services["airflow-scheduler"]["environment"]


def _volumes(service: dict[str, Any]) -> dict[str, str]:
    """Container path → volume or host path."""
    mounts = (mount.split(":") for mount in service.get("volumes", []))
    return {parts[1]: parts[0] for parts in mounts}


def test_file_fits_the_compose_specification(compose: dict[str, Any]) -> None:
    assert sorted(PyCompose.from_json(json.dumps(compose)).service_names()) == sorted(compose["services"])


def test_specification_check_refuses_an_unknown_key(compose: dict[str, Any]) -> None:
    broken = json.loads(json.dumps(compose))
    broken["services"]["postgres"]["helthcheck"] = {}
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_json(json.dumps(broken))


def test_every_dependency_is_a_service_that_can_meet_its_condition(
    services: dict[str, dict[str, Any]],
) -> None:
    for name, service in services.items():
        for other, dependency in service.get("depends_on", {}).items():
            assert other in services, name
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for {other} to be healthy"
            else:
                assert services[other].get("restart", "no") == "no", f"{name} waits for {other} to end"


def test_every_lasting_service_has_a_health_check(services: dict[str, dict[str, Any]]) -> None:
    lasting = {name for name, service in services.items() if service.get("restart", "no") != "no"}
    assert set(services) - lasting == {"airflow-init", "store-init"}
    assert {name for name, service in services.items() if "healthcheck" in service} == lasting


def test_ports_are_open_on_loopback_only_and_once(services: dict[str, dict[str, Any]]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_images_are_pinned(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert "build" in service or _PINNED_TAG.search(service["image"]), name
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert bases
    assert all(_PINNED_TAG.search(base) for base in bases)


def test_what_is_built_here_does_not_run_as_root(services: dict[str, dict[str, Any]]) -> None:
    built = [service for service in services.values() if "build" in service]
    assert built
    assert {service["user"] for service in built} == {"3000:3000"}
    dockerfile = DOCKERFILE.read_text(encoding="utf-8")
    assert "--uid 3000" in dockerfile
    assert re.findall(r"^USER (\S+)", dockerfile, re.MULTILINE) == ["storage"]


def test_every_path_of_the_repository_that_is_named_exists(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        for source in _volumes(service).values():
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name}: {source}"
        if build := service.get("build"):
            assert (ROOT / build["context"] / build["dockerfile"]).is_file(), name


def test_every_named_volume_and_config_is_declared(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    volumes = {source for service in services.values() for source in _volumes(service).values()}
    assert {source for source in volumes if not source.startswith(".")} == set(compose["volumes"])
    used = {entry["source"] for service in services.values() for entry in service.get("configs", [])}
    assert used == set(compose["configs"])


def test_secrets_come_from_variables_that_have_a_default_for_local_use(raw: dict[str, Any]) -> None:
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    assert text.count("${") == len(_VARIABLE.findall(text))
    assert all(match["default"] for match in _VARIABLE.finditer(text))
    for name, service in raw["services"].items():
        for key, value in service.get("environment", {}).items():
            if _SECRET_NAME.search(key) and not key.endswith("_FILE"):
                assert "${" in value, f"{name}: {key}"


def test_airflow_variables_are_real_options(services: dict[str, dict[str, Any]]) -> None:
    known = _airflow_options()
    for name, service in services.items():
        for variable in service.get("environment", {}):
            if variable.startswith("AIRFLOW__"):
                section, option = variable.removeprefix("AIRFLOW__").lower().split("__", 1)
                assert option in known.get(section, ()), f"{name}: {variable}"


def _airflow_options() -> dict[str, set[str]]:
    """Section → options, of Airflow and of this provider. Read without importing Airflow, which would
    take the settings of this process for its own."""
    spec = importlib.util.find_spec("airflow")
    assert spec is not None
    (package,) = spec.submodule_search_locations or ()
    template = Path(package) / "config_templates" / "config.yml"
    sections = yaml.safe_load(template.read_text(encoding="utf-8")) | get_provider_info()["config"]
    return {name: set(section["options"]) for name, section in sections.items()}


def test_fernet_key_is_one(airflow_environment: dict[str, str]) -> None:
    assert len(base64.urlsafe_b64decode(airflow_environment["AIRFLOW__CORE__FERNET_KEY"])) == 32


def test_airflow_processes_share_one_configuration(services: dict[str, dict[str, Any]]) -> None:
    airflow = {name: service for name, service in services.items() if name.startswith("airflow-")}
    assert len(airflow) == 5
    environments = [
        {key: value for key, value in service["environment"].items() if key != "ADMIN_PASSWORD"}
        for service in airflow.values()
    ]
    assert all(environment == environments[0] for environment in environments)
    assert all("/opt/airflow/dags" in _volumes(service) for service in airflow.values())


def test_store_lies_at_one_path_wherever_its_files_are_opened(services: dict[str, dict[str, Any]]) -> None:
    openers = ["rocketmq-broker", "spark-worker", "airflow-scheduler", "airflow-triggerer", "store-init"]
    mounted = {
        name: path
        for name in openers
        for path, source in _volumes(services[name]).items()
        if source == "broker-store"
    }
    assert mounted == dict.fromkeys(openers, "/var/lib/rocketmq")


def test_connection_amounts_to_the_store_that_the_broker_writes(airflow_environment: dict[str, str]) -> None:
    connection = json.loads(airflow_environment["AIRFLOW_CONN_STORAGE_ENGINE_DEFAULT"])
    fields = {
        kind["connection-type"]: kind["conn-fields"] for kind in get_provider_info()["connection-types"]
    }
    assert set(connection["extra"]) <= set(fields[connection["conn_type"]])

    store = managed_store(
        "storage_engine_default",
        connection["extra"],
        None,
        Defaults(
            home="/opt/airflow",
            journal_url=airflow_environment["AIRFLOW__STORAGE_ENGINE__JOURNAL_URL"],
            lake=airflow_environment["AIRFLOW__STORAGE_ENGINE__LAKE"],
            report_dir=airflow_environment["AIRFLOW__STORAGE_ENGINE__REPORT_DIR"],
        ),
    )

    broker = load_broker_config(BROKER_CONF, store.overrides, root=store.root)
    assert broker.raw["storePathRootDir"] == store.root
    assert broker.file_reserved_time_hours == int(store.overrides["fileReservedTime"])
    assert store.lake.properties["warehouse"].startswith("s3://")


def test_broker_by_itself_deletes_nothing() -> None:
    broker = load_broker_config(BROKER_CONF, root=None)
    assert broker.file_reserved_time_hours >= 100_000
    assert not broker.clean_file_forcibly_enable


def test_lake_and_object_store_agree_on_credentials(
    compose: dict[str, Any], airflow_environment: dict[str, str]
) -> None:
    lake = json.loads(airflow_environment["AIRFLOW__STORAGE_ENGINE__LAKE"])
    (identity,) = json.loads(compose["configs"]["s3-identities"]["content"])["identities"]
    assert identity["credentials"] == [
        {"accessKey": lake["s3.access-key-id"], "secretKey": lake["s3.secret-access-key"]}
    ]


def test_databases_are_those_that_are_created(airflow_environment: dict[str, str]) -> None:
    script = (ROOT / "docker" / "postgres" / "databases.sql").read_text(encoding="utf-8")
    created = {"airflow", *re.findall(r"CREATE DATABASE (\w+);", script)}
    used = re.findall(r"@postgres/(\w+)", " ".join(airflow_environment.values()))
    assert set(used) == created


def test_spark_connection_names_the_master(
    services: dict[str, dict[str, Any]], airflow_environment: dict[str, str]
) -> None:
    spark = json.loads(airflow_environment["AIRFLOW_CONN_SPARK_DEFAULT"])
    master = services["spark-master"]["command"]
    assert spark["host"] == "spark://spark-master"
    assert str(spark["port"]) == master[master.index("--port") + 1]
    assert services["spark-worker"]["command"][-1] == f"{spark['host']}:{spark['port']}"


def test_broker_gets_its_stop_signal_and_time_to_close_its_store(
    services: dict[str, dict[str, Any]],
) -> None:
    broker = services["rocketmq-broker"]
    assert broker["entrypoint"][0] == "java"
    assert broker["stop_grace_period"] == "2m"


def test_broker_is_the_version_that_the_integration_tests_run(services: dict[str, dict[str, Any]]) -> None:
    pom = ElementTree.parse(ROOT / "tests" / "java" / "pom.xml")
    version = pom.findtext(".//{http://maven.apache.org/POM/4.0.0}rocketmq.version")
    for name in ("rocketmq-broker", "rocketmq-namesrv"):
        assert services[name]["image"] == f"apache/rocketmq:{version}"
        assert f"rocketmq-{version}/" in " ".join(services[name]["entrypoint"])


def test_dockerfile_copies_what_exists_and_is_let_into_the_build() -> None:
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    admitted = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = set()
    for sources in re.findall(r"^COPY (.+) \S+$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE):
        copied |= set(sources.split())
    assert copied == admitted
    assert all((ROOT / path).exists() for path in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert set(wheel["targets"]["wheel"]["force-include"]) <= copied


def test_image_installs_pinned_database_drivers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert '".[postgres]" ./provider' in DOCKERFILE.read_text(encoding="utf-8")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    for requirement in project["optional-dependencies"]["postgres"]:
        name = re.split(r"[\[>=]", requirement)[0]
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name
