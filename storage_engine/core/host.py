"""Identity of this machine and its users. A store is read only on the host that has its disk."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

from storage_engine.exceptions import WrongHostError

ANY_HOST = "*"
"""Host of a store on a mount that every host has under the same path."""

_MACHINE_ID = Path("/etc/machine-id")
_NO_ID = "uninitialized"
"""Content of the machine-id file before the first boot from an image (machine-id(5))."""


def this_host() -> str:
    """Return the machine's id, which is independent of its name. Without an id, return the name."""
    try:
        machine_id = _MACHINE_ID.read_text().strip()
    except OSError:
        machine_id = ""
    return socket.gethostname() if machine_id in ("", _NO_ID) else machine_id


def person() -> str:
    """Return the user of this process, for the journal. The real user id decides: anybody can set LOGNAME.

    For root, the text also has the user who became root by sudo. Only root's SUDO_USER is trusted.
    """
    name = user_name(os.getuid())
    sudo_user = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"{name} for {sudo_user}" if sudo_user and sudo_user != name else name


def is_loopback(host: str) -> bool:
    """Return whether a listener at this host name is reachable only from this machine."""
    # Imported here, since most commands serve nothing.
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> tuple[str, int] | None:
    """Return host and port of a text such as 127.0.0.1:9092 or [::1]:9092; None for another text."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and int(port) < 1 << 16
    return (host, int(port)) if host and is_port else None


def is_this_host(host: str | None) -> bool:
    """Return whether a machine id or host name belongs to this machine."""
    return host in (this_host(), socket.gethostname())


def user_name(uid: int) -> str:
    """Return a user's name, or the number if this machine has no name for it, as in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def may_have_come(stated: str | None, first_seen: str | None) -> bool:
    """Return whether a store of another machine may have moved to this machine, as far as its settings say.

    Parameters are as for :func:`check_host`.
    """
    here = stated is None or is_this_host(stated)
    return here and first_seen not in (None, ANY_HOST) and not is_this_host(first_seen)


def check_host(root: str, stated: str | None, first_seen: str | None) -> None:
    """Check that a store is this machine's. Another machine has another disk under the same path.

    :param stated: the store's host in its settings: a name, a machine id, or :data:`ANY_HOST`.
    :param first_seen: the host on which the journal saw the store first. It counts if no host is stated.
    :raises WrongHostError: the store belongs to another machine.
    """
    expected = stated or first_seen
    if expected in (None, ANY_HOST) or is_this_host(expected):
        return
    why = "its settings say it is" if stated else "it was first seen"
    raise WrongHostError(
        f"{root}: expected to be read on host {expected}, where {why}, found host {socket.gethostname()} "
        f"({this_host()}). Nothing was read or changed. Set the connection's queue to one whose worker runs "
        "on that host, and for deferrable sensors also a triggerer. If all hosts mount the same disk, or "
        "the store has moved, set the connection's store host: * or a name."
    )
