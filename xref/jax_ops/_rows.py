"""Rows of a table by their bits: the gather, the exact widening (EMB-2) and the poison of ids that name no row.

Two ways to the same bits, for what is a copy on one back end is none on another.

On a CPU integers are gathered, and no integer is chosen by a predicate: on x86 CPUs with AVX512-BF16 a select of uint16
values whose result is bit-cast to bfloat16 comes out, in the last columns of a row, through float32 all the same, which
flushes subnormals and quiets NaNs (measured with JAX 0.10.2, also behind `optimization_barrier`). Masks made by
arithmetic do not, as long as the compiler cannot prove that they have two values: with one row, or ids of eight bits,
it can, and makes a select of them again.

Elsewhere rows are gathered first, since to bit-cast the table would copy it on a TPU, and then selected as integers.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref.bits import FORMATS, FloatFormat

_SINGLE = FORMATS["float32"]


def gather(ids: jax.Array, table: jax.Array, fmt: FloatFormat, target: FloatFormat) -> jax.Array:
    """Return `table[ids, :]`, `S + (H,)`, in the table's format or, where `target` is float32, exactly widened to it.

    `ids` is any shape `S` of int32 or int64. A row whose id is outside `[0, V)` is the canonical quiet NaN in every
    element.
    """
    shape = (*ids.shape, table.shape[1])
    if table.shape[0] == 0:
        return lax.bitcast_convert_type(jnp.full(shape, target.nan, target.uint), target.name)
    elements = lax.platform_dependent(
        ids,
        table,
        cpu=functools.partial(_bits_first, fmt=fmt, target=target),
        default=functools.partial(_rows_first, fmt=fmt, target=target),
    )
    return lax.bitcast_convert_type(elements, target.name)


def _rows_first(ids: jax.Array, table: jax.Array, fmt: FloatFormat, target: FloatFormat) -> jax.Array:
    # mode="clip" is the one that copies every bit on every back end, and it never reads foreign memory.
    rows = jnp.take(table, ids, axis=0, mode="clip")
    elements = _widen(lax.bitcast_convert_type(rows, fmt.uint), fmt, target)
    outside = (ids < 0) | (ids > _last(ids, table))
    return jnp.where(outside[..., None], target.uint.type(target.nan), elements)


def _bits_first(ids: jax.Array, table: jax.Array, fmt: FloatFormat, target: FloatFormat) -> jax.Array:
    """Gather integers, for CPUs: there XLA gathers narrow floats in float32 where the table is a constant or sharded.

    The bit-cast costs nothing there; on a TPU it would copy the table. And no select, as the module says.
    """
    elements = _widen(jnp.take(lax.bitcast_convert_type(table, fmt.uint), ids, axis=0, mode="clip"), fmt, target)
    poison = _out_of_range_mask(ids, _last(ids, table), target)[..., None]
    return (elements & ~poison) | (poison & target.uint.type(target.nan))


def _last(ids: jax.Array, table: jax.Array) -> int:
    """Return the last id that names a row and that the dtype of `ids` can hold."""
    return min(table.shape[0] - 1, int(np.iinfo(ids.dtype).max))


def _out_of_range_mask(ids: jax.Array, last: int, target: FloatFormat) -> jax.Array:
    """Return all ones where an id is outside `[0, last]` and zero elsewhere, of the target's width.

    A compiler that can prove these to be the only two values makes a select of the masking. So the mask is xored with
    bit 2 of an odd square, which is always 0, and which no compiler tried here knows to be.
    """
    outside = (ids | (last - ids)) >> (8 * ids.dtype.itemsize - 1)
    odd = ids | 1
    return (outside ^ ((odd * odd >> 2) & 1)).astype(target.uint)


def _widen(elements: jax.Array, fmt: FloatFormat, target: FloatFormat) -> jax.Array:
    """Return the bits of elements in their own format or, where `target` is float32, exactly widened to it."""
    if target == fmt:
        return elements
    element = elements.astype(jnp.uint32)
    if fmt.exponent_bits == _SINGLE.exponent_bits:  # float32 itself, or bfloat16: float32 cut short
        return element << (_SINGLE.width - fmt.width)
    gain = _SINGLE.mantissa_bits - fmt.mantissa_bits
    sign = (element & fmt.sign) << (_SINGLE.width - fmt.width)
    magnitude = element & (fmt.sign - 1)
    normal = (magnitude << gain) + ((_SINGLE.bias - fmt.bias) << _SINGLE.mantissa_bits)
    # A subnormal is `magnitude * 2**quantum`: its leading bit becomes the hidden one, and its place the exponent.
    zeros = lax.clz(magnitude)
    field = jnp.uint32(_SINGLE.width - 1 + fmt.quantum + _SINGLE.bias) - zeros
    subnormal = (field << _SINGLE.mantissa_bits) | ((magnitude << (zeros - _SINGLE.exponent_bits)) & _SINGLE.mantissa)
    special = (magnitude << gain) | _SINGLE.exponent
    finite = jnp.where(magnitude > fmt.mantissa, normal, jnp.where(magnitude == 0, magnitude, subnormal))
    return sign | jnp.where(magnitude > fmt.largest_finite, special, finite)
