"""Cotangents for tests of the gradient, of any framework: columns that break inexact sums, and ordinary ones.

An element is the integer of its bits. Columns are independent of each other, so one call on `[T, H]` cotangents of one
id sums H of them; `packed` fills up with -0.0, which adds nothing to any sum, and shuffles the tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from xref import exact
from xref.bits import FloatFormat, as_bits, from_bits

Columns = dict[str, list[int]]


def pieces(total: int, exponent: int, source: FloatFormat) -> list[int]:
    """Return elements of `source` whose exact sum is `total * 2**exponent`; empty if it takes more than a few."""
    elements, sign, rest = [], -1 if total < 0 else 1, abs(total)
    largest, scale = exact.decode(source.largest_finite, source)
    while rest and len(elements) < 8:
        cut = max(rest.bit_length() - source.mantissa_bits - 1, source.quantum - exponent, 0)
        piece = min((rest >> cut) << cut, largest << max(scale - exponent, 0))
        if piece == 0:
            return []
        elements.append(exact.round_once(sign * piece, exponent, source))
        rest -= piece
    return [] if rest else elements


def hard_columns(source: FloatFormat, target: FloatFormat) -> Columns:
    """Return the columns: ties with and without a hair, the edges of the range, cancellation, zeros and specials."""
    columns = dict(_ties(source, target))
    columns |= {f"cancel {i}": list(c) for i, c in enumerate(itertools.permutations(_large_tiny_large(source)))}
    quarter = [exact.round_once(1, source.quantum + i, source) for i in (0, 1, 1, 0)]
    columns |= {
        "all -0.0": [source.sign] * 5,
        "both zeros": [source.sign, 0, source.sign],
        "x - x": [source.largest_finite, source.sign | source.largest_finite],
        "nothing but subnormals": [1, source.mantissa, 2, source.sign | 1],
        "smallest": quarter,
        "smallest, negative": [source.sign | e for e in quarter],
    }
    nans = [source.nan, source.sign | source.nan]
    infinities = [source.exponent, source.sign | source.exponent] if source.has_inf else []
    signalling = [source.exponent | 1] if source.has_inf else []
    finite = [exact.round_once(1, 0, source)]
    for size in range(1, 5):
        for mix in itertools.combinations(nans + infinities + signalling + finite, size):
            columns["specials " + " ".join(f"{e:x}" for e in mix)] = list(mix)
    return columns


def _large_tiny_large(source: FloatFormat) -> list[int]:
    return [source.largest_finite, 1, source.sign | source.largest_finite]


def _ties(source: FloatFormat, target: FloatFormat) -> Iterator[tuple[str, list[int]]]:
    """Yield sums half-way between two results of `target`, and a hair (200 bits lower, or as low as goes) off."""
    largest, scale = exact.decode(target.largest_finite, target)
    power = 1 << target.mantissa_bits
    halves = {f"{k} + 1/2": (2 * k + 1, -target.mantissa_bits - 1) for k in (power, power + 1, 2 * power - 1)}
    halves |= {f"{k} + 1/2 subnormals": (2 * k + 1, target.quantum - 1) for k in (0, 1, 2, power - 1)}
    halves |= {"largest + 1/2": (2 * largest + 1, scale - 1), "twice the largest": (4 * largest, scale - 1)}
    for (name, (total, exponent)), sign in itertools.product(halves.items(), (1, -1)):
        if exponent < source.quantum:
            continue
        low = max(source.quantum, exponent - 200)
        for hair in (0, 1, -1):
            elements = pieces(sign * total, exponent, source)
            if elements:
                hairs = [exact.round_once(hair, low, source)] if hair else []
                yield f"{'-' if sign < 0 else ''}({name}) {hair:+d} hair", elements + hairs


def packed(columns: list[list[int]], tokens: int, hidden: int, source: FloatFormat, seed: int) -> np.ndarray:
    """Return `[tokens, hidden]` bits of `source` with a column each, in another order each."""
    rng = np.random.default_rng(seed)
    out = np.full((hidden, tokens), source.sign, source.uint)
    for row, elements in zip(out, columns, strict=False):
        row[: len(elements)] = elements
        rng.shuffle(row)
    return out.T


def normal(shape, seed: int):
    return as_bits(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def spread(shape, seed: int, dtype: str = "float32"):
    """Bits of values over 24 binades: their float32 sums round, those of bfloat16 values too."""
    rng = np.random.default_rng(seed)
    values = np.ldexp(rng.standard_normal(shape), rng.integers(-12, 12, shape)).astype(np.float32)
    return as_bits(values.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else values)


def zipf(size, vocab_size: int, seed: int):
    return (np.random.default_rng(seed).zipf(1.3, size) - 1) % vocab_size


def reordered_share(ids, cotangent, dtype: str, record_property):
    """Record which share of the named rows' elements a float32 sum of reversed tokens changes; none is an error."""
    values = from_bits(cotangent, dtype).astype(np.float32)
    sums = np.zeros((2, ids.max() + 1, values.shape[-1]), np.float32)
    np.add.at(sums[0], ids, values)
    np.add.at(sums[1], ids[::-1], values[::-1])
    share = float((sums[0] != sums[1])[np.unique(ids)].mean())
    record_property("share of elements that a reordered float32 sum changes", f"{share:.1%}")
    assert share > 0.1, f"this case cannot tell a reordering apart: it changes {share:.1%} of the elements"


def expected_table(ids, cotangent, vocab_size: int, source: FloatFormat, target: FloatFormat):
    """The exact gradient in Python integers, `[V, H]` bits; `cotangent` is `S + (H,)` bits."""
    table = np.zeros((vocab_size, cotangent.shape[-1]), target.uint)
    for row, elements in exact.grad_rows(np.asarray(ids), cotangent, source, target).items():
        table[row] = elements
    return table
