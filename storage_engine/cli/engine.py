"""serve, flush, recover, rebuild-queues: work on a store that its broker would otherwise do."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.output.output import answer, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.interruption import ended_by_signal
from storage_engine.cli.shell.shared_options import command, json_option
from storage_engine.commands import join_texts
from storage_engine.exceptions import BadInputError
from storage_engine.retention.hold.hold_text import positions_text

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore

_WAIT_SECONDS = 0.2
_BLOCK_BYTES = 1 << 16


@command()
@takes_store(lake=None, second_lake=True)
@click.option(
    "--topic", metavar="TOPIC", help="Store each line of standard input as a message of this topic."
)
def serve(managed: ManagedStore, topic: str | None) -> int:
    """Run STORE as its broker would: write it, flush it, and answer requests.

    A missing STORE is made. Other commands, and tasks of a connection with the mode engine, ask this process:
    they plan, archive and prove, and this process deletes the proven segments.

    With --lake it also cleans by itself when the broker's rules let segments expire. Without a lake it
    deletes only on request. Ends on SIGTERM and SIGINT, and with --topic at the end of the input. Then the
    store is clean.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.proven_cleanup import proven_release
    from storage_engine.retention.store.brokers import settings_of

    engine = engine_of(managed.broker, managed.root, "written")
    ends = ended_by_signal()
    lines = _lines(sys.stdin.fileno(), ends) if topic is not None else ()
    release = None
    if has_lake(managed):
        release = proven_release(managed)
        say(
            f"{managed.root}: expired segments are deleted once {managed.lake.location} proves them.",
            err=True,
        )
    else:
        say(f"{managed.root}: segments are deleted only on request, because no --lake is given.", err=True)
    engine.serve(settings_of(managed), topic, lines, ends, release)
    return 0


def _lines(descriptor: int, ends: threading.Event) -> Iterator[bytes]:
    """Yield lines of the input until it ends, or until the event is set."""
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
def flush(managed: ManagedStore) -> int:
    """Flush log, queues, index and checkpoint of STORE, a store that storage-engine writes, to disk.

    A process that serves the store is asked. Without one, the store is opened and, if needed, recovered.
    """
    from storage_engine.retention.store.brokers import open_store

    with closing(open_store(replace(managed, engine=True))) as store:
        flushed = None if store.process is None else store.process.flush_now()
    if flushed is None:
        raise BadInputError(
            f"{managed.root}: expected a store that storage-engine writes, found another. "
            "Nothing was changed. Name a store that storage-engine itself writes."
        )
    positions = (("before", flushed.before), ("after", flushed.after))
    return answer(
        "flush", flushed, "\n".join(f"{name}: {positions_text(place)}" for name, place in positions)
    )


@command()
@takes_store(lake=False)
@click.option("--dry-run", is_flag=True, help="Show what would be cut and made; change nothing.")
@click.option(
    "--cut-messages",
    is_flag=True,
    help="Recover even if this cuts off whole messages that come after a damaged one.",
)
@click.option(
    "--index",
    type=click.Choice(["recent", "all"]),
    default="recent",
    show_default=True,
    help="Segments from which a destroyed index is made again: the 10 newest, or all that the index needs.",
)
@json_option
def recover(managed: ManagedStore, dry_run: bool, cut_messages: bool, index: str) -> int:
    """Recover STORE after an unclean stop of its broker, as that broker would when it starts.

    The log is cut off after its last whole message. Queues and index are made to agree with it. A recovered
    store may be cleaned.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.retention.store.brokers import settings_of

    with waiting("Recovering"):
        recovery = engine_of(managed.broker, managed.root, "recovered").recover(
            settings_of(managed), dry_run=dry_run, cut_messages=cut_messages, whole_index=index == "all"
        )
    return answer("recover", recovery, join_texts("\n", recovery.lines))


@command("rebuild-queues")
@takes_store(lake=False)
@json_option
def rebuild_queues(managed: ManagedStore) -> int:
    """Make the consume queues and the index of STORE again from its log. Its broker must be stopped.

    If the log is damaged before its end, nothing is changed.
    """
    from storage_engine.brokers import engine_of
    from storage_engine.retention.store.brokers import settings_of

    with waiting("Reading the log"):
        engine = engine_of(managed.broker, managed.root, "recovered")
        result = engine.rebuild_queues(settings_of(managed))
    text = f"{result.root}: queues and index were made again up to offset {result.log_end}."
    return answer("rebuild-queues", result, text)
