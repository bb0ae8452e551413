"""Requests to a REST catalog, and the choice of the parts of its answers that are followed."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.exceptions import RESTError
from pyiceberg.table import Table
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import TooManyRedirects

from storage_engine.lake.catalog.catalog_connections import ANSWER_SECONDS, CONNECT_SECONDS
from storage_engine.lake.catalog.own_tables import OwnTables

_REST_CONFIG = ("prefix", "namespace-separator")
"""Properties that the protocol needs from a REST server. All others come from the lake's configuration."""

_REST_TABLE_CONFIG = ("token",)
"""Properties that the protocol needs from a REST server's answers about a table."""

_ACCESS_DELEGATION = "X-Iceberg-Access-Delegation"


class PatientRestCatalog(OwnTables, RestCatalog):
    """PyIceberg's REST catalog with time limits for requests: PyIceberg itself sets none.

    It follows only the parts of the server's answers that the protocol needs.
    """

    def _create_session(self) -> Session:
        session = super()._create_session()
        if f"header.{_ACCESS_DELEGATION}" not in self.properties:
            # The server's credentials wouldn't be used, so none are requested.
            session.headers.pop(_ACCESS_DELEGATION, None)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _LimitedAdapter())
        session.hooks["response"].append(_check_redirect)
        return session

    def _fetch_config(self) -> None:
        properties, uri = dict(self.properties), self.uri
        try:
            super()._fetch_config()
        except (ValidationError, AttributeError, TypeError) as error:
            raise RESTError(f"expected a catalog's configuration, found something else: {error}") from error
        answered = {key: value for key, value in self.properties.items() if properties.get(key) != value}
        self.properties = {**properties, **{key: answered[key] for key in _REST_CONFIG if key in answered}}
        self.uri = uri
        self.ignored = answered.keys() - set(_REST_CONFIG)

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        config = table_response.config
        self.ignored |= config.keys() - set(_REST_TABLE_CONFIG)
        for credentials in table_response.storage_credentials:
            self.ignored |= credentials.config.keys()
        return self.own_table(
            identifier_tuple,
            table_response.metadata,
            str(table_response.metadata_location),
            {key: config[key] for key in _REST_TABLE_CONFIG if key in config},
        )


def _check_redirect(response: Response, **_: Any) -> None:
    """Raise TooManyRedirects if an answer redirects the request to another host."""
    host = urlsplit(response.headers.get("location", "")).hostname
    if response.is_redirect and host not in (None, urlsplit(response.url).hostname):
        raise TooManyRedirects(f"the catalog's answer leads to {host}: name that host as the lake's uri")


class _LimitedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = (CONNECT_SECONDS, ANSWER_SECONDS)
        return super().send(request, *args, **kwargs)
