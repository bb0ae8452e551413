"""A store whose broker deletes, preallocates and writes at the very calls that read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_engine.core.extras import QUALITY
from storage_engine.cycle import CLEANUP, Cleanup, archive, archive_here, plan, report
from storage_engine.exceptions import StorageEngineError
from storage_engine.journal.journal import Journal, Run, Step
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import list_stores, receipts
from storage_engine.model.plan import PlanRequest
from storage_engine.model.store import SegmentId
from storage_engine.retention.archive import archiving, sealed
from storage_engine.retention.archive.archivable import Listed, list_segments
from storage_engine.retention.archive.archiving import Planned, planned_segments
from storage_engine.retention.archive.sealed import archive_sealed
from storage_engine.retention.proof.history import releases
from storage_engine.retention.ranges.drift import recorded_gone
from storage_engine.retention.report.report import Fate, build_report
from storage_engine.retention.steps import recorded_plan
from storage_engine.retention.store.context import Context, Locked
from storage_engine.retention.store.managed_store import ManagedStore
from tests.aging import aging, unrecorded
from tests.extras import take_away
from tests.fixture_stores import unpack
from tests.rounds import rounds
from tests.services.command_line import run_command

pytestmark = pytest.mark.timeout(7_200)

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


@settings(max_examples=rounds("STORAGE_ENGINE_AGING", 2, 200), deadline=None, derandomize=True)
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
    begins: list[int] = []

    def list_and_note(context: Context) -> Listed:
        listing = list_segments(context)
        begins.extend(log.min_offset for log in listing.snapshot.logs)
        return listing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed, "list_segments", list_and_note)
        with aging(root, todo):
            archived = archive_sealed(store, "aging", archive_here)
        # What went after the last look of one run is the next one's.
        archive_sealed(store, "again", archive_here)
    lake = open_lake(store.lake)
    (known,) = list_stores(lake)
    rows = {row.base_offset for row in receipts(lake, known.store_id)}
    # Of clean-stop the first seven segments are sealed.
    left = {int(path.name) for path in (root / "commitlog").iterdir()}
    assert {offset for offset in left if offset < 7 * MIB} <= rows
    assert all("LOST" in one.why for one in archived.refused)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    spans = [(one.start_offset, one.end_offset) for one, _ in recorded_gone(journal, record)]
    gone = set(range(begins[0], begins[-1], MIB)) - rows
    assert all(any(first <= offset < end for first, end in spans) for offset in gone)


@settings(max_examples=rounds("STORAGE_ENGINE_AGING", 1, 200), deadline=None, derandomize=True)
@given(schedule=SCHEDULE, is_archived=st.booleans())
@example(
    schedule=[(100, "expire"), (38, "expire_queue"), (92, "replace_config"), (38, "expire_queue")],
    is_archived=False,
)
@example(
    schedule=[(100, "replace_config"), (38, "expire_queue"), (92, "replace_config"), (38, "expire_queue")],
    is_archived=False,
)
def test_clean_goes_on_with_all_that_is_left(
    pristine: Path,
    tmp_path_factory: pytest.TempPathFactory,
    schedule: list[tuple[int, str]],
    is_archived: bool,
) -> None:
    root = Path(shutil.copytree(pristine, tmp_path_factory.mktemp("cleaned") / "store"))
    for path in (root / "commitlog").iterdir():
        # All have expired.
        os.utime(path, ns=(0, 0))
    store = ManagedStore.local("s", str(root), root.parent / "managed", time_zone="UTC")
    make_lake(store.lake)
    if is_archived:
        archive_sealed(store, "before", archive_here)
    cleanup = Cleanup(store, "clean", PlanRequest(manual=True))
    plan(cleanup)
    planned = {one.id: one for one in recorded_plan(store, "clean").to_delete}
    assert len(planned) == 7
    acts = StoreActs(root)
    locked: list[object] = []
    changing = Context.changing

    @contextmanager
    def noted(context: Context, now_ms: int) -> Iterator[Locked]:
        with changing(context, now_ms) as held:
            locked.append(held)
            yield held
            locked.pop()

    def act(name: str) -> None:
        # No broker runs while we have its lock.
        if not locked:
            getattr(acts, name)()

    looks: list[set[SegmentId]] = []

    def look(context: Context, run: Run) -> Planned:
        # Not by a call that counts.
        looks.append({key for key, one in planned.items() if not os.access(one.facts.path, os.F_OK)})
        return planned_segments(context, run)

    error, step = "", archive
    with (
        pytest.MonkeyPatch.context() as patch,
        aging(root, [(n, partial(act, name)) for n, name in schedule]),
    ):
        patch.setattr(Context, "changing", noted)
        take_away(patch, QUALITY)
        patch.setattr(archiving, "planned_segments", look)
        try:
            for step in CLEANUP[1:-1]:
                step(cleanup)
        except StorageEngineError as stopped:
            error = str(stopped)
    ended = report(cleanup)
    journal = Journal(store.journal_url)
    record = journal.find_store(store.real_root)
    assert record is not None
    events = journal.events(journal.run(record.store_id, "clean"), Step.RELEASE)
    released = {one.segment.id for one in releases(events)[0].values()}
    gone = {key for key, one in planned.items() if key not in released and not Path(one.facts.path).exists()}
    stopped_early = bool(error) and step is archive
    assert unrecorded(journal, record, looks[-1] if stopped_early else gone) == set()
    if stopped_early:
        # What went after its last look is the next run's.
        archive_sealed(store, "again", archive_here)
        assert unrecorded(journal, record, gone) == set()
    proven = {(row.log, row.base_offset) for row in receipts(open_lake(store.lake), record.store_id)}
    if gone - proven:
        # There is one log alone.
        assert "LOST" in error
        assert not released
    else:
        assert not error
        assert ended.ok, ended.errors
        assert not any(Path(one.facts.path).exists() for one in planned.values())
        fates = {(row.log, row.base_offset): row.fate for row in build_report(store, "clean").segments}
        assert {fates[key] for key in gone} <= {Fate.GONE_PROVEN}
