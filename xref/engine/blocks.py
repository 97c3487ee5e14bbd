"""Large arrays on the host, a block at a time in several threads: NumPy leaves the interpreter to the others.

Threads are made for each call: a pool that is kept would be dead in a forked child, where the judge compares too. One
thread alone does not fill the memory's bandwidth, and a temporary as large as the arrays would have to go through
it as well. Small arrays take one block, in the calling thread.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from xref.bits import Bits

__all__ = ["checksums", "differ", "threads"]

_BLOCK = 1 << 20  # elements
_PIECE = 1 << 17  # words of eight bytes
_WEIGHTS = np.arange(_PIECE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
_MOST_THREADS = 8  # more of them would wait for the memory

Result = TypeVar("Result")


def threads() -> int:
    """Return how many threads are worth having at once for work that is bound by memory."""
    return min(os.cpu_count() or 1, _MOST_THREADS)


def differ(first: Bits, second: Bits) -> bool:
    """Return whether any element of two arrays of one shape and dtype has other bits."""
    return first is not second and any(_in_blocks(lambda a, b: bool((a != b).any()), first, second))


def checksums(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """Return sums of each block's words, every word times an odd number of its place: against accidents, and fast.

    A word that changes always shows, as an odd number has an inverse. SHA-256 of the largest table takes longer than
    all calls. The sums depend on the elements alone, and not on how many threads there are.
    """
    return tuple(itertools.chain.from_iterable(_in_blocks(_weighted, array)))


def _weighted(block: np.ndarray[Any, Any]) -> list[int]:
    """Return the sums of a block, a piece at a time that fits into a cache, each modulo 2**64."""
    data = block.view(np.uint8)
    rest = data.size % 8
    words = np.concatenate([data, np.zeros(8 - rest, np.uint8)]).view(np.uint64) if rest else data.view(np.uint64)
    pieces = (words[start : start + _PIECE] for start in range(0, words.size, _PIECE))
    return [int(np.dot(piece, _WEIGHTS[: piece.size])) for piece in pieces]


def _in_blocks(function: Callable[..., Result], *arrays: np.ndarray[Any, Any]) -> Iterator[Result]:
    """Yield what a function returns of each block of flattened arrays of one shape; none is for an empty one."""
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    size = flat[0].size
    if size <= _BLOCK:
        yield function(*flat)
        return
    blocks = [[each[start : start + _BLOCK] for each in flat] for start in range(0, size, _BLOCK)]
    with ThreadPoolExecutor(threads()) as pool:
        yield from pool.map(function, *zip(*blocks, strict=True))
