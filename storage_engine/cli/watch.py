"""monitor, watch: observe a store, once or all the time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from storage_engine.cli.options.options import (
    check_store,
    lake_option,
    policy_option,
    store_of_connection,
    with_option,
)
from storage_engine.cli.options.store_argument import managed_store, takes_store, with_live_broker
from storage_engine.cli.output.notify_option import alarms_told, doctor_of, notify_option
from storage_engine.cli.output.output import answer, say, say_notes
from storage_engine.cli.shell.interruption import ended_by_signal
from storage_engine.cli.shell.shared_options import command, json_option
from storage_engine.cli.shell.values import NamedPath
from storage_engine.core.clock import clock_ms
from storage_engine.core.host import check_host
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.settings.policy import ShieldMode

if TYPE_CHECKING:
    from storage_engine.retention.monitor.notifying import Means
    from storage_engine.retention.steps import MonitorResult
    from storage_engine.retention.store.managed_store import ManagedStore

_CHECK_SECONDS: Final = 1.0
_END_SECONDS: Final = 5.0


@command()
@takes_store(second_lake=True, connection=True, policy=("archive", "archive_margin_hours"))
@notify_option
@json_option
def monitor(managed: ManagedStore, notify: tuple[Means, ...]) -> int:
    """Look at STORE, and record its figures for metrics. If its broker runs, renew the hold.

    If STORE has a shield and no watch runs, its second names are brought up to date. Segments that exist only
    under a second name are archived. Nothing else is archived, and no segment is ever deleted. Call it by
    cron every ten minutes: its figures count for an hour. Exit code 1: there is an alarm, which a person
    should know at once.
    """
    from storage_engine.retention import steps
    from storage_engine.retention.store.context import opened

    with alarms_told(managed, "monitor", notify) as tell_alarms:
        check_store(managed)
        with opened(managed) as context:
            result = steps.monitor(context, f"monitor-{clock_ms()}")
        tell_alarms(*result.alarms)
    answer("monitor", result, _print)
    return 1 if result.alarms else 0


def _print(result: MonitorResult) -> None:
    from storage_engine.retention.hold.hold_text import hold_text

    if result.hold is not None:
        say(hold_text(result.hold))
    for level in result.sensed.levels:
        percent = "unknown" if level.used_percent is None else f"{level.used_percent} % used"
        say(f"Disk {level.path}: {percent}")
    if result.archive_lag is not None:
        say("Archive: ", result.archive_lag.text)
    notices = [*result.sensed.notices, *(result.archive_lag.notes if result.archive_lag is not None else ())]
    if result.lag_error:
        notices.append(f"consumer groups' lag is not known: {result.lag_error}")
    say_notes(notices)
    for alarm in result.alarms:
        say("Alarm: ", alarm)


@command()
@click.argument("stores", nargs=-1, type=NamedPath())
@lake_option(required=False)
@click.option(
    "--conn-id",
    "conn_ids",
    metavar="ID",
    multiple=True,
    help="Airflow connection of a store on this host; repeatable.",
)
@with_live_broker
@with_option(policy_option("shield_give_up_percent"))
@click.option("--no-shield", is_flag=True, help="Keep no shield: give unproven segments no second names.")
@notify_option
def watch(
    stores: tuple[Path, ...],
    lake_dir: Path | None,
    conn_ids: tuple[str, ...],
    live: LiveBroker | None,
    shield_give_up_percent: int,
    no_shield: bool,
    notify: tuple[Means, ...],
) -> int:
    """Watch the holds on STORES and repair them at once, until it is stopped.

    One process on a host is enough for all stores on its disks. Run the watch as the user who owns the
    stores. The watch looks twice a second, and at once if the file system reports changes (inotify). Changed
    file times are set again, and for a removed segment of the fence, the next segment is fenced. Each repair
    is printed, and recorded in the journal. The watch renews no hold: a pipeline still has to do that.

    If --broker or the connection names a store's broker, the watch also keeps the store's shield: the oldest
    unproven segments get a second name. If such a segment is deleted by force or by hand, the file with the
    second name is archived. cleanFileForciblyEnable is set back to false if --may-change-settings allows it.

    Ends with exit code 0 on SIGTERM and SIGINT, and with another code if it can't continue. --lake names the
    lake with the journal of STORES.
    """
    from storage_engine.retention.monitor.notifying import Teller
    from storage_engine.retention.monitor.store_watch import HostWatch

    mode = ShieldMode.OFF if no_shield else ShieldMode.AUTO
    managed = _managed_stores(stores, lake_dir, conn_ids, live)
    if live or no_shield:
        change = partial(replace, shield=mode, shield_give_up_percent=shield_give_up_percent)
        managed = [replace(store, policy=change(store.policy)) for store in managed]
    ends = ended_by_signal()
    teller = Teller(notify, say, doctor_of)
    host = HostWatch(say, teller.add if notify else None)
    if notify:
        teller.start()
    for store in managed:
        host.add(store)
    while not (ends.wait(_CHECK_SECONDS) or host.dead):
        pass
    dead = host.dead
    host.end()
    error = StorageEngineError(
        "expected the watch to work until it is told to end, found that a thread of it has ended: "
        f"{', '.join(dead)}. Start it again."
    )
    for store in managed if dead else ():
        teller.add(store, (str(error),), ())
    if notify:
        teller.end(_END_SECONDS)
    if dead:
        raise error
    return 0


def _managed_stores(
    stores: tuple[Path, ...], lake_dir: Path | None, conn_ids: tuple[str, ...], live: LiveBroker | None
) -> list[ManagedStore]:
    """:raises click.UsageError: no store is named, or no lake with its journal.
    :raises BadInputError: a store is on another host, or has no running broker.
    """
    if not (stores or conn_ids):
        raise click.UsageError("Expected STORE with --lake DIRECTORY, or --conn-id ID; found neither.")
    if bool(stores) != (lake_dir is not None):
        missing = "--lake with it" if stores else "STORE with it"
        raise click.UsageError(f"{'STORE' if stores else '--lake'}: expected {missing}, found none.")
    if live and (len(stores) != 1 or conn_ids):
        raise click.UsageError(
            f"--broker: expected exactly one STORE, on which it runs, found {len(stores)} and "
            f"{len(conn_ids)} connections. Watch each by a connection, or by a process of its own."
        )
    managed = [managed_store(store, lake_dir, live=live) for store in stores]
    for conn_id in conn_ids:
        store = store_of_connection(conn_id)
        if not store.is_live:
            raise BadInputError(
                f"{conn_id}: expected a store beside its running broker (mode), found a store of a stopped "
                "broker, which has no hold to watch.",
                page="live",
            )
        check_host(store.root, store.host, None)
        managed.append(store)
    return managed
