"""A store whose broker deletes, preallocates and writes at the very calls that read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_engine.cycle import archive_here
from storage_engine.lake.catalog import open_lake
from storage_engine.lake.making import make_lake
from storage_engine.lake.receipts import list_stores, receipts
from storage_engine.retention.managed_store import ManagedStore
from storage_engine.retention.steps.sealed import archive_sealed
from tests.aging import aging
from tests.fixture_stores import unpack
from tests.rounds import rounds
from tests.services.command_line import run_command

MIB = 1 << 20
ACTS = ("expire", "expire_queue", "preallocate", "replace_config", "remove_index")
COMMANDS = ("archive", "plan", "doctor", "inspect", "lag", "validate")
SCHEDULE = st.lists(st.tuples(st.integers(0, 150), st.sampled_from(ACTS)), min_size=1, max_size=6)


class StoreActs:
    """What a running broker does to the files of its store."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def expire(self) -> None:
        """Unlink the oldest segment (MappedFileQueue#deleteExpiredFileByTime)."""
        first, *more = sorted((self._root / "commitlog").iterdir())
        if len(more) > 2:
            first.unlink()

    def expire_queue(self) -> None:
        """Unlink a queue's oldest file that isn't its last."""
        for queue in sorted((self._root / "consumequeue").glob("*/*")):
            first, *more = sorted(queue.iterdir())
            if more:
                first.unlink()
                return

    def preallocate(self) -> None:
        """Make the next segment (AllocateMappedFileService)."""
        last = max((self._root / "commitlog").iterdir())
        with (last.parent / f"{int(last.name) + MIB:020d}").open("wb") as file:
            file.truncate(MIB)

    def replace_config(self) -> None:
        """Write a config file anew (ConfigManager#persist)."""
        for path in (self._root / "config").glob("*.json"):
            new = path.with_name(f"{path.name}.tmp")
            new.write_bytes(path.read_bytes())
            new.rename(path)

    def remove_index(self) -> None:
        first, *more = sorted((self._root / "index").iterdir())
        if more:
            first.unlink()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("clean-stop", tmp_path_factory.mktemp("pristine") / "store")


@settings(max_examples=rounds("STORAGE_ENGINE_AGING", 3, 200), deadline=None, derandomize=True)
@given(
    schedule=SCHEDULE, command=st.sampled_from(("archive", "plan", "doctor", "inspect", "lag", "validate"))
)
def test_reading_goes_on_with_all_that_is_left(
    pristine: Path,
    tmp_path_factory: pytest.TempPathFactory,
    schedule: list[tuple[int, str]],
    command: str,
) -> None:
    root = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("aging") / "store"))
    acts = StoreActs(root)
    todo = [(after, getattr(acts, act)) for after, act in schedule]
    if command != "archive":
        words = ("--output", root.parent / "validation") if command == "validate" else ()
        with aging(root, todo):
            done = run_command(command, root, *words)
        assert "Traceback" not in done.err
        assert done.exit_code in (0, 1), done.out + done.err
        return
    store = ManagedStore.local("s", str(root), root.parent / "managed", time_zone="UTC")
    make_lake(store.lake)
    with aging(root, todo):
        archived = archive_sealed(store, "aging", archive_here)
    lake = open_lake(store.lake)
    (known,) = list_stores(lake)
    rows = {row.base_offset for row in receipts(lake, known.store_id)}
    # Of clean-stop the first seven segments are sealed.
    sealed = [path for path in (root / "commitlog").iterdir() if int(path.name) < 7 * MIB]
    assert {int(path.name) for path in sealed} <= rows
    assert all("LOST" in one.why for one in archived.refused)
