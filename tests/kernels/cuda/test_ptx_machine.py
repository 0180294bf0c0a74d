"""The machine that runs PTX in the tests is tested itself: instructions, threads, and mistakes planted in kernels.

The first part is written in PTX and needs no compiler; the second compiles Python kernels and is skipped without
numba-cuda. Every planted mistake stands beside the sound kernel, on which the checker must be silent.
"""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import float32

from tests.helpers.ptx import Kind, PTXError, Report, compile_ptx, parse, run
from tests.helpers.ptx.arithmetic import fused64
from tests.helpers.ptx.report import ViolationError, readable

Array = np.ndarray[Any, np.dtype[Any]]


def optional(name: str) -> Any:
    """A module, or None; without numba.cuda the tests that need it are skipped by `compile_ptx`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


cuda = optional("numba.cuda")

# ---------------------------------------------------------------------------------------------------------------
# single instructions
# ---------------------------------------------------------------------------------------------------------------

HEADER = ".version 8.0\n.target sm_75\n.address_size 64\n"
TYPES = {"int8": "s8", "uint8": "u8", "bool": "u8"}


def ptx_type(dtype: Any) -> str:
    name = np.dtype(dtype).name
    return TYPES.get(name) or name.replace("uint", "u").replace("int", "s").replace("float", "f")


def array_parameters(name: str, number: int) -> str:
    """The parameters of one-dimensional arrays; the address is the fifth of seven."""
    return ",\n".join(f".param .u64 {name}{place}" for place in range(7 * number))


def probe(code: str, result: Any, *operands: Any) -> Array:
    """Run `code`, which computes %d from %a, %b, ..., one thread per element."""
    arrays = [np.atleast_1d(np.asarray(operand)) for operand in operands]
    count = max(array.size for array in arrays)
    arrays = [np.ascontiguousarray(np.broadcast_to(array, count)) for array in arrays]
    output = np.zeros(count, result)
    lines = [".reg .b64 %rd<9>;", ".reg .pred %p, %q;", ".reg .u32 %i;", "mov.u32 %i, %tid.x;"]
    for place, array in enumerate([*arrays, output]):
        name, kind = "abcef"[place] if place < len(arrays) else "d", ptx_type(array.dtype)
        register = {"s8": "s16", "u8": "u16"}.get(kind, kind)  # there are no registers of 8 bits
        lines += [f".reg .{register} %{name};", f"ld.param.u64 %rd0, [x{7 * place + 4}];"]
        lines += [f"mul.wide.u32 %rd1, %i, {array.itemsize};", f"add.u64 %rd{place + 2}, %rd0, %rd1;"]
        if place < len(arrays):
            lines.append(f"ld.global.{kind} %{name}, [%rd{place + 2}];")
    lines += [code, f"st.global.{ptx_type(result)} [%rd{len(arrays) + 2}], %d;", "ret;"]
    body = "\n".join(lines)
    text = f"{HEADER}.visible .entry probe({array_parameters('x', len(arrays) + 1)})\n{{\n{body}\n}}"
    report = run(text, "probe", 1, count, [*arrays, output], allow=[Kind.FLOAT64])
    report.raise_for_violations()
    return output


def wrap(value: int, dtype: Any) -> int:
    """An integer as its low bits in the type."""
    info = np.iinfo(dtype)
    return (value - int(info.min)) % (1 << info.bits) + int(info.min)


def edge_cases(dtype: Any) -> list[int]:
    info = np.iinfo(dtype)
    some = [info.min, info.min + 1, -7, -3, -1, 0, 1, 2, 3, 7, 100, info.max // 3, info.max - 1, info.max]
    return sorted({int(value) for value in some if info.min <= value <= info.max})


def pairs(dtype: Any) -> tuple[Array, Array]:
    both = np.array(list(itertools.product(edge_cases(dtype), repeat=2)), dtype)
    return both[:, 0].copy(), both[:, 1].copy()


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": lambda a, b: towards_zero(a, b) if b else -1,
    "rem": lambda a, b: a - b * towards_zero(a, b) if b else a + b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64, np.int16])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(name: str, dtype: Any) -> None:
    a, b = pairs(dtype)
    if name == "rem":
        a, b = a[b != 0], b[b != 0]
    found = probe(f"{name}.{ptx_type(dtype)} %d, %a, %b;", dtype, a, b)
    expected = [wrap(INTEGER[name](int(x), int(y)), dtype) for x, y in zip(a, b, strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_upper_half_of_a_product(dtype: Any) -> None:
    a, b = pairs(dtype)
    width = 8 * a.itemsize
    found = probe(f"mul.hi.{ptx_type(dtype)} %d, %a, %b;", dtype, a, b)
    assert found.tolist() == [int(x) * int(y) >> width for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("dtype, wide", [(np.int32, np.int64), (np.uint32, np.uint64), (np.int16, np.int32)])
def test_wide_product_and_multiply_add(dtype: Any, wide: Any) -> None:
    a, b = pairs(dtype)
    exact = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    kind = ptx_type(dtype)
    assert probe(f"mul.wide.{kind} %d, %a, %b;", wide, a, b).tolist() == exact
    added = probe(f"mad.wide.{kind} %d, %a, %b, %c;", wide, a, b, wide(5))
    assert added.tolist() == [wrap(value + 5, wide) for value in exact]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_shifts_by_the_width_and_more(dtype: Any) -> None:
    width = 8 * np.dtype(dtype).itemsize
    grid = [(x, n) for x in edge_cases(dtype) for n in (0, 1, width - 1, width, width + 1, 2**31, 2**32 - 1)]
    x, n = np.array([v for v, _ in grid], dtype), np.array([v for _, v in grid], np.uint32)
    left = probe(f"shl.b{width} %d, %a, %b;", dtype, x, n)
    assert left.tolist() == [wrap(int(v) << int(min(c, 64)), dtype) for v, c in zip(x, n, strict=True)]
    right = probe(f"shr.{ptx_type(dtype)} %d, %a, %b;", dtype, x, n)
    assert right.tolist() == [int(v) >> int(min(c, 64)) for v, c in zip(x, n, strict=True)]


def test_carry_chain_adds_and_multiplies_128_bits() -> None:
    values = [0, 1, 2**32 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    a, b = (np.array(column, np.uint64) for column in zip(*itertools.product(values, repeat=2), strict=True))
    split = ".reg .u32 al, ah, bl, bh, r0, r1, r2, r3; mov.b64 {al,ah}, %a; mov.b64 {bl,bh}, %b;"
    total = "add.cc.u32 r0, al, bl; addc.cc.u32 r1, ah, bh; addc.u32 r2, 0, 0; cvt.u64.u32 %d, r2;"
    exact = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert probe(split + total, np.uint64, a, b).tolist() == [x + y >> 64 for x, y in exact]
    difference = "sub.cc.u32 r0, al, bl; subc.u32 r1, ah, bh; mov.b64 %d, {r0, r1};"
    assert (probe(split + difference, np.uint64, a, b) == a - b).all()
    product = """mul.lo.u32 r0, al, bl; mul.hi.u32 r1, al, bl; mad.lo.cc.u32 r1, al, bh, r1; madc.hi.u32 r2, al, bh, 0;
        mad.lo.cc.u32 r1, ah, bl, r1; madc.hi.cc.u32 r2, ah, bl, r2; madc.hi.u32 r3, ah, bh, 0;
        mad.lo.cc.u32 r2, ah, bh, r2; addc.u32 r3, r3, 0; mov.b64 %d, {r2, r3};"""
    assert probe(split + product, np.uint64, a, b).tolist() == [x * y >> 64 for x, y in exact]


def test_bit_instructions() -> None:
    x = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x00F0A501], np.uint32)
    assert probe("popc.b32 %d, %a;", np.uint32, x).tolist() == [int(v).bit_count() for v in x]
    assert probe("clz.b32 %d, %a;", np.uint32, x).tolist() == [32 - int(v).bit_length() for v in x]
    assert probe("clz.b64 %d, %a;", np.uint32, x.astype(np.uint64)).tolist() == [64 - int(v).bit_length() for v in x]
    assert probe("brev.b32 %d, %a;", np.uint32, x).tolist() == [int(f"{v:032b}"[::-1], 2) for v in x]
    assert probe("bfind.u32 %d, %a;", np.uint32, x).tolist() == [(int(v).bit_length() - 1) % 2**32 for v in x]
    assert probe("not.b32 %d, %a;", np.uint32, x).tolist() == (~x).tolist()
    assert probe("bfe.u32 %d, %a, 4, 12;", np.uint32, x).tolist() == [int(v) >> 4 & 0xFFF for v in x]
    assert probe("bfe.s32 %d, %a, 4, 4;", np.int32, np.array([0x70, 0x80, -1], np.int32)).tolist() == [7, -8, -1]
    assert probe("bfi.b32 %d, %a, %b, 8, 8;", np.uint32, x, np.uint32(0x11223344)).tolist() == [
        0x11220044 | (int(v) & 255) << 8 for v in x
    ]
    assert probe("prmt.b32 %d, %a, %b, 0x7210;", np.uint32, np.uint32(0x33221100), np.uint32(0x77665544)) == 0x77221100
    assert probe("shf.l.wrap.b32 %d, %a, %b, 8;", np.uint32, np.uint32(0xAABBCCDD), np.uint32(0x11223344)) == 0x223344AA


NUMBERS = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, 0.1, 1e-45, 1e-39, 3e38, -3e38, 1e10, 2.0**31, 2.0**63]
NUMBERS += [np.inf, -np.inf, np.nan]


def same(found: Array, expected: Any) -> None:
    """Equal bits, with all NaNs alike."""
    expected = np.asarray(expected, found.dtype)
    np.testing.assert_array_equal(found, expected)
    numbers = ~np.isnan(found)
    np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_arithmetic_is_that_of_the_type(dtype: Any) -> None:
    a, b = (np.array(column, dtype) for column in zip(*itertools.product(NUMBERS, repeat=2), strict=True))
    kind = ptx_type(dtype)
    with np.errstate(all="ignore"):
        for name, function in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div.rn", np.divide)):
            same(probe(f"{name}.{kind} %d, %a, %b;", dtype, a, b), function(a, b))
        same(probe(f"sqrt.rn.{kind} %d, %a;", dtype, a), np.sqrt(a))
        same(probe(f"rcp.rn.{kind} %d, %a;", dtype, a), 1 / a)
    same(probe(f"neg.{kind} %d, %a;", dtype, a), -a)
    same(probe(f"abs.{kind} %d, %a;", dtype, a), np.abs(a))
    zeros = np.array([0.0, -0.0], dtype)
    same(probe(f"min.{kind} %d, %a, %b;", dtype, zeros, zeros[::-1]), [-0.0, -0.0])
    same(probe(f"max.{kind} %d, %a, %b;", dtype, zeros, zeros[::-1]), [0.0, 0.0])
    same(probe(f"min.{kind} %d, %a, %b;", dtype, dtype(np.nan), dtype(2)), [2.0])


def nearest(exact: Fraction, dtype: Any) -> Any:
    """The float closest to a fraction, ties to even."""
    near = dtype(float(exact))
    around = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    whole = np.uint32 if dtype is np.float32 else np.uint64
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.array(x).view(whole)) & 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(300).astype(dtype) for _ in range(2))
    c = (-a * b * (1 + rng.integers(-2, 3, 300) * np.finfo(dtype).eps)).astype(dtype)  # cancels all but the low bits
    c[::3] = (rng.standard_normal(100) * 10.0 ** rng.integers(-12, 12, 100)).astype(dtype)
    a[0], b[0], c[0] = 1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60  # a tie in float64 that float32 must not see
    found = probe(f"fma.rn.{ptx_type(dtype)} %d, %a, %b, %c;", dtype, a, b, c)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == [float(nearest(value, dtype)) for value in exact]
    down = probe(f"fma.rm.{ptx_type(dtype)} %d, %a, %b, %c;", dtype, a, b, c)
    up = probe(f"fma.rp.{ptx_type(dtype)} %d, %a, %b, %c;", dtype, a, b, c)
    for low, value, high in zip(down, exact, up, strict=True):
        assert Fraction(float(low)) <= value <= Fraction(float(high))
        assert high in (low, np.nextafter(low, dtype(np.inf)))


def test_fma_in_float64_survives_extreme_numbers() -> None:
    cases = [(1e300, 1e300, -1e300), (1e-200, 1e-200, 1e-320), (5e-324, 0.5, 5e-324), (1e200, 1e108, -1.7e308)]
    cases += [(np.inf, 1.0, 2.0), (0.0, 5.0, -0.0), (1e-300, -1e-300, 0.0), (np.nan, 1.0, 1.0)]
    a, b, c = np.array(cases).T.copy()
    with np.errstate(all="ignore"):
        found, _ = fused64(a, b, c)
    same(found[:3], [np.inf, 1e-320, 1e-323])
    assert found[3] == float(Fraction(1e200) * Fraction(1e108) - Fraction(1.7e308))
    same(found[4:], [np.inf, 0.0, -0.0, np.nan])


def test_conversions() -> None:
    x = np.array(NUMBERS, np.float64)
    x32 = x.astype(np.float32)
    with np.errstate(over="ignore"):
        same(probe("cvt.rn.f32.f64 %d, %a;", np.float32, x), x32)
    same(probe("cvt.f64.f32 %d, %a;", np.float64, x32), x32.astype(np.float64))
    for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        same(probe(f"cvt.{mode}.f32.f32 %d, %a;", np.float32, x32), function(x32))
        clipped = np.nan_to_num(np.clip(function(x32.astype(np.float64)), -(2**31), 2**31 - 1), nan=0.0)
        assert probe(f"cvt.{mode}.s32.f32 %d, %a;", np.int32, x32).tolist() == clipped.tolist()
    wide = np.array([2.0**63, -(2.0**63), 1e30, -1e30, 2.0**53 + 2, -7.9])
    expected = [2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 2**53 + 2, -7]
    assert probe("cvt.rzi.s64.f64 %d, %a;", np.int64, wide).tolist() == expected
    outside = np.array([-1, 3.9, 5e9], np.float32)
    assert probe("cvt.rzi.u32.f32 %d, %a;", np.uint32, outside).tolist() == [0, 3, 2**32 - 1]
    same(probe("cvt.sat.f32.f32 %d, %a;", np.float32, x32), np.nan_to_num(np.clip(x32, 0, 1)) + np.float32(0))
    tie = np.array([2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1], np.int64)
    same(probe("cvt.rn.f32.s64 %d, %a;", np.float32, tie), tie.astype(np.float32))
    one = np.array([1 + 2.0**-40, -1 - 2.0**-40])
    below = np.nextafter(np.float32(-1), np.float32(-2))
    same(probe("cvt.rm.f32.f64 %d, %a;", np.float32, one), [1, below])
    same(probe("cvt.rz.f32.f64 %d, %a;", np.float32, one), [1, -1])
    small = np.array([-1, 127, 128, 255, 256, -129], np.int32)
    assert probe("cvt.s8.s32 %d, %a;", np.int8, small).tolist() == [wrap(int(v), np.int8) for v in small]
    assert probe("cvt.sat.u8.s32 %d, %a;", np.uint8, small).tolist() == [0, 127, 128, 255, 255, 0]
    assert probe("cvt.s64.s32 %d, %a;", np.int64, small).tolist() == small.tolist()
    assert probe("cvt.u64.u32 %d, %a;", np.uint64, small.view(np.uint32)).tolist() == small.view(np.uint32).tolist()


COMPARISONS: dict[str, Any] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "ge": np.greater_equal,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_nan(name: str) -> None:
    a, b = (np.array(column, np.float32) for column in zip(*itertools.product(NUMBERS, repeat=2), strict=True))
    found = probe(f"setp.{name}.f32 %p|%q, %a, %b; selp.u32 %d, 1, 0, %p; @%q add.u32 %d, %d, 2;", np.uint32, a, b)
    assert found.tolist() == [1 if holds else 2 for holds in COMPARISONS[name](a, b)]


def test_subnormals_are_flushed_where_asked() -> None:
    x = np.array([1e-39, -1e-39, 1e-38, 2e-38], np.float32)
    same(probe("add.ftz.f32 %d, %a, 0f00000000;", np.float32, x), [0, 0, 0, 2e-38])
    same(probe("mul.f32 %d, %a, 0f3F000000;", np.float32, x), x / 2)


def test_approximate_instructions_are_close() -> None:
    x = np.array([0.1, 0.5, 1.0, 2.0, 10.0], np.float32)
    functions = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "rcp": np.reciprocal, "tanh": np.tanh}
    for name, function in functions.items():
        found = probe(f"{name}.approx.f32 %d, %a;", np.float32, x)
        np.testing.assert_allclose(found, function(x.astype(np.float64)), rtol=1e-6, atol=1e-6)
    coarse = probe("rcp.approx.ftz.f64 %d, %a;", np.float64, x.astype(np.float64))
    np.testing.assert_allclose(coarse, 1 / x.astype(np.float64), rtol=2e-6)
    assert (coarse.view(np.uint64) & 0xFFFFFFFF == 0).all()


# ---------------------------------------------------------------------------------------------------------------
# the machine, in PTX
# ---------------------------------------------------------------------------------------------------------------


def entry(body: str, arrays: int = 1, before: str = "", name: str = "kernel") -> str:
    """A kernel around `body`; %r0 is the thread, %rd0, %rd1, ... are the addresses of its element in each array."""
    lines = ["mov.u32 %r0, %tid.x;", "mul.wide.u32 %rd9, %r0, 4;"]
    for place in range(arrays):
        lines += [f"ld.param.u64 %rd{place}, [x{7 * place + 4}];", f"add.u64 %rd{place}, %rd{place}, %rd9;"]
    registers = ".reg .pred %p<9>; .reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b64 %rd<10>;"
    prologue = "\n".join(lines)
    parameters = array_parameters("x", arrays)
    return f"{HEADER}{before}\n.visible .entry {name}({parameters})\n{{\n{registers}\n{prologue}\n{body}\nret;\n}}"


def kinds(body: str, block: int = 32, size: int = 32, before: str = "", **options: Any) -> set[Kind]:
    return run(entry(body, before=before), "kernel", 1, block, [np.zeros(size, np.float32)], **options).kinds


def test_unknown_instruction_is_named_with_its_line() -> None:
    with pytest.raises(PTXError, match=r"line \d+: frob\.f32 %f1, %f2: unknown instruction"):
        kinds("frob.f32 %f1, %f2;")
    with pytest.raises(PTXError, match=r"wmma"):
        kinds("wmma.load.a.sync.f32 {%f1, %f2}, [%rd0];")


def test_what_cannot_be_read_is_refused() -> None:
    for body in ("mov.u32 %r77, 1;", "bra NOWHERE;", "bar.sync 3;", "call.uni nothing, ();", ".reg .f16 %h;"):
        with pytest.raises(PTXError):
            kinds(body)
    with pytest.raises(PTXError, match="kernels match"):
        parse(HEADER).kernel()


def test_arguments_must_fit_the_parameters() -> None:
    text = entry("")
    with pytest.raises(PTXError, match="has 7 parameters"):
        run(text, "kernel", 1, 1, [np.float32(1)])
    one = HEADER + ".visible .entry one(.param .f32 x)\n{\nret;\n}"
    with pytest.raises(PTXError, match="does not fit"):
        run(one, None, 1, 1, [3])
    with pytest.raises(PTXError, match="float64"):
        run(one, None, 1, 1, [np.float64(3)])
    memory = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="overlaps"):
        run(entry("", 2), "kernel", 1, 1, [memory[:5], memory[4:]])
    with pytest.raises(ValueError, match="permutation"):
        run(text, "kernel", 2, 1, [memory], block_order=[0, 0])


def test_names_are_made_readable() -> None:
    assert readable("_ZN8__main__2ewB2v4B92cw51cXTLSU") == "__main__.ew"
    assert readable("kernel") == "kernel"


def test_endless_loop_is_stopped() -> None:
    with pytest.raises(PTXError, match="endless loop"):
        kinds("L: bra L;", max_steps=1000)


def test_vector_access_and_scopes() -> None:
    x = np.arange(8, dtype=np.float32)
    body = """setp.gt.u32 %p1, %r0, 1; @%p1 bra DONE; mul.wide.u32 %rd9, %r0, 12; add.u64 %rd0, %rd0, %rd9;
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0];
        { .reg .f32 %f1; mov.f32 %f1, 0f42C80000; add.f32 %f2, %f2, %f1; }
        st.global.v2.f32 [%rd0+8], {%f2, %f1}; DONE:"""
    run(entry(body), "kernel", 1, 32, [x]).raise_for_violations()
    assert x.tolist() == [0, 1, 101, 0, 4, 5, 105, 4]


def test_generic_addresses_reach_all_spaces() -> None:
    x = np.arange(32, dtype=np.float32)
    body = """.local .align 4 .b8 depot[8]; mov.u64 %rd3, depot; cvta.local.u64 %rd3, %rd3;
        mov.u64 %rd4, tile; cvta.shared.u64 %rd4, %rd4; add.u64 %rd4, %rd4, %rd9;
        ld.f32 %f1, [%rd0]; st.f32 [%rd4], %f1; add.f32 %f1, %f1, %f1; st.f32 [%rd3+4], %f1;
        ld.f32 %f2, [%rd4]; ld.local.f32 %f3, [%rd3+4]; add.f32 %f2, %f2, %f3; st.f32 [%rd0], %f2;"""
    report = run(entry(body, before=".shared .align 4 .b8 tile[128];"), "kernel", 1, 32, [x], allow=[Kind.LOCAL])
    report.raise_for_violations()
    assert x.tolist() == [3 * value for value in range(32)]
    assert (report.shared_bytes, report.local_bytes) == (128, 8)
    assert [violation.kind for violation in report.accepted] == [Kind.LOCAL]


def test_device_function_called_by_some_threads() -> None:
    function = """.func (.param .b32 out) twice(.param .b32 in)
        { .reg .f32 %f<3>; ld.param.f32 %f1, [in]; add.f32 %f2, %f1, %f1; st.param.f32 [out], %f2; ret; }"""
    body = """ld.global.f32 %f1, [%rd0]; and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra SKIP;
        { .param .b32 p; .param .b32 q; st.param.f32 [p+0], %f1; call.uni (q), twice, (p); ld.param.f32 %f1, [q+0]; }
        SKIP: st.global.f32 [%rd0], %f1;"""
    x = np.arange(32, dtype=np.float32)
    run(entry(body, before=function), "kernel", 1, 32, [x]).raise_for_violations()
    assert x.tolist() == [value * (1 + value % 2) for value in range(32)]


def test_tables_and_constants() -> None:
    table = ".const .align 4 .b8 table[8] = {0, 0, 128, 63, 0, 0, 0, 64};"
    x = np.zeros(1, np.float32)
    body = "mov.u64 %rd3, table; ld.const.f32 %f1, [%rd3]; ld.const.f32 %f2, [%rd3+4]; sub.f32 %f3, %f1, %f2;"
    run(entry(body + "st.global.f32 [%rd0], %f3;", before=table), "kernel", 1, 1, [x]).raise_for_violations()
    assert x[0] == -1
    assert kinds("mov.u64 %rd3, table; st.f32 [%rd3], %f1;", before=table) == {Kind.READ_ONLY}


def test_accesses_outside_of_arrays() -> None:
    load = "ld.global.f32 %f1, [%rd0{}];"
    assert kinds(load.format("")) == set()
    assert kinds(load.format("+4")) == {Kind.OUT_OF_BOUNDS}
    assert kinds(load.format("+-4")) == {Kind.OUT_OF_BOUNDS}
    assert kinds("ld.global.v2.f32 {%f1, %f2}, [%rd0];") == {Kind.MISALIGNED}
    assert kinds("mov.u64 %rd0, 0; ld.f32 %f1, [%rd0];") == {Kind.OUT_OF_BOUNDS}
    assert kinds("st.shared.f32 [%rd0], %f1;") == {Kind.OUT_OF_BOUNDS}
    report = run(entry(load.format("+4")), "kernel", 1, 32, [np.zeros(32, np.float32)])
    message = r"0 bytes past the end of argument 0 .*\n.*ld\.global.*thread \(31, 0, 0\)"
    with pytest.raises(ViolationError, match=message):
        report.raise_for_violations()


def test_gaps_of_strided_arrays_are_out_of_bounds() -> None:
    whole = np.zeros((32, 3), np.float32)
    body = """mul.wide.u32 %rd9, %r0, {}; ld.param.u64 %rd0, [x4]; add.u64 %rd0, %rd0, %rd9;
        st.global.f32 [%rd0], 0f3F800000;"""
    run(entry(body.format(12)), "kernel", 1, 32, [whole[:, 1]]).raise_for_violations()
    assert whole.sum(axis=0).tolist() == [0, 32, 0]
    assert run(entry(body.format(8)), "kernel", 1, 32, [whole[:, 1]]).kinds == {Kind.OUT_OF_BOUNDS}


def test_reading_what_was_never_written() -> None:
    tile = ".shared .align 4 .b8 tile[128];"
    address = "mov.u64 %rd3, tile; add.u64 %rd3, %rd3, %rd9;"
    assert kinds(address + "ld.shared.f32 %f1, [%rd3];", before=tile) == {Kind.UNWRITTEN}
    assert kinds(address + "st.shared.f32 [%rd3], %f1; ld.shared.f32 %f1, [%rd3];", before=tile) == set()
    x = np.zeros(32, np.float32)
    read = entry("ld.global.f32 %f1, [%rd0];")
    assert run(read, "kernel", 1, 32, [x], unwritten=[x]).kinds == {Kind.UNWRITTEN}


def test_races_are_told_by_what_orders_them() -> None:
    tile = ".shared .align 4 .b8 tile[256];"
    address = "mov.u64 %rd3, tile; add.u64 %rd4, %rd3, %rd9; cvt.rn.f32.u32 %f2, %r0;"
    own, first = "st.shared.f32 [%rd4], %f2;", "ld.shared.f32 %f1, [%rd3];"
    assert kinds(address + own + first, before=tile) == {Kind.RACE}
    assert kinds(address + own + "bar.sync 0;" + first, before=tile) == set()
    assert kinds(address + own + "bar.warp.sync -1;" + first, before=tile) == set()
    assert kinds(address + own + "bar.warp.sync -1;" + first, 64, 64, tile) == {Kind.RACE}  # two warps
    assert kinds(address + "st.shared.f32 [%rd3], %f2;", before=tile) == {Kind.RACE}
    assert kinds(address + "st.shared.f32 [%rd3], 0f3F800000;", before=tile) == {Kind.SAME_VALUE}
    zero = address + "setp.ne.u32 %p1, %r0, 0; @!%p1 st.shared.u32 [%rd3], 0; bar.sync 0;"
    add = "atom.shared.add.u32 %r2, [%rd3], 1;"
    assert kinds(zero + add, before=tile) == set()
    assert kinds(zero + add + first, before=tile) == {Kind.RACE}


def test_atomic_updates_give_old_values() -> None:
    x = np.zeros(33, np.uint32)
    body = """ld.param.u64 %rd3, [x4]; atom.global.add.u32 %r1, [%rd3], 2; st.global.u32 [%rd0+4], %r1;
        red.global.max.u32 [%rd3], %r0;"""
    report = run(entry(body), "kernel", 2, 32, [x])
    assert x[0] == 128
    assert report.kinds == {Kind.RACE}  # both blocks write the old values to the same places
    assert sorted(x[1:]) == list(range(64, 128, 2))


def test_warp_operations_wait_for_their_lanes() -> None:
    x = np.zeros(32, np.uint32)
    apart = """and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN; mul.lo.u32 %r1, %r0, 3; bra.uni MEET;
        EVEN: mov.u32 %r1, %r0; MEET: """
    read = "shfl.sync.bfly.b32 %r2|%p2, %r1, 1, 31, -1; st.global.u32 [%rd0], %r2;"
    run(entry(apart + read), "kernel", 1, 32, [x]).raise_for_violations()
    assert x.tolist() == [3 * (lane + 1) if lane % 2 == 0 else lane - 1 for lane in range(32)]
    some = "setp.gt.u32 %p1, %r0, 3; @%p1 shfl.sync.down.b32 %r2, %r0, 1, 31, -1;"
    assert kinds(some + "bar.sync 0;") == {Kind.WARP}
    assert kinds(some) == set()  # the others have exited, which is allowed
    assert kinds("shfl.sync.down.b32 %r2, %r0, 8, 31, -1;", block=16) == {Kind.WARP}  # lanes that do not exist
    assert kinds("shfl.sync.down.b32 %r2, %r0, 8, 31, -1;", block=32) == set()


def test_shuffle_and_vote_results() -> None:
    lanes = np.arange(32)
    for mode, operands, expected in (
        ("up", "4, 0", np.where(lanes >= 4, lanes - 4, lanes)),
        ("down", "4, 31", np.where(lanes + 4 < 32, lanes + 4, lanes)),
        ("bfly", "5, 31", lanes ^ 5),
        ("idx", "7, 31", np.full(32, 7)),
        ("down", "1, 0x181F", np.where(lanes % 8 < 7, lanes + 1, lanes)),  # segments of eight lanes
    ):
        x = np.zeros(32, np.uint32)
        body = f"shfl.sync.{mode}.b32 %r2, %r0, {operands}, -1; st.global.u32 [%rd0], %r2;"
        run(entry(body), "kernel", 1, 32, [x]).raise_for_violations()
        assert x.tolist() == expected.tolist(), (mode, operands)
    x = np.zeros(32, np.uint32)
    body = "setp.lt.u32 %p1, %r0, 3; vote.sync.ballot.b32 %r2, %p1, -1; st.global.u32 [%rd0], %r2;"
    run(entry(body), "kernel", 1, 32, [x]).raise_for_violations()
    assert set(x.tolist()) == {7}


def test_barriers_need_all_threads() -> None:
    split = "setp.lt.u32 %p1, %r0, 7;"
    assert kinds("bar.sync 0;") == set()
    assert kinds(split + "@%p1 bar.sync 0;") == {Kind.BARRIER}
    assert kinds(split + "@%p1 ret; bar.sync 0;") == {Kind.BARRIER}
    assert kinds(split + "@%p1 bra B; bar.sync 0; bra.uni END; B: bar.sync 0; END:") == {Kind.BARRIER}
    assert kinds("setp.lt.u32 %p1, %r0, 99; @%p1 bar.sync 0;") == set()


def test_trap_and_limits() -> None:
    assert kinds("setp.eq.u32 %p1, %r0, 3; @%p1 trap;") == {Kind.TRAP}
    assert kinds("", block=1025, size=1025) == {Kind.LIMIT}
    assert kinds("", before=".shared .align 4 .b8 tile[49156];") == {Kind.LIMIT}
    dynamic = ".extern .shared .align 4 .b8 tile[];"
    store = "mov.u64 %rd3, tile; add.u64 %rd3, %rd3, %rd9; st.shared.f32 [%rd3], %f1;"
    assert kinds(store, before=dynamic, dynamic_shared=128) == set()
    assert kinds(store, before=dynamic, dynamic_shared=124) == {Kind.OUT_OF_BOUNDS}


# ---------------------------------------------------------------------------------------------------------------
# compiled kernels against NumPy
# ---------------------------------------------------------------------------------------------------------------

TILE = 8
THREADS = 64


def launch(kernel: Any, signature: str, grid: Any, block: Any, *args: Any, **options: Any) -> Report:
    """Compile and run."""
    return run(compile_ptx(kernel, signature), None, grid, block, args, **options)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementwise_functions(dtype: Any) -> None:
    one = dtype(1)

    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = math.exp(x[i]) * math.tanh(x[i]) + math.log(x[i] * x[i] + one)

    x = np.concatenate([normal(90, dtype=dtype), np.array([0, -0.0, 1e-3, 20, -20, 80, np.inf, np.nan], dtype)])
    y = np.zeros_like(x)
    name = np.dtype(dtype).name
    report = launch(kernel, f"void({name}[::1], {name}[::1])", 2, THREADS, x, y)
    report.raise_for_violations()
    exact = x.astype(np.longdouble)
    expected = np.exp(exact) * np.tanh(exact) + np.log(exact * exact + 1)
    np.testing.assert_allclose(y, expected.astype(dtype), rtol=20 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps)


def test_functions_with_tables_local_memory_and_calls() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = math.sin(x[i]) + math.pow(x[i], 2.5)

    x = np.array([0.1, 1.0, 3e5, 1e12, 7e22])
    y = np.zeros_like(x)
    report = launch(kernel, "void(float64[::1], float64[::1])", 1, THREADS, x, y, allow=[Kind.LOCAL])
    report.raise_for_violations()
    assert {violation.kind for violation in report.accepted} == {Kind.LOCAL}  # for large arguments of sin
    np.testing.assert_allclose(y, np.sin(x) + x**2.5, rtol=1e-15)


def test_device_functions_are_compiled_without_a_device() -> None:
    if cuda is None:
        pytest.skip("numba-cuda is not installed")
    helper = cuda.jit(device=True)(lambda x: x * x + x)

    def kernel(x):
        i = cuda.grid(1)
        x[i] = helper(x[i])

    x = normal(32)
    expected = (x.astype(np.float64) ** 2 + x).astype(np.float32)
    launch(kernel, "void(float32[:])", 1, 32, x).raise_for_violations()
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-7)


def test_scalars_tuples_and_strided_arrays() -> None:
    def kernel(x, shape, scale, n):
        i, j = cuda.grid(2)
        if i < shape[0] and j < shape[1]:
            x[i, j] = x[i, j] * scale + float32(n)

    whole = normal(6, 10)
    view = whole[::-2, 1::3]
    expected = view * np.float32(2.5) + np.float32(-3)
    other = whole.copy()
    report = launch(
        kernel,
        "void(float32[:, :], UniTuple(int32, 2), float32, int32)",
        1,
        (4, 4),
        view,
        view.shape,
        np.float32(2.5),
        np.int32(-3),
    )
    report.raise_for_violations()
    np.testing.assert_allclose(view, expected, rtol=1e-6)
    other[::-2, 1::3] = view
    np.testing.assert_array_equal(whole, other)


def test_reduction_with_shuffles() -> None:
    def kernel(x, y):
        i = cuda.grid(1)
        total = x[i] if i < x.size else float32(0)
        step = 16
        while step > 0:
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, step)
            step //= 2
        if cuda.laneid == 0:
            y[i // 32] = total

    x, y = normal(100), np.zeros(4, np.float32)
    launch(kernel, "void(float32[::1], float32[::1])", 2, THREADS, x, y).raise_for_violations()
    padded = np.concatenate([x, np.zeros(28, np.float32)]).reshape(4, 32)
    np.testing.assert_allclose(y, padded.sum(axis=1), rtol=1e-5, atol=1e-6)


def reduction(barrier: bool = True, all_arrive: bool = True, write_all: bool = True) -> Any:
    """Sums of blocks in shared memory; the arguments plant mistakes."""

    def kernel(x, y):
        partial = cuda.shared.array(THREADS, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        if write_all or i < x.size:
            partial[t] = x[i] if i < x.size else float32(0)
        cuda.syncthreads()
        step = THREADS // 2
        while step > 0:
            if t < step:
                partial[t] += partial[t + step]
                if barrier and not all_arrive:
                    cuda.syncthreads()
            if barrier and all_arrive:
                cuda.syncthreads()
            step //= 2
        if t == 0:
            y[cuda.blockIdx.x] = partial[0]

    return kernel


def reduce(**mistakes: bool) -> Report:
    x, y = normal(100), np.zeros(2, np.float32)
    report = launch(reduction(**mistakes), "void(float32[::1], float32[::1])", 2, THREADS, x, y)
    np.testing.assert_allclose(y, [x[:64].sum(), x[64:].sum()], rtol=1e-5, atol=1e-6)
    return report


def test_reduction_in_shared_memory_and_its_planted_mistakes() -> None:
    reduce().raise_for_violations()
    assert reduce(barrier=False).kinds == {Kind.RACE}
    assert Kind.BARRIER in reduce(all_arrive=False).kinds
    assert reduce(write_all=False).kinds == {Kind.UNWRITTEN}


def product(first: bool = True, second: bool = True, bound: bool = True, shift: int = 0, literal: bool = False) -> Any:
    """A tiled product; without a barrier, without a bound, off by `shift` in shared memory, or with a float64 sum."""
    zero = 0.0 if literal else None

    def kernel(a, b, c):
        tile_a = cuda.shared.array((TILE, TILE), float32)
        tile_b = cuda.shared.array((TILE, TILE), float32)
        x = cuda.threadIdx.x
        y = cuda.threadIdx.y
        column = cuda.blockIdx.x * TILE + x
        row = cuda.blockIdx.y * TILE + y
        total = float32(0) if zero is None else zero
        for start in range(0, a.shape[1], TILE):
            inside = row < a.shape[0] and start + x < a.shape[1]
            tile_a[y, x] = a[row, start + x] if inside else float32(0)
            inside = column < b.shape[1] and start + y < b.shape[0]
            tile_b[y, x] = b[start + y, column] if inside else float32(0)
            if first:
                cuda.syncthreads()
            for k in range(TILE):
                total += tile_a[y, k] * tile_b[k + shift, x]
            if second:
                cuda.syncthreads()
        if not bound or (row < c.shape[0] and column < c.shape[1]):
            c[row, column] = total

    return kernel


PRODUCT = "void(float32[:, ::1], float32[:, ::1], float32[:, ::1])"


def multiply(m: int, k: int, n: int, order: list[int] | None = None, **mistakes: Any) -> tuple[Report, bool]:
    """The report of a product, and whether it is right."""
    a, b, c = normal(m, k), normal(k, n, seed=1), np.zeros((m, n), np.float32)
    grid = (-(-n // TILE), -(-m // TILE))
    report = launch(product(**mistakes), PRODUCT, grid, (TILE, TILE), a, b, c, block_order=order)
    return report, np.allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(16, 16, 16), (13, 21, 10), (1, 1, 1), (5, 8, 17)])
def test_tiled_product(shape: tuple[int, int, int]) -> None:
    report, right = multiply(*shape)
    report.raise_for_violations()
    assert right
    assert report.shared_bytes == 2 * 4 * TILE * TILE
    assert report.fma_per_shared_load == 0.5


def test_blocks_in_another_order() -> None:
    report, right = multiply(13, 21, 10, order=[3, 1, 0, 2])
    report.raise_for_violations()
    assert right


def test_planted_mistakes_in_the_product() -> None:
    assert Kind.RACE in multiply(13, 21, 10, first=False)[0].kinds
    assert multiply(13, 21, 10, second=False)[0].kinds == {Kind.RACE}
    assert Kind.OUT_OF_BOUNDS in multiply(13, 21, 10, bound=False)[0].kinds
    report, right = multiply(13, 21, 10, shift=1)
    assert Kind.OUT_OF_BOUNDS in report.kinds and not right
    assert multiply(13, 21, 10, literal=True)[0].kinds == {Kind.FLOAT64}


def test_violations_name_the_line_of_the_source() -> None:
    report, _ = multiply(13, 21, 10, bound=False)
    text = str(next(violation for violation in report.violations if violation.kind is Kind.OUT_OF_BOUNDS))
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = 1 + [line.strip() for line in lines].index("c[row, column] = total")
    assert "test_ptx_machine.product.kernel" in text
    assert f"test_ptx_machine.py:{line})" in text


def test_dropped_factor_is_seen_in_the_numbers() -> None:
    """No access is wrong in such a kernel; only the comparison with NumPy can tell, and it must."""

    def second_order(factor: float) -> Any:
        two = np.float32(factor)

        def kernel(w, v, x1, x2, y):
            i = cuda.grid(1)
            if i < y.size:
                y[i] = w[i] * x2[i] + two * v[i] * x1[i]

        return kernel

    arrays = [normal(50, seed=seed) for seed in range(4)]
    w, v, x1, x2 = (array.astype(np.float64) for array in arrays)
    for factor, sound in ((2, True), (1, False)):
        y = np.zeros(50, np.float32)
        launch(second_order(factor), "void(" + "float32[::1], " * 4 + "float32[::1])", 1, THREADS, *arrays, y)
        assert np.allclose(y, w * x2 + 2 * v * x1, rtol=1e-5, atol=1e-6) == sound


def test_race_between_blocks() -> None:
    def shared_cell(x, y):
        i = cuda.grid(1)
        if cuda.threadIdx.x == 0:
            y[0] = x[i]

    def neighbour(x, y):
        i = cuda.grid(1)
        x[i] = float32(i)
        if i + 1 < x.size:
            y[i] = x[i + 1]

    def atomic(x, y):
        cuda.atomic.add(y, 0, x[cuda.grid(1)])

    signature = "void(float32[::1], float32[::1])"
    for kernel, expected in ((shared_cell, {Kind.RACE}), (neighbour, {Kind.RACE}), (atomic, set())):
        x, y = normal(64), np.zeros(64, np.float32)
        report = launch(kernel, signature, 2, 32, x, y)
        assert report.kinds == expected, kernel.__name__
        if kernel is atomic:
            assert abs(y[0] - x.sum()) < 1e-4
    told = "\n".join(map(str, launch(shared_cell, signature, 2, 32, normal(64), np.zeros(64, np.float32)).violations))
    assert "between blocks" in told and "block (0, 0, 0)" in told


def test_same_value_from_several_blocks_is_the_weaker_kind() -> None:
    def kernel(x, y):
        if x[cuda.grid(1)] > float32(0):
            y[0] = float32(1)

    report = launch(kernel, "void(float32[::1], float32[::1])", 2, 32, normal(64), np.zeros(1, np.float32))
    assert report.kinds == {Kind.SAME_VALUE}


def test_local_arrays_are_told() -> None:
    def kernel(x, y, index):
        buffer = cuda.local.array(16, float32)
        i = cuda.grid(1)
        for k in range(16):
            buffer[k] = x[i] * float32(k)
        y[i] = buffer[index[i]]

    x, y = normal(32), np.zeros(32, np.float32)
    index = np.arange(32, dtype=np.int32) % 16
    report = launch(kernel, "void(float32[::1], float32[::1], int32[::1])", 1, 32, x, y, index)
    assert report.kinds == {Kind.LOCAL}
    assert report.local_bytes == 64
    np.testing.assert_array_equal(y, x * index.astype(np.float32))


def test_loops_with_different_lengths_and_nested_branches() -> None:
    def kernel(n, y):
        i = cuda.grid(1)
        value = n[i]
        steps = 0
        while value != 1:  # Collatz: every thread goes its own way
            if value % 2 == 0:
                value //= 2
            else:
                if value % 3 == 1:
                    steps += 100
                elif value % 3 == 2:
                    steps += 10000
                value = 3 * value + 1
            steps += 1
        y[i] = steps

    def expected(value: int) -> int:
        steps = 0
        while value != 1:
            if value % 2:
                steps += {0: 0, 1: 100, 2: 10000}[value % 3]
                value = 3 * value + 1
            else:
                value //= 2
            steps += 1
        return steps

    n, y = np.arange(1, 65), np.zeros(64, np.int64)
    launch(kernel, "void(int64[::1], int64[::1])", 2, 32, n, y).raise_for_violations()
    assert y.tolist() == [expected(value) for value in range(1, 65)]


def test_signed_division_as_python_defines_it() -> None:
    def kernel(a, b, quotient, remainder):
        i = cuda.grid(1)
        quotient[i] = a[i] // b[i]
        remainder[i] = a[i] % b[i]

    values = [-(2**40), -7, -3, -1, 1, 3, 7, 2**40 + 1]
    a, b = (np.array(column) for column in zip(*itertools.product(values, repeat=2), strict=True))
    quotient, remainder = np.zeros_like(a), np.zeros_like(a)
    launch(kernel, "void(int64[::1], int64[::1], int64[::1], int64[::1])", 1, 64, a, b, quotient, remainder)
    np.testing.assert_array_equal(quotient, a // b)
    np.testing.assert_array_equal(remainder, a % b)


def test_fast_enough() -> None:
    """64 × 64 × 64 in about half a second; the bound leaves room for a slow machine."""
    start = time.perf_counter()
    report, right = multiply(64, 64, 64)
    assert right and not report.violations
    assert time.perf_counter() - start < 20
