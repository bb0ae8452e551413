"""The live demo: one cycle beside a real broker that serves producers and consumers all the while.

One consumer group keeps up, the other lags far behind. The cycle begins when the disk is over the level at
which the broker itself would delete; what the lagging group still had to read goes into the lake. Ends by
itself. Whatever way it ends, no process that it started lives on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demo.brokers.rocketmq import Load, RocketMQ, find_jars
from demo.checks import DemoCheck, file_hashes, tell_checks
from demo.dag_run import DagRun, DemoAirflow, Say, States
from demo.directory import clear, run_demo_in
from demo.live_checks import (
    BrokerBefore,
    LiveOutcome,
    check_live,
    mtimes,
    served_messages,
)
from storage_engine.core.wording import count_text, time_text
from storage_engine.exceptions import BadInputError, StorageEngineError
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.broker.live import LiveBroker
from storage_engine.model.disk import DiskUsage
from storage_engine.project.init import STORE_CONNECTION, Project, init_project
from storage_engine.project.up import free_port
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import Acceptance
from storage_engine.retention.plan.watching import watch
from storage_engine.retention.store.managed_store import ManagedStore

MONITOR_ID = f"storage_monitor__{STORE_CONNECTION}"
DAG_ID = f"storage_retention__{STORE_CONNECTION}"
_NAMES = ("store", "broker.conf", "broker.conf.bak", "name-server.conf", "rocketmq", "class-path.txt")

TOPIC, QUEUES = "orders", 4
KEEPS_UP, LAGS = "up-to-date", "lagging"
_LOAD = (
    f"topics={TOPIC}",
    f"queues={QUEUES}",
    "rate=200",
    "threads=2",
    "body-bytes=8192",
    f"group={KEEPS_UP}",
    # So few that it is far behind even where all else is slow.
    f"group={LAGS}@4",
)

OLD_SEGMENTS = 8
_SEGMENT_BYTES = 4 << 20
_RESERVED_HOURS = 72
_DAYS_OLD = 10
_SETTINGS: Mapping[str, object] = {
    "mappedFileSizeCommitLog": _SEGMENT_BYTES,
    # So small that files of each kind go too.
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 1500,
    "fileReservedTime": _RESERVED_HOURS,
    # No hour of the day, so that only the disk's level is a cause.
    "deleteWhen": "99",
    "diskMaxUsedSpaceRatio": 95,
    "cleanFileForciblyEnable": "true",
    "cleanResourceInterval": 1000,
    # A put that waits for a busy processor is late, and not refused.
    "waitTimeMillsInSendQueue": 3000,
}
_LEVEL, _WINDOW = "diskMaxUsedSpaceRatio", "deleteWhen"
_LOWEST_LEVEL, _FORCE_LEVEL = 10, 85
"""A broker takes no lower level, and above the other it deletes whatever its age."""

_FILL_SECONDS = 180.0
_MOVE_SECONDS = 60.0


@dataclass
class _Watcher:
    """What the broker said while the run had not come to the release.

    :param began_at: every offset at which the log was seen to begin.
    :param positions: of the lagging group, by queue, when it was asked last.
    """

    mq: RocketMQ
    began_at: set[int] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    over: bool = False

    def look(self, states: States) -> None:
        self.mq.check_alive()
        self.over = self.over or states.get("release") not in (None, "scheduled", "queued")
        if not self.over:
            self.began_at.add(self.mq.min_offset())
            with self.mq.admin() as admin:
                stats = admin.consume_stats(LAGS, TOPIC)
            self.positions = {queue: seen.consumer_offset for (_, queue), seen in stats.items()}


def run_demo_live(directory: Path, say: Say, tell: Say) -> int:
    """Run the live demo in ``directory``, afresh.

    :param say: receives progress, line by line.
    :param tell: receives the summary, line by line.
    :return: exit status: 0 if everything held, 1 if something did not, 128 + signal number when
        interrupted.
    :raises BadInputError: the directory holds something that is not an earlier demo, its disk is too full, or
        there is no JDK or no Maven.
    """
    return run_demo_in(directory, _NAMES, say, lambda place: _run(place, say, tell))


def _run(directory: Path, say: Say, tell: Say) -> int:
    started = time.monotonic()
    clear(directory, _NAMES)
    _check_disk(directory)
    say("RocketMQ: its jars, by Maven")
    jars = find_jars(directory)
    say("RocketMQ: starting name server and broker")
    with RocketMQ(directory, jars, _SETTINGS) as mq:
        say(f"RocketMQ: the broker serves on {mq.address}, its store is {mq.root}")
        load = mq.load("load", *_LOAD)
        store = _managed(Project(directory), mq)
        project = init_project(
            directory, store_root=mq.root, broker_conf=mq.broker_conf, fields=_connection(mq)
        )
        with DemoAirflow(project, free_port(), say) as airflow:
            runs = DagRun(airflow, MONITOR_ID, say), DagRun(airflow, DAG_ID, say)
            outcome = _cycle(mq, load, store, *runs, say)
        checks = check_live(store, outcome)
    _sum_up(project, mq, outcome, checks, tell)
    tell(f"Took {time.monotonic() - started:.0f} s.")
    return 0 if all(check.holds for check in checks) else 1


def _check_disk(directory: Path) -> None:
    used = DiskUsage.of(directory).used_percent
    if used is not None and used >= _FORCE_LEVEL - 5:
        raise BadInputError(
            f"{directory}: expected a disk less than {_FORCE_LEVEL - 5} % full, found {used} %: above "
            f"{_FORCE_LEVEL} % a broker deletes whatever its age. Name a directory on another disk."
        )


def _connection(mq: RocketMQ) -> dict[str, object]:
    """Return what the store's connection says of its broker, beyond what every new connection says."""
    return {
        "mode": "live",
        "broker_address": mq.address,
        # A demo has one disk.
        "broker_settings": {"may_change_settings": True, "allow_same_disk": True},
        "spark_from": "0",
    }


def _managed(project: Project, mq: RocketMQ) -> ManagedStore:
    """The store as that connection amounts to."""
    return ManagedStore(
        name=STORE_CONNECTION,
        root=str(mq.root),
        lake=LakeConfig.local(project.lake),
        journal_url=project.journal_url,
        report_dir=str(project.reports),
        broker_conf=str(mq.broker_conf),
        time_zone="UTC",
        live=LiveBroker(address=mq.address, may_change_settings=True, allow_same_disk=True),
    )


def _cycle(
    mq: RocketMQ, load: Load, store: ManagedStore, monitor: DagRun, run: DagRun, say: Say
) -> LiveOutcome:
    """Everything that happens while the broker serves, and what was seen of it."""
    load.wait_until_sending()
    say(f"producers send to {TOPIC}, group {KEEPS_UP} keeps up, group {LAGS} reads next to nothing")
    _wait_for_segments(mq, OLD_SEGMENTS + 3)
    old = _date_back(mq)
    say(f"  {OLD_SEGMENTS} segments are dated back, past their reserved time of {_RESERVED_HOURS} h")
    with mq.admin() as admin:
        before = BrokerBefore(admin.config(), mtimes(mq.root), file_hashes(old))
    held = steps.hold(store).status
    say(f"held until {time_text(held.ends_at_ms or 0)}: the broker can delete nothing by itself")
    run.switch_on()
    monitor.switch_on()
    monitor.start()
    monitor.wait_until("sense", "deferred")
    lowered = _give_a_cause(mq, store, say)
    run.start()
    watcher = _Watcher(mq)
    state = run.finish(watcher.look)
    result = run.result("report")
    _wait_until_moved(mq, load, say)
    say("ending the load")
    summary = load.stop()
    served = served_messages(mq.address, TOPIC, QUEUES)
    with mq.admin() as admin:
        admin.update_config({key: before.settings[key] for key in lowered})
        say("unmanage: every file's time and every setting as they were")
        steps.unmanage(store, acceptance=Acceptance(1_000_000, "the demo", "it is over"))
        after = admin.config()
    return LiveOutcome(
        topic=TOPIC,
        keeps_up=KEEPS_UP,
        lags=LAGS,
        before=before,
        settings_after=after,
        mtimes_after=mtimes(mq.root),
        min_offset=mq.min_offset(),
        began_at_until_release=frozenset(watcher.began_at),
        positions=watcher.positions,
        held=held.held,
        run_state=state,
        result=result,
        records=tuple(load.records()),
        summary=summary,
        served=served,
    )


def _wait_for_segments(mq: RocketMQ, count: int) -> None:
    deadline = time.monotonic() + _FILL_SECONDS
    while mq.max_offset() < count * _SEGMENT_BYTES:
        mq.check_alive()
        if time.monotonic() > deadline:
            raise StorageEngineError(
                f"The producers: expected {count} segments within {_FILL_SECONDS:.0f} s, found "
                f"{mq.max_offset() // _SEGMENT_BYTES}. This machine is too busy, or see {mq.root.parent}."
            )
        time.sleep(0.5)


def _date_back(mq: RocketMQ) -> tuple[Path, ...]:
    """Make the oldest segments look old: a broker tells it by the modification time and nothing else."""
    old = tuple(sorted((mq.root / "commitlog").iterdir())[:OLD_SEGMENTS])
    modified = time.time() - _DAYS_OLD * 86400
    for path in old:
        os.utime(path, (modified, modified))
    return old


def _give_a_cause(mq: RocketMQ, store: ManagedStore, say: Say) -> tuple[str, ...]:
    """Change the running broker's own settings so that by its rules the expired segments have to go.

    :return: the settings.
    """
    used = watch(store).deciding_percent
    if used is not None and used > _LOWEST_LEVEL:
        # So far below that the level does not cross it by itself meanwhile.
        setting, value = _LEVEL, str(max(_LOWEST_LEVEL, used - 5))
        why = f"the disk is {used} % full"
    else:
        setting, value = _WINDOW, ";".join(f"{hour:02}" for hour in range(24))
        why = f"the disk is {used} % full, and no level below {_LOWEST_LEVEL} can be set"
    with mq.admin() as admin:
        admin.update_config({setting: value})
    say(f"{setting}={value} on the running broker ({why}): from now on it wants to delete, and so do we")
    return (setting,)


def _wait_until_moved(mq: RocketMQ, load: Load, say: Say) -> None:
    """Until the lagging group has found out that its next message is gone."""
    say(f"waiting until group {LAGS} has asked for what is gone")
    deadline = time.monotonic() + _MOVE_SECONDS
    while time.monotonic() < deadline:
        mq.check_alive()
        if any(record.get("moved") == LAGS for record in load.records()):
            return
        time.sleep(0.5)


def _sum_up(
    project: Project, mq: RocketMQ, outcome: LiveOutcome, checks: tuple[DemoCheck, ...], tell: Say
) -> None:
    if "report_text" in outcome.result:
        tell("")
        for line in Path(outcome.result["report_text"]).read_text().splitlines():
            tell(line)
    tell("")
    tell("What the clients saw")
    for line in _clients(outcome.summary):
        tell(f"  {line}")
    tell_checks(checks, "outside", tell)
    tell(f"Store    {mq.root}")
    tell(f"Lake     {project.lake}")
    tell(f"Report   {outcome.result.get('report_html', project.reports)}")
    tell(f"Logs     {project.logs} and {mq.root.parent / 'rocketmq'}")
    tell("Everything held." if all(check.holds for check in checks) else "NOT everything held.")


def _clients(summary: Mapping[str, Any]) -> list[str]:
    puts = (
        f"producers: {count_text(summary['sent'], 'message')} sent, {summary['failed']} failed; a put took "
        f"{summary['microsP50'] / 1000:.1f} ms (p50), {summary['microsP99'] / 1000:.1f} ms (p99), "
        f"{summary['microsMax'] / 1000:.0f} ms (longest)"
    )
    groups = [
        f"group {name}: {count_text(seen['pulled'], 'message')} pulled, {seen['failed']} pulls failed, "
        f"{seen['moved']} found their position gone"
        for name, seen in summary["groups"].items()
    ]
    return [puts, *groups]
