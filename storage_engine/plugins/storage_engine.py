"""The plugin, which every Airflow process loads: it imports FastAPI only where an app is asked for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class StorageEnginePlugin(AirflowPlugin):
    """Serves the reports of runs to who may read their DAGs."""

    name = "storage_engine"

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from storage_engine.links import URL_PREFIX
        from storage_engine.plugins.app import make_app

        return [{"app": make_app(), "url_prefix": URL_PREFIX, "name": "Storage Engine"}]
