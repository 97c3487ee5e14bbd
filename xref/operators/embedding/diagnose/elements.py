"""What was done to the elements of rows that are the right ones: rounded, flushed, scaled, replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xref import bits as bit
from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.operators.embedding import faults
from xref.operators.embedding.diagnose.rows import Found, Wrong
from xref.spec import Fault

__all__ = ["from_elements"]

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

_SAMPLE, _LAST_BITS = 400, 4
_NARROW = {
    "bfloat16": faults.ROUNDED_THROUGH_BFLOAT16,
    "float16": faults.ROUNDED_THROUGH_FLOAT16,
    "float8_e5m2": faults.ROUNDED_THROUGH_FLOAT8,
    "float8_e4m3fn": faults.ROUNDED_THROUGH_FLOAT8,
}


def from_elements(wrong: Wrong) -> Iterator[Found]:
    """Yield what the wrong elements have in common."""
    got, expected, fmt = wrong.got[wrong.differs], wrong.expected[wrong.differs], wrong.fmt
    if not got.size:
        return

    def share(mask: Mask) -> float:
        return float(np.count_nonzero(mask)) / got.size

    def first(mask: Any = slice(None)) -> str:
        return f"0x{int(expected[mask][0]):x} became 0x{int(got[mask][0]):x}"

    rounded = _rounding(got, expected, fmt)
    if rounded is not None:
        yield 0.99, rounded, f"{first()}, as rounding and widening again gives"
        return
    nan, zero, infinite = bit.is_nan(expected, fmt), bit.is_zero(expected, fmt), bit.is_inf(expected, fmt)
    subnormal = bit.is_subnormal(expected, fmt) | _was_subnormal(expected, wrong.source, fmt)
    got_nan, got_zero = bit.is_nan(got, fmt), bit.is_zero(got, fmt)
    poisoned = got_nan & ~nan
    if poisoned.any() and wrong.table.shape[0] == 1:
        yield 0.9, faults.SOME_ROWS_WRONG, f"the only row of a table has NaN where it has none: {first(poisoned)}"
    elif poisoned.any():
        if _spread_by_tokens(wrong):
            what = f"NaN in just those columns where another token of the batch has one: {first(poisoned)}"
            yield 0.995, faults.NEIGHBOUR_DEPENDENT, what
        weight = (0.98 if _only_others_are_nan(wrong) else 0.8) * (0.6 + 0.4 * share(poisoned))
        yield weight, faults.ONE_HOT_PRODUCT, f"NaN where the row has none: {first(poisoned)}"
    kinds = [
        (nan & got_nan, faults.NAN_CHANGED, "a NaN has other bits"),
        (nan & ~got_nan, faults.NAN_REPLACED, "a NaN is none any more"),
        (infinite & ~got_nan, faults.INFINITY_REPLACED, "an infinity is finite"),
        (zero & got_zero, faults.NEGATIVE_ZERO_LOST, "a zero has the other sign"),
        (subnormal & got_zero, faults.SUBNORMALS_FLUSHED, "a subnormal became zero"),
    ]
    spared = bit.is_subnormal(wrong.expected[~wrong.differs], fmt).any()
    for mask, fault, how in kinds:
        if mask.any():
            weight = 0.95 if share(mask) > 0.999 else 0.35 + 0.4 * share(mask)
            doubt = 0.5 if spared and fault is faults.SUBNORMALS_FLUSHED else 1.0
            yield weight * doubt, fault, f"{how}: {first(mask)}"
    ordinary = ~(nan | infinite | zero | subnormal | poisoned)
    if ordinary.any():
        yield from _from_ordinary(got[ordinary], expected[ordinary], fmt)
    elif (zero & got_zero).any() and nan.any() and share(nan | (zero & got_zero) | poisoned) > 0.999:
        what = f"zeros lost their sign and NaN changed, as in sums of products: {first()}"
        yield 0.96, faults.ONE_HOT_PRODUCT, what


def _spread_by_tokens(wrong: Wrong) -> bool:
    """Return whether all is NaN in columns where a token has a special, and right where only other rows have one."""
    rest = wrong.fmt.uint.type(wrong.fmt.sign - 1)
    special, others = ((each & rest) > wrong.fmt.largest_finite for each in (wrong.expected, wrong.table))
    here = special.any(axis=0)
    spread = (bit.is_nan(wrong.got, wrong.fmt) | special)[:, here].all() and not wrong.differs[:, ~here].any()
    return bool(spread and (others.any(axis=0) & ~here).any())


def _only_others_are_nan(wrong: Wrong) -> bool:
    """Return whether all rows that no id names are NaN throughout: whoever multiplies by zeros gets NaN."""
    others = np.setdiff1d(np.arange(wrong.table.shape[0]), wrong.ids)
    return others.size > 0 and bool(bit.is_nan(wrong.table[others], wrong.fmt).all())


def _rounding(got: Bits, expected: Bits, fmt: FloatFormat) -> Fault | None:
    """Return the fault whose rounding gives all of a sample of the wrong elements, if there is one."""
    step = max(got.size // _SAMPLE, 1)
    pairs = [
        (g, e)
        for g, e in zip(got[::step].tolist(), expected[::step].tolist(), strict=True)
        if e & (fmt.sign - 1) <= fmt.largest_finite
    ]
    kept = any(g & (fmt.sign - 1) and g & (fmt.sign - 1) < fmt.largest_finite for g, _ in pairs)
    for name, fault in _NARROW.items():
        narrow = FORMATS[name]
        if narrow.mantissa_bits >= fmt.mantissa_bits and narrow.exponent_bits >= fmt.exponent_bits:
            continue
        if kept and sum(_through(e, fmt, narrow) == g for g, e in pairs) >= 0.98 * len(pairs):
            return fault
    return None


def _through(element: int, fmt: FloatFormat, narrow: FloatFormat) -> int:
    magnitude, sign = element & (fmt.sign - 1), element & fmt.sign
    if magnitude > fmt.largest_finite:
        return element
    rounded = exact.round_once(*exact.decode(element, fmt), narrow)
    if (rounded & (narrow.sign - 1)) > narrow.largest_finite:
        return fmt.exponent | sign if narrow.has_inf else fmt.nan
    return exact.round_once(*exact.decode(rounded, narrow), fmt) | sign


def _was_subnormal(expected: Bits, source: FloatFormat, fmt: FloatFormat) -> Mask:
    """Return which elements of a wider format were subnormal in the table's."""
    if source.name == fmt.name:
        return np.zeros(expected.shape, bool)
    smallest = (fmt.bias - source.bias + 1) << fmt.mantissa_bits if fmt.exponent_bits > source.exponent_bits else 0
    magnitude = expected & fmt.uint.type(fmt.sign - 1)
    return (magnitude != 0) & (magnitude < max(smallest, fmt.mantissa + 1))


def _from_ordinary(got: Bits, expected: Bits, fmt: FloatFormat) -> Iterator[Found]:
    """Finite numbers that came back as others: scaled, or a little off."""
    what = f"0x{int(expected[0]):x} became 0x{int(got[0]):x}"
    pairs = list(zip(got[:512].tolist(), expected[:512].tolist(), strict=True))
    steps = [bit.ulp_distance(g, e, fmt) for g, e in pairs]
    known = [step for step in steps if step is not None]
    if len(known) == len(steps) and max(known) <= _LAST_BITS:
        yield 0.65, faults.LAST_BITS_CHANGED, f"{what}: at most {max(known)} units in the last place off"
        return
    ratios = []
    for g, e in pairs[:64]:
        if bit.ulp_distance(g, e, fmt) is None or g & (fmt.sign - 1) > fmt.largest_finite:
            continue
        (a, b), (c, d) = exact.decode(g, fmt), exact.decode(e, fmt)
        if a and c and abs(b - d) < 200:
            ratios.append(a / c * 2.0 ** (b - d))
    if len(ratios) < 3:
        return
    ratio = float(np.median(ratios))
    if np.ptp(ratios) <= abs(ratio) * 2.0 ** max(1 - fmt.mantissa_bits, -8) and abs(ratio - 1) > 1e-6:
        yield 0.9, faults.SCALED, f"{what}: {ratio:.6g} times what it must be"
