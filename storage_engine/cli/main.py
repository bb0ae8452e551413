"""The ``storage-engine`` command: the same calls as in the DAGs, for a person at a shell.

Exit codes: 0 done, 1 a check failed or work was refused, 2 usage or bad input, 3 a second person has to
approve; 130 after Ctrl-C, 143 after SIGTERM, 141 when the reader of the output has ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from storage_engine import __version__
from storage_engine.cli.output.output import print_error, say
from storage_engine.cli.shell.interruption import INTERRUPTED, interruptible
from storage_engine.cli.shell.shared_options import Group, parameters_of
from storage_engine.commands import Arguments
from storage_engine.exceptions import BadInputError, NotApprovedError, StorageEngineError

COMMANDS = {
    "doctor": ("doctor", "What is wrong with a store, and what to do."),
    "info": ("info", "Managed stores, with ranges, runs and holds."),
    "metrics": ("metrics", "Metrics of stores for Prometheus."),
    "runs": ("info", "Runs of a store: causes and results."),
    "inspect": ("store", "Description and contents of a store."),
    "plan": ("store", "What a cleanup would delete, and why."),
    "simulate": ("simulate", "Forecast of a disk by other settings."),
    "lag": ("store", "How far each consumer group is behind."),
    "index-lookup": ("store", "Find the offsets of messages with a key."),
    "recover": ("engine", "Make a crashed store clean."),
    "rebuild-queues": ("engine", "Make queues and index again."),
    "serve": ("engine", "Write a store without a broker."),
    "flush": ("engine", "Flush to disk what serve has written."),
    "init-lake": ("lake.init_lake", "Make a new lake."),
    "archive": ("lake.lake", "Copy sealed segments into the lake, with proof."),
    "agent": ("agent", "Serve segments to executors elsewhere."),
    "verify": ("lake.lake", "Check the lake, and that no byte is missing."),
    "lake": ("lake.lakes", "Describe, move, copy or rebuild a lake."),
    "restore": ("lake.restore", "Bring archived segments back as identical files."),
    "gc": ("lake.maintain", "Remove files that the lake has twice."),
    "maintain": ("lake.maintain", "Remove expired reports and history."),
    "serve-lake": ("serve_lake", "Serve archived records to Kafka consumers."),
    "export": ("lake.restore", "Write archived messages into a file."),
    "kafka": ("kafka", "Make room on a Kafka node; do its broker's tasks."),
    "clean": ("clean", "A whole cleanup: archive, prove, delete."),
    "undo": ("clean", "Restore files that a run deleted."),
    "hold": ("hold", "Keep a running broker from deleting."),
    "monitor": ("watch", "Look for alarms and metrics, once."),
    "watch": ("watch", "Repair holds and shields at once."),
    "unmanage": ("hold", "End a hold, and restore all settings."),
    "shield": ("hold", "Give unproven segments a second name."),
    "waive": ("decisions", "Let a plan delete without receipts."),
    "approve": ("decisions", "Approve a plan as a second person."),
    "accept-loss": ("decisions", "Accept that a range is lost."),
    "move": ("decisions", "Record a store's new name or place."),
    "stamp": ("decisions", "Record which store a directory is."),
    "adopt": ("decisions", "Accept new bytes at archived offsets."),
    "validate": ("validate", "Prove that store and lake have every byte."),
    "sample": ("sample", "Write a store for trials."),
    "options": ("help", "List options that many commands share."),
    "docs": ("help", "Print the path of the documentation."),
    "completion": ("help", "Let a shell complete commands and options."),
    "man": ("help", "Write manual pages."),
    "constraints": ("project", "Print the tested versions of dependencies."),
    "init": ("project", "Set up your Airflow, or a project."),
    "up": ("project", "Start a trial Airflow on loopback."),
}
"""The module of each command, and a summary in a few words."""


class LazyGroup(Group):
    """Imports a command's module only when that command is called.

    A lake's libraries take seconds to import, and commands such as ``inspect`` need none of them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        loaded = importlib.import_module(f"storage_engine.cli.{module}")
        command: click.Command = getattr(loaded, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands with their summaries. No command's libraries are imported."""
        items = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="storage-engine")
def cli() -> None:
    """Archive, prove, then delete: retention of message-broker storage.

    Exit codes: 0 done, 1 a check failed or work was refused, 2 usage or bad input, 3 a second person has to
    approve, 130 and 143 interrupted.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line and exit.

    :param arguments: the words after the program's name; None if they come from ``sys.argv``.
    """
    # Otherwise a last garbage collection takes 0.4 s if a lake was opened.
    atexit.register(gc.freeze)
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        # A directory's name need not be text in any encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible() as interruption:
            code = cli.main(args=arguments, prog_name="storage-engine", standalone_mode=False)
    except click.ClickException as error:
        if as_json:
            print_error(error, Arguments(), as_json=True)
        else:
            lines = io.StringIO()
            error.show(lines)
            say(lines.getvalue().rstrip("\n"), err=True)
        code = error.exit_code
    except click.exceptions.Abort:
        say(INTERRUPTED, err=True)
        code = interruption.exit_code
    except StorageEngineError as error:
        print_error(error, parameters_of(cli, words), as_json=as_json)
        code = 2 if isinstance(error, BadInputError) else 3 if isinstance(error, NotApprovedError) else 1
    except MemoryError:
        no_memory = "Out of memory: the command needs more than is free. Run it with more free memory."
        print_error(StorageEngineError(no_memory), Arguments(), as_json=as_json)
        code = 1
    except Exception as error:
        # Imported late: --help never fails like this.
        from storage_engine.cli.shell.library_failures import storage_failure

        call = parameters_of(cli, words)
        failure = storage_failure(error, call)
        if failure is None:
            raise
        print_error(failure, call, as_json=as_json)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
