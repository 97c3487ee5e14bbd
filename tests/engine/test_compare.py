"""The first element that is wrong, in words: its place, its bits, and how far they are off."""

from __future__ import annotations

import numpy as np
import pytest

from xref.bits import FORMATS
from xref.engine.compare import Mismatch, mismatch


def elements(dtype, *values):
    return np.array(values, dtype=FORMATS[dtype].uint)


@pytest.mark.parametrize("dtype", FORMATS)
def test_equal_bits_are_no_mismatch(dtype):
    fmt = FORMATS[dtype]
    same = elements(dtype, 0, fmt.sign, fmt.nan, fmt.exponent, 1)
    assert mismatch(same, same.copy(), fmt) is None


@pytest.mark.parametrize(
    ("dtype", "got", "expected", "text"),
    [
        ("bfloat16", 0x0000, 0x8000, "out[0]: got 0x0000, expected 0x8000 (0 ulp"),
        ("bfloat16", 0x7FC1, 0x7F81, "out[0]: got 0x7fc1, expected 0x7f81 (NaN"),
        ("bfloat16", 0x3F80, 0x3F82, "out[0]: got 0x3f80, expected 0x3f82 (2 ulp"),
        ("float16", 0x8001, 0x0001, "out[0]: got 0x8001, expected 0x0001 (2 ulp"),
        ("float32", 0x7F800000, 0x7F7FFFFF, "out[0]: got 0x7f800000, expected 0x7f7fffff (1 ulp"),
        ("float64", 1, 0, "out[0]: got 0x0000000000000001, expected 0x0000000000000000 (1 ulp"),
        ("float8_e5m2", 0x05, 0x0A, "out[0]: got 0x05, expected 0x0a (5 ulp"),
        ("float8_e4m3fn", 0x7E, 0x7F, "out[0]: got 0x7e, expected 0x7f (NaN"),
    ],
    ids=["minus zero", "quieted NaN", "float", "across zero", "overflow", "16 digits", "2 digits", "e4m3fn NaN"],
)
def test_a_mismatch_says_hex_of_the_dtypes_width_and_the_distance(dtype, got, expected, text):
    found = mismatch(elements(dtype, got), elements(dtype, expected), FORMATS[dtype])
    assert str(found) == text + "; 1 of 1 elements differ)"


def test_a_mismatch_names_the_first_place_in_row_major_order_and_counts_all():
    expected = np.zeros((3, 4, 5), dtype="u2")
    got = expected.copy()
    got[1, 2, 3] = got[1, 3, 0] = got[2, 0, 0] = 7
    assert mismatch(got, expected, FORMATS["float16"]) == Mismatch(
        index=(1, 2, 3), got="0x0007", expected="0x0000", ulp=7, differing=3, elements=60
    )
    assert str(mismatch(got, expected, FORMATS["float16"])) == (
        "out[1, 2, 3]: got 0x0007, expected 0x0000 (7 ulp; 3 of 60 elements differ)"
    )


def test_a_mismatch_in_the_last_element_of_a_large_array_is_found():
    expected = np.zeros((1000, 1001), dtype="u1")
    got = expected.copy()
    got[-1, -1] = 1
    found = mismatch(got, expected, FORMATS["float8_e5m2"])
    assert (found.index, found.differing, found.elements) == ((999, 1000), 1, 1001000)
