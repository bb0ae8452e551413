"""A store whose settings name a running broker is only opened by a broker that is managed while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY
from storage_engine.exceptions import BadInputError
from storage_engine.model.broker.live import LiveBroker
from storage_engine.retention.store.brokers import open_store, open_to_look
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.retention.conftest import Managed
from tests.services import toy


@pytest.mark.parametrize("opens", [open_store, open_to_look])
def test_a_broker_that_has_to_be_stopped_is_not_managed_while_it_runs(
    opens: Callable[[ManagedStore], object], tmp_path: Path
) -> None:
    toy.make_store(tmp_path / "store")
    with toy.registered(tmp_path / "broker"):
        assert opens(toy.managed(tmp_path))
        with pytest.raises(
            BadInputError, match=r"managed while it runs, found .*\. Nothing was changed\. Stop"
        ):
            opens(toy.managed(tmp_path, live=LiveBroker("10.0.0.1:9")))


def test_a_step_takes_from_others_what_older_releases_let_them_write(managed: Managed) -> None:
    store = managed()
    with opened(store):
        pass
    own = Path(store.root) / DIRECTORY
    own.mkdir(exist_ok=True)
    own.chmod(0o777)
    with opened(store):
        assert own.stat().st_mode & 0o002 == 0
