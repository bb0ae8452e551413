"""Parsers of what pages show: configuration and JSON, as the product itself reads them."""

from __future__ import annotations

import configparser
import json
import tomllib
from collections.abc import Callable
from typing import Any

from storage_engine.get_provider_info import get_provider_info
from storage_engine.model.settings.policy import Policy, settings_of
from storage_engine.model.settings.store_settings import STORE_SETTINGS
from tests.docs.sandbox import unknown_words

SECTION = "storage_engine"


def _keys(name: str, found: Any, known: set[str]) -> None:
    assert isinstance(found, dict), f"{name}: expected a JSON object, found {found!r}"
    assert set(found) <= known, f"{name}: {sorted(set(found) - known)} are none of its settings"


def _policy(text: str) -> None:
    found = json.loads(text)
    _keys("policy", found, {one.name for one in settings_of(Policy)})
    settings = {one.name: one for one in settings_of(Policy)}
    for name, value in found.items():
        settings[name].read(value, lambda *said: AssertionError(str(said)))  # type: ignore[arg-type, return-value]


def _broker_settings(text: str) -> None:
    _keys("broker_settings", json.loads(text), {one.name for one in STORE_SETTINGS if one.inside})


def _lake(text: str) -> None:
    found = json.loads(text)
    assert isinstance(found, dict)
    assert {"warehouse", "airflow.catalog-conn-id"} & set(found), "a lake says where it is"


def _ini(text: str) -> None:
    """Airflow's configuration: our section has only options that the provider declares."""
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(text)
    declared = get_provider_info()["config"][SECTION]["options"]
    for name, value in read[SECTION].items() if SECTION in read else ():
        assert name in declared, f"{name}: no option of [{SECTION}]"
        if value.startswith(("[", "{")):
            found = json.loads(value)
            if name == "policies":
                for policy in found.values():
                    _policy(json.dumps(policy))


def _unit(text: str) -> None:
    """A unit of systemd, whose command is one of ours."""
    read = configparser.ConfigParser(interpolation=None)
    read.read_string(text)
    assert unknown_words(read["Service"]["ExecStart"]) is None


def _loads(text: str) -> None:
    json.loads(text)


def _toml(text: str) -> None:
    tomllib.loads(text)


PARSERS: dict[str, Callable[[str], None]] = {
    "policy": _policy,
    "broker settings": _broker_settings,
    "lake": _lake,
    "ini": _ini,
    "unit": _unit,
    "json": _loads,
    "toml": _toml,
}
"""By what ``is`` says, or a block's language."""
