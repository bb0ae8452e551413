"""Whether anybody listens at the addresses that a cluster is named by. Only connects, and says nothing."""

from __future__ import annotations

import errno
import re
import socket
from typing import Any

_ADDRESS = re.compile(r"(?:\w+://)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]/]+))(?::(?P<port>\d{1,5}))?\Z")
_DEFAULT_PORT, _LAST_PORT = 9092, (1 << 16) - 1
_CONNECT_SECONDS = 1.0
"""How long one address may take; who is slower isn't nobody."""
_NO_WAY = frozenset({errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT})
"""As of the IPv6 address of a name, on a machine that has none."""


def nobody_listens(bootstrap: str) -> bool:
    """Return whether each address refuses connections, or names no host. What isn't known is no.

    :param bootstrap: ``bootstrap.servers``, as librdkafka reads it.
    """
    addresses = [one.strip() for one in bootstrap.split(",") if one.strip()]
    return bool(addresses) and all(map(_refuses, addresses))


def _refuses(address: str) -> bool:
    found = _ADDRESS.match(address)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if found is None or port > _LAST_PORT:
        return False
    try:
        places = socket.getaddrinfo(found["v6"] or found["host"], port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME
    except (OSError, UnicodeError):
        return False
    answers = {_answer(family, kind, place) for family, kind, _, _, place in places}
    return errno.ECONNREFUSED in answers and answers <= {errno.ECONNREFUSED, *_NO_WAY}


def _answer(family: int, kind: int, place: Any) -> int | None:
    """Return the error of a connection; 0: it is made; None: nothing came in time, or another error."""
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(_CONNECT_SECONDS)
            one.connect(place)
    except OSError as error:
        return error.errno
    return 0
