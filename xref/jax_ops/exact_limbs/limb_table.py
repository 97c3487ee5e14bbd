"""Sums of rows that grow, in rows, in range and in tokens: integers, and nothing is rounded before it is asked for.

Each sum is a superaccumulator whose carries are put off (Neal, "Fast exact summation using small and large
superaccumulators", 2015): here digits of 16 bits, which int32 holds until they are carried.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xref.bits import FORMATS, FloatFormat
from xref.jax_ops.exact_limbs import arithmetic

Integers = np.ndarray[Any, Any]

# Bits of a limb, and the weight of limb 0: the quantum of float64, of which every other format's is a multiple.
_WIDTH = 16
_QUANTUM = FORMATS["float64"].quantum
# Tokens added between two carries: 2**14 * 2**16, with a digit and a carry, is far from 2**31.
_CHUNK = 2**14


class LimbTable:
    """Fixed-point sums, `[R, H]`: of limb k, `limbs[k - lowest]` holds the digits, int32, in [-2**15, 2**15).

    A row has a slot, in order of first use: row `row_ids[i]` is in slot i of `[capacity, H]` arrays. The capacity
    doubles, so that few shapes are compiled and little is copied. `specials`, `[2, capacity, H]` or None, has 1 where a
    NaN or +inf was added, and 1 where a NaN or -inf was. Concrete arrays only.
    """

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden
        self.row_ids = np.empty(0, np.int64)
        self.capacity = 0
        self.lowest = 0
        self.limbs: list[jax.Array] = []
        self.specials: jax.Array | None = None

    def slots(self, row_ids: Integers) -> Integers:
        """Return the slots, int32, of row ids that are all different; a new row gets one, with sums of zero."""
        self.row_ids = np.concatenate([self.row_ids, np.setdiff1d(row_ids, self.row_ids)])
        more = (1 << max(self.row_ids.size - 1, 0).bit_length()) - self.capacity
        if more > 0:
            self.capacity += more
            self.limbs = [jnp.pad(limb, ((0, more), (0, 0))) for limb in self.limbs]
            if self.specials is not None:
                self.specials = jnp.pad(self.specials, ((0, 0), (0, more), (0, 0)))
        order = np.argsort(self.row_ids).astype(np.int32)
        return order[np.searchsorted(self.row_ids, row_ids, sorter=order)]

    def add_tokens(self, bits: jax.Array, slots: Integers, source: FloatFormat) -> None:
        """Add elements of `source`, `[T, H]`, to the sums in `slots`, `[T]` int32; a slot of `capacity` is none."""
        for start in range(0, slots.size, _CHUNK):
            tokens = slice(start, start + _CHUNK)
            self._add_chunk(bits[tokens], slots[tokens], source)

    def add_limbs(self, row_ids: Integers, lowest: int, limbs: list[jax.Array], specials: jax.Array | None) -> None:
        """Add the limbs, `[N, H]` each, and specials, `[2, N, H]`, of another table; the first R of N rows are in use.

        They may be sums of up to 2**15 tables with the same rows.
        """
        found = self.slots(row_ids)

        def slots(rows: int) -> Integers:
            return np.pad(found, (0, rows - found.size), constant_values=self.capacity)

        if specials is not None:
            self._add_specials(_placed_specials(specials, slots(specials.shape[1]), self.capacity))
        carry = self._zeros()
        for index, limb in enumerate(list(limbs), lowest):
            digits, carry = _add_limb(self._limb(index), carry, limb, slots(limb.shape[0]))
            self.limbs[index - self.lowest] = digits
        self._carry(carry, lowest + len(limbs))

    def rounded(self, target: FloatFormat) -> jax.Array:
        """Return the sums by slot, `[capacity, H]`, each rounded once; the bits of `target`."""
        word = arithmetic.word_for(target)
        sums = arithmetic.no_sums((self.capacity, self.hidden), word)
        place = self.lowest * _WIDTH
        for limb in self.limbs:
            sums = _with_limb(sums, limb.astype(word), place, _WIDTH)
            place += _WIDTH
        return _finished(sums, self.specials, place, target)

    def _add_chunk(self, bits: jax.Array, slots: Integers, source: FloatFormat) -> None:
        low, high, special = (int(scalar) for scalar in _occupied(bits, source))
        if special:
            self._add_specials(_special_sums(bits, slots, source, self.capacity))
        shift = source.quantum - _QUANTUM
        start, end = (low + shift) // _WIDTH, -(-(high + shift) // _WIDTH)
        carry = self._zeros()
        for index in range(start, end):
            place = index * _WIDTH - shift
            digits, carry = _add_elements(self._limb(index), carry, bits, slots, place, source)
            self.limbs[index - self.lowest] = digits
        self._carry(carry, end)

    def _carry(self, carry: jax.Array, index: int) -> None:
        """Add a carry to limb `index`, and what it carries on to those above."""
        while carry.any():
            digits, carry = _add_carry(self._limb(index), carry)
            self.limbs[index - self.lowest] = digits
            index += 1

    def _limb(self, index: int) -> jax.Array:
        """Return limb `index`, having made it, and those between it and the others, if it is new."""
        if not self.limbs:
            self.lowest = index
        below = max(self.lowest - index, 0)
        above = index + 1 - self.lowest - len(self.limbs)
        self.limbs = [self._zeros()] * below + self.limbs + [self._zeros()] * above
        self.lowest -= below
        return self.limbs[index - self.lowest]

    def _add_specials(self, flags: jax.Array) -> None:
        self.specials = flags if self.specials is None else jnp.maximum(self.specials, flags)

    def _zeros(self) -> jax.Array:
        return jnp.zeros((self.capacity, self.hidden), jnp.int32)


_occupied = jax.jit(arithmetic.occupied, static_argnums=1)
_with_limb = jax.jit(arithmetic.add_limb, static_argnums=3)


@functools.partial(jax.jit, static_argnums=5)
def _add_elements(
    digits: jax.Array, carry: jax.Array, bits: jax.Array, slots: jax.Array, place: int, source: FloatFormat
) -> tuple[jax.Array, jax.Array]:
    limb = arithmetic.limb(bits, source, place, _WIDTH, arithmetic.word_for(source)).astype(jnp.int32)
    return arithmetic.split(digits.at[slots].add(limb, mode="drop") + carry, _WIDTH)


@jax.jit
def _add_limb(digits: jax.Array, carry: jax.Array, limb: jax.Array, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    return arithmetic.split(digits.at[slots].add(limb, mode="drop") + carry, _WIDTH)


@jax.jit
def _add_carry(digits: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
    return arithmetic.split(digits + carry, _WIDTH)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _special_sums(bits: jax.Array, slots: jax.Array, source: FloatFormat, capacity: int) -> jax.Array:
    zeros = jnp.zeros((capacity, bits.shape[1]), jnp.int32)
    return jnp.stack([zeros.at[slots].max(flag, mode="drop") for flag in arithmetic.special_flags(bits, source)])


@functools.partial(jax.jit, static_argnums=2)
def _placed_specials(specials: jax.Array, slots: jax.Array, capacity: int) -> jax.Array:
    zeros = jnp.zeros((2, capacity, specials.shape[2]), jnp.int32)
    return zeros.at[:, slots].set(jnp.minimum(specials, 1), mode="drop")


@functools.partial(jax.jit, static_argnums=3)
def _finished(sums: arithmetic.Sums, specials: jax.Array | None, end: int, target: FloatFormat) -> jax.Array:
    out = arithmetic.rounded(sums, end, _QUANTUM, target)
    return out if specials is None else arithmetic.overlaid(out, specials[0], specials[1], target)
