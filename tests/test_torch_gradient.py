"""The torch golden's exact gradient, held to sums in Python integers bit for bit.

A test about order states how many elements of the result a float32 sum in another order would change: where they are
few, the case could not have told an exact sum from an ordinary one, and the test fails.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from gradient_cases import (
    SIXTEEN,
    WIDE,
    cancelling,
    dense,
    element,
    finite_bits,
    multiple,
    oracle,
    order_case,
    state_share,
    subnormal_bits,
    zipf,
)
from helpers import LAYOUTS, assert_same_bits, derandomised, ignore_dynamo_warning, raises
from hypothesis import given
from hypothesis import strategies as st

from xref import bits, exact
from xref.bits import FORMATS
from xref.errors import UsageError

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops import _bins, _gradient, _rounding, _segments, embedding
    from xref.torch_ops._gradient import GradAccumulator, grad_rows, grad_weight
    from xref.torch_ops.framework import bits_of, peak_extra_bytes, put

SOURCES = (*WIDE, *SIXTEEN)


def cotangents(elements, source):
    return put(elements, source, "cpu")


def assert_exact(ids, elements, source, target, vocab_size=64):
    """Hold every form to the oracle: the rows, the dense gradient, an accumulator of three pieces."""
    row_ids, rows = oracle(ids, elements, source, target)
    token_ids, cotangent, dtype = put(ids, None, "cpu"), cotangents(elements, source), getattr(torch, target)
    got_ids, got = grad_rows(token_ids, cotangent, dtype=dtype)
    assert_same_bits(got_ids.numpy(), row_ids)
    assert_same_bits(bits_of(got), rows)
    table = dense(row_ids, rows, vocab_size)
    assert_same_bits(bits_of(grad_weight(token_ids, cotangent, vocab_size, dtype=dtype)), table)
    accumulator = GradAccumulator(vocab_size, elements.shape[-1])
    for part in torch.arange(ids.size).chunk(3):
        accumulator.add(token_ids.reshape(-1)[part], cotangent.reshape(ids.size, -1)[part] if ids.size else cotangent)
    assert_same_bits(bits_of(accumulator.result(dtype)), table)


def summed(elements, source, target):
    """Return the gradient's one element where one row has these cotangents of one column."""
    column = np.array(elements, dtype=FORMATS[source].uint).reshape(-1, 1)
    ids = torch.zeros(len(elements), dtype=torch.int64)
    return int(bits_of(grad_rows(ids, cotangents(column, source), dtype=getattr(torch, target))[1])[0, 0])


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


@pytest.mark.parametrize("target", [name for name in FORMATS if name not in WIDE])
@pytest.mark.parametrize("source", WIDE)
def test_every_rounding_point_of_the_narrow_formats(source, target):
    """An element stays; half-way to the next goes to even; the nearest values to half-way go each to its side."""
    fmt, dtype = FORMATS[target], np.dtype(source)
    codes = np.arange(fmt.largest_finite + 1)
    values = np.array([math.ldexp(*exact.decode(int(code), fmt)) for code in codes])
    half = ((values + np.append(values[1:], 2 * values[-1] - values[-2])) / 2).astype(dtype)
    below, above = np.nextafter(half, dtype.type(0)), np.nextafter(half, dtype.type(np.inf))
    points = np.concatenate([values.astype(dtype), half, below, above])
    expected = np.concatenate([codes, codes + (codes & 1), codes, codes + 1])
    unsigned = (points == 0) | ((expected > fmt.largest_finite) & (not fmt.has_inf))
    mirrored = np.where(unsigned, expected, expected | fmt.sign)
    ids = torch.arange(points.size)
    for cotangent, answers in ((points, expected), (-points, mirrored)):
        _, got = grad_rows(ids, torch.from_numpy(cotangent[:, None]), dtype=getattr(torch, target))
        assert_same_bits(bits_of(got)[:, 0], answers.astype(fmt.uint))


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("target", ["float32", "bfloat16", "float16"])
def test_a_cast_that_rounds_once(target, flush):
    """Half-way points, and the float64 next to them on either side: as `encode` has it."""
    fmt = FORMATS[target]
    step = max(fmt.largest_finite // 50_000, 1)
    smallest = 0 if target == "float16" else fmt.mantissa + 1  # what is subnormal in float32 is not for a cast
    codes = np.arange(smallest, fmt.largest_finite + 1, step)
    values = np.array([math.ldexp(*exact.decode(int(code), fmt)) for code in codes])
    units = np.array([math.ldexp(1.0, exact.decode(int(code), fmt)[1]) for code in codes])
    half = values + units / 2
    points = np.concatenate([values, half, np.nextafter(half, 0), np.nextafter(half, np.inf), values + units])
    points = np.concatenate([points, -points[points != 0]])
    expected = _rounding.encode(torch.from_numpy(points), fmt)
    torch.set_flush_denormal(flush)
    got = _rounding._cast(torch.from_numpy(points), fmt)
    assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize(
    ("exponent", "target", "cast"),
    [
        (-126, "float32", True),
        (-127, "float32", False),
        (-126, "bfloat16", True),
        (-127, "bfloat16", False),
        (-25, "float16", True),
        (-127, "float16", False),
        (0, "float8_e5m2", False),
        (0, "float8_e4m3fn", False),
        (0, "float64", False),
    ],
)
def test_sums_are_cast_only_where_none_is_subnormal_in_float32(exponent, target, cast, monkeypatch):
    original, taken = _rounding._cast, []
    monkeypatch.setattr(_rounding, "_cast", lambda *args: (taken.append(args), original(*args))[1])
    # The last bit of a float64 counts: a sum is a multiple of it, and it is 52 places below the first one here.
    values = torch.tensor([[2.0 ** (exponent + 52) + 2.0**exponent], [0.0]], dtype=torch.float64)
    got = grad_weight(torch.tensor([0, 0]), values, 1, dtype=getattr(torch, target))
    expected = grad_weight(torch.tensor([0]), values[:1], 1, dtype=getattr(torch, target))
    assert_same_bits(bits_of(got), bits_of(expected))
    assert bool(taken) == cast


@pytest.mark.parametrize("source", [name for name in FORMATS if name not in WIDE])
def test_a_copy_of_elements_without_nan_is_what_it_is_with_them(source):
    fmt = FORMATS[source]
    codes = np.arange(1 << fmt.width).astype(fmt.uint)
    codes = codes[~bits.is_nan(codes, fmt)]
    elements = [torch.from_numpy(codes.view(f"i{fmt.width // 8}" if fmt.width > 8 else "u1").copy()) for _ in range(2)]
    got = _rounding.copied(elements[0], fmt, has_nan=False)
    assert_same_bits(got.numpy().view(fmt.uint), np.where(codes == fmt.sign, fmt.uint.type(0), codes))
    assert torch.equal(got, _rounding.copied(elements[1], fmt))


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
@pytest.mark.parametrize("what", ["gaussian", "wider", "specials"])
def test_sums_within_the_extent_of_all_elements_are_the_same(source, what, monkeypatch):
    """As on a GPU: the extent is measured once, of all elements, and not of each block."""
    rng, fmt = np.random.default_rng(41), FORMATS[source]
    ids, elements = rng.integers(0, 9, 60), finite_bits(rng, (60, 5), source, binades=12)
    ids[0], lone = 9, elements[0]
    if what == "wider":  # a row of one token, wider than all that is summed
        lone[:] = [1, fmt.largest_finite, fmt.sign | 1, fmt.mantissa, fmt.sign]
    elif what == "specials":
        elements[::7, 1], elements[::5, 2], lone[3] = fmt.exponent, fmt.nan | fmt.sign, fmt.nan | fmt.sign
    given = torch.from_numpy(ids), cotangents(elements, source)
    flat = _segments.flat_bits(given[1])
    extent, write, seen = _bins.measured(flat, fmt)(), _gradient._write, []
    monkeypatch.setattr(
        _gradient, "_write", lambda *args, within=None: (seen.append(within), write(*args, within=extent))
    )
    got = grad_weight(*given, 10)
    assert seen == [None]
    assert_same_bits(bits_of(got), dense(*oracle(ids, elements, source, source), 10))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own use of it
def test_a_derivative_in_forward_mode_is_refused():
    ids, cotangent = torch.tensor([0, 1]), torch.randn(2, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(cotangent, torch.ones_like(cotangent))
        for call in (lambda: grad_weight(ids, dual, 2), lambda: grad_rows(ids, dual)):
            with pytest.raises(NotImplementedError):
                call()


def test_rounded_once_where_a_cast_rounds_twice():
    value = torch.tensor([[1 + 2.0**-8 + 2.0**-40]], dtype=torch.float64)
    assert value.to(torch.bfloat16).item() == 1.0
    assert grad_weight(torch.tensor([0]), value, 1, dtype=torch.bfloat16).item() == 1.0078125


# What must not matter


@pytest.mark.parametrize("source", SOURCES)
def test_a_hundred_orders(source, record_property):
    ids, elements, rng = order_case(source)
    state_share(record_property, ids, elements[:, :4], source)
    _, expected = oracle(ids, elements, source, source)
    for order in [rng.permutation(ids.size) for _ in range(100)]:
        got = grad_rows(torch.from_numpy(ids[order]), cotangents(elements[order], source))[1]
        assert_same_bits(bits_of(got), expected)


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_layout_of_ids_padding_and_repetition(source):
    ids, elements, _ = order_case(source)
    token_ids, cotangent = torch.from_numpy(ids), cotangents(elements, source)
    _, expected = oracle(ids, elements, source, source)
    square = token_ids.view(20, 20)
    apart = torch.stack([token_ids, torch.full_like(token_ids, -1)], dim=1).reshape(-1)[::2]
    for shaped in (square, square.view(2, 10, 20), square.t().contiguous().t(), apart, token_ids, token_ids):
        assert_same_bits(bits_of(grad_rows(shaped, cotangent.view(*shaped.shape, 6))[1]), expected)
    zeros = torch.zeros(50, 6, dtype=cotangent.dtype)
    zeros[::2] = -0.0
    padded = grad_rows(torch.cat([torch.full((50,), 3), token_ids]), torch.cat([zeros, cotangent]))[1]
    assert_same_bits(bits_of(padded), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float8_e5m2"])
def test_layout_of_the_cotangent(source, layout):
    rng = np.random.default_rng(5)
    ids, elements = rng.integers(0, 4, 30), finite_bits(rng, (30, 7), source)
    laid_out = LAYOUTS[layout](elements)
    got = grad_weight(torch.from_numpy(ids), cotangents(laid_out, source), 4)
    assert_same_bits(bits_of(got), dense(*oracle(ids, elements, source, source), 4))
    assert_same_bits(np.ascontiguousarray(laid_out), elements)


@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float8_e5m2"])
def test_cotangents_of_stride_zero(source):
    rng = np.random.default_rng(6)
    ids = rng.integers(0, 4, (5, 6))
    row, column, one = (finite_bits(rng, shape, source) for shape in ((1, 1, 7), (5, 6, 1), (1, 1, 1)))
    for elements in (row, column, one):
        cotangent = cotangents(elements, source).expand(5, 6, 7)
        expected = dense(*oracle(ids, np.broadcast_to(elements, (5, 6, 7)), source, source), 4)
        assert_same_bits(bits_of(grad_weight(torch.from_numpy(ids), cotangent, 4)), expected)


def test_a_cotangent_that_torch_negates_lazily():
    negated = torch.complex(torch.zeros(2, 3), torch.full((2, 3), 1.5)).conj().imag
    assert negated.is_neg()
    assert grad_weight(torch.tensor([1, 1]), negated, 2).tolist() == [[0.0] * 3, [-3.0] * 3]


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Take a GPU's way to the dense gradient: rows copied, and those of several tokens counted and summed."""
    monkeypatch.setattr(_gradient, "counting_pays", lambda bits, vocab_size: True)


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("padding_idx", [None, 4])
def test_a_gpus_way_to_the_dense_gradient(source, padding_idx):
    rng = np.random.default_rng(29)
    ids = rng.permutation(np.concatenate([np.repeat(np.arange(12), np.arange(12)), np.arange(12, 40)]))
    elements = rng.integers(0, 1 << FORMATS[source].width, (ids.size, 9), np.uint64).astype(FORMATS[source].uint)
    elements[:, 0] = FORMATS[source].sign  # -0.0
    elements[:, 1] = 0
    kept = ids != padding_idx
    expected = dense(*oracle(ids[kept], elements[kept], source, source), 50)
    got = grad_weight(torch.from_numpy(ids), cotangents(elements, source), 50, padding_idx=padding_idx)
    assert_same_bits(bits_of(got), expected)
    # Ids out of range, and other results, go by the other way.
    ids[:3] = -1, 50, 2**40
    kept[:3] = False
    expected = dense(*oracle(ids[kept], elements[kept], source, source), 50)
    token_ids, cotangent = torch.from_numpy(ids), cotangents(elements, source)
    got = grad_weight(token_ids, cotangent, 50, padding_idx=padding_idx, validate=False)
    assert_same_bits(bits_of(got), expected)
    with pytest.raises(
        IndexError, match=r"^token_ids: got 3 of 94 ids out of range, the first at position \(0,\) with"
    ):
        grad_weight(token_ids, cotangent, 50, padding_idx=padding_idx)
    target = "float32" if source == "bfloat16" else "bfloat16"
    expected = dense(*oracle(ids[kept], elements[kept], source, target), 50)
    got = grad_weight(token_ids[3:], cotangent[3:], 50, padding_idx=padding_idx, dtype=getattr(torch, target))
    assert_same_bits(bits_of(got), expected)


@pytest.mark.parametrize(
    ("kind", "vocab_size", "elements", "counted"),
    [
        ("cuda", 100, 100, True),
        ("cuda", 101, 100, False),
        ("cuda", 100, 2**25, True),
        ("cuda", 100, 2**25 + 1, False),
        ("cpu", 100, 100, False),
    ],
)
def test_where_rows_are_counted(kind, vocab_size, elements, counted):
    bits = SimpleNamespace(device=torch.device(kind), is_cuda=kind == "cuda", numel=lambda: elements)
    assert _segments.counting_pays(bits, vocab_size) is counted


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_gpus_way_to_nothing(shape):
    ids = torch.zeros(shape[0], dtype=torch.int64)
    assert not grad_weight(ids, torch.ones(shape), 4).any()
    assert grad_weight(ids[:0], torch.ones(0, shape[1]), 0).shape == (0, shape[1])


@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16"])
def test_blocks_do_not_matter(source, monkeypatch):
    """The size of blocks cuts rows apart, and columns where a row has more tokens than a block holds."""
    rng = np.random.default_rng(23)
    ids = np.concatenate([np.repeat(np.arange(12), np.arange(12)), np.full(150, 12)])
    elements = finite_bits(rng, (ids.size, 40), source, binades=9)
    _, expected = oracle(ids, elements, source, source)
    for size, narrowest in itertools.product((8, 320, 4000, 2**24), (1, 16)):
        monkeypatch.setattr(_segments, "_CPU_BYTES", size)
        monkeypatch.setattr(_segments, "_NARROWEST", narrowest)
        got = grad_rows(torch.from_numpy(ids), cotangents(elements, source))[1]
        assert_same_bits(bits_of(got), expected)
        assert_same_bits(bits_of(grad_weight(torch.from_numpy(ids), cotangents(elements, source), 13))[1:], expected)
        if narrowest > 1:
            accumulator = GradAccumulator(13, 40)
            accumulator.add(torch.from_numpy(ids), cotangents(elements, source))
            assert_same_bits(bits_of(accumulator.result_rows(getattr(torch, source))[1]), expected)


def test_blocks_cover_every_segment_and_column_once():
    segments = _segments.by_row(
        _segments.sorted_ids(torch.tensor([3, 1, 1, 7, 3, 3, 9, 2, 2, 2, 2, 2]), 9), 9, padding_idx=None
    )
    assert segments.out_of_range
    assert not _segments.by_row(_segments.sorted_ids(torch.tensor([1, 0]), 2), 2, padding_idx=0).out_of_range
    assert segments.rows.tolist() == [7, 1, 2, 3]
    assert segments.counts.tolist() == [1, 2, 5, 3]
    assert [sorted(part) for part in np.split(segments.positions.numpy(), [1, 3, 8])] == [
        *([3], [1, 2]),
        *([7, 8, 9, 10, 11], [0, 4, 5]),
    ]
    assert segments.segment_of.tolist() == [0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]
    covered = np.zeros((4, 50), dtype=int)
    blocks = list(_segments.blocks(segments, 50))
    for block in blocks:
        covered[block.segments, block.columns] += 1
    assert (covered == 1).all()
    cut = [(block.segments, block.longest, block.size) for block in blocks]
    assert cut == [(slice(0, 1), 1, 1), (slice(1, 4), 5, 3)]


@pytest.mark.parametrize("padding_idx", [None, 2, 9])
def test_rows_of_several_tokens(padding_idx):
    ids = torch.tensor([3, 1, 1, 7, 3, 3, 9, 2, 2, 0])
    rows, positions = _segments.shared_rows(ids, 10, padding_idx)
    kept = [row for row in (1, 2, 3) if row != padding_idx]
    assert rows.tolist() == kept
    assert positions.tolist() == [at for at, row in enumerate(ids.tolist()) if row in kept]
    segments = _segments.of_rows(rows, positions, ids)
    assert [kept[segment] for segment in segments.segment_of] == ids[positions].tolist()
    (block,) = _segments.blocks(segments, 50)
    assert block.longest >= 3
    assert not list(_segments.blocks(_segments.of_rows(*_segments.shared_rows(ids[5:7], 10, None), ids[5:7]), 50))


@pytest.fixture
def settings_of_torch():
    """Put torch's own settings back."""
    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(default)
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("source", SOURCES)
def test_settings_of_torch_change_nothing(source):
    rng = np.random.default_rng(31)
    elements = finite_bits(rng, (120, 5), source)
    elements[:, 3:] = subnormal_bits(rng, (120, 2), source)
    ids = rng.integers(0, 40, 120)
    token_ids, cotangent = torch.from_numpy(ids), cotangents(elements, source)
    expected = {target: oracle(ids, elements, source, target)[1] for target in {"float32", source}}
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormals"
    for change in (
        lambda: torch.set_flush_denormal(True),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(1),
    ):
        change()
        accumulator = GradAccumulator(40, 5)
        accumulator.add(token_ids, cotangent)
        for target, rows in expected.items():
            dtype = getattr(torch, target)
            assert_same_bits(bits_of(grad_rows(token_ids, cotangent, dtype=dtype)[1]), rows)
            assert_same_bits(bits_of(accumulator.result_rows(dtype)[1]), rows)


def test_modes_of_autograd_change_nothing_and_no_input_is_changed():
    ids, cotangent = torch.tensor([1, 1, 0, 1]), torch.full((4, 2), 0.3)
    before = bits_of(cotangent).copy()
    first = grad_weight(ids, cotangent, 2)
    assert not first.requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_same_bits(bits_of(grad_weight(ids, cotangent, 2)), bits_of(first))
    cotangent.requires_grad_()
    for form in (lambda: grad_weight(ids, cotangent, 2), lambda: grad_rows(ids, cotangent)[1]):
        assert_same_bits(bits_of(form()), bits_of(first))
    assert_same_bits(bits_of(cotangent), before)
    assert ids.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0), (0, None), (1, 2)], ids=str)
def test_vmap_is_a_loop(in_dims):
    rng = np.random.default_rng(9)
    ids, cotangent = torch.from_numpy(rng.integers(0, 4, (3, 5))), torch.randn(3, 5, 2, generator=torch.manual_seed(0))
    entries = [
        grad_weight(ids[i if in_dims[0] is not None else 0], cotangent[i if in_dims[1] is not None else 0], 4)
        for i in range(3)
    ]
    moved = [
        tensor[0] if dim is None else tensor.movedim(0, dim)
        for tensor, dim in zip((ids, cotangent), in_dims, strict=True)
    ]
    got = torch.func.vmap(lambda i, c: grad_weight(i, c, 4), in_dims=in_dims)(*moved)
    assert_same_bits(bits_of(got), bits_of(torch.stack(entries)))


def test_rows_under_vmap_raise():
    told = "vmap: got entries that may name different numbers of rows, expected grad_weight to be used there"
    with raises(UsageError, f"{told} [grad_rows]"):
        torch.func.vmap(lambda c: grad_rows(torch.tensor([0, 1]), c))(torch.ones(4, 2, 3))


def test_a_second_derivative_raises():
    cotangent = torch.ones(2, 3, requires_grad=True)
    with raises(UsageError, "derivative: got a second one, expected the gradient to be the last [grad_weight]"):
        grad_weight(torch.tensor([0, 1]), cotangent, 2).sum().backward()
    row_ids, rows = grad_rows(torch.tensor([0, 1]), cotangent)
    assert not row_ids.requires_grad
    with raises(UsageError, "derivative: got a second one, expected the gradient to be the last [grad_rows]"):
        rows.sum().backward()


@ignore_dynamo_warning
@pytest.mark.parametrize("source", SOURCES)
def test_compiled_is_eager(source):
    ids, elements, _ = order_case(source)
    token_ids, cotangent = torch.from_numpy(ids), cotangents(elements, source)
    compiled = torch.compile(grad_weight, backend="eager")
    for options in ({}, {"padding_idx": 3, "dtype": torch.bfloat16}):
        expected = bits_of(grad_weight(token_ids, cotangent, 9, **options))
        assert_same_bits(bits_of(compiled(token_ids, cotangent, 9, **options)), expected)


def test_memory_beyond_the_result_grows_with_the_tokens_not_with_the_table():
    rng = np.random.default_rng(2)
    tokens, hidden = 500, 64
    cotangent = cotangents(finite_bits(rng, (tokens, hidden), "float32", binades=8), "float32")
    ids = torch.from_numpy(rng.integers(0, 800, tokens))
    extra = {}
    for vocab_size in (1000, 100_000):
        result = vocab_size * hidden * 4
        extra[vocab_size] = peak_extra_bytes(lambda *pair, v=vocab_size: grad_weight(*pair, v), ids, cotangent) - result
    assert extra[1000] == extra[100_000] <= 10 * tokens * hidden * 8
    sparse = peak_extra_bytes(lambda *pair: grad_rows(*pair, vocab_size=100_000), ids, cotangent)
    assert sparse <= extra[1000] + tokens * hidden * 4

    def accumulate(*pair):
        accumulator = GradAccumulator(100_000, hidden)
        accumulator.add(*pair)
        return accumulator.result_rows(torch.float32)

    assert peak_extra_bytes(accumulate, ids, cotangent) <= 30 * tokens * hidden * 8


# Faults that real kernels had


@pytest.mark.parametrize("source", SIXTEEN)
def test_100_000_hundredths_over_8_rows(source):
    one = element(0.01, source)
    cotangent = cotangents(np.array([[one]], dtype=np.uint16), source).expand(100_000, 1)
    expected = multiple(12_500, one, source, source)
    assert bits_of(grad_weight(torch.arange(100_000) % 8, cotangent, 8)).tolist() == [[expected]] * 8


def test_32_ids_all_zero():
    gradient = grad_weight(torch.zeros(32, dtype=torch.int32), torch.ones(32, 4, dtype=torch.bfloat16), 3)
    assert gradient.tolist() == [[32.0] * 4, [0.0] * 4, [0.0] * 4]


def test_the_padding_index_is_left_out():
    ids, ones = torch.tensor([0, 1, 1, 2]), torch.ones(4, 2)
    ones[0] = torch.nan
    assert grad_weight(ids, ones, 5, padding_idx=0)[:, 0].tolist() == [0.0, 2.0, 1.0, 0.0, 0.0]
    row_ids, rows = grad_rows(ids, ones, padding_idx=0)
    assert (row_ids.tolist(), rows[:, 0].tolist()) == ([1, 2], [2.0, 1.0])
    alone = grad_weight(torch.tensor([4]), -torch.ones(1, 2), 5, padding_idx=4)
    assert_same_bits(bits_of(alone), np.zeros((5, 2), np.uint32))


def test_ids_of_two_dimensions_and_few_tokens():
    ids = torch.tensor([[0, 1, 2, 0], [2, 2, 3, 0]])
    gradient = grad_weight(ids, torch.arange(16.0).reshape(2, 4, 2), 4)
    assert gradient.tolist() == [[20.0, 23.0], [2.0, 3.0], [22.0, 25.0], [12.0, 13.0]]
    assert grad_weight(torch.tensor([0, 3]), torch.tensor([[1.0], [2.0]]), 4).flatten().tolist() == [1.0, 0.0, 0.0, 2.0]


def test_a_second_gradient_is_the_first_in_memory_of_its_own():
    ids, cotangent = torch.tensor([3, 3, 1]), torch.tensor([[0.1], [0.2], [0.3]])
    first, second = grad_weight(ids, cotangent, 4), grad_weight(ids, cotangent, 4)
    assert_same_bits(bits_of(first), bits_of(second))
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_backward_into_the_same_gradient_adds_to_it(dtype, verb):
    weight = torch.zeros(5, 2, dtype=getattr(torch, dtype), requires_grad=True)
    forward = getattr(embedding, verb)
    for token_ids, factor in ((torch.tensor([0, 1, 1, 4]), 2.0), (torch.tensor([1, 4, 4]), 8.0)):
        (forward(token_ids, weight) * factor).sum().backward()
    assert weight.grad[:, 0].tolist() == [2.0, 12.0, 0.0, 0.0, 18.0]
    loss = (forward(torch.tensor([3, 1, 3]), weight) * 0.5).sum()
    for times in (1, 2):  # through one graph
        weight.grad = None if times == 1 else weight.grad
        loss.backward(retain_graph=True)
        assert weight.grad[:, 1].tolist() == [0.0, 0.5 * times, 0.0, 1.0 * times, 0.0]


@pytest.mark.parametrize("verb", ["forward", "forward_fp32"])
def test_forward_and_backward_keep_table_ids_and_cotangent(verb):
    rng = np.random.default_rng(26596)
    weight = cotangents(finite_bits(rng, (5, 3), "bfloat16"), "bfloat16").requires_grad_()
    token_ids = torch.tensor([4, 0, 4, 2])
    name = "bfloat16" if verb == "forward" else "float32"
    cotangent = cotangents(finite_bits(rng, (4, 3), name), name)
    before = [bits_of(tensor).copy() for tensor in (weight, cotangent)]
    getattr(embedding, verb)(token_ids, weight).backward(cotangent)
    for tensor, kept in zip((weight, cotangent), before, strict=True):
        assert_same_bits(bits_of(tensor), kept)
    assert token_ids.tolist() == [4, 0, 4, 2]


def test_2063_ids_twice(record_property):
    ids, elements = cancelling(zipf(687, 5, 1), 2063, 2, "bfloat16")
    state_share(record_property, ids, elements, "bfloat16")
    for _ in range(2):
        assert_exact(ids, elements, "bfloat16", "bfloat16")
