"""The ``storage-engine`` command: the same calls that the DAGs make, for a person at a shell.

Exit codes: 0 done, 1 a check failed or work was refused, 2 usage or bad input, 3 a second person has to
approve; 130 after Ctrl-C, 143 after SIGTERM, 141 when who reads the output has gone.
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
from storage_engine.cli.shell.command import Group, parameters_of
from storage_engine.cli.shell.interruption import INTERRUPTED, interruptible
from storage_engine.commands import Arguments
from storage_engine.exceptions import BadInputError, NotApprovedError, StorageEngineError

COMMANDS = {
    "doctor": ("doctor", "What is wrong with a store, and what to do."),
    "info": ("info", "What is managed, and who holds what."),
    "metrics": ("metrics", "What Prometheus asks of stores."),
    "runs": ("info", "What runs did, and why."),
    "inspect": ("store", "What a store is and holds."),
    "plan": ("store", "What a cleanup would delete, and why."),
    "simulate": ("simulate", "What would happen by other settings."),
    "lag": ("store", "How far each consumer group is behind."),
    "index-lookup": ("store", "Where the messages with a key are."),
    "recover": ("engine", "Make a crashed store clean."),
    "rebuild-queues": ("engine", "Make queues and index again."),
    "serve": ("engine", "Write a store without a broker."),
    "flush": ("engine", "Take such a store to disk."),
    "init-lake": ("lake.init_lake", "Make a new lake."),
    "archive": ("lake.lake", "Copy sealed segments into the lake, with proof."),
    "agent": ("agent", "Let executors elsewhere read segments."),
    "verify": ("lake.lake", "Check the lake, and that no byte is missing."),
    "lake": ("lake.lakes", "What a lake is; move, copy, rebuild one."),
    "restore": ("lake.restore", "Bring archived segments back as identical files."),
    "gc": ("lake.maintain", "Take from the lake what it holds twice."),
    "maintain": ("lake.maintain", "Remove reports and history that have expired."),
    "serve-lake": ("serve_lake", "Let consumers of Kafka read archived records."),
    "export": ("lake.restore", "Write archived messages into a file."),
    "kafka": ("kafka", "Make room in a node of Kafka; its broker's tasks."),
    "clean": ("clean", "The whole job, once: archive, prove, delete."),
    "undo": ("clean", "Bring back what a run deleted."),
    "hold": ("hold", "Keep a running broker from deleting."),
    "monitor": ("watch", "Look for alarms and metrics, once."),
    "watch": ("watch", "Mend what a hold rests on, at once."),
    "unmanage": ("hold", "End a hold: put everything back."),
    "shield": ("hold", "Keep what is unproven by a second name."),
    "waive": ("decisions", "Let one plan go without receipts."),
    "approve": ("decisions", "Approve a plan as a second person."),
    "accept-loss": ("decisions", "Go on without a range that is lost."),
    "move": ("decisions", "Say a store's new name or place."),
    "stamp": ("decisions", "Say which store a directory is."),
    "adopt": ("decisions", "Accept new bytes under archived offsets."),
    "validate": ("validate", "Prove that store and lake hold every byte."),
    "sample": ("sample", "Write a store to try things on."),
    "options": ("help", "What many commands take, told once."),
    "docs": ("help", "Where the documentation is on this machine."),
    "completion": ("help", "Let a shell complete commands and options."),
    "man": ("help", "Write manual pages."),
    "constraints": ("project", "Versions that this release was tested with."),
    "init": ("project", "Set up your Airflow, or a project."),
    "up": ("project", "Start Airflow on loopback to look around in."),
}
"""By command: the module it is in, and what it does in a few words."""


class LazyGroup(Group):
    """Imports a command's module only when that command is asked for: a lake's libraries take seconds to
    import, and ``inspect`` needs none of them."""

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
        """Complete commands by their summaries, which needs none of their libraries."""
        found = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

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

    :param arguments: the words after the program's name; None takes them from ``sys.argv``.
    """
    # Else the interpreter ends with a look at every object for garbage: 0.4 s where a lake was opened.
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
            shown = io.StringIO()
            error.show(shown)
            say(shown.getvalue().rstrip("\n"), err=True)
        code = error.exit_code
    except click.exceptions.Abort:
        say(INTERRUPTED, err=True)
        code = interruption.exit_code
    except StorageEngineError as error:
        print_error(error, parameters_of(cli, words), as_json=as_json)
        code = 2 if isinstance(error, BadInputError) else 3 if isinstance(error, NotApprovedError) else 1
    except MemoryError:
        no_memory = "Out of memory: expected less to be read at once. Run it where more memory is free."
        print_error(StorageEngineError(no_memory), Arguments(), as_json=as_json)
        code = 1
    except Exception as error:
        # Imported where it is needed: no help fails so.
        from storage_engine.cli.shell.command import storage_failure

        said = parameters_of(cli, words)
        failure = storage_failure(error, said)
        if failure is None:
            raise
        print_error(failure, said, as_json=as_json)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
