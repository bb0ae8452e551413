"""From an Airflow connection's fields to a ManagedStore. Pure: no Airflow, no input or output."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from storage_engine.brokers import broker_names, default_broker
from storage_engine.exceptions import BadInputError
from storage_engine.hooks.fields import Fields
from storage_engine.hooks.live_broker import live_broker
from storage_engine.lake.config import LakeConfig
from storage_engine.model.policy import (
    SHIELD_GIVE_UP_PERCENT,
    ArchiveMode,
    ArchiveWhen,
    LagPolicy,
    PendingPolicy,
    Policy,
    ShieldMode,
)
from storage_engine.retention.managed_store import ManagedStore

_CATALOG_NAME = "storage_engine"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the ``[storage_engine]`` section says, for connections that leave a field empty.

    :param home: AIRFLOW_HOME; journal, lake and reports lie under it when the section is silent too.
    :param lake: a directory, or a JSON object of catalog properties.
    :param second_lake: likewise; empty: there is none.
    """

    home: str
    journal_url: str = ""
    lake: str = ""
    report_dir: str = ""
    second_lake: str = ""


def managed_store(
    conn_id: str, extra: Mapping[str, Any], password: str | None, defaults: Defaults
) -> ManagedStore:
    """Work out what a connection amounts to.

    :param extra: the connection's extra fields, by the names in ``get_provider_info``.
    :param password: the journal's password, put into its URL.
    :raises BadInputError: a missing, contradicting or ill-typed field; names connection and field.
    """
    read = Fields(conn_id, extra)
    directory = Path(defaults.home) / "storage_engine"
    return ManagedStore(
        name=conn_id,
        root=read.text("root", required=True),
        broker=_broker_type(read),
        broker_conf=read.text("broker_conf") or None,
        overrides=read.mapping("overrides"),
        time_zone=read.text("time_zone") or None,
        lake=_lake(read, defaults, directory),
        journal_url=_journal_url(read, password, defaults, directory),
        report_dir=read.text("report_dir") or defaults.report_dir or str(directory / "reports"),
        policy=Policy(
            archive=ArchiveMode(read.choice("archive", [mode.value for mode in ArchiveMode])),
            lag_policy=LagPolicy(read.choice("lag_policy", ["warn", "block", "ignore"])),
            pending_policy=PendingPolicy(read.choice("pending_policy", ["warn", "block", "ignore"])),
            archive_when=ArchiveWhen(read.choice("archive_when", [when.value for when in ArchiveWhen])),
            archive_budget_bytes=read.number("archive_budget_bytes") or Policy().archive_budget_bytes,
            archive_lag_alarm_bytes=read.number("archive_lag_alarm_bytes"),
            archive_lag_alarm_seconds=read.number("archive_lag_alarm_seconds"),
            archive_bytes_per_second=read.number("archive_bytes_per_second", minimum=0),
            flush_alarm_bytes=read.number("flush_alarm_bytes") or Policy().flush_alarm_bytes,
            dispatch_alarm_bytes=read.number("dispatch_alarm_bytes") or Policy().dispatch_alarm_bytes,
            checkpoint_alarm_seconds=(
                read.number("checkpoint_alarm_seconds") or Policy().checkpoint_alarm_seconds
            ),
            index_alarm_seconds=read.number("index_alarm_seconds"),
            lag_max_age_minutes=read.number("lag_max_age_minutes") or Policy().lag_max_age_minutes,
            minimum_retention_hours=read.number("minimum_retention_hours"),
            undo_window_hours=read.number("undo_window_hours"),
            shield=ShieldMode(read.choice("shield", [mode.value for mode in ShieldMode])),
            shield_give_up_percent=read.percent("shield_give_up_percent") or SHIELD_GIVE_UP_PERCENT,
        ),
        second_lake=_second_lake(read, defaults),
        host=read.text("store_host") or None,
        live=live_broker(read),
        named=True,
    )


def _broker_type(read: Fields) -> str:
    """Return the store's broker by name; a connection that names none is the default broker's."""
    name = read.text("broker_type") or default_broker()
    if name not in broker_names():
        raise read.error("broker_type", f"a broker that is installed ({', '.join(broker_names())})", name)
    return name


def store_queue(extra: Mapping[str, Any]) -> str | None:
    """The Airflow queue whose workers see the store's disk; None: any worker does."""
    return str(extra.get("queue") or "").strip() or None


def spark_connection(extra: Mapping[str, Any]) -> str | None:
    """The connection that a store's Spark jobs are submitted with; None: its tasks do their work."""
    return str(extra.get("spark_conn_id") or "").strip() or None


def lake_names(lakes: Sequence[LakeConfig]) -> tuple[str, ...]:
    """Short names of lakes, by where their warehouses are: fit for DAG ids, and different from each other."""
    places = [_place(lake) for lake in lakes]
    return tuple(
        f"{place}-{hashlib.sha256(repr(lake).encode()).hexdigest()[:6]}" if places.count(place) > 1 else place
        for place, lake in zip(places, lakes, strict=True)
    )


def _place(lake: LakeConfig) -> str:
    """The last part of a warehouse's address that says something."""
    parts = [part for part in urlsplit(lake.location).path.split("/") if part not in ("", "warehouse")]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", parts[-1] if parts else urlsplit(lake.location).netloc) or "lake"


def _lake(read: Fields, defaults: Defaults, directory: Path) -> LakeConfig:
    properties = read.mapping("lake_properties")
    place = read.text("lake_directory")
    if properties and place:
        raise read.error("lake_directory", "empty when lake_properties are given", place)
    name = read.text("lake_catalog") or _CATALOG_NAME
    if properties:
        return LakeConfig(name=name, properties=properties)
    if not place and defaults.lake.lstrip().startswith("{"):
        return LakeConfig(name=name, properties=_catalog_properties(defaults.lake, "lake"))
    return LakeConfig.local(place or defaults.lake or str(directory / "lake"))


def _second_lake(read: Fields, defaults: Defaults) -> LakeConfig | None:
    named = read.extra.get("second_lake")
    value = named or defaults.second_lake
    if not value:
        return None
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return LakeConfig.local(value.strip())
    properties = read.mapping("second_lake") if named else _catalog_properties(value, "second_lake")
    return LakeConfig(name=read.text("lake_catalog") or _CATALOG_NAME, properties=properties)


def _catalog_properties(text: str, option: str) -> dict[str, str]:
    """An option of ``[storage_engine]`` as catalog properties. Never quotes it: it may hold secrets."""
    try:
        properties = json.loads(text)
    except ValueError as error:
        raise BadInputError(
            f"[storage_engine] {option}: expected a directory or a JSON object of catalog properties: {error}"
        ) from None
    return {str(key): str(value) for key, value in properties.items()}


def _journal_url(read: Fields, password: str | None, defaults: Defaults, directory: Path) -> str:
    url = read.text("journal_url") or defaults.journal_url or f"sqlite:///{directory / 'journal.db'}"
    if not password:
        return url
    try:
        return make_url(url).set(password=password).render_as_string(hide_password=False)
    except (ArgumentError, ValueError):
        raise read.error("journal_url", "a SQLAlchemy URL", "something else") from None
