"""A broker that fails while its store is held or released: said clearly and soon, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from storage_engine.exceptions import BrokerError, StoreLayoutError
from storage_engine.model.lag import LagSummary
from storage_engine.model.plan import PlanRequest
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import Acceptance, hold, unmanage
from storage_engine.rocketmq.hold.hold_state import HoldState
from storage_engine.rocketmq.live import connect, release
from storage_engine.rocketmq.remoting import command
from storage_engine.rocketmq.remoting.command import RemotingCommand
from storage_engine.rocketmq.remoting.connection import Access
from tests.integration.broker import CLEANS_AT_ONCE, running_broker
from tests.integration.live_state import State, bounded, refused, remembered
from tests.integration.live_store import SEGMENT_BYTES, SETTINGS, LiveLog, create_topic
from tests.integration.remoting_proxy import Fault, RemotingProxy
from tests.rounds import later, rounds

EVERY = rounds("STORAGE_ENGINE_BESIDE_FAULTS", 0, 1)
"""1: every kind of fault at every request; otherwise a few of them."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.usefixtures("cleans_at_once"),
    pytest.mark.timeout(7200 if EVERY else 600),
]

STRIDE = 1 if EVERY else 23
NO_LAG = LagSummary(0, 0, 0, 0, 0, (), 0)
WITH_TLS_TOO = ("-Dtls.server.mode=permissive",)


@pytest.fixture(autouse=True)
def hasty(proxy: RemotingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a broker a second while something fails; a healthy one may be slow."""

    def access(**settings: Any) -> Access:
        seconds = 60.0 if proxy.is_healthy else 1.0
        return Access(connect_timeout_seconds=seconds, request_timeout_seconds=seconds, **settings)

    monkeypatch.setattr(connect, "Access", access)
    monkeypatch.setattr(release, "UNANSWERED_SECONDS", 1.0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, name_server_port: int) -> Iterator[LiveLog]:
    work = tmp_path_factory.mktemp("beside")
    with running_broker(
        work / "store",
        work,
        name_server_port,
        SETTINGS,
        main_class=CLEANS_AT_ONCE,
        jvm_options=WITH_TLS_TOO,
    ) as broker:
        create_topic(broker.client)
        log = LiveLog(broker)
        log.fill(4)
        yield log


@pytest.fixture
def proxy(log: LiveLog) -> Iterator[RemotingProxy]:
    log.wait_until_idle()  # the test before may have had it delete
    with RemotingProxy(log.broker.port) as proxy:
        yield proxy


def unremembered_changes(before: State, now: State, state: HoldState | None) -> list[str]:
    """What differs from how it was, and can't be put back by what the journal has."""
    originals = {one.base_offset: one.original_mtime_ns for one in state.touched} if state else {}
    settings = {one.key: one.original for one in state.changed_settings} if state else {}
    return [
        *(
            f"mtime of {base}"
            for base, mtime_ns in now.mtimes.items()
            if mtime_ns != before.mtimes[base] != originals.get(base)
        ),
        *(key for key, value in now.settings.items() if value != before.settings[key] != settings.get(key)),
    ]


def succeeds(proxy: RemotingProxy, work: Callable[[], object]) -> bool:
    """Whether it does; otherwise it says soon at which address the broker failed."""
    with bounded():
        try:
            work()
        except BrokerError as error:
            if proxy.address not in str(error):
                raise
            return False
    return True


def faults(position: int) -> list[Fault]:
    kinds = list(Fault)
    return kinds if EVERY else [kinds[position % len(kinds)]]


def fail_at_each_request(proxy: RemotingProxy, work: Callable[[Fault, int], bool], stride: int = 1) -> None:
    """From the first request on, then from the second, … until there are no more.

    :param work: says whether it came to its end, for want of a fault.
    """
    for position in count(0, stride):
        for fault in faults(position // stride):
            proxy.heal()
            # Bound now: requests come in threads of the proxy's.
            proxy.fault = lambda code, number, at=position, fault=fault: fault if number >= at else None
            if work(fault, position):
                return


@pytest.mark.again
def test_a_hold_that_fails_midway_can_be_gone_on_with_and_taken_back(
    log: LiveLog, proxy: RemotingProxy, tmp_path: Path
) -> None:
    store = log.managed(tmp_path / "managed", address=proxy.address)
    before = State.of(log)

    def hold_badly(fault: Fault, position: int) -> bool:
        where = f"{fault} from request {position} ({proxy.codes})"
        if succeeds(proxy, lambda: hold(store)):
            assert not proxy.faults, where
            return True
        now, state = State.of(log), remembered(store)
        assert (now.names, now.min_offset) == (before.names, before.min_offset), where
        assert unremembered_changes(before, now, state) == [], where
        if state is None:
            assert now == before, where
        return False

    fail_at_each_request(proxy, hold_badly)
    log.others_clean()
    assert State.of(log).names == before.names
    proxy.heal()
    assert not unmanage(store).status.held
    assert State.of(log) == before


@pytest.mark.again
def test_a_plan_that_fails_midway_has_changed_nothing_but_the_hold(
    log: LiveLog, proxy: RemotingProxy, tmp_path: Path
) -> None:
    store = log.managed(tmp_path / "managed", address=proxy.address)
    before = State.of(log)
    hold(store)
    held = State.of(log)

    def plan_badly(fault: Fault, position: int) -> bool:
        where = f"{fault} from request {position} ({proxy.codes})"
        request, run_key = PlanRequest(manual=True, max_segments=1), f"{fault} {position}"
        # What the broker has written down of its consumers counts where it can't be asked for that.
        if succeeds(proxy, lambda: steps.make_plan(store, run_key, request)) and not proxy.faults:
            return True
        assert State.of(log) == held, where
        return False

    fail_at_each_request(proxy, plan_badly)
    proxy.heal()
    unmanage(store)
    assert State.of(log) == before


@pytest.mark.again
def test_a_release_that_fails_midway_is_finished_exactly_by_the_next(
    log: LiveLog, proxy: RemotingProxy, tmp_path: Path
) -> None:
    store = log.managed(tmp_path / "managed", address=proxy.address)
    number = count()

    def release_badly(fault: Fault, position: int) -> bool:
        where, at = f"{fault} from request {position}", proxy.fault
        log.have_expired(3)
        proxy.heal()
        run = f"run-{next(number)}"
        planned = steps.make_plan(store, run, PlanRequest(manual=True, max_segments=1)).delete_offsets
        assert len(planned) == 1
        steps.archive(store, run, steps.archive_jobs(store, run))
        steps.record_lag(store, run, NO_LAG, [])
        names = log.names()
        proxy.codes.clear()
        proxy.fault = at
        ended = succeeds(proxy, lambda: steps.release(store, run)) and not proxy.faults
        assert log.names() in (names, names[1:]), where
        proxy.heal()
        released = steps.release(store, run)
        assert tuple(one.base_offset for one in released.deleted) == planned, where
        assert log.names() == names[1:], where
        assert log.broker.client.runtime_info().commitlog_min_offset == names[1], where
        return ended

    fail_at_each_request(proxy, release_badly, STRIDE)
    proxy.heal()
    names = log.names()
    log.others_clean()
    assert log.names() == names
    unmanage(store)
    assert {base: mtime for base, mtime in log.mtimes().items() if base in log.mtime_ns} == {
        base: mtime for base, mtime in log.mtime_ns.items() if base in log.names()
    }


@pytest.mark.parametrize("code", [command.DELETE_EXPIRED_COMMITLOG, *later(command.UPDATE_BROKER_CONFIG)])
@pytest.mark.parametrize("fault", [Fault.CUT_ANSWER, *later(Fault.CUT_REQUEST)])
def test_one_lost_request_or_answer_is_found_out_about(
    log: LiveLog,
    proxy: RemotingProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    fault: Fault,
) -> None:
    monkeypatch.setattr(connect, "Access", partial(Access, 60.0, 60.0))
    store = log.managed(tmp_path / "managed", address=proxy.address)
    log.have_expired(3)
    names = log.names()
    proxy.fault = lambda at, number: fault if at == code and not proxy.faults else None

    def run() -> tuple[int, ...]:
        steps.make_plan(store, "run", PlanRequest(manual=True, max_segments=1))
        steps.archive(store, "run", steps.archive_jobs(store, "run"))
        steps.record_lag(store, "run", NO_LAG, [])
        return tuple(one.base_offset for one in steps.release(store, "run").deleted)

    succeeds(proxy, run)
    assert proxy.faults == 1
    assert run() == (names[0],)
    assert log.names() == names[1:]
    unmanage(store)
    assert log.broker.client.config()["cleanFileForciblyEnable"] == "true"


def with_config(**changes: str | None) -> Callable[[RemotingCommand, RemotingCommand], RemotingCommand]:
    """A broker with other settings, or without some."""

    def rewrite(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
        if request.code != command.GET_BROKER_CONFIG:
            return answer
        config = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
        lines = (f"{key}={value}\n" for key, value in {**config, **changes}.items() if value is not None)
        return replace(answer, body="".join(lines).encode())

    return rewrite


def without_offsets(request: RemotingCommand, answer: RemotingCommand) -> RemotingCommand:
    """A broker whose runtime info lacks what this release's has."""
    if request.code != command.GET_BROKER_RUNTIME_INFO:
        return answer
    return replace(answer, body=answer.body.replace(b"commitLogMinOffset", b"minOffsetOfCommitLog"))


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        (with_config(brokerRole="SLAVE"), "expected a master, found a slave"),
        (with_config(storePathRootDir=None), "storePathRootDir"),
        (with_config(storeType="defaultRocksDB"), "RocksDB"),
        (with_config(enableDLegerCommitLog="true"), "DLedger"),
        (with_config(storePathCommitLog="/elsewhere/commitlog"), "/elsewhere/commitlog"),
        (without_offsets, "commitLogMinOffset"),
    ],
    ids=["slave", "no-root", "rocksdb", "dledger", "elsewhere", "other-version"],
)
def test_a_broker_that_can_not_be_managed_is_refused_with_the_reason(
    log: LiveLog, proxy: RemotingProxy, tmp_path: Path, rewrite: object, said: str
) -> None:
    proxy.rewrite = rewrite  # type: ignore[assignment]
    refused(log, log.managed(tmp_path / "managed", address=proxy.address), said)


def test_files_of_another_size_than_the_broker_says_are_held_and_not_planned(
    log: LiveLog, proxy: RemotingProxy, tmp_path: Path
) -> None:
    before = State.of(log)
    store = log.managed(tmp_path / "managed", address=proxy.address)
    proxy.rewrite = with_config(mappedFileSizeCommitLog="1073741824")
    with pytest.raises(StoreLayoutError, match=str(SEGMENT_BYTES)):
        steps.make_plan(store, "run", PlanRequest(manual=True))
    log.others_clean()
    assert State.of(log).names == before.names
    unmanage(store, acceptance=Acceptance(1, "a test", "what its broker says can not be judged by"))
    assert State.of(log) == before


@pytest.mark.parametrize(
    ("live", "said"),
    [
        ({"address": "127.0.0.1:1"}, "127.0.0.1:1, request 26 .*expected a connection"),
        ({"address": ""}, "expected the broker's address, or name servers"),
        ({"tls": True}, "expected a certificate"),
        ({"broker_name": "another"}, "another"),
        (
            {"address": "", "name_servers": "127.0.0.1:1", "broker_name": "broker-integration"},
            "127.0.0.1:1, request 106 .*expected a connection",
        ),
        (
            {"address": "", "name_servers": "127.0.0.1:{name_server}", "broker_name": "unheard-of"},
            "unheard-of",
        ),
    ],
    ids=["nobody-there", "no-address", "tls", "other-broker", "name-server-down", "unknown-name"],
)
def test_a_broker_that_can_not_be_reached_is_said_with_what_to_do(
    log: LiveLog, tmp_path: Path, name_server_port: int, live: dict[str, object], said: str
) -> None:
    settings = {
        key: value.format(name_server=name_server_port) if isinstance(value, str) else value
        for key, value in live.items()
    }
    refused(log, log.managed(tmp_path / "managed", **settings), said)


@pytest.mark.again
def test_the_store_of_another_broker_is_left_alone(
    log: LiveLog, tmp_path: Path, name_server_port: int
) -> None:
    with running_broker(tmp_path / "store", tmp_path, name_server_port, {**SETTINGS, "brokerName": "b"}) as b:
        create_topic(b.client)
        other = LiveLog(b)
        other.fill(2)
        refused(log, log.managed(tmp_path / "managed", address=b.client.address), "expected the store o[fn]")
        assert b.client.config()["cleanFileForciblyEnable"] == "true"
