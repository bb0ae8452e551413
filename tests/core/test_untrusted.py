from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.untrusted import java_text, read_file
from storage_engine.exceptions import BrokerRefusedError, CorruptFileError


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 8192)
    assert read_file(path) == path.read_bytes()
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


def test_what_could_have_no_end_is_refused_at_once(tmp_path: Path) -> None:
    pipe, link, loop = tmp_path / "pipe", tmp_path / "link", tmp_path / "loop"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    loop.symlink_to(loop)
    for path, kind in ((pipe, "a pipe"), (link, "a device"), (tmp_path, "a directory"), (loop, "symbolic")):
        with pytest.raises(CorruptFileError, match=f"expected an ordinary file, found .*{kind}"):
            read_file(path)


def test_a_file_of_an_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 40 << 30)
    with pytest.raises(CorruptFileError, match="expected at most 536870912 bytes, found 42949672960"):
        read_file(path)


def test_a_message_that_quotes_megabytes_is_cut_in_its_middle() -> None:
    error = BrokerRefusedError("begin " + "x" * (15 << 20) + " end", code=1)
    assert len(str(error)) < 10_000
    assert str(error).startswith("begin x")
    assert str(error).endswith("x end")
    assert "characters left out" in str(error)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"a\xed\xbf\xbfb", "a\ufffdb"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xe2\x82x", "\ufffdx"),
        (b"\xf0\x9f\x98", "\ufffd"),
    ],
)
def test_what_is_no_utf_8_is_replaced_as_often_as_by_java(data: bytes, text: str) -> None:
    assert java_text(data) == text


@given(st.text())
def test_text_is_read_as_it_was_written(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    assert java_text(data) == "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)
