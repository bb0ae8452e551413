"""Commands that put a project in place and run it on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click

from storage_engine.cli.output.output import put, say
from storage_engine.cli.shell.command import command
from storage_engine.cli.shell.values import NamedPath
from storage_engine.core.extras import require_provider


@command()
def constraints() -> None:
    """Print the versions of all dependencies that this release was tested with, for pip's option -c."""
    from storage_engine.resources import project_path

    put(project_path("constraints.txt").read_text().rstrip())


@command()
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo")
def demo(directory: Path) -> int:
    """Run the whole cycle on the sample store in a real Airflow, then check it and sum it up.

    Everything happens in DIRECTORY (default .demo), which is made afresh.
    """
    require_provider("demo")
    from storage_engine.project.demo.demo import run_demo

    return run_demo(directory, _say_with_time(), say)


@command("demo-live")
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/live")
def demo_live(directory: Path) -> int:
    """Run the cycle beside a real broker under load, in a real Airflow, then check it and sum it up.

    Everything happens in DIRECTORY (default .demo/live), which is made afresh. It takes a JDK, version 17 or
    newer, and Maven, which brings the broker's jars.
    """
    require_provider("demo-live")
    from storage_engine.project.demo.demo_live import run_demo_live

    return run_demo_live(directory, _say_with_time(), say)


@command("demo-kafka")
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/kafka")
def demo_kafka(directory: Path) -> int:
    """Ask why a sample Kafka node's segments stay, archive them with proof, and restore a lost log.

    Everything happens in DIRECTORY (default .demo/kafka), which is made afresh. Where a JDK, version 17 or
    newer, and Maven are there, a real broker serves the restored log. It takes no Airflow.
    """
    from storage_engine.project.demo.demo_kafka import run_demo_kafka

    return run_demo_kafka(directory, _say_with_time(), say)


@command("demo-kafka-live")
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/kafka-live")
def demo_kafka_live(directory: Path) -> int:
    """Delete from a real Kafka broker under load what is proven, name what stays, and restore it elsewhere.

    Everything happens in DIRECTORY (default .demo/kafka-live), which is made afresh. It takes a JDK, version
    17 or newer, and Maven, which brings the broker's jars. It takes no Airflow.
    """
    from storage_engine.project.demo.demo_kafka_live import run_demo_kafka_live

    return run_demo_kafka_live(directory, _say_with_time(), say)


@command()
@click.argument("directory", type=NamedPath(file_okay=False), default=".demo/up")
def up(directory: Path) -> int:
    """Start Airflow on loopback for the project in DIRECTORY until Ctrl-C.

    A missing project is created, with the sample store.
    """
    require_provider("up")
    from storage_engine.project.up import up as run_up

    return run_up(directory, _say_with_time())


def _say_with_time() -> Callable[[str], None]:
    """Prints a line with the seconds since the start, so that a person sees that something happens."""
    started = time.monotonic()

    def say_with_time(line: str) -> None:
        say(f"[{time.monotonic() - started:5.1f} s] {line}")

    return say_with_time
