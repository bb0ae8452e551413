"""kafka: what only nodes of Kafka have commands for."""

from __future__ import annotations

import click

from storage_engine.cli.kafka.make_room import make_room
from storage_engine.cli.kafka.run_tasks import run_tasks
from storage_engine.cli.shell.command import Group


@click.group(cls=Group)
def kafka() -> None:
    """Work on nodes of Kafka."""


kafka.add_command(make_room)
kafka.add_command(run_tasks)
