"""What no lake has of a log whose topic is no more is told by the log's identity, not by its name."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage_engine.lake.move.making import make_lake
from storage_engine.model.hold import Drift, DriftKind, HoldStatus
from storage_engine.model.settings.policy import ArchiveMode, Policy
from storage_engine.retention import steps
from storage_engine.retention.hold.holding import alarms_of, with_lake_notes
from storage_engine.retention.store.context import opened
from storage_engine.retention.store.managed_store import ManagedStore
from tests.kafka.made_node import CLUSTER, MadeNode, batch_of

pytestmark = pytest.mark.slow

LOG = "orders-0"


@dataclass
class Remade:
    """A node whose topic was archived up to offset 4, and made again since.

    :param drift: of the topic, which had offsets [0, 9).
    """

    node: MadeNode
    store: ManagedStore
    drift: Drift

    @property
    def lake(self) -> Path:
        return Path(self.store.report_dir).parent / "lake"

    def said(self, store: ManagedStore | None = None, **changes: object) -> str:
        """Return the one alarm."""
        found = replace(self.drift, **changes)  # type: ignore[arg-type]
        with opened(store or self.store) as context:
            (alarm,) = alarms_of(context, HoldStatus(held=False, disturbances=(found,)))
        return alarm


def add(node: MadeNode, active: int = 4) -> None:
    node.add(LOG, {base: [batch_of(base)] for base in range(0, active + 1, 2)})


def archive(store: ManagedStore) -> None:
    steps.archive_sealed(
        store, "ahead", lambda jobs: steps.archive(store, "ahead", jobs), budget_bytes=1 << 20
    )


@pytest.fixture
def remade(tmp_path: Path) -> Remade:
    node = MadeNode(tmp_path / "node")
    add(node)
    store = ManagedStore.local("node", str(node.write()), tmp_path, broker="kafka")
    make_lake(store.lake, "kafka")
    archive(store)
    log_id = f"{CLUSTER}/{(node.directories[0] / LOG / 'partition.metadata').read_text().split()[-1]}/0"
    shutil.rmtree(node.directories[0] / LOG)
    node.topic_ids["orders"] = uuid.uuid4()
    add(node)
    node.write()
    return Remade(
        node, store, Drift(DriftKind.TOPIC_REPLACED, "it was made again.", LOG, 0, 9, log_id=log_id)
    )


def test_what_no_lake_has_of_it_is_said(remade: Remade) -> None:
    assert remade.said() == ("topic-replaced: it was made again. No lake has offsets [4, 9) of it.")
    assert "A lake has all of these." in remade.said(start_offset=1, end_offset=4)


def test_another_log_of_the_name_is_not_it(remade: Remade) -> None:
    other = f"{CLUSTER}/AAAAAAAAAAAAAAAAAAAABw/0"
    assert "No lake has offsets [0, 9) of it." in remade.said(log_id=other)


def test_a_lake_that_cannot_be_asked_leaves_it_unknown(remade: Remade) -> None:
    shutil.rmtree(remade.lake)
    alarm = remade.said()
    assert "Whether a lake has offsets [0, 9) is unknown, as the lake at " in alarm
    assert "No lake has" not in alarm


def test_a_data_file_that_is_damaged_proves_nothing(remade: Remade) -> None:
    (first, *_) = sorted(remade.lake.rglob("*orders-0*.parquet"))
    first.write_bytes(first.read_bytes()[:-1])
    assert "No lake has offsets [0, 2), [4, 9) of it." in remade.said()


def test_where_nothing_is_archived_that_is_said(remade: Remade) -> None:
    store = replace(remade.store, policy=Policy(archive=ArchiveMode.OFF))
    assert "nothing is archived (archive: off)" in remade.said(store)


def test_it_is_said_once(remade: Remade) -> None:
    with opened(remade.store) as context:
        status = HoldStatus(held=False, disturbances=(remade.drift,))
        once = with_lake_notes(context, status)
        assert with_lake_notes(context, once) == once
        assert alarms_of(context, once) == alarms_of(context, status)
