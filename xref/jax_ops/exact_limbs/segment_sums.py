"""Rows summed by segment: exact, rounded once, in memory that grows with the tokens and not with the table.

The columns are summed in blocks, and in each block only with limbs for the exponents that occur there (`arithmetic`).
On ordinary data one batch of two or three limbs covers them; wider data takes more batches. Their number is
data and not shape: a traced caller gets the fast way too, and float32's full range never needs all its limbs at once.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from xref.bits import FloatFormat
from xref.jax_ops.exact_limbs import arithmetic

MOST_TOKENS = 2**29 - 1  # limbs of two bits, the narrowest that there are

# Elements of a block. A CPU core wants the limbs of a block in its cache, an accelerator few and large kernels.
_CPU_BLOCK = 2**19
_BLOCK = 2**25
_FEWEST_COLUMNS = 32  # a cache line of a bfloat16 row


def segment_sums(bits: jax.Array, first: jax.Array, source: FloatFormat, target: FloatFormat) -> jax.Array:
    """Return `[T, H]`: in row t the exact sum of segment t, every element rounded once; the bits of `target`.

    Args:
        bits: `[T, H]`, the bits of elements of `source`; T is at most `MOST_TOKENS`.
        first: `[T]`, int32: the segment of each row, which is the first row of that segment; T for none.
        source: the elements' format.
        target: the result's format.

    A row that is not the first of a segment holds nothing of use.
    """
    tokens, hidden = bits.shape
    if 0 in bits.shape:
        return jnp.zeros(bits.shape, target.uint)
    # A sum starts as the first row of its segment, so only the later rows are added to anything.
    later = jnp.where(first == jnp.arange(tokens, dtype=jnp.int32), tokens, first)
    sums = functools.partial(_by_columns, source=source, target=target)
    on_cpu, elsewhere = (min(max(_FEWEST_COLUMNS, block // tokens), hidden) for block in (_CPU_BLOCK, _BLOCK))
    if on_cpu == elsewhere:
        return sums(bits, later, columns=hidden)
    return lax.platform_dependent(
        bits,
        later,
        cpu=functools.partial(sums, columns=on_cpu),
        default=functools.partial(sums, columns=elsewhere),
    )


def _by_columns(
    bits: jax.Array, later: jax.Array, *, columns: int, source: FloatFormat, target: FloatFormat
) -> jax.Array:
    tokens, hidden = bits.shape
    if columns == hidden:
        return _block_sums(bits, later, source, target)

    def add_block(index: jax.Array, out: jax.Array) -> jax.Array:
        # Slices that do not fit are moved until they do: the last block may compute columns again, to the same result.
        block = lax.dynamic_slice(bits, (0, index * columns), (tokens, columns))
        return lax.dynamic_update_slice(out, _block_sums(block, later, source, target), (0, index * columns))

    return lax.fori_loop(0, -(-hidden // columns), add_block, jnp.zeros((tokens, hidden), target.uint))


def _block_sums(bits: jax.Array, later: jax.Array, source: FloatFormat, target: FloatFormat) -> jax.Array:
    word = arithmetic.word_for(source, target)
    width = arithmetic.limb_width(bits.shape[0], word)
    low, high, special = arithmetic.occupied(bits, source)
    count = -(-(high - low) // width)
    few = arithmetic.ordinary_count(source, width)
    nothing = arithmetic.no_sums(bits.shape, word)

    def add_limb(index: jax.Array | int, sums: arithmetic.Sums) -> arithmetic.Sums:
        place = low + index * width
        limb = arithmetic.limb(bits, source, place, width, word)
        return arithmetic.add_limb(sums, limb.at[later].add(limb, mode="drop"), place, width)

    def ordinary() -> jax.Array:
        # Without a loop, the sums need not be written out before they are rounded.
        sums = nothing
        for index in range(few):
            sums = add_limb(index, sums)
        return arithmetic.rounded(sums, low + few * width, source.quantum, target)

    def anything() -> jax.Array:
        sums = lax.fori_loop(0, count, add_limb, nothing)
        out = arithmetic.rounded(sums, low + count * width, source.quantum, target)
        plus, minus = (flag.at[later].max(flag, mode="drop") for flag in arithmetic.special_flags(bits, source))
        return arithmetic.overlaid(out, plus, minus, target)

    return lax.cond((count <= few) & ~special, ordinary, anything)
