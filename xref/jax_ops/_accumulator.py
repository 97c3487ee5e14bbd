"""A gradient that grows: exact across micro-batches, ranks and saves, rounded once when it is asked for."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref import errors
from xref.bits import FORMATS, FloatFormat
from xref.jax_ops import _arguments, _limbs, _placement, _segments

__all__ = ["GradAccumulator"]

Array = jax.Array | np.ndarray[Any, Any]

_VERSION = 1
# Bits of a limb, and the weight of limb 0: the quantum of float64, of which every other format's is a multiple.
_WIDTH = 16
_QUANTUM = FORMATS["float64"].quantum
# Limbs that a sum of float64 elements can reach; whatever is beyond was not written by `state_dict`.
_MOST_LIMBS = 256
# Tokens added between two carries: 2**14 * 2**16, with a digit and a carry, is far from 2**31.
_CHUNK = 2**14


class GradAccumulator:
    """The exact gradient of a `[V, H]` table over any number of calls: the bits of one `grad_weight` on everything.

    What it holds is integers, for the rows that a token named. An element is a fixed-point number of K limbs, int32:
    `limbs[k, r, h]` weighs `2**(16 * (lowest + k) - 1074)` and is a digit in [-2**15, 2**15), so the same tokens give
    the same integers in any order and any split. K covers the exponents that occurred: 4 or 5 on ordinary data, so
    about 20 bytes an element (and room for up to twice the rows). `specials[0, r, h]` is 1 where a NaN or +inf was
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
        self.vocab_size = _arguments.check_size(vocab_size, "vocab_size", call, limit=_arguments.MOST_ROWS)
        self.hidden = _arguments.check_size(hidden, "hidden", call)
        self.padding_idx = padding_idx
        self.validate = validate
        self._padding = _arguments.check_padding_idx(padding_idx, self.vocab_size, call)
        self._clear()

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
        row_ids, slots, first = _segments.on_host(token_ids, self.vocab_size, self._padding)
        if 0 in (row_ids.size, self.hidden):
            return
        held = np.empty(first.size + 1, np.int32)  # the slot here of every segment
        held[slots] = self._slots(row_ids)
        held[-1] = self._capacity  # no slot, for tokens of no segment
        bits = lax.bitcast_convert_type(jnp.asarray(cotangent).reshape(first.size, self.hidden), source.uint)
        for start in range(0, first.size, _CHUNK):
            tokens = slice(start, start + _CHUNK)
            self._add_tokens(bits[tokens], jnp.asarray(held[first[tokens]]), source)

    def merge(self, other: GradAccumulator) -> None:
        """Add what another accumulator holds, which stays as it is.

        Raises:
            TypeError: `other` is no GradAccumulator.
            ValueError: `other` has another vocab_size, hidden or padding_idx.
        """
        call = "GradAccumulator.merge"
        if not isinstance(other, GradAccumulator):
            raise errors.bad_type("other", type(other).__name__, "GradAccumulator", call)
        self._check_same(other._header(), "other", call)
        rows = other._row_ids.size
        specials = None if other._specials is None else other._specials[:, :rows]
        self._merge(other._row_ids, other._lowest, [limb[:rows] for limb in other._limbs], specials)

    def result(self, dtype: Any) -> jax.Array:
        """Return the gradient, `[V, H]`: every element the exact sum, rounded once to `dtype`, any of the contract.

        Raises:
            TypeError: a dtype outside the contract, or float64 with x64 off.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result")
        slots = np.arange(self._row_ids.size, dtype=np.int32)
        return _placement.placed(self._rounded(target), slots, self._row_ids, self.vocab_size, target)

    def result_rows(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Return the rows of `result` that a token named, without a `[V, H]` buffer.

        Returns:
            `(row_ids, rows)`: int32 `[R]`, ascending and without repeats, and `[R, H]`.

        Raises:
            TypeError: a dtype outside the contract, or float64 with x64 off.
        """
        target = _arguments.check_dtype(dtype, "GradAccumulator.result_rows")
        order = np.argsort(self._row_ids).astype(np.int32)
        rows = _placement.gathered(self._rounded(target), order, target)
        return jnp.asarray(self._row_ids[order].astype(np.int32)), rows

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as plain integers and NumPy arrays of their own, for `numpy.savez` or another rank.

        Keys: `version`, `vocab_size`, `hidden`, `padding_idx` (-1 for None), `lowest`, `row_ids` int64 `[R]`, `limbs`
        int32 `[K, R, H]`, and `specials` int32 `[2, R, H]` or `[0, R, H]`; the class says what they mean. Equal sums of
        the same rows give equal states, whatever the way to them.
        """
        order = np.argsort(self._row_ids)
        limbs = np.array([np.asarray(limb)[order] for limb in self._limbs], np.int32)
        limbs = limbs.reshape(-1 if limbs.size else 0, order.size, self.hidden)
        used = np.flatnonzero(limbs.any(axis=(1, 2)))
        start, stop = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        specials = np.empty((0, order.size, self.hidden), np.int32)
        if self._specials is not None:
            specials = np.asarray(self._specials)[:, order]
        return {
            **self._header(),
            "lowest": self._lowest + start if used.size else 0,
            "row_ids": self._row_ids[order],
            "limbs": limbs[start:stop].copy(),
            "specials": specials,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the sums by those of a `state_dict`; limbs and specials of the same rows, added over ranks, will do.

        Raises:
            ValueError: another version, vocab_size, hidden or padding_idx, or arrays that do not fit; the sums stay as
                they were.
        """
        call = "GradAccumulator.load_state_dict"
        self._check_same(state, "state", call)
        row_ids = _array(state, "row_ids", np.int64, ("R",), call)
        limbs = _array(state, "limbs", np.int32, ("K", row_ids.size, self.hidden), call)
        specials = _array(state, "specials", np.int32, ("0 or 2", row_ids.size, self.hidden), call)
        if specials.shape[0] not in (0, 2):
            raise errors.bad_value("state", f"specials of shape {specials.shape}", "a first axis of 0 or 2", call)
        if not (np.diff(row_ids, prepend=-1, append=self.vocab_size) > 0).all():
            raise errors.bad_value("state", "row_ids in disorder", f"ascending ids in [0, V={self.vocab_size})", call)
        lowest = _integer(state.get("lowest"))
        if lowest is None or not 0 <= lowest <= _MOST_LIMBS - limbs.shape[0]:
            got = f"lowest {state.get('lowest')!r} and {limbs.shape[0]} limbs"
            raise errors.bad_value("state", got, f"limbs in [0, {_MOST_LIMBS})", call)
        self._clear()
        self._merge(row_ids, lowest, list(jnp.asarray(limbs)), jnp.asarray(specials) if specials.size else None)

    def _clear(self) -> None:
        # Slots are in order of first use. Their number doubles, so that few shapes are compiled and little is copied.
        self._row_ids = np.empty(0, np.int64)
        self._capacity = 0
        self._lowest = 0
        self._limbs: list[jax.Array] = []  # from limb `lowest` up, [capacity, H] each, digits
        self._specials: jax.Array | None = None  # [2, capacity, H]

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

    def _slots(self, row_ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the slots, int32, of row ids that are all different; a new row gets one, with sums of zero."""
        self._row_ids = np.concatenate([self._row_ids, np.setdiff1d(row_ids, self._row_ids)])
        more = (1 << max(self._row_ids.size - 1, 0).bit_length()) - self._capacity
        if more > 0:
            self._capacity += more
            self._limbs = [jnp.pad(limb, ((0, more), (0, 0))) for limb in self._limbs]
            if self._specials is not None:
                self._specials = jnp.pad(self._specials, ((0, 0), (0, more), (0, 0)))
        order = np.argsort(self._row_ids).astype(np.int32)
        return order[np.searchsorted(self._row_ids, row_ids, sorter=order)]

    def _add_tokens(self, bits: jax.Array, slots: jax.Array, source: FloatFormat) -> None:
        low, high, special = (int(scalar) for scalar in _occupied(bits, source))
        if special:
            self._add_specials(_special_sums(bits, slots, source, self._capacity))
        shift = source.quantum - _QUANTUM
        start, end = (low + shift) // _WIDTH, -(-(high + shift) // _WIDTH)
        carry = self._zeros()
        for index in range(start, end):
            place = index * _WIDTH - shift
            digits, carry = _add_limb(self._limb(index), carry, bits, slots, place, source)
            self._limbs[index - self._lowest] = digits
        self._carry(carry, end)

    def _merge(
        self, row_ids: np.ndarray[Any, Any], lowest: int, limbs: list[jax.Array], specials: jax.Array | None
    ) -> None:
        slots = jnp.asarray(self._slots(row_ids))
        if specials is not None:
            flags = jnp.zeros((2, self._capacity, self.hidden), jnp.int32)
            self._add_specials(flags.at[:, slots].set(jnp.minimum(specials, 1)))
        carry = self._zeros()
        for index, limb in enumerate(limbs, lowest):
            total = self._limb(index).at[slots].add(limb)
            self._limbs[index - self._lowest], carry = _carried(total, carry)
        self._carry(carry, lowest + len(limbs))

    def _limb(self, index: int) -> jax.Array:
        """Return limb `index`, having made it, and those between it and the others, if it is new."""
        if not self._limbs:
            self._lowest = index
        below = max(self._lowest - index, 0)
        above = index + 1 - self._lowest - len(self._limbs)
        self._limbs = [self._zeros()] * below + self._limbs + [self._zeros()] * above
        self._lowest -= below
        return self._limbs[index - self._lowest]

    def _carry(self, carry: jax.Array, index: int) -> None:
        """Add a carry to limb `index`, and what it carries on to those above."""
        while carry.any():
            self._limbs[index - self._lowest], carry = _carried(self._limb(index), carry)
            index += 1

    def _add_specials(self, flags: jax.Array) -> None:
        self._specials = flags if self._specials is None else jnp.maximum(self._specials, flags)

    def _zeros(self) -> jax.Array:
        return jnp.zeros((self._capacity, self.hidden), jnp.int32)

    def _rounded(self, target: FloatFormat) -> jax.Array:
        """Return the bits of the sums by slot, `[capacity, H]`, rounded to `target`."""
        word = _limbs.word_for(target)
        sums = _limbs.no_sums((self._capacity, self.hidden), word)
        place = self._lowest * _WIDTH
        for limb in self._limbs:
            sums = _with_limb(sums, limb.astype(word), place, _WIDTH)
            place += _WIDTH
        return _finished(sums, self._specials, place, target)


def _integer(value: Any) -> int | None:
    """Return a plain integer, or None if there is none; what `numpy.load` makes of an integer is one."""
    try:
        return operator.index(value)
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
        raise errors.bad_value("state", f"{key} {array.dtype.name} {array.shape}", expected, call)
    return array


_occupied = jax.jit(_limbs.occupied, static_argnums=1)
_with_limb = jax.jit(_limbs.add_limb, static_argnums=3)


@functools.partial(jax.jit, static_argnums=5)
def _add_limb(
    digits: jax.Array, carry: jax.Array, bits: jax.Array, slots: jax.Array, place: int, source: FloatFormat
) -> tuple[jax.Array, jax.Array]:
    limb = _limbs.limb(bits, source, place, _WIDTH, _limbs.word_for(source)).astype(jnp.int32)
    return _limbs.split(digits.at[slots].add(limb, mode="drop") + carry, _WIDTH)


@jax.jit
def _carried(total: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _limbs.split(total + carry, _WIDTH)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _special_sums(bits: jax.Array, slots: jax.Array, source: FloatFormat, capacity: int) -> jax.Array:
    zeros = jnp.zeros((capacity, bits.shape[1]), jnp.int32)
    return jnp.stack([zeros.at[slots].max(flag, mode="drop") for flag in _limbs.special_flags(bits, source)])


@functools.partial(jax.jit, static_argnums=3)
def _finished(sums: _limbs.Sums, specials: jax.Array | None, end: int, target: FloatFormat) -> jax.Array:
    out = _limbs.rounded(sums, end, _QUANTUM, target)
    return out if specials is None else _limbs.overlaid(out, specials[0], specials[1], target)
