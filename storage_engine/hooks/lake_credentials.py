"""A lake's credentials, out of the Airflow connections that its properties name. Pure.

They are looked up when a task runs and stand in no DAG, no rendered field and no XCom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sqlalchemy.engine import URL

from storage_engine.exceptions import BadInputError
from storage_engine.lake.catalog.config import LakeConfig

S3_CONNECTION = "airflow.s3-conn-id"
"""Property of a lake: the ``aws`` connection that opens its object store."""
CATALOG_CONNECTION = "airflow.catalog-conn-id"
"""Property of a lake: the ``postgres``, ``http`` or ``iceberg`` connection of its catalog."""


class NamedConnection(Protocol):
    """What is read of an Airflow connection."""

    conn_id: str
    conn_type: str
    host: str | None
    port: int | None
    schema: str | None
    login: str | None

    @property
    def password(self) -> str | None: ...

    @property
    def extra_dejson(self) -> dict[str, Any]: ...


def with_credentials(lake: LakeConfig, connection: Callable[[str], Any]) -> LakeConfig:
    """The lake with what its named connections say; properties that it has itself win.

    :param connection: looks up a :class:`NamedConnection` by its id.
    :raises BadInputError: a connection of a type that can't serve; names it.
    """
    properties = dict(lake.properties)
    for key, read in ((S3_CONNECTION, _object_store), (CATALOG_CONNECTION, _catalog)):
        if conn_id := properties.pop(key, ""):
            properties = {**read(connection(conn_id)), **properties}
    return LakeConfig(lake.name, properties, lake.namespace)


def _object_store(connection: NamedConnection) -> dict[str, str]:
    _check_type(connection, ("aws",), S3_CONNECTION)
    extra = connection.extra_dejson
    service = extra.get("service_config", {}).get("s3", {})
    return _present(
        {
            "s3.access-key-id": connection.login or extra.get("aws_access_key_id"),
            "s3.secret-access-key": connection.password or extra.get("aws_secret_access_key"),
            "s3.session-token": extra.get("aws_session_token"),
            "s3.endpoint": service.get("endpoint_url") or extra.get("endpoint_url"),
            "s3.region": extra.get("region_name"),
            "s3.role-arn": extra.get("role_arn"),
        }
    )


def _catalog(connection: NamedConnection) -> dict[str, str]:
    _check_type(connection, ("postgres", "http", "iceberg"), CATALOG_CONNECTION)
    if connection.conn_type == "postgres":
        url = URL.create(
            "postgresql+psycopg",
            connection.login,
            connection.password,
            connection.host,
            connection.port,
            connection.schema,
        )
        return {"type": "sql", "uri": url.render_as_string(hide_password=False)}
    secret = f"{connection.login}:{connection.password}" if connection.login else None
    return _present(
        {
            "type": "rest",
            "uri": _address(connection),
            "credential": secret if connection.password else None,
            "token": None if connection.login else connection.password,
        }
    )


def _address(connection: NamedConnection) -> str:
    """As Airflow's HttpHook reads one: the host may be the whole address, the schema field the scheme."""
    host = connection.host or ""
    if "://" in host:
        return host
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{host}{port}"


def _check_type(connection: NamedConnection, expected: tuple[str, ...], key: str) -> None:
    if connection.conn_type not in expected:
        raise BadInputError(
            f"connection {connection.conn_id}, named by a lake's property {key}: expected type "
            f"{' or '.join(expected)}, found {connection.conn_type!r}."
        )


def _present(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items() if value}
