"""An object store that acknowledges what it doesn't do: any one request is lost, torn, delayed or repeated.

What comes of it is a lake that is whole, or one error of ours; what that error says is done, and then it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from storage_engine.exceptions import LakeMissingError, LakeUnavailableError, StorageEngineError
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.soundness.receipts import receipts
from storage_engine.lake.storage.small_files import forget_files
from storage_engine.lake.verify.verify import verify
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.fixture_stores import unpack
from tests.integration.fault_proxy import FaultKind, FaultProxy, fault_proxy
from tests.integration.lake_cycle import archive_some, check_exactly_once, lake_on
from tests.integration.object_store import ObjectStore
from tests.rounds import later, some

pytestmark = pytest.mark.integration

UNDONE = (FaultKind.LOST, FaultKind.TORN, FaultKind.DELAYED, FaultKind.REPEATED)

_numbers = count()


@pytest.fixture(scope="module")
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    with fault_proxy(object_store.port, object_store.objects) as proxy:
        yield proxy


@pytest.fixture
def new_lake(
    object_store: ObjectStore, proxy: FaultProxy, tmp_path: Path
) -> Iterator[Callable[[], LakeConfig]]:
    """Lakes of one test's own, behind the proxy."""

    def new() -> LakeConfig:
        work = tmp_path / f"lake-{next(_numbers)}"
        return lake_on(object_store.properties(port=proxy.port), work)

    yield new
    proxy.faults.clear()
    proxy.settle()


def job(config: LakeConfig, root: Path) -> None:
    """Make a lake, and archive two segments by two commits."""
    make_lake(config)
    archive_some(config, root, 0, 1)
    archive_some(config, root, 0, 2)


def check(config: LakeConfig) -> None:
    """The lake has both segments, each once, by every byte."""
    lake = open_lake(config)
    assert len(receipts(lake, "s")) == 2
    (report,) = verify(lake, VerifyLevel.BYTES)
    assert (report.overall, report.findings) == (Status.OK, ())
    check_exactly_once(lake)


def cure(config: LakeConfig, error: StorageEngineError) -> str:
    """Do what an error says, and return it. Whatever it is, running again comes after it."""
    said = str(error)
    if "lake rebuild" in said and not isinstance(error, LakeMissingError):
        rebuild(config, {})
        return "rebuild"
    if "lake relocate" in said:
        relocate(config)
        return "relocate"
    assert re.search(r"un (\S+ ){0,2}again", said) or isinstance(error, LakeMissingError), said
    return "run again"


def go_on(config: LakeConfig, root: Path) -> list[str]:
    """Run the job, and after an error what it says, until the lake is whole.

    :return: the cures.
    """
    cures: list[str] = []
    for _ in range(4):
        try:
            job(config, root)
            check(config)
            return cures
        except StorageEngineError as error:
            cures.append(cure(config, error))
    raise AssertionError(cures)


STRONGEST = {
    "the first metadata of a new lake": r"^(PUT|POST) .*/segments/metadata/00000-.*\.json",
    "the file of receipts": r"^(PUT|POST) .*/segments/data/",
    "a manifest list": r"^(PUT|POST) .*/messages/metadata/snap-",
    "the metadata of a commit": r"^(PUT|POST) .*/segments/metadata/00001-.*\.json",
}


@pytest.mark.again
@pytest.mark.parametrize("kind", [FaultKind.LOST, pytest.param(FaultKind.TORN, marks=pytest.mark.again)])
@pytest.mark.parametrize("what", some(list(STRONGEST), 1))
def test_what_was_acknowledged_and_is_not_there_is_one_error_and_running_again_is_the_cure(
    what: str,
    kind: FaultKind,
    new_lake: Callable[[], LakeConfig],
    proxy: FaultProxy,
    store_copy: Callable[[str], Path],
) -> None:
    config, root = new_lake(), store_copy("clean-stop")
    # A file is sent by one request or, as PyArrow likes it, by three: the last of them counts.
    fault = proxy.fail(kind, rf"{STRONGEST[what]}[^?]*(\?uploadId=[^&]*)?$", 1)
    with pytest.raises(LakeUnavailableError, match=r"acknowledged a file that it doesn't have.*Run again"):
        job(config, root)
    assert fault.hits == 1
    assert go_on(config, root) == []


@pytest.mark.again
@pytest.mark.parametrize("damage", ["lost", pytest.param("torn", marks=pytest.mark.again)])
@pytest.mark.parametrize("pattern", ["*/segments/metadata/*.json", *later("*/segments/metadata/snap-*.avro")])
def test_what_is_lost_later_is_told_with_the_rebuild_that_helps(
    pattern: str,
    damage: str,
    new_lake: Callable[[], LakeConfig],
    object_store: ObjectStore,
    store_copy: Callable[[str], Path],
) -> None:
    config, root = new_lake(), store_copy("clean-stop")
    job(config, root)
    place = object_store.objects / "lake" / "warehouse" / config.properties["warehouse"].rpartition("/")[2]
    newest = max(place.rglob(pattern), key=lambda path: path.stat().st_mtime_ns)
    if damage == "lost":
        newest.unlink()
    else:
        newest.write_bytes(newest.read_bytes()[:-100])
    forget_files()
    assert go_on(config, root) == ["rebuild"]


PARTS = 25


@pytest.fixture(scope="module")
def requests(
    object_store: ObjectStore, proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ...]:
    """What the job asks of the object store, in order."""
    before = len(proxy.requests)
    config = lake_on(object_store.properties(port=proxy.port), tmp_path_factory.mktemp("whole"))
    job(config, unpack("clean-stop", tmp_path_factory.mktemp("store") / "s"))
    return tuple(proxy.requests[before:])


@pytest.mark.again
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", UNDONE, ids=lambda kind: kind.name)
def test_any_one_request_may_be_lost_torn_delayed_or_repeated(
    kind: FaultKind,
    part: int,
    new_lake: Callable[[], LakeConfig],
    proxy: FaultProxy,
    requests: tuple[str, ...],
    store_copy: Callable[[str], Path],
) -> None:
    root = store_copy("clean-stop")
    for number in range(part, len(requests), PARTS):
        if kind in (FaultKind.DELAYED, FaultKind.REPEATED) and requests[number].startswith(("GET", "HEAD")):
            continue
        config = new_lake()
        proxy.faults.clear()
        fault = proxy.fail(kind, ".", 1, after=number)
        try:
            go_on(config, root)
            proxy.settle()
            check(config)
        except BaseException as error:
            error.add_note(f"{kind.name} of request {number}, about {requests[number]}")
            raise
        assert fault.hits == 1
