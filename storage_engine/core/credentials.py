"""Credentials among settings. They must not appear in a log, report, page or file that others can read.

Hiding too little does harm. So anything that some parser may read as a password counts as a password.
"""

from __future__ import annotations

import re
import secrets as random
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus, urlsplit

from storage_engine.core.wording import did_you_mean

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(secret([-_.]?key)?|tokens?|credentials?|credentials-info|passw(or)?d|passphrase|pwd|authorization|cookie|signature"
    r"|(access|account|api|auth|private|shared)[-_.]?key|basic[-_.]?auth|connection[-_.]?string|^auth)$"
    r"|sas[-_.]?token",
    re.IGNORECASE,
)

_OPEN_HEADERS = frozenset(
    {"accept", "content-type", "user-agent", "x-client-version", "x-iceberg-access-delegation"}
)
"""Headers without a credential in requests to a REST catalog. Any other header may have a credential."""

_MARK = re.compile(r"storage-engine-credential:[0-9a-f]{16}:\d+")

_AUTHORITY = re.compile(r"[\w+.-]+://[^:/@]*:(.*)@", re.DOTALL)
_QUERY_PARAMETER = re.compile(r"[?&]([^=&?#]+)=([^&#]*)")


def is_secret_name(name: str) -> bool:
    """Return whether a property or parameter of this name has a credential."""
    kind, _, header = name.lower().partition(".")
    if kind == "header":
        return header not in _OPEN_HEADERS
    return bool(_SECRET_NAME.search(name))


def property_secrets(properties: Mapping[str, str]) -> frozenset[str]:
    """Return every credential among properties: values with secret names, and credentials in URLs."""
    secrets: set[str] = set()
    for name, value in properties.items():
        if is_secret_name(name):
            secrets.add(value)
            # Parts that may be shown alone: the part behind a scheme such as Bearer, and a cookie's value.
            if name.lower() == "header.cookie":
                secrets |= {cookie.partition("=")[2] for cookie in re.split(r";\s*", value)}
            elif name.lower().startswith("header."):
                secrets.add(value.rpartition(" ")[2])
            else:
                # A REST catalog's credential is "id:secret".
                secrets.add(value.partition(":")[2])
        secrets |= url_secrets(value)
    return frozenset(secrets - {""})


def url_secrets(text: str) -> frozenset[str]:
    """Return every credential in a URL, both as written and decoded.

    A text with an ``@`` that can't be parsed counts as a credential as a whole.
    """
    if "://" not in text or not ("@" in text or "?" in text):
        return frozenset()
    written = {value for name, value in _QUERY_PARAMETER.findall(text) if is_secret_name(unquote_plus(name))}
    http = text.lower().startswith("http")
    if not http and (match := _AUTHORITY.match(text)):
        written.add(match[1])
    # An unescaped @ ends the password early. A parser then takes the rest for the host, and would show it.
    secrets = written | {part for secret in written for part in secret.split("@")}
    try:
        secrets |= set(_http_secrets(text) if http else _sqlalchemy_secrets(text))
    except ValueError:
        secrets |= {text} if "@" in text else set()
    secrets |= {decode(secret) for secret in tuple(secrets) for decode in (unquote, unquote_plus)}
    return frozenset(secrets - {""})


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return a text with ``***`` in place of every secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def shown_url(url: str) -> str:
    """Return a SQLAlchemy URL for people, with ``***`` in place of passwords.

    :raises ValueError: the text is no URL, or an ``@`` in its password is not escaped. The error shows
        nothing of the text.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError("no SQLAlchemy URL") from None
    if "@" in (parsed.host or ""):
        raise ValueError("a password whose @ is not written as %40")
    hidden = {name: HIDDEN for name in parsed.query if is_secret_name(name)}
    rendered = parsed.update_query_dict(hidden).render_as_string(hide_password=True)
    return rendered.replace("=%2A%2A%2A", f"={HIDDEN}")


def set_apart(value: Any) -> tuple[Any, dict[str, str]]:
    """Return JSON values with marks in place of credentials, and the credential of each mark.

    :func:`put_back` is the inverse. Marks are random, so that no setting can imitate one.
    """
    prefix = f"storage-engine-credential:{random.token_hex(8)}:"
    marks: dict[str, str] = {}

    def walk(name: str, item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: walk(key, inner) for key, inner in item.items()}
        if isinstance(item, list):
            return [walk(name, inner) for inner in item]
        if isinstance(item, str) and item and property_secrets({name: item}):
            return marks.setdefault(item, f"{prefix}{len(marks)}")
        return item

    return walk("", value), {mark: credential for credential, mark in marks.items()}


def put_back(value: Any, credentials: Mapping[str, str]) -> Any:
    """Return JSON values with credentials in place of the marks of :func:`set_apart`.

    :raises KeyError: a mark has no credential.
    """
    if isinstance(value, Mapping):
        return {key: put_back(item, credentials) for key, item in value.items()}
    if isinstance(value, list):
        return [put_back(item, credentials) for item in value]
    if isinstance(value, str) and _MARK.fullmatch(value):
        return credentials[value]
    return value


def _http_secrets(text: str) -> Iterator[str]:
    parts = urlsplit(text)
    yield parts.password or ""
    yield from (value for name, value in parse_qsl(parts.query) if is_secret_name(name))


def _sqlalchemy_secrets(text: str) -> Iterator[str]:
    """Yield the credentials of a SQLAlchemy URL.

    :raises ValueError: the text can't be parsed.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("no URL") from None
    yield str(url.password or "")
    for name, value in url.query.items():
        if is_secret_name(name):
            yield from (value,) if isinstance(value, str) else value


_SQLITE = "timeout uri"
_POSTGRES = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name
    gssdelegation gssencmode host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval
    krbsrvname load_balance_hosts options passfile password port require_auth requirepeer
    ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir
    sslkey sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
"""Keywords of libpq, except those that refer to other settings or load a module (service, oauth_*)."""
_ARGUMENTS = {
    "sqlite": _SQLITE,
    "sqlite+pysqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgresql+psycopg": _POSTGRES,
    "postgresql+psycopg2": _POSTGRES,
}
"""Permitted arguments, by the URL's scheme."""
# Finds all arguments that SQLAlchemy would find. An unescaped ? in a password may begin one, too.
_ARGUMENT = re.compile(r"[?&]([^=&?]*)=(?=([^&]*))")


def check_database_url(url: str) -> None:
    """Check that a SQLAlchemy URL names a supported database and its arguments only configure a connection.

    :raises ValueError: the database or an argument isn't permitted. The error shows no value of the URL.
    """
    scheme = url.partition("://")[0]
    if (allowed := _ARGUMENTS.get(scheme)) is None:
        raise ValueError(f"one whose scheme isn't among {', '.join(_ARGUMENTS)}")
    names = frozenset(allowed.split())
    for pair in _ARGUMENT.finditer(url):
        name, value = unquote_plus(pair[1]), unquote_plus(pair[2])
        if name not in names:
            # A text before an @ may be a part of the password.
            is_shown = "@" not in url[pair.start() :]
            argument = f"the argument {name!r}, which" if is_shown else "an argument that"
            hint = did_you_mean(name, names) if is_shown else ""
            raise ValueError(f"{argument} isn't among {', '.join(sorted(names))}.{hint}")
        if name == "sslkey" and ":" in value:
            # libpq lets OpenSSL load the engine that is named before the colon.
            raise ValueError("an sslkey with a colon, which names an engine and no file")
