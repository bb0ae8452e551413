"""Who holds a store by the journal's word.

A lease is taken after the broker's own lock, and given up before it. It runs out by itself, so that a
machine that vanished doesn't block its store; of a process that was killed on this machine it is taken
over at once.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from dataclasses import dataclass

import psutil
from sqlalchemy import Connection, or_, select, update

from storage_engine.exceptions import StoreBusyError
from storage_engine.retention.journal_schema import leases

LEASE_MS = 10 * 60 * 1000
"""How long a lease outlives its last renewal."""

START_TOLERANCE_S = 5.0
"""A process's start is reckoned from the boot time, which moves a little when the clock is corrected."""


@dataclass(frozen=True, slots=True)
class Lease:
    """:param token: proves that a renewal comes from who took the lease."""

    store_id: str
    owner: str
    token: str


def take(connection: Connection, store_id: str) -> Lease:
    """Take the lease of a store.

    :raises StoreBusyError: another has it, and is not known to be dead.
    """
    now_ms = _clock_ms()
    row = connection.execute(select(leases).where(leases.c.store_id == store_id)).one()
    free = [leases.c.token.is_(None), leases.c.expires_at_ms < now_ms]
    if row.token is not None and is_dead(row.owner):
        free.append(leases.c.token == row.token)
    lease = Lease(store_id, this_process(), str(uuid.uuid4()))
    taken = connection.execute(
        update(leases)
        .where(leases.c.store_id == store_id, or_(*free))
        .values(owner=lease.owner, token=lease.token, expires_at_ms=now_ms + LEASE_MS)
    )
    if not taken.rowcount:
        raise StoreBusyError(
            f"store {store_id}: expected its lease to be free, found it with {row.owner} for another "
            f"{max(0, row.expires_at_ms - now_ms) // 1000} s. Wait for that run to end."
        )
    return lease


def renew(connection: Connection, lease: Lease) -> None:
    """Prolong a lease.

    :raises StoreBusyError: it ran out or was taken over.
    """
    now_ms = _clock_ms()
    renewed = connection.execute(
        update(leases)
        .where(leases.c.token == lease.token, leases.c.expires_at_ms >= now_ms)
        .values(expires_at_ms=now_ms + LEASE_MS)
    )
    if not renewed.rowcount:
        raise StoreBusyError(
            f"store {lease.store_id}: the lease of {lease.owner} ran out before it was renewed, so another "
            "may have it by now. Nothing more was changed; run the same again."
        )


def give_up(connection: Connection, lease: Lease) -> None:
    """Free the lease, if it is still ours."""
    connection.execute(
        update(leases).where(leases.c.token == lease.token).values(token=None, expires_at_ms=0)
    )


def this_process() -> str:
    """host:pid:start, which tells this process from a later one with the same number."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.1f}"


def is_dead(owner: str) -> bool:
    """Whether ``owner`` ran on this machine and doesn't any more. Of another machine nothing is known."""
    host, pid, start = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        reused = abs(process.create_time() - float(start)) > START_TOLERANCE_S
        return reused or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
