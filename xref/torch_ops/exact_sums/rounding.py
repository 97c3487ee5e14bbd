"""From an exact sum to one element of any format: one rounding, to nearest and ties to even.

A framework's casts alone do not do: torch's float64 -> bfloat16 and float64 -> float16 go by float32 and so round twice
(1 + 2**-8 + 2**-40 becomes 1.0 instead of 1.0078125), and casts follow the processor's flush-to-zero mode. In general
(`encode`) the only rounding is of an exact quotient to an integer, and the element is put together from integers. Where
no sum is subnormal in float32 and none needs two roundings, a cast is that one rounding (`_cast`).

Before it, a sum in two float64 is rounded to odd: where it lies between two neighbouring float64, take the one whose
last bit is set. Rounding that to a format with at least two bits less gives what rounding the sum itself gives (Boldo
and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from xref.bits import FORMATS, FloatFormat
from xref.torch_ops._widen import integer_dtype

__all__ = ["collapse", "copied", "encode", "encode_pair", "overlaid"]

_DOUBLE, _SINGLE = FORMATS["float64"], FORMATS["float32"]
_CAST = ("float32", "bfloat16", "float16")  # what torch casts float32 to by one rounding, with infinities
_SMALLEST_NORMAL = 1 - _SINGLE.bias
_BEYOND_SINGLE = (1 << (_DOUBLE.mantissa_bits - _SINGLE.mantissa_bits)) - 1  # the bits of a mantissa that float32 drops


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(s, e)` in float64: `s` is the rounded sum, and `s + e == a + b` exactly (Knuth, TAOCP 2, 4.2.2)."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def to_odd(hi: torch.Tensor, lo: torch.Tensor) -> torch.Tensor:
    """Return `hi + lo` rounded to odd; `hi` is that sum rounded to nearest, in float64."""
    inexact = lo != 0
    # Cut towards zero (one step down where `lo` points there), then set the last bit if anything was cut.
    towards_zero = inexact & ((hi < 0) != (lo < 0))
    return ((hi.view(torch.int64) - towards_zero.to(torch.int64)) | inexact.to(torch.int64)).view(torch.float64)


def collapse(bins: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return `(hi, lo)`, float64, that round as the exact sum of the bins does; `hi` is that sum rounded to nearest.

    One or two bins may be any float64 whose sum does not overflow, and `hi + lo` is their sum; of one, `lo` is None
    for 0. More than two come from the top down, all but the first as digits: not negative, and each a multiple of a
    unit that all later ones together stay below.

    Proof for more: as long as `lo + digit` is exact, so is `hi + lo`. The first time that it is not, `lo` is not 0,
    so `hi` has all its 53 bits and `lo` is at most half its last one. Rounded to odd, `lo` ends in a set bit of
    weight w, and the digit's unit, which did not fit, is at most w / 2; so the digits to come are worth less than
    w / 2 together. From here on, what is computed and the exact sum both stay strictly between the same two even
    multiples of w, neighbours of each other, and every point at which a rounding to 53 bits or fewer decides is an
    even multiple of w.
    """
    if len(bins) == 1:
        return bins[0], None
    hi, lo = two_sum(bins[0], bins[1])
    for digit in bins[2:]:
        hi, lo = two_sum(hi, to_odd(*two_sum(lo, digit)))
    return hi, lo


def encode_pair(
    hi: torch.Tensor, lo: torch.Tensor | None, target: FloatFormat, *, scale: int = 0, unit: int | None = None
) -> torch.Tensor:
    """Return the bits of `(hi + lo) * 2**scale` rounded once to `target`; the pair is finite, from `collapse`.

    `unit` says that `hi + lo` is a multiple of `2**unit`, and no -0.0.
    """
    rounded = hi if lo is None or target == _DOUBLE else to_odd(hi, lo)
    if scale == 0 and unit is not None and unit >= _SMALLEST_NORMAL and target.name in _CAST:
        return _cast(rounded, target)
    return encode(rounded, target, scale=scale, has_nan=False)


def _cast(values: torch.Tensor, target: FloatFormat) -> torch.Tensor:
    """Return the bits of finite float64 values rounded once to float32, bfloat16 or float16.

    No value may be subnormal in float32, nor -0.0. Then float64 -> float32 is one rounding, whether the processor
    flushes subnormals or not. For the narrower formats, what float32 has no room for is first put into its last bit,
    rounding to odd: that cast is then exact, and the next one the only rounding.
    """
    if target != _SINGLE:
        bits = values.view(torch.int64)
        values = (bits & _BEYOND_SINGLE).add_(_BEYOND_SINGLE).bitwise_or_(bits).bitwise_and_(~_BEYOND_SINGLE)
        values = values.view(torch.float64)
    return values.to(getattr(torch, target.name)).view(integer_dtype(target))


def encode(values: torch.Tensor, target: FloatFormat, *, scale: int = 0, has_nan: bool = True) -> torch.Tensor:
    """Return the bits of float64 values times `2**scale`, rounded once to `target` (clause EMB-11 for specials).

    An element's unit, the weight of its last mantissa bit in the target, follows from its exponent or, if that is too
    small, from the target's smallest. The value in units is exact, for a unit is a power of two, and is rounded to an
    integer. The code is that integer plus an exponent field; a carry out of the mantissa lands in the field by the
    same addition, for the encoding is monotone.

    Args:
        values: float64, any shape; kept.
        target: the result's format. A zero is +0, a NaN the canonical one, an infinity or an overflow the infinity of
            its sign and in float8_e4m3fn, which has none, the NaN.
        scale: a power of two that multiplies the values. With a positive one and float64 as the target, what comes of
            values below 2**-971 means nothing: their units are too small for float64.
        has_nan: whether there may be a NaN among the values.

    Returns:
        The shape of `values`, in the integer dtype of the target's width.
    """
    bits = values.view(torch.int64)
    if target == _DOUBLE and scale == 0:
        return copied(bits.clone(), target)
    magnitude = values.abs().clamp_(max=_overflow(target, scale))
    smallest = (_DOUBLE.bias - target.bias + 1 - scale) << _DOUBLE.mantissa_bits
    exponent = (magnitude.view(torch.int64) & _DOUBLE.exponent).clamp_(min=smallest)
    units_in_one = ((2 * _DOUBLE.bias + target.mantissa_bits) << _DOUBLE.mantissa_bits) - exponent
    codes = magnitude.mul_(units_in_one.view(torch.float64)).round_().to(torch.int64)  # round_: ties to even
    codes += (exponent - smallest) >> (_DOUBLE.mantissa_bits - target.mantissa_bits)
    negative = (bits < 0) & (bits != torch.iinfo(torch.int64).min)
    if not target.has_inf:
        negative &= codes <= target.largest_finite
    codes.add_(negative, alpha=-target.sign)  # sets the sign bit, in two's complement
    if has_nan:
        codes.masked_fill_(values.isnan(), target.nan)
    return codes.to(integer_dtype(target))


def _overflow(target: FloatFormat, scale: int) -> float:
    """Return the value, over `2**scale`, that comes after the largest finite one, were there no infinity or NaN."""
    field, mantissa = divmod(target.largest_finite + 1, 1 << target.mantissa_bits)
    weight = target.quantum + field - 1 - scale
    return math.ldexp((1 << target.mantissa_bits) + mantissa, min(weight, _DOUBLE.bias - target.mantissa_bits))


def copied(bits: torch.Tensor, fmt: FloatFormat, *, has_nan: bool = True) -> torch.Tensor:
    """Return the bits of sums of one element each in its own format: a zero is +0, a NaN the canonical one.

    Nothing is rounded. `bits` are in the integer dtype of the width of `fmt`; they are overwritten. `has_nan` says
    whether there may be a NaN among them.
    """
    if has_nan:
        is_nan = (bits & (fmt.sign - 1)) > fmt.largest_number
        bits.masked_fill_(is_nan, fmt.nan)
    minus_zero = fmt.sign if bits.dtype == torch.uint8 else torch.iinfo(bits.dtype).min
    return bits.masked_fill_(bits == minus_zero, 0)


def overlaid(codes: torch.Tensor, special: torch.Tensor | None, target: FloatFormat) -> torch.Tensor:
    """Return `codes`, bits of `target`, with those of `special` (float64; None for none) where that is not 0."""
    return codes if special is None else torch.where(special == 0, codes, encode(special, target))
