"""Exact sums as integers: digits of 32 bits, in int64, on one fixed grid.

That is a Kulisch accumulator ("Computer arithmetic and validity", 2008), or superaccumulator, of the digits that occur,
with carries put off (Neal, "Fast exact summation using small and large superaccumulators", 2015).

Digit j of a sum weighs 2**(32 j). Carried, every digit but the top one lies in [0, 2**32), and the top one has the
sign: each sum then has one representation, whatever the order of what went into it. Digits of one place add as
integers, so the sums of several ranks add by adding their digits, and int64 leaves room for 2**30 of them before the
next carry. `digits` is `[K, R, C]` everywhere: the digits `lowest` to `lowest + K - 1` of `[R, C]` sums.
"""

from __future__ import annotations

import torch

from xref.bits import FloatFormat
from xref.torch_ops.exact_sums.bins import Bin, Sums
from xref.torch_ops.exact_sums.rounding import collapse, encode_pair, overlaid

__all__ = ["add_bin", "carry", "rounded", "rounded_sums", "window"]

_BITS = 32
_MASK = (1 << _BITS) - 1
# The top digit starts at least 8 bits above the largest element: a sum of n elements has a top digit below n / 2**8.
_HEADROOM = 40
# Digits -31 to 28 are float64 as they are, with room to add them. For others `_rounded_wide` scales by 600.
_LOWEST, _HIGHEST, _SCALE = -31, 28, 600
# The lowest digit that it takes to round a sum of magnitude 1 or more: results and their half-way points are multiples
# of 2**-53 then, and so of digit -2's unit, 2**-64, but not of digit -1's, 2**-32.
_GUARD = -2


def window(top: int, bottom: int) -> tuple[int, int]:
    """Return `(lowest, K)` for sums of elements below `2**top` that are multiples of `2**bottom`.

    Of up to 2**60 elements, over any number of calls: then the top digit is below 2**52, and float64 holds it.
    """
    lowest = bottom // _BITS
    return lowest, (top + _HEADROOM) // _BITS - lowest + 1


def add_bin(digits: torch.Tensor, lowest: int, part: Bin, slots: torch.Tensor) -> None:
    """Add a bin, `[S, C]`, to the sums at `slots`, `[S]` int64 and all different: in place, without carrying.

    No digit but the top one changes by 2**33 or more.
    """
    value = (part.total * 2.0**-part.unit).to(torch.int64)  # at most 2**53, exact
    place, offset = divmod(part.unit - part.scale, _BITS)
    place -= lowest
    last = min(place + 2, digits.shape[0] - 1)
    for k in range(place, last):
        digits[k].index_add_(0, slots, (value << offset) & _MASK)
        value = value >> (_BITS - offset)
        offset = 0
    digits[last].index_add_(0, slots, value << offset)


def carry(digits: torch.Tensor) -> torch.Tensor:
    """Bring every digit but the top one into `[0, 2**32)`, in place; the sums stay the same. Returns `digits`."""
    for k in range(digits.shape[0] - 1):
        digits[k + 1] += digits[k] >> _BITS
        digits[k] &= _MASK
    return digits


def rounded(digits: torch.Tensor, lowest: int, target: FloatFormat) -> torch.Tensor:
    """Return the bits of the sums, carried, rounded once to `target`: `[R, C]` in the integer dtype of its width."""
    if lowest >= _LOWEST and lowest + digits.shape[0] - 1 <= _HIGHEST:
        return encode_pair(*collapse(_as_bins(digits, lowest, 0)), target)
    return _rounded_wide(digits, lowest, target)


def rounded_sums(sums: Sums, target: FloatFormat) -> torch.Tensor:
    """Return the bits of a block's sums rounded once to `target`: `[R, C]` in the integer dtype of its width."""
    totals = [part.total for part in sums.bins]
    if sums.top is None or sums.bottom is None or (len(totals) <= 2 and all(part.scale == 0 for part in sums.bins)):
        codes = encode_pair(*collapse(totals), target, unit=sums.bottom)
    else:
        lowest, places = window(sums.top, sums.bottom)
        digits = torch.zeros((places, *totals[0].shape), dtype=torch.int64, device=totals[0].device)
        everywhere = torch.arange(digits.shape[1], device=digits.device)
        for part in sums.bins:
            add_bin(digits, lowest, part, everywhere)
        codes = rounded(carry(digits), lowest, target)
    return overlaid(codes, sums.special, target)


def _as_bins(digits: torch.Tensor, lowest: int, scale: int) -> list[torch.Tensor]:
    """Return what the digits stand for, times `2**scale`, as float64 from the top down."""
    bins = [
        digit.to(torch.float64).mul_(2.0 ** (_BITS * place + scale)) for place, digit in enumerate(digits, start=lowest)
    ]
    return bins[::-1]


def _rounded_wide(digits: torch.Tensor, lowest: int, target: FloatFormat) -> torch.Tensor:
    """Return what `rounded` does where float64 cannot hold all the digits at one scale.

    A magnitude of 1 or more has its leading bit in digit 0 or above, so what decides is in the digits from -2 up and
    in whether anything is left below: a bit under digit -2 stands for that. A magnitude below 1 has nothing but
    zeros in the digits 0 and above. Both are computed, the one scaled down and the other up, and the right one taken.
    """
    negative = digits[-1] < 0
    sign = 1.0 - 2.0 * negative.to(torch.float64)
    magnitude = carry(torch.where(negative, -digits, digits))
    zero = torch.zeros_like(sign)

    def encoded(bins: list[torch.Tensor], scale: int) -> torch.Tensor:
        hi, lo = collapse([*bins, zero, zero])
        return encode_pair(hi * sign, None if lo is None else lo * sign, target, scale=-scale)

    first, point = max(_GUARD - lowest, 0), max(-lowest, 0)
    rest = (magnitude[:first] != 0).any(0).to(torch.float64).mul_(2.0 ** (_BITS * (_GUARD - 1) - _SCALE))
    large = encoded([*_as_bins(magnitude[first:], lowest + first, -_SCALE), rest], -_SCALE)
    small = encoded(_as_bins(magnitude[:point], lowest, _SCALE), _SCALE)
    return torch.where((magnitude[point:] != 0).any(0), large, small)
