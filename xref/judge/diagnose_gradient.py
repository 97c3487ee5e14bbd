"""What a wrong gradient is consistent with: names from the fault catalogue, the likeliest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.contracts import embedding_gradient as gradients
from xref.operators.embedding.bound import Exact, Integers
from xref.judge.diagnose import ranked
from xref.judge.diagnose_content import Found
from xref.judge.diagnose_sums import models_of
from xref.judge.sweeps_gradient import COTANGENT_LAYOUTS

__all__ = ["explain_gradient"]

_WIDE = 8  # columns
_COLUMNS, _CONTRIBUTIONS = 64, 20_000  # wrong elements that are looked into, and what they are sums of


def explain_gradient(evidence: dict[str, Any], hints: tuple[str, ...] = (), *, telling: bool = False) -> list[Found]:
    """Return what speaks for which fault, for a gradient that failed; `evidence` is what the examination kept.

    `telling`: the way it fails says more than its bits.
    """
    weight = 0.99 if telling else 0.55
    found: list[Found] = [(weight - 0.02 * n, hint, "that is how it fails") for n, hint in enumerate(hints)]
    if "exact" in evidence:
        found += _from_sums(evidence)
    return ranked(found)


def _value(element: int, fmt: FloatFormat) -> float:
    """Return an element as a float64: for likeness only."""
    magnitude = element & (fmt.sign - 1)
    if magnitude > fmt.largest_finite:
        return float("nan") if magnitude > fmt.exponent or not fmt.has_inf else float("inf")
    significand, exponent = exact.decode(element, fmt)
    return math.ldexp(significand, exponent)


def _from_sums(evidence: dict[str, Any]) -> Iterator[Found]:
    case, known, got = evidence["case"], evidence["exact"], evidence["got"]
    source, target = FORMATS[case.source], FORMATS[case.result]
    ids, cotangent = gradients.build(case)
    flat, elements = ids.reshape(-1), cotangent.reshape(ids.size, case.hidden)
    if evidence["layout"] in COTANGENT_LAYOUTS and ids.size:  # some of which hold other elements
        elements = COTANGENT_LAYOUTS[evidence["layout"]](cotangent).copy().reshape(elements.shape)
    wrong = _wrong_elements(evidence["off"], known)
    if evidence["layout"].startswith("ids "):
        yield 0.9, "ids-strides-ignored", f"{evidence['layout'].replace(' ', ' that are ', 1)} give another gradient"
    elif evidence["layout"] != "dense":
        yield 0.9, "cotangent-strides-ignored", f"a cotangent that is {evidence['layout']} gives another gradient"
    if not ids.size:
        return
    if (got[known.rows] == 0).all():
        narrow = case.hidden < _WIDE
        yield 0.7 if narrow else 0.97, "gradient-lost", "every row of the gradient is zero"
        if known.rows.tolist() in ([0], [1], [case.vocab - 1]):
            yield 0.96, "padding-gradient-dropped", f"the one row that tokens name, {known.rows[0]}, has no gradient"
        if narrow:  # of which a kernel that leaves out the last columns leaves nothing either
            yield 0.69, "columns-past-a-tile-wrong", f"rows of {case.hidden} columns are zero"
        return
    given = elements.reshape(*ids.shape, case.hidden)
    for n, (fault, what) in enumerate(models_of(ids, given, got, case.source, case.result)):
        yield 0.98 - 0.01 * n, fault, what
    yield from _from_specials(got, known, target, elements, source)
    tests: dict[str, list[bool]] = {}
    rows_wrong = set()
    looked_at = 0
    for r, h in wrong[:_COLUMNS]:
        row = int(known.rows[r])
        rows_wrong.add(row)
        looked_at += int(known.counts[r])
        if looked_at > _CONTRIBUTIONS and tests:
            continue
        parts = [int(e) for e in elements[flat == row][:, h]]
        here = int(got[row, h])
        for name, holds in _likenesses(parts, here, source, target).items():
            tests.setdefault(name, []).append(holds)
    weights = {
        "duplicates-overwrite": 0.96,
        "frequency-scaled": 0.95,
        "duplicates-capped": 0.9,
        "accumulated-in-low-precision": 0.985,  # the very bits
        "cotangent-cast-first": 0.94,
        "gradient-accumulates-across-calls": 0.7,
        "gradient-scaled": 0.6,
        "subnormal-sums-flushed": 0.9,
    }
    for name, seen in tests.items():
        share = sum(seen) / len(seen)
        if share > 0.8:
            yield weights[name] * share, name, _SEEN[name]
    if rows_wrong and len(known.rows) > 1:
        zero = all((got[row] == 0).all() for row in rows_wrong)
        if zero and rows_wrong <= {0, 1, case.vocab - 1}:
            yield 0.97, "padding-gradient-dropped", f"row {min(rows_wrong)} has no gradient although tokens name it"
        elif zero:
            yield 0.75, "gradient-lost", f"rows {sorted(rows_wrong)[:6]} have no gradient although tokens name them"
    columns = {h for _, h in wrong}
    if columns and min(columns) > 0 and columns == set(range(min(columns), case.hidden)):
        yield 0.8, "columns-past-a-tile-wrong", f"columns {min(columns)} to {case.hidden - 1} are wrong"
    yield 0.4, "accumulated-in-low-precision", "a sum is further off than float32 can be"


_SEEN = {
    "duplicates-overwrite": "a row holds the cotangent of one of its tokens alone",
    "frequency-scaled": "a row holds the mean of its cotangents",
    "duplicates-capped": "a row holds the sum of its first tokens alone",
    "accumulated-in-low-precision": "a row holds what a sum in the cotangent's own dtype gives",
    "cotangent-cast-first": "a row holds the sum of cotangents that were rounded first",
    "gradient-accumulates-across-calls": "a row holds a multiple of its sum",
    "gradient-scaled": "rows hold their sum times one number",
    "subnormal-sums-flushed": "a sum below the smallest normal number is zero",
}


def _wrong_elements(off: Integers, known: Exact) -> list[tuple[int, int]]:
    """Return `(segment, column)` of the elements that are past the bound, those of the longest sums first."""
    places = [(int(r), int(h)) for r, h in np.argwhere(off)]
    return sorted(places, key=lambda place: -int(known.counts[place[0]]))


def _likenesses(parts: list[int], got: int, source: FloatFormat, target: FloatFormat) -> dict[str, bool]:
    """Return what one element of a gradient is like, by fault; `parts` are its contributions in token order."""
    values = [_value(part, source) for part in parts]
    here, total = _value(got, target), sum(values)
    unit = 2.0**-(target.mantissa_bits)
    near: Callable[[float], bool] = lambda value: abs(here - value) <= 4 * unit * abs(value)  # noqa: E731
    prefixes = list(itertools.accumulate(values))[:-1]
    ratio = here / total if total else 0.0
    return {
        "duplicates-overwrite": len(parts) > 1 and any(near(value) for value in (values[0], values[-1])),
        "frequency-scaled": len(parts) > 1 and near(total / len(parts)),
        "duplicates-capped": len(parts) > 2 and any(near(value) for value in prefixes[1:]),
        "accumulated-in-low-precision": here != 0
        and any(
            got == low
            for low in (_sequential(parts, source, FORMATS[name], target) for name in ("bfloat16", "float16"))
        ),
        "cotangent-cast-first": source.width > target.width
        and near(
            sum(
                _value(exact.round_once(*exact.decode(part, source), target), target)
                for part in parts
                if _finite(part, source)
            )
        )
        and not near(total),
        "gradient-accumulates-across-calls": 1.5 < ratio < 1000 and abs(ratio - round(ratio)) < 4 * unit,
        "gradient-scaled": 1e-4 < abs(ratio) < 1e4 and abs(ratio - 1) > 0.01,
        "subnormal-sums-flushed": here == 0 and 0 < abs(total) < 2.0 ** (target.quantum + target.mantissa_bits),
    }


def _finite(element: int, fmt: FloatFormat) -> bool:
    return (element & (fmt.sign - 1)) <= fmt.largest_finite


def _sequential(parts: list[int], source: FloatFormat, within: FloatFormat, target: FloatFormat) -> int:
    """Return what a sum in token order gives if every partial sum is rounded to `within`."""
    total = 0
    for part in parts[:3000]:
        if not _finite(part, source) or not _finite(total, within):
            return -1
        (a, p), (b, q) = exact.decode(total, within), exact.decode(part, source)
        low = min(p, q)
        total = exact.round_once((a << (p - low)) + (b << (q - low)), low, within)
    return exact.round_once(*exact.decode(total, within), target) if _finite(total, within) else -1


def _from_specials(
    got: Bits, known: Exact, target: FloatFormat, elements: Bits, source: FloatFormat
) -> Iterator[Found]:
    special = known.nan | (known.infinite != 0)
    clipped = (got[known.rows] & target.uint.type(target.sign - 1)) == target.largest_finite
    if clipped.any():
        yield 0.9, "specials-dropped", "a sum ends at the largest finite number"
    if not special.any():
        return
    rows = got[known.rows]
    finite = (rows & target.uint.type(target.sign - 1)) <= target.largest_finite
    if (special & finite).any():
        yield 0.96, "specials-dropped", "a NaN or an infinity among the cotangents is not in the sum"
    elif (~special & ~finite).any():
        yield 0.5, "specials-dropped", "a sum of finite cotangents is none"
