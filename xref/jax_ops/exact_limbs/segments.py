"""Tokens grouped by the row they name: a segment is the tokens of one row, numbered by the first of them.

So to find them takes no sort, and the sum of a segment can grow where its first token is. A token does not count if
its id is outside `[0, V)` or is the padding index, which is None, or no row's id, for none; T, the number of tokens,
stands for no segment.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Integers = np.ndarray[Any, Any]


def on_host(token_ids: Any, vocab_size: int, padding_idx: int | None) -> tuple[Integers, Integers, Integers]:
    """Return `(row_ids, slots, first)` of concrete ids of any shape; nothing is narrowed before it is compared.

    `row_ids`, `[R]` int64, are the rows named, ascending; `slots`, `[R]` int32, are their segments; and `first`, `[T]`
    int32, is the segment of every token.
    """
    ids = np.asarray(token_ids).reshape(-1).astype(np.int64)  # uint64 from 2**63 on turns negative: as far out of range
    tokens = np.flatnonzero(_count(ids, vocab_size, padding_idx))
    row_ids, index, inverse = np.unique(ids[tokens], return_index=True, return_inverse=True)
    slots = tokens[index].astype(np.int32)
    first = np.full(ids.shape, ids.size, np.int32)
    first[tokens] = slots[inverse]
    return row_ids, slots, first


def of_table(ids: jax.Array, vocab_size: int, padding_idx: int | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return `(slots, first)` of ids `[T]`: the segment of every row of the table, `[V]`, and of every token, `[T]`."""
    rows, tokens = _counted(ids, vocab_size, padding_idx), jnp.arange(ids.size, dtype=jnp.int32)
    slots = jnp.full(vocab_size, ids.size, jnp.int32)
    if vocab_size == 0:
        return slots, jnp.full(ids.size, ids.size, jnp.int32)
    slots = slots.at[rows].min(tokens, mode="drop")
    return slots, slots.at[rows].get(mode="fill", fill_value=ids.size)


def of_rows(
    ids: jax.Array, vocab_size: int, padding_idx: int | jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `(row_ids, slots, first)` of ids `[T]`, as `on_host`, but all int32 and with R = min(T, V).

    So a trace knows the shapes. Where fewer rows are named, the last row ids are `vocab_size` and have no segment.
    """
    rows, size = _counted(ids, vocab_size, padding_idx), min(ids.size, vocab_size)
    if size == 0:
        return jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.int32), jnp.full(ids.size, ids.size, jnp.int32)
    row_ids, index, inverse = jnp.unique(rows, return_index=True, return_inverse=True, size=size, fill_value=vocab_size)
    slots = jnp.where(row_ids < vocab_size, index.astype(jnp.int32), ids.size)
    return row_ids, slots, jnp.where(rows < vocab_size, slots[jnp.minimum(inverse, size - 1)], ids.size)


def _counted(ids: jax.Array, vocab_size: int, padding_idx: int | jax.Array | None) -> jax.Array:
    """Return the ids as int32, with `vocab_size` for those that do not count."""
    return jnp.where(_count(ids, vocab_size, padding_idx), ids, vocab_size).astype(jnp.int32)


def _count(ids: Any, vocab_size: int, padding_idx: int | jax.Array | None) -> Any:
    """Return which ids count, of NumPy's or JAX's."""
    inside = (ids >= 0) & (ids < vocab_size)
    return inside if padding_idx is None else inside & (ids != padding_idx)
