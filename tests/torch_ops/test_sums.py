"""The torch golden's sums, held to sums in Python integers bit for bit: how many elements, and which."""

from __future__ import annotations

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gradient_cases import (
    SIXTEEN,
    WIDE,
    cancelling,
    element,
    finite_bits,
    multiple,
    state_share,
    subnormal_bits,
    zipf,
)
from support.helpers import assert_same_bits, derandomised
from support.torch_gradients import SOURCES, assert_exact, cotangents, summed

from xref import exact
from xref.bits import FORMATS

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.arrays import bits_of
    from xref.torch_ops.embedding import grad_rows, grad_weight


# How many tokens


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("value", [1.0, 0.01, -0.3])
@pytest.mark.parametrize("count", [257, 1000, 100_000])
@pytest.mark.parametrize("source", SIXTEEN)
def test_equal_cotangents_do_not_stall(source, count, value, target):
    one = element(value, source)
    assert summed([one] * count, source, target) == multiple(count, one, source, target)


def test_a_thousand_ones_are_a_thousand_where_torch_says_256():
    ids, ones = torch.zeros(1000, dtype=torch.int64), torch.ones(1000, 1, dtype=torch.bfloat16)
    assert grad_weight(ids, ones, 1).item() == 1000.0
    assert torch.ops.aten.embedding_dense_backward(ones, ids, 1, -1, False).item() == 256.0


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 2**16])
def test_any_number_of_duplicates(source, count):
    elements = finite_bits(np.random.default_rng(count), (count, 1), source, binades=12)
    assert_exact(np.full(count, 5), elements, source, source)


@pytest.mark.parametrize("vocab_size", [1, 31, 100])
@pytest.mark.parametrize("hidden", [1, 1185])
def test_tables_of_few_rows_and_odd_widths(vocab_size, hidden):
    rng = np.random.default_rng(vocab_size + hidden)
    ids = rng.integers(0, vocab_size, 24)
    elements = finite_bits(rng, (24, hidden), "bfloat16", binades=8)
    assert_exact(ids, elements, "bfloat16", "bfloat16", vocab_size)


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_zipf_ids(source, record_property):
    ids, elements = cancelling(zipf(1000, 64, 8), 3000, 2, source)
    state_share(record_property, ids, elements, source)
    assert_exact(ids, elements, source, source)


def test_a_scalar_id_and_ids_of_two_dimensions():
    rng = np.random.default_rng(1)
    assert_exact(np.array(3), finite_bits(rng, (5,), "float32"), "float32", "float32")
    assert_exact(rng.integers(0, 9, (4, 6)), finite_bits(rng, (4, 6, 3), "float32"), "float32", "bfloat16")


@pytest.mark.parametrize(("vocab_size", "hidden"), [(5, 3), (0, 3), (5, 0), (0, 0)])
def test_no_tokens(vocab_size, hidden):
    empty, nothing = torch.empty(2, 0, dtype=torch.int64), torch.empty(2, 0, hidden, dtype=torch.float16)
    assert_same_bits(bits_of(grad_weight(empty, nothing, vocab_size)), np.zeros((vocab_size, hidden), np.uint16))
    row_ids, rows = grad_rows(empty, nothing)
    assert_same_bits(row_ids.numpy(), np.zeros(0, np.int64))
    assert_same_bits(bits_of(rows), np.zeros((0, hidden), np.uint16))


def test_no_columns():
    assert grad_weight(torch.tensor([1, 1]), torch.empty(2, 0), 3).shape == (3, 0)
    assert grad_rows(torch.tensor([1, 1]), torch.empty(2, 0))[1].shape == (1, 0)


# What is summed


@pytest.mark.parametrize("source", FORMATS)
def test_cancellation_in_every_order(source):
    fmt = FORMATS[source]
    large, tiny = fmt.largest_finite, 1
    for parts in itertools.permutations([large, tiny, fmt.sign | large]):
        assert summed(parts, source, source) == tiny
    more = [large, large, large | fmt.sign, large | fmt.sign, element(1.0, source), fmt.sign | tiny]
    expected = exact.sum_rounded(more, fmt, FORMATS["float64"])
    for parts in itertools.islice(itertools.permutations(more), 0, None, 37):
        assert summed(parts, source, "float64") == expected


@pytest.mark.parametrize("longest", [3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_bins_at_the_limit_of_what_float64_holds(longest):
    """Elements as large as can be with two or three ever further below: every span of exponents for this count."""
    single = FORMATS["float32"]
    most = 127 << 23 | single.mantissa
    ids = torch.tensor([0, 1]).repeat_interleave(longest)
    for below, small in itertools.product(range(1, 127, 2), (2, 3)):
        elements = [most] * (longest - small) + [(127 - below) << 23 | 1] * small
        expected = exact.sum_rounded(elements, single, FORMATS["float64"])
        both_ways = np.array(elements + elements[::-1], dtype=np.uint32).reshape(-1, 1)
        got = bits_of(grad_weight(ids, cotangents(both_ways, "float32"), 2, dtype=torch.float64))
        assert got.tolist() == [[expected], [expected]], f"{below} binades below"


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_every_exponent_at_once(source, target):
    fmt = FORMATS[source]
    rng = np.random.default_rng(fmt.width)
    fields = np.arange((fmt.largest_finite >> fmt.mantissa_bits) + fmt.has_inf, dtype=np.uint64)[:, None]
    elements = subnormal_bits(rng, (fields.size, 4), source) | (fields << np.uint64(fmt.mantissa_bits)).astype(fmt.uint)
    # In the last two columns the larger half is taken back, so that the smaller half is the sum.
    back = elements[fields.size // 2 :] ^ fmt.uint.type(fmt.sign)
    back[:, :2] = 0
    elements = rng.permutation(np.concatenate([elements, back]))
    assert_exact(np.zeros(elements.shape[0], np.int64), elements, source, target)
    assert_exact(rng.integers(0, 5, elements.shape[0]), elements, source, target)


@pytest.mark.parametrize("source", FORMATS)
def test_subnormals(source):
    rng = np.random.default_rng(3)
    elements, ids = subnormal_bits(rng, (300, 2), source), rng.integers(0, 7, 300)
    assert_exact(ids, elements, source, source)
    assert_exact(ids, elements, source, "float64")
    assert summed([1, 1], source, source) == 2


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", WIDE)
def test_half_way_between_two_results_and_a_hair_to_either_side(source, target):
    """The hair is 200 bits lower, or where a float32 cannot be that far below a float16 or float8, 140."""
    wide, fmt = FORMATS[source], FORMATS[target]
    top = 120 if source == "float32" and fmt.exponent_bits >= 8 else 3
    hair = wide.quantum + 1
    half = top - fmt.mantissa_bits - 1
    assert half - hair >= (140 if source == "float32" and top == 3 else 200)
    for odd, sign, direction in itertools.product((0, 1), (1, -1), (-1, 0, 1)):
        base = 2.0**top + odd * 2.0 ** (half + 1)
        parts = [2.0**top, odd * 2.0 ** (half + 1), 2.0**half, direction * 2.0**hair]
        up = direction > 0 or (direction == 0 and odd)
        expected = element(base, target) + up | (fmt.sign if sign < 0 else 0)
        elements = [element(sign * part, source) for part in parts]
        assert exact.sum_rounded(elements, wide, fmt) == expected
        assert summed(elements, source, target) == expected
        assert summed(elements[::-1], source, target) == expected


@pytest.mark.parametrize("target", [name for name in FORMATS if name != "float64"])
def test_half_way_between_subnormal_results(target):
    fmt, minus = FORMATS[target], FORMATS["float64"].sign
    half, hair = element(2.0 ** (fmt.quantum - 1), "float64"), element(2.0**-600, "float64")
    for elements, expected in (
        ([half], 0),
        ([half | minus], fmt.sign),
        ([half, hair], 1),
        ([half, hair | minus], 0),
        ([half] * 3, 2),
        ([half, half, half, hair | minus], 1),
        ([1], 0),
        ([minus | 1], fmt.sign),
        ([minus | 1, minus | 1], fmt.sign),
    ):
        assert summed(elements, "float64", target) == expected


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16"])
def test_overflow_at_the_edge(source, target):
    """Past half a step beyond the largest finite value a sum overflows; on its way it may pass there and return."""
    wide, fmt = FORMATS[source], FORMATS[target]
    significand, exponent = exact.decode(fmt.largest_finite, fmt)
    if wide.exponent_bits < fmt.exponent_bits:  # out of reach
        elements = [wide.largest_finite] * 3
        assert summed(elements, source, target) == exact.sum_rounded(elements, wide, fmt)
        return
    powers = [1 << bit for bit in range(fmt.mantissa_bits + 1)]
    pieces = [exact.round_once(significand & power, exponent, wide) for power in powers if significand & power]
    half, hair, minus = exact.round_once(1, exponent - 1, wide), 1, wide.sign
    overflow = fmt.exponent if fmt.has_inf else fmt.nan
    tie = overflow if fmt.largest_finite & 1 else fmt.largest_finite  # float8_e4m3fn's largest is even
    for elements, expected in (
        (pieces, fmt.largest_finite),
        ([*pieces, half], tie),
        ([*pieces, half, hair], overflow),
        ([*pieces, half, minus | hair], fmt.largest_finite),
        ([*pieces, *pieces, *(minus | piece for piece in pieces)], fmt.largest_finite),
        ([minus | part for part in (*pieces, half, hair)], overflow | fmt.sign if fmt.has_inf else fmt.nan),
        ([hair, *(minus | part for part in (*pieces, half))], fmt.sign | fmt.largest_finite),
    ):
        assert summed(elements, source, target) == expected


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("source", FORMATS)
def test_minus_zeros_add_up_to_plus_zero(source, count):
    minus, one = FORMATS[source].sign, element(1.0, source)
    for target in FORMATS:
        assert summed([minus] * count, source, target) == 0
        assert summed([one, minus | one] * count, source, target) == 0


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_specials_in_every_mix(source, target):
    fmt = FORMATS[source]
    kinds = [fmt.sign | fmt.nan, element(1.0, source), fmt.sign, fmt.largest_finite]
    if fmt.has_inf:
        kinds += [fmt.exponent, fmt.sign | fmt.exponent, fmt.exponent | 1]
    mixes = [mix for length in (1, 2, 3) for mix in itertools.product(kinds, repeat=length)]
    ids = np.repeat(np.arange(len(mixes)), [len(mix) for mix in mixes])
    elements = np.array(list(itertools.chain.from_iterable(mixes)), dtype=fmt.uint).reshape(-1, 1)
    order = np.random.default_rng(0).permutation(ids.size)
    assert_exact(ids[order], elements[order], source, target, vocab_size=len(mixes))


def _draws(name):
    fmt = FORMATS[name]
    special = st.sampled_from([0, 1, fmt.largest_finite, fmt.exponent, fmt.nan, fmt.bias << fmt.mantissa_bits])
    elements = st.tuples(st.integers(0, 2), st.integers(0, (1 << fmt.width) - 1) | special)
    return st.tuples(st.just(name), st.lists(elements, max_size=9), st.sampled_from(list(FORMATS)))


@derandomised
@given(st.sampled_from(list(FORMATS)).flatmap(_draws))
def test_any_bit_patterns(drawn):
    source, pairs, target = drawn
    ids = np.array([row for row, _ in pairs], dtype=np.int64)
    elements = np.array([bits for _, bits in pairs], dtype=FORMATS[source].uint).reshape(-1, 1)
    assert_exact(ids, elements, source, target, vocab_size=3)
