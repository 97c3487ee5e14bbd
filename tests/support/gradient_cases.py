"""What the tests of gradients share: cotangents as bits, the exact answers, and a check that order could matter.

An element is the integer of its bits. Columns are independent of each other, so one call on `[T, H]` cotangents of one
id sums H of them; `packed` fills up with -0.0, which adds nothing to any sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat, as_bits
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.cotangents import make_cotangent
from xref.operators.embedding.gradient_cases import reordered_share

Ids = np.ndarray[Any, Any]

SIXTEEN = ("bfloat16", "float16")
WIDE = ("float64", "float32")


# Elements


def element(value: float, name: str) -> int:
    """Return the bits of `value` rounded to `name`, by integers."""
    significand, exponent = exact.decode(int(np.float64(value).view(np.uint64)), FORMATS["float64"])
    return exact.round_once(significand, exponent, FORMATS[name])


def multiple(count: int, one: int, source: str, target: str) -> int:
    """Return the bits of `count` times an element, rounded once to `target`."""
    significand, exponent = exact.decode(one, FORMATS[source])
    return exact.round_once(count * significand, exponent, FORMATS[target])


def finite_bits(rng: np.random.Generator, shape: tuple[int, ...], name: str, *, binades: int | None = None) -> Bits:
    """Return random finite elements: of every exponent there is, or of so many binades from 1 up."""
    fmt = FORMATS[name]
    raw = rng.integers(0, 1 << fmt.width, shape, dtype=np.uint64)
    first, last = (0, fmt.largest_finite >> fmt.mantissa_bits) if binades is None else (fmt.bias, fmt.bias + binades)
    fields = rng.integers(first, last, shape, dtype=np.uint64) << np.uint64(fmt.mantissa_bits)
    return (raw & np.uint64(fmt.sign | fmt.mantissa) | fields).astype(fmt.uint)


def subnormal_bits(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Bits:
    """Return random elements with an exponent field of zero, of either sign."""
    fmt = FORMATS[name]
    raw = rng.integers(0, 1 << fmt.width, shape, dtype=np.uint64)
    return (raw & np.uint64(fmt.sign | fmt.mantissa)).astype(fmt.uint)


def normal(shape: int | tuple[int, ...], seed: int) -> Bits:
    """Return normally distributed float32."""
    return as_bits(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def spread(shape: int | tuple[int, ...], seed: int) -> Bits:
    """Return float32 over 24 binades, so that their float32 sums round."""
    rng = np.random.default_rng(seed)
    return as_bits(np.ldexp(rng.standard_normal(shape), rng.integers(-12, 12, shape)).astype(np.float32))


def zipf(size: int | tuple[int, ...], vocab_size: int, seed: int) -> Ids:
    """Return ids of which some come often."""
    return (np.random.default_rng(seed).zipf(1.3, size) - 1) % vocab_size


# Order


def cancelling(rows: Ids, tokens: int, hidden: int, name: str) -> tuple[Ids, Bits]:
    """Return `tokens` ids and their `[tokens, hidden]` elements, in disorder, of which any order of a sum shows.

    Three tokens for each of `rows`: large, small and minus large. So every sum is that of its small elements, and one
    that rounds while a large element is in it loses some of their bits, in 16-bit results too. A token that is left
    over is -0.0.
    """
    whole = tokens // 3 * 3
    ids = np.resize(np.repeat(rows, 3), tokens)
    elements = make_cotangent("cancelling", ids.shape, hidden, FORMATS[name])
    elements[whole:] = FORMATS[name].sign
    order = np.random.default_rng(17).permutation(tokens)
    return ids[order], elements[order]


def order_case(name: str) -> tuple[Ids, Bits, np.random.Generator]:
    """Return 400 tokens over 9 rows, and a generator for orders: four columns that cancel, two of every exponent."""
    rng = np.random.default_rng(17)
    ids, elements = cancelling(rng.integers(0, 9, 133), 400, 4, name)
    return ids, np.concatenate([elements, finite_bits(rng, (400, 2), name)], axis=1), rng


def state_share(record_property: Callable[[str, object], None], ids: Ids, elements: Bits, name: str) -> None:
    """Record which share of the result's elements a reversed float32 sum changes; less than a tenth is an error."""
    size, hidden = int(ids.max()) + 1, elements.shape[-1]
    call = Gradient(
        check="EMB-8", verb="backward", source=name, result=name, vocab=size, hidden=hidden, shape=ids.shape
    )
    share = reordered_share(call, ids, elements)
    record_property("share of elements that a reversed float32 sum changes", f"{share:.1%}")
    assert share > 0.1, f"this case cannot tell orders apart: another one changes {share:.1%} of the elements"


# Columns


def pieces(total: int, exponent: int, source: FloatFormat) -> list[int]:
    """Return elements of `source` whose exact sum is `total * 2**exponent`; empty if it takes more than a few."""
    elements, sign, rest = [], -1 if total < 0 else 1, abs(total)
    largest, scale = exact.decode(source.largest_finite, source)
    most = largest << max(scale - exponent, 0) >> max(exponent - scale, 0)
    while rest and len(elements) < 8:
        cut = max(rest.bit_length() - source.mantissa_bits - 1, source.quantum - exponent, 0)
        piece = min((rest >> cut) << cut, most)
        if piece == 0:
            return []
        elements.append(exact.round_once(sign * piece, exponent, source))
        rest -= piece
    return [] if rest else elements


def hard_columns(source: FloatFormat, target: FloatFormat) -> dict[str, list[int]]:
    """Return the columns: ties with and without a hair, the edges of the range, cancellation, zeros and specials."""
    columns = dict(_ties(source, target))
    parts = [source.largest_finite, 1, source.sign | source.largest_finite]
    columns |= {f"cancel {i}": list(c) for i, c in enumerate(itertools.permutations(parts))}
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


def _ties(source: FloatFormat, target: FloatFormat) -> Iterator[tuple[str, list[int]]]:
    """Yield sums half-way between two results of `target`, and a hair (200 bits lower, or as low as goes) off.

    Near 1, and near 2**120 where that is in range: there a float32 can be 200 bits lower.
    """
    largest, scale = exact.decode(target.largest_finite, target)
    power = 1 << target.mantissa_bits
    tops = (0, 120) if target.exponent_bits >= 8 else (0,)
    halves = {
        f"2**{top} * ({k} + 1/2)": (2 * k + 1, top - target.mantissa_bits - 1)
        for top, k in itertools.product(tops, (power, power + 1, 2 * power - 1))
    }
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
                yield f"{'-' if sign < 0 else ''}({name}) {hair:+d} hair {exponent - low} bits lower", elements + hairs


def packed(columns: list[list[int]], tokens: int, hidden: int, source: FloatFormat, seed: int) -> Bits:
    """Return `[tokens, hidden]` bits of `source` with a column each, in its order, between -0.0 at random places."""
    rng = np.random.default_rng(seed)
    out = np.full((tokens, hidden), source.sign, source.uint)
    for column, elements in enumerate(columns):
        places = np.sort(rng.choice(tokens, len(elements), replace=False))
        out[places, column] = elements
    return out


# Answers


def oracle(ids: Ids, cotangent: Bits, source: str, target: str) -> tuple[Ids, Bits]:
    """Return the exact row ids, ascending, and rows; `cotangent` is `S + (H,)` bits."""
    answers = exact.grad_rows(ids, cotangent, FORMATS[source], FORMATS[target])
    row_ids = np.array(sorted(answers), dtype=np.int64)
    rows = np.zeros((row_ids.size, cotangent.shape[-1]), dtype=FORMATS[target].uint)
    for slot, row in enumerate(row_ids):
        rows[slot] = answers[int(row)]
    return row_ids, rows


def dense(row_ids: Ids, rows: Bits, vocab_size: int) -> Bits:
    """Return the rows in their places of a table of zeros."""
    table = np.zeros((vocab_size, rows.shape[1]), dtype=rows.dtype)
    table[row_ids] = rows
    return table


def expected_table(ids: Ids, cotangent: Bits, vocab_size: int, source: str, target: str | None = None) -> Bits:
    """Return the exact gradient, `[V, H]` bits of `target`, or of `source` if that is None."""
    return dense(*oracle(np.asarray(ids), cotangent, source, target or source), vocab_size)
