"""Links are made, told from others and dropped so that no kill and no stranger's file deceives anybody."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from storage_engine.core.durable import DIRECTORY, temporary_name
from storage_engine.exceptions import ShieldError
from storage_engine.model.store import FileFacts, Segment, SegmentState
from storage_engine.same_bytes.own_acts import read_own_acts
from storage_engine.shield.index import (
    CLONES,
    INDEX,
    LinkKind,
    Place,
    locked_shield,
    look_at_shield,
    read_index,
    remove_shield,
    shield_path,
    write_index,
)
from storage_engine.shield.links import NoLinkError, drop_links, drop_unchanged, make_links
from tests.clones import as_clone

CONTENT = b"x" * 65536


def segment_in(root: Path, base_offset: int = 0) -> Segment:
    path = root / "commitlog" / f"{base_offset:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(CONTENT)
    time.sleep(0.01)  # so that the next act gets another time on kernels that keep them coarsely
    return Segment("commitlog", base_offset, FileFacts.of(path), SegmentState.SEALED)


def test_a_link_keeps_the_bytes_when_the_segment_is_removed(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    (made,) = make_links(tmp_path, [segment], 1)
    Path(segment.facts.path).unlink()
    (seen,) = look_at_shield(tmp_path).links
    assert (seen.link, seen.place, seen.is_same, seen.is_last) == (made, Place.GONE, True, True)
    assert Path(seen.facts.path).read_bytes() == CONTENT


def test_making_a_link_is_known_as_our_own_act(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    make_links(tmp_path, [segment], 1)
    found = FileFacts.of(segment.facts.path)
    assert found != segment.facts
    assert read_own_acts(tmp_path).same_file(found, segment.facts)
    drop_links(tmp_path, [look_at_shield(tmp_path).links[0].link.name])
    assert read_own_acts(tmp_path).same_file(FileFacts.of(segment.facts.path), segment.facts)


def test_a_segment_is_linked_once(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    assert len(make_links(tmp_path, [segment], 1)) == 1
    assert make_links(tmp_path, [segment], 1) == ()


def test_one_that_is_gone_by_now_or_another_is_left_out(tmp_path: Path) -> None:
    gone, other, third = (segment_in(tmp_path, base) for base in (0, 65536, 131072))
    Path(gone.facts.path).unlink()
    shutil.copy2(other.facts.path, tmp_path / "copy")
    (tmp_path / "copy").rename(other.facts.path)
    (made,) = make_links(tmp_path, [gone, other, third], 1)
    assert made.base_offset == 131072
    assert {seen.link.name for seen in look_at_shield(tmp_path).links} == {made.name}


def test_a_link_that_was_made_before_a_kill_could_record_it_counts(tmp_path: Path) -> None:
    (made,) = make_links(tmp_path, [segment_in(tmp_path)], 1)
    if made.kind is LinkKind.CLONE:
        pytest.skip("this file system clones, and a clone is recorded before it has its name")
    meant = made.__class__(made.log, made.base_offset, 1, LinkKind.MEANT, made.segment, made.segment)
    with locked_shield(tmp_path) as directory:
        assert directory is not None
        write_index(directory, [meant])
    (seen,) = look_at_shield(tmp_path).links
    assert (seen.link.kind, seen.is_same) == (LinkKind.HARD_LINK, True)


def test_a_link_that_was_only_meant_counts_for_nothing(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    make_links(tmp_path, [segment], 1)
    Path(look_at_shield(tmp_path).links[0].facts.path).unlink()
    assert look_at_shield(tmp_path).links == ()
    assert len(make_links(tmp_path, [segment], 1)) == 1


def test_a_copied_store_has_links_of_another(tmp_path: Path) -> None:
    segment = segment_in(tmp_path / "store")
    make_links(tmp_path / "store", [segment], 1)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    Path(segment.facts.path).unlink()
    found = look_at_shield(tmp_path / "copy")
    assert found.links == ()
    assert len(found.foreign) == 1
    assert drop_links(tmp_path / "copy", [look_at_shield(tmp_path / "store").links[0].link.name]) == ()
    assert Path(found.foreign[0]).exists()


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / DIRECTORY).mkdir()
    shield_path(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ShieldError, match="expected a directory that this process may use"):
        make_links(tmp_path, [segment], 1)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    shield_path(tmp_path).unlink()
    target = Path(segment.facts.path).rename(tmp_path / "target")
    Path(segment.facts.path).symlink_to(target)
    with pytest.raises(NoLinkError, match="it is a symbolic link, which is never followed"):
        make_links(tmp_path, [segment], 1)
    assert look_at_shield(tmp_path).links == ()


def test_only_what_is_in_the_log_is_dropped_where_that_is_asked(tmp_path: Path) -> None:
    first, second = segment_in(tmp_path), segment_in(tmp_path, 65536)
    made = make_links(tmp_path, [first, second], 1)
    Path(first.facts.path).unlink()
    assert drop_links(tmp_path, [link.name for link in made], in_log=True) == (made[1].name,)
    (left,) = look_at_shield(tmp_path).links
    assert left.link == made[0]


def test_a_clone_of_what_was_written_to_in_the_log_is_kept_where_the_log_is_asked(tmp_path: Path) -> None:
    first, second = segment_in(tmp_path), segment_in(tmp_path, 65536)
    made = make_links(tmp_path, [first, second], 1)
    clones = [as_clone(tmp_path, segment.base_offset) for segment in (first, second)]
    with Path(first.facts.path).open("r+b") as file:
        file.write(b"other bytes")
    assert drop_links(tmp_path, [link.name for link in made], in_log=True) == (made[1].name,)
    assert [path.exists() for path in clones] == [True, False]
    assert clones[0].read_bytes() == CONTENT
    assert drop_links(tmp_path, [made[0].name]) == (made[0].name,)


def test_a_link_that_changed_since_it_was_judged_stays(tmp_path: Path) -> None:
    segments = [segment_in(tmp_path, base_offset) for base_offset in (0, 65536)]
    make_links(tmp_path, segments, 1)
    for segment in segments:
        Path(segment.facts.path).unlink()
    first, second = judged = look_at_shield(tmp_path).links
    with Path(first.facts.path).open("r+b") as file:
        file.write(b"other bytes")
    assert drop_unchanged(tmp_path, judged) == (second.link.name,)
    (left,) = look_at_shield(tmp_path).links
    assert left.link == first.link


def test_two_links_of_one_file_go_together(tmp_path: Path) -> None:
    segment = segment_in(tmp_path)
    make_links(tmp_path, [segment], 1)
    make_links(tmp_path, [segment], 2)
    Path(segment.facts.path).unlink()
    assert len(drop_unchanged(tmp_path, look_at_shield(tmp_path).links)) == 2
    assert look_at_shield(tmp_path).links == ()


def test_a_link_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    (made,) = make_links(tmp_path, [segment_in(tmp_path)], 1)
    Path(look_at_shield(tmp_path).links[0].facts.path).unlink()
    drop_links(tmp_path, [made.name])
    with locked_shield(tmp_path) as directory:
        assert directory is not None
        assert read_index(directory, tmp_path) == ()


@pytest.mark.parametrize("name", [INDEX, CLONES])
def test_what_a_kill_left_half_made_keeps_no_shield(tmp_path: Path, name: str) -> None:
    (link,) = make_links(tmp_path, [segment_in(tmp_path)], 1)
    drop_links(tmp_path, [link.name])
    (shield_path(tmp_path) / temporary_name(name)).write_bytes(b"half")
    assert remove_shield(tmp_path)
    assert not shield_path(tmp_path).exists()


def test_a_file_of_a_stranger_keeps_the_shield(tmp_path: Path) -> None:
    (link,) = make_links(tmp_path, [segment_in(tmp_path)], 1)
    drop_links(tmp_path, [link.name])
    (shield_path(tmp_path) / "notes.tmp").write_bytes(b"mine")
    assert not remove_shield(tmp_path)
