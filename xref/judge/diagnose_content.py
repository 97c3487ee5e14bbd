"""What the content of a wrong output tells: which row of the table came back, and what was done to its elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import bits as bit
from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.inputs import Ids
from xref.judge.probes import Probe

__all__ = ["Found", "Wrong", "from_elements", "from_rows"]

_LOOKED_AT = 4096  # wrong tokens of one call


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A wrong output beside the right one: rows `[T, H]`, and the ids that they were asked for by."""

    probe: Probe
    ids: Ids
    table: Bits
    """Every row's exact answer, `[V, H]`."""
    got: Bits
    expected: Bits
    fmt: FloatFormat

    @property
    def differs(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """The elements that are wrong, `[T, H]`."""
        return self.got != self.expected

    @property
    def tokens(self) -> Ids:
        """The tokens that are wrong."""
        return np.flatnonzero(self.differs.any(axis=1))[:_LOOKED_AT]


Found = tuple[float, str, str]
"""How much it speaks for a fault, the fault, and what was seen."""


def _held(wrong: Wrong) -> dict[int, Ids]:
    """Return, by wrong token, the rows of the table that its output has the bits of: whole rows only."""
    places: dict[bytes, list[int]] = {}
    for row, elements in enumerate(np.ascontiguousarray(wrong.table)):
        places.setdefault(elements.tobytes(), []).append(row)
    if len(places) < 0.9 * wrong.table.shape[0]:
        return {}  # where rows are alike, one of them tells nothing
    found = {}
    for token in wrong.tokens.tolist():
        rows = places.get(np.ascontiguousarray(wrong.got[token]).tobytes())
        if rows:
            found[token] = np.array(rows)
    return found


def from_rows(wrong: Wrong) -> Iterator[Found]:
    """Another row of the table came back: which one?"""
    held, tokens = _held(wrong), wrong.tokens
    if len(held) < 0.8 * tokens.size or not held:
        return
    token, rows = next(iter(held.items()))
    what = f"out[{token}] holds row {rows[0]}, asked for {wrong.ids[token]}"
    right = np.setdiff1d(np.arange(wrong.ids.size), tokens)[:_LOOKED_AT].tolist()
    last = wrong.table.shape[0] - 1

    def explains(move: Callable[[int, int], int]) -> bool:
        # It must say what came back for every wrong token, and leave the right ones where they are.
        return all(move(t, int(wrong.ids[t])) in r for t, r in held.items()) and all(
            move(t, int(wrong.ids[t])) in (wrong.ids[t], -1) for t in right
        )

    asked = set(wrong.ids[tokens].tolist())
    kept = set(wrong.ids[right].tolist())
    moves: list[tuple[float, str, Callable[[int, int], int], str]] = [
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: i % 256, "modulo 256"),
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: i % 128, "modulo 128"),
        (0.99, "ids-narrowed-to-8-bits", lambda t, i: ((i + 128) % 256 - 128) % (last + 1), "as signed 8 bits"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: i % 65536, "modulo 65536"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: i % 32768, "modulo 32768"),
        (0.99, "ids-narrowed-to-16-bits", lambda t, i: ((i + 2**15) % 2**16 - 2**15) % (last + 1), "as signed 16 bits"),
        (0.985, "ids-through-float", _by_float("bfloat16", last), "rounded to bfloat16"),
        (0.985, "ids-through-float", _by_float("float16", last), "rounded to float16"),
        (0.985, "ids-through-float", _by_float("float32", last), "rounded to float32"),
        (0.95, "packed-pairs", lambda t, i: i ^ 1, "the other one of its pair"),
        (0.95, "packed-pairs", lambda t, i: i & ~1, "the even one of its pair"),
        (0.93, "row-off-by-one", lambda t, i: max(i - 1, 0), "the one before"),
        (0.93, "row-off-by-one", lambda t, i: (i - 1) % (last + 1), "the one before"),
        (0.93, "row-off-by-one", lambda t, i: min(i + 1, last), "the one after"),
        (0.93, "row-off-by-one", lambda t, i: (i + 1) % (last + 1), "the one after"),
    ]
    usual = wrong.probe.id_dtype in ("int32", "int64")
    for weight, fault, move, how in moves:
        if explains(move) and (usual or not fault.startswith("ids-narrowed")):
            # One id alone may be anything; the same step for several is no accident.
            yield (
                weight if len(asked) > 1 or (weight > 0.98 and wrong.probe.vocab > 2**16) else weight - 0.25,
                fault,
                f"{what}: {how}",
            )
    places: list[tuple[float, str, Callable[[int], int], str]] = [
        (0.8, "neighbour-dependent", lambda t: t - 1, "that of the token before"),
        (0.8, "neighbour-dependent", lambda t: t + 1, "that of the token after"),
        (0.75, "position-dependent", lambda t: 0, "that of the first token"),
        (0.75, "position-dependent", lambda t: wrong.ids.size - 1, "that of the last token"),
    ]
    for weight, fault, place, how in places:
        if all(0 <= place(t) < wrong.ids.size and int(wrong.ids[place(t)]) in r for t, r in held.items()):
            yield weight, fault, f"{what}: {how}"
    if len(asked) <= 8 and kept and not asked & kept:
        yield 0.85, "some-rows-wrong", f"{what}; only ids {sorted(asked)[:8]} are wrong"
    elif asked & kept:
        yield 0.65, "position-dependent", f"{what}; other tokens of the same ids are right"
    if asked == {last} and last % 2 == 0 and all(last - 1 in r for r in held.values()):
        yield 0.98, "packed-pairs", f"{what}: the last row of an odd number of them has no pair"
    if all(last in r for r in held.values()) and kept and min(asked) > max(kept):
        yield 0.9, "last-rows-lost", f"{what}: the last one"


def _by_float(name: str, last: int) -> Callable[[int, int], int]:
    fmt = FORMATS[name]

    def move(token: int, value: int) -> int:
        rounded = exact.round_once(value, 0, fmt)
        if rounded > fmt.largest_finite:
            return last
        significand, exponent = exact.decode(rounded, fmt)
        return min(significand << exponent if exponent >= 0 else significand >> -exponent, last)

    return move


def from_elements(wrong: Wrong) -> Iterator[Found]:
    """The row is the right one, and something was done to its elements."""
    got, expected, fmt = wrong.got[wrong.differs], wrong.expected[wrong.differs], wrong.fmt
    nan, zero = bit.is_nan(expected, fmt), bit.is_zero(expected, fmt)
    infinite, subnormal = bit.is_inf(expected, fmt), bit.is_subnormal(expected, fmt)
    source = FORMATS[wrong.probe.dtype]
    if source.name != fmt.name:  # what was subnormal in the table is a normal float32
        subnormal |= _was_subnormal(expected, source, fmt)
    got_nan, got_zero = bit.is_nan(got, fmt), bit.is_zero(got, fmt)
    total = got.size

    def share(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
        return float(np.count_nonzero(mask)) / total

    def first(mask: Any = slice(None)) -> str:
        return f"0x{int(expected[mask][0]):x} became 0x{int(got[mask][0]):x}"

    rounded = _rounding(got, expected, fmt)
    if rounded is not None:
        yield 0.99, rounded, f"{first()}, as rounding and widening again gives"
        return
    poisoned = got_nan & ~nan
    if poisoned.any() and wrong.table.shape[0] == 1:
        yield 0.9, "some-rows-wrong", f"the only row of a table has NaN where it has none: {first(poisoned)}"
    elif poisoned.any():
        weight = 0.98 if wrong.probe.table == "poisoned" else 0.8
        yield (
            weight * (0.6 + 0.4 * share(poisoned)),
            "one-hot-product",
            f"NaN where the row has none: {first(poisoned)}",
        )
    quieted = nan & got_nan
    replaced = nan & ~got_nan
    kinds = [
        (quieted, "nan-changed", "a NaN has other bits"),
        (replaced, "nan-replaced", "a NaN is none any more"),
        (infinite & ~got_nan, "infinity-replaced", "an infinity is finite"),
        (zero & got_zero, "negative-zero-lost", "a zero has the other sign"),
        (subnormal & got_zero, "subnormals-flushed", "a subnormal became zero"),
    ]
    for mask, fault, how in kinds:
        if share(mask) > 0.999:
            yield 0.95, fault, f"{how}: {first(mask)}"
        elif mask.any():
            yield 0.35 + 0.4 * share(mask), fault, f"{how}: {first(mask)}"
    ordinary = ~(nan | infinite | zero | subnormal | poisoned)
    if ordinary.any():
        yield from _from_ordinary(got[ordinary], expected[ordinary], fmt, share(ordinary))
    elif (zero & got_zero).any() and nan.any() and share(quieted | replaced | (zero & got_zero) | poisoned) > 0.999:
        yield 0.96, "one-hot-product", f"zeros lost their sign and NaN changed, as in sums of products: {first()}"


def _rounding(got: Bits, expected: Bits, fmt: FloatFormat) -> str | None:
    """Return the fault whose rounding gives all of a sample of the wrong elements, if there is one."""
    step = max(got.size // 400, 1)
    pairs = [
        (g, e)
        for g, e in zip(got[::step].tolist(), expected[::step].tolist(), strict=True)
        if e & (fmt.sign - 1) <= fmt.largest_finite
    ]
    for name in ("bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"):
        narrow = FORMATS[name]
        if narrow.mantissa_bits >= fmt.mantissa_bits and narrow.exponent_bits >= fmt.exponent_bits:
            continue
        same = [_through(e, fmt, narrow) == g for g, e in pairs]
        kept = any(g & (fmt.sign - 1) and g & (fmt.sign - 1) < fmt.largest_finite for g, _ in pairs)
        if pairs and kept and sum(same) >= 0.98 * len(same):
            return f"rounded-through-{name}" if not name.startswith("float8") else "rounded-through-float8"
    return None


def _was_subnormal(
    expected: Bits, source: FloatFormat, fmt: FloatFormat
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    smallest = (fmt.bias - source.bias + 1) << fmt.mantissa_bits if fmt.exponent_bits > source.exponent_bits else 0
    magnitude = expected & fmt.uint.type(fmt.sign - 1)
    return (magnitude != 0) & (magnitude < max(smallest, fmt.mantissa + 1))


def _from_ordinary(got: Bits, expected: Bits, fmt: FloatFormat, share: float) -> Iterator[Found]:
    """Finite numbers that came back as others: scaled, or a little off."""
    what = f"0x{int(expected[0]):x} became 0x{int(got[0]):x}"
    pairs = list(zip(got[:512].tolist(), expected[:512].tolist(), strict=True))
    steps = [bit.ulp_distance(g, e, fmt) for g, e in pairs]
    if all(step is not None and step <= 4 for step in steps):
        yield (
            0.65,
            "last-bits-changed",
            f"{what}: at most {max(step or 0 for step in steps)} units in the last place off",
        )
        return
    ratios = []
    for g, e in pairs[:64]:
        if bit.ulp_distance(g, e, fmt) is None or g & (fmt.sign - 1) > fmt.largest_finite:
            continue
        (a, b), (c, d) = exact.decode(g, fmt), exact.decode(e, fmt)
        if a and c and abs(b - d) < 200:
            ratios.append(a / c * 2.0 ** (b - d))
    alike = len(ratios) >= 3 and np.ptp(ratios) <= abs(np.median(ratios)) * 2.0 ** max(1 - fmt.mantissa_bits, -8)
    if alike and abs(np.median(ratios) - 1) > 1e-6:
        yield 0.9, "scaled", f"{what}: {np.median(ratios):.6g} times what it must be"


def _through(element: int, fmt: FloatFormat, narrow: FloatFormat) -> int:
    magnitude = element & (fmt.sign - 1)
    if magnitude > fmt.largest_finite:
        return element
    rounded = exact.round_once(*exact.decode(element, fmt), narrow)
    if (rounded & (narrow.sign - 1)) > narrow.largest_finite:
        if not narrow.has_inf:
            return fmt.nan
        return fmt.exponent | (element & fmt.sign)
    again = exact.round_once(*exact.decode(rounded, narrow), fmt)
    return again | (element & fmt.sign)
