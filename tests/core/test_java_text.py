"""Text as Java reads it. tests/integration/test_kafka_batches.py compares with Java itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.core.java_text import java_text


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
