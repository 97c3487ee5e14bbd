"""Exact answers in Python integers: the slow oracle that the goldens are held to.

An element is `significand * 2**exponent` with both integers, so sums are exact whatever their length, order or
range, and there is one rounding at the end. No float is added, multiplied or cast here, and nothing here is shared
with a golden: that the two agree is evidence only because they were derived apart.

Not promised: speed. The sums are for the sizes of tests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from xref import errors
from xref.bits import FORMATS, Bits, FloatFormat

__all__ = ["decode", "gather", "grad_rows", "round_once", "sum_rounded", "widen"]


def decode(element: int, fmt: FloatFormat) -> tuple[int, int]:
    """Return the finite `element` as integers `(significand, exponent)`: its value is `significand * 2**exponent`.

    Raises:
        ValueError: the element is an infinity or a NaN.
    """
    magnitude = element & (fmt.sign - 1)
    if magnitude > fmt.largest_finite:
        raise errors.bad_value("element", f"{element:#x} ({fmt.name})", "a finite element", "exact.decode")
    field = magnitude >> fmt.mantissa_bits
    significand = magnitude & fmt.mantissa
    if field:
        significand |= fmt.mantissa + 1
    return (-significand if element & fmt.sign else significand), fmt.quantum + max(field - 1, 0)


def round_once(significand: int, exponent: int, fmt: FloatFormat) -> int:
    """Return `significand * 2**exponent` rounded to `fmt`, to nearest and ties to even: the only rounding there is.

    An exact zero is +0. A magnitude that rounds past the largest finite value is an infinity of its sign, and in
    float8_e4m3fn, which has none, the NaN.
    """
    if significand == 0:
        return 0
    sign = fmt.sign if significand < 0 else 0
    magnitude = abs(significand)
    # The unit in the last place of the result, subnormals included: `mantissa_bits` below the leading bit.
    unit = max(exponent + magnitude.bit_length() - 1 - fmt.mantissa_bits, fmt.quantum)
    shift = unit - exponent
    if shift <= 0:
        steps = magnitude << -shift
    else:
        steps, rest = magnitude >> shift, magnitude & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        steps += rest > half or (rest == half and steps & 1)
    # A carry out of the mantissa lands in the exponent field by the same addition: the encoding is monotone.
    encoded = ((unit - fmt.quantum) << fmt.mantissa_bits) + steps
    if encoded > fmt.largest_finite:
        return sign | fmt.exponent if fmt.has_inf else fmt.nan
    return sign | encoded


def sum_rounded(elements: Iterable[int], source: FloatFormat, target: FloatFormat) -> int:
    """Return the exact sum of `elements` of `source`, rounded once to `target` (clauses EMB-8 and EMB-11).

    A NaN among them, or infinities of both signs, gives the canonical quiet NaN; infinities of one sign give that
    infinity (float8_e4m3fn: the NaN); an exact zero, the empty sum included, is +0.
    """
    total = 0
    infinities = set()
    for element in elements:
        magnitude = element & (source.sign - 1)
        if magnitude <= source.largest_finite:
            significand, exponent = decode(element, source)
            total += significand << (exponent - source.quantum)
        elif source.has_inf and magnitude == source.exponent:
            infinities.add(element & source.sign != 0)
        else:
            return target.nan
    if len(infinities) == 2 or (infinities and not target.has_inf):
        return target.nan
    if infinities:
        return target.exponent | (target.sign if infinities.pop() else 0)
    return round_once(total, source.quantum, target)


def grad_rows(ids: np.ndarray[Any, Any], cotangent: Bits, source: FloatFormat, target: FloatFormat) -> dict[int, Bits]:
    """Return the exact gradient row of every id that occurs, by id (clause EMB-8); all other rows are +0.

    `ids` has any shape `S`; `cotangent` holds the bits of `S + (H,)` elements of `source`; a row holds the bits of
    `H` elements of `target`. Each element is rounded once.
    """
    flat = ids.reshape(-1)
    columns = cotangent.reshape(flat.size, cotangent.shape[-1])
    return {
        int(row): np.array(
            [sum_rounded(map(int, column), source, target) for column in columns[flat == row].T], dtype=target.uint
        )
        for row in np.unique(flat)
    }


def gather(ids: np.ndarray[Any, Any], table: Bits) -> Bits:
    """Return the bits of `table[ids, :]` (clause EMB-1): `table` `[V, H]`, `ids` any shape `S`, the result `S + (H,)`.

    Raises:
        IndexError: an id is outside `[0, V)`, in the wording of clause EMB-4.
    """
    flat = ids.reshape(-1)
    bad = np.flatnonzero((flat < 0) | (flat >= table.shape[0]))
    if bad.size:
        raise errors.ids_out_of_range(
            count=bad.size,
            total=flat.size,
            position=tuple(int(i) for i in np.unravel_index(bad[0], ids.shape)),
            value=int(flat[bad[0]]),
            vocab_size=table.shape[0],
            call="exact.gather",
        )
    return table[ids.astype(np.int64)].reshape(*ids.shape, table.shape[1])


@functools.cache
def _widened(fmt: FloatFormat) -> Bits:
    single = FORMATS["float32"]
    rows = []
    for element in range(1 << fmt.width):
        magnitude = element & (fmt.sign - 1)
        sign = single.sign if element & fmt.sign else 0
        if magnitude <= fmt.largest_finite:
            significand, exponent = decode(magnitude, fmt)
            rows.append(sign | round_once(significand, exponent, single))
        else:
            payload = magnitude & fmt.mantissa
            rows.append(sign | single.exponent | payload << (single.mantissa_bits - fmt.mantissa_bits))
    return np.array(rows, dtype=single.uint)


def widen(bits: Bits, fmt: FloatFormat) -> Bits:
    """Return the float32 bits of the same values (clause EMB-2): exact, so no element is rounded.

    A NaN keeps its sign and has its payload left-aligned; none is quieted. float32 comes back as it is.

    Raises:
        TypeError: `fmt` is float64, which float32 cannot hold.
    """
    if fmt.name == "float64":
        raise errors.bad_type("weight", "dtype float64", "a dtype that float32 can hold", "exact.widen")
    return bits if fmt.name == "float32" else _widened(fmt)[bits]
