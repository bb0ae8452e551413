"""How a catalog server is talked to: never for ever, and never over a connection that outlived its use."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import URL, Engine, NullPool, create_engine, event, make_url

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60

_POSTGRES_DEFAULTS = {
    "connect_timeout": str(CONNECT_SECONDS),
    # A host that vanished is noticed after a minute, whether we wait for its answer or it for our request.
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}


def sql_url(uri: str) -> URL:
    """A SQL catalog's address; for PostgreSQL with limits on waiting, unless it has its own."""
    url = make_url(uri)
    if url.get_backend_name() != "postgresql" or url.get_driver_name() not in ("psycopg", "psycopg2"):
        return url
    return url.update_query_dict({k: v for k, v in _POSTGRES_DEFAULTS.items() if k not in url.query})


def sql_engine(url: URL) -> Engine:
    """An engine without a pool: no connection outlives its use, crosses a fork, or was opened before it was
    durable."""
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _make_durable)
    return engine


def _make_durable(connection: Any, _record: Any) -> None:
    """EXTRA is FULL and also fsyncs the directory once the rollback journal is gone: without that a
    power cut may bring the journal back, and it would roll a committed transaction back."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()


class PatientRestCatalog(RestCatalog):
    """PyIceberg's REST catalog, whose requests end: PyIceberg itself sets no limit on any."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _LimitedAdapter())
        return session


class _LimitedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = (CONNECT_SECONDS, ANSWER_SECONDS)
        return super().send(request, *args, **kwargs)


REST_CATALOG = f"{PatientRestCatalog.__module__}.{PatientRestCatalog.__qualname__}"
