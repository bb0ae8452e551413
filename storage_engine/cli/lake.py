"""archive, verify, restore: what is in the lake, how it got there, and how it comes back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from storage_engine.cli.options import (
    check_store,
    journal_of,
    json_option,
    lake_option,
    managed_store,
    moment_ms,
    size_bytes,
    store_options,
)
from storage_engine.cli.output import print_json, print_table, progress
from storage_engine.cli.verify_output import print_verification
from storage_engine.exceptions import BadInputError, RestoreError
from storage_engine.lake import restore as restoring
from storage_engine.lake.catalog import Lake, open_lake
from storage_engine.lake.config import LakeConfig
from storage_engine.lake.receipts import list_stores
from storage_engine.model.jsonable import to_jsonable
from storage_engine.model.plan import PlanRequest
from storage_engine.model.validation import Status
from storage_engine.model.verification import VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.clock import clock_ms
from storage_engine.retention.verification import verify_lake, verify_store
from storage_engine.wording import bytes_text, time_text


@click.command()
@store_options()
@lake_option(new=True)
@click.option("--planned", is_flag=True, help="Only what a cleanup would delete now, not everything sealed.")
@click.option("--manual", is_flag=True, help="With --planned: as if a person asked, at any hour.")
@click.option("--spark", "spark_master", metavar="MASTER", help="Archive with Spark, such as local[2].")
@click.option("--accept-damage", is_flag=True, help="Archive bytes that are no valid frame as they are.")
@json_option
def archive(
    store: Path,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    lake_dir: Path,
    planned: bool,
    manual: bool,
    spark_master: str | None,
    accept_damage: bool,
    as_json: bool,
) -> int:
    """Copy sealed segments of STORE into the lake and prove every byte of the copy.

    The store is only read. A segment that is archived already is left alone.
    """
    managed = managed_store(store, lake_dir, broker_conf, overrides, time_zone)
    check_store(managed)
    run_key = f"archive-{clock_ms()}"
    if planned:
        steps.make_plan(managed, run_key, PlanRequest(manual=manual))
    jobs = steps.archive_jobs(managed, run_key, all_sealed=not planned, accept_damage=accept_damage)
    if spark_master and jobs:
        from storage_engine.spark.archive_segments import archive_segments
        from storage_engine.spark.session import spark_session

        with spark_session("storage-engine archive", spark_master) as session:
            receipts = archive_segments(session, jobs)
    else:
        with progress("Archiving", sum(job.facts.size_bytes for job in jobs)) as advance:
            receipts = steps.archive(managed, run_key, jobs, advance)
    if as_json:
        print_json({"run_key": run_key, "archived": receipts})
        return 0
    if not receipts:
        click.echo("Nothing to archive: every segment asked for has a valid receipt, or none is sealed.")
        return 0
    print_table(
        "Archived and proven",
        ("segment", "messages#", "size#", "in the lake#", "SHA-256"),
        (
            (
                f"{receipt.base_offset:020d}",
                receipt.message_count,
                bytes_text(receipt.size_bytes),
                bytes_text(receipt.data_file_bytes),
                receipt.sha256[:16],
            )
            for receipt in receipts
        ),
    )
    return 0


@click.command()
@store_options(required=False)
@lake_option()
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
    help="Read about so much, such as 10GiB, beginning with what was verified longest ago.",
)
@json_option
def verify(
    store: Path | None,
    broker_conf: Path | None,
    overrides: dict[str, str],
    time_zone: str | None,
    lake_dir: Path,
    level: str,
    max_bytes: int | None,
    as_json: bool,
) -> int:
    """Check what the lake holds; with STORE, also that lake and store together have every byte.

    Each level includes those before it; metadata is checked whole every time. What was verified when is
    remembered in the lake's journal, so that nightly calls with --max-bytes walk round the whole lake.
    """
    if store is None and level == VerifyLevel.STORE:
        raise click.UsageError("--level store: expected STORE to compare the lake with, found none.")
    shown = partial(progress, "Verifying")
    if store is not None:
        managed = managed_store(store, lake_dir, broker_conf, overrides, time_zone)
        found = [verify_store(managed, VerifyLevel(level), max_bytes=max_bytes, shown=shown)]
    else:
        config, journal_url = LakeConfig.local(lake_dir), journal_of(lake_dir)
        found = list(verify_lake(config, journal_url, VerifyLevel(level), max_bytes=max_bytes, shown=shown))
    if as_json:
        print_json([{**to_jsonable(result), "overall": result.overall.value} for result in found])
    else:
        for result in found:
            print_verification(result)
        if not found:
            click.echo(f"{LakeConfig.local(lake_dir).location}: no archived store.")
    return 1 if any(result.overall is Status.FAILURE for result in found) else 0


@click.command()
@lake_option()
@click.option(
    "--to", "to_dir", type=click.Path(path_type=Path), required=True, help="New directory to restore into."
)
@click.option("--store-id", help="Which store; needed only where the lake has several.")
@click.option("--lineage", type=int, help="Which lineage; default: the newest.")
@click.option("--from-offset", type=int, help="First physical offset.")
@click.option("--to-offset", type=int, help="Physical offset behind the last.")
@click.option("--from-time", metavar="TIME", help="Messages stored at or after TIME.")
@click.option("--to-time", metavar="TIME", help="Messages stored before TIME.")
@click.option(
    "--keep-mtime",
    is_flag=True,
    help="Give files their old time of change; a broker then deletes them at its next window.",
)
@json_option
def restore(
    lake_dir: Path,
    to_dir: Path,
    store_id: str | None,
    lineage: int | None,
    from_offset: int | None,
    to_offset: int | None,
    from_time: str | None,
    to_time: str | None,
    keep_mtime: bool,
    as_json: bool,
) -> int:
    """Bring archived segments back as the identical files, in a store directory that a broker opens.

    Whole segments are restored: all that hold something of the span asked for. Existing files are never
    overwritten; identical ones are kept, so an interrupted restore goes on where it stopped.
    """
    lake = open_lake(LakeConfig.local(lake_dir), create=False)
    store_id, total_bytes = _choose_store(lake, store_id)
    span = restoring.Span(
        from_offset=from_offset,
        to_offset=to_offset,
        from_ms=None if from_time is None else moment_ms(from_time, None, option="--from-time"),
        to_ms=None if to_time is None else moment_ms(to_time, None, option="--to-time"),
    )
    with progress("Restoring", total_bytes) as advance:
        restored = restoring.restore(
            lake, store_id, to_dir, span=span, lineage=lineage, keep_mtime=keep_mtime, progress=advance
        )
    if as_json:
        print_json({"store_id": store_id, "to": str(to_dir), "restored": restored})
        return 0
    print_table(
        f"Restored into {to_dir}",
        ("file", "size#", "SHA-256", ""),
        (
            (
                Path(row.path).relative_to(to_dir),
                bytes_text(row.size_bytes),
                row.sha256[:16],
                "was there already" if row.existed else "",
            )
            for row in restored
        ),
    )
    return 0


def _choose_store(lake: Lake, store_id: str | None) -> tuple[str, int]:
    stores = {row.store_id: row for row in list_stores(lake)}
    if not stores:
        raise RestoreError(f"lake {lake.location}: expected archived segments, found none.")
    if store_id is None and len(stores) > 1:
        listed = "; ".join(
            f"{row.store_id} ({row.store_root}, last proven {time_text(row.newest_proof_ms)})"
            for row in stores.values()
        )
        raise BadInputError(
            f"lake {lake.location}: it has several stores; choose one with --store-id: {listed}"
        )
    chosen = store_id or next(iter(stores))
    if chosen not in stores:
        raise BadInputError(
            f"lake {lake.location}: expected one of its stores {', '.join(stores)}, found {chosen!r}."
        )
    return chosen, stores[chosen].size_bytes
