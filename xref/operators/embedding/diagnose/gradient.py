"""What the elements of a wrong gradient are consistent with, beside the exact sums and the cotangents they are of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.operators.embedding import faults
from xref.operators.embedding.diagnose.rows import Found
from xref.operators.embedding.diagnose.sums import models_of
from xref.operators.embedding.evidence import GradientEvidence

__all__ = ["from_gradient"]

_WIDE = 8  # columns
_ELEMENTS, _CONTRIBUTIONS = 64, 20_000  # wrong elements that are looked into, and what they are sums of
_ADDED = 3000  # contributions that are added one after another

_LIKE = {
    # The very bits:
    faults.ACCUMULATED_IN_LOW_PRECISION: (0.985, "a row holds what a sum in the cotangent's own dtype gives"),
    faults.DUPLICATES_OVERWRITE: (0.96, "a row holds the cotangent of one of its tokens alone"),
    faults.FREQUENCY_SCALED: (0.95, "a row holds the mean of its cotangents"),
    faults.COTANGENT_CAST_FIRST: (0.94, "a row holds the sum of cotangents that were rounded first"),
    faults.DUPLICATES_CAPPED: (0.9, "a row holds the sum of its first tokens alone"),
    faults.SUBNORMAL_SUMS_FLUSHED: (0.9, "a sum below the smallest normal number is zero"),
    faults.GRADIENT_ACCUMULATES_ACROSS_CALLS: (0.7, "a row holds a multiple of its sum"),
    faults.GRADIENT_SCALED: (0.6, "rows hold their sum times one number"),
}
"""How much it speaks for a fault that elements are like its own, and what was seen."""


def from_gradient(seen: GradientEvidence) -> Iterator[Found]:
    """Yield what speaks for which fault."""
    known, got, ids = seen.exact, seen.got, seen.ids
    vocab, hidden = got.shape
    unnamed = np.delete(got, known.rows, axis=0)
    if unnamed.any():
        yield 0.6, faults.UNTOUCHED_ROWS_NOT_ZERO, f"{np.count_nonzero(unnamed.any(axis=1))} rows that no id names"
    wrong = [(int(r), int(h)) for r, h in np.argwhere(seen.off)]
    wrong.sort(key=lambda place: -int(known.counts[place[0]]))  # the longest sums tell most
    if not ids.size:
        return
    if wrong and not got[known.rows].any():
        # Of so few columns a kernel that leaves out the last ones leaves nothing either.
        yield 0.7 if hidden < _WIDE else 0.97, faults.GRADIENT_LOST, "every row of the gradient is zero"
        if known.rows.tolist() in ([0], [1], [vocab - 1]):
            what = f"the one row that tokens name, {known.rows[0]}, has no gradient"
            yield 0.68 if hidden < _WIDE else 0.96, faults.PADDING_GRADIENT_DROPPED, what
        if hidden < _WIDE:
            yield 0.69, faults.COLUMNS_PAST_A_TILE_WRONG, f"rows of {hidden} columns are zero"
        return
    for n, (fault, what) in enumerate(models_of(ids, seen.cotangent, got, seen.call.source, seen.call.result)):
        # Of one row alone, tokens past a number are also those of one id past it.
        alone = fault is faults.TOKENS_PAST_A_TILE_WRONG and len(known.rows) == 1
        yield 0.88 if alone else 0.98 - 0.01 * n, fault, what
    yield from _from_specials(seen)
    yield from _from_likenesses(seen, wrong)
    rows = sorted({int(known.rows[r]) for r, _ in wrong})
    if rows and len(known.rows) > 1 and not got[rows].any():
        if set(rows) <= {0, 1, vocab - 1}:
            what = f"row {rows[0]} has no gradient although tokens name it"
            yield 0.97, faults.PADDING_GRADIENT_DROPPED, what
        else:
            yield 0.75, faults.GRADIENT_LOST, f"rows {rows[:6]} have no gradient although tokens name them"
    columns = {h for _, h in wrong}
    if columns and min(columns) > 0 and columns == set(range(min(columns), hidden)):
        what = f"columns {min(columns)} to {hidden - 1} are wrong"
        yield 0.8, faults.COLUMNS_PAST_A_TILE_WRONG, what


def _from_likenesses(seen: GradientEvidence, wrong: list[tuple[int, int]]) -> Iterator[Found]:
    """Yield what most wrong elements are like, one by one."""
    source, target = FORMATS[seen.call.source], FORMATS[seen.call.result]
    flat = seen.ids.reshape(-1)
    elements = seen.cotangent.reshape(flat.size, seen.got.shape[1])
    tests: dict[str, list[bool]] = {}
    nearly, added = [], 0
    for r, h in wrong[:_ELEMENTS]:
        added += int(seen.exact.counts[r])
        if added > _CONTRIBUTIONS and tests:
            break
        row = int(seen.exact.rows[r])
        parts, here = [int(e) for e in elements[flat == row][:, h]], int(seen.got[row, h])
        for name, holds in likenesses(parts, here, source, target).items():
            tests.setdefault(name, []).append(holds)
        nearly.append(_nearly(parts, here, source, target))
    for fault, (weight, what) in _LIKE.items():
        share = float(np.mean(tests.get(fault.name, [False])))
        if share > 0.8:
            yield weight * share, fault, what
    if nearly and all(nearly):
        what = "a sum is further off than float32 can be, and no further than 16 bits can be"
        yield 0.4, faults.ACCUMULATED_IN_LOW_PRECISION, what


def likenesses(parts: list[int], got: int, source: FloatFormat, target: FloatFormat) -> dict[str, bool]:
    """Return what one element of a gradient is like, by fault; `parts` are its contributions in token order."""
    values = [_value(part, source) for part in parts]
    here, total = _value(got, target), sum(values)
    unit = 2.0**-target.mantissa_bits
    ratio = here / total if total else 0.0
    cast = math.nan
    if source.width > target.width:
        small = (exact.round_once(*exact.decode(part, source), target) for part in parts if _finite(part, source))
        cast = sum(_value(part, target) for part in small)

    def near(value: float) -> bool:
        return abs(here - value) <= 4 * unit * abs(value)

    return {
        faults.DUPLICATES_OVERWRITE.name: len(parts) > 1 and (near(values[0]) or near(values[-1])),
        faults.FREQUENCY_SCALED.name: len(parts) > 1 and near(total / len(parts)),
        faults.DUPLICATES_CAPPED.name: len(parts) > 2 and any(map(near, list(itertools.accumulate(values))[1:-1])),
        faults.ACCUMULATED_IN_LOW_PRECISION.name: here != 0
        and got in (_sequential(parts, source, FORMATS[name], target) for name in ("bfloat16", "float16")),
        faults.COTANGENT_CAST_FIRST.name: near(cast) and not near(total),
        faults.GRADIENT_ACCUMULATES_ACROSS_CALLS.name: 1.5 < ratio < 1000 and abs(ratio - round(ratio)) < 4 * unit,
        faults.GRADIENT_SCALED.name: 1e-4 < abs(ratio) < 1e4 and abs(ratio - 1) > 0.01,
        faults.SUBNORMAL_SUMS_FLUSHED.name: here == 0
        and 0 < abs(total) < 2.0 ** (target.quantum + target.mantissa_bits),
    }


def _nearly(parts: list[int], got: int, source: FloatFormat, target: FloatFormat) -> bool:
    """Return whether an element is no further from its sum than sums of 16 bits are; what overflows is not looked at.

    A sum that stops growing loses nearly all of itself, and none of another sign.
    """
    values, here = [_value(part, source) for part in parts], _value(got, target)
    size = sum(map(abs, values))
    if not math.isfinite(size) or not math.isfinite(here):
        return math.isfinite(size)
    return len(parts) > 1 and abs(here - sum(values)) <= min(1.0, len(parts) * 2.0**-8) * size * (1 + 2.0**-6)


def _value(element: int, fmt: FloatFormat) -> float:
    """Return an element as a float64: for likeness only."""
    magnitude = element & (fmt.sign - 1)
    if magnitude > fmt.largest_finite:
        return float("nan") if magnitude > fmt.exponent or not fmt.has_inf else float("inf")
    return math.ldexp(*exact.decode(element, fmt))


def _finite(element: int, fmt: FloatFormat) -> bool:
    return (element & (fmt.sign - 1)) <= fmt.largest_finite


def _sequential(parts: list[int], source: FloatFormat, within: FloatFormat, target: FloatFormat) -> int:
    """Return what a sum in token order gives if every partial sum is rounded to `within`; -1: it overflows."""
    total = 0
    for part in parts[:_ADDED]:
        if not _finite(part, source) or not _finite(total, within):
            return -1
        (a, p), (b, q) = exact.decode(total, within), exact.decode(part, source)
        low = min(p, q)
        total = exact.round_once((a << (p - low)) + (b << (q - low)), low, within)
    return exact.round_once(*exact.decode(total, within), target) if _finite(total, within) else -1


def _from_specials(seen: GradientEvidence) -> Iterator[Found]:
    target = FORMATS[seen.call.result]
    special = seen.exact.nan | (seen.exact.infinite != 0)
    magnitude: Bits = seen.got[seen.exact.rows] & target.uint.type(target.sign - 1)
    if (magnitude == target.largest_finite).any():
        yield 0.9, faults.SPECIALS_DROPPED, "a sum ends at the largest finite number"
    finite = magnitude <= target.largest_finite
    if (special & finite).any():
        yield 0.96, faults.SPECIALS_DROPPED, "a NaN or an infinity among the cotangents is not in the sum"
    elif special.any() and (~special & ~finite).any():
        yield 0.5, faults.SPECIALS_DROPPED, "a sum of finite cotangents is none"
