"""kafka: what only nodes of Kafka have commands for."""

from __future__ import annotations

import click

from storage_engine.cli.command import Group
from storage_engine.cli.make_room import make_room
from storage_engine.cli.run_tasks import run_tasks


@click.group(cls=Group)
def kafka() -> None:
    """Work on nodes of Kafka."""


kafka.add_command(make_room)
kafka.add_command(run_tasks)
