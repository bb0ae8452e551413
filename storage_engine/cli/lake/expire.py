"""lake expire: what a lake's rules no longer keep leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.lake.witnesses import WitnessedLake, witness_options, witnessed_lake
from storage_engine.cli.options.options import json_option, lake_option
from storage_engine.cli.output.output import print_json, print_table, say
from storage_engine.cli.output.progress import waiting
from storage_engine.cli.shell.command import command
from storage_engine.core.clock import DAY_MS
from storage_engine.core.wording import bytes_text, count_text
from storage_engine.lake.gc.garbage_kind import TRASH_MS
from storage_engine.model.keep.acts import SHOWN_CHARACTERS
from storage_engine.model.keep.expiry import REWRITE_RULE, RewriteRule

if TYPE_CHECKING:
    from storage_engine.model.keep.expiry import ExpiryVerdict
    from storage_engine.retention.housekeeping.lake_expiry import LakeExpiry


@command("expire")
@lake_option(required=False)
@witness_options
@click.option(
    "--store-gone",
    "gone",
    metavar="STORE",
    multiple=True,
    help="A store, by name or id, that has nothing any more, whatever its journal says; may be repeated.",
)
@click.option(
    "--trash-days",
    type=click.FloatRange(min=0),
    default=TRASH_MS / DAY_MS,
    show_default=True,
    metavar="DAYS",
    help="Remove for good the files of what expired DAYS ago.",
)
@click.option(
    "--rewrite-at-percent",
    type=click.FloatRange(0, 100),
    default=REWRITE_RULE.at_percent,
    show_default=True,
    metavar="PERCENT",
    help="Where some topics of a segment are past, write its data file again without them once they have "
    "PERCENT of its bytes.",
)
@click.option(
    "--rewrite-within-days",
    type=click.FloatRange(min=0),
    default=REWRITE_RULE.within_days,
    show_default=True,
    metavar="DAYS",
    help="Or once one of them has been past for DAYS.",
)
@click.option("--dry-run", is_flag=True, help="Say what would leave the lake, and why the rest stays.")
@click.option("--undo", "undo_id", metavar="ID", help="Bring back what expired by the act of this id.")
@json_option
def expire(
    lake_dir: Path | None,
    journal_url: str | None,
    conn_id: str | None,
    gone: tuple[str, ...],
    trash_days: float,
    rewrite_at_percent: float,
    rewrite_within_days: float,
    dry_run: bool,
    undo_id: str | None,
    as_json: bool,
) -> int:
    """Take out of a lake what its rules no longer keep: segments of which every topic is past, and which
    their store no longer has. Where only some topics are, the others are written into another data file. What
    isn't known keeps a segment, and so does a hold.

    Their files stay for --trash-days, so that --undo brings them back, and then go for good. The command may
    be killed at any instant and run again.
    """
    from storage_engine.lake.catalog.catalog import open_lake
    from storage_engine.lake.gc.expiry import undo_expiry
    from storage_engine.retention.housekeeping.lake_expiry import expire_lake

    target = witnessed_lake(lake_dir, journal_url, conn_id)
    if undo_id is not None:
        if dry_run or gone:
            raise click.UsageError("Expected --undo ID alone.")
        with waiting("Reading files back"):
            act = undo_expiry(open_lake(target.config), undo_id)
        if as_json:
            print_json("lake expire", {"undone": act.act.decision.expiry, "act": act.sha256})
        else:
            expiry_id = act.act.decision.expiry[:SHOWN_CHARACTERS]
            say(f"Brought back what expired by act {expiry_id} and isn't gone for good.")
            say(f"Next: storage-engine lake keep {target.words}, else it expires again.")
        return 0
    with waiting("Looking at receipts"):
        done = expire_lake(
            open_lake(target.config),
            target.journal_url,
            gone=gone,
            trash_ms=round(trash_days * DAY_MS),
            rewrite=RewriteRule(rewrite_at_percent, rewrite_within_days),
            dry_run=dry_run,
        )
    if as_json:
        print_json("lake expire", done)
    else:
        _print(done, target, trash_days)
    return 0


def _print(done: LakeExpiry, target: WitnessedLake, trash_days: float) -> None:
    if done.verdicts:
        print_table(
            "Segments",
            ("log~", "segments#", "size#", "what", "why of the first"),
            (_line(group) for group in _groups(done.verdicts)),
        )
    say(f"{done.text[:1].upper()}{done.text[1:]}." if done.text else "Nothing expires.")
    if done.dry_run:
        say("Nothing was changed.")
    for act in done.acts:
        undo = f"storage-engine lake expire {target.words} --undo {act[:SHOWN_CHARACTERS]}"
        say(f"Next: {undo} brings them back, for {trash_days:g} days.")


def _groups(verdicts: Sequence[ExpiryVerdict]) -> list[list[ExpiryVerdict]]:
    """Return verdicts by store, log and reason."""

    def key(verdict: ExpiryVerdict) -> tuple[str, str, str]:
        identity = verdict.segment.identity
        return identity.store_id, identity.log, verdict.reason.value

    return [list(group) for _, group in groupby(sorted(verdicts, key=key), key=key)]


def _line(group: Sequence[ExpiryVerdict]) -> tuple[str, ...]:
    first = group[0]
    size_bytes = sum(it.gone_bytes if it.is_thinned else it.segment.size_bytes for it in group)
    log = first.segment.identity.log
    return log, count_text(len(group), "segment"), bytes_text(size_bytes), first.reason.value, first.detail
