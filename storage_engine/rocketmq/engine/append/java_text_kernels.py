"""Compiled reading of UTF-8 texts as Java has them: equality, String#hashCode, numbers."""

from __future__ import annotations

from typing import Final

from storage_engine.native import inlined, load_u8

NO_NUMBER: Final = -(1 << 62)
"""Stands for a text that is no number."""


@inlined
def is_text(at: int, length: int, text: tuple[int, ...]) -> bool:
    """Return whether the bytes at an address are this text."""
    if length != len(text):
        return False
    same = True
    for i in range(length):
        same &= load_u8(at + i) == text[i]
    return same


@inlined
def java_hash_of(at: int, length: int, seed: int) -> int:
    """Return String#hashCode of UTF-8 text, as 32 bits, going on from ``seed``; -1: it is no UTF-8."""
    value = seed
    i = 0
    while i < length:
        lead = load_u8(at + i)
        if lead < 0x80:
            value = (31 * value + lead) & 0xFFFFFFFF
            i += 1
            continue
        more = 0
        code = 0
        least = 0
        if 0xC2 <= lead <= 0xDF:
            more, code, least = 1, lead & 0x1F, 0x80
        elif 0xE0 <= lead <= 0xEF:
            more, code, least = 2, lead & 0x0F, 0x800
        elif 0xF0 <= lead <= 0xF4:
            more, code, least = 3, lead & 0x07, 0x10000
        if more == 0 or i + more >= length:
            return -1
        for k in range(1, more + 1):
            byte = load_u8(at + i + k)
            if byte & 0xC0 != 0x80:
                return -1
            code = code << 6 | (byte & 0x3F)
        if code < least or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return -1
        if code >= 0x10000:
            code -= 0x10000
            value = (31 * value + (0xD800 + (code >> 10))) & 0xFFFFFFFF
            value = (31 * value + (0xDC00 + (code & 0x3FF))) & 0xFFFFFFFF
        else:
            value = (31 * value + code) & 0xFFFFFFFF
        i += more + 1
    return value


@inlined
def signed_32(value: int) -> int:
    return value - 0x100000000 if value >= 0x80000000 else value


@inlined
def parse_number(at: int, length: int) -> int:
    """Return a decimal number (Long#parseLong); NO_NUMBER where it is none, or longer than 18 digits."""
    i = 0
    negative = False
    if length > 0 and (load_u8(at) == 45 or load_u8(at) == 43):
        negative = load_u8(at) == 45
        i = 1
    if i == length or length - i > 18:
        return NO_NUMBER
    value = 0
    while i < length:
        digit = load_u8(at + i) - 48
        if digit < 0 or digit > 9:
            return NO_NUMBER
        value = value * 10 + digit
        i += 1
    return -value if negative else value
