"""The trash: nothing is ever in neither place, whenever the process dies, and all of it comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage_engine.core import durable
from storage_engine.exceptions import LakeUnavailableError
from storage_engine.lake.durable_io import DurableFileIO
from storage_engine.lake.gc import trash
from storage_engine.lake.gc.trash import (
    TAKEN_LIST,
    TRASH,
    Place,
    TableFile,
    empty,
    forget,
    in_trash,
    list_place,
    new_moment,
    put_back,
    take,
)

CONTENTS = {"data/store_id=1/a.parquet": b"a", "data/store_id=2/b.parquet": b"bb", "metadata/c.avro": b"ccc"}


class Killed(BaseException):
    """Stands for the death of the process between two operations."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name, content in CONTENTS.items():
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Place.at("messages", f"file://{tmp_path}/table", DurableFileIO())


def _files(place: Place) -> tuple[TableFile, ...]:
    return list_place(place).files


def _take_all(place: Place, moment: str) -> None:
    take(place, moment, [(file, "a test") for file in _files(place)])


def _in_place(place: Place) -> dict[str, bytes]:
    return {file.inside: Path(file.path).read_bytes() for file in _files(place)}


def _anywhere(place: Place) -> dict[str, bytes]:
    trashed = (file for files in list_place(place).trashed.values() for file in files)
    return {file.inside: Path(file.path).read_bytes() for file in (*_files(place), *trashed)}


def _leftovers(place: Place, *, directories: bool = True) -> list[Path]:
    """What is in the trash; an empty directory is nothing where a kill left it."""
    root = Path(place.root) / TRASH
    found = list(root.rglob("*")) if root.exists() else []
    return [path for path in found if directories or not path.is_dir()]


def test_what_is_taken_keeps_its_path_is_listed_with_a_reason_and_comes_back_as_it_was(place: Place) -> None:
    before = {file.inside: file for file in _files(place)}
    moment = new_moment(0)
    assert moment.startswith("19700101T000000Z-")
    _take_all(place, moment)
    directory = Path(place.root) / TRASH / moment
    listed = json.loads((directory / TAKEN_LIST).read_text())
    assert {inside: why for inside, _, _, why in listed} == dict.fromkeys(CONTENTS, "a test")
    assert {name: (directory / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert _files(place) == ()
    back = put_back(place, moment)
    assert (len(back.paths), back.moments, back.occupied) == (3, (moment,), ())
    assert {file.inside: file for file in _files(place)} == before
    assert _leftovers(place) == []


def test_a_trash_that_is_a_link_is_not_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (Path(place.root) / TRASH).symlink_to(tmp_path / "other")
    for act in (lambda: _take_all(place, new_moment(0)), lambda: put_back(place, None)):
        with pytest.raises(LakeUnavailableError, match="found a symbolic link"):
            act()
    assert list((tmp_path / "other").iterdir()) == []
    assert _in_place(place) == CONTENTS


def test_one_pass_comes_back_without_another(place: Place) -> None:
    first, *rest = _files(place)
    take(place, "one", [(first, "")])
    take(place, "two", [(file, "") for file in rest])
    assert put_back(place, "one").moments == ("one",)
    assert list(_in_place(place)) == [first.inside]
    assert put_back(place, "none").moments == ()
    assert put_back(place, None).moments == ("two",)
    assert _in_place(place) == CONTENTS


def test_a_file_that_changed_since_it_was_listed_or_is_gone_is_left_alone(place: Place) -> None:
    changed, gone, stays = _files(place)
    Path(changed.path).write_bytes(b"another attempt's")
    Path(gone.path).unlink()
    assert take(place, "one", [(file, "") for file in (changed, gone, stays)]) == [stays]
    assert Path(changed.path).read_bytes() == b"another attempt's"


def test_a_file_whose_name_another_has_by_now_stays_in_the_trash(place: Place) -> None:
    same, other, _ = _files(place)
    _take_all(place, "one")
    Path(same.path).write_bytes(CONTENTS[same.inside])
    Path(other.path).write_bytes(b"another")
    (kept,) = put_back(place, None).occupied
    assert kept.endswith(f"{TRASH}/one/{other.inside}")
    assert Path(kept).read_bytes() == CONTENTS[other.inside]
    assert _in_place(place) == {**CONTENTS, other.inside: b"another"}


def test_emptying_removes_what_is_as_it_was_listed_and_then_the_pass(place: Place) -> None:
    _take_all(place, "one")
    files = in_trash(place, list_place(place))
    assert [listed.moment for listed, _ in files] == ["one"] * 3
    changed = files[0][1]
    Path(changed.path).write_bytes(b"somebody was here")
    assert len(empty(place, files)) == 2
    forget(place, "one")
    assert Path(changed.path).exists()
    assert (
        empty(place, in_trash(place, list_place(place)))
        == [file for _, file in in_trash(place, list_place(place))]
        or not Path(changed.path).exists()
    )
    forget(place, "one")
    assert _leftovers(place) == []


@contextmanager
def _dying(monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> Iterator[list[str]]:
    """Die at the n-th durable operation, before or after it."""
    done: list[str] = []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            mine = len(done) == at
            if mine and not after:
                raise Killed
            done.append(name)
            result = original(*arguments, **keywords)
            if mine:
                raise Killed
            return result

        return call

    with monkeypatch.context() as patched:
        for owner, name in (
            (durable, "write_file"),
            (durable, "fsync_path"),
            (durable, "make_dirs"),
            (durable, "unlink"),
            (os, "link"),
            (Path, "rename"),
            (Path, "rmdir"),
        ):
            patched.setattr(owner, name, wrapped(name, getattr(owner, name)))
        yield done


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_operation_every_file_is_somewhere_and_the_next_call_ends_it(
    after: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_everywhere(work: Callable[[str], object], prepare: Callable[[], object]) -> int:
        """:return: at how many operations."""
        for at in range(1000):
            prepare()
            try:
                with _dying(monkeypatch, at, after=after):
                    work(f"pass-{at}")
            except Killed:
                assert _anywhere(place) == CONTENTS
                put_back(place, None)
                assert (_in_place(place), _leftovers(place, directories=False)) == (CONTENTS, [])
            else:
                return at
        raise AssertionError("it never came to its end")

    assert kill_everywhere(lambda moment: _take_all(place, moment), lambda: None) > 10
    assert _in_place(place) == {}
    put_back(place, None)
    taking = iter(map(str, range(1000)))
    assert kill_everywhere(lambda _: put_back(place, None), lambda: _take_all(place, next(taking))) > 10
    assert _in_place(place) == CONTENTS


def test_killed_while_it_is_emptied_the_next_call_ends_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        empty(place, in_trash(place, list_place(place)))
        for listed in list_place(place).lists:
            forget(place, listed.moment)

    for at in range(1000):
        for name, content in CONTENTS.items():
            (Path(place.root) / name).write_bytes(content)
        _take_all(place, new_moment(at))
        try:
            with _dying(monkeypatch, at, after=False):
                work()
        except Killed:
            work()
            assert _leftovers(place, directories=False) == []
        else:
            break
    assert at > 3


def test_two_calls_that_take_the_same_files_take_each_once(place: Place) -> None:
    files = [(file, "") for file in _files(place)]
    assert len(take(place, "one", files)) == 3
    assert take(place, "two", files) == []
    put_back(place, None)
    assert (_in_place(place), _leftovers(place)) == (CONTENTS, [])


def test_there_is_no_third_place(place: Place) -> None:
    assert trash.in_trash(place, list_place(place)) == []
    assert take(place, "none", []) == []
    assert _leftovers(place) == []
