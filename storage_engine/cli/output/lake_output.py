"""How ``lake info`` and ``lake rebuild`` print what they found, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_engine.cli.output.output import print_table, say
from storage_engine.core.wording import bytes_text, count_text

if TYPE_CHECKING:
    from storage_engine.lake.move.describing import LakeInfo, TableInfo
    from storage_engine.lake.move.rebuilding import Rebuilt


def print_info(found: LakeInfo) -> None:
    """Print what a lake is."""
    facts = [
        ("lake", found.lake_id or "no UUID"),
        ("warehouse", found.location),
        ("catalog", found.catalog or "none that can be asked"),
        ("namespace", found.namespace),
        ("segments of", "the first store's kind" if found.broker == "" else found.broker or "nobody knows"),
    ]
    if found.copy_of is not None:
        facts.append(("copy of", f"{found.copy_of}, read-only"))
    if found.promoted is not None:
        said = found.promoted
        facts.append(("promoted", f"by {said['person']}: {said['reason']}; was a copy of {said['copy_of']}"))
    if found.acts:
        facts.append(("acts", f"{found.acts} of what it keeps: storage-engine lake keep shows what holds"))
    for table in found.tables:
        for former in table.former_locations:
            facts.append((f"{table.name} was at", former))
    print_table("Lake", ("what", "value"), facts)
    print_table(
        "Tables",
        ("table", "version", "files#", "size#", "rows#", "snapshots#", "metadata files#", "metadata", "mark"),
        (
            (
                table.name,
                table.schema_version,
                table.file_count,
                bytes_text(table.file_bytes),
                table.row_count,
                table.snapshot_count,
                table.metadata_count,
                table.metadata,
                table.fault or _mark(table, found),
            )
            for table in found.tables
        ),
    )
    print_table(
        "Stores",
        ("store~", "name~", "segments#", "size#?", "last receipt#?", "log~", "lineage#", "offsets"),
        (
            (
                store.store_id,
                store.name,
                store.segment_count,
                bytes_text(store.size_bytes),
                store.head_sequence,
                log,
                lineage,
                f"[{start}, {end}){said}",
            )
            for store in found.stores
            for ranges, said in (
                (store.ranges, ""),
                (store.expired, " EXPIRED"),
                (store.in_part, " in part NOT ARCHIVED"),
            )
            for log, lineage, start, end in ranges
        ),
    )
    if found.acts_fault:
        say(f"\nActs: {found.acts_fault}")
    if found.refused:
        say(f"\nRefused: {found.refused}")


def _mark(table: TableInfo, found: LakeInfo) -> str:
    """Say what a table's mark says, as far as it isn't what it should be."""
    if table.mark is None:
        return "none"
    said = []
    if table.mark.lake_id != found.lake_id:
        said.append(f"lake {table.mark.lake_id}")
    if table.mark.catalog != found.catalog:
        said.append(f"catalog {table.mark.catalog}")
    if table.mark.metadata != table.metadata:
        said.append(f"metadata {table.mark.metadata}")
    return ", ".join(said) or "agrees"


def print_rebuilt(done: Rebuilt) -> None:
    """Print what a rebuild did, or would do."""
    print_table(
        "The state that the lake is in",
        (
            "table",
            "the catalog named",
            "names" if not done.dry_run else "would name",
            "other states end with",
        ),
        (
            (
                table.table,
                table.before or "nothing",
                "the same" if table.before == table.now else table.now,
                ", ".join(table.others),
            )
            for table in done.tables
        ),
    )
    say("")
    how = "to be proven again" if done.dry_run else "proven again, with new receipts"
    brought = count_text(len(done.brought), "segment")
    say(f"Lake {done.lake_id or 'without UUID'}: {brought} {how}.")
    for location in done.brought:
        say(f"  {location}")
    if done.copy_of is not None:
        say(f"It is a copy of {done.copy_of}: it may be read, and nothing was brought into it.")
    if done.other_catalog is not None:
        say(f"Another catalog, {done.other_catalog}, is refused from now on.")
    for name in sorted({name for table in done.tables for name in table.damaged}):
        say(f"Note: {name} can't be read; it was left alone.")
    for location in done.foreign:
        say(f"Note: {location} is no file of the table, and another program named it; it was left alone.")
    for reason in done.refused:
        say(f"Not proven: {reason}")
    for location in done.conflicting:
        say(f"Conflict: {location} has other bytes than the receipt under its offset; it was left alone.")
    for location in done.missing:
        say(f"Missing: {location}; storage-engine verify names its segments.")
    for store in done.unknown_heads:
        say(
            f"Note: the journal or the stamp knows a receipt of store {store} that no state of the lake has: "
            "nothing of that store is deleted. Look for it in a second lake or a copy; if it is lost for "
            "good, run storage-engine stamp, which says so; --conn-id names a store of Airflow."
        )
