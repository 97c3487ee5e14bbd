"""What may surround a token without changing its row (clause EMB-7): each condition makes other batches of a case.

A condition turns the ids of a case into batches. Every element of a batch carries the logical key of the token it
stands for, its place in the case, or `FILLER`; results are put back by key before they are compared, and a key that
comes back twice or not at all is an error, never a pass. Nothing here knows a framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import errors
from xref.bits import Bits
from xref.inputs import Ids, words

__all__ = [
    "CONDITIONS",
    "FILLER",
    "TABLE_LAYOUTS",
    "Batch",
    "Group",
    "Keys",
    "offset",
    "read_only",
    "restore",
    "spread",
    "transposed",
]

FILLER = -1

Keys = np.ndarray[Any, np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Batch:
    """One call: ids of any shape and strides, a key for each, and how the table lies in memory."""

    ids: Ids
    keys: Keys
    layout: str = "dense"


def _population(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """Each token alone, and all of them together with as many strangers."""
    yield [Batch(ids[n : n + 1], keys[n : n + 1]) for n in range(ids.size)]
    yield [Batch(np.concatenate([ids, ids[::-1]]), np.concatenate([keys, np.full_like(keys, FILLER)]))]


def _position(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """All tokens shifted along the batch, so that each stands where another stood."""
    for shift in (1, ids.size // 2, ids.size - 1):
        yield [Batch(np.roll(ids, shift), np.roll(keys, shift))]


def _neighbours(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """Between any two tokens one of other content: the first row, the last, and others."""
    for filler in (np.zeros_like(ids), np.full_like(ids, _last_id(ids, vocab)), ids[::-1]):
        mixed = np.stack([ids, filler], axis=1).reshape(-1)
        yield [Batch(mixed, np.stack([keys, np.full_like(keys, FILLER)], axis=1).reshape(-1))]


def _padding(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """Rows of a batch padded on the left or right, and one row of padding alone; with the first and the last id."""
    width, rows = 16, -(-ids.size // 16)
    for pad in (0, _last_id(ids, vocab)):
        for left, right in ((3, 0), (0, 3)):
            margins = ((0, 1), (left, right))
            square = [_filled(ids, rows * width, pad), _filled(keys, rows * width, FILLER)]
            padded, marks = (
                np.pad(flat.reshape(rows, width), margins, constant_values=fill)
                for flat, fill in zip(square, (pad, FILLER), strict=True)
            )
            yield [Batch(padded, marks)]


def _layout(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """The same tokens in other shapes and strides, and the same table elsewhere in memory."""
    even = ids.size // 6 * 6
    rest = [Batch(ids[even:], keys[even:])] if even < ids.size else []
    if even:
        for shape in ((2, -1), (3, 1, 2, even // 6), (-1, 1)):
            yield [Batch(ids[:even].reshape(shape), keys[:even].reshape(shape)), *rest]
        yield [Batch(ids[:even].reshape(-1, 2).T, keys[:even].reshape(-1, 2).T), *rest]
    yield [Batch(np.repeat(ids, 2)[::2], keys)]
    yield [Batch(np.concatenate([ids[:1], ids])[1:], keys)]
    frozen = ids.copy()
    frozen.setflags(write=False)
    yield [Batch(frozen, keys)]
    for layout in TABLE_LAYOUTS:
        yield [Batch(ids, keys, layout)]


def _chunked(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """Prefill in chunks of sizes that do not divide the number of tokens."""
    for size in (7, 100):
        yield [Batch(ids[n : n + size], keys[n : n + size]) for n in range(0, ids.size, size)]


def _decode(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """A batch of sequences, one token of each at a time: `[B, 1]`, the last with fewer sequences left."""
    yield [Batch(ids[n : n + 8, None], keys[n : n + 8, None]) for n in range(0, ids.size, 8)]


def _permuted(ids: Ids, keys: Keys, vocab: int) -> Iterator[Group]:
    """The tokens in other orders: three random ones, and backwards."""
    for seed in range(3):
        order = np.argsort(words(ids.size, seed=100 + seed), kind="stable")
        yield [Batch(ids[order], keys[order])]
    yield [Batch(ids[::-1].copy(), keys[::-1].copy())]


def _filled(flat: Ids, size: int, fill: int) -> Ids:
    return np.concatenate([flat, np.full(size - flat.size, fill, dtype=flat.dtype)])


def _last_id(ids: Ids, vocab: int) -> int:
    return min(vocab - 1, int(np.iinfo(ids.dtype).max))


Group = list[Batch]
"""Batches that together hold each token of a case once."""

CONDITIONS: dict[str, Callable[[Ids, Keys, int], Iterator[Group]]] = {
    "population": _population,
    "position": _position,
    "neighbours": _neighbours,
    "padding": _padding,
    "layout": _layout,
    "chunked": _chunked,
    "decode": _decode,
    "permuted": _permuted,
}


def spread(array: Bits) -> Bits:
    """Return the same elements, with another one after each in the last axis."""
    return np.repeat(array, 2, axis=-1)[..., ::2]


def transposed(array: Bits) -> Bits:
    """Return the same elements with their axes in memory the other way round; a copy of one dimension too."""
    return np.array(array.T, order="C").T


def offset(array: Bits) -> Bits:
    """Return the same elements, beginning one element after their memory does."""
    shifted = np.empty(array.size + 1, dtype=array.dtype)[1:].reshape(array.shape)
    shifted[...] = array
    return shifted


def read_only(array: Bits) -> Bits:
    """Return the same elements in memory that refuses to be written."""
    frozen = array.copy()
    frozen.setflags(write=False)
    return frozen


def _between(table: Bits) -> Bits:
    wide = np.zeros((2 * table.shape[0], table.shape[1] + 2), dtype=table.dtype)
    wide[::2, 1:-1] = table
    return wide[::2, 1:-1]


TABLE_LAYOUTS: dict[str, Callable[[Bits], Bits]] = {
    "transposed": transposed,
    "every second column": spread,
    "rows and columns between others": _between,
    "offset by one element": offset,
    "read-only": read_only,
}
"""The same `[V, H]` elements in other places: each takes a dense table and returns a view of new memory."""


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
