from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_engine.rocketmq.format.config_files import MAX_CHARACTERS, FastjsonError, loads

MEASURE_LOADS = """
import resource, sys
from storage_engine.rocketmq.format.config_files import FastjsonError, loads
text = sys.stdin.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    loads(text)
except FastjsonError:
    pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON_VALUES, st.booleans(), st.sampled_from([None, "\t"]))
def test_json_is_read_as_json(value: object, ascii_only: bool, indent: str | None) -> None:
    assert loads(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:402,1:397\n\t\t}", {0: 402, 1: 397}),
        ("{-1:1}", {-1: 1}),
        ('{{"brokerName":"b","queueId":1}:[2]}', {(("brokerName", "b"), ("queueId", 1)): [2]}),
        ("{[1,2]:3}", {(1, 2): 3}),
        (r'"\x41\v\0\'\/"', "A\v\0'/"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ('{"a":NaN}', {"a": None}),
        ("9223372036854775807", 2**63 - 1),
        ("{}", {}),
    ],
)
def test_what_fastjson_adds_to_json_is_read(text: str, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 0),
        ("{", 1),
        ("{1}", 2),
        ('{"a":1', 6),
        ("[1 2]", 3),
        ("[1,]", 3),
        ("x", 0),
        ("1 2", 2),
        (r'"\q"', 1),
    ],
)
def test_anything_else_is_an_error_with_its_position(text: str, position: int) -> None:
    with pytest.raises(FastjsonError, match=f"at character {position}: expected") as caught:
        loads(text)
    assert caught.value.position == position


def test_a_text_nested_beyond_reason_is_an_error() -> None:
    with pytest.raises(FastjsonError, match="more than 100 deep"):
        loads("[" * 100_000)


@pytest.mark.parametrize("text", ["1e400", "-1e400", "9" * 5000, "1." + "0" * 5000, "{1:%s}" % ("9" * 401)])
def test_a_number_beyond_reason_is_an_error(text: str) -> None:
    with pytest.raises(FastjsonError, match="expected a number"):
        loads(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ['"' + "a" * (15 << 20) + '"', '"' + r"\q" * (7 << 20) + '"'], ids=["plain", "escapes"]
)
def test_a_string_of_megabytes_takes_little_more_memory_than_itself(text: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", MEASURE_LOADS], input=text, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < 5 * len(text) + (64 << 20)


def test_a_text_that_would_take_gigabytes_is_refused() -> None:
    with pytest.raises(FastjsonError, match=f"at most {MAX_CHARACTERS} characters"):
        loads(":" * (MAX_CHARACTERS + 1))


@pytest.mark.slow
def test_hundreds_of_thousands_of_entries_take_seconds() -> None:
    text = '{"offsetTable":{' + ",".join(f'"t{n}@g":{{0:1}}' for n in range(200_000)) + "}}"
    began = time.process_time()
    assert len(loads(text)["offsetTable"]) == 200_000
    assert time.process_time() - began < 10
