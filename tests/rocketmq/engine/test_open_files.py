"""A log of more files than a process may usually have open."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError
from storage_engine.rocketmq.engine.append.append import NewMessage, PutStatus
from storage_engine.rocketmq.engine.message_store import open_store
from storage_engine.rocketmq.engine.recover_on_demand import recover_store
from storage_engine.rocketmq.format.broker_config import BrokerConfig
from tests.rocketmq.engine.scenarios import write_conf

FILES = 30
MESSAGE = NewMessage("orders", bytes(2500))


def open_now() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def few_open_files() -> Iterator[int]:
    """Let this process have fewer files open than the log has, unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = open_now() + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def many_files(tmp_path: Path) -> BrokerConfig:
    return write_conf(tmp_path / "conf", tmp_path / "store", mappedFileSizeCommitLog=4096)


def test_a_log_of_many_files_is_written_and_opened(few_open_files: int, tmp_path: Path) -> None:
    config = many_files(tmp_path)
    with open_store(config) as store:
        assert {store.put(MESSAGE).status for _ in range(FILES)} == {PutStatus.PUT_OK}
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few_open_files, hard))
    assert recover_store(config, dry_run=True, cut_messages=False).missing_messages == 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (few_open_files, hard))
    with open_store(config) as store:
        assert len(store.files.files) >= FILES
        assert store.put(MESSAGE).status is PutStatus.PUT_OK


def test_where_the_system_allows_too_few_that_is_said_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = many_files(tmp_path)
    with open_store(config) as store:
        for _ in range(FILES):
            store.put(MESSAGE)
    before = open_now()
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 560))
    said = f"572 open files for {FILES} files of the log, found 560"
    with pytest.raises(BadInputError, match=said), open_store(config):
        pass
    with pytest.raises(BadInputError, match=said):
        recover_store(config, dry_run=True, cut_messages=False)
    assert open_now() == before
