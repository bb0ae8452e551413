"""Asks the plugin's application in this process, as somebody or as nobody."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import httpx

from storage_engine.plugins.storage_engine import StorageEnginePlugin

with warnings.catch_warnings(action="ignore"):
    # Airflow imports a client for tests, which warns.
    from airflow.api_fastapi import app as airflow_app
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser


__all__ = ["Client", "SomeDagsManager", "airflow_app", "client_of"]


class SomeDagsManager(SimpleAuthManager):
    """Lets everybody who is logged in read some DAGs alone."""

    readable: frozenset[str] = frozenset()

    def get_authorized_dag_ids(self, **_: Any) -> set[str]:
        return set(self.readable)


class Client:
    """:param token: of who asks; None: nobody is logged in."""

    def __init__(self, app: Any, token: str | None) -> None:
        self._app, self._headers = app, {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, params: dict[str, str] | None = None, **options: Any) -> httpx.Response:
        return self.ask("GET", path, params=params, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self.asked(method, path, **options))

    async def asked(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask beside others, in one event loop, as a server does."""
        headers = self._headers | options.pop("headers", {})
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.request(method, path, headers=headers, **options)


def client_of(manager: SimpleAuthManager, role: str | None) -> Client:
    """Return a client of the plugin's application for a user with a role; None: nobody."""
    (described,) = StorageEnginePlugin().fastapi_apps
    user = SimpleAuthManagerUser(username="ann", role=role or "")
    return Client(described["app"], manager.generate_jwt(user) if role else None)
