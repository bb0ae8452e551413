"""Go on from what the released package wrote: read it as it is, finish its runs, honour its decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.stores import unpack
from tests.rounds import again_but
from tests.services import released_state as old
from tests.services.command_line import Outcome, run_command
from tests.services.released import Kill, Released
from tests.services.released_state import MIB, RUN, State

pytestmark = pytest.mark.slow

StoreCopy = Callable[[str], Path]
Range = tuple[int, int, str]

MOMENTS = {
    "archived, not committed": Kill("archive_planned", "link", 1),
    "messages committed, no receipt": Kill("archive_planned", "mkdir", path="/segments/data"),
    "receipts committed, the journal not told": Kill("archive_planned", "commit", 3),
    "about to delete": Kill("release", "unlink"),
    "one deleted, the directory not flushed": Kill("release", "fsync", 1, path="/commitlog"),
    "one deleted, one to go": Kill("release", "unlink", 1),
    "queues half cleaned": Kill("clean_dependents", "unlink", 1),
    "done, not reported": Kill("finish", "commit"),
}
"""Of a run that deletes two segments."""

IN_A_COMMIT = {
    "of messages": Kill("archive_planned", "commit", 1),
    "of receipts": Kill("archive_planned", "commit", 2),
}
"""A table's new metadata is written, and its catalog still names the old."""


def done(*words: object) -> Outcome:
    """Run today's command, which has to end well."""
    outcome = run_command(*words)
    assert outcome.exit_code == 0, f"{words}: {outcome.out}{outcome.err}"
    return outcome


def verified(lake: Path, *store: object, level: str) -> list[Range]:
    """Verify with today's code, which must find nothing wrong; returns where every byte is."""
    (found,) = done("verify", *store, "--lake", lake, "--level", level, "--json").json["stores"]
    assert (found["overall"], found["findings"]) == ("OK", [])
    return [(row["start_offset"], row["end_offset"], row["where"]) for row in found["ranges"]]


def restored(lake: Path, target: Path, *words: object) -> dict[str, str]:
    """Restore with today's code; file name → SHA-256."""
    done("restore", "--lake", lake, "--to", target, *words)
    return {path.name: old.sha256(path) for path in (target / "commitlog").iterdir()}


@pytest.fixture
def state(store_copy: StoreCopy, tmp_path: Path) -> State:
    """Two sealed segments, and nothing done about them."""
    return old.expired(store_copy("edge-frames"), tmp_path / "lake")


@pytest.fixture(scope="module")
def read_only(released: Released, tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    """Seven sealed segments: a run deleted three, the others were archived; nobody may change it."""
    base = tmp_path_factory.mktemp("read-only")
    state = old.expired(unpack("clean-stop", base / "store"), base / "lake")
    old.clean(released, state, "first", 3)
    old.archive(released, state)
    before = state.files()
    yield state
    assert state.files() == before


class TestReadingNeedsNoTakeover:
    @pytest.mark.parametrize("level", again_but(["receipts", "files", "bytes"], "bytes"))
    def test_the_lake_is_verified(self, read_only: State, level: str) -> None:
        assert verified(read_only.lake, level=level) == [(0, 7 * MIB, "ARCHIVED")]

    def test_the_store_is_verified_against_the_lake(self, read_only: State) -> None:
        assert verified(read_only.lake, read_only.store, level="store") == [
            (0, 3 * MIB, "ARCHIVED"),
            (3 * MIB, 7 * MIB, "BOTH"),
            (7 * MIB, 7442667, "LOCAL"),
        ]

    def test_every_segment_comes_back_byte_for_byte(self, read_only: State, tmp_path: Path) -> None:
        assert restored(read_only.lake, tmp_path / "restored") == read_only.sealed

    def test_every_message_is_exported(
        self, read_only: State, tmp_path: Path, ground_truth: Callable[[str, str], list[dict[str, str]]]
    ) -> None:
        lines = tmp_path / "orders.jsonl"
        done("export", "--lake", read_only.lake, "--topic", "orders", "--to", lines, "--format", "jsonl")
        archived = [
            frame
            for frame in ground_truth("clean-stop", "commitlog")
            if frame.get("topic") == "orders" and frame["file"] in read_only.sealed
        ]
        assert len(lines.read_text().splitlines()) == len(archived) > 100

    def test_nothing_in_it_is_garbage(self, released: Released, state: State) -> None:
        old.archive(released, state)
        before = state.files()
        assert done("gc", "--lake", state.lake, "--json").json["garbage"] == []
        # It asks the lake's disk for the time with a small file of its own.
        assert state.files().items() >= before.items()

    def test_nothing_is_left_to_archive(self, read_only: State) -> None:
        lag = done("inspect", read_only.store, "--lake", read_only.lake, "--json").json["archive_lag"]
        assert (lag["segments"], lag["notes"]) == (0, [])

    def test_a_plan_is_shown(self, read_only: State) -> None:
        words = ("plan", read_only.store, "--lake", read_only.lake, "--manual", "--json")
        assert done(*words).json["delete_offsets"] == [n * MIB for n in (3, 4, 5, 6)]


class TestTakeover:
    def test_the_released_package_refuses_what_was_taken_over(self, released: Released, state: State) -> None:
        words = ("archive", state.store, "--lake", state.lake)
        released.cli(*words, "--budget", 1)
        done(*words)
        before = state.files()
        # The journal beside the lake is of a later version, too, and is opened first where one is needed.
        for command in (words, ("verify", "--lake", state.lake)):
            refused = released.cli(*command, exit_code=2)
            assert "Use the release of storage-engine that" in refused.err
        collected = released.cli("gc", "--lake", state.lake, "--delete", exit_code=2)
        assert "Use the release of storage-engine that made it, or a later one" in collected.err
        assert state.files() == before

    def test_a_store_whose_journal_is_lost_is_known_by_its_lake(
        self, released: Released, state: State
    ) -> None:
        old.archive(released, state)
        for file in state.lake.glob("journal.db*"):
            file.unlink()
        assert done("archive", state.store, "--lake", state.lake, "--json").json["archived"] == []
        assert verified(state.lake, state.store, level="store")[0] == (0, 2 * MIB, "BOTH")

    def test_a_lake_may_lie_where_its_description_says(
        self, released: Released, state: State, tmp_path: Path
    ) -> None:
        state.lake.mkdir()
        described = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
        (state.lake / "lake.json").write_text(json.dumps(described))
        words = ("archive", state.store, "--lake", state.lake)
        released.cli(*words, "--budget", 1)
        done(*words)
        assert verified(state.lake, level="bytes") == [(0, 2 * MIB, "ARCHIVED")]
        assert restored(state.lake, tmp_path / "restored") == state.sealed

    @pytest.mark.parametrize("table", again_but(["messages", "segments"], "segments"))
    def test_a_lake_that_was_half_made_is_made_whole(
        self, released: Released, state: State, table: str
    ) -> None:
        """Killed before the first or the second of its two tables."""
        moment = Kill("make_plan", "mkdir", path=f"/warehouse/storage_engine/{table}")
        released.killed_cli(moment, *old.clean_words(state))
        done("init-lake", "--lake", state.lake)
        done("archive", state.store, "--lake", state.lake)
        assert verified(state.lake, state.store, level="store")[0] == (0, 2 * MIB, "BOTH")


class TestRuns:
    def test_cleaning_goes_on_where_the_released_package_stopped(
        self, released: Released, state: State, tmp_path: Path
    ) -> None:
        old.clean(released, state, "first", 1)
        report = done(*old.clean_words(state, "second"), "--json").json["report"]
        assert [row["by_this_run"] for row in report["archived"]] == [True]
        assert state.there == [2 * MIB]
        assert verified(state.lake, level="bytes") == [(0, 2 * MIB, "ARCHIVED")]
        assert restored(state.lake, tmp_path / "all") == state.sealed

    @pytest.mark.again
    def test_what_was_archived_ahead_is_deleted_by_its_receipts(
        self, released: Released, state: State, tmp_path: Path
    ) -> None:
        old.archive(released, state)
        report = done(*old.clean_words(state), "--json").json["report"]
        assert [row["by_this_run"] for row in report["archived"]] == [False, False]
        assert state.there == [2 * MIB]
        assert restored(state.lake, tmp_path / "restored") == state.sealed

    @pytest.mark.again
    @pytest.mark.again
    def test_a_plan_that_was_only_made_is_carried_out(self, released: Released, state: State) -> None:
        digest = released.make_plan(state.store, state.lake, RUN, max_segments=1)
        report = done(*old.clean_words(state, max_segments=1), "--json").json["report"]
        assert (report["outcome"], report["plan_digest"]) == ("done", digest)
        assert state.there == [MIB, 2 * MIB]

    @pytest.mark.again
    @pytest.mark.again
    def test_a_finished_run_stays_as_it_ended(self, released: Released, state: State) -> None:
        old.clean(released, state, RUN, 1)
        report = done(*old.clean_words(state, max_segments=1), "--json").json["report"]
        assert [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"] == [0]
        assert state.there == [MIB, 2 * MIB]

    @pytest.mark.parametrize(
        "moment",
        again_but(MOMENTS, "one deleted, the directory not flushed"),
    )
    def test_a_killed_run_is_finished_by_its_key(
        self, released: Released, state: State, tmp_path: Path, moment: str
    ) -> None:
        digest = old.kill(released, state, MOMENTS[moment])
        assert state.lost(tmp_path / "after-the-kill") == []
        report = done(*old.clean_words(state), "--json").json["report"]
        assert (report["outcome"], report["plan_digest"], report["run_key"]) == ("done", digest, RUN)
        assert [row["base_offset"] for row in report["segments"] if row["fate"] == "deleted"] == [0, MIB]
        assert state.there == [2 * MIB]
        assert restored(state.lake, tmp_path / "restored") == state.sealed
        ranges = verified(state.lake, state.store, level="store")
        assert ranges[0] == (0, 2 * MIB, "ARCHIVED")

    @pytest.mark.again
    @pytest.mark.parametrize("table", again_but(IN_A_COMMIT, "of receipts"))
    def test_a_run_killed_in_a_commit_is_finished_once_its_lake_is_rebuilt(
        self, released: Released, state: State, tmp_path: Path, table: str
    ) -> None:
        """What it leaves looks like a catalog that was put back from an older copy."""
        old.kill(released, state, IN_A_COMMIT[table])
        refused = run_command(*old.clean_words(state))
        assert (refused.exit_code, "storage-engine lake rebuild" in refused.err) == (1, True)
        assert state.lost(tmp_path / "refused") == []
        done("lake", "rebuild", "--lake", state.lake)
        done(*old.clean_words(state))
        assert state.lost(tmp_path / "finished") == []

    def test_archiving_that_was_killed_is_done_again(
        self, released: Released, state: State, tmp_path: Path
    ) -> None:
        words = ("archive", state.store, "--lake", state.lake)
        released.killed_cli(Kill("archive_sealed", "commit", 6), *words)
        done(*words)
        assert restored(state.lake, tmp_path / "restored") == state.sealed
        assert verified(state.lake, level="bytes") == [(0, 2 * MIB, "ARCHIVED")]


@pytest.mark.again
class TestDecisions:
    @pytest.mark.again
    def test_a_waiver_counts(self, released: Released, state: State) -> None:
        old.waive(released, state)
        report = done(*old.clean_words(state, max_segments=1), "--json").json["report"]
        assert (report["outcome"], report["waiver"]["reason"]) == ("done", old.REASON)
        assert state.there == [MIB, 2 * MIB]

    def test_what_went_by_a_waiver_is_no_loss(self, released: Released, state: State) -> None:
        old.waive(released, state)
        released.cli(*old.clean_words(state, max_segments=1))
        old.archive(released, state)
        (found,) = done("verify", state.store, "--lake", state.lake, "--level", "store", "--json").json[
            "stores"
        ]
        first = found["ranges"][0]
        assert (first["start_offset"], first["end_offset"], first["status"]) == (0, MIB, "WARNING")
        assert old.REASON in first["detail"]

    def test_a_waived_run_that_was_killed_is_finished(self, released: Released, state: State) -> None:
        old.waive(released, state)
        words = old.clean_words(state, max_segments=1)
        released.killed_cli(Kill("release", "fsync", 5), *words)
        old.leases_run_out(state)
        assert done(*words, "--json").json["report"]["outcome"] == "done"
        assert state.there == [MIB, 2 * MIB]

    def test_an_accepted_loss_is_a_warning_and_no_failure(self, released: Released, state: State) -> None:
        old.accept_loss(released, state)
        assert "accepted by" in done("validate", state.store, "--lake", state.lake).out
        done(*old.clean_words(state))
        assert state.there == [2 * MIB]

    def test_each_lineage_comes_back_as_it_was(
        self, released: Released, state: State, store_copy: StoreCopy, tmp_path: Path
    ) -> None:
        anew = old.write_anew(released, state, store_copy("clean-stop"))
        assert not set(anew.sealed.values()) & set(state.sealed.values())
        assert restored(state.lake, tmp_path / "first", "--lineage", 1) == state.sealed
        done(*old.clean_words(anew))
        assert anew.there == [len(anew.sealed) * MIB]
        assert restored(state.lake, tmp_path / "second") == anew.sealed
        assert restored(state.lake, tmp_path / "first-again", "--lineage", 1) == state.sealed

    def test_a_receipt_in_either_of_two_lakes_counts(
        self, released: Released, state: State, tmp_path: Path
    ) -> None:
        second = tmp_path / "second"
        old.spread(released, state, second)
        report = done(*old.clean_words(state), "--second-lake", second, "--json").json["report"]
        assert [row["by_this_run"] for row in report["archived"]] == [False, False]
        assert state.there == [2 * MIB]
        words = ("--second-lake", second)
        assert restored(state.lake, tmp_path / "restored", *words) == state.sealed
        alone = replace(state, lake=second)
        assert list(restored(alone.lake, tmp_path / "alone")) == [f"{MIB:020d}"]
