"""Exact sums of segments in float64 bins.

float64 adds exactly as long as every partial sum is a multiple of some unit 2**u and at most 2**(u + 53): then the
order of the additions cannot matter, not even that of atomics. Nothing here assumes that; it is read off the block
at hand. Let every element be below 2**top in magnitude and a multiple of 2**bottom, both from the exponent fields of
the elements, and let no segment have more than 2**L of them; L is at most 36 (`_arguments.MOST_TOKENS`).

One bin. If top + L - bottom <= 53, every partial sum is a multiple of 2**bottom and at most 2**(top + L)
<= 2**(bottom + 53): exact. That is the common case for 16-bit cotangents.

Several bins. Else take units u_0 = top + L - 52 > u_1 > ... > u_last = bottom, each at most 53 - L below the one
before, and split each element into digits, d_k a multiple of 2**u_k: round what is left of it to a multiple of
2**u_k, and go on with the remainder, which is at most 2**(u_k - 1). So |d_0| <= 2**top = 2**(u_0 + 52 - L) and
|d_k| <= 2**(u_(k-1) - 1) <= 2**(u_k + 52 - L): every partial sum of bin k is a multiple of 2**u_k and at most
2**(u_k + 52), exact. To round x to a multiple of 2**u, add and subtract c = 1.5 * 2**(u + 52): as |x| <= 2**(u + 51),
the sum lies between 2**(u + 52) and 2**(u + 53), where float64 has the spacing 2**u; the subtraction and the
remainder are exact: it is ExtractVector (Rump, Ogita and Oishi, "Accurate floating-point summation part I: faithful
rounding", 2008). Sums in bins, so that their bits are the same in any order, are known from reproducible summation
(Ahrens, Demmel and Nguyen, "Algorithms for efficient reproducible floating point summation", 2020), which keeps the
bins that its accuracy needs; here they hold all bits. There are at most 128 bins, 64 for each half of float64's range.

The arithmetic stays away from the ends of float64's range, so nothing overflows or becomes subnormal here, and the
processor's flush-to-zero mode changes nothing: subnormal elements are read as integers, and a float64 block near an
end of the range is split into its elements below 1, scaled up, and the others, scaled down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from xref.bits import FloatFormat
from xref.torch_ops._host import fetched

__all__ = ["Bin", "Sums", "measured", "segment_sums", "widened"]

# A float64 block is summed as it is while its elements are multiples of 2**-1000 and below 2**900: with up to 2**36
# tokens, and the 52 bits that c lies above its unit, all stays normal and finite. Otherwise 600 moves each half well
# inside.
_LOWEST_BOTTOM, _HIGHEST_TOP, _SCALE = -1000, 900, 600


class Bin(NamedTuple):
    """Part of an exact sum: `total * 2**-scale`.

    `total` is float64 `[R, C]`, multiples of `2**unit` and at most `2**(unit + 53)` in magnitude.
    """

    total: torch.Tensor
    unit: int
    scale: int


class Sums(NamedTuple):
    """The sums of a block's segments: what its finite elements add up to, and what its specials do.

    bins: their exact sum is that of the finite elements, the largest units first; never empty. A total may be -0.0
        where each segment has one element, and nowhere else.
    special: float64 `[R, C]`, the sum of the NaNs and infinities, 0 where there are none; None if the block has none.
    top, bottom: all finite elements are below `2**top` and multiples of `2**bottom`; None if all are zero.
    """

    bins: list[Bin]
    special: torch.Tensor | None
    top: int | None
    bottom: int | None


def segment_sums(
    bits: torch.Tensor,
    segment_of: torch.Tensor,
    segments: int,
    longest: int,
    fmt: FloatFormat,
    *,
    within: tuple[int, int] | None = None,
) -> Sums:
    """Return the exact sum of every segment of a block, column by column: no element is rounded.

    Waits for the device once unless `within` is given, and a few times more for specials and for float64 at the ends of
    its range.

    Args:
        bits: `[T, C]`, contiguous, the elements of `fmt` in the integer dtype of its width; not empty; kept.
        segment_of: `[T]` int64, the segment of each row of `bits`, in `[0, segments)`.
        segments: R, how many there are; each has at least one row.
        longest: no segment has more rows, at most 2**36; 1 only if all have one.
        fmt: any format of the contract.
        within: what `measured` finds of these elements and perhaps others; None if that is not known.
    """

    def total(part: torch.Tensor) -> torch.Tensor:
        if segments == 1:
            return part.sum(0, keepdim=True).add_(0.0)  # a sum of -0.0 alone may be -0.0
        if longest == 1:
            return part
        return part.new_zeros(segments, part.shape[1]).index_add_(0, segment_of, part)

    smallest, largest = within or measured(bits, fmt)()
    special = None
    if largest > fmt.largest_finite:
        # inf + inf, inf - inf and NaN + x come out right in any order, once they are among themselves.
        is_special = (bits & (fmt.sign - 1)) > fmt.largest_finite
        special = total(widened(bits.masked_fill(~is_special, 0), fmt))
        bits = bits.masked_fill(is_special, 0)
        smallest, largest = measured(bits, fmt)()
    if largest == 0:
        zeros = torch.zeros((segments, bits.shape[1]), dtype=torch.float64, device=bits.device)
        return Sums([Bin(zeros, 0, 0)], special, None, None)
    bins = []
    for part, low, high, scale in _halves(bits, smallest, largest, fmt):
        values = widened(part, fmt, scale=scale, subnormals=low <= fmt.mantissa)
        bins += _split(values, _top(high, fmt) + scale, _bottom(low, fmt) + scale, scale, longest, total)
    return Sums(bins, special, _top(largest, fmt), _bottom(smallest, fmt))


def widened(bits: torch.Tensor, fmt: FloatFormat, *, scale: int = 0, subnormals: bool = False) -> torch.Tensor:
    """Return elements times `2**scale` as float64: exact for finite ones; a NaN is some NaN.

    `bits` is contiguous, in the integer dtype of the width of `fmt`. `subnormals` says that there may be some: they
    are then read as integers, for the processor may be set to take subnormal operands for 0.
    """
    values = bits.view(getattr(torch, fmt.name)).to(torch.float64)
    if scale:
        values = values.mul(2.0**scale)
    # Formats of few exponent bits have none in float32, and without a scale float64's own stay what they are.
    if subnormals and fmt.exponent_bits >= 8 and (scale or fmt.name != "float64"):
        magnitude = bits & (fmt.sign - 1)
        steps = magnitude.to(torch.float64).mul_(2.0 ** (fmt.quantum + scale))
        steps = torch.where(bits < 0, -steps, steps)
        values = torch.where(magnitude <= fmt.mantissa, steps, values)
    return values


def measured(bits: torch.Tensor, fmt: FloatFormat) -> Callable[[], tuple[int, int]]:
    """Begin to look for the smallest magnitude that is not zero and the largest; the call returned gives their bits.

    If all are zero, both are 0. On a GPU that call waits for this search alone, and for nothing launched after it.
    """
    mask = fmt.sign - 1
    magnitude = bits & mask
    largest = magnitude.amax()
    smallest = magnitude.sub_(1).bitwise_and_(mask).amin()  # one less, a zero wraps to the largest of all
    pair = fetched(torch.stack((smallest, largest)))

    def read() -> tuple[int, int]:
        low, high = pair().tolist()
        return (low + 1, high) if high else (0, 0)

    return read


def _top(magnitude: int, fmt: FloatFormat) -> int:
    """Return the power of two that magnitudes up to this one are below."""
    return max(magnitude >> fmt.mantissa_bits, 1) - fmt.bias + 1


def _bottom(magnitude: int, fmt: FloatFormat) -> int:
    """Return the power of two that magnitudes from this one on are multiples of."""
    return max(magnitude >> fmt.mantissa_bits, 1) - 1 + fmt.quantum


def _halves(
    bits: torch.Tensor, smallest: int, largest: int, fmt: FloatFormat
) -> Iterator[tuple[torch.Tensor, int, int, int]]:
    """Yield what can be summed at one scale: bits, their smallest and largest magnitude, and the scale."""
    if fmt.name != "float64" or (_bottom(smallest, fmt) >= _LOWEST_BOTTOM and _top(largest, fmt) <= _HIGHEST_TOP):
        yield bits, smallest, largest, 0
        return
    one = fmt.bias << fmt.mantissa_bits
    is_large = (bits & (fmt.sign - 1)) >= one
    for others, scale in ((~is_large, -_SCALE), (is_large, _SCALE)):
        part = bits.masked_fill(others, 0)
        low, high = measured(part, fmt)()
        if high:
            yield part, low, high, scale


def _split(
    values: torch.Tensor, top: int, bottom: int, scale: int, longest: int, total: Callable[[torch.Tensor], torch.Tensor]
) -> list[Bin]:
    """Return the exact sum of `values` as bins, by ExtractVector as proven above; `values` is overwritten."""
    log_count = (longest - 1).bit_length()  # the L of the proof
    if top + log_count - bottom <= 53:
        return [Bin(total(values), bottom, scale)]
    log_count = max(log_count, 1)  # c needs |x| <= 2**(u + 51)
    bins = []
    unit = top + log_count - 52
    while unit > bottom:
        c = 1.5 * 2.0 ** (unit + 52)
        digit = (values + c).sub_(c)
        values.sub_(digit)
        bins.append(Bin(total(digit), unit, scale))
        unit = max(unit - (53 - log_count), bottom)
    bins.append(Bin(total(values), bottom, scale))
    return bins
