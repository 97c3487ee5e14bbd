"""From an exact sum to one element of any format: one rounding, to nearest and ties to even, in integer operations.

A framework's casts do not do: torch's float64 -> bfloat16 and float64 -> float16 go by float32 and so round twice
(1 + 2**-8 + 2**-40 becomes 1.0 instead of 1.0078125). They also follow the processor's flush-to-zero mode; shifts and
additions of integers follow nothing.

The last step before is rounding to odd: where an exact value lies between two neighbouring float64, take the one
whose last bit is set. Rounding that to a format with at least two bits less gives what rounding the exact value gives
(Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xref.bits import FORMATS, FloatFormat

__all__ = ["collapse", "copied", "encode", "encode_pair", "overlaid"]

_DOUBLE = FORMATS["float64"]
_INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(s, e)` in float64 with `s` the rounded sum and `s + e == a + b` exactly (Knuth, TAOCP 2, 4.2.2)."""
    s = a + b
    c = s - a
    return s, (a - (s - c)) + (b - c)


def to_odd(hi: torch.Tensor, lo: torch.Tensor) -> torch.Tensor:
    """Return `hi + lo` rounded to odd; `hi` is that sum rounded to nearest, in float64."""
    inexact = lo != 0
    # Cut towards zero (one step down where `lo` points there), then set the last bit if anything was cut.
    towards_zero = inexact & ((hi < 0) != (lo < 0))
    return ((hi.view(torch.int64) - towards_zero.to(torch.int64)) | inexact.to(torch.int64)).view(torch.float64)


def collapse(bins: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `(hi, lo)`, float64, that round as the exact sum of the bins does: `hi` is that sum rounded to nearest.

    Up to two bins may be any float64 whose sum does not overflow, and `hi + lo` is their sum. More than two come from the
    top down, all but the first as digits: not negative, and each a multiple of a unit that all later ones together stay below.

    Proof for more: as long as `lo + digit` is exact, so is `hi + lo`. The first time that it is not, `lo` is not 0, so `hi`
    has all its 53 bits and `lo` is at most half its last one. Rounded to odd, `lo` ends in a set bit of weight w,
    and the digit's unit, which did not fit, is at most w / 2; so the digits to come are worth less than w / 2 together.
    From here on, what is computed and the exact sum both stay strictly between the two even multiples of w
    that are next to each other there, and every point at which a rounding to 53 bits or fewer decides is an even multiple of w.
    """
    hi = bins[0]
    if len(bins) == 1:
        return hi, torch.zeros_like(hi)
    hi, lo = two_sum(hi, bins[1])
    for digit in bins[2:]:
        hi, lo = two_sum(hi, to_odd(*two_sum(lo, digit)))
    return hi, lo


def encode_pair(hi: torch.Tensor, lo: torch.Tensor, target: FloatFormat, *, scale: int = 0) -> torch.Tensor:
    """Return the bits of `(hi + lo) * 2**scale` rounded once to `target`; the pair comes from `collapse`."""
    rounded = hi if target.mantissa_bits == _DOUBLE.mantissa_bits else to_odd(hi, lo)
    return encode(rounded.view(torch.int64), _DOUBLE, target, scale=scale)


def encode(bits: torch.Tensor, source: FloatFormat, target: FloatFormat, *, scale: int = 0) -> torch.Tensor:
    """Return the bits of the elements times `2**scale`, rounded once to `target` (clause EMB-11 for specials).

    Args:
        bits: the elements of `source`, float32 in int32 or float64 in int64, any shape; kept.
        source: at least as many mantissa bits as `target`.
        target: the result's format. A zero is +0, a NaN the canonical one, an infinity or an overflow the infinity of its sign
            and in float8_e4m3fn, which has none, the NaN.
        scale: a power of two that multiplies the elements.

    Returns:
        The shape of `bits`, in the integer dtype of the target's width.
    """
    magnitude = bits & (source.sign - 1)
    field = magnitude >> source.mantissa_bits
    significand = (magnitude & source.mantissa) | (field != 0).to(bits.dtype).bitwise_left_shift_(source.mantissa_bits)
    # The exponent field that the element would have in the target; below 1 it is subnormal there and loses further bits.
    field = field.clamp_(min=1).add_(target.bias - source.bias + scale)
    lost = source.mantissa_bits - target.mantissa_bits + 1 - field.clamp(max=1)
    lost.clamp_(max=source.width - 3)  # more than the significand has: nothing is left
    steps = significand >> lost
    unit = torch.ones_like(lost).bitwise_left_shift_(lost)
    rest = significand & (unit - 1)
    steps += (2 * rest + (steps & 1)) > unit
    # A carry out of the mantissa lands in the exponent field by the same addition: the encoding is monotone.
    field.clamp_(1, (target.largest_finite >> target.mantissa_bits) + 1)
    codes = field.sub_(1).bitwise_left_shift_(target.mantissa_bits).add_(steps)
    codes.clamp_(max=target.largest_finite + 1)
    negative = (bits < 0) & (significand != 0)
    if not target.has_inf:
        negative &= codes <= target.largest_finite
    codes |= negative.to(bits.dtype).bitwise_left_shift_(target.width - 1)
    return codes.masked_fill_(magnitude > source.exponent, target.nan).to(_INTEGERS[target.width])


def copied(bits: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the bits of sums of one element each, in its own format: no rounding; a zero is +0, a NaN the canonical one."""
    magnitude = bits & (fmt.sign - 1)
    is_nan = magnitude > (fmt.exponent if fmt.has_inf else fmt.largest_finite)
    return bits.masked_fill(magnitude == 0, 0).masked_fill_(is_nan, fmt.nan)


def overlaid(codes: torch.Tensor, special: torch.Tensor | None, target: FloatFormat) -> torch.Tensor:
    """Return `codes`, bits of `target`, with those of `special` (float64, or None for none) where that is not 0."""
    if special is None:
        return codes
    return torch.where(special == 0, codes, encode(special.view(torch.int64), _DOUBLE, target))
