"""Loads, stores and copies at raw addresses, for the compiled kernels.

Nothing here checks bounds: every kernel makes sure that an address is inside its buffer before it uses one of
these functions.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

int64: Callable[[Any], int] = cast("Any", np.int64)
"""numpy's int64. It widens values that a kernel reads from a narrower array."""

_SHARED = ("crc.py", "native.py")
_CONSTANTS = frozenset({"batch_headers.py", "frame_layout.py"})
"""Modules without kernels, whose values are compiled into kernels."""
LITTLE_ENDIAN: Final = sys.byteorder == "little"
_TYPES = {"int": types.int64, "bool": types.boolean, "bytes": numba.typeof(b"")}
"""The compiled type of a kernel's argument, by its annotation."""


def kernel(function: Kernel) -> Kernel:
    """Compile a function on first use and keep the machine code on disk for later processes.

    If a user can write neither beside this file nor in a home directory, such as a service's user, each
    process compiles it.
    """
    return _compiled(function, nogil=True)


def held_kernel(function: Kernel) -> Kernel:
    """Compile a function that takes only microseconds, without releasing the GIL.

    Releasing the GIL and waiting for it again would take longer than such a function.
    """
    return _compiled(function, nogil=False)


def direct(compiled: Kernel) -> Kernel:
    """Return the entry of a kernel, for arguments of the types that its annotations name.

    It doesn't check the types at each call, which would take half of a short call's time. The caller must
    pass the right types: of a strided view it would read the bytes directly behind the first one.
    """
    dispatcher = cast("Any", compiled)
    parameters = inspect.signature(dispatcher.py_func).parameters.values()
    types_of = tuple(_TYPES[each.annotation] for each in parameters)
    dispatcher.compile(types_of)
    return cast("Kernel", dispatcher.overloads[types_of].entry_point)


def _compiled(function: Kernel, *, nogil: bool) -> Kernel:
    options = {"nogil": nogil, "error_model": "numpy", "no_cfunc_wrapper": True}
    compiled = None
    with suppress(RuntimeError):  # no place to keep it
        compiled = numba.njit(cache=True, **options)(function)
    if compiled is None or not _bind_to_sources(compiled, Path(function.__code__.co_filename).parent):
        compiled = numba.njit(**options)(function)
    return cast("Kernel", compiled)


def _bind_to_sources(compiled: Any, folder: Path) -> bool:
    """Make compiled code on disk valid only while no kernel module has changed.

    numba checks only the function's own file, but its callees in other modules are compiled into it. After an
    update it would still use their old code.

    :return: False: this version of numba keeps its stamp elsewhere, and nothing may be kept on disk.
    """
    try:
        index = compiled._cache._cache_file
        index._source_stamp = (index._source_stamp, _sources_stamp(folder))
    except AttributeError:
        return False
    return True


@functools.cache
def _sources_stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return a stamp that changes with each module that kernels of this folder may call.

    A broker's kernels call their own modules and the shared ones. Kernels elsewhere, such as in a test, may
    call any.
    """
    package = Path(__file__).parent
    broker = package / folder.relative_to(package).parts[0] if package in folder.parents else package
    compiled = broker.rglob("*.py")
    own = (path for path in compiled if path.stem.endswith("kernels") or path.name in _CONSTANTS)
    stamps = []
    for path in sorted((*own, *(package / name for name in _SHARED))):
        stat = path.stat()
        stamps.append((path.name, stat.st_size, stat.st_mtime_ns))
    return tuple(stamps)


def inlined(function: Kernel) -> Kernel:
    """Compile a small function that kernels call. LLVM inlines it."""
    compiled: Kernel = numba.njit(
        nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return compiled


def _intrinsic(typer: Callable[..., Any]) -> Any:
    return intrinsic(typer)


def _load(bits: int, result: Any, big_endian: bool | None, signed: bool) -> Any:
    def typer(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if bits > 8 and big_endian is not None and big_endian == LITTLE_ENDIAN:
                value = builder.bswap(value)
            if bits < 64:
                extend = builder.sext if signed else builder.zext
                value = extend(value, ir.IntType(64))
            return value

        return result(types.int64), generate

    return intrinsic(typer)


def _store(bits: int, big_endian: bool | None) -> Any:
    def typer(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = args[1]
            if bits < 64:
                word = builder.trunc(word, ir.IntType(bits))
            if bits > 8 and big_endian is not None and big_endian == LITTLE_ENDIAN:
                word = builder.bswap(word)
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            builder.store(word, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(typer)


# A byte order of None is the machine's own: Arrow's columns and numpy's arrays.
load_u8: Callable[[int], int] = _load(8, types.int64, big_endian=True, signed=False)
load_i8: Callable[[int], int] = _load(8, types.int64, big_endian=True, signed=True)
load_be_i16: Callable[[int], int] = _load(16, types.int64, big_endian=True, signed=True)
load_be_i32: Callable[[int], int] = _load(32, types.int64, big_endian=True, signed=True)
load_be_u32: Callable[[int], int] = _load(32, types.int64, big_endian=True, signed=False)
load_be_i64: Callable[[int], int] = _load(64, types.int64, big_endian=True, signed=True)
load_le_u64: Callable[[int], np.uint64] = _load(64, types.uint64, big_endian=False, signed=False)
load_i32: Callable[[int], int] = _load(32, types.int64, big_endian=None, signed=True)
load_u32: Callable[[int], int] = _load(32, types.int64, big_endian=None, signed=False)
load_i64: Callable[[int], int] = _load(64, types.int64, big_endian=None, signed=True)
store_u8: Callable[[int, int], None] = _store(8, big_endian=True)
store_i32: Callable[[int, int], None] = _store(32, big_endian=None)
store_i64: Callable[[int, int], None] = _store(64, big_endian=None)
store_be_i16: Callable[[int, int], None] = _store(16, big_endian=True)
store_be_i32: Callable[[int, int], None] = _store(32, big_endian=True)
store_be_i64: Callable[[int, int], None] = _store(64, big_endian=True)


def _store_splat(bits: int, count: int) -> Any:
    def typer(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            element, int32 = ir.IntType(bits), ir.IntType(32)
            vector = ir.VectorType(element, count)
            word = builder.trunc(args[1], element) if bits < 64 else args[1]
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), word, int32(0))
            mask = ir.Constant(ir.VectorType(int32, count), [0] * count)
            every = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)
            builder.store(every, builder.inttoptr(args[0], vector.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(typer)


store_i32_8: Callable[[int, int], None] = _store_splat(32, 8)
"""Write a 32-bit integer eight times in a row, in the machine's byte order."""
store_i64_4: Callable[[int, int], None] = _store_splat(64, 4)
"""Write a 64-bit integer four times in a row."""


@inlined
def word(table: int, index: int) -> int:
    """Return an element of a table of 64-bit integers at an address.

    Kernels pass tables to inlined functions by address. For an array, every call would increase and decrease
    its reference count by atomic operations.
    """
    return load_i64(table + 8 * index)


@inlined
def set_word(table: int, index: int, value: int) -> None:
    """Write an element of a table of 64-bit integers at an address."""
    store_i64(table + 8 * index, value)


@_intrinsic
def address_of_bytes(typingctx: Any, value: Any) -> Any:
    """Return the address of a bytes object's first byte. The caller keeps the object alive."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.ptrtoint(array.data, ir.IntType(64))

    return types.int64(value), generate


@_intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy ``size`` bytes; the ranges must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        to, origin, count = args
        cgutils.raw_memcpy(
            builder, builder.inttoptr(to, byte_pointer), builder.inttoptr(origin, byte_pointer), count, 1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def copy_16(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy exactly 16 bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_pointer = ir.VectorType(ir.IntType(8), 16).as_pointer()
        value = builder.load(builder.inttoptr(args[1], vector_pointer), align=1)
        builder.store(value, builder.inttoptr(args[0], vector_pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _mask_of_64(compare: Callable[[Any, Any], Any]) -> Any:
    """Return a function that compares 64 bytes and returns a word with one bit for each. The lowest bit
    is for the first byte: 1 if ``compare`` is true.
    """

    def typer(typingctx: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            vector = ir.VectorType(ir.IntType(8), 64)
            value = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=1)
            mask = builder.bitcast(compare(builder, value), ir.IntType(64))
            return mask if LITTLE_ENDIAN else builder.bitreverse(mask)

        return types.uint64(types.int64), generate

    return intrinsic(typer)


def _splat(value: Any, byte: int) -> Any:
    return ir.Constant(value.type, [byte] * 64)


separators_64: Callable[[int], np.uint64] = _mask_of_64(
    # Bytes 1 and 2, the others wrap around.
    lambda builder, value: builder.icmp_unsigned("<", builder.sub(value, _splat(value, 1)), _splat(value, 2))
)
"""Mask of the bytes that separate names, values and properties, among 64 bytes."""

not_ascii_64: Callable[[int], np.uint64] = _mask_of_64(
    lambda builder, value: builder.icmp_signed("<", value, _splat(value, 0))
)
"""Mask of the bytes that are 0x80 or above, among 64 bytes."""


@_intrinsic
def copy_32(typingctx: Any, target: Any, source: Any) -> Any:
    """Copy exactly 32 bytes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector_pointer = ir.VectorType(ir.IntType(8), 32).as_pointer()
        value = builder.load(builder.inttoptr(args[1], vector_pointer), align=1)
        builder.store(value, builder.inttoptr(args[0], vector_pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line of an address that will be read soon. Never faults."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32]),
            "llvm.prefetch.p0",
        )
        pointer = builder.inttoptr(args[0], byte_pointer)
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def trailing_zeros(typingctx: Any, value: Any) -> Any:
    """Return the index of the lowest set bit. ``value`` must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _call_crc(data_first: bool) -> Any:
    """Call a CRC function at an address. The address is an argument, so that the kernel can be cached."""

    def typer(typingctx: Any, function: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int32, int64 = ir.IntType(32), ir.IntType(64)
            data = builder.inttoptr(args[1], ir.IntType(8).as_pointer())
            if data_first:
                given = (data, builder.trunc(args[2], int32), int32(0xFFFFFFFF))
            else:
                given = (int32(0), data, args[2])
            prototype = ir.FunctionType(int32, [value.type for value in given])
            crc = builder.call(builder.inttoptr(args[0], prototype.as_pointer()), given)
            return builder.zext(crc, int64)

        return types.int64(types.int64, types.int64, types.int64), generate

    return intrinsic(typer)


call_crc: Callable[[int, int, int], int] = _call_crc(data_first=False)
"""Call ``uint32_t function(uint32_t initial, const uint8_t *data, uint64_t size)`` with 0."""
call_crc32c: Callable[[int, int, int], int] = _call_crc(data_first=True)
"""Call ``uint32_t function(const uint8_t *data, int size, uint32_t initial)`` with all bits set."""


@_intrinsic
def call_zstd(
    typingctx: Any, function: Any, context: Any, target: Any, room: Any, source: Any, size: Any
) -> Any:
    """Call ``size_t function(void *context, void *target, size_t room, const void *source, size_t size)``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int64 = ir.IntType(64)
        prototype = ir.FunctionType(int64, [int64] * 5)
        return builder.call(builder.inttoptr(args[0], prototype.as_pointer()), args[1:])

    return types.int64(*[types.int64] * 6), generate


@_intrinsic
def call_system(typingctx: Any, function: Any, descriptor: Any, address: Any, size: Any, last: Any) -> Any:
    """Call ``ssize_t function(int descriptor, void *address, size_t size, …)``, as pread and send are."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int32, int64 = ir.IntType(32), ir.IntType(64)
        prototype = ir.FunctionType(int64, [int32, int64, int64, int64])
        function = builder.inttoptr(args[0], prototype.as_pointer())
        return builder.call(function, [builder.trunc(args[1], int32), *args[2:]])

    return types.int64(*[types.int64] * 5), generate


def _call_libcrypto(parameters: int) -> Any:
    """Call a function ``int function(…)`` of pointers and sizes at an address."""
    typed = [types.int64] * parameters

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int32, int64 = ir.IntType(32), ir.IntType(64)
        prototype = ir.FunctionType(int32, [int64] * parameters)
        builder.call(builder.inttoptr(args[0], prototype.as_pointer()), args[1:])
        return context.get_dummy_value()

    signature = types.void(types.int64, *typed)
    if parameters == 1:
        return intrinsic(lambda typingctx, function, first: (signature, generate))
    if parameters == 2:
        return intrinsic(lambda typingctx, function, first, second: (signature, generate))
    return intrinsic(lambda typingctx, function, first, second, third: (signature, generate))


call_1: Callable[[int, int], None] = _call_libcrypto(1)
call_2: Callable[[int, int, int], None] = _call_libcrypto(2)
call_3: Callable[[int, int, int, int], None] = _call_libcrypto(3)

HAS_SHA256: Final = (
    bool(llvm.get_host_cpu_features().get("sha", False))
    and config.CPU_NAME is None
    and config.CPU_FEATURES is None
)
"""Whether kernels may use the SHA-256 instructions of x86. On other processors they aren't compiled."""


def _compress_lanes(lanes: int) -> Any:
    """Hash one block for each of several states together. A single state would have to wait for its own last
    instruction.

    A state is at an address, in the order of the instructions: words F, E, B, A, H, G, D, C (FIPS 180-4,
    6.2.2).
    """
    vector = ir.VectorType(ir.IntType(32), 4)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not HAS_SHA256:
            return context.get_dummy_value()

        def call(name: str, *given: Any) -> Any:
            prototype = ir.FunctionType(vector, [vector] * len(given))
            return builder.call(cgutils.get_or_insert_function(builder.module, prototype, name), given)

        def at(address: Any, offset: int) -> Any:
            return builder.inttoptr(builder.add(address, ir.IntType(64)(offset)), vector.as_pointer())

        def shuffled(first: Any, second: Any, *places: int) -> Any:
            mask = ir.Constant(ir.VectorType(ir.IntType(32), 4), list(places))
            return builder.shuffle_vector(first, second, mask)

        states, blocks = args[1::2], args[2::2]
        before = [[builder.load(at(state, 16 * half), align=1) for half in range(2)] for state in states]
        now = [list(halves) for halves in before]
        words = [
            [call("llvm.bswap.v4i32", builder.load(at(block, 16 * part), align=1)) for part in range(4)]
            for block in blocks
        ]
        for step in range(16):
            constants = builder.load(at(args[0], 16 * step), align=1)
            for state, word_ in zip(now, words, strict=True):
                first, second, third, last = (word_[(step + part) % 4] for part in range(4))
                added = builder.add(first, constants)
                state[1] = call("llvm.x86.sha256rnds2", state[1], state[0], added)
                state[0] = call(
                    "llvm.x86.sha256rnds2", state[0], state[1], shuffled(added, added, 2, 3, 2, 3)
                )
                if step < 12:
                    mixed = builder.add(
                        call("llvm.x86.sha256msg1", first, second), shuffled(third, last, 1, 2, 3, 4)
                    )
                    word_[step % 4] = call("llvm.x86.sha256msg2", mixed, last)
        for address, old, new in zip(states, before, now, strict=True):
            for half in range(2):
                builder.store(builder.add(old[half], new[half]), at(address, 16 * half), align=1)
        return context.get_dummy_value()

    signature = types.void(*[types.int64] * (1 + 2 * lanes))
    if lanes == 1:
        return intrinsic(lambda typingctx, constants, state, block: (signature, generate))
    if lanes == 2:
        return intrinsic(lambda typingctx, constants, first, a, second, b: (signature, generate))
    return intrinsic(
        lambda typingctx, constants, first, a, second, b, third, c, last, d: (signature, generate)
    )


compress_sha256: Callable[[int, int, int], None] = _compress_lanes(1)
compress_two_sha256: Callable[[int, int, int, int, int], None] = _compress_lanes(2)
compress_four_sha256: Callable[[int, int, int, int, int, int, int, int, int], None] = _compress_lanes(4)
