"""How the same elements may lie in memory: strides, offsets, slices, shared elements, by name.

A layout is made of a dense array where the subject is. Those of `SHARED` hold other elements than the dense array,
which `contents` returns: what the subject is really given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = [
    "COTANGENT_LAYOUTS", "DENSE", "ID_LAYOUTS", "LAYOUTS", "SLICE", "STRIDED_TABLES", "TABLE_LAYOUTS", "Layout",
    "contents", "offset", "read_only", "spread", "transposed",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]

DENSE, SLICE = "dense", "slice of a longer one"


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to lie in memory."""

    make: Callable[[Array], Array]
    """Return an array of new memory, of which `cut` takes the elements."""
    cut: Callable[[Any], Any] | None = None
    """Cut the framework's array out of the larger one that `make` made; None: it is that array."""


def spread(array: Array) -> Array:
    """Return the same elements, with another one after each in the last axis; of ids that is every second element."""
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array.copy()


def transposed(array: Array) -> Array:
    """Return the same elements with their axes in memory the other way round; a copy of one dimension too."""
    return np.array(array.T, order="C").T


def offset(array: Array) -> Array:
    """Return the same elements, beginning one element after their memory does."""
    shifted = np.empty(array.size + 1, dtype=array.dtype)[1:].reshape(array.shape)
    shifted[...] = array
    return shifted


def read_only(array: Array) -> Array:
    """Return the same elements in memory that refuses to be written."""
    frozen = array.copy()
    frozen.setflags(write=False)
    return frozen


def _between(table: Array) -> Array:
    wide = np.zeros((2 * table.shape[0], table.shape[1] + 2), dtype=table.dtype)
    wide[::2, 1:-1] = table
    return wide[::2, 1:-1]


def _among(array: Array, axis: int) -> Array:
    """Return an array with two more before it along an axis, and one after it."""
    if not array.ndim or not array.shape[axis]:
        return array.copy()
    ends = np.flip(array.take([0, -1], axis=axis), axis=axis)
    return np.concatenate([ends, array, ends.take([0], axis=axis)], axis=axis)


def _cut(array: Any) -> Any:
    return array[2:-1] if len(array.shape) and array.shape[0] else array


def _cut_columns(array: Any) -> Any:
    return array[:, 2:-1] if array.shape[1] else array


def _every_second_token(cotangent: Array) -> Array:
    return np.repeat(cotangent, 2, axis=-2)[..., ::2, :] if cotangent.ndim > 1 else cotangent.copy()


def _first_for_all(ids: Array) -> Array:
    """Return the first of the ids along their first axis for all of them, in its memory alone."""
    if ids.ndim < 2 or not ids.size:
        return ids.copy()
    first = ids[:1].copy()
    return np.lib.stride_tricks.as_strided(first, ids.shape, (0, *first.strides[1:]))


def _overlapping(table: Array) -> Array:
    """Return a table, each of whose rows begins with the second element of the one before, with rows that share."""
    if 0 in table.shape:
        return table.copy()
    stream = np.concatenate([table[:, 0], table[-1, 1:]])
    return np.lib.stride_tricks.as_strided(stream, table.shape, (stream.itemsize, stream.itemsize))


def _expanded(cotangent: Array) -> Array:
    """Return the first token's cotangent for all tokens, in its memory alone: as the gradient of a sum has it."""
    if not cotangent.size:
        return cotangent.copy()
    first = cotangent.reshape(-1, cotangent.shape[-1])[0].copy()
    strides = (*(0,) * (cotangent.ndim - 1), first.itemsize)
    return np.lib.stride_tricks.as_strided(first, cotangent.shape, strides)


def _columns_expanded(cotangent: Array) -> Array:
    """Return each token's first element for all of its columns, in its memory alone."""
    first = cotangent[..., :1].copy()
    return np.lib.stride_tricks.as_strided(first, cotangent.shape, (*first.strides[:-1], 0))


STRIDED_TABLES = {
    "transposed": Layout(transposed),
    "every second column": Layout(spread),
    "rows and columns between others": Layout(_between),
    "offset by one element": Layout(offset),
    "read-only": Layout(read_only),
}
"""Tables `[V, H]` of the same elements in NumPy's memory."""

TABLE_LAYOUTS = {
    **STRIDED_TABLES,
    "rows of a larger one": Layout(lambda table: _among(table, 0), _cut),
    "columns of a larger one": Layout(lambda table: _among(table, 1), _cut_columns),
}
"""Tables `[V, H]`; the last two are cut out of larger ones by the framework itself."""

ID_LAYOUTS = {
    "strided": Layout(spread),
    "transposed": Layout(transposed),
    "offset by one": Layout(offset),
    "read-only": Layout(read_only),
    SLICE: Layout(lambda ids: _among(ids, 0), _cut),
}
"""Ids of any shape."""

COTANGENT_LAYOUTS = {
    "strided": Layout(spread),
    "transposed": Layout(transposed),
    "offset": Layout(offset),
    "expanded": Layout(_expanded),
    "columns expanded": Layout(_columns_expanded),
    "every second token": Layout(_every_second_token),
}
"""Cotangents `S + (H,)`; expanded ones hold other elements."""

_SHARED = {"expanded ids": Layout(_first_for_all), "overlapping rows": Layout(_overlapping)}

LAYOUTS: dict[str, Layout] = {
    DENSE: Layout(np.copy), **TABLE_LAYOUTS, **ID_LAYOUTS, **COTANGENT_LAYOUTS, **_SHARED
}  # fmt: skip
"""All of them: a name means the same for whatever array."""


def contents(array: Array, layout: str) -> Array:
    """Return the elements that an array of a layout holds, dense: other ones only where they share memory."""
    shared = layout in ("expanded", "columns expanded", "expanded ids")
    return np.array(LAYOUTS[layout].make(array), order="C") if shared else array
