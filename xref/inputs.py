"""Tables and token ids from integer arithmetic alone: every machine, framework and NumPy version builds the same bytes.

No random generator of NumPy's is used, since none of them promises its stream for ever; the words come from
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), whose word `i` is a
function of `i`: any part of a table can be built without the rest.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import errors
from xref.bits import Bits, FloatFormat

__all__ = ["allocate", "id_families", "make_ids", "make_table", "table_families", "words"]

Ids = np.ndarray[Any, np.dtype[Any]]

_BLOCK = 1 << 16  # elements at a time: they stay in a core's cache, so that a table is written to memory once
_BOUNDARIES = (127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24)


def words(count: int, *, start: int = 0, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return words `start` to `start + count` of the SplitMix64 stream of `seed`, uint64 `[count]`."""
    word = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    word *= np.uint64(0x9E3779B97F4A7C15)
    word += np.uint64((seed * 0xD1342543DE82EF95) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word ^= word >> np.uint64(shift)
        word *= np.uint64(factor)
    word ^= word >> np.uint64(31)
    return word


def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Bits:
    """Return a zeroed array in pages of its own: resident only where touched, and aligned for sharing without a copy.

    JAX takes a NumPy array over without copying it if it is aligned to 64 bytes, which `np.zeros` does not promise.
    """
    count = int(np.prod(shape, dtype=np.int64))
    # Private pages: shared ones cost twice the time on first touch.
    pages = mmap.mmap(-1, max(count * dtype.itemsize, 1), access=mmap.ACCESS_COPY)
    return np.frombuffer(pages, dtype=dtype, count=count).reshape(shape)


def _blocks(table: Bits) -> Iterator[tuple[int, Bits]]:
    step = max(_BLOCK // max(table.shape[1], 1), 1)
    for row in range(0, table.shape[0], step):
        yield row, table[row : row + step]


def _patterns(table: Bits, fmt: FloatFormat, offset: int) -> None:
    """Element `a` in row-major order has the bits `offset + a`: counting through the dtype's whole domain."""
    hidden = table.shape[1]
    counting = np.arange(max(_BLOCK, hidden)).astype(fmt.uint)
    for row, block in _blocks(table):
        first = fmt.uint.type((offset + row * hidden) % (1 << fmt.width))
        np.add(counting[: block.size].reshape(block.shape), first, out=block)


def _hashed(table: Bits, fmt: FloatFormat, first_row: int = 0) -> None:
    """Each 64-bit word is its row's hash xor its column's, so a row and a column are known by their bits."""
    hidden = table.shape[1]
    across = words(-(-hidden * fmt.width // 64), seed=5)
    for row, block in _blocks(table):
        down = words(block.shape[0], start=first_row + row, seed=6)
        stream = (down[:, None] ^ across).astype("<u8", copy=False)
        block[:] = stream.view(fmt.uint.newbyteorder("<"))[:, :hidden]


def _tagged(table: Bits, fmt: FloatFormat, offset: int) -> None:
    """Each element's bits name its row and column: its row-major address, or where that does not fit, a hash of it."""
    if table.size <= 1 << fmt.width:
        _patterns(table, fmt, offset)
    else:
        _hashed(table, fmt)


def _gaussian(table: Bits, fmt: FloatFormat, offset: int) -> None:
    """Bell-shaped values around zero, deviation about 0.02 as in trained tables, cut to the dtype's precision."""
    for row, block in _blocks(table):
        stream = words(block.size, start=offset + row * table.shape[1]).astype("<u8", copy=False)
        lanes = stream.view("<u2").reshape(*block.shape, 4)
        # The sum of four uniform 16-bit integers, centred: deviation 2**16 / sqrt(3), so 2**-21 makes it 0.018.
        centred = lanes.astype(np.int32).sum(axis=-1, dtype=np.int32) - np.int32(2 * 0xFFFF)
        block[:] = _encode_truncated(centred, -21, fmt)


def _encode_truncated(values: np.ndarray[Any, np.dtype[np.int32]], exponent: int, fmt: FloatFormat) -> Bits:
    """Return the bits of `values * 2**exponent`, cut towards zero; what would be subnormal is zero."""
    magnitude = np.abs(values).astype(np.uint64)
    leading = np.zeros(values.shape, dtype=np.int64)
    for step in (16, 8, 4, 2, 1):  # position of the leading bit by bisection: integers only
        leading += np.where(magnitude >> (leading + step).astype(np.uint64) != 0, step, 0)
    field = leading + exponent + fmt.bias
    shift = fmt.mantissa_bits - leading
    mantissa = (magnitude << np.maximum(shift, 0).astype(np.uint64)) >> np.maximum(-shift, 0).astype(np.uint64)
    encoded = (np.maximum(field, 0).astype(np.uint64) << np.uint64(fmt.mantissa_bits)) | (
        mantissa & np.uint64(fmt.mantissa)
    )
    encoded = np.where((magnitude == 0) | (field < 1), np.uint64(0), encoded)
    return (encoded | np.where(values < 0, np.uint64(fmt.sign), np.uint64(0))).astype(fmt.uint)


_TABLES: dict[str, Callable[[Bits, FloatFormat, int], None]] = {
    "patterns": _patterns,
    "hashed": lambda table, fmt, offset: _hashed(table, fmt, first_row=offset),
    "tagged": _tagged,
    "gaussian": _gaussian,
    "sparse": lambda table, fmt, offset: None,  # its touched rows are written by `make_table`
}


def table_families() -> tuple[str, ...]:
    """Return the names that `make_table` takes."""
    return tuple(_TABLES)


def make_table(
    family: str, vocab: int, hidden: int, fmt: FloatFormat, *, offset: int = 0, touched: Ids | tuple[()] = ()
) -> Bits:
    """Return the bits of a `[vocab, hidden]` table of the family.

    `offset` is where the elements' addresses, or a `hashed` table's rows, begin. `touched` are the ids that will be
    looked up: a `sparse` table holds tagged rows there and untouched zero pages elsewhere, so that it may be larger
    than the memory.

    Raises:
        ValueError: no such family.
    """
    if family not in _TABLES:
        raise errors.bad_value("family", repr(family), f"one of {', '.join(_TABLES)}", "make_table")
    table = allocate((vocab, hidden), fmt.uint)
    _TABLES[family](table, fmt, offset)
    if family == "sparse":
        for row in np.unique(touched):
            _hashed(table[row : row + 1], fmt, first_row=int(row))
    return table


def _draw(count: int, below: int, seed: int) -> Ids:
    return (words(count, seed=seed) % np.uint64(max(below, 1))).astype(np.int64)


def _zipf(count: int, vocab: int) -> Ids:
    """Ids whose frequency falls as 1/rank: uniform within a power of two, and all powers of two alike."""
    scale = _draw(count, vocab.bit_length(), seed=1)
    ids = (1 << scale) - 1 + _draw(count, 1 << 62, seed=2) % (1 << scale)
    return np.where(ids < vocab, ids, ids % vocab)


def _boundary(count: int, vocab: int) -> Ids:
    edges = {0, vocab - 1, *(b + d for b in (*_BOUNDARIES, vocab) for d in (-2, -1, 0, 1))}
    ids = np.array(sorted(i for i in edges if 0 <= i < vocab), dtype=np.int64)
    return np.resize(ids, count)


def _hot(count: int, vocab: int) -> Ids:
    ids = _draw(count, vocab, seed=3)
    ids[::4] = vocab // 2
    return ids


def _ends(count: int, vocab: int) -> Ids:
    return np.where(np.arange(count) % 2 == 0, 0, vocab - 1)


def _covering(count: int, vocab: int) -> Ids:
    """Every id once and frequent ones again, in no order."""
    ids = np.concatenate([np.arange(vocab), _zipf(max(count - vocab, 0), vocab)])[:count]
    return ids[np.argsort(words(count, seed=7), kind="stable")]


def _part(number: int, count: int, vocab: int) -> Ids:
    return np.arange(number * count, (number + 1) * count) % vocab


def _zipf_with_ends(count: int, vocab: int) -> Ids:
    ids = _zipf(count, vocab)
    ids[:1] = 0
    ids[1:2] = vocab - 1
    return ids


_IDS: dict[str, Callable[[int, int], Ids]] = {
    "every": lambda count, vocab: np.arange(count) % vocab,
    "distinct": lambda count, vocab: np.argsort(words(vocab, seed=4), kind="stable")[:count],
    "covering": _covering,
    "zipf": _zipf,
    "zipf_ends": _zipf_with_ends,
    "hot": _hot,
    "ends": _ends,
    "sorted": lambda count, vocab: np.sort(_zipf(count, vocab)),
    "reversed": lambda count, vocab: np.sort(_zipf(count, vocab))[::-1],
    "equal": lambda count, vocab: np.full(count, vocab - 1),
    "boundary": _boundary,
    # Ids one after the other, from where n calls of as many end: every id of a large table, a part of them at a time.
    **{f"part{n}": functools.partial(_part, n) for n in range(16)},
}


def id_families() -> tuple[str, ...]:
    """Return the names that `make_ids` takes."""
    return tuple(_IDS)


def make_ids(family: str, shape: tuple[int, ...], vocab: int, dtype: str) -> Ids:
    """Return ids of the family, of the shape and integer dtype, all in `[0, vocab)` and within the dtype's range.

    Raises:
        ValueError: no such family, or `distinct` ids of more than there are.
    """
    if family not in _IDS:
        raise errors.bad_value("family", repr(family), f"one of {', '.join(_IDS)}", "make_ids")
    count = int(np.prod(shape, dtype=np.int64))
    reachable = min(vocab, int(np.iinfo(dtype).max) + 1)
    if family == "distinct" and count > reachable:
        raise errors.bad_value("shape", f"{count} distinct ids", f"at most {reachable}", "make_ids")
    return np.asarray(_IDS[family](count, reachable)).astype(dtype).reshape(shape)
