"""The exact gradient of the torch golden, against sums in Python integers (`xref.exact`), bit for bit.

Every comparison here is of integers. Cases about order also state how many elements a float32 sum in another order
changes: where that is none, the case could not have told an exact sum from an ordinary one.
"""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat, format_of
from xref.torch_ops import _accumulator, _segments
from xref.torch_ops._gradient import GradAccumulator, grad_rows, grad_weight

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SIXTEEN = ("bfloat16", "float16")
Ids = np.ndarray[Any, np.dtype[Any]]


def to_torch(bits: Bits, name: str) -> torch.Tensor:
    """Return the elements as a torch tensor of dtype `name`."""
    signed = bits.astype(bits.dtype.str.replace("u", "u" if bits.itemsize == 1 else "i"))
    return torch.from_numpy(signed).view(getattr(torch, name))


def to_bits(tensor: torch.Tensor) -> Bits:
    """Return the bits of a torch tensor's elements."""
    raw = tensor.detach().contiguous().view(INTEGERS[tensor.element_size()]).numpy()
    return raw.view(f"u{tensor.element_size()}")


def element(value: float, name: str) -> int:
    """Return the bits of `value` rounded to `name`, by integers."""
    significand, exponent = exact.decode(int(np.float64(value).view(np.uint64)), FORMATS["float64"])
    return exact.round_once(significand, exponent, FORMATS[name])


def encoded(values: Any, name: str) -> Bits:
    """Return the bits of float64 values rounded to `name`, by integers."""
    array = np.asarray(values, dtype=np.float64)
    return np.array([element(v, name) for v in array.reshape(-1)], dtype=FORMATS[name].uint).reshape(array.shape)


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], name: str, *, exponents: int | None = None) -> Bits:
    """Return random finite elements: of every exponent, or of so many binades up from 1 or so."""
    fmt = FORMATS[name]
    raw = rng.integers(0, 1 << fmt.width, shape, dtype=np.uint64, endpoint=False)
    mantissa, sign = raw & np.uint64(fmt.mantissa), raw & np.uint64(fmt.sign)
    if exponents is None:
        fields = rng.integers(0, fmt.largest_finite >> fmt.mantissa_bits, shape, dtype=np.uint64)
    else:
        fields = rng.integers(fmt.bias, fmt.bias + exponents, shape, dtype=np.uint64)
    return (sign | fields << np.uint64(fmt.mantissa_bits) | mantissa).astype(fmt.uint)


def expected_rows(ids: Ids, bits: Bits, source: str, target: str) -> tuple[Ids, Bits]:
    """Return the oracle's ids and rows."""
    answers = exact.grad_rows(ids, bits, FORMATS[source], FORMATS[target]) if ids.size else {}
    rows = np.array(sorted(answers), dtype=np.int64)
    empty = np.zeros((0, bits.shape[-1]), dtype=FORMATS[target].uint)
    return rows, np.stack([answers[int(row)] for row in rows]) if rows.size else empty


def check(ids: Ids, bits: Bits, source: str, target: str, vocab_size: int = 64) -> None:
    """Hold all three public forms to the oracle: the rows, the dense gradient, an accumulator of three pieces."""
    rows, expected = expected_rows(ids, bits, source, target)
    dense = np.zeros((vocab_size, bits.shape[-1]), dtype=FORMATS[target].uint)
    dense[rows] = expected
    token_ids, cotangent, dtype = torch.from_numpy(ids), to_torch(bits, source), getattr(torch, target)

    got_rows, got = grad_rows(token_ids, cotangent, dtype=dtype)
    assert got_rows.dtype == torch.int64 and got.dtype == dtype
    np.testing.assert_array_equal(got_rows.numpy(), rows)
    np.testing.assert_array_equal(to_bits(got), expected)

    np.testing.assert_array_equal(to_bits(grad_weight(token_ids, cotangent, vocab_size, dtype=dtype)), dense)

    accumulator = GradAccumulator(vocab_size, bits.shape[-1])
    flat_ids, flat = token_ids.reshape(-1), cotangent.reshape(-1, bits.shape[-1])
    for part in np.array_split(np.arange(flat_ids.numel()), 3):
        accumulator.add(flat_ids[part], flat[part])
    np.testing.assert_array_equal(to_bits(accumulator.result(dtype)), dense)


def column(elements: list[int], name: str) -> tuple[Ids, Bits]:
    """Return one row's cotangents, H = 1."""
    return np.zeros(len(elements), dtype=np.int64), np.array(elements, dtype=FORMATS[name].uint).reshape(-1, 1)


def summed(elements: list[int], source: str, target: str) -> int:
    """Return the one gradient element of one row with these cotangents."""
    ids, bits = column(elements, source)
    _, rows = grad_rows(torch.from_numpy(ids), to_torch(bits, source), dtype=getattr(torch, target))
    return int(to_bits(rows)[0, 0])


def reordered_share(ids: Ids, bits: Bits, source: str, orders: list[Ids]) -> float:
    """Return the share of gradient elements whose bits an order changes when summed one by one in float32."""
    results = []
    with np.errstate(over="ignore", invalid="ignore"):
        values = to_torch(bits, source).to(torch.float32).numpy()
        for order in [np.arange(ids.size), *orders]:
            sums = np.zeros((int(ids.max()) + 1, values.shape[1]), dtype=np.float32)
            np.add.at(sums, ids[order], values[order])
            results.append(sums[np.unique(ids)])
    finite = np.isfinite(results).all(0)
    return float(np.mean([finite & (r.view(np.uint32) != results[0].view(np.uint32)) for r in results[1:]]))


# --- how many tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("value", [1.0, 0.01, -0.3])
@pytest.mark.parametrize("count", [1000, 100_000])
@pytest.mark.parametrize("source", SIXTEEN)
def test_equal_cotangents_do_not_stall(source: str, count: int, value: float, target: str) -> None:
    one = element(value, source)
    significand, exponent = exact.decode(one, FORMATS[source])
    assert summed([one] * count, source, target) == exact.round_once(count * significand, exponent, FORMATS[target])


def test_a_thousand_ones_are_a_thousand_where_torch_says_256() -> None:
    ids, ones = torch.zeros(1000, dtype=torch.int64), torch.ones(1000, 1, dtype=torch.bfloat16)
    assert grad_weight(ids, ones, 1).item() == 1000.0
    assert torch.ops.aten.embedding_dense_backward(ones, ids, 1, -1, False).item() == 256.0


@pytest.mark.parametrize("source", ["float64", "float32", *SIXTEEN])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 2**16])
def test_any_number_of_duplicates(source: str, count: int) -> None:
    rng = np.random.default_rng(count)
    bits = random_bits(rng, (count, 1), source, exponents=12)
    check(np.full(count, 5), bits, source, source)


@pytest.mark.parametrize("vocab_size", [1, 31, 100])
@pytest.mark.parametrize("hidden", [1, 1185])
def test_shapes(vocab_size: int, hidden: int) -> None:
    rng = np.random.default_rng(vocab_size + hidden)
    ids = rng.integers(0, vocab_size, 24)
    check(ids, random_bits(rng, (24, hidden), "bfloat16", exponents=8), "bfloat16", "bfloat16", vocab_size)


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_zipf_ids(source: str, record_property: Callable[[str, object], None]) -> None:
    rng = np.random.default_rng(8)
    ids = np.minimum(rng.zipf(1.3, 3000), 64) - 1
    bits = random_bits(rng, (3000, 3), source, exponents=30)
    share = reordered_share(ids, bits, source, [rng.permutation(3000)])
    record_property("reordered", f"{share:.1%}")
    assert share > 0, "no element of this case depends on the order in float32"
    check(ids, bits, source, source)


def test_scalar_and_empty_ids() -> None:
    bits = encoded([[1.5, -2.0, -0.0]], "bfloat16")
    check(np.array(3), bits[0], "bfloat16", "bfloat16")
    empty = torch.empty(2, 0, dtype=torch.int64)
    for vocab_size, hidden in ((5, 3), (0, 3), (5, 0), (0, 0)):
        cotangent = torch.empty(2, 0, hidden, dtype=torch.float16)
        dense = grad_weight(empty, cotangent, vocab_size)
        assert dense.shape == (vocab_size, hidden) and dense.dtype == torch.float16 and not to_bits(dense).any()
        rows, gradients = grad_rows(empty, cotangent)
        assert rows.shape == (0,) and rows.dtype == torch.int64 and gradients.shape == (0, hidden)
    assert grad_weight(torch.tensor([1, 1]), torch.empty(2, 0), 3).shape == (3, 0)


# --- what is summed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FORMATS)
def test_cancellation_in_every_order(source: str) -> None:
    fmt = FORMATS[source]
    large, tiny = fmt.largest_finite, 1
    for parts in itertools.permutations([large, tiny, fmt.sign | large]):
        assert summed(list(parts), source, source) == tiny
    more = [large, large, large | fmt.sign, large | fmt.sign, element(1.0, source), fmt.sign | tiny]
    expected = exact.sum_rounded(more, fmt, FORMATS["float64"])
    for parts in itertools.islice(itertools.permutations(more), 0, 720, 37):
        assert summed(list(parts), source, "float64") == expected


@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_bins_at_the_limit_of_what_float64_holds(count: int) -> None:
    """Elements as large as can be with two or three ever further below: every span of exponents for a bin of this count."""
    single = FORMATS["float32"]
    most = 127 << 23 | single.mantissa
    ids = torch.tensor([0, 1]).repeat_interleave(count)
    for below, small in itertools.product(range(1, 127, 2), (2, 3)):
        elements = [most] * (count - small) + [(127 - below) << 23 | 1] * small
        expected = exact.sum_rounded(elements, single, FORMATS["float64"])
        cotangent = to_torch(np.array(elements + elements[::-1], dtype=np.uint32).reshape(-1, 1), "float32")
        got = to_bits(grad_weight(ids, cotangent, 2, dtype=torch.float64))
        assert got.tolist() == [[expected], [expected]], f"{below} binades below"


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_every_exponent_at_once(source: str, target: str) -> None:
    fmt = FORMATS[source]
    rng = np.random.default_rng(fmt.width)
    fields = np.arange((fmt.largest_finite >> fmt.mantissa_bits) + fmt.has_inf, dtype=np.uint64)
    fields = np.repeat(fields[:, None], 4, axis=1)
    raw = rng.integers(0, 1 << fmt.width, fields.shape, dtype=np.uint64, endpoint=False)
    bits = raw & np.uint64(fmt.sign | fmt.mantissa) | fields << np.uint64(fmt.mantissa_bits)
    # Beside the plain sum: the large half taken back, so that the small half is the sum, in the last two columns.
    half = bits[fields.shape[0] // 2 :, 2:] ^ np.uint64(fmt.sign)
    rest = np.concatenate([np.zeros_like(half), half], axis=1)
    bits = rng.permutation(np.concatenate([bits, rest])).astype(fmt.uint)
    check(rng.integers(0, 1, bits.shape[0]), bits, source, target)
    check(rng.integers(0, 5, bits.shape[0]), bits, source, target)


@pytest.mark.parametrize("source", FORMATS)
def test_subnormals(source: str) -> None:
    fmt = FORMATS[source]
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 1 << fmt.width, (300, 3), dtype=np.uint64, endpoint=False)
    bits = (raw & np.uint64(fmt.sign | fmt.mantissa)).astype(fmt.uint)
    ids = rng.integers(0, 7, 300)
    check(ids, bits, source, source)
    check(ids, bits, source, "float64")
    assert summed([1, 1], source, source) == 2


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", ["float64", "float32"])
def test_half_way_and_a_hair(source: str, target: str) -> None:
    """The tie goes to even; a hair 200 bits lower decides it. Exponents are chosen so that all parts are exact."""
    wide, fmt = FORMATS[source], FORMATS[target]
    hair = wide.quantum + 1
    top = {"float64": 3, "float32": 120}[source]
    if target in ("float16", "float8_e4m3fn", "float8_e5m2"):
        top = 3  # as far up as its range allows: 150 bits above the float32 hair, 1000 above the float64 one
    assert top - fmt.mantissa_bits - 1 - hair >= (200 if top == 120 or source == "float64" else 140)
    for odd in (0, 1):
        base = 2.0**top + odd * 2.0 ** (top - fmt.mantissa_bits)
        for sign, direction in itertools.product((1, -1), (-1, 0, 1)):
            half = 2.0 ** (top - fmt.mantissa_bits - 1)
            parts = [sign * base, sign * half, sign * direction * 2.0**hair]
            if target == "float64" and source == "float32":
                parts = [sign * 2.0**top, sign * odd * 2.0 ** (top - 52), *parts[1:]]
            elements = [element(p, source) for p in parts]
            low, high = element(base, target), element(base, target) + 1
            up = direction > 0 or (direction == 0 and low & 1)
            expected = (high if up else low) | (fmt.sign if sign < 0 else 0)
            assert summed(elements, source, target) == expected
            assert summed(elements[::-1], source, target) == expected
            assert exact.sum_rounded(elements, wide, fmt) == expected


@pytest.mark.parametrize("target", FORMATS)
def test_half_way_between_subnormals(target: str) -> None:
    """Half the smallest subnormal rounds to zero, a hair more to it; float64 has no half, and nothing to round."""
    fmt = FORMATS[target]
    if target == "float64":
        assert summed([1, 1, fmt.sign | 1], target, target) == 1
        return
    half, hair = element(2.0 ** (fmt.quantum - 1), "float64"), element(2.0**-600, "float64")
    minus = FORMATS["float64"].sign
    assert summed([half], "float64", target) == 0
    assert summed([half | minus], "float64", target) == fmt.sign
    assert summed([half, hair], "float64", target) == 1
    assert summed([half, hair | minus], "float64", target) == 0
    assert summed([half, half, half], "float64", target) == 2
    assert summed([half, half, half, hair | minus], "float64", target) == 1
    assert summed([1], "float64", target) == 0
    assert summed([minus | 1], "float64", target) == fmt.sign


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16"])
def test_overflow_at_the_edge(source: str, target: str) -> None:
    """Half a step past the largest finite value overflows, a hair less does not, and a sum may pass the edge and return."""
    wide, fmt = FORMATS[source], FORMATS[target]
    significand, exponent = exact.decode(fmt.largest_finite, fmt)
    overflow = fmt.exponent if fmt.has_inf else fmt.nan
    minus = wide.sign
    if exponent + significand.bit_length() > exact.decode(wide.largest_finite, wide)[1] + wide.mantissa_bits + 1:
        assert summed([wide.largest_finite] * 3, source, target) == exact.sum_rounded(
            [wide.largest_finite] * 3, wide, fmt
        )
        return
    pieces = [
        exact.round_once(significand & bit, exponent, wide) for bit in (1 << b for b in range(53)) if significand & bit
    ]
    half, hair = exact.round_once(1, exponent - 1, wide), 1
    tie = overflow if fmt.largest_finite & 1 else fmt.largest_finite  # float8_e4m3fn's largest is even
    assert summed(pieces, source, target) == fmt.largest_finite
    assert summed([*pieces, half], source, target) == tie
    assert summed([*pieces, half, hair], source, target) == overflow
    assert summed([*pieces, half, minus | hair], source, target) == fmt.largest_finite
    assert summed([*pieces, *pieces, *(minus | p for p in pieces)], source, target) == fmt.largest_finite
    negative = [minus | p for p in (*pieces, half)]
    assert summed([*negative, minus | hair], source, target) == (overflow | fmt.sign if fmt.has_inf else fmt.nan)
    assert summed([*negative, hair], source, target) == fmt.sign | fmt.largest_finite


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("source", FORMATS)
def test_minus_zeros_add_up_to_plus_zero(source: str, count: int) -> None:
    for target in FORMATS:
        assert summed([FORMATS[source].sign] * count, source, target) == 0
        one = element(1.0, source)
        assert summed([one, FORMATS[source].sign | one] * count, source, target) == 0


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_specials_in_every_mix(source: str, target: str) -> None:
    fmt = FORMATS[source]
    kinds = [fmt.sign | fmt.nan, element(1.0, source), fmt.sign, fmt.largest_finite]
    if fmt.has_inf:
        kinds += [fmt.exponent, fmt.sign | fmt.exponent]
    if fmt.has_inf and fmt.mantissa_bits > 1:
        kinds += [fmt.exponent | 1]  # a signalling NaN
    mixes = [m for n in (1, 2, 3) for m in itertools.product(kinds, repeat=n)]
    ids = np.repeat(np.arange(len(mixes)), [len(m) for m in mixes])
    bits = np.array(list(itertools.chain.from_iterable(mixes)), dtype=fmt.uint).reshape(-1, 1)
    order = np.random.default_rng(0).permutation(ids.size)
    check(ids[order], bits[order], source, target, vocab_size=len(mixes))
    assert summed([fmt.nan, fmt.nan], source, target) == FORMATS[target].nan


_bits = st.sampled_from(sorted(FORMATS)).flatmap(
    lambda name: st.tuples(
        st.just(name),
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.integers(0, (1 << FORMATS[name].width) - 1)
                | st.sampled_from([0, 1, FORMATS[name].largest_finite, FORMATS[name].exponent, FORMATS[name].nan])
                | st.integers(0, 40).map(lambda n, f=FORMATS[name]: n + (f.bias << f.mantissa_bits)),
            ),
            max_size=9,
        ),
        st.sampled_from(sorted(FORMATS)),
    )
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(_bits)
def test_any_bit_patterns(drawn: tuple[str, list[tuple[int, int]], str]) -> None:
    source, pairs, target = drawn
    ids = np.array([i for i, _ in pairs], dtype=np.int64)
    bits = np.array([b for _, b in pairs], dtype=FORMATS[source].uint).reshape(-1, 1)
    check(ids, bits, source, target, vocab_size=3)


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float64", "float32"])
def test_every_rounding_point_of_the_narrow_formats(source: str, target: str) -> None:
    """Each finite element stays; half-way to the next goes to even; the nearest neighbours of half-way go to their side."""
    fmt, dtype = FORMATS[target], np.dtype(source)
    codes = np.arange(fmt.largest_finite + 1)
    values = np.array([math.ldexp(*exact.decode(int(code), fmt)) for code in codes])
    beyond = math.ldexp(*exact.decode(fmt.largest_finite, fmt)) * 2 - values[-2]
    half = ((values + np.append(values[1:], beyond)) / 2).astype(dtype)
    above = np.nextafter(half, dtype.type(np.inf))
    below = np.nextafter(half, dtype.type(0))
    points = np.concatenate([values.astype(dtype), half, below, above])
    expected = np.concatenate([codes, codes + (codes & 1), codes, codes + 1])
    unsigned = (points == 0) | ((expected > fmt.largest_finite) & (not fmt.has_inf))
    mirrored = np.where(unsigned, expected, expected | fmt.sign)
    for values, codes in ((points, expected), (-points, mirrored)):
        _, got = grad_rows(torch.arange(points.size), torch.from_numpy(values[:, None]), dtype=getattr(torch, target))
        np.testing.assert_array_equal(to_bits(got)[:, 0], codes.astype(fmt.uint))


def test_rounded_once_where_a_cast_rounds_twice() -> None:
    value = torch.tensor([[1 + 2.0**-8 + 2.0**-40]], dtype=torch.float64)
    assert value.to(torch.bfloat16).item() == 1.0
    assert grad_weight(torch.tensor([0]), value, 1, dtype=torch.bfloat16).item() == 1.0078125


# --- what must not matter -------------------------------------------------------------------------------------------


def order_case(source: str) -> tuple[Ids, Bits, np.random.Generator]:
    """Return 400 tokens over 9 rows, some of every exponent, some of few."""
    rng = np.random.default_rng(17)
    bits = random_bits(rng, (400, 6), source, exponents=6)
    bits[:, 4:] = random_bits(rng, (400, 2), source)
    return rng.integers(0, 9, 400), bits, rng


@pytest.mark.parametrize("source", ["float64", "float32", *SIXTEEN])
def test_a_hundred_orders(source: str, record_property: Callable[[str, object], None]) -> None:
    ids, bits, rng = order_case(source)
    orders = [rng.permutation(ids.size) for _ in range(100)]
    share = reordered_share(ids, bits, source, orders[:5])
    record_property("reordered", f"{share:.1%}")
    assert share > 0, "no element of this case depends on the order in float32"
    _, expected = expected_rows(ids, bits, source, source)
    for order in orders:
        _, got = grad_rows(torch.from_numpy(ids[order]), to_torch(bits[order], source))
        np.testing.assert_array_equal(to_bits(got), expected)


@pytest.mark.parametrize("source", ["float64", "float32", *SIXTEEN])
def test_twenty_splits_over_micro_batches_and_ranks(
    source: str, record_property: Callable[[str, object], None]
) -> None:
    ids, bits, rng = order_case(source)
    share = reordered_share(ids, bits, source, [rng.permutation(ids.size) for _ in range(5)])
    record_property("reordered", f"{share:.1%}")
    assert share > 0, "no element of this case depends on the order in float32"
    _, expected = expected_rows(ids, bits, source, source)
    states = []
    for _ in range(20):
        order = rng.permutation(ids.size)
        cuts = np.sort(rng.integers(0, ids.size + 1, rng.integers(1, 12)))
        ranks = [GradAccumulator(9, 6) for _ in range(3)]
        for part in np.split(order, cuts):
            rank = ranks[rng.integers(3)]
            rank.add(torch.from_numpy(ids[part]), to_torch(bits[part], source))
        ranks[0].merge(ranks[1])
        ranks[2].merge(ranks[0])
        rows, got = ranks[2].result_rows(getattr(torch, source))
        np.testing.assert_array_equal(rows.numpy(), np.unique(ids))
        np.testing.assert_array_equal(to_bits(got), expected)
        states.append(ranks[2].state_dict())
    assert all(torch.equal(state["digits"], states[0]["digits"]) for state in states)
    assert {state["lowest"] for state in states} == {states[0]["lowest"]}


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_layout_padding_and_repetition(source: str) -> None:
    ids, bits, _ = order_case(source)
    cotangent = to_torch(bits, source)
    _, expected = expected_rows(ids, bits, source, source)
    token_ids = torch.from_numpy(ids)
    apart = torch.stack([token_ids, torch.full_like(token_ids, -1)], 1).reshape(-1)[::2]
    for shaped in (
        token_ids.view(20, 20),
        token_ids.view(2, 10, 20),
        token_ids.view(20, 20).t().contiguous().t(),
        apart,
    ):
        assert_rows(shaped, cotangent.view(*shaped.shape, 6), expected)
    zeros = torch.zeros(50, 6, dtype=cotangent.dtype)
    zeros[::2] = -0.0
    assert_rows(torch.cat([torch.full((50,), 3), token_ids]), torch.cat([zeros, cotangent]), expected)
    assert_rows(token_ids, cotangent, expected)


def assert_rows(token_ids: torch.Tensor, cotangent: torch.Tensor, expected: Bits) -> None:
    np.testing.assert_array_equal(to_bits(grad_rows(token_ids, cotangent)[1]), expected)


def test_strides_of_the_cotangent() -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 4, 30)
    token_ids = torch.from_numpy(ids)
    for source in ("float64", "float32", "bfloat16", "float8_e5m2"):
        wide = to_torch(random_bits(rng, (60, 14), source, exponents=5), source)
        integers = wide.view(INTEGERS[wide.element_size()])
        views = [wide[::2, ::2], wide[:30, 7:], wide[0, :7].expand(30, 7), wide[:30, :1].expand(30, 7)]
        views += [wide.t()[:14, :30].t()[:, :7], integers[:30, :7].flip(0).view(wide.dtype)]
        for cotangent in views:
            bits = to_bits(cotangent.clone(memory_format=torch.contiguous_format))
            before = to_bits(wide).copy()
            check_view(ids, token_ids, cotangent, bits, source)
            np.testing.assert_array_equal(to_bits(wide), before)
    negated = torch.complex(torch.zeros(30, 7), to_torch(random_bits(rng, (30, 7), "float32"), "float32")).conj().imag
    assert negated.is_neg()
    check_view(ids, token_ids, negated, to_bits(negated.resolve_neg()), "float32")


def check_view(ids: Ids, token_ids: torch.Tensor, cotangent: torch.Tensor, bits: Bits, source: str) -> None:
    rows, expected = expected_rows(ids, bits, source, source)
    dense = np.zeros((4, bits.shape[-1]), dtype=FORMATS[source].uint)
    dense[rows] = expected
    np.testing.assert_array_equal(to_bits(grad_weight(token_ids, cotangent, 4)), dense)


@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16"])
def test_blocks_do_not_matter(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block size cuts rows and columns apart; a segment larger than a block is cut by columns."""
    rng = np.random.default_rng(23)
    ids = np.concatenate([np.repeat(np.arange(12), np.arange(12)), np.full(150, 12)])
    bits = random_bits(rng, (ids.size, 40), source, exponents=9)
    ids, bits = ids, bits[rng.permutation(ids.size)]
    _, expected = expected_rows(ids, bits, source, source)
    for size in (1, 40, 500, 2**20):
        monkeypatch.setattr(_segments, "_CPU_BLOCK", size)
        for narrowest in (1, 16):
            monkeypatch.setattr(_segments, "_NARROWEST", narrowest)
            assert_rows(torch.from_numpy(ids), to_torch(bits, source), expected)
        accumulator = GradAccumulator(13, 40)
        accumulator.add(torch.from_numpy(ids), to_torch(bits, source))
        np.testing.assert_array_equal(to_bits(accumulator.result_rows(getattr(torch, source))[1]), expected)


def test_blocks_cover_everything_once() -> None:
    segments = _segments.by_row(torch.tensor([3, 1, 1, 7, 3, 3, 9, 2, 2, 2, 2, 2]), 9, padding_idx=None)
    assert segments.out_of_range
    assert segments.rows.tolist() == [1, 2, 3, 7]
    assert segments.counts.tolist() == [2, 5, 3, 1]
    assert segments.positions.tolist()[:2] == [1, 2] and sorted(segments.positions.tolist()) == [
        *range(6),
        *range(7, 12),
    ]
    assert segments.segment_of.tolist() == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 3]
    covered = np.zeros((4, 50), dtype=int)
    found = list(_segments.blocks(segments, 50))
    for block in found:
        covered[block.segments, block.columns] += 1
    assert (covered == 1).all()
    assert [(block.segments, block.longest, block.size) for block in found] == [(slice(0, 3), 5, 3), (slice(3, 4), 1, 1)]


@pytest.fixture
def global_state() -> Iterator[None]:
    threads, default = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(default)
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("global_state")
@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16", "float16"])
def test_global_state_of_torch_changes_nothing(source: str) -> None:
    rng = np.random.default_rng(31)
    bits = random_bits(rng, (120, 5), source)
    bits[:, 3:] &= FORMATS[source].uint.type(FORMATS[source].sign | FORMATS[source].mantissa)  # subnormal
    ids = rng.integers(0, 40, 120)
    targets = ("float64", "float32", "bfloat16")
    expected = {target: expected_rows(ids, bits, source, target)[1] for target in targets}
    token_ids, cotangent = torch.from_numpy(ids), to_torch(bits, source)
    changes: list[Callable[[], object]] = [
        lambda: torch.set_flush_denormal(True),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_num_threads(1),
    ]
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormals"
    for change in changes:
        change()
        for target in targets:
            _, got = grad_rows(token_ids, cotangent, dtype=getattr(torch, target))
            np.testing.assert_array_equal(to_bits(got), expected[target])
            accumulator = GradAccumulator(40, 5)
            accumulator.add(token_ids, cotangent)
            np.testing.assert_array_equal(to_bits(accumulator.result_rows(getattr(torch, target))[1]), expected[target])


def test_no_graph_is_built_and_no_input_is_changed() -> None:
    cotangent = torch.full((4, 2), 0.3, requires_grad=True)
    ids = torch.tensor([1, 1, 0, 1])
    before = to_bits(cotangent).copy()
    with_graph = grad_weight(ids, cotangent * 1, 2)
    with torch.no_grad():
        without = grad_weight(ids, cotangent, 2)
    with torch.inference_mode():
        inferred = grad_weight(ids, cotangent, 2)
    assert not with_graph.requires_grad
    for other in (without, inferred, grad_weight(ids, cotangent, 2)):
        np.testing.assert_array_equal(to_bits(other), to_bits(with_graph))
    np.testing.assert_array_equal(to_bits(cotangent), before)
    assert ids.tolist() == [1, 1, 0, 1]


class LargestResult(TorchDispatchMode):
    """Note how many elements the largest tensors have that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view and result._base is None:
            self.sizes.append(result.untyped_storage().nbytes())
        return result


def test_no_temporary_is_the_size_of_the_table() -> None:
    tokens, hidden, vocab_size = 64, 8, 100_000
    rng = np.random.default_rng(2)
    ids = torch.from_numpy(rng.integers(0, vocab_size, tokens) // 7 * 7)
    cotangent = to_torch(random_bits(rng, (tokens, hidden), "float32"), "float32")
    with LargestResult() as dense:
        out = grad_weight(ids, cotangent, vocab_size)
    large = {id_ for id_ in dense.sizes if id_ >= vocab_size}
    assert large == {out.untyped_storage().nbytes()}
    assert dense.sizes.count(out.untyped_storage().nbytes()) >= 1
    most = tokens * hidden * 8 * 16  # 16 bins or digits of 8 bytes are more than float32 has
    assert max(size for size in dense.sizes if size < vocab_size) <= most
    with LargestResult() as sparse:
        grad_rows(ids, cotangent, vocab_size=vocab_size)
        accumulator = GradAccumulator(vocab_size, hidden)
        accumulator.add(ids, cotangent)
        accumulator.result_rows(torch.float32)
    assert sparse.sizes and max(sparse.sizes) <= most


# --- faults that real kernels had -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SIXTEEN)
def test_257_fractional_duplicates(source: str) -> None:
    one = element(0.3, source)
    significand, exponent = exact.decode(one, FORMATS[source])
    assert summed([one] * 257, source, source) == exact.round_once(257 * significand, exponent, FORMATS[source])


@pytest.mark.parametrize("source", SIXTEEN)
def test_100_000_hundredths_over_8_rows(source: str) -> None:
    one = element(0.01, source)
    significand, exponent = exact.decode(one, FORMATS[source])
    ids = torch.arange(100_000) % 8
    cotangent = to_torch(np.array([[one]], dtype=np.uint16), source).expand(100_000, 1)
    expected = exact.round_once(12_500 * significand, exponent, FORMATS[source])
    assert to_bits(grad_weight(ids, cotangent, 8)).tolist() == [[expected]] * 8


def test_32_ids_all_zero() -> None:
    gradient = grad_weight(torch.zeros(32, dtype=torch.int32), torch.ones(32, 4, dtype=torch.bfloat16), 3)
    assert gradient.tolist() == [[32.0] * 4, [0.0] * 4, [0.0] * 4]


def test_padding_index_is_left_out() -> None:
    ids, ones = torch.tensor([0, 1, 1, 2]), torch.ones(4, 2)
    ones[0] = torch.nan
    assert grad_weight(ids, ones, 5, padding_idx=0)[:, 0].tolist() == [0.0, 2.0, 1.0, 0.0, 0.0]
    rows, gradients = grad_rows(ids, ones, padding_idx=0)
    assert rows.tolist() == [1, 2] and gradients[:, 0].tolist() == [2.0, 1.0]
    accumulator = GradAccumulator(5, 2, padding_idx=0)
    accumulator.add(ids, ones)
    assert accumulator.result(torch.float32)[:, 1].tolist() == [0.0, 2.0, 1.0, 0.0, 0.0]
    assert not to_bits(grad_weight(torch.tensor([4]), -torch.ones(1, 2), 5, padding_idx=4)).any()


def test_two_dimensional_ids() -> None:
    ids = torch.tensor([[0, 1, 2, 0], [2, 2, 3, 0]])
    cotangent = torch.arange(16.0).reshape(2, 4, 2)
    assert grad_weight(ids, cotangent, 4).tolist() == [[20.0, 23.0], [2.0, 3.0], [22.0, 25.0], [12.0, 13.0]]


def test_a_second_gradient_is_the_first() -> None:
    ids, cotangent = torch.tensor([3, 3, 1]), torch.tensor([[0.1], [0.2], [0.3]])
    first, second = grad_weight(ids, cotangent, 4), grad_weight(ids, cotangent, 4)
    np.testing.assert_array_equal(to_bits(first), to_bits(second))
    assert first.data_ptr() != second.data_ptr()


def test_2063_ids_twice(record_property: Callable[[str, object], None]) -> None:
    rng = np.random.default_rng(2063)
    ids, bits = rng.integers(0, 5, 2063), random_bits(rng, (2063, 2), "bfloat16", exponents=30)
    share = reordered_share(ids, bits, "bfloat16", [rng.permutation(2063)])
    record_property("reordered", f"{share:.1%}")
    assert share > 0, "no element of this case depends on the order in float32"
    for _ in range(2):
        check(ids, bits, "bfloat16", "bfloat16")


def test_few_tokens_apart() -> None:
    assert grad_weight(torch.tensor([0, 3]), torch.tensor([[1.0], [2.0]]), 4).tolist() == [[1.0], [0.0], [0.0], [2.0]]


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_dtype(name: str) -> None:
    ids = torch.tensor([5, 1, 5, 100], dtype=torch.int64).to(getattr(torch, name))
    cotangent = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert grad_weight(ids, cotangent, 300)[[1, 5, 100], 0].tolist() == [2.0, 5.0, 8.0]
    assert grad_rows(ids, cotangent)[0].tolist() == [1, 5, 100]
    with pytest.raises(
        IndexError, match=re.escape("1 of 4 ids out of range, the first at position (3,) with value 100")
    ):
        grad_weight(ids, cotangent, 100)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([[0, 4], [5, -1]], "2 of 4 ids out of range, the first at position (1, 0) with value 5"),
        (-6, "1 of 1 ids out of range, the first at position () with value -6"),
        ([2**63 - 1, 0], f"1 of 2 ids out of range, the first at position (0,) with value {2**63 - 1}"),
    ],
)
def test_ids_out_of_range(ids: Any, text: str) -> None:
    token_ids = torch.tensor(ids)
    cotangent = torch.ones(*token_ids.shape, 2)
    for call, work in (
        ("grad_weight", lambda: grad_weight(token_ids, cotangent, 5)),
        ("grad_rows", lambda: grad_rows(token_ids, cotangent, vocab_size=5)),
        ("GradAccumulator.add", lambda: GradAccumulator(5, 2).add(token_ids, cotangent)),
        ("grad_weight", lambda: grad_weight(token_ids, cotangent, 5, padding_idx=1)),
    ):
        with pytest.raises(IndexError) as raised:
            work()
        assert str(raised.value) == f"token_ids: got {text}, expected 0 <= id < V=5 [{call}]"


def test_large_unsigned_ids_are_not_narrowed_first() -> None:
    ids = torch.from_numpy(np.array([2**63 + 1, 2**64 - 1, 1], dtype=np.uint64))
    with pytest.raises(IndexError, match=f"2 of 3 ids out of range, the first at position .0,. with value {2**63 + 1}"):
        grad_rows(ids, torch.ones(3, 1))
    ids32 = torch.from_numpy(np.array([2**32 - 1], dtype=np.uint32))
    assert grad_rows(ids32, torch.ones(1, 1))[0].tolist() == [2**32 - 1]


def test_without_validation_a_bad_id_adds_nothing() -> None:
    ids = torch.tensor([-1, 5, 2, 2**62, -(2**63), 2])
    cotangent = torch.full((6, 3), 1.5)
    expected = [[0.0] * 3, [0.0] * 3, [3.0] * 3]
    assert grad_weight(ids, cotangent, 3, validate=False).tolist() == expected
    assert grad_rows(ids, cotangent, vocab_size=3, validate=False)[0].tolist() == [2]
    accumulator = GradAccumulator(3, 3, validate=False)
    accumulator.add(ids, cotangent)
    assert accumulator.result(torch.float32).tolist() == expected


# --- arguments ------------------------------------------------------------------------------------------------------

IDS, ONES = torch.tensor([0, 1]), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("work", "error", "text"),
    [
        (lambda: grad_weight([0], ONES, 5), TypeError, "token_ids: got list, expected torch.Tensor [grad_weight]"),
        (
            lambda: grad_weight(IDS.bool(), ONES, 5),
            TypeError,
            "token_ids: got dtype bool, expected an integer dtype [grad_weight]",
        ),
        (
            lambda: grad_rows(IDS.float(), ONES),
            TypeError,
            "token_ids: got dtype float32, expected an integer dtype [grad_rows]",
        ),
        (
            lambda: grad_weight(IDS, ONES.int(), 5),
            TypeError,
            f"cotangent: got dtype int32, expected one of {', '.join(FORMATS)} [grad_weight]",
        ),
        (lambda: grad_rows(IDS, None), TypeError, "cotangent: got NoneType, expected torch.Tensor [grad_rows]"),
        (
            lambda: grad_weight(IDS, ONES.to_sparse(), 5),
            TypeError,
            "cotangent: got layout torch.sparse_coo, expected a dense tensor [grad_weight]",
        ),
        (
            lambda: grad_weight(IDS, ONES[:1], 5),
            ValueError,
            "cotangent: got shape (1, 3), expected shape (2, H) [grad_weight]",
        ),
        (
            lambda: grad_weight(IDS[0], ONES, 5),
            ValueError,
            "cotangent: got shape (2, 3), expected shape (H,) [grad_weight]",
        ),
        (
            lambda: GradAccumulator(5, 4).add(IDS, ONES),
            ValueError,
            "cotangent: got shape (2, 3), expected shape (2, 4) [GradAccumulator.add]",
        ),
        (
            lambda: grad_weight(IDS, ONES.to("meta"), 5),
            ValueError,
            "token_ids: got device cpu, expected the cotangent's, meta [grad_weight]",
        ),
        (
            lambda: GradAccumulator(5, 3, device="meta").add(IDS, ONES),
            ValueError,
            "cotangent: got device cpu, expected the sums', meta [GradAccumulator.add]",
        ),
        (
            lambda: grad_weight(IDS, ONES, 5, dtype=torch.int32),
            TypeError,
            f"dtype: got int32, expected one of {', '.join(FORMATS)} [grad_weight]",
        ),
        (
            lambda: GradAccumulator(5, 3).result("float32"),
            TypeError,
            f"dtype: got float32, expected one of {', '.join(FORMATS)} [GradAccumulator.result]",
        ),
        (
            lambda: grad_weight(IDS, ONES, 5.0),
            TypeError,
            "vocab_size: got 5.0 of type float, expected an integer [grad_weight]",
        ),
        (lambda: grad_weight(IDS, ONES, -1), ValueError, "vocab_size: got -1, expected at least 0 [grad_weight]"),
        (lambda: GradAccumulator(5, -1), ValueError, "hidden: got -1, expected at least 0 [GradAccumulator]"),
        (
            lambda: grad_weight(IDS, ONES, 5, padding_idx=5),
            ValueError,
            "padding_idx: got 5, expected 0 <= padding_idx < V=5 [grad_weight]",
        ),
        (
            lambda: grad_rows(IDS, ONES, vocab_size=5, padding_idx=-1),
            ValueError,
            "padding_idx: got -1, expected 0 <= padding_idx < V=5 [grad_rows]",
        ),
        (
            lambda: GradAccumulator(5, 3, padding_idx=True),
            TypeError,
            "padding_idx: got True of type bool, expected an integer or None [GradAccumulator]",
        ),
        (
            lambda: GradAccumulator(5, 3).merge(None),
            TypeError,
            "other: got NoneType, expected GradAccumulator [GradAccumulator.merge]",
        ),
        (
            lambda: GradAccumulator(5, 3).merge(GradAccumulator(6, 3)),
            ValueError,
            "other: got vocab_size 6, expected vocab_size 5 [GradAccumulator.merge]",
        ),
        (
            lambda: GradAccumulator(5, 3, padding_idx=1).merge(GradAccumulator(5, 3)),
            ValueError,
            "other: got padding_idx None, expected padding_idx 1 [GradAccumulator.merge]",
        ),
    ],
)
def test_messages(work: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        work()
    assert str(raised.value) == text


# --- the accumulator ------------------------------------------------------------------------------------------------


def filled(seed: int, tokens: int = 60, source: str = "float32") -> GradAccumulator:
    rng = np.random.default_rng(seed)
    accumulator = GradAccumulator(9, 3)
    bits = random_bits(rng, (tokens, 3), source)
    accumulator.add(torch.from_numpy(rng.integers(0, 9, tokens)), to_torch(bits, source))
    return accumulator


def test_an_empty_accumulator_is_zero() -> None:
    accumulator = GradAccumulator(4, 2)
    assert not to_bits(accumulator.result(torch.bfloat16)).any()
    assert accumulator.result(torch.bfloat16).shape == (4, 2)
    accumulator.merge(GradAccumulator(4, 2))
    rows, gradients = accumulator.result_rows(torch.float64)
    assert rows.shape == (0,) and gradients.shape == (0, 2)


def test_cotangents_of_different_dtypes_add_up() -> None:
    accumulator = GradAccumulator(2, 1)
    parts = [
        (1.0, "float64"),
        (2.0**-30, "float32"),
        (2.0**100, "bfloat16"),
        (-(2.0**100), "float32"),
        (3.0, "float8_e5m2"),
    ]
    for value, name in parts:
        accumulator.add(torch.tensor([1]), torch.full((1, 1), value, dtype=torch.float64).to(getattr(torch, name)))
    assert accumulator.result(torch.float64).tolist() == [[0.0], [4.0 + 2.0**-30]]


def test_specials_survive_merging_in_any_order() -> None:
    inf, nan = math.inf, math.nan
    column_ = [[inf], [-inf], [nan], [1.0], [inf]]
    for order in itertools.permutations(range(5), 3):
        parts = [GradAccumulator(1, 1) for _ in order]
        for part, i in zip(parts, order, strict=True):
            part.add(torch.tensor([0]), torch.tensor([column_[i]]))
        parts[0].merge(parts[1])
        parts[0].merge(parts[2])
        source = FORMATS["float32"]
        elements = [int(to_bits(torch.tensor(column_[i]))[0]) for i in order]
        assert int(to_bits(parts[0].result(torch.bfloat16))[0, 0]) == exact.sum_rounded(
            elements, source, FORMATS["bfloat16"]
        )
    parts[0].add(torch.tensor([0]), torch.tensor([[inf]]))
    specials = parts[0].state_dict()["specials"]
    assert specials.max() == 1


def test_state_survives_saving_and_merges_as_integers_add() -> None:
    first, second = filled(1), filled(2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    loaded = GradAccumulator(9, 3)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    np.testing.assert_array_equal(to_bits(loaded.result(torch.float32)), to_bits(first.result(torch.float32)))

    # What an all-reduce does: the same rows and places on both ranks, and a sum of int64.
    one, two = first.state_dict(), second.state_dict()
    assert torch.equal(one["row_ids"], two["row_ids"]) and one["lowest"] == two["lowest"]
    assert one["digits"].shape == two["digits"].shape
    reduced = GradAccumulator(9, 3)
    reduced.load_state_dict({**one, "digits": one["digits"] + two["digits"]})
    first.merge(second)
    for name in FORMATS:
        dtype = getattr(torch, name)
        np.testing.assert_array_equal(to_bits(reduced.result(dtype)), to_bits(first.result(dtype)))
    assert torch.equal(reduced.state_dict()["digits"], first.state_dict()["digits"])


def test_the_digits_are_what_the_class_says() -> None:
    accumulator = GradAccumulator(2, 1)
    accumulator.add(torch.tensor([1, 1]), torch.tensor([[-(2.0**40)], [2.0**-40]], dtype=torch.float64))
    state = accumulator.state_dict()
    value = sum(int(digit) << 32 * k for k, digit in enumerate(state["digits"][:, 0, 0]))
    assert value * 2 ** (32 * (state["lowest"] + 8)) == (-(2**40) * 2**40 + 1) * 2 ** (256 - 40)
    assert state["row_ids"].tolist() == [1]
    assert all(0 <= int(digit) < 2**32 for digit in state["digits"][:-1, 0, 0])


def test_a_state_is_a_copy() -> None:
    accumulator = filled(4)
    state, before = accumulator.state_dict(), accumulator.result(torch.float64)
    state["digits"].zero_()
    np.testing.assert_array_equal(to_bits(accumulator.result(torch.float64)), to_bits(before))


def test_carrying_early_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GradAccumulator(9, 3)
    eager = GradAccumulator(9, 3)
    for seed in range(7):
        part = filled(seed)
        plain.merge(part)
        with monkeypatch.context() as patch:
            patch.setattr(_accumulator, "_MOST_UNCARRIED", 1 + seed % 3)
            eager.merge(part)
            assert eager._uncarried < 3
    assert torch.equal(plain.state_dict()["digits"], eager.state_dict()["digits"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "got version 2, expected version 1"),
        ({"version": None}, "got version None, expected version 1"),
        ({"hidden": 4}, "got hidden 4, expected hidden 3"),
        ({"vocab_size": 10}, "got vocab_size 10, expected vocab_size 9"),
        ({"padding_idx": 0}, "got padding_idx 0, expected padding_idx None"),
        ({"row_ids": None}, "got row_ids of type NoneType, expected an int64 tensor"),
        ({"row_ids": torch.tensor([1, 0])}, "got digits int64 (11, 9, 3), expected int64 (K, 2, 3)"),
        ({"row_ids": torch.arange(9).flip(0)}, "got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"row_ids": torch.arange(1, 10)}, "got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"digits": torch.zeros(11, 9, 3)}, "got digits float32 (11, 9, 3), expected int64 (K, 9, 3)"),
        ({"digits": torch.zeros(11, 9, 4).long()}, "got digits int64 (11, 9, 4), expected int64 (K, 9, 3)"),
        ({"specials": torch.zeros(1, 9, 3).long()}, "got specials int64 (1, 9, 3), expected int64 (2, 9, 3)"),
        ({"lowest": 40}, "got lowest 40 with 11 digits, expected digits from -34 to 33"),
        ({"lowest": "0"}, "got lowest '0' with 11 digits, expected digits from -34 to 33"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], text: str) -> None:
    accumulator = filled(1)
    before = accumulator.result(torch.float64)
    with pytest.raises(ValueError, match=re.escape(text)) as raised:
        accumulator.load_state_dict({**filled(2).state_dict(), **change})
    assert str(raised.value) == f"state: {text} [GradAccumulator.load_state_dict]"
    np.testing.assert_array_equal(to_bits(accumulator.result(torch.float64)), to_bits(before))


def test_an_accumulator_does_not_merge_with_itself() -> None:
    accumulator = filled(1)
    with pytest.raises(ValueError, match="got the accumulator itself, expected another one"):
        accumulator.merge(accumulator)


def test_formats_cover_the_contract() -> None:
    assert [format_of(name) for name in FORMATS] == list(FORMATS.values())
    assert all(isinstance(fmt, FloatFormat) for fmt in FORMATS.values())
