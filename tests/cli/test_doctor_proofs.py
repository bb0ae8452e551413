"""What doctor says of the lake and the journal that a store has, had, or doesn't have yet."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage_engine.cli.options.store_argument import managed_store
from storage_engine.core.clock import clock_ms
from storage_engine.core.durable import DIRECTORY
from storage_engine.journal.tables.database import JournalDatabase
from storage_engine.retention.doctor.doctor import diagnose
from tests.cli.doctor_runs import aged, kinds, tree

MIB = 1 << 20
StoreCopy = Callable[[str], Path]


@pytest.mark.again
@pytest.mark.slow
def test_the_way_from_a_store_to_its_first_proof(
    cli, store_copy: StoreCopy, tmp_path: Path, plainly: None
) -> None:
    """Each diagnosis ends with the command that leads on, and leaves store, lake and journal as they were."""
    store, lake = store_copy("clean-stop"), tmp_path / "my lake"
    assert (
        cli("doctor", store, "--json").json["next"]["command"] == "storage-engine init-lake --lake DIRECTORY"
    )
    assert cli("init-lake", "--lake", lake).exit_code == 0

    before = tree(store, lake)
    found = cli("doctor", store, "--lake", lake, "--json").json
    assert found["next"]["command"] == f"storage-engine archive {store} --lake '{lake}'"
    assert found["figures"]["unproven_segments"] == 7
    assert tree(store, lake) == before

    assert cli("archive", store, "--lake", lake).exit_code == 0
    aged(store, 5)
    # Its times were changed: the bytes are compared once more.
    assert cli("archive", store, "--lake", lake).exit_code == 0
    (lake / "journal.db.reserve").unlink()
    before = tree(store, lake)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    found = outcome.json
    assert found["figures"]["unproven_segments"] == 0
    assert found["figures"]["due_segments"] == 7
    assert found["lakes"][0]["segments"] == 7
    assert found["next"]["command"] == (
        f"storage-engine clean {store} --lake '{lake}' --broker-conf FILE --dry-run"
    )
    assert kinds(outcome)["same-disk"] == "warning"
    assert tree(store, lake) == before

    # A stranger who finds only the store is led to its lake.
    alone = cli("doctor", store, "--set", "fileReservedTime=24", "--json").json
    assert alone["next"]["command"] == (
        f"storage-engine doctor {store} --lake '{lake}' --set fileReservedTime=24"
    )

    assert cli("clean", "--manual", store, "--lake", lake).exit_code == 0
    after = cli("doctor", store, "--lake", lake, "--json").json
    assert after["figures"]["segments"] == 1
    assert after["next"]["command"] is None


@pytest.mark.slow
def test_a_lake_that_can_not_be_used_is_urgent(cli, store_copy: StoreCopy, lake: Path) -> None:
    store = store_copy("clean-stop")
    (lake / "warehouse").rename(lake / "elsewhere")
    outcome = cli("doctor", store, "--lake", lake, "--json")
    assert outcome.exit_code == 1
    assert kinds(outcome)["lake-refused"] == "urgent"
    assert outcome.json["next"]["command"] == f"storage-engine lake info --lake {lake}"


@pytest.mark.slow
def test_a_journal_of_another_version_is_told_and_not_brought_up_to_date(
    cli, store_copy: StoreCopy, lake: Path
) -> None:
    store, journal = store_copy("clean-stop"), lake / "journal.db"
    database = JournalDatabase(f"sqlite:///{journal}")
    database.write(
        lambda connection: connection.exec_driver_sql("UPDATE storage_engine_schema SET version = 3")
    )
    before = tree(lake)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    assert kinds(outcome)["journal"] == "warning"
    assert kinds(outcome)["proof-unknown"] == "warning"
    assert "unproven" not in kinds(outcome)
    assert outcome.json["figures"]["unproven_segments"] is None
    assert tree(lake) == before


@pytest.mark.slow
@pytest.mark.parametrize("stamped", [True, False])
def test_a_store_whose_journal_is_gone_is_not_called_unproven(
    cli, store_copy: StoreCopy, lake: Path, stamped: bool
) -> None:
    store = store_copy("clean-stop")
    assert cli("archive", store, "--lake", lake).exit_code == 0
    for path in lake.glob("journal.db*"):
        path.unlink()
    if not stamped:
        shutil.rmtree(store / DIRECTORY)
    outcome = cli("doctor", store, "--lake", lake, "--json")
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "proof-unknown"]
    assert finding["what"].startswith("it is unknown which of 7 sealed segments a lake proves")
    assert "unproven" not in kinds(outcome)
    words = shlex.split(outcome.json["next"]["command"])[1:]
    assert words[0] == "archive"
    assert cli(*words).exit_code == 0
    again = cli("doctor", store, "--lake", lake, "--json")
    assert again.json["figures"]["unproven_segments"] == 0
    assert "proof-unknown" not in kinds(again)


@pytest.mark.slow
def test_a_lake_that_is_not_the_one_of_the_store_s_stamp_is_urgent_and_takes_nothing(
    cli, store_copy: StoreCopy, lake: Path, tmp_path: Path, plainly: None
) -> None:
    store, other = store_copy("clean-stop"), tmp_path / "other"
    aged(store, 5)
    assert cli("archive", store, "--lake", lake).exit_code == 0
    assert cli("clean", "--manual", "--max-segments", 5, store, "--lake", lake).exit_code == 0
    assert cli("init-lake", "--lake", other).exit_code == 0
    assert "other-lake" not in kinds(cli("doctor", store, "--lake", lake, "--json"))

    outcome = cli("doctor", store, "--lake", other, "--json")
    assert outcome.exit_code == 1
    (finding,) = [one for one in outcome.json["findings"] if one["kind"] == "other-lake"]
    assert finding["severity"] == "urgent"
    assert f"({lake})" in finding["what"]
    assert "unproven" not in kinds(outcome)
    assert outcome.json["next"]["command"] == f"storage-engine doctor {store} --lake {lake}"
    both = cli("doctor", store, "--lake", lake, "--second-lake", other, "--json")
    assert "other-lake" not in kinds(both)

    verified = cli("verify", store, "--lake", other)
    assert verified.exit_code == 1
    assert f"({lake}): the stamp or the journal says that it has the store" in verified.out
    assert f"it is unknown which records were before offset {5 * MIB}" in verified.out
    known = cli("verify", store, "--lake", lake)
    assert (known.exit_code, "it is unknown which records" in known.out) == (0, False)


@pytest.mark.slow
def test_a_journal_knows_the_lake_of_a_store_that_lost_its_stamp(
    cli, store_copy: StoreCopy, lake: Path, tmp_path: Path
) -> None:
    store, other = store_copy("clean-stop"), tmp_path / "other"
    for words in (("archive", store, "--lake", lake), ("init-lake", "--lake", other)):
        assert cli(*words).exit_code == 0
    shutil.rmtree(store / DIRECTORY)
    named = managed_store(store, lake_dir=other)
    found = diagnose(replace(named, journal_url=f"sqlite:///{lake}/journal.db"), clock_ms(), has_lake=True)
    (finding,) = [one for one in found.findings if one.kind == "other-lake"]
    assert f"({lake})" in finding.what
    assert found.unproven is None


def test_a_lake_that_is_not_there_yet_is_a_finding(
    cli, store_copy: StoreCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "a lake"
    monkeypatch.setenv("STORAGE_ENGINE_LAKE", str(lake))
    outcome = cli("doctor", store_copy("clean-stop"), "--json")
    assert kinds(outcome)["no-lake"] == "warning"
    assert outcome.json["next"]["command"] == f"storage-engine init-lake --lake '{lake}'"
    assert not lake.exists()
