"""archive, verify: the archived segments in a lake, and their proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import check_store, journal_of
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.next_line import archive_command, say_cleanup, say_next
from storage_engine.cli.output.output import (
    error_json,
    findings_json,
    print_json,
    print_ranges,
    print_table,
    say,
    say_notes,
)
from storage_engine.cli.output.progress import archive_with_progress, waiting
from storage_engine.cli.shell.shared_options import command, json_option, said_by, wants_json
from storage_engine.cli.shell.values import NamedPath, size_bytes
from storage_engine.commands import Command
from storage_engine.core.clock import clock_ms
from storage_engine.core.extras import SPARK
from storage_engine.core.jsonable import to_jsonable
from storage_engine.core.wording import UNCHANGED, bytes_text, count_text, time_text
from storage_engine.exceptions import StorageEngineError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.report.validation import Coverage, Status, StoreVerification, VerifyLevel
from storage_engine.model.settings.policy import in_spark
from storage_engine.retention.proof.refusing import archive_error

if TYPE_CHECKING:
    from storage_engine.lake.archive.archive import SegmentJob
    from storage_engine.lake.file.jobs import AgentAccess
    from storage_engine.retention.steps import ArchiveResult
    from storage_engine.retention.store.managed_store import ManagedStore


@command()
@takes_store(second_lake=True, policy=("archive_bytes_per_second",))
@click.option(
    "--planned",
    is_flag=True,
    help=("Archive only segments that a cleanup would delete now, not all sealed ones."),
)
@click.option(
    "--manual",
    is_flag=True,
    help="With --planned: segments that a run by hand would delete now, at any hour.",
)
@click.option("--spark", "spark_master", metavar="MASTER", help="Archive with Spark, such as local[2].")
@click.option(
    "--agent",
    "agent_address",
    metavar="HOST:PORT",
    help="Executors read STORE from the agent at this address; plain://HOST:PORT for an agent without TLS.",
)
@click.option("--agent-token", type=NamedPath(dir_okay=False), help="File of the agent's token.")
@click.option(
    "--agent-ca", type=NamedPath(dir_okay=False), help=("Certificate authority of the agent, as PEM.")
)
@click.option(
    "--agent-cert", type=NamedPath(dir_okay=False), help="Our certificate and key, if the agent demands them."
)
@click.option("--accept-damage", is_flag=True, help="Also archive bytes that are no valid frame, unchanged.")
@click.option(
    "--budget",
    "budget_bytes",
    metavar="SIZE",
    callback=size_bytes,
    help="Archive at most this much, such as 10GiB, oldest first; at least one segment. Not with --planned.",
)
@json_option
def archive(
    managed: ManagedStore,
    planned: bool,
    manual: bool,
    spark_master: str | None,
    agent_address: str | None,
    agent_token: Path | None,
    agent_ca: Path | None,
    agent_cert: Path | None,
    accept_damage: bool,
    budget_bytes: int | None,
) -> int:
    """Copy sealed segments of STORE into the lake and prove every byte of the copy.

    In the store, only our stamp is written; a Kafka node has none. Segments that are already archived are
    skipped. Segments that may not be archived yet are listed with the reason, and until when. A log with a
    fault or an unknown fact is refused, and the exit code is 1. Other logs are archived.
    """
    from storage_engine.retention import steps
    from storage_engine.retention.store.context import opened

    check_store(managed)
    if agent_address is None and (agent_token or agent_ca or agent_cert):
        raise click.UsageError("Expected --agent HOST:PORT with the agent's other options, found none.")
    if agent_address is not None and not spark_master:
        raise click.UsageError(
            "--agent: expected --spark MASTER with it, because only executors ask an agent, found none."
        )
    access = None
    if agent_address is not None:
        from storage_engine.lake.file.agent_files import read_access

        access = read_access(agent_address, agent_token, agent_ca, agent_cert)
    if spark_master:
        SPARK.require("archive --spark")
        _check_spark_directories(managed, spark_master)
    run_key = f"archive-{clock_ms()}"

    archive_with = partial(_archive, spark_master=spark_master, agent=access)

    def where(jobs: Sequence[SegmentJob]) -> str:
        return in_spark(spark_master) if spark_master else steps.where_here(jobs)

    with opened(managed) as store:
        if planned:
            steps.make_plan(store, run_key, PlanRequest(manual=manual))
            done = steps.archive_planned(
                store, run_key, archive_with, accept_damage=accept_damage, where=where
            )
        else:
            done = steps.archive_sealed(
                store,
                run_key,
                archive_with,
                budget_bytes=budget_bytes,
                accept_damage=accept_damage,
                where=where,
            )
    error = archive_error(run_key, managed.real_root, done.refused, done.wrong_lakes)
    _print_archived(run_key, done, error)
    if wants_json():
        return 1 if error else 0
    if error:
        raise error
    say_cleanup(managed)
    return 0


def _print_archived(run_key: str, done: ArchiveResult, error: StorageEngineError | None) -> None:
    receipts = done.receipts
    if wants_json():
        values = {
            "run_key": run_key,
            "archived": receipts,
            "hashed_again": done.hashed_again,
            "kept_out": done.kept_out,
            "refused": done.refused,
            "lake": done.lake or None,
            "notices": done.notices,
            "ran": done.ran,
        }
        arguments = said_by(click.get_current_context())
        failed = {"error": error_json(error, arguments)} if error else {}
        print_json("archive", {**values, **failed})
        return
    say_notes(done.notices, err=True)
    if not receipts and not done.hashed_again and not done.refused:
        nothing = (
            "Nothing to archive: no segment is sealed, or lakes and journal show that each segment that may "
            "be archived is in a lake."
        )
        count = sum(entry.segments for entry in done.kept_out)
        say(f"{nothing} {count_text(count, 'sealed segment')} may not be archived yet:" if count else nothing)
    _print_receipts("Archived and proven", receipts)
    _print_receipts(UNCHANGED.capitalize(), done.hashed_again)
    if done.kept_out:
        print_table(
            "Not in the lake",
            ("log~", "segments#", "offsets", "size#", "why, and until when"),
            (
                (
                    entry.log,
                    entry.segments,
                    f"[{entry.first_offset}, {entry.end_offset})",
                    bytes_text(entry.size_bytes),
                    entry.why,
                )
                for entry in done.kept_out
            ),
        )


def _print_receipts(title: str, receipts: Sequence[Receipt]) -> None:
    if not receipts:
        return
    logs = {receipt.log for receipt in receipts}
    several = len(logs) > 1
    print_table(
        f"{title}{'' if several else f' of {logs.pop()}'}",
        ("segment~", "messages#", "size#", "in the lake#", "SHA-256"),
        (
            (
                f"{receipt.log}/" * several + f"{receipt.base_offset:020d}",
                receipt.message_count,
                bytes_text(receipt.size_bytes),
                bytes_text(receipt.data_file_bytes) + (", shared" if receipt.row_groups else ""),
                receipt.sha256[:16],
            )
            for receipt in receipts
        ),
    )


def _check_spark_directories(managed: ManagedStore, spark_master: str) -> None:
    """:raises BadInputError: Spark's temporary files would be on a disk of the running broker."""
    from storage_engine.retention.store.brokers import open_store
    from storage_engine.retention.store.context import check_disks
    from storage_engine.spark.session import local_directories

    directories = local_directories(spark_master, {}, os.environ)
    with closing(open_store(managed)) as broker:
        check_disks(managed, broker.data_paths, directories)


def _archive(
    jobs: Sequence[SegmentJob], spark_master: str | None, agent: AgentAccess | None
) -> tuple[Receipt, ...]:
    if spark_master:
        from storage_engine.spark.archive_segments import archive_segments
        from storage_engine.spark.session import spark_session

        with spark_session(str(Command("archive")), spark_master) as session:
            return archive_segments(session, jobs, agent)
    return archive_with_progress(jobs)


@command()
@takes_store(required=False, second_lake=True)
@click.option(
    "--level",
    type=click.Choice([level.value for level in VerifyLevel]),
    default=VerifyLevel.BYTES.value,
    show_default=True,
    help="receipts: metadata only; files: every file's hash; bytes: every row, re-encoded; "
    "store: also against STORE's own files.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=size_bytes,
    help="Read about this much, such as 10GiB, beginning with segments that were verified longest ago.",
)
@click.option(
    "--renew",
    is_flag=True,
    help="From level bytes on: prove segments whose rows another engine moved, and add new receipts.",
)
@json_option
def verify(
    managed: ManagedStore | None, lake_dir: Path, level: str, max_bytes: int | None, renew: bool
) -> int:
    """Check the lake's contents; with STORE, also check that lake and store together have every byte.

    Each level includes the levels before it. All metadata is checked every time. The lake's journal remembers
    when each segment was verified, so nightly calls with --max-bytes go round the whole lake.
    """
    from storage_engine.arrow.alone import load_arrow_alone

    load_arrow_alone()
    from storage_engine.retention.ranges.verification import verify_lake, verify_store

    if managed is None and level == VerifyLevel.STORE:
        raise click.UsageError("--level store: expected STORE to compare the lake with, found none.")
    if renew and not VerifyLevel(level).includes(VerifyLevel.BYTES):
        raise click.UsageError(f"--renew: expected --level bytes or store, which read rows, found {level}.")
    with waiting("Verifying"):
        if managed is not None:
            results = list(verify_store(managed, VerifyLevel(level), max_bytes=max_bytes, renew=renew))
        else:
            config, journal_url = LakeConfig.local(lake_dir), journal_of(lake_dir)
            results = list(
                verify_lake(config, journal_url, VerifyLevel(level), max_bytes=max_bytes, renew=renew)
            )
    if wants_json():
        arguments = said_by(click.get_current_context())
        stores = [
            {
                "overall": result.overall.value,
                **to_jsonable(result),
                "findings": findings_json(result.findings, ("detail", "advice"), arguments),
            }
            for result in results
        ]
        print_json("verify", {"stores": stores})
    else:
        for result in results:
            print_verification(result)
        if not results:
            say(f"{LakeConfig.local(lake_dir).location}: no archived store.")
        say_next_step(results, managed, lake_dir, VerifyLevel(level))
    return 1 if any(result.overall is Status.FAILURE for result in results) else 0


def print_verification(result: StoreVerification) -> None:
    """Print one store's result: ranges, findings, how much of the lake was verified, and since when."""
    print_ranges(
        f"Store {result.name or result.store_id}: {result.overall.value}, "
        f"{count_text(result.receipt_count, 'receipt')}, {_credit_text(result)}{_check_text(result)}",
        result.ranges,
    )
    for finding in result.findings:
        say(f"\n{finding.status.value} {finding.subject}: ", finding.detail, ".")
        say("  ", finding.advice)
    for log, offset in sorted(result.begins.items()):
        if offset > 0:
            say(f"\n{log}: it is unknown which records were before offset {offset}.")
    if result.level is not VerifyLevel.RECEIPTS:
        say(f"\n{coverage_text(result.coverage)}")


def say_next_step(
    results: Sequence[StoreVerification], managed: ManagedStore | None, lake_dir: Path, level: VerifyLevel
) -> None:
    """Print the next command after a verification, by its result.

    :param managed: the store that the lake was compared with; None if there was none.
    """
    from storage_engine.lake.catalog.catalog import open_lake

    lake = f"--lake {quote(str(lake_dir))}"
    has_receipts = any(result.receipt_count or result.credited_count for result in results)
    if not has_receipts and not any(result.overall is Status.FAILURE for result in results):
        step = Command("archive")
        if managed is None:
            step = archive_command(open_lake(LakeConfig.local(lake_dir)).broker, lake_dir)
        say_next(step, "It takes the sealed segments of a store, with proof")
    elif any(result.overall is Status.FAILURE for result in results):
        again = Command("verify", "" if managed is not None else lake)
        say_next(again, "Follow the advice at each finding first, then look again", f"--level {level.value}")
    elif any(result.coverage.never_count for result in results) or not level.includes(VerifyLevel.BYTES):
        deeper = level if level.includes(VerifyLevel.BYTES) else VerifyLevel.BYTES
        again = Command("verify", "" if managed is not None else lake)
        say_next(again, "It reads every row that was not verified yet", f"--level {deeper.value}")
    elif managed is not None:
        say_cleanup(managed)
    else:
        say_next(
            Command("restore", f"{lake} --to DIRECTORY"), "It restores the lake's segments, byte for byte"
        )


def coverage_text(coverage: Coverage) -> str:
    """Return a sentence on how much of a lake was verified, and since when."""
    percent = 100 * coverage.verified_bytes // coverage.total_bytes if coverage.total_bytes else 100
    since = f" since {time_text(coverage.since_ms)}" if coverage.since_ms is not None else ""
    never = (
        f"; {coverage.never_count} of {count_text(coverage.segment_count, 'segment')} never yet"
        if coverage.never_count
        else ""
    )
    return (
        f"Verified at level {coverage.level.value}{since}: {bytes_text(coverage.verified_bytes)} of "
        f"{bytes_text(coverage.total_bytes)}, {percent} %{never}."
    )


def _credit_text(result: StoreVerification) -> str:
    count = result.credited_count
    return f"{count_text(count, 'segment')} proven by receipts of replicas, " if count else ""


def _check_text(result: StoreVerification) -> str:
    if result.level is VerifyLevel.RECEIPTS:
        return "metadata checked"
    renewed = f", {count_text(result.renewed_count, 'receipt')} renewed" if result.renewed_count else ""
    return f"{bytes_text(result.checked_bytes)} checked{renewed}"
