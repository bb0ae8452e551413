"""Which brokers there are, and that nothing above the contract knows any of them."""

from __future__ import annotations

import errno
import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

import storage_engine
from storage_engine import brokers
from storage_engine.brokers import (
    broker_names,
    broker_of,
    default_broker,
    find_broker,
    store_around,
    store_called,
)
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.broker_store import BrokerStore
from storage_engine.model.broker.codec import offsets_count_bytes
from storage_engine.model.broker.kind import FORMER_MEMBERS, PARTS, Broker
from storage_engine.rocketmq import RocketMQ, RocketMQPlaces
from storage_engine.rocketmq.codec.codec import CODEC
from tests.conftest import StoreCopy
from tests.services.toy import PACKAGE as PACKAGE_OF_TOY
from tests.services.toy import REPOSITORY, installed, make_store

PACKAGE = Path(storage_engine.__file__).parent

BELOW = ("rocketmq", "project")
"""The broker's own package, and the demos, which run a real one."""

LINK = "get_provider_info.py"
"""Has the link to the broker's pages that Airflow shows."""


FAILING = """
from storage_engine.rocketmq import RocketMQ, RocketMQPlaces

class Failing(RocketMQ):
    name = "failing"

    class places(RocketMQPlaces):
        def store_around(self, path):
            1 / 0

    places = places()

BROKER = Failing()
"""


def points(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Have other entry points than those that are installed; several of one name by blanks."""
    found = {
        name: tuple(EntryPoint(name, value, brokers.GROUP) for value in several.split())
        for name, several in values.items()
    }
    brokers.forget()
    monkeypatch.setattr(brokers, "_read_entry_points", lambda: found)
    monkeypatch.setattr(brokers, "forget", lambda: None)


@pytest.fixture(autouse=True)
def _known_again() -> None:
    find_broker.cache_clear()
    default_broker.cache_clear()


def test_nothing_above_the_contract_names_a_broker() -> None:
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in BELOW
        and re.search("rocketmq", path.read_text(), re.IGNORECASE)
    }
    assert naming == {LINK}


def test_the_broker_that_comes_with_the_package_is_the_default() -> None:
    assert "rocketmq" in broker_names()
    assert isinstance(find_broker("rocketmq"), RocketMQ)
    assert find_broker("rocketmq").codec is CODEC
    assert default_broker() == "rocketmq"


def test_an_unknown_broker_is_one_clear_error() -> None:
    with pytest.raises(BadInputError, match=r"installed \(.*rocketmq.*\), found 'pulsar'. Nothing was"):
        find_broker("pulsar")
    with pytest.raises(BadInputError, match=r"found '../escape'"):
        find_broker("../escape")
    with pytest.raises(BadInputError, match="found 'retention'"):
        find_broker("retention")


def test_what_is_no_broker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, text="storage_engine.brokers:GROUP", other="storage_engine.rocketmq:BROKER")
    for name in ("text", "other"):
        with pytest.raises(BadInputError, match=f"entry point {name} = .*expected an instance of Broker"):
            find_broker(name)


def test_a_package_that_is_broken_is_named_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_broker.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.syspath_prepend(tmp_path)
    points(monkeypatch, broken="broken_broker:BROKER", rocketmq="storage_engine.rocketmq:BROKER")
    with pytest.raises(BadInputError, match=r"found RuntimeError: half installed.*uninstall"):
        find_broker("broken")
    assert default_broker() == "rocketmq"
    with pytest.raises(BadInputError, match="broken_broker"):
        broker_of(tmp_path)


@pytest.mark.parametrize("member", sorted(FORMER_MEMBERS))
@pytest.mark.parametrize("where", ["class", "instance"])
def test_a_package_of_an_older_contract_is_refused_by_what_it_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str, where: str
) -> None:
    within, later = (f"{member} = False", "") if where == "class" else ("pass", f"BROKER.{member} = False")
    text = f"from storage_engine.rocketmq import RocketMQ\nclass Older(RocketMQ):\n    {within}\n"
    (tmp_path / "older_broker.py").write_text(f"{text}BROKER = Older()\n{later}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "older_broker", raising=False)
    points(monkeypatch, older="older_broker:BROKER")
    now = re.escape(FORMER_MEMBERS[member])
    with pytest.raises(BadInputError, match=f"Older defines {member}, which is {now} since 0.2"):
        find_broker("older")


@pytest.mark.parametrize(
    ("part", "value"),
    [*((part, "object") for part in PARTS), ("topics", "kind.Topics"), ("places", "None"), ("words", "None")],
)
def test_a_kind_whose_part_is_another_thing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, value: str
) -> None:
    """Most easily a class where its object is meant: such as ``are_logs`` of that is always true."""
    (tmp_path / "other_broker.py").write_text(
        "from storage_engine.model.broker import kind\nfrom storage_engine.rocketmq import RocketMQ\n"
        f"class Other(RocketMQ):\n    name = 'other'\n    {part} = {value}\nBROKER = Other()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "other_broker", raising=False)
    points(monkeypatch, other="other_broker:BROKER")
    with pytest.raises(BadInputError, match=f"expected {part} to be an object of .*, found (<class|None)"):
        find_broker("other")


def test_a_broker_that_fails_or_ends_the_process_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_broker.py").write_text("raise SystemExit(3)")
    (tmp_path / "failing_broker.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    points(monkeypatch, ending="ending_broker:BROKER", failing="failing_broker:BROKER")
    with pytest.raises(BadInputError, match="found SystemExit: 3"):
        find_broker("ending")
    points(monkeypatch, failing="failing_broker:BROKER", rocketmq="storage_engine.rocketmq:BROKER")
    for ask in (broker_of, store_around):
        with pytest.raises(BadInputError, match=r"expected broker failing to say .* found ZeroDivisionError"):
            ask(tmp_path)
    # Another package's broker is no default, whatever it says.
    assert default_broker() == "rocketmq"


def test_a_place_that_may_not_be_looked_into_is_no_fault_of_a_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(self: RocketMQPlaces, path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(RocketMQPlaces, "store_around", refuse)
    with pytest.raises(BadInputError, match=f"^{tmp_path}: .* found Permission denied"):
        store_around(tmp_path)


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = "storage_engine.rocketmq:BROKER another:BROKER"
    points(monkeypatch, rocketmq=both)
    with pytest.raises(BadInputError, match="expected one package with a broker of that name, found 2"):
        find_broker("rocketmq")
    # The same package, in two places on the path.
    find_broker.cache_clear()
    points(monkeypatch, rocketmq="storage_engine.rocketmq:BROKER storage_engine.rocketmq:BROKER")
    assert find_broker("rocketmq").name == "rocketmq"


def test_without_any_the_package_is_to_be_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch)
    with pytest.raises(BadInputError, match="Install this package again"):
        default_broker()


def test_a_package_that_is_not_installed_but_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the executors of a cluster, which get this package as an archive."""
    points(monkeypatch)
    assert find_broker("rocketmq").name == "rocketmq"
    broken = ModuleType("storage_engine.broken")
    monkeypatch.setitem(sys.modules, "storage_engine.broken", broken)
    with pytest.raises(BadInputError, match="found 'broken'"):
        find_broker("broken")


@pytest.mark.slow
def test_whose_store_it_is_is_told_from_its_files(tmp_path: Path, store_copy: StoreCopy) -> None:
    make_store(tmp_path / "toy")
    rocketmq = store_copy("clean-stop")
    with installed(tmp_path):
        assert broker_of(tmp_path / "toy") == "toy"
        assert broker_of(rocketmq) == "rocketmq"
        assert broker_of(tmp_path / "nothing") == "rocketmq"
        assert store_around(tmp_path / "toy" / "access") == tmp_path / "toy"
        (rocketmq / "toy.store").touch()
        with pytest.raises(BadInputError, match="a store of rocketmq or toy"):
            broker_of(rocketmq)
    assert broker_of(tmp_path / "toy") == "rocketmq"


def test_the_page_on_adding_a_broker_quotes_all_of_the_toy() -> None:
    page = (REPOSITORY / "docs" / "add-a-broker.md").read_text()
    code = (PACKAGE_OF_TOY / "toy_broker.py").read_text()
    quoted = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert all(block.rstrip("\n") in code for block in quoted), quoted
    lines = {line for block in quoted for line in block.splitlines()}
    body = code[code.index("import fcntl") :].splitlines()
    assert [line for line in body if line.strip() and line not in lines] == []


@pytest.mark.parametrize("name", ["kafka", "rocketmq"])
def test_a_page_that_reads_no_segment_knows_whether_offsets_count_bytes(name: str) -> None:
    broker = find_broker(name)
    assert broker.rows.offsets_count_bytes is offsets_count_bytes(broker.codec)


def test_a_store_is_called_by_its_name_or_by_its_place() -> None:
    assert store_called("orders", "rocketmq", "/data/store") == "orders"
    assert store_called(None, "rocketmq", "/data/store") == "store"
    assert store_called("", "not installed", "/data/store") == "store"


def test_two_base_classes_have_no_more_members_than_a_stranger_can_read() -> None:
    """What only some brokers have is a part, with members of its own."""
    members = [*_members(Broker), *_members(BrokerStore)]
    assert len(members) <= 40, members


def _members(of: type) -> list[str]:
    return sorted(name for name in {*dir(of), *of.__annotations__} if not name.startswith("_"))
