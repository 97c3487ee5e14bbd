"""The oracle against what it must not share anything with: Fraction, math.fsum, NumPy's and ml_dtypes' own casts."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import (
    DTYPES,
    NARROW_DTYPES,
    NUMPY_DTYPES,
    WIDENED_DTYPES,
    as_floats,
    assert_same_bits,
    derandomised,
    raises,
    random_bits,
)

from xref import bits, exact
from xref.bits import FORMATS

DOUBLE = FORMATS["float64"]
ONE = Fraction(1)


def value_of(element: int, dtype: str) -> Fraction:
    """The element's value by NumPy's cast to float64, which holds every value of every format."""
    return Fraction(float(as_floats(np.array(element, FORMATS[dtype].uint), dtype)))


def element_of(value: float, dtype: str) -> int:
    """The bits of a value that the dtype holds raises."""
    element = int(bits.as_bits(np.array(value, NUMPY_DTYPES[dtype])))
    assert math.isnan(value) or math.isinf(value) or value_of(element, dtype) == Fraction(value)
    return element


def rounded(value: Fraction, dtype: str) -> int:
    """`round_once` of a value whose denominator is a power of two."""
    return exact.round_once(value.numerator, 1 - value.denominator.bit_length(), FORMATS[dtype])


# Decoding


@pytest.mark.parametrize(
    ("dtype", "element", "significand", "exponent"),
    [
        ("float64", 0x3FF8_0000_0000_0000, 3 << 51, -52),
        ("float64", 0x8000_0000_0000_0001, -1, -1074),
        ("float32", 0x0000_0001, 1, -149),
        ("float32", 0x7F7F_FFFF, (1 << 24) - 1, 104),
        ("bfloat16", 0x0080, 128, -133),
        ("bfloat16", 0xBF80, -128, -7),
        ("float16", 0x03FF, 1023, -24),
        ("float16", 0x0400, 1024, -24),
        ("float8_e4m3fn", 0x7E, 14, 5),
        ("float8_e4m3fn", 0x01, 1, -9),
        ("float8_e5m2", 0xFB, -7, 13),
        ("float8_e5m2", 0x80, 0, -16),
    ],
    ids=lambda value: f"{value:#x}" if isinstance(value, int) and value > 9 else str(value),
)
def test_decode_of_known_elements(dtype, element, significand, exponent):
    assert exact.decode(element, FORMATS[dtype]) == (significand, exponent)


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_every_pattern_decodes_to_its_value_and_rounds_back_to_itself(dtype):
    fmt = FORMATS[dtype]
    elements = np.arange(1 << fmt.width).astype(fmt.uint)
    finite = ~(bits.is_nan(elements, fmt) | bits.is_inf(elements, fmt))
    for element, value in zip(elements[finite].tolist(), as_floats(elements[finite], dtype).tolist(), strict=True):
        significand, exponent = exact.decode(element, fmt)
        assert math.ldexp(significand, exponent) == value
        # A zero has no sign here: the exact sum of nothing but -0 is +0 (EMB-11).
        assert exact.round_once(significand, exponent, fmt) == (0 if element == fmt.sign else element)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_patterns_decode_to_their_value_and_round_back_to_themselves(dtype):
    fmt = FORMATS[dtype]
    elements = random_bits((20_000,), fmt)
    elements = elements[~(bits.is_nan(elements, fmt) | bits.is_inf(elements, fmt))]
    for element, value in zip(elements.tolist(), as_floats(elements, dtype).tolist(), strict=True):
        significand, exponent = exact.decode(element, fmt)
        assert math.ldexp(significand, exponent) == value
        assert exact.round_once(significand, exponent, fmt) == element


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float32", 0x7F80_0000),
        ("float32", 0xFFC0_0001),
        ("bfloat16", 0xFF80),
        ("float8_e4m3fn", 0xFF),
        ("float8_e5m2", 0x7C),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value:#x}",
)
def test_what_is_not_finite_has_no_value(dtype, element):
    message = f"element: got {element:#x} ({dtype}), expected a finite element [exact.decode]"
    with raises(ValueError, message):
        exact.decode(element, FORMATS[dtype])


# Rounding


@pytest.mark.parametrize("sign", [1, -1], ids=["plus", "minus"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_go_to_even_and_a_hair_decides(dtype, sign):
    """At one, at the smallest subnormal, and where the subnormals end: two neighbours and all there is between them."""
    fmt = FORMATS[dtype]
    sign_bit = fmt.sign if sign < 0 else 0
    hair = Fraction(1, 1 << 2000)
    one = element_of(1.0, dtype)
    for low in (one, one + 1, 0, 1, fmt.mantissa - 1, fmt.mantissa, fmt.largest_finite - 1):
        below, above = value_of(low, dtype), value_of(low + 1, dtype)
        middle, even = (below + above) / 2, low + (low & 1)
        expected = {below + hair: low, middle - hair: low, middle: even, middle + hair: low + 1, above - hair: low + 1}
        assert {value: rounded(sign * value, dtype) for value in expected} == {
            value: sign_bit | element for value, element in expected.items()
        }


@pytest.mark.parametrize("sign", [1, -1], ids=["plus", "minus"])
@pytest.mark.parametrize(
    ("dtype", "last", "overflowed"),
    [
        ("float64", 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
        ("float32", 0x7F7F_FFFF, 0x7F80_0000),
        ("bfloat16", 0x7F7F, 0x7F80),
        ("float16", 0x7BFF, 0x7C00),
        ("float8_e4m3fn", 0x7E, 0x7F),
        ("float8_e5m2", 0x7B, 0x7C),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value:#x}",
)
def test_past_the_largest_finite_value_half_a_step_decides(dtype, last, overflowed, sign):
    """The last mantissa of the IEEE formats is odd, so the tie overflows; that of float8_e4m3fn is even: it stays."""
    sign_bit = FORMATS[dtype].sign if sign < 0 else 0
    tie = value_of(last, dtype) + (value_of(last, dtype) - value_of(last - 1, dtype)) / 2
    nan = dtype == "float8_e4m3fn"
    past = overflowed if nan else sign_bit | overflowed
    assert rounded(sign * (tie - Fraction(1, 1 << 2000)), dtype) == sign_bit | last
    assert rounded(sign * tie, dtype) == (sign_bit | last if nan else past)
    assert rounded(sign * (tie + Fraction(1, 1 << 2000)), dtype) == past
    assert rounded(sign * tie * 2**5000, dtype) == past


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_is_plus_zero_and_what_underflows_keeps_its_sign(dtype):
    fmt = FORMATS[dtype]
    assert exact.round_once(0, 0, fmt) == 0
    assert exact.round_once(0, 10**6, fmt) == 0
    assert exact.round_once(1, fmt.quantum - 1, fmt) == 0
    assert exact.round_once(-1, fmt.quantum - 1, fmt) == fmt.sign
    assert exact.round_once(-1, -(10**5), fmt) == fmt.sign


def test_one_rounding_where_two_would_give_another_answer():
    """1 + 2**-8 + 2**-40 lies above bfloat16's tie; a stop at float32 loses the last term and leaves the tie."""
    value = ONE + Fraction(1, 1 << 8) + Fraction(1, 1 << 40)
    assert rounded(value, "bfloat16") == 0x3F81
    assert rounded(Fraction(float(np.float32(value))), "bfloat16") == 0x3F80


def numbers(dtype: str) -> st.SearchStrategy[Fraction]:
    """Values of all sizes that the format knows, with up to 80 bits more than it keeps."""
    fmt = FORMATS[dtype]
    exponents = st.integers(fmt.quantum - 81, fmt.bias + 2 - fmt.mantissa_bits)
    return st.builds(lambda n, e: Fraction(n) * Fraction(2) ** e, st.integers(-(1 << 80), 1 << 80), exponents)


@derandomised
@given(dtype=st.sampled_from(DTYPES), data=st.data())
def test_no_representable_value_is_nearer_than_the_rounded_one(dtype, data):
    fmt = FORMATS[dtype]
    value = data.draw(numbers(dtype))
    got = rounded(value, dtype)
    magnitude = got & (fmt.sign - 1)
    if value:
        assert bool(got & fmt.sign) == (value < 0) or (not fmt.has_inf and got == fmt.nan)
    last, before = value_of(fmt.largest_finite, dtype), value_of(fmt.largest_finite - 1, dtype)
    tie = last + (last - before) / 2
    if magnitude > fmt.largest_finite:
        assert abs(value) >= tie
        return
    assert abs(value) <= tie
    distance = abs(abs(value) - value_of(magnitude, dtype))
    neighbours = [n for n in (magnitude - 1, magnitude + 1) if 0 <= n <= fmt.largest_finite]
    for other in (abs(abs(value) - value_of(n, dtype)) for n in neighbours):
        assert distance < other or (distance == other and magnitude % 2 == 0)


@derandomised
@given(dtype=st.sampled_from(DTYPES), data=st.data())
def test_rounding_is_monotone(dtype, data):
    fmt = FORMATS[dtype]
    one, other = sorted([data.draw(numbers(dtype)), data.draw(numbers(dtype))])
    low, high = rounded(one, dtype), rounded(other, dtype)
    if fmt.has_inf or fmt.nan not in (low, high):
        low_steps, high_steps = (fmt.sign - e if e & fmt.sign else e for e in (low, high))
        assert low_steps <= high_steps


@derandomised
@given(dtype=st.sampled_from(DTYPES), data=st.data(), factor=st.integers(0, 200))
def test_the_same_value_written_otherwise_rounds_to_the_same(dtype, data, factor):
    value = data.draw(numbers(dtype))
    significand, exponent = value.numerator, 1 - value.denominator.bit_length()
    assert exact.round_once(significand << factor, exponent - factor, FORMATS[dtype]) == rounded(value, dtype)


@derandomised
@given(value=numbers("float64"))
def test_rounding_to_float64_is_that_of_pythons_own_division(value):
    try:
        expected = value.numerator / value.denominator
    except OverflowError:
        expected = math.inf if value > 0 else -math.inf
    if value:
        assert rounded(value, "float64") == int(bits.as_bits(np.array(expected)))


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_from_float32_is_that_of_the_dtypes_own_cast(target):
    elements = random_bits((20_000,), FORMATS["float32"])
    # Random bits are mostly out of the range of the smaller formats: draw the exponents near them, too.
    near = (elements & 0x8FFF_FFFF) | 0x3800_0000
    elements = np.concatenate([elements, near])
    elements = elements[~(bits.is_nan(elements, FORMATS["float32"]) | bits.is_inf(elements, FORMATS["float32"]))]
    elements = elements[~bits.is_zero(elements, FORMATS["float32"])]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        cast = bits.as_bits(bits.from_bits(elements, "float32").astype(NUMPY_DTYPES[target]))
    got = [exact.round_once(*exact.decode(e, FORMATS["float32"]), FORMATS[target]) for e in elements.tolist()]
    # The sign of an overflow's NaN is ml_dtypes' own; ours is the canonical one.
    nan = bits.is_nan(cast, FORMATS[target])
    assert_same_bits(np.array(got, FORMATS[target].uint), np.where(nan, FORMATS[target].nan, cast).astype(cast.dtype))


@pytest.mark.parametrize("target", ["float32", "float16"])
def test_rounding_from_float64_is_that_of_numpys_own_cast(target):
    elements = random_bits((20_000,), DOUBLE)
    near = (elements & 0x80FF_FFFF_FFFF_FFFF) | 0x3F00_0000_0000_0000
    elements = near[~bits.is_zero(near, DOUBLE)]
    with np.errstate(over="ignore", under="ignore"):
        cast = bits.as_bits(bits.from_bits(elements, "float64").astype(NUMPY_DTYPES[target]))
    got = [exact.round_once(*exact.decode(e, DOUBLE), FORMATS[target]) for e in elements.tolist()]
    assert_same_bits(np.array(got, FORMATS[target].uint), cast)


# Sums

INF, NAN = math.inf, math.nan
SPECIAL_SUMS = {
    "nothing": ([], 0.0),
    "one minus zero": ([-0.0], 0.0),
    "only minus zeros": ([-0.0] * 3, 0.0),
    "exact cancellation": ([1.5, -1.5], 0.0),
    "exact cancellation of minus first": ([-1.5, 1.5], 0.0),
    "infinity": ([1.0, INF], INF),
    "minus infinity": ([-INF, 1.0, -INF], -INF),
    "infinities of both signs": ([INF, 1.0, -INF], NAN),
    "NaN": ([1.0, NAN], NAN),
    "minus NaN": ([math.copysign(NAN, -1.0)], NAN),
    "NaN and infinity": ([INF, NAN, 1.0], NAN),
}


@pytest.mark.parametrize("target", ["float64", "float32", "bfloat16", "float16", "float8_e5m2"])
@pytest.mark.parametrize("name", SPECIAL_SUMS)
def test_special_sums(name, target):
    elements, expected = SPECIAL_SUMS[name]
    fmt = FORMATS[target]
    wanted = fmt.nan if math.isnan(expected) else element_of(expected, target)
    assert exact.sum_rounded([element_of(e, "float32") for e in elements], FORMATS["float32"], fmt) == wanted


@pytest.mark.parametrize("name", SPECIAL_SUMS)
def test_special_sums_in_the_format_without_infinities(name):
    elements, expected = SPECIAL_SUMS[name]
    got = exact.sum_rounded([element_of(e, "float32") for e in elements], FORMATS["float32"], FORMATS["float8_e4m3fn"])
    assert got == (0 if expected == 0 else 0x7F)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("float64", 0xFFF0_0000_0000_0001),
        ("float32", 0xFFFF_FFFF),
        ("bfloat16", 0x7F81),
        ("float16", 0xFC01),
        ("float8_e4m3fn", 0xFF),
        ("float8_e5m2", 0x7D),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value:#x}",
)
def test_any_nan_gives_the_canonical_one(dtype, element):
    assert exact.sum_rounded([element], FORMATS[dtype], FORMATS[dtype]) == FORMATS[dtype].nan
    assert exact.sum_rounded([element], FORMATS[dtype], FORMATS["float32"]) == 0x7FC0_0000


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_finite_sum_overflows_to_infinity_and_back_into_range_again(dtype):
    """Overflow is decided by the whole sum, never by a part of it."""
    fmt = FORMATS[dtype]
    top, minus_top = fmt.largest_finite, fmt.sign | fmt.largest_finite
    past = fmt.exponent if fmt.has_inf else fmt.nan
    assert exact.sum_rounded([top, top], fmt, fmt) == past
    assert exact.sum_rounded([minus_top, minus_top], fmt, fmt) == (past | fmt.sign if fmt.has_inf else past)
    assert exact.sum_rounded([top, top, minus_top], fmt, fmt) == top
    assert exact.sum_rounded([top] * 50 + [minus_top] * 50 + [1], fmt, fmt) == 1


@pytest.mark.parametrize(
    ("dtype", "count", "expected"),
    [
        ("bfloat16", 1000, 1000.0),
        ("float16", 4000, 4000.0),
        ("float8_e5m2", 257, 256.0),
        ("float8_e4m3fn", 33, 32.0),
    ],
    ids=["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"],
)
def test_ones_are_counted_past_where_the_dtype_stops_counting(dtype, count, expected):
    assert exact.sum_rounded([element_of(1.0, dtype)] * count, FORMATS[dtype], FORMATS[dtype]) == element_of(
        expected, dtype
    )


@derandomised
@given(elements=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30))
def test_float64_sums_are_those_of_fsum(elements):
    try:
        expected = math.fsum(elements)
    except OverflowError:  # of a partial sum; ours has none
        return
    got = exact.sum_rounded([element_of(e, "float64") for e in elements], DOUBLE, DOUBLE)
    assert got == element_of(expected + 0.0, "float64")


@derandomised
@given(dtype=st.sampled_from(DTYPES), target=st.sampled_from(DTYPES), data=st.data())
def test_sums_are_one_rounding_of_the_exact_sum_in_any_order(dtype, target, data):
    fmt = FORMATS[dtype]
    magnitudes, signs = st.integers(0, fmt.largest_finite), st.sampled_from([0, fmt.sign])
    elements = data.draw(st.lists(st.builds(int.__or__, magnitudes, signs), max_size=12))
    total = sum((value_of(e, dtype) for e in elements), Fraction(0))
    expected = rounded(total, target)
    assert exact.sum_rounded(elements, fmt, FORMATS[target]) == expected
    assert exact.sum_rounded(data.draw(st.permutations(elements)), fmt, FORMATS[target]) == expected


def test_gradient_rows_are_the_sums_of_their_own_positions():
    ids = np.array([[3, 0, 3], [7, 3, 0]])
    powers = np.array([1, 2, 4, 8, 16, 32], np.float32).reshape(2, 3, 1)
    cotangent = bits.as_bits(powers * np.array([1, -1], np.float32))
    rows = exact.grad_rows(ids, cotangent, FORMATS["float32"], FORMATS["float64"])
    values = {row: bits.from_bits(elements, "float64").tolist() for row, elements in rows.items()}
    assert values == {0: [34.0, -34.0], 3: [21.0, -21.0], 7: [8.0, -8.0]}


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_gradient_rows_equal_naive_fractions(source):
    fmt = FORMATS[source]
    elements = random_bits((40, 3), fmt, seed=8) & fmt.uint.type(fmt.sign | fmt.exponent >> 1 | fmt.mantissa)
    ids = (random_bits((40,), FORMATS["float64"], seed=9) % 7).astype(np.int32)
    rows = exact.grad_rows(ids, elements, fmt, FORMATS["bfloat16"])
    assert set(rows) == set(ids.tolist())
    for row, got in rows.items():
        for column in range(3):
            total = sum((value_of(int(e), source) for e in elements[ids == row, column]), Fraction(0))
            assert int(got[column]) == rounded(total, "bfloat16")


def test_gradient_rows_of_a_single_id_without_dimension():
    rows = exact.grad_rows(np.array(5), np.array([1, 2], np.uint16), FORMATS["bfloat16"], FORMATS["bfloat16"])
    assert {row: elements.tolist() for row, elements in rows.items()} == {5: [1, 2]}


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)], ids=str)
def test_gradient_rows_of_no_ids_are_none(shape):
    cotangent = np.zeros((*shape, 4), np.uint16)
    assert exact.grad_rows(np.zeros(shape, int), cotangent, FORMATS["bfloat16"], FORMATS["float32"]) == {}


# Gathering and widening


@pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 0, 3), (2, 3)], ids=str)
@pytest.mark.parametrize("id_dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_gather_copies_the_rows_asked_for(shape, id_dtype):
    table = random_bits((6, 5), FORMATS["bfloat16"])
    ids = (np.arange(int(np.prod(shape))) * 5 % 6).astype(id_dtype).reshape(shape)
    got = exact.gather(ids, table)
    expected = [table[row] for row in ids.reshape(-1).tolist()]
    assert_same_bits(got, np.array(expected, np.uint16).reshape(*shape, 5))
    assert not np.shares_memory(got, table)


@pytest.mark.parametrize(
    ("ids", "vocab", "told"),
    [
        (
            np.array([[0, 4], [5, -1]]),
            5,
            "2 of 4 ids out of range, the first at position (1, 0) with value 5",
        ),
        (
            np.array(-1, np.int8),
            300,
            "1 of 1 ids out of range, the first at position () with value -1",
        ),
        (
            np.array([10**17]),
            0,
            f"1 of 1 ids out of range, the first at position (0,) with value {10**17}",
        ),
        (
            np.array([0, 2**64 - 1], np.uint64),
            5,
            f"1 of 2 ids out of range, the first at position (1,) with value {2**64 - 1}",
        ),
    ],
    ids=["2-D", "0-dimensional", "empty table", "uint64"],
)
def test_gather_refuses_ids_out_of_range(ids, vocab, told):
    with raises(IndexError, f"token_ids: got {told}, expected 0 <= id < V={vocab} [exact.gather]"):
        exact.gather(ids, np.zeros((vocab, 2), np.uint16))


def test_gather_of_no_ids_from_an_empty_table_is_empty():
    assert exact.gather(np.zeros((2, 0), int), np.zeros((0, 4), np.uint16)).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("dtype", "element", "single"),
    [
        ("bfloat16", 0x0001, 0x0001_0000),
        ("bfloat16", 0x7F81, 0x7F81_0000),
        ("bfloat16", 0xFFFF, 0xFFFF_0000),
        ("float16", 0x0001, 0x3380_0000),
        ("float16", 0x83FF, 0xB87F_C000),
        ("float16", 0x8000, 0x8000_0000),
        ("float16", 0x7BFF, 0x477F_E000),
        ("float16", 0xFC00, 0xFF80_0000),
        ("float16", 0x7C01, 0x7F80_2000),
        ("float16", 0xFE01, 0xFFC0_2000),
        ("float8_e4m3fn", 0x01, 0x3B00_0000),
        ("float8_e4m3fn", 0x7E, 0x43E0_0000),
        ("float8_e4m3fn", 0x7F, 0x7FF0_0000),
        ("float8_e4m3fn", 0xFF, 0xFFF0_0000),
        ("float8_e5m2", 0x03, 0x3840_0000),
        ("float8_e5m2", 0x7C, 0x7F80_0000),
        ("float8_e5m2", 0x7D, 0x7FA0_0000),
        ("float8_e5m2", 0xFE, 0xFFC0_0000),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value:#x}",
)
def test_widening_of_known_elements(dtype, element, single):
    fmt = FORMATS[dtype]
    assert_same_bits(exact.widen(np.array([element], fmt.uint), fmt), np.array([single], np.uint32))


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_every_finite_pattern_widens_as_the_dtypes_own_cast_does(dtype):
    fmt = FORMATS[dtype]
    elements = np.arange(1 << fmt.width).astype(fmt.uint)
    with np.errstate(invalid="ignore"):
        cast = bits.as_bits(bits.from_bits(elements, dtype).astype(np.float32))
    same = ~bits.is_nan(elements, fmt)
    assert_same_bits(exact.widen(elements, fmt)[same], cast[same])


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_every_nan_keeps_sign_and_payload_when_widened(dtype):
    fmt = FORMATS[dtype]
    elements = np.arange(1 << fmt.width).astype(fmt.uint)
    elements = elements[bits.is_nan(elements, fmt)]
    wide = exact.widen(elements, fmt)
    assert np.array_equal(wide >> 31, elements >> (fmt.width - 1))
    assert np.array_equal(wide >> 23 & 0xFF, np.full(wide.shape, 0xFF))
    payload_bits = fmt.mantissa_bits
    assert np.array_equal(wide & 0x7F_FFFF, (elements & fmt.mantissa).astype(np.uint32) << (23 - payload_bits))


@pytest.mark.parametrize("dtype", WIDENED_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)], ids=str)
def test_widening_keeps_the_shape(dtype, shape):
    wide = exact.widen(random_bits(shape, FORMATS[dtype]), FORMATS[dtype])
    assert (wide.shape, wide.dtype) == (shape, np.uint32)


def test_float32_widens_to_itself():
    elements = random_bits((10_000,), FORMATS["float32"])
    assert_same_bits(exact.widen(elements, FORMATS["float32"]), elements)


def test_float64_is_not_widened():
    message = "weight: got dtype float64, expected a dtype that float32 can hold [exact.widen]"
    with raises(TypeError, message):
        exact.widen(np.zeros(3, np.uint64), DOUBLE)
