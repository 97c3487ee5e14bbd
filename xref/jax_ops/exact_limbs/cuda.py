"""The sums of segments put into their rows on NVIDIA GPUs: kernels in Pallas around `arithmetic`.

Why: XLA's own operations pass over all tokens once a limb and once more for each step of the rounding, and over the
table to fill it. On one H200 (JAX 0.11.2, 8192 tokens of 4096 float32, V = 151936) that took twice as long as the
gradient of `jnp.take`, whose time is that of the table's zeros. Here the table is written once, and a segment's tokens
are read twice: for the places that their bits are at, and for the limbs of these places.

No atomics, and no order that matters: one program sums some columns of a segment, as integers.

Pallas' Triton back end, which compiles this, is deprecated from JAX 0.11 on, and needs a GPU of compute capability 8.0.
Where it is not to be had, XLA's operations give the same bits.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from xref.bits import FORMATS, FloatFormat
from xref.jax_ops.exact_limbs import arithmetic

_ROW_BYTES = 2**14  # of one or more rows, which one program writes


class _Cut(NamedTuple):
    """What a program of `_add_segments` takes: segments of up to `most` tokens that begin among `chunk` sorted ones.

    Of such a segment it takes `tile` tokens of some `columns` at a time.
    """

    chunk: int
    tile: int
    columns: int
    most: int
    warps: int = 4


# Of short segments there are many, and most of their time is the way from one load to the next: wide strips. A long one
# is work for the programs of its strips alone: many narrow ones. Measured on an H200.
_CUTS = (
    _Cut(chunk=32, tile=4, columns=256, most=4),
    _Cut(chunk=64, tile=16, columns=128, most=64),
    _Cut(chunk=512, tile=128, columns=16, most=2**31 - 1, warps=8),
)


def compile_smallest(device: jax.Device) -> None:
    """Compile the kernels for a device, for small float32: whatever this raises, they are not to be had there."""
    kernels = functools.partial(gathered_sums, target=FORMATS["float32"])
    shapes = ((3,), jnp.int32), ((2,), jnp.int32), ((2, 2), jnp.float32)
    with jax.default_device(device):
        jax.jit(kernels).lower(*itertools.starmap(jax.ShapeDtypeStruct, shapes)).compile()


def takes(slots: jax.Array, elements: jax.Array, target: FloatFormat) -> bool:
    """Return whether `gathered_sums` can do it.

    Not where there is nothing, nor for float64, whose words have 64 bits, nor for float8: up to 4 GiB the back end's
    offsets have 32 bits, of which one is a sign.
    """
    widths = {FORMATS[elements.dtype.name].width, target.width}
    return 0 not in (slots.size, *elements.shape) and widths <= {16, 32}


def gathered_sums(
    slots: jax.Array, first: jax.Array, elements: jax.Array, target: FloatFormat, *, interpret: bool = False
) -> jax.Array:
    """Return `[R, H]` of `target`: the sum of segment `slots[r]`, rounded once; +0 where `slots[r]` is T.

    Args:
        slots: `[R]` int32, the segment of each row, each but T once.
        first: `[T]` int32, the segment of each token, which is the first token of that segment; T for none.
        elements: `[T, H]`, of a format of 16 or 32 bits.
        target: the result's format, of 16 or 32 bits.
        interpret: run the kernels as XLA's operations, on any device, for tests.
    """
    # At each use, whose caller cannot do anything about it. Pytest and others put filters back, so it is set each time.
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    source, hidden = FORMATS[elements.dtype.name], elements.shape[1]
    bits = lax.bitcast_convert_type(elements, source.uint)
    tokens = jnp.arange(first.size, dtype=jnp.int32)
    ordered, order = lax.sort_key_val(first, tokens, is_stable=False)
    counts = jnp.zeros_like(first).at[first].add(1, mode="drop")
    row_of = jnp.zeros_like(first).at[slots].set(jnp.arange(slots.size, dtype=jnp.int32), mode="drop")

    run = functools.partial(_run, interpret=interpret)
    some_rows = _some_rows(hidden, source, target)
    shape = jax.ShapeDtypeStruct((slots.size, hidden), target.uint)  # type: ignore[no-untyped-call]
    table = run(functools.partial(_zero_rows, tokens=first.size), slots.size, some_rows, (slots,), shape)
    alone = functools.partial(_round_rows, source=source, target=target)
    table, least = run(alone, first.size, some_rows, (counts, row_of, bits), table), 2
    for cut in _CUTS:
        add = functools.partial(_add_segments, cut=cut, least=least, source=source, target=target)
        operands = ordered, order, counts, row_of, bits
        table, least = run(add, first.size, (cut.chunk, cut.columns), operands, table, warps=cut.warps), cut.most + 1
    return lax.bitcast_convert_type(table, target.name)


def _some_rows(hidden: int, *formats: FloatFormat) -> tuple[int, int]:
    """Return the tile of a kernel that reads and writes whole rows."""
    elements = _ROW_BYTES // max(fmt.uint.itemsize for fmt in formats)
    columns = min(pl.next_power_of_2(hidden), elements)
    return elements // columns, columns


def _run(
    kernel: Callable[..., None],
    rows: int,
    tile: tuple[int, int],
    operands: tuple[jax.Array, ...],
    table: jax.Array | jax.ShapeDtypeStruct,
    *,
    interpret: bool,
    warps: int = 8,
) -> jax.Array:
    """Return a table `[R, H]` into which a program for each tile of `[rows, H]` has written.

    A table that is an array keeps its memory and what no program writes; of a shape alone the memory is a new one.
    """
    in_place = isinstance(table, jax.Array)
    return pl.pallas_call(
        functools.partial(kernel, tile=tile),
        grid=(-(-rows // tile[0]), -(-table.shape[1] // tile[1])),
        out_shape=jax.ShapeDtypeStruct(table.shape, table.dtype),  # type: ignore[no-untyped-call]
        input_output_aliases={len(operands): 0} if in_place else {},
        compiler_params=plgpu.CompilerParams(num_warps=warps),
        interpret=interpret,
    )(*operands, *([table] if in_place else []))


def _indices(tile: tuple[int, int]) -> Iterator[jax.Array]:
    """Yield the indices that are this program's, axis by axis."""
    for axis, step in enumerate(tile):
        yield pl.program_id(axis) * step + jnp.arange(step, dtype=jnp.int32)


def _zero_rows(slots: Any, out: Any, *, tile: tuple[int, int], tokens: int) -> None:
    row, column = _indices(tile)
    slot = plgpu.load(slots.at[row], mask=row < out.shape[0], other=0)
    mask = (slot >= tokens)[:, None] & (column < out.shape[1])[None]
    plgpu.store(out.at[row[:, None], column[None]], jnp.zeros(tile, out.dtype), mask=mask)


def _round_rows(
    counts: Any,
    row_of: Any,
    bits: Any,
    _: Any,
    out: Any,
    *,
    tile: tuple[int, int],
    source: FloatFormat,
    target: FloatFormat,
) -> None:
    token, column = _indices(tile)
    alone = plgpu.load(counts.at[token], mask=token < bits.shape[0], other=0) == 1
    # Not any row: interpreted, a store that is masked writes what it has read.
    row = plgpu.load(row_of.at[token], mask=alone, other=out.shape[0])
    mask = alone[:, None] & (column < out.shape[1])[None]
    elements = plgpu.load(bits.at[token[:, None], column[None]], mask=mask, other=0)
    plgpu.store(out.at[row[:, None], column[None]], arithmetic.alone(elements, source, target), mask=mask)


def _add_segments(
    first: Any,
    order: Any,
    counts: Any,
    row_of: Any,
    bits: Any,
    _: Any,
    out: Any,
    *,
    tile: tuple[int, int],
    cut: _Cut,
    least: int,
    source: FloatFormat,
    target: FloatFormat,
) -> None:
    place, column = _indices(tile)
    count = first.shape[0]
    inside = column < bits.shape[1]
    # Where the segments begin that are this program's; `count` is no place.
    segment = plgpu.load(first.at[place], mask=place < count, other=count)
    before = plgpu.load(first.at[jnp.maximum(place - 1, 0)], mask=(place > 0) & (place < count), other=count)
    tokens = plgpu.load(counts.at[segment], mask=segment < count, other=0)
    mine = (segment != before) & (tokens >= least) & (tokens <= cut.most)
    begins = jnp.where(mine, place, count)

    def add_segment(begin: jax.Array) -> jax.Array:
        segment = plgpu.load(first.at[begin])
        end = begin + plgpu.load(counts.at[segment])

        def elements(index: jax.Array) -> jax.Array:
            at = begin + index * cut.tile + jnp.arange(cut.tile, dtype=jnp.int32)
            token = plgpu.load(order.at[at], mask=at < end, other=0)
            inside_tile = (at < end)[:, None] & inside[None]
            return plgpu.load(bits.at[token[:, None], column[None]], mask=inside_tile, other=0)

        codes = _segment_sum(elements, -(-(end - begin) // cut.tile), (cut.tile, cut.columns), count, source, target)
        plgpu.store(out.at[plgpu.load(row_of.at[segment]), column], codes, mask=inside)
        return jnp.min(jnp.where(begins > begin, begins, count))

    lax.while_loop(lambda begin: begin < count, add_segment, jnp.min(begins))


def _segment_sum(
    elements: Callable[[jax.Array], jax.Array],
    tiles: jax.Array,
    shape: tuple[int, int],
    tokens: int,
    source: FloatFormat,
    target: FloatFormat,
) -> jax.Array:
    """Return `[C]`, the bits of a segment's sums; `elements` gives those of a tile of its tokens, of this shape."""
    word = arithmetic.word_for(source, target)
    width = arithmetic.limb_width(tokens, word)
    few = arithmetic.ordinary_count(source, width)
    mask, zeros = word.type(source.sign - 1), jnp.zeros(shape, word)

    def look(index: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        plus, minus = arithmetic.by_sign(elements(index), source, word)
        smallest = jnp.minimum(found[0], arithmetic.less_one(plus | minus, mask))
        return smallest, jnp.maximum(found[1], plus), jnp.maximum(found[2], minus)

    smallest, plus, minus = lax.fori_loop(0, tiles, look, (jnp.full(shape, mask, word), zeros, zeros))
    plus, minus = jnp.max(plus, axis=0), jnp.max(minus, axis=0)
    low, high = arithmetic.places(jnp.min(smallest), jnp.max(jnp.maximum(plus, minus)), source)
    batches = -(-(high - low) // (few * width))

    def add_batch(index: jax.Array, sums: arithmetic.Sums) -> arithmetic.Sums:
        places = [low + (index * few + limb) * width for limb in range(few)]

        def add_tile(index: jax.Array, totals: list[jax.Array]) -> list[jax.Array]:
            bits = elements(index)
            return [t + arithmetic.limb(bits, source, p, width, word) for t, p in zip(totals, places, strict=True)]

        for total, place in zip(lax.fori_loop(0, tiles, add_tile, [zeros] * few), places, strict=True):
            sums = arithmetic.add_limb(sums, jnp.sum(total, axis=0, dtype=word), place, width)
        return sums

    sums = lax.fori_loop(0, batches, add_batch, arithmetic.no_sums(shape[1:], word))
    out = arithmetic.rounded(sums, low + batches * few * width, source.quantum, target)
    return arithmetic.overlaid(out, *arithmetic.flags_by_sign(plus, minus, source), target)
