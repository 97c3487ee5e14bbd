"""What the tests of gradients share: cotangents as bits, the oracle's rows, and a check that order could matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits

Ids = np.ndarray[Any, Any]

SIXTEEN = ("bfloat16", "float16")
WIDE = ("float64", "float32")


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


def order_case(name: str) -> tuple[Ids, Bits, np.random.Generator]:
    """Return 400 tokens over 9 rows, and a generator for orders: four columns of six binades, two of every exponent."""
    rng = np.random.default_rng(17)
    elements = finite_bits(rng, (400, 6), name, binades=6)
    elements[:, 4:] = finite_bits(rng, (400, 2), name)
    return rng.integers(0, 9, 400), elements, rng


def oracle(ids: Ids, cotangent: Bits, source: str, target: str) -> tuple[Ids, Bits]:
    """Return the exact row ids, ascending, and rows."""
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


def reordered_share(ids: Ids, values: np.ndarray[Any, Any], orders: Sequence[Ids]) -> float:
    """Return the share of gradient elements whose bits an order changes when they are summed one by one in float32.

    `values` are the cotangents as float32. Elements that overflow there in some order do not count as changed.
    """
    results = []
    with np.errstate(over="ignore", invalid="ignore"):
        for order in (np.arange(ids.size), *orders):
            sums = np.zeros((int(ids.max()) + 1, values.shape[1]), dtype=np.float32)
            np.add.at(sums, ids[order], values[order])
            results.append(sums[np.unique(ids)])
    finite = np.isfinite(results).all(axis=0)
    return float(np.mean([finite & (other.view(np.uint32) != results[0].view(np.uint32)) for other in results[1:]]))
