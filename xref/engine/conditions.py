"""What may surround a token in its batch without changing its row: each plan makes other batches of the same ids.

Every element of a batch carries the logical key of the token it stands for, its place among the ids, or `FILLER`;
results are put back by key before they are compared, and a key that comes back twice or not at all is an error, never
a pass. Ids are any integers from 0 to below a number; nothing here knows an operator or a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from xref import errors
from xref.bits import Bits
from xref.engine.layouts import DENSE
from xref.inputs import Ids, words

__all__ = ["FILLER", "PLANS", "Batch", "Group", "Keys", "among", "restore"]

FILLER = -1

Keys = np.ndarray[Any, np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Batch:
    """One call: ids of any shape, dense, a key for each, and how the ids are to lie in memory."""

    ids: Ids
    keys: Keys
    layout: str = DENSE
    """A key of `xref.engine.layouts.LAYOUTS`."""


Group = list[Batch]
"""Batches that together hold each token once."""


def _population(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return each token alone; `among` has them with others."""
    return [[Batch(ids[n : n + 1], keys[n : n + 1]) for n in range(ids.size)]]


def among(ids: Ids, keys: Keys, count: int, size: int) -> Group:
    """Return one batch of so many tokens: all of the ids between strangers, half of these on each side."""
    strangers = (words(size - ids.size, seed=size) % np.uint64(_last_id(ids, count) + 1)).astype(ids.dtype)
    fill = np.full(strangers.size, FILLER, dtype=keys.dtype)
    batch = np.concatenate([strangers[::2], ids, strangers[1::2]])
    return [Batch(batch, np.concatenate([fill[::2], keys, fill[1::2]]))]


def _position(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return all tokens shifted along the batch, so that each stands where another stood."""
    return [[Batch(np.roll(ids, shift), np.roll(keys, shift))] for shift in (1, ids.size // 2, ids.size - 1)]


def _neighbours(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return batches with another id after each token: the first, the last, and others."""
    groups: list[Group] = []
    for filler in (np.zeros_like(ids), np.full_like(ids, _last_id(ids, count)), ids[::-1]):
        mixed = np.stack([ids, filler], axis=1).reshape(-1)
        groups.append([Batch(mixed, np.stack([keys, np.full_like(keys, FILLER)], axis=1).reshape(-1))])
    return groups


def _padding(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return rows padded on the left or right and one row of padding alone; with the first id, and with the last."""
    width, rows = 16, -(-ids.size // 16)
    groups: list[Group] = []
    for pad in (0, _last_id(ids, count)):
        for left, right in ((3, 0), (0, 3)):
            margins = ((0, 1), (left, right))
            square = [_filled(ids, rows * width, pad), _filled(keys, rows * width, FILLER)]
            padded, marks = (
                np.pad(flat.reshape(rows, width), margins, constant_values=fill)
                for flat, fill in zip(square, (pad, FILLER), strict=True)
            )
            groups.append([Batch(padded, marks)])
    return groups


def _layout(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return the tokens in other shapes, and in transposed memory; what does not fill a shape is a batch of its own."""
    even = ids.size // 6 * 6
    rest = [Batch(ids[even:], keys[even:])] if even < ids.size else []
    groups: list[Group] = []
    for shape in ((2, even // 2), (3, 1, 2, even // 6), (even, 1)):
        groups.append([Batch(ids[:even].reshape(shape), keys[:even].reshape(shape)), *rest])
    turned = [np.ascontiguousarray(each[:even].reshape(even // 2, 2).T) for each in (ids, keys)]
    groups.append([Batch(turned[0], turned[1], "transposed"), *rest])
    return groups


def _chunked(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return chunks of a prefill, of sizes that do not divide the number of tokens."""
    cuts = [range(0, ids.size, size) for size in (7, 100)]
    return [[Batch(ids[n : n + starts.step], keys[n : n + starts.step]) for n in starts] for starts in cuts]


def _decode(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return a batch of sequences, one token of each at a time: `[B, 1]`, the last with fewer sequences left."""
    return [[Batch(ids[n : n + 8, None], keys[n : n + 8, None]) for n in range(0, ids.size, 8)]]


def _permuted(ids: Ids, keys: Keys, count: int) -> list[Group]:
    """Return the tokens in other orders: three random ones, and backwards."""
    orders = [np.argsort(words(ids.size, seed=100 + seed), kind="stable") for seed in range(3)]
    orders.append(np.arange(ids.size)[::-1])
    return [[Batch(ids[order], keys[order])] for order in orders]


def _filled(flat: Ids, size: int, fill: int) -> Ids:
    return np.concatenate([flat, np.full(size - flat.size, fill, dtype=flat.dtype)])


def _last_id(ids: Ids, count: int) -> int:
    return min(count - 1, int(np.iinfo(ids.dtype).max))


PLANS: dict[str, Callable[[Ids, Keys, int], list[Group]]] = {
    "population": _population,
    "position": _position,
    "neighbours": _neighbours,
    "padding": _padding,
    "layout": _layout,
    "chunked": _chunked,
    "decode": _decode,
    "permuted": _permuted,
}
"""By condition: of ids `[T]`, their keys, and how many ids there are, each group being compared as a whole."""


def restore(rows: list[tuple[Keys, Bits]], count: int, where: str) -> Bits:
    """Return rows in the order of their keys, `[count, H]`, from pairs of keys, any shape `S`, and bits, `S + (H,)`.

    Raises:
        ValueError: a key is missing, came back more than once, or is none of the `count`.
    """
    keys = np.concatenate([key.reshape(-1) for key, _ in rows])
    hidden = rows[0][1].shape[-1]
    flat = np.concatenate([bits.reshape(key.size, hidden) for key, bits in rows])
    seen = np.bincount(keys[keys != FILLER], minlength=count)
    due = np.arange(seen.size) < count
    if (seen != due).any():
        wrong = int(np.flatnonzero(seen != due)[0])
        times = f"{seen[wrong]} result{'' if seen[wrong] == 1 else 's'}"
        raise errors.bad_value(f"key {wrong}", times, "exactly one" if wrong < count else "none", where)
    restored = np.empty((count, hidden), dtype=flat.dtype)
    restored[keys[keys != FILLER]] = flat[keys != FILLER]
    return restored
