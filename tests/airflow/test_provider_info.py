"""What Airflow reads of the provider before it imports any of it."""

from __future__ import annotations

import importlib
import json
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from storage_engine.get_provider_info import get_provider_info

BASE = "storage_engine.operators.spark_job.StoreSparkOperator"
"""Of operators, and none itself."""


def _airflow_schema(name: str) -> dict[str, Any]:
    spec = find_spec("airflow")
    assert spec is not None
    assert spec.submodule_search_locations
    schema: dict[str, Any] = json.loads((Path(spec.submodule_search_locations[0]) / name).read_text())
    return schema


def test_metadata_fits_the_schema_that_airflow_checks_at_run_time() -> None:
    jsonschema.validate(get_provider_info(), _airflow_schema("provider_info.schema.json"))


@pytest.mark.parametrize(
    "part",
    [
        "asset-uris",
        "connection-types",
        "config",
        "extra-links",
        "hooks",
        "operators",
        "sensors",
        "triggers",
    ],
)
def test_metadata_fits_the_stricter_schema_of_provider_sources(part: str) -> None:
    schema = _airflow_schema("provider.yaml.schema.json")
    schema.pop("required")
    jsonschema.validate({part: get_provider_info()[part]}, schema)


def test_each_key_is_one_that_airflow_knows() -> None:
    for name in ("provider_info.schema.json", "provider.yaml.schema.json"):
        assert get_provider_info().keys() <= _airflow_schema(name)["properties"].keys(), name


def test_no_key_is_missing_that_fits() -> None:
    """Named are the classes of a kind that a provider may name, and that are defined in this package."""
    from airflow.sdk.bases.notifier import BaseNotifier
    from airflow.sdk.bases.operatorlink import BaseOperatorLink

    info = get_provider_info()
    modules = [importlib.import_module(f"storage_engine.{name}") for name in _airflow_modules()]
    found = {
        kind: sorted(
            {
                f"{one.__module__}.{one.__name__}"
                for module in modules
                for one in vars(module).values()
                if isinstance(one, type)
                and issubclass(one, kind)
                and one.__module__.startswith("storage_engine.")
            }
        )
        for kind in (BaseOperatorLink, BaseNotifier)
    }
    assert info["extra-links"] == found[BaseOperatorLink]
    assert info.get("notifications", []) == found[BaseNotifier] == []
    # A queue is a BaseMessageQueueProvider of common.messaging, which nothing here imports.
    assert "queues" not in info


def _airflow_modules() -> list[str]:
    root = Path(__file__).parents[2] / "storage_engine"
    folders = ("hooks", "operators", "sensors", "triggers")
    inside = (f"{folder}.{path.stem}" for folder in folders for path in (root / folder).glob("[a-z]*.py"))
    return ["links", *inside]


def test_entry_point_leads_to_the_metadata() -> None:
    found = [
        point
        for point in entry_points(group="apache_airflow_provider")
        if point.value.startswith("storage_engine.")
    ]
    assert [point.load()() for point in found] == [get_provider_info()]


def test_every_named_module_and_class_exists() -> None:
    info = get_provider_info()
    for part in ("hooks", "operators", "sensors", "triggers"):
        for entry in info[part]:
            for module in entry["python-modules"]:
                importlib.import_module(module)
    (connection,) = info["connection-types"]
    module, name = connection["hook-class-name"].rsplit(".", 1)
    hook = getattr(importlib.import_module(module), name)
    assert hook.conn_type == connection["connection-type"]
    assert hook.hook_name == connection["hook-name"]


def test_airflow_knows_the_scheme_of_the_assets_and_leaves_them_as_they_are() -> None:
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    from storage_engine.assets import segments_archived

    handler = ProvidersManagerTaskRuntime().asset_uri_handlers["x-storage-engine"]
    asset = segments_archived("orders a")
    assert handler(urlsplit(asset.uri)).geturl() == asset.uri


def test_airflow_shows_the_connection_form() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager = ProvidersManager()
    assert "extra__storage_engine__root" in manager.connection_form_widgets
    assert ProvidersManagerTaskRuntime().hooks["storage_engine"] is not None
    assert manager.field_behaviours["storage_engine"]["relabeling"] == {"password": "Journal password"}


def test_only_what_has_a_password_in_it_is_masked() -> None:
    """Airflow masks a sensitive value wherever it stands: of a path, each form and log would lose it."""
    options = get_provider_info()["config"]["storage_engine"]["options"]
    assert [name for name, one in options.items() if one.get("sensitive")] == ["journal_url"]


def test_the_registrys_file_lists_each_class_that_the_provider_names() -> None:
    listed = yaml.safe_load((Path(__file__).parents[2] / ".airflow-registry.yaml").read_text())
    info = get_provider_info()
    assert listed["package-name"] == info["package-name"]
    for part in ("hooks", "operators", "sensors", "triggers"):
        modules = [importlib.import_module(name) for one in info[part] for name in one["python-modules"]]
        classes = {
            f"{module.__name__}.{name}"
            for module in modules
            for name, found in vars(module).items()
            if isinstance(found, type) and found.__module__ == module.__name__ and name[0] != "_"
        }
        assert {one["module"] for one in listed[part]} == classes - {BASE}
        assert all(one["description"] for one in listed[part])
