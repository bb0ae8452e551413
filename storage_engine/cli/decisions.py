"""waive, approve, accept-loss, adopt, move, stamp: decisions of a person, with name and reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage_engine.cli.options.options import check_store, conn_id_option, lake_and_journal, lake_option
from storage_engine.cli.options.store_argument import takes_store
from storage_engine.cli.output.output import answer, store_name
from storage_engine.cli.shell.shared_options import command, json_option
from storage_engine.cli.shell.values import reason_text
from storage_engine.commands import Command, Text
from storage_engine.core.host import person
from storage_engine.exceptions import BadInputError
from storage_engine.model.settings.policy import ApprovalPolicy

if TYPE_CHECKING:
    from storage_engine.retention.store.managed_store import ManagedStore


def _check_digest(context: click.Context, parameter: click.Parameter, digest: str | None) -> str | None:
    if digest is not None and not re.fullmatch("[0-9a-f]{64}", digest):
        raise click.BadParameter(
            Text(
                f"expected a plan's digest of 64 hexadecimal digits, found {digest!r}. ",
                Command("plan"),
                " ends with a plan's digest.",
            ),
            param_hint="DIGEST",
        )
    return digest


@command()
@click.argument("digest", callback=_check_digest)
@lake_option(required=False)
@conn_id_option
@click.option(
    "--reason",
    callback=reason_text,
    required=True,
    help="Why these segments may be deleted without a proven copy.",
)
@json_option
def waive(digest: str, lake_dir: Path | None, conn_id: str | None, reason: str) -> int:
    """Let the plan with this DIGEST delete without receipts. Journal and report name who decided it."""
    from storage_engine.journal.journal import Journal

    journal = Journal(lake_and_journal(lake_dir, conn_id)[1])
    waiver = journal.waive(digest, person(), reason)
    text = f"Plan {waiver.plan_digest} may delete without receipts: {waiver.reason} ({waiver.person})"
    return answer("waive", waiver, text)


@command()
@takes_store(connection=True, looks=False)
@click.option(
    "--digest",
    metavar="DIGEST",
    callback=_check_digest,
    help="Digest of the plan with which a run stopped. This plan may then be carried out.",
)
@click.option(
    "--lower-to",
    type=click.Choice([policy.value for policy in ApprovalPolicy]),
    help=(
        "Without --digest: lower the store's approval setting from now on; two accounts must give this "
        "command."
    ),
)
@click.option(
    "--minimum-retention-hours",
    type=click.IntRange(1),
    metavar="HOURS",
    help="With --lower-to: runs with minimum_retention_hours below HOURS count as forced; default: none.",
)
@json_option
def approve(
    managed: ManagedStore, digest: str | None, lower_to: str | None, minimum_retention_hours: int | None
) -> int:
    """Approve, as a second person, that a plan of STORE is carried out. The journal keeps both accounts.

    Only the journal is written. The account that began the run can't approve it, and root can't either.
    """
    from storage_engine.journal.journal import Journal
    from storage_engine.retention.proof.approvals import approve_plan, lower_policy, this_account

    if (digest is None) is (lower_to is None):
        raise click.UsageError("Expected --digest or --lower-to, found both or neither.")
    # An approver may have no right to read the store.
    journal = Journal(managed.journal_url)
    record = journal.find_store(managed.real_root, managed.host)
    if record is None:
        raise BadInputError(
            f"{managed.real_root}: expected a store that the journal knows, found none. Nothing was "
            "recorded. Name the journal or the lake of the store's runs."
        )
    if lower_to is not None:
        lowest = ApprovalPolicy(lower_to)
        lowered = lower_policy(journal, record, lowest, minimum_retention_hours, this_account())
        if lowered is None:
            text = (
                f"{managed.real_root}: the change to approval: {lower_to} is requested. Now another account "
                "has to give the same command."
            )
        else:
            both = " and ".join(person.text for person in lowered.persons)
            text = f"{managed.real_root} has approval: {lower_to} from now on, by {both}."
        return answer("approve", {"lowered": lowered}, text)
    assert digest is not None
    run, reply = approve_plan(journal, record, digest, this_account())
    assert reply.person is not None
    text = f"Plan {digest} is approved by {reply.person.text}; run {run.run_key} may go on."
    return answer("approve", {"run_key": run.run_key, "answer": reply}, text)


@command()
@takes_store(second_lake=True, connection=True)
@click.option("--from", "start_offset", type=int, required=True, help="First physical offset that is lost.")
@click.option("--to", "end_offset", type=int, required=True, help="The offset after the last lost one.")
@click.option(
    "--log", metavar="LOG", help="The log; default: the first one in which the whole range is LOST."
)
@click.option(
    "--reason", callback=reason_text, required=True, help="How the loss happened, and why to go on."
)
@json_option
def accept_loss(
    managed: ManagedStore, start_offset: int, end_offset: int, log: str | None, reason: str
) -> int:
    """Accept that a range of STORE's log is LOST. From then on validation only warns of it.

    Refused if a byte of the range isn't lost. The journal and each report keep who decided it, and why.
    """
    from storage_engine.retention import steps

    check_store(managed)
    loss = steps.accept_loss(managed, start_offset, end_offset, person(), reason, log)
    text = f"{loss.log} [{start_offset}, {end_offset}) is accepted as lost: {reason} ({loss.person})"
    return answer("accept-loss", loss, text)


@command()
@takes_store(second_lake=True, connection=True)
@click.option("--log", metavar="LOG", help="Only this log; default: the whole store.")
@click.option(
    "--reason", callback=reason_text, required=True, help="Why the store's offsets now carry other bytes."
)
@click.option(
    "--force",
    is_flag=True,
    help="Open a new lineage even if nothing contradicts the archive; segments on disk are archived again.",
)
@json_option
def adopt(managed: ManagedStore, log: str | None, reason: str, force: bool) -> int:
    """Open a new lineage for STORE, after other bytes were found at offsets that are already archived.

    Archived segments stay in the lake under the old lineage. Refused if no segment on disk contradicts them.
    In a store with several logs, --log opens a lineage of one log and leaves the others as they are.
    """
    from storage_engine.retention.decisions import adopt as open_new_lineage

    check_store(managed)
    record = open_new_lineage(managed, person(), reason, force=force, log=log)
    subject = f"Store {store_name(managed)}" if log is None else f"Log {log} of store {store_name(managed)}"
    text = f"{subject} is at lineage {record.lineage_of(log or '')} from now on."
    return answer("adopt", record, text)


@command()
@click.argument("name")
@takes_store(second_lake=True, connection=True, named=False)
@click.option("--reason", default="", help="Why it was moved or renamed.")
@click.option(
    "--leave-unproven",
    type=click.IntRange(min=1),
    metavar="AT-MOST",
    help=(
        "With --reason, if another journal holds the store: accept that the broker deletes at most this many "
        "unproven segments within a day."
    ),
)
@json_option
def move(name: str, managed: ManagedStore, reason: str, leave_unproven: int | None) -> int:
    """Record that a moved or renamed store is called NAME from now on, and is in the directory STORE.

    STORE's stamp has to prove which store it is, and its old directory must not contain the store any more. A
    store in Airflow has the name of its connection, so NAME is the connection's id.
    """
    from storage_engine.retention.decisions import move as record_move

    if leave_unproven and not reason.strip():
        raise click.UsageError("Expected --reason TEXT with --leave-unproven AT-MOST, found none.")
    check_store(managed)
    record = record_move(managed, name, person(), reason, leave_unproven or 0)
    text = f"Store {record.store_id} is called {record.name} and is at {record.real_path}."
    return answer("move", record, text)


@command()
@takes_store(second_lake=True, connection=True)
@click.option(
    "--reason", callback=reason_text, required=True, help="What happened to the store, its stamp or its lake."
)
@click.option(
    "--store-id",
    metavar="ID",
    help="Id of the store in this directory; default: the id in the journal or the stamp.",
)
@click.option("--new", is_flag=True, help="STORE is a copy and becomes a store of its own.")
@json_option
def stamp(managed: ManagedStore, reason: str, store_id: str | None, new: bool) -> int:
    """Record which store the directory STORE is, after it was copied, or its stamp or lake was lost.

    The stamp is in STORE/.storage-engine. From then on the store is compared with the lake's present state.
    """
    from storage_engine.retention.decisions import stamp as write_stamp

    check_store(managed)
    if new and store_id is not None:
        raise click.UsageError("Expected --new or --store-id, found both.")
    written = write_stamp(managed, person(), reason, store_id=store_id, new=new)
    text = f"{managed.real_root} is store {written.store_id}, lineage {written.lineage}."
    return answer("stamp", written, text)
