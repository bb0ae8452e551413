"""An object store behind a network that fails: each fault ends in success, or in one clear error in time.

Nothing is deleted by a run that fails, and the next run has each segment in the lake exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy

from storage_engine.exceptions import CommitStateUnknownError, LakeUnavailableError
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.receipts import list_stores
from storage_engine.lake.restore import restore
from storage_engine.lake.verify import verify
from storage_engine.model.verification import VerifyLevel
from storage_engine.retention import steps
from storage_engine.retention.managed_store import ManagedStore
from tests.integration.fault_proxy import FaultKind, FaultProxy, fault_proxy
from tests.integration.lake_cycle import RUN, archive, contents, expired_store, finish, lake_on, plan
from tests.integration.object_store import ObjectStore

pytestmark = pytest.mark.integration

DATA = r"/data/store_id"
METADATA = r"/messages/metadata"
LIMIT_SECONDS = 120
"""Far more than any of these takes; without limits of ours a stalled request alone takes longer."""


class TwoAttempts(AwsStandardS3RetryStrategy):
    """What tests of lasting faults wait for."""

    def __init__(self) -> None:
        super().__init__(max_attempts=2)


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(object_store.port) as proxy:
        yield proxy


@pytest.fixture
def planned(
    object_store: ObjectStore, proxy: FaultProxy, store_copy: Callable[[str], Path], tmp_path: Path
) -> ManagedStore:
    """A store with a plan to delete two segments, and its lake behind the proxy."""
    properties = object_store.properties(port=proxy.port)
    store = expired_store(store_copy("clean-stop"), tmp_path, lake_on(properties, tmp_path))
    plan(store, max_segments=2)
    return store


def hasty(store: ManagedStore) -> ManagedStore:
    """The same, with less patience for a store that doesn't come back."""
    impl = f"{TwoAttempts.__module__}.{TwoAttempts.__qualname__}"
    return replace(store, lake=store.lake.with_properties({"s3.retry-strategy-impl": impl}))


@pytest.mark.parametrize(
    "faults",
    [
        [
            (FaultKind.SLOW_DOWN, r"^(PUT|POST)", 2),
            (FaultKind.CUT_ANSWER, rf"^GET .*{DATA}", 1),
            (FaultKind.SERVER_ERROR, rf"^PUT .*{METADATA}", 2),
        ],
        [
            (FaultKind.CUT_REQUEST, rf"^PUT .*{DATA}", 1),
            (FaultKind.CUT_ANSWER, rf"^PUT .*{DATA}", 1),
            (FaultKind.SLOW_DOWN, rf"^GET .*{DATA}", 2),
            (FaultKind.LATE, rf"^PUT .*{METADATA}", 1),
        ],
        [(FaultKind.STALL, rf"^PUT .*{DATA}", 1)],
    ],
    ids=["overload", "cuts", "stall"],
)
def test_what_passes_is_survived_by_asking_again(
    planned: ManagedStore,
    proxy: FaultProxy,
    tmp_path: Path,
    faults: list[tuple[FaultKind, str, int]],
) -> None:
    before = contents(Path(planned.root))
    injected = [proxy.fail(*fault) for fault in faults]
    archive(planned)
    assert len(finish(planned, before, tmp_path / "restored")) == 2
    assert [fault.hits for fault in injected] == [fault.times for fault in injected]


@pytest.mark.parametrize(
    ("kind", "request_pattern"),
    [
        (FaultKind.SLOW_DOWN, rf"^(PUT|POST) .*{DATA}"),
        (FaultKind.CUT_REQUEST, rf"^PUT .*{METADATA}"),
        (FaultKind.CUT_ANSWER, r"^POST .*/segments/metadata.*uploadId="),
        (FaultKind.STALL, r"."),
    ],
    ids=lambda value: value.name if isinstance(value, FaultKind) else None,
)
def test_what_lasts_ends_in_one_clear_error_and_the_next_run_completes(
    planned: ManagedStore, proxy: FaultProxy, tmp_path: Path, kind: FaultKind, request_pattern: str
) -> None:
    before = contents(Path(planned.root))
    fault = proxy.fail(kind, request_pattern)
    _fails_in_time(lambda: archive(hasty(planned)))
    assert fault.hits
    assert contents(Path(planned.root)) == before
    proxy.faults.clear()
    archive(planned)
    assert len(finish(planned, before, tmp_path / "restored")) == 2


def test_a_store_that_refuses_connections_is_one_clear_error_at_every_step(
    planned: ManagedStore, proxy: FaultProxy, object_store: ObjectStore, tmp_path: Path
) -> None:
    before = contents(Path(planned.root))
    archive(planned)
    lake = open_lake(hasty(planned).lake)
    (summary,) = list_stores(lake)
    proxy.close()
    _fails_in_time(lambda: archive(hasty(planned)))
    _fails_in_time(lambda: steps.release(hasty(planned), RUN))
    _fails_in_time(lambda: verify(lake, VerifyLevel.BYTES))
    _fails_in_time(lambda: restore(lake, summary.store_id, tmp_path / "nothing"))
    assert not list((tmp_path / "nothing").rglob("*.[0-9]*"))
    assert contents(Path(planned.root)) == before


def test_reading_back_fails_clearly_while_data_files_are_out_of_reach(
    planned: ManagedStore, proxy: FaultProxy, tmp_path: Path
) -> None:
    before = contents(Path(planned.root))
    archive(planned)
    lake = open_lake(hasty(planned).lake)
    (summary,) = list_stores(lake)
    proxy.fail(FaultKind.CUT_ANSWER, rf"^(GET|HEAD) .*{DATA}")
    _fails_in_time(lambda: steps.release(hasty(planned), RUN))
    _fails_in_time(lambda: restore(lake, summary.store_id, tmp_path / "restored"))
    assert contents(Path(planned.root)) == before
    proxy.faults.clear()
    finish(planned, before, tmp_path / "restored-later")


def _fails_in_time(attempt: Callable[[], object]) -> None:
    started = time.monotonic()
    with pytest.raises((LakeUnavailableError, CommitStateUnknownError)):
        attempt()
    assert time.monotonic() - started < LIMIT_SECONDS
