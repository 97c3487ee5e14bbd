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
@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_checksums_change_with_any_element_and_not_with_the_number_of_threads(size, dtype, monkeypatch):
    array = (np.arange(size, dtype=np.uint64) * 2654435761).astype(dtype)
    sums = blocks.checksums(array)
    for place in {0, size // 2, size - 1} if size else ():
        for bit in (0, array.itemsize * 8 - 1):
            other = array.copy()
            other[place] ^= array.dtype.type(1 << bit)
            assert blocks.checksums(other) != sums
    monkeypatch.setattr(blocks, "threads", lambda: 1)
    assert blocks.checksums(array) == sums


def test_a_swap_of_two_elements_changes_the_checksums():
    array = np.arange(100, dtype=np.uint32)
    other = array.copy()
    other[[3, 50]] = array[[50, 3]]
    assert blocks.checksums(array) != blocks.checksums(other)


def test_a_swap_of_two_blocks_changes_the_checksums():
    array = np.concatenate([np.zeros(blocks._BLOCK, np.uint8), np.ones(blocks._BLOCK, np.uint8)])
    assert blocks.checksums(array) != blocks.checksums(array[::-1].copy())
