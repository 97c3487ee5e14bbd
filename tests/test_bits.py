"""`xref.bits` against literal bits, and against NumPy's and ml_dtypes' own idea of the dtypes."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import (
    DTYPES,
    NARROW_DTYPES,
    NUMPY_DTYPES,
    as_floats,
    derandomised,
    raises,
    random_bits,
    special_patterns,
)

from xref import bits
from xref.bits import FORMATS

# Magnitudes of corner values, written out: nothing here is computed by the code under test.
CORNERS = {
    "float64": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x000F_FFFF_FFFF_FFFF,
        "smallest normal": 0x0010_0000_0000_0000,
        "one": 0x3FF0_0000_0000_0000,
        "largest finite": 0x7FEF_FFFF_FFFF_FFFF,
        "infinity": 0x7FF0_0000_0000_0000,
        "smallest signalling NaN": 0x7FF0_0000_0000_0001,
        "largest signalling NaN": 0x7FF7_FFFF_FFFF_FFFF,
        "canonical NaN": 0x7FF8_0000_0000_0000,
        "largest quiet NaN": 0x7FFF_FFFF_FFFF_FFFF,
    },
    "float32": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x007F_FFFF,
        "smallest normal": 0x0080_0000,
        "one": 0x3F80_0000,
        "largest finite": 0x7F7F_FFFF,
        "infinity": 0x7F80_0000,
        "smallest signalling NaN": 0x7F80_0001,
        "largest signalling NaN": 0x7FBF_FFFF,
        "canonical NaN": 0x7FC0_0000,
        "largest quiet NaN": 0x7FFF_FFFF,
    },
    "bfloat16": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x007F,
        "smallest normal": 0x0080,
        "one": 0x3F80,
        "largest finite": 0x7F7F,
        "infinity": 0x7F80,
        "smallest signalling NaN": 0x7F81,
        "largest signalling NaN": 0x7FBF,
        "canonical NaN": 0x7FC0,
        "largest quiet NaN": 0x7FFF,
    },
    "float16": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x03FF,
        "smallest normal": 0x0400,
        "one": 0x3C00,
        "largest finite": 0x7BFF,
        "infinity": 0x7C00,
        "smallest signalling NaN": 0x7C01,
        "largest signalling NaN": 0x7DFF,
        "canonical NaN": 0x7E00,
        "largest quiet NaN": 0x7FFF,
    },
    "float8_e4m3fn": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x07,
        "smallest normal": 0x08,
        "one": 0x38,
        "largest finite": 0x7E,
        "canonical NaN": 0x7F,
    },
    "float8_e5m2": {
        "zero": 0,
        "smallest subnormal": 1,
        "largest subnormal": 0x03,
        "smallest normal": 0x04,
        "one": 0x3C,
        "largest finite": 0x7B,
        "infinity": 0x7C,
        "smallest signalling NaN": 0x7D,
        "canonical NaN": 0x7E,
        "largest quiet NaN": 0x7F,
    },
}
ALL_CORNERS = [
    pytest.param(dtype, sign, name, id=f"{dtype}-{'minus' if sign else 'plus'} {name}")
    for dtype, corners in CORNERS.items()
    for sign in (0, 1)
    for name in corners
]
KNOWN = "float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2"


@pytest.mark.parametrize(("dtype", "sign", "name"), ALL_CORNERS)
def test_corner_value_belongs_to_its_classes_alone(dtype, sign, name):
    fmt = FORMATS[dtype]
    element = np.array([CORNERS[dtype][name] | sign * fmt.sign], dtype=fmt.uint)
    got = {
        "NaN": bits.is_nan(element, fmt),
        "signalling NaN": bits.is_signalling_nan(element, fmt),
        "infinity": bits.is_inf(element, fmt),
        "zero": bits.is_zero(element, fmt),
        "subnormal": bits.is_subnormal(element, fmt),
    }
    assert {kind for kind, answer in got.items() if answer.item()} == {kind for kind in got if name.endswith(kind)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_format_states_its_own_corners(dtype):
    fmt, corners = FORMATS[dtype], CORNERS[dtype]
    assert fmt.mantissa == corners["largest subnormal"]
    assert fmt.largest_finite == corners["largest finite"]
    assert fmt.nan == corners["canonical NaN"]
    assert fmt.bias << fmt.mantissa_bits == corners["one"]
    assert fmt.has_inf == ("infinity" in corners)
    assert not fmt.has_inf or fmt.exponent == corners["infinity"]
    assert fmt.sign == (fmt.exponent | fmt.mantissa) + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_format_agrees_with_the_dtype_itself(dtype):
    fmt, info = FORMATS[dtype], ml_dtypes.finfo(NUMPY_DTYPES[dtype])
    assert (fmt.width, fmt.uint.itemsize) == (info.bits, NUMPY_DTYPES[dtype].itemsize)
    assert (fmt.exponent_bits, fmt.mantissa_bits) == (info.nexp, info.nmant)
    assert 2.0**fmt.quantum == float(info.smallest_subnormal)
    assert bits.from_bits(np.array(fmt.largest_finite, fmt.uint), dtype) == info.max


@pytest.mark.parametrize("dtype", DTYPES)
def test_classes_agree_with_numpy_on_all_or_many_patterns(dtype):
    fmt = FORMATS[dtype]
    if dtype in NARROW_DTYPES:
        elements = np.arange(1 << fmt.width).astype(fmt.uint)
    else:
        elements = np.concatenate([special_patterns(fmt), random_bits((100_000,), fmt)])
    values = as_floats(elements, dtype)
    np.testing.assert_array_equal(bits.is_nan(elements, fmt), np.isnan(values))
    np.testing.assert_array_equal(bits.is_inf(elements, fmt), np.isinf(values))
    np.testing.assert_array_equal(bits.is_zero(elements, fmt), values == 0)
    small = (values != 0) & (np.abs(values) < float(ml_dtypes.finfo(NUMPY_DTYPES[dtype]).smallest_normal))
    np.testing.assert_array_equal(bits.is_subnormal(elements, fmt), small)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3)], ids=str)
def test_bits_of_an_array_and_back(dtype, shape):
    fmt = FORMATS[dtype]
    elements = random_bits(shape, fmt)
    array = bits.from_bits(elements, dtype)
    assert (array.dtype, array.shape) == (NUMPY_DTYPES[dtype], shape)
    back = bits.as_bits(array)
    assert (back.dtype, back.shape) == (fmt.uint, shape)
    assert back.tobytes() == elements.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_share_memory_and_keep_strides(dtype):
    elements = np.zeros((4, 6), dtype=FORMATS[dtype].uint)[::2, 1::2]
    array = bits.from_bits(elements, dtype)
    assert array.strides == elements.strides
    assert bits.as_bits(array).strides == elements.strides
    bits.as_bits(array)[1, 2] = 1
    assert elements[1, 2] == 1


def test_bits_are_the_same_in_either_byte_order():
    elements = bits.as_bits(np.array([1.0, -2.5], dtype=np.dtype("f4").newbyteorder()))
    assert elements.tolist() == [0x3F80_0000, 0xC020_0000]


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbours_are_one_ulp_apart(dtype):
    fmt = FORMATS[dtype]
    if dtype in NARROW_DTYPES:
        elements = np.arange(1 << fmt.width).astype(fmt.uint)
    else:
        elements = np.concatenate([special_patterns(fmt), random_bits((500,), fmt)])
    # Without an infinity the largest finite value is the last one.
    last = np.array(fmt.exponent if fmt.has_inf else fmt.largest_finite, fmt.uint)
    below = elements[~bits.is_nan(elements, fmt) & ~bits.is_inf(elements, fmt) & (elements != last)]
    with np.errstate(over="ignore", under="ignore"):
        above = bits.as_bits(np.nextafter(bits.from_bits(below, dtype), bits.from_bits(last, dtype)))
    distances = [bits.ulp_distance(int(a), int(b), fmt) for a, b in zip(below, above, strict=True)]
    assert set(distances) == {1}


@pytest.mark.parametrize(
    ("dtype", "one", "other", "expected"),
    [
        ("float32", 0x0000_0000, 0x8000_0000, 0),
        ("float32", 0x0000_0001, 0x8000_0001, 2),
        ("float32", 0x7F7F_FFFF, 0x7F80_0000, 1),
        ("float32", 0xFF80_0000, 0x7F80_0000, 2 * 0x7F80_0000),
        ("float32", 0x7FC0_0000, 0x3F80_0000, None),
        ("float32", 0x3F80_0000, 0xFF80_0001, None),
        ("float32", 0x7FC0_0000, 0x7FC0_0000, None),
        ("bfloat16", 0x3F80, 0x3F82, 2),
        ("float16", 0x03FF, 0x0400, 1),
        ("float8_e4m3fn", 0x7E, 0xFE, 252),
        ("float8_e4m3fn", 0x7F, 0x00, None),
        ("float8_e5m2", 0x7B, 0x7C, 1),
        ("float64", 0x3FF0_0000_0000_0000, 0x4000_0000_0000_0000, 1 << 52),
    ],
    ids=lambda value: f"{value:#x}" if isinstance(value, int) else str(value),
)
def test_ulp_distance_of_known_elements(dtype, one, other, expected):
    assert bits.ulp_distance(one, other, FORMATS[dtype]) == expected
    assert bits.ulp_distance(other, one, FORMATS[dtype]) == expected


@derandomised
@given(dtype=st.sampled_from(DTYPES), data=st.data())
def test_ulp_distances_add_up_along_the_line(dtype, data):
    fmt = FORMATS[dtype]
    magnitudes = st.integers(0, fmt.exponent if fmt.has_inf else fmt.largest_finite)
    elements = [data.draw(magnitudes) | data.draw(st.sampled_from([0, fmt.sign])) for _ in range(3)]
    low, middle, high = sorted(elements, key=lambda element: bits.from_bits(np.array(element, fmt.uint), dtype))
    parts = bits.ulp_distance(low, middle, fmt), bits.ulp_distance(middle, high, fmt)
    assert bits.ulp_distance(low, high, fmt) == sum(parts)


def test_digest_is_the_sha_256_of_name_shape_and_little_endian_elements():
    elements = np.array([[0x3F80, 0x8000, 0x7FC1], [0x0001, 0xFF80, 0x0000]], dtype=np.uint16)
    written = b"bfloat16 [2, 3]\n" + bytes.fromhex("803f 0080 c17f 0100 80ff 0000")
    assert bits.digest(elements, "bfloat16") == hashlib.sha256(written).hexdigest()


def test_digest_of_known_elements_is_pinned():
    pinned = "e6ac5baf2f9847a5b4153343d4c584c240eec533cb18979ce669d9659e9f7f70"
    assert bits.digest(np.arange(12, dtype=np.uint32).reshape(3, 4), "float32") == pinned


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda a: np.asfortranarray(a), id="column-major"),
        pytest.param(lambda a: np.repeat(a, 2, axis=1)[:, ::2], id="every second column"),
        pytest.param(lambda a: np.ascontiguousarray(a[::-1])[::-1], id="negative stride"),
        pytest.param(lambda a: a.astype(a.dtype.newbyteorder()), id="other byte order"),
        pytest.param(lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape), id="read-only"),
    ],
)
def test_digest_does_not_depend_on_how_the_elements_lie_in_memory(layout):
    elements = random_bits((5, 7), FORMATS["float32"])
    laid = layout(elements)
    assert np.array_equal(laid, elements)
    assert bits.digest(laid, "float32") == bits.digest(elements, "float32")


def test_digest_changes_with_any_single_bit_name_shape_or_order():
    elements = random_bits((3, 4), FORMATS["bfloat16"])
    flipped = [elements.copy() for _ in range(elements.size * 16)]
    for n, copy in enumerate(flipped):
        copy.reshape(-1)[n // 16] ^= np.uint16(1 << n % 16)
    others = [
        *(bits.digest(copy, "bfloat16") for copy in flipped),
        bits.digest(elements, "bfloat16"),
        bits.digest(elements, "float16"),
        bits.digest(elements.T, "bfloat16"),
        bits.digest(elements.reshape(4, 3), "bfloat16"),
        bits.digest(elements.reshape(12), "bfloat16"),
        bits.digest(elements[::-1], "bfloat16"),
        bits.digest(elements[:0], "bfloat16"),
        bits.digest(elements[:, :0], "bfloat16"),
        bits.digest(elements[0, 0], "bfloat16"),
    ]
    assert len(set(others)) == len(others)


def test_a_float_of_no_table_dtype_has_no_bits_here():
    message = f"array: got complex64, expected one of {KNOWN} [bits.as_bits]"
    with raises(TypeError, message):
        bits.as_bits(np.zeros(2, np.complex64))


def test_an_unknown_format_is_refused_with_the_list_of_known_ones():
    message = f"dtype: got int8, expected one of {KNOWN} [bits.format_of]"
    with raises(TypeError, message):
        bits.format_of("int8")


@pytest.mark.parametrize(
    ("given_dtype", "named"),
    [("uint32", "uint32"), ("int16", "int16"), ("float16", "float16"), (">u2", ">u2")],
)
def test_bits_of_another_width_or_kind_are_refused(given_dtype, named):
    message = f"bits: got {named}, expected uint16 for bfloat16 [bits.from_bits]"
    with raises(TypeError, message):
        bits.from_bits(np.zeros(2, given_dtype), "bfloat16")
