"""The plugin. All Airflow processes load it, so it imports FastAPI only when an app is requested."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from airflow import __version__ as airflow_version
from airflow.plugins_manager import AirflowPlugin

from storage_engine.links import CONSOLE_PATH, URL_PREFIX

VIEWS_SINCE = (3, 3, 2)
"""First Airflow version that keeps the address when a user moves within a page."""

_CONSOLE = f"{URL_PREFIX}{CONSOLE_PATH}/".removeprefix("/")
"""Path without a slash at its beginning, since Airflow itself may be served below a path."""
_ICON = f"{_CONSOLE}static/icon.svg"
_ICON_DARK = f"{_CONSOLE}static/icon-dark.svg"


class StorageEnginePlugin(AirflowPlugin):
    """Serves the console and the reports of runs. A user needs the right to read their DAGs."""

    name = "storage_engine"

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from storage_engine.plugins.app import make_app

        app = make_app(has_console=has_views(airflow_version))
        return [{"app": app, "url_prefix": URL_PREFIX, "name": "Storage Engine"}]

    @cached_property
    def external_views(self) -> list[Any]:  # type: ignore[override]
        if not has_views(airflow_version):
            return []
        icons = {"icon": _ICON, "icon_dark_mode": _ICON_DARK}
        views: list[Any] = [
            {
                "name": "Retention",
                "href": _CONSOLE,
                "destination": "nav",
                "url_route": "storage-engine",
                "nav_top_level": True,
                **icons,
            }
        ]
        from airflow.providers.common.compat.sdk import conf

        if conf.getboolean("storage_engine", "dag_tab", fallback=True):
            views.append(
                {
                    "name": "Retention",
                    "href": f"{_CONSOLE}?dag={{DAG_ID}}",
                    "destination": "dag",
                    "url_route": "storage-engine-store",
                    # Airflow reads this since 3.4. Older releases show the tab on each DAG.
                    "applies_to": {"dag_tags": ["storage-engine"]},
                    **icons,
                }
            )
        return views


def has_views(version: str) -> bool:
    """Return whether an Airflow of this version can show the console."""
    return tuple(map(int, re.findall(r"\d+", version)[:3])) >= VIEWS_SINCE
