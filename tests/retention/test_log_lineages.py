"""Other bytes under one log's archived offsets concern that log alone: it gets a lineage of its own."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError, LakeConflictError
from storage_engine.journal.journal import Journal, StoreRecord
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import open_lake
from storage_engine.model.plan import LogPlan, Plan
from storage_engine.model.store import Lineages
from storage_engine.retention import steps
from storage_engine.retention.decisions import adopt
from storage_engine.retention.proof.proofs import current_receipts, read_proofs
from storage_engine.retention.store.brokers import open_store
from storage_engine.retention.store.identity import identify
from storage_engine.retention.store.known_heads import known_heads
from storage_engine.retention.store.managed_store import ManagedStore
from storage_engine.retention.store.stamp import read_stamp, stamp_path
from tests.lakes import make_lakes
from tests.retention.conftest import MANUAL
from tests.rounds import rounds
from tests.services.toy import make_store
from tests.toy_broker import toy_broker

LOGS = ("access", "errors")
HISTORIES = rounds("STORAGE_ENGINE_LINEAGE_HISTORIES", 1, 20)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ManagedStore:
    """Two logs of small files, all of which but each log's newest are sealed."""
    package = ModuleType("storage_engine.toy")
    package.BROKER = toy_broker.BROKER  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    make_store(tmp_path / "store")
    return make_lakes(ManagedStore.local("toy", str(tmp_path / "store"), tmp_path / "managed", broker="toy"))


def record_of(store: ManagedStore) -> StoreRecord:
    return identify(store, Journal(store.journal_url))


def archive(store: ManagedStore, run_key: str) -> int:
    """Archive all that is sealed and not proven; returns how many segments that were."""
    return len(archived_by(store, run_key).receipts)


def archived_by(store: ManagedStore, run_key: str) -> steps.ArchiveResult:
    return steps.archive_sealed(store, run_key, lambda jobs: archive_all(open_lake(store.lake), jobs))


def sealed_of(store: ManagedStore) -> dict[str, list[int]]:
    return {log.name: [one.base_offset for one in log.sealed] for log in open_store(store).snapshot(0).logs}


def rewrite(store: ManagedStore, log: str) -> None:
    """Write other bytes under the first offsets of a log."""
    path = min((Path(store.root) / log).glob("*.txt"))
    stat = path.stat()
    path.write_bytes(path.read_bytes().swapcase())
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_receipts_that_count_for_a_log_are_those_of_its_lineage(store: ManagedStore, seed: int) -> None:
    chance = random.Random(seed)
    sealed = sealed_of(store)
    lineages, archived = dict.fromkeys(LOGS, 1), set[tuple[str, int]]()
    for number in range(5 if HISTORIES == 1 else 8):
        log = chance.choice((None, *LOGS))
        if number:
            opened = adopt(store, "ann", "a test", force=True, log=log)
            given = max(lineages.values()) + 1
            lineages |= dict.fromkeys(LOGS if log is None else (log,), given)
            assert {one: opened.lineage_of(one) for one in LOGS} == lineages
        if chance.random() < 0.7:
            new = [one for one in LOGS if (one, lineages[one]) not in archived]
            assert archive(store, f"r{number}") == sum(len(sealed[one]) for one in new)
            archived |= {(one, lineages[one]) for one in new}
        record = record_of(store)
        rows = current_receipts(open_lake(store.lake), record)
        expected = [
            (one, lineages[one], offset)
            for one in LOGS
            if (one, lineages[one]) in archived
            for offset in sealed[one]
        ]
        assert [(row.log, row.lineage, row.base_offset) for row in rows] == expected
        wanted = {(one, offset) for one in LOGS for offset in sealed[one]}
        known = known_heads(Journal(store.journal_url), record)
        (proofs,) = read_proofs(store.lakes, record, wanted, known=known).asked
        assert {row.identity for rows in proofs.rows.values() for row in rows} == {r.identity for r in rows}
    # A journal that is lost is made up for by the stamp.
    lost = replace(store, journal_url=f"{store.journal_url}.new")
    assert {log: record_of(lost).lineage_of(log) for log in LOGS} == lineages


def test_other_bytes_in_one_log_neither_change_nor_block_another(store: ManagedStore) -> None:
    sealed = sealed_of(store)
    assert archive(store, "first") == sum(map(len, sealed.values()))
    before = current_receipts(open_lake(store.lake), record_of(store), log="access")
    backup = store.journal_url.removeprefix("sqlite:///")
    journal = Path(backup).read_bytes()
    rewrite(store, "errors")
    (refused,) = archived_by(store, "second").refused
    assert (refused.log, refused.error) == ("errors", LakeConflictError.__name__)
    assert "--log errors opens it for this one alone" in refused.why
    with pytest.raises(BadInputError, match="there is nothing to adopt"):
        adopt(store, "ann", "not this one", log="access")
    with pytest.raises(BadInputError, match=r"expected a log of .*, such as access, found 'none'"):
        adopt(store, "ann", "a typing mistake", log="none")
    assert adopt(store, "ann", "written again", log="errors").lineages == Lineages(1, {"errors": 2})
    assert archive(store, "third") == len(sealed["errors"])
    record = record_of(store)
    assert current_receipts(open_lake(store.lake), record, log="access") == before
    stamp = read_stamp(store.real_root)
    assert stamp is not None
    assert stamp.lineages == record.lineages

    made = steps.make_plan(store, "r", MANUAL)
    assert steps.recorded_plan(store, "r").log_lineages == {"errors": 2}
    assert archive(store, "fourth") == 0
    deleted = steps.release(store, "r").deleted
    assert {one.log for one in deleted} == set(LOGS)
    assert len(deleted) == made.deletes

    # A journal that was put back from before follows the stamp.
    Path(backup).write_bytes(journal)
    assert record_of(store).lineages == record.lineages
    # Where both are lost, the lake doesn't tell whose the newest lineage is: the older proves nothing then.
    stamp_path(store.real_root).unlink()
    lost = replace(store, journal_url=f"{store.journal_url}.new")
    again = record_of(lost)
    assert (again.store_id, again.lineages) == (record.store_id, Lineages(2))
    assert adopt(lost, "ann", "all of it", force=True).lineages == Lineages(3)


def test_a_stamp_without_a_log_of_its_own_is_as_older_releases_know_it(store: ManagedStore) -> None:
    archive(store, "first")
    assert "log_lineages" not in stamp_path(store.real_root).read_text()
    adopt(store, "ann", "a test", force=True, log="errors")
    assert "log_lineages" in stamp_path(store.real_root).read_text()


some = st.builds(
    Lineages, st.integers(1, 5), st.dictionaries(st.sampled_from("abc"), st.integers(6, 9), max_size=3)
)


@given(some, some)
def test_no_log_goes_back_to_an_older_lineage(one: Lineages, other: Lineages) -> None:
    merged = one.merged(other)
    assert merged == other.merged(one)
    assert merged.merged(one) == merged
    for log in "abcd":
        assert merged.of(log) == max(one.of(log), other.of(log))
    assert merged.newest == max(one.newest, other.newest)
    assert all(lineage > merged.whole for lineage in merged.of_logs.values())


def test_a_digest_knows_the_lineage_of_a_log_that_has_one_of_its_own() -> None:
    def digest(*logs: str, **lineages: int) -> str:
        plan = Plan("/s", 7, (), tuple(LogPlan(log, ()) for log in logs), (), "id", 1, lineages)
        return plan.digest

    assert digest("a") == "f1c23e94f3edaffe6f73211e5f5fccda882ba6e8e1104d0b2d29c8c7ae2cb7d6"
    assert digest("a", "b") == "e14bb0707a2fd8a9f86f84e3be971e206d87e33a44bfa8e5d15a4e615099b8bb"
    others = (digest("a", a=2), digest("a", a=3), digest("a", "b", a=2), digest("a", "b", b=2))
    assert len({digest("a"), digest("a", "b"), *others}) == 6
