"""The bound: no right sum is ever rejected, whatever its order, and what is one step past the bound is.

Sums are made by NumPy in float32 and by the oracle's one rounding; the bound itself is checked in fractions.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import DTYPES, derandomised, random_bits, values

from xref import exact
from xref.bits import FORMATS
from xref.operators.embedding.bound import exact_of, misses
from xref.operators.embedding.calls.gradient import Gradient

SINGLE, DOUBLE = FORMATS["float32"], FORMATS["float64"]
NARROWER = tuple(name for name in DTYPES if name != "float64")
FAMILIES = ("equal", "fractions", "gaussian", "wide", "cancelling", "subnormal", "ties", "edge", "specials")


def gradient(**how):
    return Gradient(check="EMB-8", verb="backward", **how)


def one_row(*elements, dtype="float32"):
    """What is known of the sum of these elements, all of row 0, in one column."""
    cotangent = np.array(elements, FORMATS[dtype].uint)[:, None]
    return exact_of(np.zeros(len(elements), np.int64), cotangent, FORMATS[dtype])


def of(*numbers, dtype="float32"):
    return one_row(*values(numbers, dtype).tolist(), dtype=dtype)


def judged(element, known, target="float32", accumulate="float32", **how):
    return misses(np.array([[element]], FORMATS[target].uint), known, FORMATS[target], FORMATS[accumulate], **how)


def verdict(element, known, target="float32", accumulate="float32", **how):
    """`right`, or which of the two kinds of wrong."""
    found = judged(element, known, target, accumulate, **how)
    assert (found.first is None) == (found.message == "")
    if found.sums.any() or found.specials.any():
        assert found.first == (0, 0)
        return "sum" if found.sums.any() else "special"
    return "right"


def fraction(element, fmt):
    significand, exponent = exact.decode(element, fmt)
    return significand * Fraction(2) ** exponent


# What is known


@derandomised
@given(st.sampled_from(DTYPES), st.integers(0, 12), st.integers(1, 3), st.integers(0, 2**16), st.integers(1, 4))
def test_exact_sums_are_those_of_fractions_and_of_the_oracle(dtype, tokens, hidden, seed, vocab):
    fmt = FORMATS[dtype]
    cotangent = random_bits((tokens, hidden), fmt, seed=seed)
    ids = random_bits((tokens,), SINGLE, seed=seed + 1).astype(np.int64) % vocab
    known = exact_of(ids, cotangent, fmt)
    assert known.rows.tolist() == sorted(set(ids.tolist()))
    oracle = exact.grad_rows(ids, cotangent, fmt, fmt)
    for r, row in enumerate(known.rows.tolist()):
        assert known.counts[r] == np.count_nonzero(ids == row)
        for h in range(hidden):
            finite = [int(e) for e in cotangent[ids == row][:, h] if (e & (fmt.sign - 1)) <= fmt.largest_finite]
            unit = Fraction(2) ** known.quantum
            assert known.sums[r, h] * unit == sum(fraction(e, fmt) for e in finite)
            assert known.magnitudes[r, h] * unit == sum(abs(fraction(e, fmt)) for e in finite)
            expected = int(oracle[row][h])
            if known.nan[r, h]:
                assert expected == fmt.nan
            elif known.infinite[r, h]:
                assert expected == fmt.exponent | (fmt.sign if known.infinite[r, h] < 0 else 0)
            else:
                assert expected == exact.round_once(int(known.sums[r, h]), known.quantum, fmt)


def test_ids_of_any_shape_and_dtype_name_the_same_rows():
    cotangent = values(np.arange(12).reshape(2, 3, 2), "float32")
    ids = np.array([[2, 0, 2], [7, 2, 0]])
    flat = exact_of(ids.reshape(-1), cotangent.reshape(6, 2), SINGLE)
    for dtype in ("uint8", "int32", "uint64"):
        known = exact_of(ids.astype(dtype), cotangent, SINGLE)
        assert (known.rows.tolist(), known.counts.tolist()) == ([0, 2, 7], [2, 3, 1])
        assert (known.sums == flat.sums).all()


def test_of_no_tokens_nothing_is_known_and_nothing_is_wrong():
    known = exact_of(np.zeros((0,), np.int64), np.zeros((0, 4), np.uint32), SINGLE)
    found = misses(np.zeros((3, 4), np.uint32), known, SINGLE, SINGLE)
    assert (found.sums.size, found.specials.size, found.first, found.message) == (0, 0, None, "")


# Right sums


def _sequential(parts):
    return np.add.accumulate(parts, axis=0, dtype=np.float32)[-1]


def _pairwise(parts):
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else parts[:0]
        parts = np.concatenate([parts[0 : len(parts) - 1 : 2] + parts[1::2], odd])
    return parts[0]


def _blocked(parts):
    return _sequential(np.stack([_sequential(parts[n : n + 32]) for n in range(0, len(parts), 32)]))


ORDERS = {
    "sequential": _sequential,
    "reversed": lambda parts: _sequential(parts[::-1]),
    "pairwise": _pairwise,
    "blocked": _blocked,
    "largest first": lambda parts: _sequential(np.take_along_axis(parts, np.argsort(-abs(parts), axis=0), axis=0)),
    "sorted": lambda parts: _sequential(np.sort(parts, axis=0)),
}


def floats(elements, dtype):
    """Elements as float32, by the oracle."""
    fmt = FORMATS[dtype]
    seen = {e: exact.sum_rounded([e], fmt, SINGLE) for e in np.unique(elements).tolist()}
    return np.vectorize(seen.__getitem__, otypes=[np.uint32])(elements).view(np.float32)


def summed(ids, elements, order, vocab, target):
    """The `[V, H]` gradient of float32 sums in an order, rounded once more to the result."""
    dense = np.zeros((vocab, elements.shape[1]), target.uint)
    for row in np.unique(ids):
        with np.errstate(all="ignore"):
            total = np.ascontiguousarray(order(elements[ids == row])).view(np.uint32)
        dense[row] = [exact.sum_rounded([int(e)], SINGLE, target) for e in total]
    return dense


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("source", [name for name in DTYPES if name != "float64"])
def test_a_float32_sum_in_any_order_is_never_rejected(source, family):
    pairs = {source, "float32", "bfloat16", "float16", "float8_e4m3fn"} if source == "float32" else {source}
    for shape, vocab in (((256,), 31), ((33,), 1)):
        case = gradient(source=source, result=source, values=family, vocab=vocab, hidden=3, shape=shape)
        ids, cotangent = case.arrays()
        known, parts = exact_of(ids, cotangent, FORMATS[source]), floats(cotangent, source)
        for result in sorted(pairs):
            for name, order in ORDERS.items():
                got = summed(ids, parts, order, vocab, FORMATS[result])
                found = misses(got, known, FORMATS[result], SINGLE)
                assert (name, result, found.message) == (name, result, "")


@pytest.mark.parametrize("family", ["fractions", "cancelling", "wide"])
@pytest.mark.parametrize("count", [2, 3, 257, 1024, 4096])
def test_nor_is_one_of_thousands_of_contributions(family, count):
    case = gradient(source="bfloat16", result="bfloat16", values=family, vocab=2, hidden=2, ids="equal", shape=(count,))
    ids, cotangent = case.arrays()
    known, parts = exact_of(ids, cotangent, FORMATS["bfloat16"]), floats(cotangent, "bfloat16")
    for order in ORDERS.values():
        for result in ("float32", "bfloat16"):
            got = summed(ids, parts, order, 2, FORMATS[result])
            assert misses(got, known, FORMATS[result], SINGLE).message == ""


@derandomised
@given(
    st.sampled_from(NARROWER),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    st.sampled_from(sorted(ORDERS)),
)
def test_nor_is_one_of_any_elements(result, elements, order):
    parts = np.array(elements, np.uint32)[:, None]
    with np.errstate(invalid="ignore"):
        got = summed(np.zeros(len(parts), np.int64), parts.view(np.float32), ORDERS[order], 1, FORMATS[result])
    assert misses(got, one_row(*elements), FORMATS[result], SINGLE).message == ""


@derandomised
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_nor_is_the_exact_gradient_in_any_format(source, result, elements):
    parts = [e % (1 << FORMATS[source].width) for e in elements]
    known = one_row(*parts, dtype=source)
    for accumulate in ("float32", "bfloat16", result):
        got = exact.sum_rounded(parts, FORMATS[source], FORMATS[result])
        assert verdict(got, known, result, accumulate) == "right"


def test_a_float64_gradient_summed_in_float64_passes_and_one_summed_in_float32_does_not():
    numbers = [1 / 3, 1e-9, -1 / 7, 2.0**40 + 1e-3]
    known = of(*numbers, dtype="float64")
    right = int(values(np.sum(numbers), "float64"))
    wrong = int(values(float(np.sum(np.array(numbers, np.float32))), "float64"))
    assert verdict(right, known, "float64", "float64") == "right"
    assert verdict(wrong, known, "float64", "float64") == "sum"


# Wrong ones


@pytest.mark.parametrize("count", [300, 1000, 4097])
def test_a_sum_in_bfloat16_that_stops_at_256_is_rejected(count):
    known = of(*[1.0] * count, dtype="bfloat16")
    assert verdict(int(values(256.0, "bfloat16")), known, "bfloat16") == "sum"
    assert verdict(int(values(256.0, "bfloat16")), known, "bfloat16", "bfloat16") == "right"  # if it says so


def test_a_message_names_the_place_the_bits_the_sum_and_how_many_are_wrong():
    known = exact_of(np.array([3, 3, 5]), values([[1.0, 2.0], [1.5, -2.0], [7.0, 0.25]], "float32"), SINGLE)
    got = np.zeros((6, 2), np.uint32)
    got[3], got[5] = values([2.5, 1.0], "float32"), values([8.0, 0.25], "float32")
    found = misses(got, known, SINGLE, SINGLE)
    assert found.first == (3, 1)
    assert found.message == (
        "gradient[3, 1]: got 1 (0x3f800000), expected 0 within the bound of 2 contributions (2 of 4 elements differ)"
    )
    assert found.sums.tolist() == [[False, True], [True, False]]
    single = judged(int(values(8.0, "float32")), of(7.0))
    assert single.message == (
        "gradient[0, 0]: got 8 (0x41000000), expected 7 within the bound of 1 contribution (1 of 1 elements differ)"
    )


@pytest.mark.parametrize(
    ("element", "known", "target", "says"),
    [
        (0x7F800000, of(1.0), "float32", "got an infinity (0x7f800000), expected 1 within"),
        (0x7FC0, of(1.0), "bfloat16", "got NaN (0x7fc0), expected 1 within"),
        (0x7F, of(1.0), "float8_e4m3fn", "got NaN (0x7f), expected 1 within"),
        (0, of(float("inf"), 1.0), "float32", "got 0 (0x00000000), expected inf within"),
        (0, of(float("-inf")), "float32", "got 0 (0x00000000), expected -inf within"),
        (0, of(float("nan")), "float32", "got 0 (0x00000000), expected NaN within"),
        (0, of(5e-324, dtype="float64"), "float32", ""),
        (1 << 52, of(5e-324, dtype="float64"), "float64", "expected 4.94065646e-324 within"),
        (0, of(1.5e308, dtype="float64"), "float32", "got 0 (0x00000000), expected 1.5e+308 within"),
        (0, of(float("inf"), *[-1.5e308] * 4, dtype="float64"), "float32", "got 0 (0x00000000), expected inf within"),
    ],
)
def test_a_message_shows_values_of_any_size(element, known, target, says):
    message = judged(element, known, target, "float64").message
    assert says in message
    assert bool(says) == bool(message)


def bound(known, accumulate, target):
    """The docstring's bound in fractions: the most that a result may be off by."""
    u, r = Fraction(1, 2 ** (accumulate.mantissa_bits + 1)), Fraction(1, 2 ** (target.mantissa_bits + 1))
    unit, k = Fraction(2) ** known.quantum, int(known.counts[0]) - 1
    gamma = k * u / (1 - k * u)
    total, magnitude = abs(int(known.sums[0, 0])) * unit, int(known.magnitudes[0, 0]) * unit
    return gamma * magnitude + r * (total + gamma * magnitude) + Fraction(2) ** (target.quantum - 1)


@derandomised
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(("float32", "bfloat16")),
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30),
    st.integers(-1, 1),
)
def test_the_last_element_within_the_bound_is_accepted_and_the_next_is_rejected(target, accumulate, numbers, side):
    fmt, known = FORMATS[target], of(*numbers)
    total = int(known.sums[0, 0]) * Fraction(2) ** known.quantum
    room = bound(known, FORMATS[accumulate], fmt)
    edge = total + (room if side >= 0 else -room)
    # The last element at or before the edge, by bisection over the elements in the order of their values.
    element = _last_before(edge, fmt, up=side >= 0)
    step = 1 if side >= 0 else -1
    past = _next(element, step, fmt)
    if (element & (fmt.sign - 1)) > fmt.largest_finite or (past & (fmt.sign - 1)) > fmt.largest_finite:
        return
    assert abs(fraction(element, fmt) - total) <= room < abs(fraction(past, fmt) - total)
    assert verdict(element, known, target, accumulate) == "right"
    assert verdict(past, known, target, accumulate) == "sum"


def _rank(element, fmt):
    magnitude = element & (fmt.sign - 1)
    return -magnitude if element & fmt.sign else magnitude


def _element(rank, fmt):
    return fmt.sign | -rank if rank < 0 else rank


def _next(element, step, fmt):
    return _element(_rank(element, fmt) + step, fmt)


def _last_before(edge, fmt, *, up):
    """The largest element not above the edge, or the smallest not below it."""
    low, high = -fmt.largest_finite, fmt.largest_finite
    while low < high:
        middle = (low + high + (1 if up else 0)) // 2
        value = fraction(_element(middle, fmt), fmt)
        if up:
            low, high = (middle, high) if value <= edge else (low, middle - 1)
        else:
            low, high = (low, middle) if value >= edge else (middle + 1, high)
    return _element(low, fmt)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_contribution_has_the_rounding_of_the_result_alone(count):
    """A single float32 cotangent in bfloat16: half a unit in the last place either way, by the relative bound."""
    known = of(1.0 + 2.0**-8, *[0.0] * (count - 1))  # a tie
    assert [verdict(element, known, "bfloat16") for element in (0x3F7F, 0x3F80, 0x3F81, 0x3F82)] == [
        "sum", "right", "right", "sum",
    ]  # fmt: skip


def test_more_contributions_than_a_format_can_sum_prove_nothing():
    known = of(*[1.0] * 300, dtype="float8_e5m2")
    assert verdict(0x7B, known, "float8_e5m2", "float8_e5m2") == "right"
    assert verdict(0x7B, known, "float8_e5m2", "float32") == "sum"


# Specials


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("numbers", "element", "says"),
    [
        ([NAN, 1.0], 0x7FC00000, "right"),
        ([NAN, 1.0], 0xFF800001, "right"),  # any NaN
        ([NAN, 1.0], 0x3F800000, "special"),
        ([NAN, 1.0], 0x7F800000, "special"),
        ([INF, -INF], 0x7FC00000, "right"),
        ([INF, -INF], 0x7F800000, "special"),
        ([INF, -INF], 0x00000000, "special"),
        ([INF, 1.0], 0x7F800000, "right"),
        ([INF, 1.0], 0xFF800000, "special"),
        ([INF, 1.0], 0x7FC00000, "special"),
        ([INF, 1.0], 0x7F7FFFFF, "special"),
        ([-INF, 1.0], 0xFF800000, "right"),
        ([-INF, 1.0], 0x7F800000, "special"),
        ([1.0, 2.0], 0x7F800000, "special"),
        ([1.0, 2.0], 0x7FC00000, "special"),
        ([1.0, -1.0], 0x00000000, "right"),
        ([1.0, -1.0], 0x80000000, "right"),  # graded only
    ],
)
def test_a_nan_and_infinities_are_in_the_sum_or_not(numbers, element, says):
    assert verdict(element, of(*numbers)) == says


def test_the_sign_of_an_exact_zero_sum_is_told_apart():
    assert judged(0x80000000, of(1.0, -1.0)).zero_signs.all()
    assert not judged(0x00000000, of(1.0, -1.0)).zero_signs.any()
    assert not judged(0x80000000, of(1.0, -2.0)).zero_signs.any()
    assert judged(0x8000, of(-0.0), "bfloat16").zero_signs.all()


LARGEST = 3.4028234663852886e38


@pytest.mark.parametrize(
    ("numbers", "element", "target", "says"),
    [
        # The largest is 65504; from 65520 on, half a step further, float16 overflows.
        ([65519.0], 0x7BFF, "float16", "right"),
        ([65519.0], 0x7C00, "float16", "special"),
        ([65520.0], 0x7C00, "float16", "right"),
        ([65520.0], 0x7BFF, "float16", "special"),
        ([-65520.0], 0xFC00, "float16", "right"),
        ([-65520.0], 0x7C00, "float16", "special"),
        ([60000.0, 20000.0], 0x7C00, "float16", "right"),
        ([60000.0, 20000.0], 0x7BFF, "float16", "sum"),
        # In float8_e4m3fn half-way from 448 to what would be 480 goes back, and there is a NaN for an infinity.
        ([464.0], 0x7E, "float8_e4m3fn", "right"),
        ([464.0], 0x7F, "float8_e4m3fn", "special"),
        ([464.00003], 0x7F, "float8_e4m3fn", "right"),
        ([464.00003], 0xFF, "float8_e4m3fn", "right"),
        ([464.00003], 0x7E, "float8_e4m3fn", "special"),
        ([INF], 0x7F, "float8_e4m3fn", "right"),
        ([INF], 0x7E, "float8_e4m3fn", "special"),
        # Large ones that cancel do not overflow in float32, whatever the result.
        ([60000.0, 60000.0, -60000.0, -59999.0], 0x3C00, "float16", "right"),
        ([60000.0, 60000.0, -60000.0, -59999.0], 0x7C00, "float16", "special"),
        ([60000.0, 60000.0, -60000.0, -59999.0], 0x4900, "float16", "sum"),
        ([60000.0, 60000.0, -60000.0, -59999.0], 0x7E00, "float16", "special"),
        # Nor does it matter for the one that overflows in one order, in the format of the sum.
        ([LARGEST, LARGEST, -LARGEST], 0x7F800000, "float32", "right"),
        ([LARGEST, LARGEST, -LARGEST], 0x7F7FFFFF, "float32", "right"),
        ([LARGEST, LARGEST, -LARGEST, -LARGEST], 0x7FC00000, "float32", "right"),
        ([INF, -LARGEST, -LARGEST], 0x7FC00000, "float32", "right"),
        ([INF, -LARGEST, -LARGEST], 0x7F800000, "float32", "right"),
        ([INF, -LARGEST, -LARGEST], 0xFF800000, "float32", "special"),
        # So large that the error of the float32 sum is past float16 on either side.
        ([1e38, -1e38, 1e38, -1e38], 0xFC00, "float16", "right"),
        ([1e38, -1e38, 1e38, -1e38], 0x7C00, "float16", "right"),
        ([1e38, -1e38, 1e38, -1e38], 0x3C00, "float16", "right"),
    ],
)  # fmt: skip
def test_overflow_is_where_rounding_says_or_may_say_so(numbers, element, target, says):
    assert verdict(element, of(*numbers), target) == says


# Flushes


def test_subnormals_must_survive_unless_the_framework_itself_flushes_them():
    known = of(1e-40, 2e-40, 1e-39)
    assert verdict(0, known) == "sum"
    assert verdict(0, known, flushes=True) == "right"
    assert verdict(int(values(1e-36, "float32")), known, flushes=True) == "sum"


def test_where_subnormals_are_flushed_normal_sums_are_held_to_the_bound_all_the_same():
    known = of(1.0, 2.0, 4.0)
    assert verdict(int(values(7.0, "float32")), known, flushes=True) == "right"
    assert verdict(int(values(7.00001, "float32")), known, flushes=True) == "sum"


@derandomised
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60), st.sampled_from(("float32", "bfloat16")))
def test_a_sum_that_flushes_at_every_step_is_not_rejected(elements, result):
    # Exponents at the lower end alone: from subnormal to a few times the smallest normal number.
    parts = [e & 0x81FFFFFF for e in elements]

    def flushed(value):
        return np.float32(0) if abs(value) < np.float32(2.0**-126) else value

    total = np.float32(0)
    for part in np.array(parts, np.uint32).view(np.float32):
        total = flushed(total + flushed(part))
    got = exact.sum_rounded([int(total.view(np.uint32))], SINGLE, FORMATS[result])
    got = got if (got & 0x7FFFFFFF) >> FORMATS[result].mantissa_bits else 0
    assert verdict(got, one_row(*parts), result, flushes=True) == "right"


def test_rows_that_no_token_names_are_not_looked_at():
    known = dataclasses.replace(of(1.0), rows=np.array([2]))
    got = np.full((4, 1), 0x12345678, np.uint32)
    got[2] = values(1.0, "float32")
    assert misses(got, known, SINGLE, SINGLE).message == ""
