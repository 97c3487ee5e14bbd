"""What came back for ids out of range, and which faults it is consistent with."""

from __future__ import annotations

import numpy as np

from xref import bits
from xref.bits import FORMATS, Bits
from xref.operators.embedding import faults
from xref.operators.embedding.bound import exact_of, misses
from xref.spec import Suspect

__all__ = ["HIDDEN", "is_sum", "suspects_of_row", "suspects_of_sums"]

HIDDEN = 5
"""Columns of the tables that such ids are looked up in."""

# The widest first: what is narrowed further shows in ids that are in range.
_NARROWED = {
    32: faults.IDS_NARROWED_TO_32_BITS,
    16: faults.IDS_NARROWED_TO_16_BITS,
    8: faults.IDS_NARROWED_TO_8_BITS,
}


def suspects_of_row(row: Bits, value: int, rows: Bits, dtype: str) -> tuple[Suspect, ...]:
    """Return what a row `[H]` that came back for an id out of range speaks for.

    Args:
        row: bits of `dtype`.
        value: the id.
        rows: what a table gives for each of its ids, `[V, H]`.
        dtype: of the result.
    """
    if (row == 0).all() or bits.is_nan(row, FORMATS[dtype]).all():
        what = "zeros" if (row == 0).all() else "NaN"
        return (Suspect(0.9, faults.BAD_IDS_FILLED.name, f"id {value} gave a row of {what}"),)
    if not len(rows):
        return (Suspect(0.8, faults.BAD_IDS_UNCHECKED.name, f"id {value} of an empty table gave a row"),)
    vocab = len(rows)
    held = set(np.flatnonzero((rows == row).all(axis=1)).tolist())
    gave = f"id {value} gave row {min(held, default=0)}"
    found = []
    if value < 0 and held & {value + vocab, value % vocab}:
        found.append((faults.NEGATIVE_IDS_WRAP, f"{gave} of {vocab}, counted from the end"))
    for width, fault in _NARROWED.items():
        half = 2 ** (width - 1)
        readings = {value % 2**width, (value + half) % 2**width - half}  # unsigned, and signed
        if value not in readings and held & readings:
            found.append((fault, f"{gave}: {value} in {width} bits"))
    if held & {0 if value < 0 else vocab - 1}:
        found.append((faults.IDS_CLAMPED, f"{gave}, the {'first' if value < 0 else 'last'} one"))
    if not found:
        found.append((faults.BAD_IDS_UNCHECKED, gave if held else f"id {value} gave what is no row of the table"))
    return tuple(Suspect(0.9 - 0.02 * n, fault.name, seen) for n, (fault, seen) in enumerate(found))


def is_sum(got: Bits, ids: list[int], cotangent: Bits, dtype: str) -> bool:
    """Return whether a gradient `[V, H]` is that of the ids in range, `[T]`, others adding nothing; all in `dtype`."""
    fmt, vocab = FORMATS[dtype], got.shape[0] if got.ndim else 0
    inside = np.array([0 <= each < vocab for each in ids], dtype=np.bool_)
    if got.shape != (vocab, cotangent.shape[1]):
        return False
    rows = np.array([each for each in ids if 0 <= each < vocab], dtype=np.int64)
    known = exact_of(rows, cotangent[inside], fmt)
    return not misses(got, known, fmt, fmt).message and not np.delete(got, known.rows, axis=0).any()


def suspects_of_sums(got: Bits, ids: list[int], cotangent: Bits, dtype: str) -> tuple[Suspect, ...]:
    """Return what a gradient that is not the sum of the ids in range speaks for: arguments as of `is_sum`."""
    vocab = got.shape[0] if got.ndim else 0
    if not vocab:
        return ()
    clamped = [min(max(each, 0), vocab - 1) for each in ids]
    wrapped = [each + vocab if each < 0 else each for each in ids]
    if is_sum(got, clamped, cotangent, dtype):
        return (
            Suspect(0.9, faults.IDS_CLAMPED.name, "it is the sum with ids out of range as the first or last row's"),
        )
    if is_sum(got, wrapped, cotangent, dtype):
        return (Suspect(0.9, faults.NEGATIVE_IDS_WRAP.name, "it is the sum with ids below zero counted from the end"),)
    return (Suspect(0.7, faults.BAD_IDS_UNCHECKED.name, "ids out of range added something"),)
