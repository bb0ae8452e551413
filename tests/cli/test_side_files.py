"""Each file beside the log in each state it may be found in, against each command that reads it.

Its policy decides, or what it would tell is unknown: that ends no job that can do without it, and permits no
deletion that rests on it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.kafka.made_node import MadeNode
from tests.kafka.stopped_nodes import GOING, make_node
from tests.rounds import again_but
from tests.services.command_line import Outcome

pytestmark = pytest.mark.usefixtures("plainly")

Fault = Callable[[Path], object]


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    data = _bytes_of(path)
    path.write_bytes(data[: len(data) // 2])


def _nuls(path: Path) -> None:
    path.write_bytes(bytes(len(_bytes_of(path))))


def _with_a_tail(path: Path) -> None:
    path.write_bytes(_bytes_of(path) + b"\xff\x01}")


def _of_another_version(path: Path) -> None:
    tables = ("offsetTable", "topicConfigTable", "subscriptionGroupTable", "filterDataByTopic")
    content = json.dumps({table: [7] for table in tables}) if path.suffix == ".json" else "99\n9\n"
    path.write_text(content)


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(_bytes_of(path))
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)


def _loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b'{"offsetTable":{"t@g":{0:1}}}'


FAULTS: dict[str, Fault] = {
    fault.__name__.strip("_"): fault
    for fault in (
        _missing,
        _empty,
        _cut,
        _nuls,
        _with_a_tail,
        _of_another_version,
        _directory,
        _link,
        _loop,
        _pipe,
    )
}
NOTHING_TOLD = ("missing", "empty")
"""A broker that had nothing to write leaves a config file so."""

POSITIONS = ("config/consumerOffset.json", "config/lmqConsumerOffset.json")
WHO_CONSUMES = (*POSITIONS, "config/subscriptionGroup.json", "config/consumerFilter.json")
PENDING = ("config/delayOffset.json", "config/timercheck")
ROCKETMQ = (*WHO_CONSUMES, *PENDING, "config/topics.json", "checkpoint")


def _cases(paths: tuple[str, ...], *quick: tuple[str, str]) -> list[object]:
    """Return the whole product; what isn't quick is left to ``make test-all``."""
    rest = (case for case in product(paths, FAULTS) if case not in quick)
    return [*quick, *(pytest.param(*case, marks=pytest.mark.again) for case in rest)]


def _check_ended(outcome: Outcome, path: Path) -> None:
    assert "Traceback" not in outcome.err + outcome.out
    assert "Mend the package" not in outcome.err + outcome.out
    assert outcome.exit_code in (0, 1), (path, outcome)


@pytest.mark.parametrize(
    ("name", "fault"), _cases(ROCKETMQ, ("config/consumerOffset.json", "nuls"), ("checkpoint", "cut"))
)
def test_no_command_ends_by_a_file_beside_the_log(
    cli, store_copy, expire, lake: Path, tmp_path: Path, name: str, fault: str
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    _break(store / name, fault)
    for words in (("inspect",), ("plan", "--manual"), ("lag",), ("doctor",)):
        _check_ended(cli(*words, store), store / name)
    # Zeros are what a broker's timers begin with (TimerCheckpoint): all that they have is pending.
    is_told = fault not in NOTHING_TOLD and (name, fault) != ("config/timercheck", "nuls")
    if name in (*WHO_CONSUMES, *PENDING) and is_told:
        assert str(store / name) in cli("lag", store).out.replace("\n", "")
    _check_ended(cli("archive", store, "--lake", lake), store / name)


@pytest.mark.parametrize("policy", again_but(("ignore", "warn", "block"), "ignore", "block"))
@pytest.mark.parametrize(
    ("name", "fault"),
    _cases(ROCKETMQ, ("config/consumerOffset.json", "nuls")),
)
def test_the_lag_policy_decides_where_who_consumes_is_unknown(
    cli, store_copy, expire, lake: Path, name: str, fault: str, policy: str
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    _break(store / name, fault)
    words = ("--lake", lake, "--name", "s", "--manual", "--archive-policy", "off", "--lag-policy", policy)
    outcome = cli("clean", store, *words)
    _check_ended(outcome, store / name)
    left = len(list((store / "commitlog").iterdir()))
    if policy != "block":
        assert (outcome.exit_code, left) == (0, 1), outcome
    elif name in WHO_CONSUMES and fault not in NOTHING_TOLD:
        assert left == 8
        assert str(store / name) in (outcome.out + outcome.err).replace("\n", "")


@pytest.mark.parametrize(("name", "fault"), _cases((*PENDING, *POSITIONS), ("config/timercheck", "nuls")))
def test_the_pending_policy_alone_decides_where_what_is_pending_is_unknown(
    cli, store_copy, expire, lake: Path, name: str, fault: str
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    _break(store / name, fault)
    words = ("--name", "s", "--manual", "--archive-policy", "off", "--lag-policy", "ignore")
    outcome = cli("clean", store, "--lake", lake, *words, "--pending-policy", "block", "--json")
    _check_ended(outcome, store / name)
    unknown = [item for item in outcome.json["report"]["owed"] if item["error"]]
    assert len(list((store / "commitlog").iterdir())) == 8 or not unknown


QUEUE = "consumequeue/ledger_ordered/0/00000000000000006000"
"""One file of several."""


@pytest.mark.parametrize(("name", "fault"), _cases((QUEUE, "index"), (QUEUE, "cut"), ("index", "nuls")))
def test_what_depends_on_segments_and_cannot_be_read_stays(
    cli, store_copy, expire, lake: Path, name: str, fault: str
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    path = store / name if name == QUEUE else sorted((store / name).iterdir())[0]
    _break(path, fault)
    for words in (("inspect",), ("plan", "--manual"), ("lag",), ("doctor",)):
        _check_ended(cli(*words, store), path)
    words = ("--lake", lake, "--name", "s", "--manual", "--archive-policy", "off", "--lag-policy", "ignore")
    outcome = cli("clean", store, *words)
    _check_ended(outcome, path)
    assert len(list((store / "commitlog").iterdir())) == 1, outcome
    # Of an index file the header alone tells where it points.
    if fault == "empty" or (name == QUEUE and fault in ("cut", "missing")):
        said = (outcome.out + outcome.err).replace("\n", "")
        assert "dependents that can't be read stay: " in said
    if name == QUEUE and fault == "cut":
        assert f"lag in queue 0 of ledger_ordered isn't known: {path}" in cli("lag", store).out.replace(
            "\n", ""
        )


def test_plan_and_validation_agree_on_an_empty_queue_file_behind_one_that_is_not_full(
    cli, store_copy, expire, tmp_path: Path
) -> None:
    store = store_copy("clean-stop")
    expire(store)
    last = sorted((store / "consumequeue" / "orders" / "0").iterdir())[-1]
    size = last.stat().st_size
    last.with_name(f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    assert cli("plan", store, "--manual").exit_code == 0
    assert cli("validate", store, "--full", "--output", tmp_path / "out").exit_code == 0


def _break(path: Path, fault: str) -> None:
    path.with_name(f"{path.name}.bak").unlink(missing_ok=True)
    FAULTS[fault](path)


OF_A_LOG = (
    "partition.metadata",
    "leader-epoch-checkpoint",
    *(f"{base:020d}.{suffix}" for base in (0, 4) for suffix in ("index", "timeindex", "txnindex")),
    *(f"{base:020d}.snapshot" for base in (2, 6)),
)
OF_A_DIRECTORY = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "meta.properties",
    ".kafka_cleanshutdown",
)
LOOKS = (("plan",), ("lag",), ("inspect",), ("doctor",))


@pytest.mark.parametrize(
    ("name", "fault"), _cases(OF_A_LOG, ("partition.metadata", "nuls"), (f"{6:020d}.snapshot", "cut"))
)
def test_no_command_on_a_node_ends_by_a_file_of_one_log(cli, tmp_path: Path, name: str, fault: str) -> None:
    node = make_node(tmp_path / "node")
    node.settings["a"]["retention.ms"] = node.settings["b"]["retention.ms"] = "1000"
    properties = node.write()
    path = node.directories[0] / "a-0" / name
    _break(path, fault)
    for words in LOOKS:
        _check_ended(cli(*words, properties), path)
    decisions = cli("plan", properties, "--json").json["decisions"]
    reasons = [one["reason"] for one in decisions if one["segment"]["log"] == "b-0"]
    assert reasons == ["expired"] * GOING + ["active"]
    _check_cleans(cli, node, tmp_path / "lake", path)


@pytest.mark.parametrize(
    ("name", "fault"),
    _cases(OF_A_DIRECTORY, ("log-start-offset-checkpoint", "nuls"), ("meta.properties", "cut")),
)
def test_a_damaged_file_of_a_directory_keeps_what_it_has_and_nothing_else(
    cli, tmp_path: Path, name: str, fault: str
) -> None:
    lake, node = tmp_path / "lake", make_node(tmp_path / "node")
    node.settings["a"]["retention.ms"] = node.settings["b"]["retention.ms"] = "1000"
    properties = node.write()
    path = node.directories[0] / name
    _break(path, fault)
    assert cli("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    for words in (*LOOKS, ("archive", "--lake", lake)):
        _check_ended(cli(words[0], properties, *words[1:]), path)
    is_offline = name not in ("meta.properties", ".kafka_cleanshutdown") and fault not in NOTHING_TOLD
    # Bytes behind its last line are one more entry, which nobody asks for.
    is_offline |= name == "meta.properties" and fault not in ("missing", "with_a_tail")
    if not is_offline:
        return
    assert str(path) in cli("doctor", properties).out.replace("\n", "")
    _check_cleans(cli, node, lake, path)
    assert (node.directories[0] / "a-0" / f"{0:020d}.log").exists()


def _check_cleans(cli: Callable[..., Outcome], node: MadeNode, lake: Path, path: Path) -> None:
    """Check that what has expired of the log without a fault goes."""
    assert cli("init-lake", "--broker-type", "kafka", "--lake", lake).exit_code == 0
    asked = ("--lake", lake, "--name", "k", "--archive-policy", "off", "--lag-policy", "ignore")
    outcome = cli("clean", node.properties, *asked)
    _check_ended(outcome, path)
    assert not (node.directories[1] / "b-0" / f"{0:020d}.log").exists(), outcome
