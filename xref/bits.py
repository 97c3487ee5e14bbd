"""Floating-point elements as integers: the only view in which xref compares anything.

`==` on floats cannot decide whether two tables are the same: it calls -0.0 and 0.0 equal, and a NaN unequal to
itself. Here an element is the unsigned integer of its bits, so two elements are the same exactly if their integers
are. NumPy is all that this module needs; `from_bits` alone loads ml_dtypes, because NumPy has no bfloat16 or
float8 of its own.

Not promised: anything about arithmetic. Values, sums and roundings are in `xref.exact`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np

from xref import errors

__all__ = [
    "FORMATS",
    "FloatFormat",
    "as_bits",
    "digest",
    "format_of",
    "from_bits",
    "is_inf",
    "is_nan",
    "is_signalling_nan",
    "is_subnormal",
    "is_zero",
    "ulp_distance",
]

Bits = np.ndarray[Any, np.dtype[Any]]


@dataclasses.dataclass(frozen=True)
class FloatFormat:
    """One table dtype of the contract: sign bit, then `exponent_bits`, then `mantissa_bits`.

    `has_inf` is false for float8_e4m3fn alone, whose largest exponent holds finite values and one NaN a sign
    (Micikevicius et al., "FP8 formats for deep learning", 2022); the others are IEEE 754 interchange formats or
    truncations of one.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_inf: bool = True

    @property
    def width(self) -> int:
        """Bits in one element."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def uint(self) -> np.dtype[Any]:
        """The NumPy unsigned integer dtype of the same width."""
        return np.dtype(f"u{self.width // 8}")

    @property
    def sign(self) -> int:
        """The sign bit; an element without it is the magnitude."""
        return 1 << (self.width - 1)

    @property
    def mantissa(self) -> int:
        """The mantissa field, all ones."""
        return (1 << self.mantissa_bits) - 1

    @property
    def exponent(self) -> int:
        """The exponent field, all ones, in its place."""
        return self.sign - 1 - self.mantissa

    @property
    def bias(self) -> int:
        """A normal element's value is `1.mantissa * 2**(exponent - bias)`."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def quantum(self) -> int:
        """The smallest subnormal is `2**quantum`."""
        return 1 - self.bias - self.mantissa_bits

    @property
    def largest_finite(self) -> int:
        """Bits of the largest finite magnitude."""
        return self.exponent - 1 if self.has_inf else self.sign - 2

    @property
    def largest_number(self) -> int:
        """Bits of the largest magnitude that is no NaN: infinity, or where there is none, the largest finite one."""
        return self.exponent if self.has_inf else self.largest_finite

    @property
    def nan(self) -> int:
        """Bits of the canonical quiet NaN: sign clear, the top mantissa bit alone (float8_e4m3fn: its only one)."""
        return self.exponent | (1 << (self.mantissa_bits - 1) if self.has_inf else self.mantissa)


FORMATS = {
    f.name: f
    for f in (
        FloatFormat("float64", 11, 52),
        FloatFormat("float32", 8, 23),
        FloatFormat("bfloat16", 8, 7),
        FloatFormat("float16", 5, 10),
        FloatFormat("float8_e4m3fn", 4, 3, has_inf=False),
        FloatFormat("float8_e5m2", 5, 2),
    )
}


def format_of(name: str, *, where: str = "dtype", call: str = "bits.format_of") -> FloatFormat:
    """Return the format called `name`.

    Raises:
        TypeError: `name` is not a table dtype of the contract.
    """
    if name not in FORMATS:
        raise errors.bad_type(where, name, f"one of {', '.join(FORMATS)}", call)
    return FORMATS[name]


def as_bits(array: np.ndarray[Any, Any]) -> Bits:
    """Return the elements of a NumPy array (ml_dtypes included) as unsigned integers: same shape, same memory.

    Raises:
        TypeError: the array's dtype is not a table dtype of the contract.
    """
    fmt = format_of(array.dtype.name, where="array", call="bits.as_bits")
    return array.view(fmt.uint.newbyteorder(array.dtype.byteorder))


def from_bits(bits: Bits, name: str) -> np.ndarray[Any, Any]:
    """Return unsigned integers as a NumPy array of dtype `name`: same shape, same memory. Inverse of `as_bits`.

    Raises:
        TypeError: `name` is not a table dtype of the contract, or `bits` has another width or is not unsigned.
    """
    expected = format_of(name, call="bits.from_bits").uint
    if bits.dtype != expected:
        raise errors.bad_type("bits", bits.dtype, f"{expected.name} for {name}", "bits.from_bits")
    if hasattr(np, name):
        return bits.view(name)
    import ml_dtypes

    return bits.view(getattr(ml_dtypes, name))


def _magnitude(bits: Bits, fmt: FloatFormat) -> Bits:
    return bits & fmt.uint.type(fmt.sign - 1)


def is_nan(bits: Bits, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where elements are NaN, quiet or signalling."""
    return _magnitude(bits, fmt) > fmt.largest_number


def is_signalling_nan(bits: Bits, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where elements are NaN with the top mantissa bit clear; float8_e4m3fn has none."""
    if not fmt.has_inf:
        return np.zeros(bits.shape, dtype=np.bool_)
    return is_nan(bits, fmt) & ((bits & fmt.uint.type(1 << (fmt.mantissa_bits - 1))) == 0)


def is_inf(bits: Bits, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where elements are an infinity of either sign; float8_e4m3fn has none."""
    if not fmt.has_inf:
        return np.zeros(bits.shape, dtype=np.bool_)
    return _magnitude(bits, fmt) == fmt.exponent


def is_zero(bits: Bits, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where elements are +0 or -0."""
    return _magnitude(bits, fmt) == 0


def is_subnormal(bits: Bits, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where elements are nonzero with an exponent field of zero."""
    magnitude = _magnitude(bits, fmt)
    return (magnitude != 0) & (magnitude <= fmt.mantissa)


def ulp_distance(got: int, expected: int, fmt: FloatFormat) -> int | None:
    """Return how many steps of representable values lie between two elements, or None if either is NaN.

    -0 and +0 are 0 steps apart although their bits differ; infinity is one step past the largest finite value.
    """
    steps = []
    for element in (got, expected):
        magnitude = element & (fmt.sign - 1)
        if magnitude > fmt.largest_number:
            return None
        steps.append(-magnitude if element & fmt.sign else magnitude)
    return abs(steps[0] - steps[1])


def digest(bits: Bits, name: str) -> str:
    """Return the SHA-256, in hex, of an array's dtype name, shape and elements (row-major, little-endian).

    `name` is the dtype that the elements mean (`bits` alone cannot tell bfloat16 from float16).
    """
    state = hashlib.sha256(f"{name} {list(bits.shape)}\n".encode())
    state.update(bits.astype(bits.dtype.newbyteorder("<"), order="C", copy=False).reshape(-1).view(np.uint8).data)
    return state.hexdigest()
