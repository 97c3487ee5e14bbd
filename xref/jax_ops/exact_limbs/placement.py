"""Sums put into their rows: by a gather, or, for concrete arrays on a CPU, into fresh zero pages of the system."""

from __future__ import annotations

import functools
import math
import mmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref.bits import FloatFormat

Integers = np.ndarray[Any, Any]


@functools.partial(jax.jit, static_argnums=2)
def gathered(sums: jax.Array, slots: jax.Array | Integers, target: FloatFormat) -> jax.Array:
    """Return `[R, H]` of `target`: row r is row `slots[r]` of `sums`, or +0 where `slots[r]` is N or more.

    `sums` is `[N, H]`, the bits of `target`; `slots` is `[R]`, int32. Every element is written once. Rows set into
    zeros are written twice, and XLA's CPU backend sets rows of bfloat16 and float8 in a float32 copy of the table.
    """
    count, hidden = sums.shape
    if count == 0:
        return jnp.zeros((slots.size, hidden), target.name)
    rows = sums.at[jnp.minimum(slots, count - 1)].get(mode="promise_in_bounds")
    # On x86 CPUs with AVX512-BF16 a select of integers that are then bit-cast to bfloat16 is made in float32, which
    # flushes subnormals and quiets NaNs. A mask made by arithmetic is no select.
    mask = ((slots - count) >> 31).astype(target.uint)
    return lax.bitcast_convert_type(rows & mask[:, None], target.name)


def placed(sums: jax.Array, slots: Integers, row_ids: Integers, vocab_size: int, target: FloatFormat) -> jax.Array:
    """Return `[V, H]` of `target`: row `row_ids[r]` is row `slots[r]` of `sums`, and all others are +0; concrete.

    `sums` is `[N, H]`, the bits of `target`; `slots` and `row_ids` are `[R]`.
    """
    if on_one_cpu(sums):
        return _in_zero_pages(sums, slots, row_ids, vocab_size, target)
    slots_of_table = np.full(vocab_size, sums.shape[0], np.int32)
    slots_of_table[row_ids] = slots
    return gathered(sums, slots_of_table, target)


def on_one_cpu(array: jax.Array) -> bool:
    """Return whether an array is on a CPU device, and on one only; one that is traced is nowhere."""
    if isinstance(array, jax.core.Tracer):
        return False
    return [device.platform for device in array.devices()] == ["cpu"]


def _in_zero_pages(
    sums: jax.Array, slots: Integers, row_ids: Integers, vocab_size: int, target: FloatFormat
) -> jax.Array:
    # The system hands out anonymous memory as zero pages, and a page that nothing writes costs neither time nor memory
    # until it is read. XLA writes its zeros one by one, which for a large table takes longer than all the rest.
    shape = (vocab_size, sums.shape[1])
    if 0 in shape:
        return jnp.zeros(shape, target.name)
    table = np.frombuffer(mmap.mmap(-1, math.prod(shape) * target.uint.itemsize), target.uint).reshape(shape)
    table[row_ids] = np.asarray(sums)[slots]
    (device,) = sums.devices()
    return jax.device_put(table.view(jnp.dtype(target.name)), device)
