"""serve, flush: a store that storage-engine writes by itself."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import json_option
from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.output.output import print_json, say
from storage_engine.cli.shell.command import command
from storage_engine.exceptions import BadInputError
from storage_engine.retention.hold.progress_alarms import positions_text

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

_WAIT_SECONDS = 0.2
_BLOCK_BYTES = 1 << 16


@command()
@takes_store(lake=None, second_lake=True)
@click.option("--topic", metavar="TOPIC", help="Store each line of standard input as a message of it.")
def serve(managed: ManagedStore, topic: str | None) -> int:
    """Hold STORE as its broker would: write it, flush it, and serve who asks.

    A missing STORE is made. Other commands, and tasks of a connection with the mode engine, ask this process:
    they plan and archive beside it, and have it delete what they have proven.

    With --lake it makes such runs by itself, where the broker's rules let segments go. Without one nothing is
    deleted but by who asks. Ends on SIGTERM and SIGINT, and with --topic at the end of the input. The store
    is clean then.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.proven_cleanup import proven_release
    from storage_engine.retention.store.brokers import settings_of

    engine = engine_of(managed.broker, managed.root, "written")
    ends = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ends.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    lines = _lines(sys.stdin.fileno(), ends) if topic is not None else ()
    release = None
    if has_lake(managed):
        release = proven_release(managed)
        say(f"{managed.root}: what expires is deleted once {managed.lake.location} proves it.", err=True)
    else:
        say(f"{managed.root}: nothing is deleted but by runs that ask: no --lake is given.", err=True)
    engine.serve(settings_of(managed), topic, lines, ends, release)
    return 0


def _lines(descriptor: int, ends: threading.Event) -> Iterator[bytes]:
    """Yield lines of the input until it ends, or until this process is told to end."""
    rest = b""
    while not ends.is_set():
        readable, _, _ = select.select([descriptor], [], [], _WAIT_SECONDS)
        if not readable:
            continue
        content = os.read(descriptor, _BLOCK_BYTES)
        *lines, rest = (rest + content).split(b"\n")
        yield from lines
        if not content:
            if rest:
                yield rest
            return


@command()
@takes_store(lake=False)
@json_option
def flush(managed: ManagedStore, as_json: bool) -> int:
    """Take log, queues, index and checkpoint of STORE to disk, which storage-engine writes.

    The process that serves it is asked; where none does, the store is opened, and recovered if it has to be.
    """
    from storage_engine.retention.store.brokers import open_store

    with closing(open_store(replace(managed, engine=True))) as store:
        found = None if store.process is None else store.process.flush_now()
    if found is None:
        raise BadInputError(f"{managed.root}: expected a store that storage-engine writes, found another.")
    if as_json:
        print_json("flush", found)
        return 0
    for name, positions in (("before", found.before), ("after", found.after)):
        say(f"{name}: {positions_text(positions)}")
    return 0
