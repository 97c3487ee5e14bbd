import zlib

import numpy as np
import pytest

from xref.engine import blocks

SIZES = (0, 1, 100, blocks._BLOCK, blocks._BLOCK + 1, 3 * blocks._BLOCK + 17)


@pytest.mark.parametrize("size", SIZES)
def test_one_element_that_differs_is_found_wherever_it_is(size):
    array = np.arange(size, dtype=np.uint32)
    assert not blocks.differ(array, array.copy())
    for place in {0, size // 2, size - 1} if size else ():
        other = array.copy()
        other[place] ^= 1 << 31
        assert blocks.differ(array, other)


def test_arrays_of_several_axes_that_are_not_contiguous_are_compared_by_their_elements():
    array = np.arange(4096 * 1024, dtype=np.uint16).reshape(4096, 1024)
    turned = array.T
    assert not blocks.differ(turned, turned.copy())
    other = turned.copy()
    other[-1, -1] ^= 1
    assert blocks.differ(turned, other)


def test_the_signs_of_nan_and_zero_count():
    array = np.full(blocks._BLOCK + 1, 0x7FC00000, np.uint32)
    other = array.copy()
    other[-1] |= 1 << 31
    assert blocks.differ(array, other)


@pytest.mark.parametrize("size", SIZES)
def test_checksums_are_those_of_the_blocks(size, monkeypatch):
    array = (np.arange(size, dtype=np.uint64) * 2654435761 % 2**32).astype(np.uint32)
    parts = [array[start : start + blocks._BLOCK] for start in range(0, max(size, 1), blocks._BLOCK)]
    expected = tuple(zlib.crc32(block.tobytes()) for block in parts)
    assert blocks.checksums(array) == expected
    monkeypatch.setattr(blocks, "threads", lambda: 1)
    assert blocks.checksums(array) == expected


def test_a_swap_of_two_blocks_changes_the_checksums():
    array = np.concatenate([np.zeros(blocks._BLOCK, np.uint8), np.ones(blocks._BLOCK, np.uint8)])
    assert blocks.checksums(array) != blocks.checksums(array[::-1].copy())
