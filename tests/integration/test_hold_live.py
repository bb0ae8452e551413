"""A hold on a real broker's store: what it keeps, how it ends, who is refused, and that it leaves nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core.wording import time_text
from storage_engine.exceptions import BadInputError, GateRefusedError
from storage_engine.journal.journal import Journal, Phase, Step, hold_memory
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.disk import DiskUsage
from storage_engine.model.hold import Drift, DriftKind, HoldMemory, HoldStatus
from storage_engine.model.plan import PlanRequest
from storage_engine.model.proof.receipt import Receipt
from storage_engine.model.settings.policy import ShieldMode
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.decisions import move
from storage_engine.retention.doctor.doctor import diagnose
from storage_engine.retention.hold.holding import Acceptance, hold, remove_shield_of, unmanage
from storage_engine.retention.monitor.monitoring import monitor
from storage_engine.retention.plan.cleanup_due import sense
from storage_engine.retention.shield import tend_shield
from storage_engine.retention.store.brokers import open_store, settings_of
from storage_engine.retention.store.context import open_context, opened
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import stamp_path
from storage_engine.rocketmq import BROKER
from storage_engine.rocketmq.hold.fence import MARGIN_PERCENT
from storage_engine.rocketmq.hold.hold_state import load_state
from storage_engine.rocketmq.hold.marker import NAME
from storage_engine.rocketmq.live.live_store import LiveHold
from storage_engine.shield.index import look_at_shield, shield_path
from tests.integration.broker import CLEANS_AT_ONCE, VERSIONS, Broker, running_broker, start_again
from tests.integration.live_store import SETTINGS, LiveLog, create_topic
from tests.integration.stores import file_hashes
from tests.lakes import make_lakes
from tests.rounds import later
from tests.services.command_line import Outcome, run_command

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cleans_at_once")]

UPDATE_BROKER_CONFIG = 25
HOUR_MS = 3_600_000
FENCED = 11
ENDS_SOON_MS = 5_000
"""Far more than a hold takes."""
AS_AT_FIRST = {"cleanFileForciblyEnable": "true", "fileReservedTime": "48"}


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture(scope="module")
def work(version: str | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def live_log(version: str | None, work: Path, name_server_port: int) -> Iterator[LiveLog]:
    with running_broker(
        work / "store",
        work,
        name_server_port,
        SETTINGS,
        main_class=CLEANS_AT_ONCE,
        version=version,
    ) as broker:
        create_topic(broker.client)
        yield LiveLog(broker)


@pytest.fixture
def log(live_log: LiveLog, tmp_path: Path) -> Iterator[LiveLog]:
    """At least three expired segments, held by nobody."""
    expired = [base for base in live_log.names() if base in live_log.sha256]
    if len(expired) < 3:
        live_log.fill(3)
    yield live_log
    unmanage(managed(live_log, tmp_path))
    live_log.broker.client.update_config(AS_AT_FIRST)
    # As a store that was never archived: each test has a journal and a lake of its own.
    stamp_path(str(live_log.broker.store)).unlink(missing_ok=True)


@pytest.fixture
def store(log: LiveLog, tmp_path: Path) -> ManagedStore:
    return managed(log, tmp_path)


def managed(log: LiveLog, tmp_path: Path, **live: object) -> ManagedStore:
    conf = str(log.broker.store.parent / "broker.conf")
    return replace(log.managed(tmp_path / "managed", **live), broker_conf=conf)


def set_anything(broker: Broker, **settings: str) -> None:
    """What an administrator may set, and we never would."""
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    broker.client.call(UPDATE_BROKER_CONFIG, body=body)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def first_offset(log: LiveLog) -> int:
    return log.names()[0]


@pytest.mark.again
def test_triggers_of_others_find_nothing_while_held_and_everything_is_put_back(
    log: LiveLog, store: ManagedStore
) -> None:
    client, names, mtimes = log.broker.client, log.names(), log.mtimes()
    status = hold(store).status
    assert (status.held, status.fence_offset, status.disturbances) == (True, names[0], ())
    assert status.ends_at_ms is not None
    assert 24 * HOUR_MS - 60_000 < status.ends_at_ms - now_ms() <= 24 * HOUR_MS + 1000
    assert client.config()["cleanFileForciblyEnable"] == "false"
    assert (log.broker.store / NAME).exists()
    touched = {base for base, mtime_ns in log.mtimes().items() if mtimes[base] != mtime_ns}
    assert touched == set(list(mtimes)[:FENCED])
    assert status.deletes_from_ms == status.ends_at_ms + 48 * HOUR_MS

    log.others_clean()
    assert log.names() == names
    assert client.runtime_info().commitlog_min_offset == names[0]
    # Segments are as old as they were, whatever the fence's mtime says.
    (seen,) = open_context(store).broker.snapshot(now_ms()).logs
    assert [one.mtime_ns for one in seen.sealed] == [mtimes[one.base_offset] for one in seen.sealed]
    assert seen.segments[0].original_mtime_ns == mtimes[names[0]]

    again = hold(store).status
    assert (again.held, again.ends_at_ms, again.disturbances) == (True, status.ends_at_ms, ())
    assert not unmanage(store).status.held
    assert log.mtimes() == mtimes
    assert client.config().items() >= AS_AT_FIRST.items()
    assert not (log.broker.store / NAME).exists()
    assert unmanage(store).status.notices == ("the store wasn't held",)


@pytest.mark.again
def test_a_hold_begins_in_the_middle_of_the_brokers_own_deletion(log: LiveLog, tmp_path: Path) -> None:
    log.fill(12)
    store, first = managed(log, tmp_path, hold_hours=12), first_offset(log)
    until_it_is_through = log.others_begin_to_clean()
    while first_offset(log) == first:
        time.sleep(0.01)
    status = hold(store).status
    assert status.held
    until_it_is_through()
    # The last pass may still be at it.
    log.others_clean()
    # It went on to the fence, and no further.
    assert status.fence_offset == first_offset(log) < max(log.sha256)


@pytest.mark.again
def test_a_hold_that_nobody_renews_ends_and_is_missed(log: LiveLog, store: ManagedStore) -> None:
    names = log.names()
    ends_at_ms = hold(store, now_ms() - (24 + 48) * HOUR_MS + ENDS_SOON_MS).status.deletes_from_ms
    assert ends_at_ms is not None
    until_it_is_through = log.others_begin_to_clean()
    while (found_names := log.names())[: len(names)] == names and now_ms() < ends_at_ms:
        time.sleep(0.1)
    assert found_names[: len(names)] == names or now_ms() >= ends_at_ms
    until_it_is_through()
    expired = [base for base in names if base in log.sha256]
    log.others_clean()
    log.wait_for_min_offset(names[len(expired)])

    found = hold(store).status
    assert found.held
    by_kind = {one.kind: one for one in found.disturbances}
    assert DriftKind.HOLD_LAPSED in by_kind
    gone = by_kind[DriftKind.SEGMENT_GONE]
    assert (gone.start_offset, gone.end_offset) == (names[0], names[len(expired)])


def test_what_others_do_is_seen_and_undone(log: LiveLog, store: ManagedStore) -> None:
    client, first = log.broker.client, first_offset(log)
    hold(store)
    fenced_ns = log.mtimes()[first]

    os.utime(log.path(first), ns=(log.mtime_ns[first], log.mtime_ns[first]))
    look = open_context(store).broker.hold.status(now_ms())
    assert not look.held
    assert [one.kind for one in look.disturbances] == [DriftKind.MTIME_CHANGED]
    assert log.mtimes()[first] == log.mtime_ns[first]
    assert [one.kind for one in hold(store).status.disturbances] == [DriftKind.MTIME_CHANGED]
    assert abs(log.mtimes()[first] - fenced_ns) < 60 * 10**9

    client.update_config({"cleanFileForciblyEnable": "true"})
    assert not open_context(store).broker.hold.status(now_ms()).held
    assert {one.kind for one in hold(store).status.disturbances} == {DriftKind.SETTING_CHANGED}
    assert client.config()["cleanFileForciblyEnable"] == "false"

    client.update_config({"fileReservedTime": "72"})
    status = hold(store).status
    assert {one.kind for one in status.disturbances} == {DriftKind.SETTING_CHANGED}
    assert status.ends_at_ms is not None
    assert status.ends_at_ms - now_ms() <= 24 * HOUR_MS + 1000
    assert hold(store).status.disturbances == ()
    client.update_config({"fileReservedTime": "48"})
    assert hold(store).status.disturbances == ()

    log.path(first).unlink()
    status = hold(store).status
    gone = next(one for one in status.disturbances if one.kind is DriftKind.SEGMENT_GONE)
    assert (gone.start_offset, gone.topics) == (first, ("payments",))
    assert (status.held, status.fence_offset) == (True, first_offset(log))
    # Whoever looks at the broker's own passes finds the rest there, whatever it takes for its min offset.
    names = log.names()
    log.others_clean()
    assert log.names() == names


def test_what_others_set_stays_when_the_store_is_unmanaged(log: LiveLog, store: ManagedStore) -> None:
    first = first_offset(log)
    hold(store)
    theirs_ns = log.mtime_ns[first] + 10**9
    os.utime(log.path(first), ns=(theirs_ns, theirs_ns))
    (touched,) = unmanage(store).status.notices
    assert "another program touched" in touched
    assert log.mtimes()[first] == theirs_ns


def archive_here(jobs: Sequence[SegmentJob]) -> tuple[Receipt, ...]:
    return archive_all(open_lake(jobs[0].lake), jobs)


@pytest.fixture
def cleaned_today(log: LiveLog) -> Iterator[None]:
    """The broker deletes what has expired within a day, and not by itself while the test runs."""
    client, before = log.broker.client, log.broker.client.config()["deleteWhen"]
    in_some_hours = (time.gmtime().tm_hour + 5) % 24
    client.update_config({"deleteWhen": f"{in_some_hours:02d}"})
    yield
    client.update_config({"deleteWhen": before})


def unmanaged(store: ManagedStore) -> list[tuple[Phase, dict[str, Any]]]:
    """What the journal has of stores that were left to their broker."""
    context = open_context(store)
    events = context.journal.store_events(context.record.store_id, Step.UNMANAGE)
    return [(event.phase, dict(event.payload)) for event in events]


@pytest.mark.usefixtures("cleaned_today")
def test_no_command_leaves_to_the_broker_what_it_deletes_and_no_lake_proves(
    log: LiveLog, store: ManagedStore
) -> None:
    hold(store)
    names, held, client = log.names(), log.mtimes(), log.broker.client
    expired = [base for base in names if base in log.sha256]
    count, size = len(expired), sum(log.path(base).stat().st_size for base in expired)
    for accepted in (None, Acceptance(count - 1, "ann", "too few")):
        with pytest.raises(GateRefusedError, match=f"--leave-unproven {count} --reason"):
            unmanage(store, acceptance=accepted)
        log.others_clean()
        assert (log.names(), log.mtimes()) == (names, held)
        assert client.config()["cleanFileForciblyEnable"] == "false"
        assert (log.broker.store / NAME).exists()
        assert unmanaged(store) == []

    assert not unmanage(store, acceptance=Acceptance(count, "ann", "it may go")).status.held
    said = {"person": "ann", "reason": "it may go", "at_most": count, "segments": count, "size_bytes": size}
    assert unmanaged(store) == [(phase, {**said, "unknown": []}) for phase in (Phase.INTENT, Phase.RESULT)]

    hold(store)
    archive_sealed(store, "archived", archive_here)
    assert not unmanage(store).status.held
    assert len(unmanaged(store)) == 2


@pytest.mark.again
@pytest.mark.usefixtures("cleaned_today")
def test_no_move_and_no_command_of_a_lake_ends_a_hold(log: LiveLog, tmp_path: Path) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "copy"
    address = ("--broker", log.broker.client.address, "--allow-same-disk", "--may-change-settings")
    words = (log.broker.store, "--lake", lake, *address)

    def run(*command: object) -> Outcome:
        done = run_command(*map(str, command))
        assert done.exit_code == 0, done.err
        return done

    run("init-lake", "--lake", lake)
    run("archive", *words)
    run("hold", *words)
    held = log.mtimes()
    for command in (
        ("move", "renamed", *words),
        ("lake", "copy", "--lake", lake, "--to", copy),
        ("lake", "promote", "--lake", copy, "--reason", "a test"),
        ("lake", "relocate", "--lake", lake, "--take-over"),
        ("init-lake", "--lake", lake),
        ("gc", "--lake", lake, "--delete"),
        ("lake", "rebuild", "--lake", lake),
        ("stamp", *words, "--reason", "a test"),
        ("adopt", *words, "--reason", "a test", "--force"),
    ):
        run(*command)
        assert log.mtimes() == held, command
        assert log.broker.client.config()["cleanFileForciblyEnable"] == "false"
    assert run("inspect", *words, "--json").json["hold"]["held"]
    # What was proven in the lineage before is not proven now.
    expired = sum(base in log.sha256 for base in log.names())
    refused = run_command("unmanage", *map(str, words))
    assert refused.exit_code == 1
    assert f"--leave-unproven {expired} --reason TEXT" in refused.err
    assert log.mtimes() == held
    run("unmanage", *words, "--leave-unproven", expired, "--reason", "a test")
    assert log.mtimes() != held


@pytest.mark.again
@pytest.mark.usefixtures("cleaned_today")
def test_no_move_into_another_journal_leaves_a_held_store_to_its_broker(log: LiveLog, tmp_path: Path) -> None:
    lake, other, broker_conf = tmp_path / "lake", tmp_path / "other", log.broker.store.parent / "broker.conf"
    address = ("--broker", log.broker.client.address, "--allow-same-disk", "--may-change-settings")
    conf = ("--broker-conf", broker_conf)

    def run(*command: object) -> Outcome:
        return run_command(*map(str, command))

    for directory in (lake, other):
        assert run("init-lake", "--lake", directory).exit_code == 0
    for command in ("archive", "hold"):
        assert run(command, log.broker.store, "--lake", lake, *address, *conf).exit_code == 0
    held, expired = log.mtimes(), sum(base in log.sha256 for base in log.names())
    moved = ("move", "renamed", log.broker.store, "--lake", other, *conf)
    refused = run(*moved, *address)
    assert refused.exit_code == 1
    assert "another journal holds the store until" in refused.err
    assert f"--leave-unproven {expired} --reason TEXT" in refused.err
    # Whose broker nobody names, of that nothing can be counted.
    assert "found ranges that can't be counted" in run(*moved).err
    assert "Expected --reason TEXT" in run(*moved, *address, "--leave-unproven", expired).err
    assert Journal(f"sqlite:///{other}/journal.db").all_stores() == ()
    assert log.mtimes() == held
    # What lakes of that journal prove goes unproven by nobody's word.
    done = run(*moved, *address, "--second-lake", lake)
    assert done.exit_code == 0, done.err
    assert log.mtimes() == held
    assert run("unmanage", log.broker.store, "--lake", lake, *address, *conf).exit_code == 0


@pytest.mark.again
def test_a_hold_goes_with_its_store_to_another_directory(name_server_port: int, tmp_path: Path) -> None:
    here, there, conf = tmp_path / "here", tmp_path / "there", tmp_path / "broker.conf"
    with running_broker(here, tmp_path, name_server_port, SETTINGS, main_class=CLEANS_AT_ONCE) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(3)
        store = managed(log, tmp_path)

        def sealed() -> dict[int, int]:
            return {base: mtime_ns for base, mtime_ns in log.mtimes().items() if base in log.sha256}

        mtimes = sealed()
        hold(store)
        held = sealed()
        archive_sealed(store, "archived", archive_here)
        broker.java.stop()
        here.rename(there)
        conf.write_text(conf.read_text().replace(str(here), str(there)))
        broker.store = there
        start_again(broker, tmp_path, name_server_port, main_class=CLEANS_AT_ONCE)
        moved = replace(store, root=str(there))
        move(moved, store.name, "ann")
        assert hold(moved).status.held
        log.others_clean()
        assert sealed() == held != mtimes
        ended = unmanage(moved).status
        assert (ended.held, ended.notices, sealed()) == (False, (), mtimes)


@pytest.mark.again
@pytest.mark.usefixtures("cleaned_today")
def test_a_shield_that_alone_protects_is_not_removed_unasked(log: LiveLog, store: ManagedStore) -> None:
    hold(store)
    assert tend_shield(replace(store, policy=replace(store.policy, shield=ShieldMode.ON))).links
    assert not open_context(store).broker.hold.end(now_ms()).held
    count = sum(base in log.sha256 for base in log.names())
    with pytest.raises(GateRefusedError, match=f"--leave-unproven {count} "):
        remove_shield_of(store)
    assert look_at_shield(store.real_root).links
    assert remove_shield_of(store, Acceptance(count, "ann", "why")) == ()
    assert not shield_path(store.real_root).exists()
    assert [phase for phase, _ in unmanaged(store)] == [Phase.INTENT, Phase.RESULT]


@pytest.mark.again
@pytest.mark.usefixtures("cleaned_today")
def test_that_a_hold_runs_out_is_told_from_half_of_its_time_on(log: LiveLog, store: ManagedStore) -> None:
    status = hold(store, now_ms() - 13 * HOUR_MS).status
    left = sum(base in log.sha256 for base in log.names())
    assert status.ends_at_ms is not None
    assert status.deletes_from_ms is not None
    said = (
        f"ends by itself {time_text(status.ends_at_ms)}; the broker deletes from "
        f"{time_text(status.deletes_from_ms)} on: {left} segments"
    )
    context = open_context(store)
    with context.journal.lease(context.record.store_id):
        (alarm,) = (one for one in monitor(store, "no lease").alarms if "ends by itself" in one)
    assert said in alarm
    found = diagnose(store, now_ms(), has_lake=True).findings
    assert [said in one.what for one in found if one.kind == "hold-ends"] == [True]
    # It is renewed, and far from its end again.
    assert not any("ends by itself" in one for one in monitor(store, "renewed").alarms)
    assert "hold-ends" not in {one.kind for one in diagnose(store, now_ms(), has_lake=True).findings}

    archive_sealed(store, "archived", archive_here)
    unmanage(store)
    hold(store, now_ms() - 13 * HOUR_MS)
    found = diagnose(store, now_ms(), has_lake=True).findings
    assert ["then are proven" in one.what for one in found if one.kind == "hold-ends"] == [True]


@pytest.mark.usefixtures("cleaned_today")
@pytest.mark.parametrize("is_ended", [True, *later(False)])
def test_what_a_killed_command_left_to_the_broker_is_recorded(
    log: LiveLog, store: ManagedStore, is_ended: bool
) -> None:
    hold(store)
    names, count = log.names(), sum(base in log.sha256 for base in log.names())
    accepted, end_hold = Acceptance(count, "ann", "it may go"), LiveHold.end

    def killed(hold: LiveHold, at_ms: int) -> HoldStatus:
        if is_ended:
            end_hold(hold, at_ms)
        os._exit(9)

    if (child := os.fork()) == 0:
        try:
            LiveHold.end = killed  # type: ignore[method-assign]
            unmanage(store, acceptance=accepted)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert [phase for phase, _ in unmanaged(store)] == [Phase.INTENT]
    if is_ended:
        assert unmanage(store).status.notices == ("the store wasn't held",)
    else:
        log.others_clean()
        assert log.names() == names
        with pytest.raises(GateRefusedError):
            unmanage(store)
        assert not unmanage(store, acceptance=accepted).status.held
    *_, (intent, meant), (result, done) = unmanaged(store)
    assert (intent, result, meant) == (Phase.INTENT, Phase.RESULT, done)
    assert (done["person"], done["segments"]) == ("ann", count)


@pytest.mark.usefixtures("cleaned_today")
@pytest.mark.parametrize("place", ["in the store", *later("on the broker's disk", "gone")])
def test_no_place_of_a_lake_keeps_a_hold_from_being_ended(
    log: LiveLog, store: ManagedStore, tmp_path: Path, place: str
) -> None:
    hold(store)
    archive_sealed(store, "archived", archive_here)
    directory = log.broker.store / "lake" if place == "in the store" else tmp_path / "elsewhere"
    if place == "on the broker's disk":
        make_lakes(replace(store, lake=LakeConfig.local(directory)))
    assert store.live is not None
    lies_wrong = replace(
        store, lake=LakeConfig.local(directory), live=replace(store.live, allow_same_disk=False)
    )
    with pytest.raises(BadInputError, match="Nothing was changed"):
        hold(lies_wrong)
    expired = sum(base in log.sha256 for base in log.names())
    with opened(lies_wrong, only_gives_back=True) as context:
        with pytest.raises(GateRefusedError, match=f"--leave-unproven {expired} "):
            unmanage(context)
        assert not unmanage(context, acceptance=Acceptance(expired, "ann", "why")).status.held
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"
    assert not (log.broker.store / "lake").exists()


def test_a_second_manager_is_refused_until_the_first_has_gone(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    other = managed(log, tmp_path / "other")
    hold(store)
    before = log.mtimes()
    with pytest.raises(GateRefusedError, match="expected no other manager"):
        hold(other)
    assert not unmanage(other).status.held
    assert log.mtimes() == before
    unmanage(store)
    assert hold(other).status.held
    unmanage(other)


def test_a_slave_is_refused(log: LiveLog, store: ManagedStore) -> None:
    set_anything(log.broker, brokerRole="SLAVE")
    before = log.mtimes()
    try:
        with pytest.raises(BadInputError, match="expected a master, found a slave"):
            hold(store)
        with pytest.raises(BadInputError, match="expected a master, found a slave"):
            sense(store)
    finally:
        set_anything(log.broker, brokerRole="ASYNC_MASTER")
    assert log.mtimes() == before
    assert not (log.broker.store / NAME).exists()


def test_a_master_that_became_a_slave_is_neither_touched_nor_held(log: LiveLog, store: ManagedStore) -> None:
    hold(store)
    before = log.mtimes()
    set_anything(log.broker, brokerRole="SLAVE")
    try:
        broker = open_context(store).broker
        status = broker.hold.renew(now_ms() + 23 * HOUR_MS)
        assert not status.held
        assert [one.kind for one in status.disturbances] == [DriftKind.ROLE_CHANGED]
        with pytest.raises(GateRefusedError, match="found a slave"), broker.lock():
            pytest.fail("held a slave's store")
        assert log.mtimes() == before
    finally:
        set_anything(log.broker, brokerRole="ASYNC_MASTER")
    assert hold(store).status.held


def test_another_directory_is_refused(log: LiveLog, store: ManagedStore, tmp_path: Path) -> None:
    """A copy has the same messages, another store hasn't; no broker runs on either."""
    copy = tmp_path / "copy"
    shutil.copytree(log.broker.store, copy)
    before = file_hashes(copy)
    with pytest.raises(BadInputError, match=r"no process has the lock"):
        hold(replace(store, root=str(copy)))
    with pytest.raises(BadInputError, match=r"no process has the lock"):
        open_store(replace(store, root=str(copy))).snapshot(now_ms())
    for path in sorted((copy / "commitlog").iterdir())[1:]:
        path.unlink()
    with pytest.raises(BadInputError, match="whose log ends at"):
        hold(replace(store, root=str(copy)))
    assert file_hashes(copy).items() <= before.items()


def test_a_store_is_known_under_another_path_of_this_machine(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    """As in a container that mounts it elsewhere: the broker's own paths don't exist here."""
    mounted = tmp_path / "mounted"
    mounted.symlink_to(log.broker.store)
    (seen,) = open_store(replace(store, root=str(mounted))).snapshot(now_ms()).logs
    assert Path(seen.segments[0].facts.path).parent.samefile(mounted / "commitlog")
    assert hold(replace(store, root=str(mounted))).status.fence_offset == log.names()[0]
    assert not unmanage(store).status.held


def test_a_file_system_that_keeps_no_such_mtime_is_refused_and_left_as_it_was(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    """Later than ext4 and XFS can tell, which end in the years 2446 and 2486."""
    before, context = log.mtimes(), open_context(store)
    with pytest.raises(GateRefusedError, match="expected its file system to keep the mtime"):
        hold(managed(log, tmp_path, hold_hours=500 * 366 * 24))
    assert log.mtimes() == before
    assert load_state(hold_memory(context.journal, context.record.store_id)) is None
    assert not (log.broker.store / NAME).exists()
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"


def test_a_broker_for_which_no_file_is_young_enough_is_refused(log: LiveLog, store: ManagedStore) -> None:
    before = log.mtimes()
    log.broker.client.update_config({"fileReservedTime": "-100000"})
    with pytest.raises(GateRefusedError, match="expected fileReservedTime of 0 hours or more"):
        hold(store)
    assert log.mtimes() == before
    assert not (log.broker.store / NAME).exists()
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"


def test_a_broker_that_deletes_by_force_is_held_only_far_from_it(
    log: LiveLog, store: ManagedStore, tmp_path: Path
) -> None:
    asked = managed(log, tmp_path, may_change_settings=False)
    level = DiskUsage.of(log.broker.store).used_percent
    assert level is not None
    near = {"rocketmq.broker.diskSpaceCleanForciblyRatio": f"0.{level + MARGIN_PERCENT:02d}"}
    if level >= 30 - MARGIN_PERCENT:  # no broker takes a force level below 30
        with pytest.raises(GateRefusedError, match="Permit the hold to set it"):
            hold(replace(asked, overrides=near))
        assert not (log.broker.store / NAME).exists()
    status = hold(asked).status
    assert status.held
    assert "it deletes whatever is held" in " ".join(status.notices)
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"


@pytest.mark.again
@pytest.mark.parametrize(("version", "level"), [("4.9.7", 10), (None, 30)])
def test_the_force_level_that_a_broker_was_started_with_decides(
    version: str | None, level: int, tmp_path: Path, name_server_port: int
) -> None:
    started_with = ("-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.1",)
    with running_broker(
        tmp_path / "store",
        tmp_path,
        name_server_port,
        # Settings that 4.9 shows and doesn't read.
        {**SETTINGS, "diskSpaceCleanForciblyRatio": 85, "deleteFileBatchMax": 3},
        jvm_options=started_with,
        version=version,
    ) as broker:
        create_topic(broker.client)
        filled = LiveLog(broker)
        filled.fill(3)
        with pytest.raises(GateRefusedError, match=f"above {level} % the broker deletes whatever is held"):
            hold(managed(filled, tmp_path, may_change_settings=False))
        assert not (broker.store / NAME).exists()


class Killed(BaseException):
    """In place of a SIGKILL, whose every moment other tests try."""


class CutMemory:
    """A journal's memory whose process is killed as soon as so many saves are durable."""

    def __init__(self, memory: HoldMemory, saves: int) -> None:
        self._memory, self._left = memory, saves

    def load(self) -> Mapping[str, Any] | None:
        return self._memory.load()

    def of_others(self) -> Sequence[Mapping[str, Any]]:
        return self._memory.of_others()

    def record_drift(self, found: Sequence[Drift]) -> None:
        self._memory.record_drift(found)

    def save(self, state: Mapping[str, Any] | None) -> None:
        self._memory.save(state)
        self._left -= 1
        if self._left <= 0:
            raise Killed


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_what_a_killed_hold_did_is_known_and_put_back(log: LiveLog, store: ManagedStore, saves: int) -> None:
    mtimes, context = log.mtimes(), open_context(store)
    memory = hold_memory(context.journal, context.record.store_id)
    with pytest.raises(Killed):
        BROKER.open_store(settings_of(store), CutMemory(memory, saves)).hold.renew(now_ms())
    assert load_state(memory) is not None
    unmanage(store)
    assert log.mtimes() == mtimes
    assert log.broker.client.config().items() >= AS_AT_FIRST.items()
    assert load_state(memory) is None


@pytest.mark.again
def test_a_hold_survives_the_brokers_death_and_its_old_settings(
    log: LiveLog, store: ManagedStore, work: Path, name_server_port: int
) -> None:
    names = [base for base in log.names() if base in log.sha256]
    conf = work / "broker.conf"
    before = conf.read_bytes()
    hold(store)
    log.others_clean()
    # As if it had been mounted read-only: the broker's own file keeps what was set.
    conf.write_bytes(before)
    kinds = [one.kind for one in hold(store).status.disturbances]
    assert kinds == [DriftKind.SETTING_NOT_SAVED]
    assert hold(store).status.disturbances == ()  # it was said already

    log.broker.java.kill()
    start_again(log.broker, work, name_server_port, main_class=CLEANS_AT_ONCE)
    log.others_clean()
    assert log.names()[: len(names)] == names
    found = {one.kind for one in hold(store).status.disturbances}
    assert found >= {DriftKind.BROKER_RESTARTED, DriftKind.SETTING_CHANGED}
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "false"
    log.others_clean()
    assert log.names()[: len(names)] == names
    run = open_context(store).broker
    assert run.snapshot(now_ms()).logs[0].min_offset == names[0]
    assert run.plan(run.snapshot(now_ms()), now_ms(), PlanRequest(manual=True)).to_delete
