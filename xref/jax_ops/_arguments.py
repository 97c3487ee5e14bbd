"""What the JAX golden demands of its arguments (clauses EMB-3, EMB-4, EMB-8), checked before anything is computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xref import errors
from xref.bits import FORMATS, FloatFormat

_ARRAYS = (jax.Array, np.ndarray, np.generic)
_ARRAY_NAMES = "jax.Array or numpy.ndarray"

MOST_ROWS = np.iinfo(np.int32).max  # rows of a gradient: row ids are int32, and one value stands for no row


def is_traced(*arrays: Any) -> bool:
    """Return whether what is computed from these arrays is traced: because one of them is, or because everything is.

    Inside somebody's `jax.jit` a concrete array is a constant of the trace, and the result is as abstract as any.
    """
    return any(isinstance(array, jax.core.Tracer) for array in (*arrays, jnp.zeros(0, jnp.int32)))


def check_token_ids(token_ids: object, call: str) -> None:
    """Raise `TypeError` unless `token_ids` is an array of an integer dtype."""
    if not isinstance(token_ids, _ARRAYS):
        raise errors.bad_type("token_ids", type(token_ids).__name__, _ARRAY_NAMES, call)
    # NumPy counts its time spans among the integers.
    if not jnp.issubdtype(token_ids.dtype, jnp.integer) or np.issubdtype(token_ids.dtype, np.timedelta64):
        raise errors.bad_type("token_ids", f"dtype {token_ids.dtype.name}", "an integer dtype", call)


def check_weight(weight: Any, call: str, *, widened: bool) -> FloatFormat:
    """Return the element format of `weight` if it is a `[V, H]` table of a contract dtype.

    Raises:
        TypeError: not an array, a dtype outside the contract, of the other byte order, or float64 where it is to be
            `widened` to float32 or where JAX would narrow it (x64 is off).
        ValueError: not two-dimensional.
    """
    if not isinstance(weight, _ARRAYS):
        raise errors.bad_type("weight", type(weight).__name__, _ARRAY_NAMES, call)
    name = weight.dtype.name
    if name not in FORMATS:
        raise errors.bad_type("weight", f"dtype {name}", f"one of {', '.join(FORMATS)}", call)
    if widened and name == "float64":
        raise errors.bad_type("weight", "dtype float64", "a dtype that float32 can hold", call)
    _check_x64("weight", "dtype float64", name, call)
    _check_native("weight", weight.dtype, call)
    if weight.ndim != 2:
        raise errors.bad_value("weight", f"shape {weight.shape}", "shape [V, H]", call)
    return FORMATS[name]


def check_same_device(token_ids: Any, weight: Any, call: str) -> None:
    """Raise `ValueError` if ids and table are both committed to devices, and to different ones."""
    arrays = [a for a in (token_ids, weight) if isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer)]
    if len(arrays) == 2 and all(a.committed for a in arrays) and token_ids.devices() != weight.devices():
        got, expected = (", ".join(sorted(map(str, a.devices()))) for a in arrays)
        raise errors.bad_value("token_ids", f"device {got}", f"the table's, {expected}", call)


def check_range(token_ids: Any, vocab_size: int, call: str) -> None:
    """Raise the `IndexError` of clause EMB-4 if a concrete id is outside `[0, vocab_size)`.

    The ids are read on the host in their own dtype, before anything narrows them. Under a trace there are no values
    to check and nothing can be raised: see `narrow`.
    """
    if isinstance(token_ids, jax.core.Tracer):
        return
    ids = np.asarray(token_ids)
    bad = _out_of_range(ids, vocab_size)
    if not bad.any():
        return
    position = tuple(int(i) for i in np.unravel_index(int(bad.argmax()), ids.shape))
    raise errors.ids_out_of_range(
        count=int(bad.sum()),
        total=ids.size,
        position=position,
        value=int(ids[position]),
        vocab_size=vocab_size,
        call=call,
    )


def narrow(token_ids: Any, vocab_size: int) -> jax.Array:
    """Return the ids in the signed dtype that JAX indexes with: int64 for 64-bit ids under x64, int32 otherwise.

    No id outside `[0, vocab_size)` comes back inside it: see `traceable`. Unsigned ids past the signed range turn
    negative, which is as far out.
    """
    ids = traceable(token_ids, vocab_size)
    return ids.astype(jnp.int64 if ids.dtype.itemsize == 8 else jnp.int32)


def traceable(token_ids: Any, vocab_size: int) -> jax.Array:
    """Return the ids as an array that a trace does not narrow, and no id outside `[0, vocab_size)` inside it.

    A NumPy array, or a JAX array made while x64 was on, can hold ids that int32 cannot (2**32 + 1 would become 1):
    those become -1 on the host.
    """
    whole = jax.dtypes.canonicalize_dtype(token_ids.dtype) == token_ids.dtype
    if isinstance(token_ids, jax.core.Tracer) or (isinstance(token_ids, jax.Array) and whole):
        return token_ids
    ids = np.asarray(token_ids)
    return jnp.asarray(np.where(_out_of_range(ids, vocab_size), -1, ids.astype(np.int64)).astype(np.int32))


def check_cotangent(cotangent: Any, token_ids: Any, call: str, *, hidden: int | None = None) -> FloatFormat:
    """Return the element format of `cotangent` if it is an `S + (H,)` array of a contract dtype beside the ids.

    `S` is the shape of `token_ids`; `hidden` is what `H` has to be, None for anything.

    Raises:
        TypeError: not an array, a dtype outside the contract, of the other byte order, or float64 where JAX would
            narrow it (x64 is off).
        ValueError: another shape.
    """
    if not isinstance(cotangent, _ARRAYS):
        raise errors.bad_type("cotangent", type(cotangent).__name__, _ARRAY_NAMES, call)
    name = cotangent.dtype.name
    if name not in FORMATS:
        raise errors.bad_type("cotangent", f"dtype {name}", f"one of {', '.join(FORMATS)}", call)
    _check_x64("cotangent", "dtype float64", name, call)
    _check_native("cotangent", cotangent.dtype, call)
    shape = (*token_ids.shape, "H" if hidden is None else hidden)
    fits = cotangent.ndim == len(shape) and cotangent.shape[:-1] == token_ids.shape
    if not fits or hidden not in (None, cotangent.shape[-1]):
        expected = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        raise errors.bad_value("cotangent", f"shape {cotangent.shape}", f"shape {expected}", call)
    return FORMATS[name]


def check_dtype(dtype: Any, call: str) -> FloatFormat:
    """Return the element format that a dtype, or anything that JAX takes for one, names.

    Raises:
        TypeError: not a dtype of the contract, or float64 where x64 is off.
    """
    try:
        name = "None" if dtype is None else jnp.dtype(dtype).name  # NumPy would take None for float64
    except TypeError:
        name = str(dtype)
    if name not in FORMATS:
        raise errors.bad_type("dtype", name, f"one of {', '.join(FORMATS)}", call)
    _check_x64("dtype", "float64", name, call)
    return FORMATS[name]


def _check_x64(where: str, got: str, name: str, call: str) -> None:
    if name == "float64" and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise errors.bad_type(where, got, "jax_enable_x64, or JAX would narrow it to float32", call)


def _check_native(where: str, dtype: np.dtype[Any], call: str) -> None:
    if not dtype.isnative:
        raise errors.bad_type(where, f"dtype {dtype}", "the machine's own byte order", call)


def _out_of_range(ids: np.ndarray[Any, Any], vocab_size: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    # Two's-complement int64 keeps every order that matters: only uint64 ids of 2**63 or more wrap, to negatives.
    wide = ids.astype(np.int64)
    return np.asarray((wide < 0) | (wide >= vocab_size))
