"""Exact sums of floats in integer limbs, rounded once: the arithmetic of the JAX gradient.

Why integers: TPUs have no float64, XLA's CPU backend flushes subnormals in float arithmetic, and a compiler may
rewrite float tricks. Integer addition is associative, so no order of the additions can change a bit. Here no float is
added, multiplied, compared or cast, and x64 is needed for float64 elements alone.

A finite element is an integer number of quanta (`FloatFormat.quantum`): `significand << place`. Such numbers are added
as on paper: in a Kulisch accumulator ("Computer arithmetic and validity", 2008), or superaccumulator, of which only the
limbs that occur are there. A limb is `width` bits of every number, from one place up. Its sum over a segment is one
integer scatter-add; carries go from the lowest limb up; the highest digits are rounded. Why the result is exact:

1. No overflow. In one limb, n tokens sum to at most n * (2**width - 1), and a carry from below is at most n. So the
   total is at most n * 2**width, which `limb_width` makes fit the word; and what it carries on, the total over
   2**width, is at most n again.
2. Nothing lost. A total is split into `carry << width` and a digit in [-2**(width - 1), 2**(width - 1)), so the sum
   of a segment is its digits and its last carry, each at its place.
3. One rounding. All digits below a place together come to less than 2/3 of it, so the highest nonzero digit (or the
   last carry) has the sign of the sum, and at least a third of its unit is left. What is below it is kept to
   `fraction` bits, rounded to odd: the last kept bit is set if any bit below is. Rounding to odd hides nothing from a
   later rounding to nearest of two or more bits less (Boldo and Melquiond, "Emulation of FMA and correctly rounded
   sums", 2008), and the word leaves at least five.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xref.bits import FloatFormat

Word = np.dtype[Any]

# Binades between the largest and the smallest element that one batch covers. A block of gaussian elements has about 25.
_ORDINARY_SPREAD = 26


def word_for(*formats: FloatFormat) -> Word:
    """Return the integers to compute in: int32, or int64 if float64 (and so x64) is involved."""
    return np.dtype(np.int64 if any(f.width == 64 for f in formats) else np.int32)


def limb_width(tokens: int, word: Word) -> int:
    """Return how many bits a limb may have: `tokens * 2**width` fits the word, and a digit has room beside its tail."""
    return min(_bits(word) - 1 - tokens.bit_length(), _fraction(word) - 1)


def ordinary_count(source: FloatFormat, width: int) -> int:
    """Return how many limbs hold the elements of ordinary data: one batch of a loop over limbs."""
    return -(-(source.mantissa_bits + 1 + _ORDINARY_SPREAD) // width)


def occupied(bits: jax.Array, source: FloatFormat) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `(low, high, special)` of elements of `source`, as bits: three scalars, int32, int32 and bool.

    `low` and `high` are those of `places`; `special` tells whether any element is not finite.
    """
    mask = source.uint.type(source.sign - 1)
    magnitude = bits & mask
    largest = jnp.max(magnitude)
    low, high = places(jnp.min(less_one(magnitude, mask)), largest, source)
    return low, high, largest > source.uint.type(source.largest_finite)


def less_one(magnitude: jax.Array, mask: Any) -> jax.Array:
    """Return magnitudes less one, so that zeros wrap around to `mask`, out of the way of a search for the smallest."""
    return (magnitude - 1) & mask


def places(smallest_less_one: jax.Array, largest: jax.Array, source: FloatFormat) -> tuple[jax.Array, jax.Array]:
    """Return `(low, high)`, int32: every bit of the finite elements is at a place in `[low, high)`, counted in quanta.

    `smallest_less_one` is the smallest of `less_one` of the magnitudes, and `largest` the largest magnitude, specials
    included. If no element is finite and nonzero, `low` and `high` are places and mean nothing.
    """

    def place(magnitude: jax.Array) -> jax.Array:
        return jnp.maximum((magnitude >> source.mantissa_bits).astype(jnp.int32) - 1, 0)

    finite = jnp.minimum(largest, largest.dtype.type(source.largest_finite))
    return place(smallest_less_one), place(finite) + source.mantissa_bits + 1


def limb(bits: jax.Array, source: FloatFormat, place: jax.Array | int, width: int, word: Word) -> jax.Array:
    """Return bits `[place, place + width)` of every element, counted in quanta, with the element's sign.

    The shape of `bits`, of dtype `word`, between -2**width and 2**width. Elements that are not finite give 0.
    """
    element = bits.astype(word)  # no conversion where the widths are the same: the sign bit becomes the word's
    magnitude = element & (source.sign - 1)
    field = magnitude >> source.mantissa_bits
    significand = (magnitude & source.mantissa) | (jnp.minimum(field, 1) << source.mantissa_bits)
    last = _bits(word) - 1
    significand &= (magnitude - (source.largest_finite + 1)) >> last
    # Shifts by the word's width are undefined. By one less, no bit is left under the mask, so clipping changes nothing.
    up = jnp.maximum(field - 1, 0) - place
    cut = ((significand << jnp.clip(up, 0, last)) >> jnp.clip(-up, 0, last)) & ((1 << width) - 1)
    return _negated(cut, _sign_mask(element, source))


class Sums(NamedTuple):
    """Sums of which the limbs below some place have been added: arrays of one shape, of the word's dtype.

    `carry` goes into the limb at that place, and `tail` is all digits below it, in units of 2**-fraction of it, rounded
    to odd. `lead` is the highest nonzero digit, `lead_tail` the tail below it and `lead_place` its place.
    """

    carry: jax.Array
    tail: jax.Array
    lead: jax.Array
    lead_tail: jax.Array
    lead_place: jax.Array


def no_sums(shape: tuple[int, ...], word: Word) -> Sums:
    """Return sums of nothing."""
    zeros = jnp.zeros(shape, word)
    return Sums(zeros, zeros, zeros, zeros, zeros)


def split(total: jax.Array, width: int) -> tuple[jax.Array, jax.Array]:
    """Return `(digit, carry)`: `total == digit + (carry << width)` and `-2**(width - 1) <= digit < 2**(width - 1)`."""
    spare = _bits(total.dtype) - width
    return (total << spare) >> spare, (total >> width) + ((total >> (width - 1)) & 1)


def add_limb(sums: Sums, limb_sums: jax.Array, place: jax.Array | int, width: int) -> Sums:
    """Add the next limb, at `place`: limbs come without gaps, of one width, and `limb_sums + carry` fits the word."""
    digit, carry = split(limb_sums + sums.carry, width)
    found = digit != 0
    return Sums(
        carry=carry,
        tail=(digit << (_fraction(digit.dtype) - width)) + _shifted_to_odd(sums.tail, width),
        lead=jnp.where(found, digit, sums.lead),
        lead_tail=jnp.where(found, sums.tail, sums.lead_tail),
        lead_place=jnp.where(found, place, sums.lead_place),
    )


def rounded(sums: Sums, end: jax.Array | int, quantum: int, target: FloatFormat) -> jax.Array:
    """Return the bits of sums rounded to `target`, to nearest and ties to even: the only rounding there is.

    The shape of the sums, of dtype `target.uint`. `end` is the place above the last limb; places count in units of
    `2**quantum`. An exact zero is +0. Past the largest finite magnitude is an infinity, in float8_e4m3fn the NaN.
    """
    word = sums.carry.dtype
    carried = sums.carry != 0
    negative, significand, exponent = _normalised(
        jnp.where(carried, sums.carry, sums.lead),
        jnp.where(carried, sums.tail, sums.lead_tail),
        jnp.where(carried, end, sums.lead_place) + (quantum - target.quantum),
    )
    # The last bit of the result is worth 2**step quanta of the target; subnormals all have step 0. At least five bits
    # are dropped; and from the word's width on, far below the smallest subnormal, all values round to zero alike.
    leading = _fraction(word) - 2 + (significand >> (_fraction(word) - 1))
    step = jnp.maximum(leading - target.mantissa_bits + exponent, 0)
    drop = jnp.minimum(step - exponent, _bits(word) - 1)
    steps = (significand + ((1 << (drop - 1)) - 1) + ((significand >> drop) & 1)) >> drop
    # A carry out of the mantissa lands in the exponent field by the same addition. float32 needs the word's last bit.
    unsigned = np.dtype(f"u{word.itemsize}")
    field = jnp.minimum(step, (1 << target.exponent_bits) - 1).astype(unsigned)
    encoded = (field << target.mantissa_bits) + steps.astype(unsigned)
    encoded &= (-significand >> (_bits(word) - 1)).astype(unsigned)  # zero has no leading bit, and so no step
    encoded = jnp.minimum(encoded, target.largest_finite + 1).astype(target.uint)
    sign = negative.astype(target.uint) & target.uint.type(target.sign)
    if not target.has_inf:
        sign &= (encoded - target.uint.type(target.nan)) & target.uint.type(target.sign)  # the NaN has none
    return encoded | sign


def by_sign(bits: jax.Array, source: FloatFormat, word: Word) -> tuple[jax.Array, jax.Array]:
    """Return `(plus, minus)`: the magnitudes of elements without and with a sign, of dtype `word`; 0 for the others."""
    element = bits.astype(word)
    magnitude, negative = element & (source.sign - 1), _sign_mask(element, source)
    return magnitude & ~negative, magnitude & negative


def special_flags(bits: jax.Array, source: FloatFormat) -> tuple[jax.Array, jax.Array]:
    """Return `(plus, minus)`: 1 where an element is a NaN or +inf, and 1 where it is a NaN or -inf; int32, else 0."""
    return flags_by_sign(*by_sign(bits, source, word_for(source)), source)


def flags_by_sign(plus: jax.Array, minus: jax.Array, source: FloatFormat) -> tuple[jax.Array, jax.Array]:
    """Return what `special_flags` does, of what `by_sign` returns, or the largest of it over a segment."""
    has_nan = jnp.maximum(plus, minus) > source.largest_number
    plus, minus = (has_nan | (largest > source.largest_finite) for largest in (plus, minus))
    return plus.astype(jnp.int32), minus.astype(jnp.int32)


def alone(bits: jax.Array, source: FloatFormat, target: FloatFormat) -> jax.Array:
    """Return the bits of `target` of sums of one element each, as its bits: a copy, or rounded once.

    A zero is +0, and a NaN the canonical one.
    """
    uint = source.uint.type
    if source == target:
        magnitude = bits & uint(source.sign - 1)
        is_nan = magnitude > uint(source.largest_number)
        return jnp.where(is_nan, uint(source.nan), jnp.where(magnitude == 0, magnitude, bits))
    word = word_for(source, target)
    width = limb_width(1, word)  # more than a significand has
    plus, minus = by_sign(bits, source, word)
    place, _ = places(plus | minus, plus | minus, source)
    sums = add_limb(no_sums(bits.shape, word), limb(bits, source, place, width, word), place, width)
    out = rounded(sums, place + width, source.quantum, target)
    return overlaid(out, *flags_by_sign(plus, minus, source), target)


def overlaid(bits: jax.Array, plus: jax.Array, minus: jax.Array, target: FloatFormat) -> jax.Array:
    """Return `bits` with what sums with specials come to (EMB-11); the flags are the largest of each segment."""
    uint = target.uint.type
    plus, minus = plus.astype(target.uint), minus.astype(target.uint)
    infinity = target.largest_finite + 1  # in float8_e4m3fn the NaN
    sign = target.sign if target.has_inf else 0
    special = uint(infinity) | ((minus & ~plus) * uint(sign)) | ((plus & minus) * uint(target.nan ^ infinity))
    mask = -(plus | minus)  # and not a select: `placement.gathered` says why
    return (bits & ~mask) | (special & mask)


def _bits(word: Word) -> int:
    return 8 * word.itemsize


def _fraction(word: Word) -> int:
    """Return the bits that a tail has below its digit's unit: two less than the word, for its sign and for safety."""
    return _bits(word) - 2


def _sign_mask(element: jax.Array, source: FloatFormat) -> jax.Array:
    """Return all ones (-1) where an element, as bits in the word's dtype, has a sign, else 0."""
    return -((element >> (source.width - 1)) & 1)


def _negated(value: jax.Array, mask: jax.Array) -> jax.Array:
    """Return `-value` where `mask` is all ones (-1), `value` where it is 0."""
    return (value ^ mask) - mask


def _shifted_to_odd(value: jax.Array, drop: jax.Array | int) -> jax.Array:
    """Return `value / 2**drop` rounded to odd: exact, or the odd one of its two neighbours."""
    return (value >> drop) | jnp.minimum(value & ((1 << drop) - 1), 1)


def _normalised(lead: jax.Array, tail: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `(negative, significand, exponent)` of `(lead + tail / 2**fraction) << place`.

    `negative` is a mask; `2**(fraction - 2) <= significand < 2**fraction`, rounded to odd, or 0 where the value is.
    """
    fraction = _fraction(lead.dtype)
    last = _bits(lead.dtype) - 1
    negative = lead >> last
    lead, tail = _negated(lead, negative), _negated(tail, negative)
    borrow = tail >> last
    lead, tail = lead + borrow, tail + (borrow & (1 << fraction))
    length = last + 1 - lax.clz(lead)
    return negative, (lead << (fraction - length)) | _shifted_to_odd(tail, length), place - fraction + length
