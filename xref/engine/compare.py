"""What an output must be, and the first element that is not: bits decide, never values.

A rule of an operator is `Exactly` these bits, or each element `Within` two: an operator that rounds in a way of its
own choice is enclosed, with no tolerance to choose.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np

from xref import bits
from xref.bits import Bits, FloatFormat
from xref.engine.blocks import differ

__all__ = ["Exactly", "Mismatch", "Rule", "Within", "mismatch"]


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Elements that are not what they must be: the first of them, and how many there are."""

    index: tuple[int, ...]
    got: str
    """Bits in hex."""
    expected: str
    ulp: int | None
    """Steps of representable values between the two; None where either is NaN."""
    differing: int
    elements: int

    def __str__(self) -> str:
        distance = "NaN" if self.ulp is None else f"{self.ulp} ulp"
        where = ", ".join(map(str, self.index))
        return (
            f"out[{where}]: got {self.got}, expected {self.expected}"
            f" ({distance}; {self.differing} of {self.elements} elements differ)"
        )


def mismatch(got: Bits, expected: Bits, fmt: FloatFormat) -> Mismatch | None:
    """Return the first difference in bits between two arrays of one shape, or None if there is none."""
    return _first(got != expected, got, expected, fmt) if differ(got, expected) else None


def _first(wrong: Any, got: Bits, expected: Bits, fmt: FloatFormat, shown: str = "") -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
    digits = fmt.width // 4
    return Mismatch(
        index=index,
        got=f"0x{int(got[index]):0{digits}x}",
        expected=shown or f"0x{int(expected[index]):0{digits}x}",
        ulp=bits.ulp_distance(int(got[index]), int(expected[index]), fmt),
        differing=int(np.count_nonzero(wrong)),
        elements=got.size,
    )


@dataclasses.dataclass(frozen=True)
class Exactly:
    """Every element has just these bits."""

    bits: Bits
    fmt: FloatFormat

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return self.bits.shape

    def miss(self, got: Bits) -> Mismatch | None:
        """Return the first element of an output of that shape that is wrong, or None."""
        return mismatch(got, self.bits, self.fmt)


@dataclasses.dataclass(frozen=True)
class Within:
    """Every element is a number between two, both included; where both are NaN, it is some NaN.

    Zeros of both signs are one number here, as the enclosure is of real numbers.
    """

    low: Bits
    high: Bits
    fmt: FloatFormat

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the output."""
        return self.low.shape

    def miss(self, got: Bits) -> Mismatch | None:
        """Return the first element of an output of that shape that is outside, or None."""
        place = [self._place(each) for each in (self.low, got, self.high)]
        nan = bits.is_nan(got, self.fmt)
        due = bits.is_nan(self.low, self.fmt) & bits.is_nan(self.high, self.fmt)
        wrong = np.where(nan | due, nan != due, (place[1] < place[0]) | (place[1] > place[2]))
        if not wrong.any():
            return None
        index = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        low, high = (f"0x{int(each[index]):0{self.fmt.width // 4}x}" for each in (self.low, self.high))
        nearest = np.where(place[1] > place[2], self.high, self.low)
        return _first(wrong, got, nearest, self.fmt, low if low == high else f"{low} to {high}")

    def _place(self, elements: Bits) -> Any:
        """Return where elements stand among all that there are, zeros at 0."""
        magnitude = (elements & self.fmt.uint.type(self.fmt.sign - 1)).astype(np.int64)
        return np.where((elements & self.fmt.uint.type(self.fmt.sign)) != 0, -magnitude, magnitude)


Rule = Exactly | Within
