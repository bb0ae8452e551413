"""What a receipt says of a segment's companions comes back as it was, or is refused with what is wrong."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.exceptions import BadInputError, ReceiptError, StoreLayoutError
from storage_engine.model.proof.receipt import (
    MAX_COMPANION_BYTES,
    Companion,
    check_size,
    companions_text,
    files_fault,
    read_companions,
)
from storage_engine.model.store import FileFacts, Segment, SegmentState

NUMBERS = st.integers(0, (1 << 63) - 1)
NAMES = st.text('7.-ä名\n"\\ \udcff', min_size=1, max_size=60).filter(lambda name: name not in (".", ".."))


@st.composite
def companions(draw: st.DrawFn) -> Companion:
    facts = FileFacts(f"/s/log/{draw(NAMES)}", *(draw(NUMBERS) for _ in range(5)))
    return Companion.of(facts, draw(st.binary(max_size=200)))


SEVERAL = st.lists(companions(), unique_by=lambda one: one.name, max_size=4)
ONE = Companion.of(FileFacts("/s/log/7.count", 1, 2, 3, 4, 5), b"300\n")


@given(SEVERAL)
def test_what_is_written_is_read(found: list[Companion]) -> None:
    text = companions_text(found)
    assert (text is None) == (not found)
    assert read_companions(text) == tuple(sorted(found, key=lambda one: one.name))
    assert files_fault(text) == ""
    # Whatever the order in which a broker names them.
    assert companions_text(reversed(found)) == text


@given(SEVERAL.filter(bool), st.data())
def test_text_that_was_damaged_is_refused_or_says_the_same(
    found: list[Companion], data: st.DataObject
) -> None:
    """Of each file at least; what only the gate holds against the store's files may differ."""
    text = companions_text(found)
    assert text is not None
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    damaged = text[:start] + data.draw(st.text('07,[]{}":=A\\é', max_size=4)) + text[end:]
    fault = files_fault(damaged)
    if fault:
        assert fault.startswith("its files are not sound: ")
        return
    read = read_companions(damaged)
    contents = {one.sha256: one.content for one in found}
    assert all(contents[one.sha256] == one.content for one in read)


def changed(**fields: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda rows: [{**rows[0], **fields}]


def compressed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


UNSOUND = {
    "no list": (lambda rows: rows[0], "expected a list of files"),
    "no file": (lambda rows: [], r"expected a list of files, found \[\]"),
    "no object": (lambda rows: [7], "expected an object, found 7"),
    "a key less": (
        lambda rows: [{key: value for key, value in rows[0].items() if key != "inode"}],
        "expected the keys inode",
    ),
    "a key more": (changed(owner="root"), "expected only the keys"),
    "no text": (changed(content=7), "content: expected a value of type str"),
    "no number": (changed(size_bytes=True), "size_bytes: expected a value of type int"),
    "an unknown hash": (changed(sha256="0" * 64), "7.count: expected content with SHA-256 '0000"),
    "too short": (changed(size_bytes=5), "7.count: expected 5 bytes and nothing behind, found 4"),
    "too long": (changed(size_bytes=3), "7.count: expected 3 bytes and nothing behind, found more"),
    "a bomb": (changed(content=compressed(bytes(1 << 24))), "found more"),
    "more behind": (changed(content=base64.b64encode(zlib.compress(b"300\n") + b"x").decode()), "found more"),
    "cut": (changed(content=base64.b64encode(zlib.compress(b"300\n")[:-1]).decode()), "expected 4 bytes"),
    "no base64": (changed(content="%"), "7.count: expected content of zlib in base64"),
    "no zlib": (changed(content=base64.b64encode(b"300\n").decode()), "7.count: expected content of zlib"),
    "below zero": (changed(size_bytes=-1), "expected 0 to"),
    "out of the directory": (changed(name="../7.count"), "a file in the segment's directory"),
    "an absolute name": (changed(name="/etc/passwd"), "a file in the segment's directory"),
    "the directory": (changed(name="."), "a file in the segment's directory"),
    "the one above": (changed(name=".."), "a file in the segment's directory"),
    "no name": (changed(name=""), "a file in the segment's directory"),
    "an end in the name": (changed(name="7\0count"), "a file in the segment's directory"),
    "a name too long": (changed(name="7" * 256), "a file in the segment's directory"),
    "half a character": (changed(name="\ud800"), "a file in the segment's directory"),
    "one twice": (lambda rows: rows * 2, "expected each file once and by name"),
    "not by name": (
        lambda rows: [*rows, {**rows[0], "name": "6.count"}],
        "expected each file once and by name",
    ),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_what_is_not_sound_is_refused(case: str) -> None:
    damage, said = UNSOUND[case]
    rows = json.loads(companions_text([ONE]) or "")
    with pytest.raises(ReceiptError, match=rf"^its files are not sound: .*{said}"):
        read_companions(json.dumps(damage(rows)))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '[{"name": "a", "name": "b"}]', "1" * 5000])
def test_what_is_no_json_of_ours_is_refused(text: str) -> None:
    assert files_fault(text).startswith("its files are not sound: ")


def test_more_than_a_receipt_can_have_is_refused_with_the_largest_file() -> None:
    own = FileFacts("/s/log/7.txt", 1, 2, 3, 4, 5)
    small, large = (replace(own, path=f"/s/log/7.{name}") for name in ("count", "index"))
    fits = (replace(small, size_bytes=6), replace(large, size_bytes=MAX_COMPANION_BYTES - 6))
    check_size(own, fits)
    with pytest.raises(
        BadInputError,
        match=rf"^/s/log/7.index: expected at most {MAX_COMPANION_BYTES} bytes .* segment /s/log/7.txt, "
        rf"found {MAX_COMPANION_BYTES + 1}, of which this one has {MAX_COMPANION_BYTES - 6}. Nothing was",
    ):
        check_size(own, (replace(small, size_bytes=7), fits[1]))
    many = [replace(ONE, name=str(k)) for k in range(2)]
    halves = [Companion.of(one.facts_in(Path("/s")), bytes(MAX_COMPANION_BYTES // 2 + 1)) for one in many]
    assert f"expected at most {MAX_COMPANION_BYTES} bytes in all" in files_fault(companions_text(halves))


OWN = FileFacts("/s/log/7.txt", 1, 2, 30, 4, 5)
BESIDE = replace(OWN, path="/s/log/7.count", inode=3)


def segment(end: int | None = None, companions: tuple[FileFacts, ...] = ()) -> Segment:
    return Segment("log", 7, OWN, SegmentState.SEALED, end=end, companions=companions)


def test_a_segment_ends_where_it_says_or_by_its_size() -> None:
    assert (segment().end_offset, segment(9).end_offset, segment(7).end_offset) == (37, 9, 7)
    assert segment(9, (BESIDE,)).disk_bytes == 60
    other = replace(BESIDE, path="/s/log/7.index")
    assert segment(9, (other, BESIDE)) == segment(9, (BESIDE, other))
    assert segment(9, (other, BESIDE)).files == (OWN, BESIDE, other)


@pytest.mark.parametrize(
    ("end", "companions"),
    [
        (6, ()),
        (9, (OWN,)),
        (9, (BESIDE, BESIDE)),
        (9, (replace(BESIDE, path="/s/log/more/7.count"),)),
        (9, (replace(BESIDE, path="/s/7.count"),)),
    ],
)
def test_a_broker_s_package_that_mistakes_a_segment_s_files_is_told(
    end: int, companions: tuple[FileFacts, ...]
) -> None:
    with pytest.raises(StoreLayoutError, match=r"^/s/log/7.txt: expected .* Nothing was changed"):
        segment(end, companions)
