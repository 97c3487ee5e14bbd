"""The exact gradient of the token embedding: each row's cotangents summed exactly, rounded once (EMB-8 to EMB-12).

Why it exists: the gradient of `jnp.take` is no truth to compare with. It sums in the table's dtype, so that a bfloat16
row stops growing at 256; on a CPU it flushes subnormals, and on a GPU its bits change from run to run. An exact sum
depends on no order, split, device or compiler.

How: the tokens are grouped by row (`segments`), the groups summed in integer limbs (`segment_sums`; the proof is in
`arithmetic`), and the sums put into their rows (`placement`). On NVIDIA GPUs kernels do the last two at once (`cuda`).

Under a trace the shapes are static and nothing can be raised: an id out of range, a negative one too, adds nothing.

Not promised: forward-mode differentiation (the gradient is linear in the cotangent, and its own `jax.vjp` is a gather);
`jax.shard_map` but with `check_vma=False`; and, where there is an NVIDIA GPU, to lower or export it for several
platforms at once.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import logging
import math
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref import errors
from xref.bits import FORMATS, FloatFormat
from xref.jax_ops import _arguments
from xref.jax_ops.exact_limbs import placement, segments
from xref.jax_ops.exact_limbs.segment_sums import MOST_TOKENS, segment_sums

__all__ = ["grad_rows", "grad_weight"]

Array = jax.Array | np.ndarray[Any, Any]

_LOG = logging.getLogger(__name__)


def grad_weight(
    token_ids: Array,
    cotangent: Array,
    vocab_size: int,
    *,
    dtype: Any = None,
    padding_idx: int | None = None,
    validate: bool = True,
) -> jax.Array:
    """Return the gradient of the table: row v is the exact sum of the cotangents of v's tokens, rounded once.

    Args:
        token_ids: any shape `S`, 0-dimensional and empty included; any integer dtype. NumPy ids are checked before
            anything narrows them, so int64 ids are safe with x64 off. Less than 2**29 of them.
        cotangent: `S + (H,)`, a dtype of the contract; float64 where x64 is on.
        vocab_size: V, the rows of the table; less than 2**31. Static under `jax.jit`.
        dtype: of the result, any dtype of the contract; the cotangent's if None.
        padding_idx: a row whose tokens do not count; it stays +0.
        validate: check concrete ids on the host. Without it, as under a trace, a bad id adds nothing.

    Returns:
        `[V, H]`. Rows that no token names are +0, and so is an exact zero sum. A NaN, or infinities of both signs, give
        the canonical quiet NaN, infinities of one sign that infinity, and a sum too large what round-to-nearest gives:
        an infinity (float8_e4m3fn: its NaN for all of these).

    The temporaries grow with the tokens times H; V adds four bytes a row.

    Raises:
        IndexError: a concrete id is out of range; the message names how many, the first one's position and value, V.
        TypeError: the ids are not integers, or a dtype is not of the contract, or float64 with x64 off.
        ValueError: the shapes do not fit, `padding_idx` is outside `[0, V)`, V is negative, or V or T too large.
    """
    call = "grad_weight"
    vocab_size = errors.checked_size(vocab_size, "vocab_size", call, limit=_arguments.MOST_ROWS)
    target = _check(token_ids, cotangent, dtype, call)
    padding_idx = errors.checked_padding_idx(padding_idx, vocab_size, call)
    cotangent = jnp.asarray(cotangent)
    if not placement.on_one_cpu(cotangent) or _arguments.is_traced(token_ids):
        table = _table(_arguments.traceable(token_ids, vocab_size), cotangent, padding_idx, vocab_size, target)
        if validate:  # while the device is at work
            _arguments.check_range(token_ids, vocab_size, call)
        return table
    if validate:
        _arguments.check_range(token_ids, vocab_size, call)
    row_ids, slots, first = segments.on_host(token_ids, vocab_size, padding_idx)
    return placement.placed(_sums(first, _flat(cotangent), target), slots, row_ids, vocab_size, target)


def grad_rows(
    token_ids: Array,
    cotangent: Array,
    *,
    dtype: Any = None,
    vocab_size: int | None = None,
    padding_idx: int | None = None,
    validate: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Return the rows of `grad_weight` that a token names, without the `[V, H]` buffer.

    Args:
        token_ids: as in `grad_weight`.
        cotangent: as in `grad_weight`.
        dtype: as in `grad_weight`.
        vocab_size: V; None takes every id from 0 to 2**31 - 2.
        padding_idx: as in `grad_weight`.
        validate: as in `grad_weight`.

    Returns:
        `(row_ids, rows)`: int32 `[R]`, ascending, without repeats and without `padding_idx`; and `[R, H]`, the bits
        of those rows of `grad_weight`. Under a trace R is the smaller of T and V. Row ids that are left over come last,
        are all V (2**31 - 1 for None) and have rows of +0, so `table.at[row_ids].add(rows, mode="drop")` needs no care.

    Raises:
        IndexError, TypeError, ValueError: as `grad_weight`.
    """
    call = "grad_rows"
    limit = _arguments.MOST_ROWS
    size = limit if vocab_size is None else errors.checked_size(vocab_size, "vocab_size", call, limit=limit)
    target = _check(token_ids, cotangent, dtype, call)
    padding_idx = errors.checked_padding_idx(padding_idx, size, call)
    if validate:
        _arguments.check_range(token_ids, size, call)
    elements = _flat(cotangent)
    if _arguments.is_traced(token_ids, elements):
        return _padded_rows(_arguments.narrow(token_ids, size).reshape(-1), elements, padding_idx, size, target)
    row_ids, slots, first = segments.on_host(token_ids, size, padding_idx)
    # Padded to the traced shape, or every other number of rows would be compiled anew.
    padded = np.full(min(first.size, size), first.size, np.int32)
    padded[: slots.size] = slots
    rows = _rows(padded, first, elements, target)
    return jnp.asarray(row_ids.astype(np.int32)), rows[: row_ids.size]


def _check(token_ids: Array, cotangent: Array, dtype: Any, call: str) -> FloatFormat:
    _arguments.check_token_ids(token_ids, call)
    source = _arguments.check_cotangent(cotangent, token_ids, call)
    if token_ids.size > MOST_TOKENS:
        raise errors.bad_value("token_ids", f"{token_ids.size} ids", f"at most {MOST_TOKENS} in one call", call)
    return source if dtype is None else _arguments.check_dtype(dtype, call)


def _flat(cotangent: Array) -> jax.Array:
    """Return cotangents `S + (H,)` as `[T, H]`."""
    return jnp.asarray(cotangent).reshape(math.prod(cotangent.shape[:-1]), cotangent.shape[-1])


@functools.partial(jax.jit, static_argnums=2)
def _sums(first: jax.Array, elements: jax.Array, target: FloatFormat) -> jax.Array:
    source = FORMATS[elements.dtype.name]
    return segment_sums(lax.bitcast_convert_type(elements, source.uint), first, source, target)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _table(
    token_ids: jax.Array, cotangent: jax.Array, padding_idx: int | None, vocab_size: int, target: FloatFormat
) -> jax.Array:
    ids = _arguments.narrow(token_ids, vocab_size).reshape(-1)
    slots, first = segments.of_table(ids, vocab_size, padding_idx)
    return _gathered_sums(slots, first, _flat(cotangent), target)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _padded_rows(
    ids: jax.Array, elements: jax.Array, padding_idx: int | None, vocab_size: int, target: FloatFormat
) -> tuple[jax.Array, jax.Array]:
    row_ids, slots, first = segments.of_rows(ids, vocab_size, padding_idx)
    return row_ids, _gathered_sums(slots, first, elements, target)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gathered_sums(slots: jax.Array, first: jax.Array, elements: jax.Array, target: FloatFormat) -> jax.Array:
    """Return `[R, H]` of `target`: the sum of segment `slots[r]` of the `[T, H]` elements, +0 where that is T."""

    def by_xla(slots: jax.Array, first: jax.Array, elements: jax.Array) -> jax.Array:
        return placement.gathered(_sums(first, elements, target), slots, target)

    kernels = _cuda_kernels()
    if kernels is None or not kernels.takes(slots, elements, target):
        return by_xla(slots, first, elements)
    by_kernels = functools.partial(kernels.gathered_sums, target=target)
    return lax.platform_dependent(slots, first, elements, cuda=by_kernels, default=by_xla)


_rows = jax.jit(_gathered_sums, static_argnums=3)


@functools.cache
def _cuda_kernels() -> ModuleType | None:
    """Return the module of kernels for NVIDIA GPUs, or None where there is no such GPU, or JAX compiles none for it."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return None
    try:
        kernels = importlib.import_module("xref.jax_ops.exact_limbs.cuda")
        # In a thread of its own, for what is being traced in this one has no part in it.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(kernels.compile_smallest, device).result()
    except Exception as error:  # whatever another JAX raises: XLA's operations give the same bits
        got = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")
        expected = f"kernels for {device.device_kind}; without them it takes longer"
        _LOG.warning(errors.message("Pallas", got, expected, "exact gradient"))
        return None
    return kernels


def _gathered_sums_forward(
    slots: jax.Array, first: jax.Array, elements: jax.Array, target: FloatFormat
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _gathered_sums(slots, first, elements, target), (slots, first, jnp.empty(0, elements.dtype))


def _gathered_sums_backward(
    target: FloatFormat, residuals: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[None, None, jax.Array]:
    # Without this rule JAX would differentiate through the bit-casts, and in silence return zeros.
    slots, first, like = residuals
    by_segment = jnp.zeros((first.size, cotangent.shape[1]), like.dtype)
    by_segment = by_segment.at[slots].set(cotangent.astype(like.dtype), mode="drop")
    return None, None, by_segment.at[first].get(mode="fill", fill_value=0)


_gathered_sums.defvjp(_gathered_sums_forward, _gathered_sums_backward)
