"""python -m demo: the whole job shown by itself, on samples and beside real brokers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from demo.dag_run import Say
from storage_engine.exceptions import StorageEngineError

Run = Callable[[Path, Say, Say], int]


@click.group()
def demo() -> None:
    """Show the whole job, check it without trusting it, and sum it up.

    Each demo works in a directory of its own, which it makes afresh.
    """


@demo.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".demo")
def cycle(directory: Path) -> None:
    """Archive, prove, clean and validate the sample store in a real Airflow."""
    from demo.cycle import run_demo

    _run(run_demo, directory)


@demo.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".demo/live")
def live(directory: Path) -> None:
    """Run the cycle beside a real RocketMQ broker under load. It takes a JDK and Maven."""
    from demo.live import run_demo_live

    _run(run_demo_live, directory)


@demo.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".demo/kafka")
def kafka(directory: Path) -> None:
    """Ask why a Kafka node's segments stay, archive them with proof, and restore a lost log.

    Where a JDK and Maven are there, a real broker serves the restored log.
    """
    from demo.kafka import run_demo_kafka

    _run(run_demo_kafka, directory)


@demo.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".demo/kafka-live")
def kafka_live(directory: Path) -> None:
    """Delete what is proven from a Kafka broker under load, and restore it. It takes a JDK and Maven."""
    from demo.kafka_live import run_demo_kafka_live

    _run(run_demo_kafka_live, directory)


@demo.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".demo/read-on")
def read_on(directory: Path) -> None:
    """Let a stopped group read what its Kafka broker has deleted. It takes a JDK and Maven."""
    from demo.read_on import run_demo_read_on

    _run(run_demo_read_on, directory)


def _run(run: Run, directory: Path) -> None:
    """Run a demo and exit with its status; lines of progress begin with the seconds since the start."""
    started = time.monotonic()

    def say_with_time(line: str) -> None:
        click.echo(f"[{time.monotonic() - started:5.1f} s] {line}")

    try:
        sys.exit(run(directory, say_with_time, click.echo))
    except StorageEngineError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    demo(prog_name="python -m demo")
