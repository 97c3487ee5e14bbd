"""Tokens grouped by the row that they name, and cut into blocks whose temporaries stay small.

A segment is one row of the table with all its tokens. There are two ways to them. `by_row` sorts the ids and plans on
the host; segments of one token come first, for their gradient is a copy. `shared_rows` counts the ids and finds the
segments of several tokens alone, in few operations: on a GPU their launches are what takes time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from xref.torch_ops._host import fetched
from xref.torch_ops._widen import integer_view

__all__ = [
    "Block",
    "Segments",
    "block_size",
    "blocks",
    "by_row",
    "counting_pays",
    "flat_bits",
    "of_rows",
    "shared_rows",
    "sorted_ids",
]

# Bytes of one temporary; a block has a few at a time. On a CPU smaller ones would stay nearer in the caches, but every
# operation ends in a barrier of all threads, and those wait long where cores are shared.
_CPU_BYTES = 2**24
_GPU_BYTES = 2**28
# A segment of more tokens than a block holds is cut by columns, but not into narrower strips: memory is read by lines.
_NARROWEST = 16


class Segments(NamedTuple):
    """R segments over T tokens: first those of one token, then those of several; each part by ascending row.

    rows: `[R]` int64, the row of each segment.
    counts: `[R]` NumPy int64, on the host: how many tokens each segment has. None if that is not known there: then each
        has at least two, and all together are one block.
    positions: `[T]` int64, where the tokens stand among the flattened ids, segment after segment; ascending if `counts`
        is None.
    segment_of: `[T]` int64, the segment of each of them.
    out_of_range: whether an id was left out because no row has it.
    """

    rows: torch.Tensor
    counts: np.ndarray[Any, np.dtype[np.int64]] | None
    positions: torch.Tensor
    segment_of: torch.Tensor
    out_of_range: bool

    def within(self, block: Block) -> torch.Tensor:
        """Return the segment of each token of a block, counted from the block's first."""
        part, start = self.segment_of[block.tokens], block.segments.start
        return part - start if start else part


class Sorted(NamedTuple):
    """Token ids in ascending order, `[T]`, on their way to the host, and where each stands among the flattened ids."""

    ids: Callable[[], torch.Tensor]
    positions: torch.Tensor


class Block(NamedTuple):
    """Some whole segments and some columns; `longest` bounds the tokens of a segment, and is 1 only if all have one."""

    segments: slice
    tokens: slice
    columns: slice
    longest: int

    @property
    def size(self) -> int:
        """How many segments it has."""
        return int(self.segments.stop - self.segments.start)


def sorted_ids(token_ids: torch.Tensor, vocab_size: int) -> Sorted:
    """Sort token ids of any shape and any integer dtype where they are. Does not wait for the device.

    Ids outside `[0, vocab_size)` stay outside, but may come back as others: 32 bits are sorted in half the time of 64.
    """
    # A uint64 id of 2**63 or more turns negative in int64, and names no row either way.
    ids = token_ids.reshape(-1).to(torch.int64)
    if vocab_size <= torch.iinfo(torch.int32).max:
        ids = ids.clamp(-1, vocab_size).to(torch.int32)
    ids, positions = ids.sort()
    return Sorted(fetched(ids), positions)


def by_row(ids: Sorted, vocab_size: int, padding_idx: int | None) -> Segments:
    """Group the tokens by row; ids outside `[0, vocab_size)` or equal to `padding_idx` are left out.

    Waits for the device to have sorted the ids, and for nothing launched after that. Planned on the host: a GPU would
    spend longer on launching such small operations than on running them.
    """
    on_host = ids.ids().numpy()
    low, high = np.searchsorted(on_host, (0, vocab_size)).tolist()
    found = on_host[low:high]
    # A token is alone, or shares its row with the one before it or after it.
    again = found[1:] == found[:-1]
    shared = np.zeros(found.size, np.bool_)
    shared[1:] = again
    shared[:-1] |= again
    alone = ~shared
    if padding_idx is not None:
        counted = found != padding_idx
        alone, shared = alone & counted, shared & counted
    one, several = np.flatnonzero(alone), np.flatnonzero(shared)
    rows = found[several]
    begins = np.concatenate(([True], rows[1:] != rows[:-1]))[: rows.size]
    starts = np.flatnonzero(begins)
    counts = np.concatenate((np.ones(one.size, np.int64), np.diff(starts, append=several.size)))
    row_ids = found[one], rows[starts]
    segment_of = np.arange(one.size), np.cumsum(begins, dtype=np.int64) + (one.size - 1)
    planned = torch.from_numpy(np.concatenate((*row_ids, low + one, low + several, *segment_of), dtype=np.int64))
    if ids.positions.device.type != "cpu":
        planned = planned.pin_memory()  # a copy from other memory would wait until the device has done all before it
    planned = planned.to(ids.positions.device, non_blocking=True)
    parts = planned.tensor_split((counts.size, counts.size + one.size + several.size))
    out_of_range = low > 0 or high < on_host.size
    return Segments(parts[0], counts, ids.positions.index_select(0, parts[1]), parts[2], out_of_range)


def counting_pays(bits: torch.Tensor, vocab_size: int) -> bool:
    """Return whether `shared_rows` is the better way to the segments of `[T, H]` elements.

    It is on a GPU, where it keeps the host from being what takes time, as long as all elements are one block, and the
    counts are few beside them.
    """
    return bits.is_cuda and vocab_size <= bits.numel() <= block_size(bits.device, 8)


def shared_rows(ids: torch.Tensor, vocab_size: int, padding_idx: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that several tokens name, but for `padding_idx`, ascending, and where those tokens stand.

    `ids` is `[T]` int64, all in range; both results are int64. Takes nine bytes a row of the table. Waits for the
    device twice, but not until both are written.
    """
    counts = ids.new_zeros(vocab_size).index_add_(0, ids, ids.new_ones(1).expand_as(ids))
    if padding_idx is not None:
        counts[padding_idx] = 0
    several = counts > 1
    return several.nonzero().squeeze(1), several.index_select(0, ids).nonzero().squeeze(1)


def of_rows(rows: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> Segments:
    """Return the segments of what `shared_rows` finds among these ids; does not wait for the device."""
    segment_of = torch.searchsorted(rows, ids.index_select(0, positions))
    return Segments(rows, None, positions, segment_of, out_of_range=False)


def flat_bits(cotangent: torch.Tensor) -> torch.Tensor:
    """Return `S + (H,)` elements as `[T, H]` integers of the same width; a view where the strides allow it."""
    bits = integer_view(cotangent.detach().resolve_neg())
    return bits.reshape(math.prod(cotangent.shape[:-1]), cotangent.shape[-1])


def block_size(device: torch.device, itemsize: int) -> int:
    """Return how many elements to take at a time there, if temporaries have `itemsize` bytes an element."""
    return (_CPU_BYTES if device.type == "cpu" else _GPU_BYTES) // itemsize


def blocks(segments: Segments, hidden: int, *, copy_bytes: int | None = None) -> Iterator[Block]:
    """Cut `[R, hidden]` into blocks that cover it; segments of one token never share a block with others.

    Temporaries are float64, but for segments of one token, where `copy_bytes` is given, of that many bytes an element.
    """
    device = segments.rows.device
    counts = segments.counts
    if counts is None:
        rows, tokens = segments.rows.numel(), segments.positions.numel()
        if rows and hidden:
            longest = tokens - 2 * (rows - 1)  # for the others have two at least
            yield Block(slice(0, rows), slice(0, tokens), slice(0, hidden), longest)
        return
    ends = np.cumsum(counts)
    alone = int(np.count_nonzero(counts == 1))
    first = start = 0
    while first < counts.size:
        size = block_size(device, copy_bytes if copy_bytes and first < alone else 8)
        last = int(np.searchsorted(ends, start + size // max(hidden, 1), side="right"))
        last = max(min(last, alone) if first < alone else last, first + 1)
        stop = int(ends[last - 1])
        width = max(size // (stop - start), _NARROWEST)
        for column in range(0, hidden, width):
            columns = slice(column, min(column + width, hidden))
            yield Block(slice(first, last), slice(start, stop), columns, int(counts[first:last].max()))
        first, start = last, stop
