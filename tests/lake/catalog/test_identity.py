"""A lake is told from its copies, from an older state of itself, and from another lake in its place."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count, product
from pathlib import Path

import pytest
from pyarrow.fs import AwsStandardS3RetryStrategy
from pyiceberg.io.pyarrow import PyArrowFileIO

from storage_engine.exceptions import LakeIdentityError, LakeUnavailableError
from storage_engine.lake.archive import commit_retries
from storage_engine.lake.archive.archive import SegmentJob, archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.lake.catalog.identity import MARK_NAME, read_mark, table_around
from storage_engine.lake.catalog.writing import mark_commits
from storage_engine.lake.durable_io import local_path
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.soundness.receipts import receipts
from tests.lake.other_lakes import other_lake
from tests.stock_engine import set_properties

pytestmark = pytest.mark.slow

MakeJobs = Callable[..., tuple[SegmentJob, ...]]
Fingerprint = Callable[[Path], dict[str, str]]

COPY = "this is a plain copy of the lake there, or the lake was moved.*lake relocate"
COPIED_CATALOG = "this catalog is a copy, or the catalog was moved.*lake relocate"
OLDER = "the catalog was put back from an older copy.*lake rebuild"


@pytest.fixture
def archived(filled: Callable[[int], Lake]) -> Lake:
    return filled(1)


def cp(source: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def marks(lake: Lake) -> list[Path]:
    paths = [local_path(f"{table.location()}/{MARK_NAME}") for table in lake.tables()]
    return [path for path in paths if path is not None]


@pytest.fixture
def refused(tmp_path: Path, fingerprint: Fingerprint) -> Callable[[LakeConfig, str], None]:
    """A lake that is neither opened nor made, for this reason, and nothing anywhere changes by trying."""

    def check(config: LakeConfig, reason: str) -> None:
        before = fingerprint(tmp_path)
        for use in (open_lake, make_lake):
            with pytest.raises(LakeIdentityError, match=f"(?s){reason}"):
                use(config)
        assert fingerprint(tmp_path) == before

    return check


Refused = Callable[[LakeConfig, str], None]


class TestCopies:
    def test_a_copied_directory_is_no_lake(
        self, archived: Lake, tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, refused: Refused
    ) -> None:
        copy = LakeConfig.local(cp(tmp_path / "lake", tmp_path / "copy"))
        refused(copy, COPY)
        archive_all(archived, make_jobs(archived, segments[1]))
        refused(copy, COPY)

    def test_a_copied_catalog_does_not_lead_to_the_warehouse(
        self, archived: Lake, tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, refused: Refused
    ) -> None:
        catalog = tmp_path / "staging.db"
        shutil.copyfile(tmp_path / "lake" / "catalog.db", catalog)
        staging = other_lake(tmp_path / "staging", catalog, tmp_path / "lake" / "warehouse")
        refused(staging, COPIED_CATALOG)
        archive_all(archived, make_jobs(archived, segments[1]))
        refused(staging, COPIED_CATALOG)

    def test_an_empty_lake_is_told_from_its_copies_too(
        self, lake: Lake, tmp_path: Path, refused: Refused
    ) -> None:
        refused(LakeConfig.local(cp(tmp_path / "lake", tmp_path / "copy")), COPY)
        catalog = cp(tmp_path / "lake" / "catalog.db", tmp_path / "staging.db")
        refused(other_lake(tmp_path / "staging", catalog, tmp_path / "lake" / "warehouse"), COPIED_CATALOG)

    def test_another_way_to_the_lake_is_no_copy(self, archived: Lake, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "lake")
        (tmp_path / "warehouse").symlink_to(tmp_path / "lake" / "warehouse")
        assert receipts(open_lake(LakeConfig.local(tmp_path / "link")), "store-1")
        catalog = tmp_path / "lake" / "catalog.db"
        assert receipts(open_lake(other_lake(tmp_path / "o", catalog, tmp_path / "warehouse")), "store-1")


class TestOlderCatalogs:
    """The catalog was put back from a backup, as its file or its database can be."""

    @pytest.mark.parametrize("later", [pytest.param(1, marks=pytest.mark.again), 2])
    def test_a_catalog_of_so_many_runs_earlier_is_refused(
        self,
        later: int,
        archived: Lake,
        tmp_path: Path,
        segments: list[Path],
        make_jobs: MakeJobs,
        refused: Refused,
    ) -> None:
        catalog = tmp_path / "lake" / "catalog.db"
        backup = cp(catalog, tmp_path / "backup.db")
        for segment in segments[1 : 1 + later]:
            archive_all(archived, make_jobs(archived, segment))
        newest = cp(catalog, tmp_path / "newest.db")
        cp(backup, catalog)
        refused(archived.config, OLDER)
        # Through a lake that was opened before, too, nothing is committed.
        jobs = make_jobs(archived, segments[0], store_id="store-2")
        before = set((tmp_path / "lake").rglob("*.metadata.json"))
        with pytest.raises(LakeIdentityError, match=f"(?s){OLDER}"):
            archive_all(archived, jobs)
        assert set((tmp_path / "lake").rglob("*.metadata.json")) == before
        cp(newest, catalog)
        assert len(receipts(open_lake(archived.config), "store-1")) == 1 + later

    def test_neither_does_it_help_that_it_went_on_from_there(
        self, archived: Lake, tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, refused: Refused
    ) -> None:
        catalog = tmp_path / "lake" / "catalog.db"
        backup = cp(catalog, tmp_path / "backup.db")
        archive_all(archived, make_jobs(archived, segments[1]))
        cp(backup, catalog)
        for number in range(3):
            with archived.messages().transaction() as another_engine:
                another_engine.set_properties({"compacted": str(number)})
        refused(archived.config, OLDER)


class TestMarks:
    def test_a_lake_whose_mark_was_removed_is_refused(
        self, archived: Lake, tmp_path: Path, segments: list[Path], make_jobs: MakeJobs, refused: Refused
    ) -> None:
        for mark in marks(archived):
            content = mark.read_bytes()
            mark.unlink()
            refused(archived.config, f"found no file {MARK_NAME}.*lake relocate")
            with pytest.raises(LakeIdentityError, match=MARK_NAME):
                archive_all(archived, make_jobs(archived, segments[1]))
            assert not mark.exists()
            mark.write_bytes(content)
        assert open_lake(archived.config)

    def test_a_damaged_mark_says_nothing_and_is_left_as_it_is(
        self, archived: Lake, tmp_path: Path, fingerprint: Fingerprint
    ) -> None:
        damages = [b"", b"{", b"\xff\xfe\x00", b"[]", b"null", b'{"lake_id": 1}', b'{"unknown": "x"}']
        for mark, damage in product(marks(archived), damages):
            content = mark.read_bytes()
            mark.write_bytes(damage)
            before = fingerprint(tmp_path)
            for use in (open_lake, make_lake):
                with pytest.raises(LakeUnavailableError, match=r"expected a mark of storage-engine as JSON"):
                    use(archived.config)
            assert fingerprint(tmp_path) == before
            mark.write_bytes(content)

    def test_a_mark_that_is_one_commit_behind_is_no_contradiction(
        self, archived: Lake, segments: list[Path], make_jobs: MakeJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its writer was killed between the commit and the mark."""

        def die(_lake: Lake) -> None:
            raise KeyboardInterrupt

        before = [path.read_bytes() for path in marks(archived)]
        with monkeypatch.context() as patched:
            patched.setattr(commit_retries, "mark_commits", die)
            with pytest.raises(KeyboardInterrupt):
                archive_all(archived, make_jobs(archived, segments[1]))
        assert [path.read_bytes() for path in marks(archived)] == before
        lake = open_lake(archived.config)
        assert len(receipts(lake, "store-1")) == 2
        archive_all(lake, make_jobs(lake, segments[2]))
        assert [read_mark(table).metadata for table in lake.tables()] == [
            table.metadata_location.rpartition("/")[2] for table in lake.tables()
        ]

    def test_so_many_commits_of_others_that_the_log_has_forgotten_ours_are_none(
        self, archived: Lake, segments: list[Path], make_jobs: MakeJobs
    ) -> None:
        for table in archived.tables():
            name = table.name()[-1]
            set_properties(archived.config, {"write.metadata.previous-versions-max": "2"}, name)
            for number in range(3):
                set_properties(archived.config, {"maintained": str(number)}, name)
            table.refresh()
            known = {entry.metadata_file.rpartition("/")[2] for entry in table.metadata.metadata_log}
            assert read_mark(table).metadata not in known
        lake = open_lake(archived.config)
        archive_all(lake, make_jobs(lake, segments[1]))
        assert len(receipts(open_lake(archived.config), "store-1")) == 2

    @pytest.mark.again
    def test_a_lake_that_another_process_commits_to_can_always_be_opened(
        self, archived: Lake, segments: list[Path], tmp_path: Path
    ) -> None:
        script = tmp_path / "commits.py"
        script.write_text(_COMMITS)
        command = [sys.executable, str(script), str(tmp_path / "lake"), str(segments[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "began\n"
            seen, gives_up = set[str](), time.monotonic() + 120
            for opened in count(1):
                seen.add(open_lake(archived.config).segments().metadata_location)
                if opened >= 20 and (len(seen) > 3 or time.monotonic() > gives_up):
                    break
            said, _ = process.communicate("stop\n", timeout=120)
        assert process.returncode == 0
        # They met.
        assert int(said) > 3
        assert len(seen) > 3


_COMMITS = """
import select, sys
from pathlib import Path
from storage_engine.lake.archive.archive import archive_all, segment_jobs
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.lake.catalog.config import LakeConfig
from storage_engine.model.store import FileFacts, Segment, SegmentState

directory, path = sys.argv[1:]
lake = open_lake(LakeConfig.local(directory))
segment = Segment("commitlog", int(Path(path).name), FileFacts.of(path), SegmentState.SEALED)
count = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    archive_all(lake, segment_jobs(
        lake, [segment], store_id=f"other-{count}", lineage=0, broker="rocketmq", store_root="/store"
    ))
    if not count:
        print("began", flush=True)
    count += 1
print(count)
"""


class TestUnreachableIsNotMissing:
    @pytest.fixture
    def locked(self, archived: Lake, tmp_path: Path) -> Iterator[LakeConfig]:
        """Somebody has the catalog's file for a while."""
        file = tmp_path / "lake" / "catalog.db"
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        yield archived.config.with_properties({"uri": f"sqlite:///{file}?timeout=0.1"})
        holder.close()

    def test_a_locked_catalog(self, locked: LakeConfig, tmp_path: Path, fingerprint: Fingerprint) -> None:
        before = fingerprint(tmp_path)
        for use in (open_lake, make_lake):
            with pytest.raises(LakeUnavailableError, match="database is locked") as raised:
                use(locked)
            assert type(raised.value) is LakeUnavailableError
            assert "init-lake" not in str(raised.value)
        assert fingerprint(tmp_path) == before

    def test_a_catalog_server_that_is_down(self, tmp_path: Path) -> None:
        uri = "postgresql+psycopg://lake:secret@127.0.0.1:1/lake"
        config = LakeConfig("lake", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/w"})
        for use in (open_lake, make_lake):
            with pytest.raises(LakeUnavailableError, match="refused") as raised:
                use(config)
            assert type(raised.value) is LakeUnavailableError
            assert "init-lake" not in str(raised.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_catalog_file_that_cannot_be_looked_at(self, tmp_path: Path) -> None:
        uri = f"sqlite:///{tmp_path}/{'x' * 300}/catalog.db"
        config = LakeConfig("lake", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/w"})
        with pytest.raises(LakeUnavailableError, match="File name too long") as raised:
            open_lake(config)
        assert type(raised.value) is LakeUnavailableError


def test_a_mark_is_written_once_for_threads_that_open_at_one_moment(archived: Lake) -> None:
    """What two of them find contradicts neither."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                mark_commits(open_lake(archived.config))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


class Once(AwsStandardS3RetryStrategy):
    """Tries nothing again."""

    def __init__(self) -> None:
        super().__init__(max_attempts=1)


class _Refusing(BaseHTTPRequestHandler):
    """An object store that has one answer to everything."""

    status = 403

    def do_HEAD(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def bucket() -> Iterator[PyArrowFileIO]:
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield PyArrowFileIO(
        {
            "s3.endpoint": f"http://127.0.0.1:{server.server_port}",
            "s3.access-key-id": "a",
            "s3.secret-access-key": "b",
            "s3.region": "us-east-1",
            "s3.retry-strategy-impl": f"{__name__}.Once",
        }
    )
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [403, 404])
def test_around_what_may_not_be_seen_is_no_lake(
    bucket: PyArrowFileIO, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(_Refusing, "status", status)
    assert table_around(bucket, "s3://bucket/lake/storage_engine/segments", "storage_engine") is None


def test_a_bucket_that_does_not_answer_may_hold_a_lake_around(
    bucket: PyArrowFileIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Refusing, "status", 503)
    with pytest.raises(LakeUnavailableError, match="503"):
        table_around(bucket, "s3://bucket/lake/storage_engine/segments", "storage_engine")
