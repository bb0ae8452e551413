"""What may go and what is kept, by what was read of each file."""

from __future__ import annotations

import pytest

from storage_engine.lake.gc.garbage_rule import (
    Candidate,
    GarbageContents,
    GarbageKind,
    GarbageStanding,
    Held,
    judge,
    kind_of,
)

PROVEN = Held("segment", twin="live")
UNPROVEN = Held("segment", fault="nothing has it")


def _file(key: str, kind: GarbageKind | None, *held: Held, names: tuple[str, ...] = ()) -> Candidate:
    return Candidate(key, kind, GarbageContents(held, frozenset(names)))


def _standings(
    *candidates: Candidate, needed: frozenset[str] = frozenset()
) -> dict[str, GarbageStanding | None]:
    verdicts = judge(candidates, needed)
    return {
        candidate.key: None if verdict is None else verdict.standing
        for candidate, verdict in zip(candidates, verdicts, strict=True)
    }


@pytest.mark.parametrize("kind", [GarbageKind.DATA_FILE, GarbageKind.RECEIPTS, GarbageKind.STAGED])
def test_data_goes_only_if_something_live_holds_all_of_it(kind: GarbageKind) -> None:
    assert _standings(
        _file("twice", kind, PROVEN, PROVEN), _file("once", kind, PROVEN, UNPROVEN), _file("empty", kind)
    ) == {"twice": GarbageStanding.GARBAGE, "once": GarbageStanding.ORPHAN, "empty": GarbageStanding.GARBAGE}


def test_metadata_stays_with_any_file_below_it_that_is_kept() -> None:
    tree = [
        _file("metadata", GarbageKind.METADATA, names=("list",)),
        _file("list", GarbageKind.MANIFEST_LIST, names=("manifest", "live-manifest")),
        _file("manifest", GarbageKind.MANIFEST, names=("data", "gone", "live-data")),
    ]
    needed = frozenset({"live-manifest", "live-data"})
    twin, only = (_file("data", GarbageKind.DATA_FILE, held) for held in (PROVEN, UNPROVEN))
    assert set(_standings(*tree, twin, needed=needed).values()) == {GarbageStanding.GARBAGE}
    assert set(_standings(*tree, only, needed=needed).values()) == {GarbageStanding.ORPHAN}
    unknown = Candidate("data", None, None)
    assert _standings(*tree, unknown, needed=needed) == {
        "metadata": GarbageStanding.ORPHAN,
        "list": GarbageStanding.ORPHAN,
        "manifest": GarbageStanding.ORPHAN,
        "data": None,
    }


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        (GarbageKind.METADATA, {"list", "manifest", "data"}),
        (GarbageKind.MANIFEST_LIST, {"manifest", "data"}),
        (GarbageKind.MANIFEST, {"data"}),
    ],
)
def test_what_cannot_be_read_is_kept_with_all_that_only_it_could_name(
    torn: GarbageKind, kept: set[str]
) -> None:
    unreadable = Candidate("torn", torn, GarbageContents(fault="it can't be read"))
    others = [
        _file("list", GarbageKind.MANIFEST_LIST),
        _file("manifest", GarbageKind.MANIFEST),
        _file("data", GarbageKind.DATA_FILE, PROVEN),
        _file("staged", GarbageKind.STAGED, PROVEN),
    ]
    found = _standings(unreadable, *others)
    assert {key for key, standing in found.items() if standing is GarbageStanding.ORPHAN} == {"torn", *kept}
    readable = [
        _file("metadata", GarbageKind.METADATA, names=("list",)),
        _file("list", GarbageKind.MANIFEST_LIST, names=("manifest",)),
        _file("manifest", GarbageKind.MANIFEST, names=("data",)),
        _file("data", GarbageKind.DATA_FILE, PROVEN),
    ]
    found = _standings(unreadable, *readable)
    assert {key for key, standing in found.items() if standing is GarbageStanding.ORPHAN} == {"torn"}


def test_what_says_that_rows_are_deleted_stays_while_the_file_with_those_rows_does() -> None:
    deletes = _file("deletes", GarbageKind.DATA_FILE, names=("data",))
    going, kept = (_file("data", GarbageKind.DATA_FILE, held) for held in (PROVEN, UNPROVEN))
    assert _standings(deletes, going)["deletes"] is GarbageStanding.GARBAGE
    assert _standings(deletes, kept)["deletes"] is GarbageStanding.ORPHAN
    assert _standings(deletes)["deletes"] is GarbageStanding.GARBAGE
    assert _standings(deletes, needed=frozenset({"data"}))["deletes"] is GarbageStanding.ORPHAN


def test_what_is_young_is_neither_garbage_nor_an_orphan_and_keeps_what_names_it() -> None:
    young = Candidate("data", GarbageKind.DATA_FILE, None, young=True)
    found = _standings(young, _file("manifest", GarbageKind.MANIFEST, names=("data",)))
    assert found == {"data": GarbageStanding.YOUNG, "manifest": GarbageStanding.ORPHAN}


def test_a_file_is_told_by_its_name_and_others_are_unknown() -> None:
    named = {
        "data/store_id=1/1-commitlog-00000000000000000000-0123456789abcdef.parquet": GarbageKind.DATA_FILE,
        "data/store_id=1/x.parquet.0f.partial": GarbageKind.STAGED,
        "metadata/snap-1.avro": GarbageKind.MANIFEST_LIST,
        "metadata/x-m0.avro": GarbageKind.MANIFEST,
        "metadata/00001-x.metadata.json": GarbageKind.METADATA,
        "metadata/x.puffin": None,
        "data/README": None,
        "x.parquet": None,
    }
    assert {name: kind_of("messages", name) for name in named} == named
    assert kind_of("segments", "data/store_id=1/x.parquet") is GarbageKind.RECEIPTS
