"""Identity of this machine and its users: a store is looked at on the host that has its disk."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from storage_engine.exceptions import WrongHostError

ANY_HOST = "*"
"""The store lies on a mount that every host sees under the same path."""

_MACHINE_ID = Path("/etc/machine-id")
_NO_ID = "uninitialized"
"""Content of that file in images of machines that have not been started yet (machine-id(5))."""


def this_host() -> str:
    """The machine's id where the system gives it one, which outlives a new name; its name otherwise."""
    try:
        found = _MACHINE_ID.read_text().strip()
    except OSError:
        found = ""
    return socket.gethostname() if found in ("", _NO_ID) else found


def person() -> str:
    """Return the user who runs this process, for the journal, by the real user id: LOGNAME can be set to
    anything.

    Of root it is also who became root by sudo, which only root's environment can be believed in.
    """
    name = user_name(os.getuid())
    behind = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{name} for {behind}" if behind and behind != name else name


def is_loopback(host: str) -> bool:
    """Return whether a listener at this host name is reachable from this machine alone."""
    # Most commands serve nothing.
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> tuple[str, int] | None:
    """Return the host and the port of a text such as 127.0.0.1:9092 or [::1]:9092; None: it is none."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and int(port) < 1 << 16
    return (host, int(port)) if host and is_port else None


def is_this_host(host: str | None) -> bool:
    """Return whether a machine id or host name is this machine's."""
    return host in (this_host(), socket.gethostname())


def user_name(uid: int) -> str:
    """Return a user's name, or the number where this machine knows none, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def may_have_come(stated: str | None, first_seen: str | None) -> bool:
    """Return whether a store of another machine may lie on this one by now, by its settings.

    Parameters are as of :func:`check_host`.
    """
    here = stated is None or is_this_host(stated)
    return here and first_seen not in (None, ANY_HOST) and not is_this_host(first_seen)


def check_host(root: str, stated: str | None, first_seen: str | None) -> None:
    """Make sure that this machine may look at a store: another one has another disk under the same path.

    :param stated: the store's host by its settings, a name or a machine id; :data:`ANY_HOST`: any.
    :param first_seen: where the journal saw it first; counts when none is stated.
    :raises WrongHostError: it is another machine's.
    """
    expected = stated or first_seen
    if expected in (None, ANY_HOST) or is_this_host(expected):
        return
    why = "its settings say it is" if stated else "it was first seen"
    raise WrongHostError(
        f"{root}: expected to be looked at on host {expected}, where {why}, found host "
        f"{socket.gethostname()} ({this_host()}). Nothing was read or changed. Let the connection's queue "
        "lead to a worker on that host, and for deferrable sensors to a triggerer. Where all hosts mount one "
        "and the same disk, or the store has moved, say so as the connection's store host: * or a name."
    )
