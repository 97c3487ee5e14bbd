"""A gradient that grows: exact across micro-batches, ranks and saves, rounded once when it is asked for."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref import errors
from xref.jax_ops import _arguments
from xref.jax_ops.exact_limbs import placement, segments
from xref.jax_ops.exact_limbs.limb_table import LimbTable

__all__ = ["GradAccumulator"]

Array = jax.Array | np.ndarray[Any, Any]

_VERSION = 1
# Limbs that a sum of float64 elements can reach; whatever is beyond was not written by `state_dict`.
_MOST_LIMBS = 256
# A limb that is loaded is at most this: what 2**15 ranks add up to.
_LARGEST_LOADED = 2**30


class GradAccumulator:
    """The exact gradient of a `[V, H]` table over any number of calls: the bits of one `grad_weight` on everything.

    What it holds is integers, for the rows that a token named. An element is a fixed-point number of K limbs, int32:
    `limbs[k, r, h]` weighs `2**(16 * (lowest + k) - 1074)` and is a digit in [-2**15, 2**15), so the same tokens give
    the same integers in any order and any split. K covers the exponents that occurred: 3 to 5 on ordinary data, so up
    to 20 bytes an element (and room for up to twice the rows). `specials[0, r, h]` is 1 where a NaN or +inf was
    added and `specials[1, r, h]` where a NaN or -inf was, once one occurred.

    To merge is to line up rows and limbs and to add the integers: what an all-reduce with SUM over int32 does, without
    overflow for up to 2**15 ranks. `load_state_dict` takes such sums.

    It works on concrete arrays; under a trace, `grad_weight` is the function to use. Cotangents may be of different
    dtypes from call to call.
    """

    def __init__(self, vocab_size: int, hidden: int, *, padding_idx: int | None = None, validate: bool = True) -> None:
        """Start from zero.

        Args:
            vocab_size: V, the rows of the table; less than 2**31.
            hidden: H, the elements of a row.
            padding_idx: a row whose tokens do not count; it stays +0.
            validate: check that every id is in `[0, V)`. Without it a bad id adds nothing.

        Raises:
            TypeError: a size is not an integer.
            ValueError: a size is negative, V too large, or `padding_idx` is outside `[0, V)`.
        """
        call = "GradAccumulator"
        self.vocab_size = errors.checked_size(vocab_size, "vocab_size", call, limit=_arguments.MOST_ROWS)
        self.hidden = errors.checked_size(hidden, "hidden", call)
        self.padding_idx = padding_idx
        self.validate = validate
        checked = errors.checked_padding_idx(padding_idx, self.vocab_size, call)
        self._padding = -1 if checked is None else checked  # -1 is no row's id
        self._sums = LimbTable(self.hidden)

    def add(self, token_ids: Array, cotangent: Array) -> None:
        """Add the cotangents of one micro-batch, `S + (H,)` for ids of any shape `S`: exact, no element is rounded.

        Raises:
            IndexError, TypeError, ValueError: as `grad_weight`, and `TypeError` under a trace; then nothing was added.
        """
        call = "GradAccumulator.add"
        _arguments.check_token_ids(token_ids, call)
        source = _arguments.check_cotangent(cotangent, token_ids, call, hidden=self.hidden)
        if _arguments.is_traced(token_ids, cotangent):
            raise errors.bad_type("cotangent", "a trace", "concrete arrays", call)
        if self.validate:
            _arguments.check_range(token_ids, self.vocab_size, call)
        row_ids, slots, first = segments.on_host(token_ids, self.vocab_size, self._padding)
        if row_ids.size == 0:
            return
        bits = lax.bitcast_convert_type(jnp.asarray(cotangent).reshape(first.size, self.hidden), source.uint)
        held = np.empty(first.size + 1, np.int32)  # the slot here of every segment
        held[slots] = self._sums.slots(row_ids)
        held[-1] = self._sums.capacity  # no slot, for tokens of no segment
        if self.hidden:
            self._sums.add_tokens(bits, held[first], source)

    def merge(self, other: GradAccumulator) -> None:
        """Add what another accumulator holds, which stays as it is.

        Raises:
            TypeError: `other` is no GradAccumulator, or there is a trace around the call.
            ValueError: `other` has another vocab_size, hidden or padding_idx, or is this accumulator itself.
        """
        call = "GradAccumulator.merge"
        if not isinstance(other, GradAccumulator):
            got = f"{type(other).__name__} of {type(other).__module__}"
            raise errors.bad_type("other", got, f"GradAccumulator of {__name__}", call)
        if other is self:
            raise errors.bad_value("other", "the accumulator itself", "another one", call)
        self._check_same(other._header(), "other", call)
        _check_no_trace(call)
        self._sums.add_limbs(other._sums.row_ids, other._sums.lowest, other._sums.limbs, other._sums.specials)

    def result(self, dtype: Any) -> jax.Array:
        """Return the gradient, `[V, H]`: every element the exact sum, rounded once to `dtype`, any of the contract.

        Raises:
            TypeError: a dtype outside the contract, float64 with x64 off, or a trace around the call.
        """
        call = "GradAccumulator.result"
        target = _arguments.check_dtype(dtype, call)
        _check_no_trace(call)
        row_ids = self._sums.row_ids
        slots = np.arange(row_ids.size, dtype=np.int32)
        return placement.placed(self._sums.rounded(target), slots, row_ids, self.vocab_size, target)

    def result_rows(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Return the rows of `result` that a token named, without a `[V, H]` buffer.

        Returns:
            `(row_ids, rows)`: int32 `[R]`, ascending and without repeats, and `[R, H]`.

        Raises:
            TypeError: a dtype outside the contract, float64 with x64 off, or a trace around the call.
        """
        call = "GradAccumulator.result_rows"
        target = _arguments.check_dtype(dtype, call)
        _check_no_trace(call)
        order = np.argsort(self._sums.row_ids).astype(np.int32)
        rows = placement.gathered(self._sums.rounded(target), order, target)
        return jnp.asarray(self._sums.row_ids[order].astype(np.int32)), rows

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain integers and NumPy arrays of their own, for `numpy.savez` or another rank.

        Keys: `version`, `vocab_size`, `hidden`, `padding_idx` (-1 for None), `lowest`, `row_ids` int64 `[R]`, `limbs`
        int32 `[K, R, H]`, and `specials` int32 `[2, R, H]` or `[0, R, H]`; the class says what they mean. Equal sums of
        the same rows give equal states, whatever the way to them.
        """
        sums = self._sums
        order = np.argsort(sums.row_ids)
        limbs = np.array([np.asarray(limb)[order] for limb in sums.limbs], np.int32)
        limbs = limbs.reshape(-1 if limbs.size else 0, order.size, self.hidden)
        used = np.flatnonzero(limbs.any(axis=(1, 2)))
        start, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        specials = np.empty((0, order.size, self.hidden), np.int32)
        if sums.specials is not None:
            specials = np.asarray(sums.specials)[:, order]
        return {
            **self._header(),
            "lowest": sums.lowest + start if used.size else 0,
            "row_ids": sums.row_ids[order],
            "limbs": limbs[start:stop].copy(),
            "specials": specials,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a `state_dict`; limbs and specials of the same rows, added over ranks, will do.

        Raises:
            TypeError: `state` is no mapping, or there is a trace around the call.
            ValueError: another version, vocab_size, hidden or padding_idx, arrays that do not fit, a row of
                `padding_idx`, a limb over 2**30 in magnitude, or a negative special; the sums stay as they were.
        """
        call = "GradAccumulator.load_state_dict"
        if not isinstance(state, Mapping):
            raise errors.bad_type("state", type(state).__name__, "what state_dict returns", call)
        _check_no_trace(call)
        self._check_same(state, "state", call)
        row_ids = _array(state, "row_ids", np.int64, ("R",), call)
        limbs = _array(state, "limbs", np.int32, ("K", row_ids.size, self.hidden), call)
        specials = _array(state, "specials", np.int32, ("0 or 2", row_ids.size, self.hidden), call)
        if specials.shape[0] not in (0, 2):
            raise errors.bad_value("state", f"specials of shape {specials.shape}", "a first axis of 0 or 2", call)
        if not (np.diff(row_ids, prepend=-1, append=self.vocab_size) > 0).all():
            raise errors.bad_value("state", "row_ids in disorder", f"ascending ids in [0, V={self.vocab_size})", call)
        if self._padding in row_ids:
            raise errors.bad_value("state", f"row_ids with {self._padding}", "no row of padding_idx", call)
        _check_range(limbs, "limbs", -_LARGEST_LOADED, _LARGEST_LOADED, call)
        _check_range(specials, "specials", 0, _LARGEST_LOADED, call)
        lowest = _integer(state.get("lowest"))
        if lowest is None or not 0 <= lowest <= _MOST_LIMBS - limbs.shape[0]:
            got = f"lowest {state.get('lowest')!r} and {limbs.shape[0]} limbs"
            raise errors.bad_value("state", got, f"limbs in [0, {_MOST_LIMBS})", call)
        sums = LimbTable(self.hidden)
        flags = jnp.asarray(specials) if specials.size else None
        sums.add_limbs(row_ids, lowest, [jnp.asarray(limb) for limb in limbs], flags)
        self._sums = sums

    def _header(self) -> dict[str, int]:
        return {
            "version": _VERSION,
            "vocab_size": self.vocab_size,
            "hidden": self.hidden,
            "padding_idx": self._padding,
        }

    def _check_same(self, header: Mapping[str, Any], where: str, call: str) -> None:
        for key, expected in self._header().items():
            if _integer(header.get(key)) != expected:
                raise errors.bad_value(where, f"{key} {header.get(key, 'none')}", f"{key} {expected}", call)


def _check_no_trace(call: str) -> None:
    """Raise `TypeError` under a trace: what is computed there is abstract, and would stay behind in the sums."""
    if _arguments.is_traced():
        raise errors.bad_type("trace", "one around the call", "none", call)


def _check_range(array: np.ndarray[Any, Any], key: str, least: int, most: int, call: str) -> None:
    """Raise `ValueError` unless the integers of a state are in `[least, most]`."""
    wrong = array[(array < least) | (array > most)]
    if wrong.size:
        raise errors.bad_value("state", f"{key} with {wrong[0]}", f"{least} to {most}", call)


def _integer(value: Any) -> int | None:
    """Return a plain integer, or None if there is none; what `numpy.load` makes of an integer is one, `True` is not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _array(state: Mapping[str, Any], key: str, dtype: Any, shape: tuple[int | str, ...], call: str) -> Any:
    """Return the array under `key`, of this dtype and shape; an axis that has a name may be of any length."""
    array = state.get(key)
    if not isinstance(array, np.ndarray):
        raise errors.bad_value("state", f"{key} of type {type(array).__name__}", "a numpy.ndarray", call)
    fits = array.ndim == len(shape) and all(
        isinstance(e, str) or e == n for e, n in zip(shape, array.shape, strict=True)
    )
    if array.dtype != dtype or not fits:
        expected = f"{np.dtype(dtype).name} ({', '.join(map(str, shape))})"
        raise errors.bad_value("state", f"{key} {array.dtype} {array.shape}", expected, call)
    return array
