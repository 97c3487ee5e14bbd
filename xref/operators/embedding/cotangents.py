"""The cotangents that gradients are taken of: families of bits, each a function of shape and format alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xref import exact
from xref.bits import Bits, FloatFormat
from xref.inputs import make_table, words

__all__ = ["SPECIALS", "cotangent_families", "make_cotangent"]

_Make = Callable[[int, int, FloatFormat], Bits]

SPECIALS = ("edge", "negative-zero", "specials")
"""Families with NaN, infinities, overflow or signed zeros: what they are evidence of is EMB-11."""


def _random(tokens: int, hidden: int, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return words(tokens * hidden, seed=11).reshape(tokens, hidden)


def _one(fmt: FloatFormat) -> int:
    return fmt.bias << fmt.mantissa_bits


def _equal(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All 1.0: a sum in the table's own dtype stops growing where its spacing is 2."""
    return np.full((tokens, hidden), _one(fmt), dtype=fmt.uint)


def _fractions(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All just above 1/128 with the last bit set: no partial sum is short."""
    field = max(fmt.bias - 7, 1)
    return np.full((tokens, hidden), field << fmt.mantissa_bits | 1, dtype=fmt.uint)


def _gaussian(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    return make_table("gaussian", tokens, hidden, fmt)


def _wide(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Any finite element: all signs, exponents and mantissas alike, subnormals included."""
    magnitude = _random(tokens, hidden, fmt) % np.uint64(fmt.largest_finite + 1)
    sign = (_random(hidden, tokens, fmt).T & np.uint64(1)) * np.uint64(fmt.sign)
    return (magnitude | sign).astype(fmt.uint)


def _cancelling(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Large, small and minus large in turn, so that a sum that rounds on the way loses what is left at the end."""
    small = _gaussian(tokens, hidden, fmt)
    field = min(fmt.bias + 20, fmt.largest_finite >> fmt.mantissa_bits) - 1
    large = np.full((tokens, hidden), field << fmt.mantissa_bits, dtype=fmt.uint)
    turn = np.arange(tokens)[:, None] % 3
    sign = np.where(turn == 2, fmt.uint.type(fmt.sign), fmt.uint.type(0))
    return np.where(turn == 1, small, large | sign)


def _turns(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """One 1.0 in each token, its column in turn: whoever loses, repeats or misplaces a single token has another sum."""
    turn = np.arange(tokens)[:, None] % hidden == np.arange(hidden)
    return np.where(turn, fmt.uint.type(_one(fmt)), fmt.uint.type(0))


def _late(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All about 1/128, and a 4.0 at the end: whoever stops early misses most of the sum."""
    elements = _fractions(tokens, hidden, fmt)
    elements[-1:] = (fmt.bias + 2) << fmt.mantissa_bits
    return elements


def _subnormal(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    sign = (_random(hidden, tokens, fmt).T & np.uint64(1)) * np.uint64(fmt.sign)
    return (_random(tokens, hidden, fmt) % np.uint64(fmt.mantissa + 1) | sign).astype(fmt.uint)


def _ties(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """1, half a unit of it in the last place, and the smallest subnormal up, down or not at all: about half-way."""
    half = (fmt.bias - fmt.mantissa_bits - 1) << fmt.mantissa_bits
    rows = np.array([_one(fmt), max(half, 1), 1, fmt.sign | 1], dtype=fmt.uint)
    return np.broadcast_to(rows[np.arange(tokens) % 4][:, None], (tokens, hidden)).copy()


def _edge(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """The largest finite element of either sign, and half a unit in its last place: overflow or not, by one bit."""
    field = fmt.largest_finite >> fmt.mantissa_bits
    half = max(field - fmt.mantissa_bits - 1, 1) << fmt.mantissa_bits
    rows = np.array([fmt.largest_finite, half, fmt.largest_finite | fmt.sign, fmt.largest_finite], dtype=fmt.uint)
    return rows[(_random(tokens, hidden, fmt) % np.uint64(4)).astype(np.int64)]


def _negative_zero(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    return np.full((tokens, hidden), fmt.sign, dtype=fmt.uint)


def _specials(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Gaussian values with now and then a NaN, quiet or signalling, and infinities of both signs."""
    found = _gaussian(tokens, hidden, fmt)
    kinds = [fmt.nan, fmt.nan | fmt.sign]
    if fmt.has_inf:
        kinds += [fmt.exponent, fmt.exponent | fmt.sign, fmt.exponent, fmt.exponent | 1]
    draw = _random(tokens, hidden, fmt) % np.uint64(8 * len(kinds))
    for n, kind in enumerate(kinds):
        found[draw == n] = kind
    return found


_FAMILIES: dict[str, _Make] = {
    "equal": _equal,
    "fractions": _fractions,
    "gaussian": _gaussian,
    "turns": _turns,
    "late": _late,
    "wide": _wide,
    "cancelling": _cancelling,
    "subnormal": _subnormal,
    "ties": _ties,
    "edge": _edge,
    "negative-zero": _negative_zero,
    "specials": _specials,
}


def _whole(tokens: int, hidden: int, fmt: FloatFormat, seed: int) -> Bits:
    """Whole numbers of -4 to 4, without 0: their sums are exact in any order and any format."""
    drawn = words(tokens * hidden, seed=seed)
    size = (drawn % np.uint64(4)).astype(np.int64)
    elements = np.array([exact.round_once(n, 0, fmt) for n in range(1, 5)], fmt.uint)[size]
    signed = np.where(drawn >> np.uint64(63), elements | fmt.uint.type(fmt.sign), elements)
    return signed.reshape(tokens, hidden)


def cotangent_families() -> tuple[str, ...]:
    """Return the names that `make_cotangent` takes."""
    return (*_FAMILIES, "whole")


def make_cotangent(family: str, shape: tuple[int, ...], hidden: int, fmt: FloatFormat, *, seed: int = 1) -> Bits:
    """Return the bits of `S + (H,)` elements of a format; `seed` tells apart what is `whole` alone.

    Raises:
        KeyError: there is no such family.
    """
    tokens = int(np.prod(shape, dtype=np.int64))
    made = _whole(tokens, hidden, fmt, seed) if family == "whole" else _FAMILIES[family](tokens, hidden, fmt)
    return made.reshape(*shape, hidden)
