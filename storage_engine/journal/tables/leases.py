"""Leases: the journal's record of the run that may change a store.

A lease is taken before the broker's own lock, and released after it. It tells a waiting process, on any host
or in any container, which run has the store. A lease expires by itself, so that a machine that vanished
doesn't block its store. If a process sees that the lease's owner was killed, it takes the lease at once.
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from sqlalchemy import Column, Connection, Table, insert, or_, select, update

from storage_engine.brokers import store_text
from storage_engine.core.clock import clock_ms, read_clock
from storage_engine.core.turns import command_text
from storage_engine.core.wording import time_text
from storage_engine.exceptions import StoreBusyError, TurnTakenError
from storage_engine.journal.tables.schema import cluster_leases, leases, stores

LEASE_MS = 10 * 60 * 1000
"""How long a lease is valid after its last renewal."""

START_TOLERANCE_S = 5.0
"""Tolerance for a process's start time: it depends on the boot time, which a clock change moves."""


@dataclass(frozen=True, slots=True)
class Lease:
    """:param of: the subject of the lease, for a message.
    :param token: proves that a renewal comes from the process that took the lease.
    """

    of: str
    owner: str
    token: str


def take(connection: Connection, store_id: str) -> Lease:
    """Take the lease of a store. Raise TurnTakenError if a process that isn't known to be dead has it."""
    query = select(stores.c.name, stores.c.broker, stores.c.real_path).where(stores.c.store_id == store_id)
    name = store_text(*connection.execute(query).one())
    return _take(connection, leases.c.store_id, store_id, f"store {name}")


def take_cluster(connection: Connection, cluster: str) -> Lease:
    """Take the lease of the settings that all stores of a cluster share. Errors: as for :func:`take`."""
    query = select(cluster_leases.c.cluster).where(cluster_leases.c.cluster == cluster)
    if connection.execute(query).first() is None:
        connection.execute(insert(cluster_leases).values(cluster=cluster, owner="", expires_at_ms=0))
    return _take(connection, cluster_leases.c.cluster, cluster, f"cluster {cluster}")


def _take(connection: Connection, key: Column[str], value: str, of: str) -> Lease:
    now_ms, table = clock_ms(), key.table
    row = connection.execute(select(table).where(key == value)).one()
    free = [table.c.token.is_(None), table.c.expires_at_ms < now_ms]
    if row.token is not None and is_dead(Owner.parse(row.owner)):
        free.append(table.c.token == row.token)
    lease = Lease(of, str(replace(this_process(), since_ms=now_ms, command=_command())), str(uuid.uuid4()))
    result = connection.execute(
        update(table)
        .where(key == value, or_(*free))
        .values(owner=lease.owner, token=lease.token, expires_at_ms=now_ms + LEASE_MS)
    )
    if not result.rowcount:
        raise TurnTakenError(
            f"{of}: expected its lease to be free, found that {Owner.parse(row.owner).described()} has it, "
            f"for another {max(0, row.expires_at_ms - now_ms) // 1000} s at least. Nothing was changed. "
            "Wait for that run to end."
        )
    return lease


def is_taken(connection: Connection, store_id: str) -> bool:
    """Return whether a store's lease belongs to a run that is not known to be dead."""
    row = connection.execute(select(leases).where(leases.c.store_id == store_id)).first()
    if row is None or row.token is None or row.expires_at_ms < clock_ms():
        return False
    return not is_dead(Owner.parse(row.owner))


def renew(connection: Connection, lease: Lease, table: Table = leases) -> None:
    """Renew a lease, which is in ``table``. Raise StoreBusyError if it expired or was taken over."""
    now_ms = clock_ms()
    renewed = connection.execute(
        update(table)
        .where(table.c.token == lease.token, table.c.expires_at_ms >= now_ms)
        .values(expires_at_ms=now_ms + LEASE_MS)
    )
    if not renewed.rowcount:
        raise StoreBusyError(
            f"{lease.of}: the lease of {lease.owner} expired before it was renewed, so another run may have "
            "it by now. Nothing more was changed. Run the same again."
        )


def give_up(connection: Connection, lease: Lease, table: Table = leases) -> None:
    """Release the lease, if we still have it."""
    connection.execute(update(table).where(table.c.token == lease.token).values(token=None, expires_at_ms=0))


@dataclass(frozen=True, slots=True)
class Owner:
    """Identity of a process, by which processes of the same host and container recognize it.

    :param boot_id: id of the machine's start; "" if not known, as in older releases' records.
    :param pid_namespace: the namespace in which ``pid`` is valid; "" if not known.
    :param since_ms: when the process took the lease; None if not known, as in older releases' records.
    :param command: the process's command; "" if not known.
    """

    host: str
    pid: int
    started_at_s: float
    boot_id: str = ""
    pid_namespace: str = ""
    since_ms: int | None = None
    command: str = ""

    def __str__(self) -> str:
        process = f"{self.host}:{self.pid}:{self.started_at_s:.1f}:{self.boot_id}:{self.pid_namespace}"
        return process if self.since_ms is None else f"{process}:{self.since_ms}:{self.command}"

    def described(self) -> str:
        """Return the process's command, number, host and time of the lease, for messages."""
        since_ms = int(self.started_at_s * 1000) if self.since_ms is None else self.since_ms
        return (
            f"{self.command or 'a run'} (process {self.pid} on host {self.host}, since {time_text(since_ms)})"
        )

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Parse the text of :meth:`__str__`, or ``host:pid:start`` of older releases."""
        host, pid, started, *rest = text.split(":", 6)
        boot_id, pid_namespace, since_ms, command = (*rest, *("",) * (4 - len(rest)))
        at_ms = int(since_ms) if since_ms else None
        return cls(host, int(pid), float(started), boot_id, pid_namespace, at_ms, command)


def this_process() -> Owner:
    """Return this process's identity. No other process has it, not even a later one with the same number."""
    reading = read_clock()
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        namespace = ""
    started_at_s = psutil.Process().create_time()
    boot_id = reading.boot_id if reading else ""
    return Owner(socket.gethostname(), os.getpid(), started_at_s, boot_id, namespace)


def is_dead(owner: Owner) -> bool:
    """Return whether ``owner`` is known to have ended.

    Only processes of this PID namespace, begun since this machine's last start, can be seen. All others count
    as alive: a container's process has another number here, or none, and machines may share a name.
    """
    current = this_process()
    here = (current.boot_id, current.pid_namespace)
    if not all(here) or (owner.boot_id, owner.pid_namespace) != here:
        return False
    if not psutil.pid_exists(owner.pid):
        return True
    try:
        process = psutil.Process(owner.pid)
        reused = abs(process.create_time() - owner.started_at_s) > START_TOLERANCE_S
        return reused or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        # The process exists, but /proc doesn't show the processes of other users.
        return False


def _command() -> str:
    try:
        return command_text(psutil.Process().cmdline())
    except psutil.Error:
        return ""
