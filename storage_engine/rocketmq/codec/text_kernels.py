"""Compiled text: UTF-8 validation, and addresses as Java's InetAddress#getHostAddress writes them."""

from __future__ import annotations

import numpy as np

from storage_engine.native import (
    copy_16,
    copy_32,
    inlined,
    load_be_i64,
    load_be_u32,
    load_le_u64,
    load_u8,
    store_u8,
)

_HIGH_BITS = 0x8080808080808080


@inlined
def copy_words(target: int, source: int, size: int) -> None:
    """Copy a short text, 16 bytes a step: up to 16 bytes behind both ranges are read and overwritten."""
    copy_16(target, source)
    done = 16
    while done < size:
        copy_16(target + done, source + done)
        done += 16


@inlined
def copy_long_words(target: int, source: int, size: int) -> None:
    """Copy a text, 32 bytes a step: up to 32 bytes behind both ranges are read and overwritten."""
    copy_32(target, source)
    done = 32
    while done < size:
        copy_32(target + done, source + done)
        done += 32


@inlined
def is_utf8(address: int, size: int) -> bool:
    """Whether the bytes are well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates)."""
    at = address
    end = address + size
    while at < end:
        while end - at >= 8 and load_le_u64(at) & np.uint64(_HIGH_BITS) == np.uint64(0):
            at += 8
        if at >= end:
            break
        lead = load_u8(at)
        at += 1
        if lead < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more:
            return False
        for _ in range(more):
            byte = load_u8(at)
            if byte < low or byte > high:
                return False
            low = 0x80
            high = 0xBF
            at += 1
    return True


@inlined
def write_ipv4(target: int, source: int) -> int:
    """Write four bytes as dotted decimals. :return: length of the text, at most 15."""
    at = target
    for i in range(4):
        value = load_u8(source + i)
        if i > 0:
            store_u8(at, 46)
            at += 1
        if value >= 100:
            store_u8(at, 48 + value // 100)
            at += 1
        if value >= 10:
            store_u8(at, 48 + value // 10 % 10)
            at += 1
        store_u8(at, 48 + value % 10)
        at += 1
    return at - target


@inlined
def write_hex(target: int, value: int) -> int:
    """Write up to 16 bits in lower-case hexadecimal without leading zeros. :return: digits."""
    digits = 1
    while digits < 4 and value >> (4 * digits):
        digits += 1
    for i in range(digits):
        digit = (value >> (4 * (digits - 1 - i))) & 15
        store_u8(target + i, digit + 48 if digit < 10 else digit + 87)
    return digits


@inlined
def write_host(target: int, source: int, ipv6: bool) -> int:
    """Write an address as InetAddress#getHostAddress does; an IPv4-mapped one as IPv4.

    :return: length of the text, at most 39.
    """
    if not ipv6:
        return write_ipv4(target, source)
    if load_be_i64(source) == 0 and load_be_u32(source + 8) == 0xFFFF:
        return write_ipv4(target, source + 12)
    at = target
    for i in range(8):
        if i > 0:
            store_u8(at, 58)
            at += 1
        at += write_hex(at, load_u8(source + 2 * i) * 256 + load_u8(source + 2 * i + 1))
    return at - target


@inlined
def read_ipv4(target: int, source: int, size: int) -> bool:
    """Inverse of write_ipv4. :return: whether the text is exactly what write_ipv4 writes."""
    at = source
    end = source + size
    for i in range(4):
        if i > 0:
            if at >= end or load_u8(at) != 46:
                return False
            at += 1
        begin = at
        value = 0
        while at < end and at - begin < 3 and 48 <= load_u8(at) <= 57:
            value = value * 10 + load_u8(at) - 48
            at += 1
        if at == begin or value > 255 or (at - begin > 1 and load_u8(begin) == 48):
            return False
        store_u8(target + i, value)
    return at == end


@inlined
def read_host(target: int, source: int, size: int, ipv6: bool) -> bool:
    """Inverse of write_host. :return: whether the text is exactly what write_host writes."""
    if not ipv6:
        return read_ipv4(target, source, size)
    at = source
    end = source + size
    for i in range(8):
        if i > 0:
            if at >= end or load_u8(at) != 58:
                return i == 1 and _read_mapped(target, source, size)
            at += 1
        begin = at
        value = 0
        while at < end and at - begin < 4:
            byte = load_u8(at)
            if 48 <= byte <= 57:
                value = value * 16 + byte - 48
            elif 97 <= byte <= 102:
                value = value * 16 + byte - 87
            else:
                break
            at += 1
        if at == begin or (at - begin > 1 and load_u8(begin) == 48):
            return False
        store_u8(target + 2 * i, value >> 8)
        store_u8(target + 2 * i + 1, value & 255)
    return at == end


@inlined
def _read_mapped(target: int, source: int, size: int) -> bool:
    for i in range(10):
        store_u8(target + i, 0)
    store_u8(target + 10, 255)
    store_u8(target + 11, 255)
    return read_ipv4(target + 12, source, size)
