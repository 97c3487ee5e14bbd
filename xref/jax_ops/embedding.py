"""The JAX golden of the token embedding: `hidden = weight[token_ids]`, and nothing but a copy of rows.

Why it exists: it confirms the torch golden from a second framework and a second compiler, with no code in common but
the table of formats in `xref.bits`; and a JAX or Pallas kernel is right if it agrees with this module in every bit. The
gather is `jnp.take` under `jit`, the gradient of both verbs `grad_weight`: the exact sum of each row's cotangents,
rounded once. All clauses of the contract hold on every device that JAX has; a NumPy table is put on the device first.

    import xref.jax_ops.embedding as golden
    hidden = golden.forward(token_ids, weight)

It works eagerly and under `jax.jit`, `jax.vmap`, `jax.grad` and `jax.vjp`. Concrete ids are checked and raise. Under a
trace of the ids nothing can be raised: there an out-of-range id gives a row of quiet NaN, never a real row, and adds
nothing to the gradient.

Not promised: NaNs of bfloat16 and float8_e5m2 inside `lax.scan` and `lax.map` on a CPU, where XLA quiets them; clause
EMB-12 on a TPU where H is no multiple of 128, for XLA copies such a table before it gathers; tables of 2**31 rows or
more; forward-mode differentiation and second derivatives; anything about ids that the caller's own
`jax.jit` or `jax.vmap` narrowed on the way in (with x64 off, JAX turns the int64 id 2**32 + 1 into 1 before this module
sees it).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xref.bits import FORMATS
from xref.jax_ops import _arguments, _rows
from xref.jax_ops.exact_limbs.accumulator import GradAccumulator
from xref.jax_ops.exact_limbs.gradient import grad_rows, grad_weight

__all__ = ["GradAccumulator", "NativeEmbeddingOp", "forward", "forward_fp32", "grad_rows", "grad_weight"]

Array = jax.Array | np.ndarray[Any, Any]


def forward(token_ids: Array, weight: Array, *, validate: bool = True) -> jax.Array:
    """Return `weight[token_ids, :]` in the table's dtype: a copy of rows, so no element is rounded (EMB-1).

    Args:
        token_ids: any shape `S`, 0-dimensional and empty included; any integer dtype. NumPy ids are checked before
            anything narrows them, so int64 ids are safe with x64 off.
        weight: `[V, H]`; float32, bfloat16, float16, float8_e4m3fn or float8_e5m2, and float64 where x64 is on.
        validate: check concrete ids on the host. Without it, as under a trace, a bad id gives a row of quiet NaN.

    Returns:
        `S + (H,)`, the table's dtype and device, in memory of its own.

    Raises:
        IndexError: a concrete id is out of range; the message names how many, the first one's position and value, and
            `V`.
        TypeError: an argument is not an array, the ids are not integers, or the table's dtype is not listed.
        ValueError: the table is not two-dimensional, or the ids are committed to another device.
    """
    return _embedding(token_ids, weight, validate=validate, widened=False, call="forward")


def forward_fp32(token_ids: Array, weight: Array, *, validate: bool = True) -> jax.Array:
    """Return `weight[token_ids, :]` exactly widened to float32: no element is rounded (EMB-2).

    Values keep their value (subnormals become normal), zeros and infinities their sign; a NaN keeps its sign and its
    payload, left-aligned, and is not quieted. The rows are widened after the gather, never the table before it.

    Args:
        token_ids: as in `forward`.
        weight: as in `forward`, except float64.
        validate: as in `forward`.

    Returns:
        `S + (H,)`, float32, on the table's device, in memory of its own.

    Raises:
        IndexError, TypeError, ValueError: as `forward`; and `TypeError` for a float64 table, which would be narrowed.
    """
    return _embedding(token_ids, weight, validate=validate, widened=True, call="forward_fp32")


class NativeEmbeddingOp:
    """The golden as an object without state: `op(token_ids, weight)` is `forward`; and `op.forward_fp32`."""

    def __call__(self, token_ids: Array, weight: Array) -> jax.Array:
        """Return what `forward` returns."""
        return forward(token_ids, weight)

    def forward(self, token_ids: Array, weight: Array) -> jax.Array:
        """Return what `xref.jax_ops.embedding.forward` returns."""
        return forward(token_ids, weight)

    def forward_fp32(self, token_ids: Array, weight: Array) -> jax.Array:
        """Return what `xref.jax_ops.embedding.forward_fp32` returns."""
        return forward_fp32(token_ids, weight)


def _embedding(token_ids: Array, weight: Array, *, validate: bool, widened: bool, call: str) -> jax.Array:
    _arguments.check_token_ids(token_ids, call)
    _arguments.check_weight(weight, call, widened=widened)
    _arguments.check_same_device(token_ids, weight, call)
    if validate:
        _arguments.check_range(token_ids, weight.shape[0], call)
    ids = _arguments.narrow(token_ids, weight.shape[0])
    return _gather(ids, jnp.asarray(weight), "float32" if widened else weight.dtype.name)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _differentiable(ids: jax.Array, table: jax.Array, result: str) -> jax.Array:
    return _rows.gather(ids, table, FORMATS[table.dtype.name], FORMATS[result])


def _gather_forward(ids: jax.Array, table: jax.Array, result: str) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _differentiable(ids, table, result), (ids, jnp.empty((table.shape[0], 0), table.dtype))


def _gather_backward(
    result: str, residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[None, jax.Array]:
    # The cotangent is summed as it comes: cast to the table's dtype first, it would be rounded once too often.
    ids, like = residuals
    return None, grad_weight(ids, cotangent, like.shape[0], dtype=like.dtype, validate=False)


_differentiable.defvjp(_gather_forward, _gather_backward)
_gather = jax.jit(_differentiable, static_argnums=2)
