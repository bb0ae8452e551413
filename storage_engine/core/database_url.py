"""What a SQLAlchemy URL may say: a database and how it is reached, never what a driver would load."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from storage_engine.core.nearest import meant

_SQLITE = "timeout uri"
_POSTGRES = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name
    gssdelegation gssencmode host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval
    krbsrvname load_balance_hosts options passfile password port require_auth requirepeer
    ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir
    sslkey sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
"""Keywords of libpq, without those that name other settings or load a module (service, oauth_*)."""
_ARGUMENTS = {
    "sqlite": _SQLITE,
    "sqlite+pysqlite": _SQLITE,
    "postgresql": _POSTGRES,
    "postgresql+psycopg": _POSTGRES,
    "postgresql+psycopg2": _POSTGRES,
}
"""By the URL's scheme."""
# A password with a ? that isn't escaped counts as well: what SQLAlchemy takes for an argument is among these.
_ARGUMENT = re.compile(r"[?&]([^=&?]*)=(?=([^&]*))")


def check_database_url(url: str) -> None:
    """Make sure that a SQLAlchemy URL names one of our databases, by arguments that only say how.

    :raises ValueError: it doesn't; the text of the error says what was found, without any value.
    """
    scheme = url.partition("://")[0]
    if (allowed := _ARGUMENTS.get(scheme)) is None:
        raise ValueError(f"one whose scheme isn't among {', '.join(_ARGUMENTS)}")
    names = frozenset(allowed.split())
    for pair in _ARGUMENT.finditer(url):
        name, value = unquote_plus(pair[1]), unquote_plus(pair[2])
        if name not in names:
            # What stands before an @ may be a part of the password.
            is_told = "@" not in url[pair.start() :]
            argument = f"the argument {name!r}, which" if is_told else "an argument that"
            hint = meant(name, names) if is_told else ""
            raise ValueError(f"{argument} isn't among {', '.join(sorted(names))}.{hint}")
        if name == "sslkey" and ":" in value:
            # libpq has OpenSSL load an engine by what stands before the colon.
            raise ValueError("an sslkey with a colon, which names an engine and no file")
