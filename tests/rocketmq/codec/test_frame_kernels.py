"""The compiled building blocks against Python's own."""

from __future__ import annotations

import ast
import ipaddress
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config

from storage_engine import crc, native
from storage_engine.arrow.memory import address_of
from storage_engine.crc import crc32, crc32c, crc32c_engine, crc32c_of, crc_engine
from storage_engine.native import kernel
from storage_engine.rocketmq.codec import frame_kernels

QUICK = settings(max_examples=300, deadline=None, derandomize=True)


@kernel
def _crc32(function: int, table: int, address: int, size: int) -> int:
    return crc32(function, table, address, size)


@kernel
def _crc32c(function: int, table: int, address: int, size: int) -> int:
    return crc32c(function, table, address, size)


@kernel
def _is_utf8(address: int, size: int) -> bool:
    return frame_kernels.is_utf8(address, size)


@kernel
def _write_host(target: int, source: int, ipv6: bool) -> int:
    return frame_kernels.write_host(target, source, ipv6)


@kernel
def _read_host(target: int, source: int, size: int, ipv6: bool) -> bool:
    return frame_kernels.read_host(target, source, size, ipv6)


def test_who_has_no_place_to_keep_compiled_code_compiles_it_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service's user without a home, whom the package doesn't belong to."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "UserWideCacheLocator")

    @kernel
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42


def padded(data: bytes) -> np.ndarray:
    return np.frombuffer(data + bytes(64), np.uint8)


@pytest.mark.slow
@QUICK
@given(data=st.binary(max_size=3000))
def test_both_crcs_equal_zlibs(data: bytes) -> None:
    array = padded(data)
    for function in (0, crc_engine().function):
        assert _crc32(function, crc_engine().table, address_of(array), len(data)) == zlib.crc32(data)


@QUICK
@given(data=st.binary(max_size=300))
def test_all_three_crc32c_agree(data: bytes) -> None:
    array = padded(data)
    assert crc32c_of(b"123456789") == crc._crc32c_by_bytes(b"123456789") == 0xE3069283
    for view in (data, memoryview(data), memoryview(bytearray(data))):
        assert crc32c_of(view) == crc._crc32c_by_bytes(data)
    for function in (0, crc32c_engine().function):
        assert _crc32c(function, crc32c_engine().table, address_of(array), len(data)) == crc32c_of(data)


@pytest.mark.slow
@QUICK
@given(
    data=st.one_of(
        st.binary(max_size=40),
        st.text(max_size=30).map(str.encode),
        st.lists(
            st.sampled_from(
                b"a \x80 \xc1\x81 \xc3\xa9 \xe0\x80\x80 \xe2\x82\xac \xed\xa0\x80 \xf0\x8f\xbf\xbf".split(
                    b" "
                )
                + b"\xf0\x9f\x98\x80 \xf4\x90\x80\x80 \xe2\x82 \xff 12345678".split(b" ")
            ),
            max_size=12,
        ).map(b"".join),
    )
)
def test_utf8_is_what_python_can_decode(data: bytes) -> None:
    try:
        data.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False
    array = padded(data)
    assert _is_utf8(address_of(array), len(data)) is expected


@pytest.mark.slow
@QUICK
@given(address=st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)))
def test_an_address_survives_its_text(address: bytes) -> None:
    source, text, back = padded(address), np.zeros(128, np.uint8), np.zeros(64, np.uint8)
    ipv6 = len(address) == 16
    size = _write_host(address_of(text), address_of(source), ipv6)
    parsed = ipaddress.ip_address(text[:size].tobytes().decode())
    expected = ipaddress.ip_address(address)
    assert parsed == (getattr(expected, "ipv4_mapped", None) or expected)
    assert _read_host(address_of(back), address_of(text), size, ipv6)
    assert back[: len(address)].tobytes() == address


@pytest.mark.parametrize(
    ("text", "ipv6"),
    [
        ("", False),
        ("1.2.3", False),
        ("1.2.3.4.", False),
        ("1.2.3.4 ", False),
        ("01.2.3.4", False),
        ("1.2.3.256", False),
        ("1.2.3.1000", False),
        ("1:2:3:4:5:6:7:8", False),
        ("1:2:3:4:5:6:7", True),
        ("1:2:3:4:5:6:7:8:9", True),
        ("::1", True),
        ("1:2:3:4:5:6:7:08", True),
        ("1:2:3:4:5:6:7:A", True),
        ("1:2:3:4:5:6:7:12345", True),
        ("1.2.3.400", True),
        ("f.2.3.4", True),
    ],
)
def test_no_other_text_is_an_address(text: str, ipv6: bool) -> None:
    source, target = padded(text.encode()), np.zeros(64, np.uint8)
    assert not _read_host(address_of(target), address_of(source), len(text), ipv6)


def test_compiled_code_is_bound_to_every_module_that_is_compiled_into_it() -> None:
    names = {name for name, _, _ in native._sources_stamp(Path(frame_kernels.__file__).parent)}
    folder = Path(native.__file__).parent
    using = {
        path.name
        for path in (*folder.glob("*.py"), *folder.glob("rocketmq/**/*.py"))
        if "import" in path.read_text() and "inlined" in path.read_text()
    }
    assert {"offset_kernels.py", "dispatch_kernels.py", "frame_kernels.py"} <= using
    assert using | {"frame_layout.py"} <= names
    stamp = native._sources_stamp(Path(__file__).parent.parent)
    assert names <= {name for name, _, _ in stamp}
    assert stamp in _crc32._cache._cache_file._source_stamp


def test_compiled_code_is_bound_to_each_module_whose_values_it_takes() -> None:
    """A module that has moved would else leave code on disk that goes on with its old values."""
    root = Path(native.__file__).parent
    beside_kernels = {"memory.py", "exceptions.py"}
    unbound = {
        (path.name, module)
        for path in root.rglob("*kernels.py")
        for module in _imported(path)
        if module not in {name for name, _, _ in native._sources_stamp(path.parent)} | beside_kernels
    }
    assert unbound == set()
    assert "batch_headers.py" in _imported(root / "kafka" / "codec" / "batch_kernels.py")


def _imported(path: Path) -> set[str]:
    """Return the file names of the package's modules that a module imports."""
    root = Path(native.__file__).parent
    names = [
        (node.module or "", name.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("storage_engine")
        for name in node.names
    ]
    below = [(root.joinpath(*module.split(".")[1:]), name) for module, name in names]
    return {f"{name}.py" if (place / f"{name}.py").is_file() else f"{place.name}.py" for place, name in below}
