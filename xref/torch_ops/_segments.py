"""Tokens grouped by the row that they name, and cut into blocks small enough to stay in cache.

A segment is one row of the table with all its tokens. Segments are ordered by their number of tokens, so that the
segments of a block have about equal counts: first those with one token, whose gradient is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from xref.torch_ops._widen import integer_view

__all__ = ["Block", "Segments", "block_size", "blocks", "by_row", "flat_bits"]

# Elements per block; its temporaries are a few times this many elements of 8 bytes. On a CPU smaller blocks would stay nearer in
# the caches, but every operation ends in a barrier of all threads, and those wait long where cores are shared.
_CPU_BLOCK = 2**20
_GPU_BLOCK = 2**25
# A segment of more tokens than a block holds is cut by columns, but never into narrower strips: rows are read by cache lines.
_NARROWEST = 16


class Segments(NamedTuple):
    """R segments over T tokens, by ascending count and then by ascending row.

    rows: `[R]` int64, the row of each segment.
    counts: `[R]` NumPy int64, on the host: how many tokens each segment has.
    positions: `[T]` int64, where the tokens stand among the flattened ids, segment after segment.
    segment_of: `[T]` int64, the segment of each of them.
    """

    rows: torch.Tensor
    counts: np.ndarray[Any, np.dtype[np.int64]]
    positions: torch.Tensor
    segment_of: torch.Tensor

    def within(self, block: Block) -> torch.Tensor:
        """Return the segment of each token of a block, counted from the block's first."""
        return self.segment_of[block.tokens] - block.segments.start


class Block(NamedTuple):
    """Some whole segments and some columns; `count` is the largest number of tokens that a segment of it has."""

    segments: slice
    tokens: slice
    columns: slice
    count: int

    @property
    def size(self) -> int:
        """How many segments it has."""
        return int(self.segments.stop - self.segments.start)


def by_row(token_ids: torch.Tensor, vocab_size: int, padding_idx: int | None) -> Segments:
    """Group the tokens by row; ids outside `[0, vocab_size)` or equal to `padding_idx` are left out.

    `token_ids` has any shape and any integer dtype (a uint64 id of 2**63 or more turns negative in int64, and is left
    out either way). Waits for the device twice.
    """
    ids, positions = token_ids.reshape(-1).to(torch.int64).sort(stable=True)
    rows, row_of, counts = ids.unique_consecutive(return_inverse=True, return_counts=True)
    keep = (rows >= 0) & (rows < vocab_size)
    if padding_idx is not None:
        keep &= rows != padding_idx
    # What is left out sorts to the front with a key of 0. Both sorts are stable, so they agree on ties.
    key = counts * keep
    order, token_order = key.argsort(stable=True), key[row_of].argsort(stable=True)
    segment_of = order.argsort()[row_of[token_order]]
    kept = key[order].cpu().numpy()
    left_out = int(np.count_nonzero(kept == 0))
    tokens = ids.numel() - int(kept.sum())
    return Segments(
        rows=rows[order][left_out:],
        counts=kept[left_out:],
        positions=positions[token_order][tokens:],
        segment_of=segment_of[tokens:] - left_out,
    )


def flat_bits(cotangent: torch.Tensor) -> torch.Tensor:
    """Return `S + (H,)` elements as `[T, H]` integers of the same width; a view where the strides allow it."""
    return integer_view(cotangent.detach().resolve_neg()).reshape(math.prod(cotangent.shape[:-1]), cotangent.shape[-1])


def block_size(device: torch.device) -> int:
    """Return how many elements to take at a time there."""
    return _CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK


def blocks(segments: Segments, hidden: int) -> Iterator[Block]:
    """Cut `[R, hidden]` into blocks that cover it; segments of one token never share a block with others."""
    size = block_size(segments.rows.device)
    counts = segments.counts
    ends = np.cumsum(counts)
    singles = int(np.searchsorted(counts, 1, side="right"))
    first = start = 0
    while first < counts.size:
        last = int(np.searchsorted(ends, start + size // max(hidden, 1), side="right"))
        last = max(min(last, singles) if first < singles else last, first + 1)
        stop = int(ends[last - 1])
        width = max(size // (stop - start), _NARROWEST)
        for column in range(0, hidden, width):
            columns = slice(column, min(column + width, hidden))
            yield Block(slice(first, last), slice(start, stop), columns, int(counts[last - 1]))
        first, start = last, stop
