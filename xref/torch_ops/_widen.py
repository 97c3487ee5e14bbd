"""Exact widening to float32 by integer operations (clause EMB-2).

A framework's cast does not do: torch's own float16 -> float32 on a CPU turns one NaN into different ones by its
position in the row (full vectors are converted by another instruction than the tail).
"""

from __future__ import annotations

import torch

from xref.bits import FORMATS, FloatFormat

_SINGLE = FORMATS["float32"]
_INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def integer_dtype(fmt: FloatFormat) -> torch.dtype:
    """Return the integer dtype of the width of `fmt`, in which this folder holds its elements."""
    return _INTEGERS[fmt.width]


def integer_view(elements: torch.Tensor) -> torch.Tensor:
    """Return the elements as integers of the same width: same shape, strides and memory."""
    return elements.view(_INTEGERS[8 * elements.element_size()])


def widen_into(out: torch.Tensor, rows: torch.Tensor, fmt: FloatFormat) -> None:
    """Write into `out`, int32, the float32 bits of `rows`, of the same shape and the narrower format `fmt`.

    No element is rounded: every value of the narrower formats is a normal float32 or zero.
    """
    out.copy_(integer_view(rows))
    if fmt.exponent_bits == _SINGLE.exponent_bits:  # bfloat16: float32 cut short
        out.bitwise_left_shift_(_SINGLE.width - fmt.width)
        return
    sign = (out & fmt.sign).bitwise_left_shift_(_SINGLE.width - fmt.width)
    magnitude = out.bitwise_and_(fmt.sign - 1)
    # A subnormal is `magnitude` steps of 2**quantum: the integer as a float32 is exact and normal, and so
    # is its exponent field after adding `quantum` to it. Zero has no leading bit and stays as it is.
    subnormal = magnitude.to(torch.float32).view(torch.int32)
    subnormal += (magnitude != 0).to(torch.int32).mul_(fmt.quantum << _SINGLE.mantissa_bits)
    is_subnormal = magnitude <= fmt.mantissa
    # Infinities and NaNs: the exponent field full, the payload left-aligned.
    special = (magnitude > fmt.largest_finite).to(torch.int32).mul_(_SINGLE.exponent)
    magnitude.bitwise_left_shift_(_SINGLE.mantissa_bits - fmt.mantissa_bits)
    magnitude.add_((_SINGLE.bias - fmt.bias) << _SINGLE.mantissa_bits).bitwise_or_(special)
    torch.where(is_subnormal, subnormal, magnitude, out=out)
    out.bitwise_or_(sign)
