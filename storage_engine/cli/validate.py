"""validate: prove that no byte is missing or repeated, in the store and across the lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.store_argument import has_lake, takes_store
from storage_engine.cli.output.output import print_json, print_ranges, print_table, say, say_notes
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.shared_options import command, json_option, wants_json
from storage_engine.cli.shell.values import NamedPath
from storage_engine.commands import Command
from storage_engine.core.wording import store_text
from storage_engine.model.broker.broker_words import BrokerWords
from storage_engine.model.report.validation import Status, ValidationResult
from storage_engine.pages.advice import check_advice

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(lake=None, second_lake=True)
@click.option(
    "--full", is_flag=True, help="Check every frame, every queue and every archived row, not only boundaries."
)
@click.option("--rows", is_flag=True, help="Check only the lake's rows, all of them, in Spark.")
@click.option(
    "--spark", "spark_master", metavar="MASTER", help="With --rows: where Spark runs; default: local[2]."
)
@click.option(
    "--output",
    "output_dir",
    type=NamedPath(),
    help="Directory for page, JSON and Data Docs; default: the lake's reports, or storage-engine-reports.",
)
@json_option
def validate(
    managed: ManagedStore, full: bool, rows: bool, spark_master: str | None, output_dir: Path | None
) -> int:
    """Check that STORE has every byte once and in order; with --lake, check store and lake together."""
    from storage_engine.brokers import find_broker
    from storage_engine.quality.validate import validate_store, validation_directory
    from storage_engine.retention.store.managed_store import store_directory

    if output_dir is None and not has_lake(managed):
        output_dir = Path("storage-engine-reports") / store_directory(managed)
    if spark_master and not rows:
        raise click.UsageError("--spark: expected --rows with it, found none.")
    if rows and (full or not has_lake(managed)):
        raise click.UsageError("--rows: expected --lake with it, and no --full.")
    with waiting("Validating"):
        if rows:
            result = _validate_rows(managed, spark_master, output_dir)
        else:
            result = validate_store(managed, full=full, with_lake=has_lake(managed), output_dir=output_dir)
    output_dir = output_dir or validation_directory(managed, None)
    if wants_json():
        print_json("validate", result.to_dict())
    else:
        say(store_text(result.name, managed.broker, managed.root))
        _print_result(result, find_broker(managed.broker).words)
        say(f"Page {output_dir / 'report.html'}")
    return 1 if result.overall is Status.FAILURE else 0


def _validate_rows(
    managed: ManagedStore, spark_master: str | None, output_dir: Path | None
) -> ValidationResult:
    """Check the rows of a store's lakes in a Spark session that is started for this."""
    from storage_engine.spark.job_io import run_in_session
    from storage_engine.spark.session import LOCAL_MASTER, spark_session
    from storage_engine.spark.validate_rows import ValidateRowsRequest as Request
    from storage_engine.spark.validate_rows import ValidateRowsResult as Result
    from storage_engine.spark.validate_rows import validate_rows, validate_rows_of

    def run(request: Request) -> Result:
        with spark_session(str(Command("validate", "rows")), spark_master or LOCAL_MASTER) as session:
            result: Result = run_in_session(validate_rows, session, request)
            return result

    return validate_rows_of(managed, None, run, output_dir=output_dir)


def _print_result(result: ValidationResult, words: BrokerWords) -> None:
    say(f"Validation ({result.scope}): {result.overall.value}")
    print_ranges("Ranges", result.ranges)
    print_table(
        "Expectations",
        ("suite", "expectation", "checked#", "wrong#", "status"),
        (
            (check.suite, check.expectation, check.checked_count, check.unexpected_count, check.status.value)
            for check in result.checks
        ),
    )
    say()
    for check in result.checks:
        for example in check.examples:
            say(f"{check.status.value} {check.expectation}: {example}")
        if check.status is not Status.OK:
            say(f"→ {check_advice(check.expectation, words)}")
    say_notes(result.notes)
