"""Acts of a lake: one chain, whoever writes, is killed, or brings back an older state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from storage_engine.exceptions import BadInputError, LakeIdentityError, LakeUnavailableError
from storage_engine.lake.acts import act_files
from storage_engine.lake.acts.act_files import Acts, read_acts, record_act
from storage_engine.lake.archive.archive import archive_all
from storage_engine.lake.catalog.catalog import Lake, open_lake
from storage_engine.lake.catalog.identity import read_mark
from storage_engine.lake.catalog.tables import SCHEMA_VERSION_PROPERTY
from storage_engine.lake.catalog.writing import mark_commits, upgrade
from storage_engine.lake.gc.garbage import collect
from storage_engine.lake.move.copying import copy_lake, promote
from storage_engine.lake.move.making import make_lake
from storage_engine.lake.move.moving import relocate
from storage_engine.lake.move.rebuilding import rebuild
from storage_engine.lake.verify.verify import verify
from storage_engine.model.keep.acts import ActKind, KeepDecision, policies_of, sha256_of_act
from storage_engine.model.keep.keep_rules import KeepRule, Scope
from storage_engine.model.report.validation import Status, VerifyLevel
from tests.lake.conftest import MakeJobs
from tests.lake.lake_acts import at
from tests.services.forks import begun

KEEP = KeepDecision(ActKind.KEEP, rules=(KeepRule(Scope(topic="a*"), "30 days"),))
HOLD = KeepDecision(ActKind.HOLD, scope=Scope(topic="orders"), reason="case 7")


def record(lake: Lake, decision: KeepDecision) -> Acts:
    return record_act(lake, lambda _acts: decision)


def folder(directory: Path) -> Path:
    return directory / "warehouse" / "storage_engine" / "segments" / "_storage-engine" / "acts"


def kinds(lake: Lake) -> list[str]:
    return [recorded.act.decision.kind.value for recorded in read_acts(lake)]


def marked(lake: Lake) -> str:
    mark = read_mark(lake.segments())
    assert mark is not None
    return mark.act


def test_an_act_is_a_file_named_by_its_bytes_and_the_mark_names_the_newest(
    lake: Lake, tmp_path: Path
) -> None:
    assert read_acts(lake) == ()
    record(lake, KEEP)
    first, second = record(lake, HOLD)
    assert read_acts(lake) == (first, second)
    assert (second.act.previous, second.act.number) == (first.sha256, 1)
    assert second.act.at_ms >= first.act.at_ms
    for recorded in (first, second):
        assert (
            sha256_of_act((folder(tmp_path / "lake") / f"{recorded.sha256}.json").read_bytes())
            == recorded.sha256
        )
    assert marked(lake) == second.sha256


def test_the_mark_of_a_lake_without_acts_is_as_older_releases_read_it(filled: Callable[[int], Lake]) -> None:
    lake = filled(1)
    for table in lake.tables():
        path = Path(table.location().removeprefix("file://")) / ".storage-engine-mark.json"
        assert json.loads(path.read_bytes()).keys() == {
            "lake_id",
            "table_uuid",
            "catalog",
            "metadata",
            "pending",
        }


def test_a_commit_leaves_the_act_in_the_mark(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs
) -> None:
    lake = filled(1)
    (act,) = record(lake, KEEP)
    archive_all(lake, make_jobs(lake, segments[1]))
    assert marked(lake) == act.sha256
    assert read_acts(lake) == (act,)


@pytest.mark.usefixtures("no_turns")
def test_of_many_writers_each_adds_to_the_chain_of_the_others(lake: Lake) -> None:
    def hold_two(number: int) -> None:
        for topic in (f"a{number}", f"b{number}"):
            record(open_lake(lake.config), replace(HOLD, scope=Scope(topic=topic)))

    ends = [begun(partial(hold_two, number)) for number in range(3)]
    assert [end()[0] for end in ends] == [0, 0, 0]
    acts = read_acts(lake)
    topics = sorted(str(recorded.act.decision.scope.topic) for recorded in acts)
    assert topics == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert marked(lake) == acts[-1].sha256


def test_an_act_whose_writer_was_killed_before_the_mark_counts_and_the_next_writer_names_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = record(lake, KEEP)
    with monkeypatch.context() as patch:
        patch.setattr(act_files, "write_mark", lambda *_args, **_more: None)
        record(lake, HOLD)
    assert marked(lake) == first.sha256
    assert kinds(lake) == ["keep", "hold"]
    acts = record_act(lake, lambda _acts: None)
    assert marked(lake) == acts[-1].sha256 == read_acts(lake)[-1].sha256


def test_a_lost_act_is_told_and_nothing_more_is_recorded(lake: Lake, tmp_path: Path) -> None:
    record(lake, KEEP)
    first, second = record(lake, HOLD)
    for lost in (first, second):
        path = folder(tmp_path / "lake") / f"{lost.sha256}.json"
        away = path.rename(tmp_path / "away")
        for use in (read_acts, lambda lake: record(lake, KEEP)):
            with pytest.raises(LakeIdentityError, match=f"expected the act {lost.sha256}.* Nothing was"):
                use(lake)
        away.rename(path)
    assert len(read_acts(lake)) == 2


def test_a_changed_act_and_one_of_a_newer_release_are_told(lake: Lake, tmp_path: Path) -> None:
    (act,) = record(lake, KEEP)
    path = folder(tmp_path / "lake") / f"{act.sha256}.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"30 days", b"31 days"))
    with pytest.raises(LakeUnavailableError, match=r"expected bytes with this SHA-256, found .*copy of the"):
        read_acts(lake)
    path.write_bytes(data)
    newer = json.dumps({**json.loads(data), "previous": act.sha256, "number": 1, "signature": "x"}).encode()
    (path.parent / f"{sha256_of_act(newer)}.json").write_bytes(newer)
    with pytest.raises(LakeUnavailableError, match=r"signature.*a newer release wrote it"):
        read_acts(lake)


def test_two_acts_after_the_same_one_are_told(lake: Lake, tmp_path: Path) -> None:
    (act,) = record(lake, KEEP)
    other = json.dumps(json.loads(act.act.encode()) | {"person": "bob"}).encode()
    (folder(tmp_path / "lake") / f"{sha256_of_act(other)}.json").write_bytes(other)
    with pytest.raises(LakeIdentityError, match=r"expected one act after .* move away the one"):
        read_acts(lake)


def test_no_act_seems_older_than_the_one_before(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = record(lake, KEEP)
    for back_ms in (30 * 60_000, 2 * 3_600_000):
        monkeypatch.setattr(
            act_files, "read_clock_at", lambda *_, ms=first.act.at_ms - back_ms: ms * 1_000_000
        )
        assert record(lake, HOLD)[-1].act.at_ms == first.act.at_ms


@pytest.mark.parametrize("hours", [-2, 2])
def test_by_a_wrong_clock_things_are_held_and_none_is_let_go(
    lake: Lake, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = act_files.read_clock_at
    monkeypatch.setattr(act_files, "read_clock_at", lambda *place: there(*place) + hours * 3_600_000_000_000)
    for decision in (KEEP, KeepDecision(ActKind.LIFT, lifts="x")):
        with pytest.raises(LakeUnavailableError, match=r"expected the time of this machine.*Nothing was"):
            record(lake, decision)
    assert read_acts(lake) == ()
    assert len(record(lake, HOLD)) == 1


def test_a_rolled_back_catalog_records_nothing_and_a_rebuilt_one_has_every_act(
    filled: Callable[[int], Lake], segments: list[Path], make_jobs: MakeJobs, tmp_path: Path
) -> None:
    lake = filled(1)
    record(lake, KEEP)
    catalog = tmp_path / "lake" / "catalog.db"
    shutil.copy(catalog, tmp_path / "older.db")
    archive_all(lake, make_jobs(lake, segments[1]))
    acts = record(lake, HOLD)
    shutil.copy(tmp_path / "older.db", catalog)
    with pytest.raises(LakeIdentityError, match="put back from an older copy"):
        record(Lake(lake.config, lake.catalog, lake.catalog_id), KEEP)
    catalog.unlink()
    rebuild(lake.config, {})
    again = open_lake(lake.config)
    assert read_acts(again) == acts
    assert marked(again) == acts[-1].sha256
    assert len(record(again, KEEP)) == 3


def test_a_lake_whose_catalog_is_lost_and_that_has_acts_alone_is_no_empty_place(
    lake: Lake, tmp_path: Path
) -> None:
    record(lake, HOLD)
    (tmp_path / "lake" / "catalog.db").unlink()
    with pytest.raises(LakeIdentityError, match=r"found .*, an act of a lake"):
        make_lake(lake.config)


def test_copies_take_acts_along_and_a_promoted_one_goes_on(
    filled: Callable[[int], Lake], tmp_path: Path
) -> None:
    lake, copy = filled(1), at(tmp_path / "copy")
    record(lake, KEEP)
    copy_lake(lake, copy)
    acts = record(lake, HOLD)
    assert kinds(open_lake(copy)) == ["keep"]
    copy_lake(lake, copy)
    assert read_acts(open_lake(copy)) == acts
    assert marked(open_lake(copy)) == acts[-1].sha256
    with pytest.raises(LakeIdentityError, match="found a copy of"):
        record(open_lake(copy), KEEP)
    promote(open_lake(copy), "ann", "the original is gone")
    assert marked(open_lake(copy)) == acts[-1].sha256
    assert [recorded.act.lake_id == acts[0].act.lake_id for recorded in record(open_lake(copy), KEEP)] == [
        True,
        True,
        False,
    ]


def test_a_moved_lake_has_its_acts(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    acts = record(filled(1), HOLD)
    (tmp_path / "lake").rename(tmp_path / "moved")
    relocate(at(tmp_path / "moved"))
    moved = open_lake(at(tmp_path / "moved"))
    assert read_acts(moved) == acts
    assert marked(moved) == acts[-1].sha256


def test_gc_leaves_acts_alone(filled: Callable[[int], Lake]) -> None:
    lake = filled(1)
    acts = record(lake, HOLD)
    found = collect(lake, grace_ms=0, delete=True, trash_ms=0)
    assert (found.unknown, found.garbage, found.orphans) == ((), (), ())
    assert read_acts(lake) == acts


def test_verify_says_that_acts_are_no_chain(filled: Callable[[int], Lake], tmp_path: Path) -> None:
    lake = filled(1)
    (act,) = record(lake, HOLD)
    assert verify(lake, VerifyLevel.RECEIPTS)[0].overall is Status.OK
    (folder(tmp_path / "lake") / f"{act.sha256}.json").unlink()
    (found,) = verify(lake, VerifyLevel.RECEIPTS)
    assert found.overall is Status.FAILURE
    assert [finding.subject for finding in found.findings] == ["acts"]


def test_each_act_begins_a_policy_of_the_lake(lake: Lake) -> None:
    acts = record(lake, HOLD)
    (policy,) = policies_of(acts)
    assert policy.version == acts[0].sha256
    assert policy.since_ms == acts[0].act.at_ms


def test_a_lake_that_older_releases_open_takes_no_act_until_it_is_upgraded(lake: Lake) -> None:
    for table in lake.tables():
        with table.transaction() as change:
            change.set_properties({SCHEMA_VERSION_PROPERTY: "2.0"})
    mark_commits(lake)
    with pytest.raises(BadInputError, match=r"expected a lake of version 3.0 or later, .* lake upgrade"):
        record(lake, HOLD)
    assert read_acts(lake) == ()
    upgrade(lake)
    assert len(record(lake, HOLD)) == 1
