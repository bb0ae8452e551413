"""sample: a store for trials of the other commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote

import click

from storage_engine.cli.options.store_argument import installed_broker
from storage_engine.cli.output.output import answer
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option
from storage_engine.cli.shell.values import TargetPath, moment_ms, size_bytes
from storage_engine.commands import Command, Text
from storage_engine.core.clock import DAY_MS, clock_ms
from storage_engine.core.wording import bytes_text, count_text, time_text
from storage_engine.model.broker.kind import SampleRequest


@command()
@click.argument("directory", type=TargetPath(file_okay=False))
@click.option(
    "--messages",
    type=click.IntRange(1, 10**9),
    default=100_000,
    show_default=True,
    help="Number of messages sent in batches; delayed messages and transactions come in addition.",
)
@click.option(
    "--topics", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Each has 8 queues."
)
@click.option(
    "--days",
    type=click.FloatRange(0, 3650, min_open=True),
    default=7.0,
    show_default=True,
    help="Time from the first message to the last.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Another seed gives other messages."
)
@click.option("--end", metavar="TIME", help="Time of the last message. Default: the last midnight, in UTC.")
@click.option(
    "--segment-size",
    "segment_bytes",
    metavar="SIZE",
    default="16MiB",
    show_default=True,
    callback=size_bytes,
    help="Size of a log file (mappedFileSizeCommitLog).",
)
@click.option(
    "--broker-type",
    metavar="NAME",
    callback=installed_broker,
    help="Kind of broker whose store to write. Default: this package's own.",
)
@json_option
def sample(
    directory: Path,
    messages: int,
    topics: int,
    days: float,
    seed: int,
    end: str | None,
    segment_bytes: int,
    broker_type: str | None,
) -> int:
    """Write a store and its broker.conf into DIRECTORY, as a broker leaves them.

    Messages have mixed sizes, keys and tags. Some wait for a delay or a transaction. Some consumer groups are
    far behind. The same options, and the same --end, give the same bytes.
    """
    from storage_engine.brokers import default_broker, engine_of

    end_ms = clock_ms() // DAY_MS * DAY_MS if end is None else moment_ms(end, "UTC", option="--end")
    request = SampleRequest(directory, messages, topics, days, seed, end_ms, segment_bytes)
    with waiting("Writing a sample store"):
        engine = engine_of(broker_type or default_broker(), str(directory), "written")
        written = engine.write_sample(request)
    text = Text(
        f"{written.store}: {count_text(written.messages, 'message')}, {count_text(written.topics, 'topic')}, "
        f"{bytes_text(written.log_bytes)} in {count_text(written.log_files, 'file')} of the log. "
        f"The last message arrived at {time_text(end_ms)}.\n"
        f"{count_text(written.lagging_groups, 'consumer group')} of {written.groups} are far behind. "
        f"Delayed or in open transactions: {count_text(written.pending, 'message')}.\n\nNext: ",
        Command("doctor", f"{quote(written.store)} --broker-conf {quote(written.configuration)}"),
    )
    return answer("sample", {**asdict(written), "end_ms": end_ms}, text)
