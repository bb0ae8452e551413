"""Each file beside the log in each state it may be found in, against each command that reads it.

Its policy decides, or what it would tell is unknown: that ends no job that can do without it, and permits no
deletion that rests on it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.services.command_line import Outcome

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
    path.write_bytes(b'{"offsetTable":[7],"topicConfigTable":7}' if path.suffix == ".json" else b"99\n9\n")


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(_bytes_of(path))
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b'{"offsetTable":{"t@g":{0:1}}}'


FAULTS: dict[str, Fault] = {
    fault.__name__.strip("_"): fault
    for fault in (_missing, _empty, _cut, _nuls, _with_a_tail, _of_another_version, _directory, _link)
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
    is_told = name in WHO_CONSUMES and fault not in NOTHING_TOLD
    assert (str(store / name) in cli("lag", store).out.replace("\n", "")) == is_told
    _check_ended(cli("archive", store, "--lake", lake), store / name)


@pytest.mark.parametrize("policy", ["ignore", "warn", "block"])
@pytest.mark.parametrize(
    ("name", "fault"),
    _cases(ROCKETMQ, ("config/consumerOffset.json", "nuls"), ("config/topics.json", "nuls")),
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
