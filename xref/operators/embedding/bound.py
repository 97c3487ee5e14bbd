"""How far a gradient may be from the exact one: a proven bound, evaluated in integers.

Let n contributions have the exact sum S, and A be the sum of their magnitudes. Summed in any order in a format of unit
roundoff u, the computed sum is off by at most gamma(n - 1) * A, with gamma(k) = k u / (1 - k u) (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., section 4.2); rounded once more to a result of unit roundoff r, by at most
r * (|S| + gamma(n - 1) * A) more, or half the smallest subnormal. So with U = 1/u, R = 1/r and k = n - 1

    (|got - S| - half) * (U - k) * R  <=  k * A * (R + 1) + |S| * (U - k)

in which everything is an integer, counted in units that divide all elements. There is no tolerance to choose. A kernel
that is more accurate than any reference passes, whatever its order.

The bound knows no overflow: where A * (1 + gamma(n - 1)) is past the largest finite value of the format of the sum,
partial sums may overflow in one order and not in another, and nothing is said of that element. Elsewhere the sum before
the last rounding is somewhere in S -/+ gamma(n - 1) * A: the result may be an infinity if one end of that rounds to it,
and must be one if both do.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from xref import bits as bit
from xref.bits import FORMATS, Bits, FloatFormat
from xref.inputs import Ids

__all__ = ["Exact", "Misses", "exact_of", "first_miss", "misses"]

Integers = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True)
class Exact:
    """What is known of the exact gradient: Python integers, in units of `2**quantum`."""

    rows: Ids
    """The rows that a token names, ascending: `[R]`."""
    counts: Ids
    """How many tokens name each: `[R]`."""
    sums: Integers
    """S, `[R, H]`; the specials left out."""
    magnitudes: Integers
    """A, `[R, H]`."""
    nan: Integers
    """Where the sum is NaN: a NaN among the contributions, or infinities of both signs. `[R, H]`, bool."""
    infinite: Integers
    """The sign of an infinite sum, 0 where it is not: `[R, H]`."""
    quantum: int


def exact_of(ids: Ids, cotangent: Bits, source: FloatFormat) -> Exact:
    """Return the exact sums of `S + (H,)` elements of `source` by row."""
    flat = ids.reshape(-1).astype(np.int64)
    elements = cotangent.reshape(flat.size, cotangent.shape[-1])
    rows, places, counts = np.unique(flat, return_inverse=True, return_counts=True)
    magnitude = elements & source.uint.type(source.sign - 1)
    finite = magnitude <= source.largest_finite
    field = (magnitude >> source.uint.type(source.mantissa_bits)).astype(np.int64)
    significand = (magnitude & source.uint.type(source.mantissa)).astype(np.int64)
    significand |= np.where(field > 0, np.int64(source.mantissa + 1), 0)
    significand = np.where(finite, significand, 0)
    shift = np.where(significand > 0, np.maximum(field - 1, 0), 0)
    low = int(shift[significand > 0].min(initial=int(shift.max(initial=0))))
    width = int(shift.max(initial=0)) - low + source.mantissa_bits + 1 + flat.size.bit_length()
    kind: Any = np.int64 if width < 63 else object  # the machine's integers where they hold any sum
    values = significand.astype(kind) << np.maximum(shift - low, 0).astype(kind)
    negative = (elements & source.uint.type(source.sign)) != 0
    shape = (rows.size, elements.shape[1])
    sums, magnitudes = np.zeros(shape, kind), np.zeros(shape, kind)
    np.add.at(sums, places, np.where(negative, -values, values))
    np.add.at(magnitudes, places, values)
    nans, plus, minus = (np.zeros(shape, np.int64) for _ in range(3))
    if not finite.all():
        np.add.at(nans, places, bit.is_nan(elements, source).astype(np.int64))
        infinities = bit.is_inf(elements, source)
        np.add.at(plus, places, (infinities & ~negative).astype(np.int64))
        np.add.at(minus, places, (infinities & negative).astype(np.int64))
    is_nan = (nans > 0) | ((plus > 0) & (minus > 0))
    return Exact(
        rows=rows,
        counts=counts,
        sums=sums.astype(object),
        magnitudes=magnitudes.astype(object),
        nan=is_nan,
        infinite=np.where(is_nan, 0, (plus > 0).astype(np.int64) - (minus > 0)),
        quantum=source.quantum + low,
    )


@dataclasses.dataclass(frozen=True)
class Misses:
    """Where a gradient is not what it may be: `[R, H]`, bool."""

    sums: Integers
    """A finite sum past the bound."""
    specials: Integers
    """A NaN, infinity or overflow that is not there, or there and should not be."""
    zero_signs: Integers
    """An exact zero sum that is not +0."""
    first: tuple[int, int] | None
    """The first of them, as `(row of the table, column)`."""
    message: str
    """What is wrong there."""


def misses(
    got: Bits,
    exact: Exact,
    target: FloatFormat,
    accumulate: FloatFormat,
    *,
    flushes: bool = False,
    saturates: bool = False,
) -> Misses:
    """Compare the named rows of a `[V, H]` gradient, bits of `target`, with what the bound allows.

    `accumulate` is the format that the candidate sums in; `flushes` says that the framework takes subnormals for zero
    on this device, which the bound then allows for every contribution and for the result. `saturates` says that its
    own casts to a format without infinities give the largest finite value where a number is too large: the result of
    finite contributions may then be that instead of NaN.
    """
    rows = got[exact.rows]
    magnitude = rows & target.uint.type(target.sign - 1)
    is_nan, is_finite = bit.is_nan(rows, target), magnitude <= target.largest_finite
    value, unit = _values(rows, target, is_finite), min(target.quantum - 1, exact.quantum)
    sums = exact.sums << (exact.quantum - unit)
    magnitudes = exact.magnitudes << (exact.quantum - unit)
    k = (exact.counts - 1).astype(object)[:, None]
    roundoff, last = 1 << (accumulate.mantissa_bits + 1), 1 << (target.mantissa_bits + 1)
    half: Any = 1 << (target.quantum - 1 - unit)
    if flushes:
        normal = FORMATS["float32"].quantum + FORMATS["float32"].mantissa_bits
        # At most n times something is lost: every contribution, or sums of some; and at the end once.
        # What is lost early is rounded with the rest, by far less than its double.
        half = half + 2 * (k + 2) * (1 << max(normal, target.quantum + target.mantissa_bits) - unit)
    off = abs((value << (target.quantum - unit)) - sums)
    room = roundoff - k  # not positive where the format cannot sum that many at all
    within = (off - half) * room * last <= k * magnitudes * (last + 1) + abs(sums) * room
    within |= (room <= 0).astype(bool)
    unsure = _rounds_past(magnitudes * roundoff, room, accumulate, unit)
    # The sum before the last rounding lies between these two, over `room`.
    low, high = sums * room - k * magnitudes, sums * room + k * magnitudes
    negative = (rows & target.uint.type(target.sign)) != 0
    if target.has_inf:
        plus, minus = ~is_finite & ~is_nan & ~negative, ~is_finite & ~is_nan & negative
    else:
        plus = minus = is_nan
    may_overflow = plus & _rounds_past(high, room, target, unit) | minus & _rounds_past(-low, room, target, unit)
    must_overflow = _rounds_past(low, room, target, unit) | _rounds_past(-high, room, target, unit)
    plain = ~exact.nan & (exact.infinite == 0)
    bad_sum = plain & is_finite & ~within.astype(bool) & ~unsure
    infinite = plus & (exact.infinite > 0) | minus & (exact.infinite < 0)
    infinite |= unsure & is_nan  # the finite ones alone may come to an infinity of the other sign
    bad_special = exact.nan & ~is_nan | (exact.infinite != 0) & ~infinite
    bad_special |= plain & ~unsure & np.where(is_finite, must_overflow, ~may_overflow)
    if saturates and not target.has_inf:
        past = np.where(negative, _rounds_past(-low, room, target, unit), _rounds_past(high, room, target, unit))
        saturated = plain & past & (magnitude == target.largest_finite)
        bad_sum, bad_special = bad_sum & ~saturated, bad_special & ~saturated
    zero = plain & (exact.sums == 0) & is_finite & (magnitude == 0) & (rows != 0)
    first, message = first_miss(bad_sum | bad_special, got, exact, target)
    return Misses(bad_sum, bad_special, zero, first, message)


def _values(rows: Bits, target: FloatFormat, finite: Integers) -> Integers:
    """Return finite elements as integers in units of the target's quantum."""
    magnitude = np.where(finite, rows & target.uint.type(target.sign - 1), target.uint.type(0))
    field = (magnitude >> target.uint.type(target.mantissa_bits)).astype(np.int64)
    significand = (magnitude & target.uint.type(target.mantissa)).astype(np.int64)
    significand |= np.where(field > 0, np.int64(target.mantissa + 1), 0)
    values = significand.astype(object) << np.maximum(field - 1, 0).astype(object)
    return np.where((rows & target.uint.type(target.sign)) != 0, -values, values)


def _rounds_past(value: Integers, divisor: Integers, fmt: FloatFormat, unit: int) -> Integers:
    """Return where `value / divisor`, in units of `2**unit`, rounds past the largest finite magnitude.

    Where the divisor is not positive, it counts as past.
    """
    field, mantissa = divmod(fmt.largest_finite, 1 << fmt.mantissa_bits)
    largest = 2 * (mantissa + (1 << fmt.mantissa_bits)) + 1  # and half a unit in its last place
    limit = (largest << (fmt.quantum + field - 2 - unit)) * divisor
    # Half-way goes to the even one: past the largest, but not in float8_e4m3fn.
    past = value > limit if mantissa % 2 == 0 else value >= limit
    return (past | (divisor <= 0)).astype(bool)


def first_miss(wrong: Integers, got: Bits, exact: Exact, target: FloatFormat) -> tuple[tuple[int, int] | None, str]:
    """Return `(row, column)` of the first element that `wrong`, `[R, H]`, marks, and what is wrong there."""
    if not wrong.any():
        return None, ""
    r, h = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    row, count = int(exact.rows[r]), int(exact.counts[r])
    element = got[row : row + 1, h : h + 1]
    magnitude = int(element[0, 0]) & (target.sign - 1)
    finite = magnitude <= target.largest_finite
    shown = _shown(int(_values(element, target, np.array([[finite]]))[0, 0]), target.quantum)
    if not finite:
        shown = "NaN" if magnitude > target.exponent or not target.has_inf else "an infinity"
    expected = _shown(int(exact.sums[r, h]), exact.quantum)
    if exact.nan[r, h]:
        expected = "NaN"
    elif exact.infinite[r, h]:
        expected = "inf" if exact.infinite[r, h] > 0 else "-inf"
    differing = int(np.count_nonzero(wrong))
    held = f"0x{int(element[0, 0]):0{target.width // 4}x}"
    return (row, h), (
        f"gradient[{row}, {h}]: got {shown} ({held}), expected {expected} within the bound of"
        f" {count} contribution{'s' * (count != 1)} ({differing} of {wrong.size} elements differ)"
    )


def _shown(value: int, exponent: int) -> str:
    """Return `value * 2**exponent` in nine digits: for messages only."""
    size = max(abs(value).bit_length() - 60, 0)
    try:
        return f"{math.ldexp(value >> size, exponent + size):.9g}"
    except OverflowError:
        return f"{'-' if value < 0 else ''}2**{abs(value).bit_length() - 1 + exponent}"
