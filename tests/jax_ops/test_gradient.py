"""The exact gradient of the JAX golden against the oracle in Python integers, bit for bit.

Most cases share one shape, because every other shape is compiled anew.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from support.gradient_cases import (
    cancelling,
    expected_table,
    hard_columns,
    normal,
    packed,
    pieces,
    spread,
    state_share,
    zipf,
)

from xref import exact
from xref.bits import FORMATS, as_bits, from_bits
from xref.jax_ops.embedding import grad_rows, grad_weight
from xref.jax_ops.exact_limbs import arithmetic, placement, segment_sums, segments

pytestmark = pytest.mark.jax

TOKENS, HIDDEN = 64, 48
PAIRS = [
    *(("float32", target) for target in ("float32", "bfloat16", "float16", "float8_e4m3fn")),
    *(("bfloat16", "bfloat16"), ("float16", "float16"), ("float16", "float32")),
    *(("float8_e4m3fn", "float8_e5m2"), ("float8_e5m2", "float8_e4m3fn")),
]


def check(ids, cotangent, vocab_size: int, source: str, target: str | None = None, gradient=grad_weight):
    """Compare every bit of a gradient with the exact one, and return how many bits' worth of elements that was."""
    target = target or source
    got = gradient(ids, from_bits(cotangent, source), vocab_size, dtype=target)
    assert (got.dtype.name, got.shape) == (target, (vocab_size, cotangent.shape[-1]))
    expected = expected_table(ids, cotangent, vocab_size, source, target)
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)
    return expected


# ----- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_hard_columns(source, target):
    named = hard_columns(FORMATS[source], FORMATS[target])
    assert len(named) > 30
    if source == "float32" and FORMATS[target].exponent_bits >= 8:
        assert any(name.startswith("(2**120") and name.endswith("200 bits lower") for name in named)
    columns = list(named.values())
    for start in range(0, len(columns), HIDDEN):
        bits = packed(columns[start : start + HIDDEN], TOKENS, HIDDEN, FORMATS[source], start)
        check(np.full(TOKENS, 5), bits, 7, source, target)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_random_bit_patterns_of_the_whole_range(source, target):
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << FORMATS[source].width, (TOKENS, HIDDEN), np.uint64).astype(FORMATS[source].uint)
    check(rng.integers(0, 20, TOKENS), bits, 31, source, target)
    finite = (bits & FORMATS[source].uint.type(FORMATS[source].sign - 1)) <= FORMATS[source].largest_finite
    check(rng.integers(0, 20, TOKENS), np.where(finite, bits, FORMATS[source].uint.type(1)), 31, source, target)


def test_packed_columns_keep_their_order():
    fmt = FORMATS["float32"]
    columns = [column for name, column in hard_columns(fmt, fmt).items() if name.startswith("cancel")]
    bits = packed(columns, TOKENS, HIDDEN, fmt, 0)
    assert [[int(e) for e in column if e != fmt.sign] for column in bits.T[: len(columns)]] == columns
    assert len({tuple(column) for column in columns}) == 6


@st.composite
def sums(draw):
    """Elements of one sum, of a format: any bits, or exponents close enough to cancel and to tie."""
    source, target = draw(st.sampled_from(PAIRS))
    fmt = FORMATS[source]
    field = draw(st.integers(0, (fmt.exponent >> fmt.mantissa_bits) - 1))
    fields = st.integers(field, min(field + 2, (fmt.exponent >> fmt.mantissa_bits) - 1))
    mantissas = st.sampled_from([0, 1, fmt.mantissa >> 1, (fmt.mantissa >> 1) + 1, fmt.mantissa])
    close = st.builds(lambda s, e, m: s * fmt.sign | e << fmt.mantissa_bits | m, st.integers(0, 1), fields, mantissas)
    return source, target, draw(st.lists(close | st.integers(0, (1 << fmt.width) - 1), max_size=TOKENS))


@settings(derandomize=True, max_examples=100, deadline=None, database=None)
@given(sums())
def test_any_bit_patterns(case):
    source, target, elements = case
    bits = packed([elements], TOKENS, HIDDEN, FORMATS[source], 0)
    check(np.full(TOKENS, 1), bits, 2, source, target)


@pytest.mark.parametrize("source", ["float16", "float8_e4m3fn"])
def test_limbs_of_an_element_are_its_integer(source):
    fmt = FORMATS[source]
    bits = np.arange(1 << fmt.width, dtype=fmt.uint)
    limbs = [np.asarray(arithmetic.limb(bits, fmt, place, 7, np.dtype(np.int32))) for place in range(-7, 49, 7)]
    whole = sum(limb.astype(object) << 7 * k for k, limb in enumerate(limbs))
    finite = (bits & (fmt.sign - 1)) <= fmt.largest_finite
    for element in bits:
        significand, exponent = exact.decode(int(element), fmt) if finite[element] else (0, fmt.quantum)
        assert whole[element] == significand << (exponent - fmt.quantum + 7)


@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_sums_that_outgrow_the_limbs_of_their_elements(source):
    # Wherever the highest element ends in its limb, the last carry goes past it, in one batch of limbs or several.
    fmt = FORMATS[source]
    for distance in range(20, 80):
        bits = np.full((TOKENS, HIDDEN), (60 + distance) << fmt.mantissa_bits | fmt.mantissa, fmt.uint)
        bits[0] = 60 << fmt.mantissa_bits | 1
        bits[1:, 1::2] |= fmt.uint.type(fmt.sign)
        got = grad_weight(np.zeros(TOKENS, np.int8), from_bits(bits, source), 1)
        two = expected_table(np.zeros(TOKENS, np.int8), bits[:, :2], 1, source)
        np.testing.assert_array_equal(as_bits(np.asarray(got)), np.tile(two, HIDDEN // 2), err_msg=f"{distance}")


@pytest.mark.parametrize("mixed", [False, True])
def test_limbs_of_1023_tokens_are_as_wide_as_fits(mixed):
    # 1023 limbs of 21 ones come to 2**31 - 2**21 - 1023; of 22, they would not fit the word.
    fmt = FORMATS["float32"]
    bits = np.full((1023, 3), 127 << 23 | fmt.mantissa, fmt.uint)
    bits[:, 1] |= fmt.sign
    bits[::2, 2] |= fmt.sign
    if mixed:  # several limbs, none of them short
        bits[::3] += 21 << 23
    check(np.zeros(1023, np.int8), bits, 1, "float32")


def test_the_whole_range_of_float32_in_one_sum():
    rng = np.random.default_rng(3)
    powers = np.concatenate([1 << np.arange(23), np.arange(1, 255) << 23]).astype(np.uint32)  # all 277
    bits = np.stack([rng.choice(powers, TOKENS, replace=False) for _ in range(HIDDEN)], axis=1)
    bits[0], bits[1] = powers[0], powers[-1]
    bits[1:, 1:] |= rng.integers(0, 2, bits[1:, 1:].shape, np.uint32) << 31
    bits[1:, 9:] |= rng.integers(0, 1 << 23, bits[1:, 9:].shape, np.uint32)
    check(np.zeros(TOKENS, np.int64), bits, 1, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_equal_cotangents(dtype):
    counts = [0, 1, 2, 257, 1000, 2063, 2**16, 100_000, *[12_500] * 8]
    ids = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    numpy_dtype = from_bits(np.zeros(1, np.uint16), dtype).dtype
    bits = np.tile(as_bits(np.array([1, 0.01], numpy_dtype)), (ids.size, 1))
    expected = check(ids, bits, len(counts), dtype)
    assert (
        from_bits(expected, dtype)[:8, 0].astype(np.float32).tolist()
        == {
            "bfloat16": [0, 1, 2, 256, 1000, 2064, 2**16, 99840],  # 256 and 99840 are the nearest there are
            "float16": [0, 1, 2, 257, 1000, 2064, np.inf, np.inf],
        }[dtype]
    )
    again = grad_weight(ids, from_bits(bits, dtype), len(counts))
    np.testing.assert_array_equal(as_bits(np.asarray(again)), expected)


def test_every_result_pattern_of_bfloat16_is_placed_bit_for_bit():
    # Results that a kernel must not touch in float32: subnormals are flushed there, and NaNs quieted.
    patterns = np.arange(2**16, dtype=np.uint16)
    for hidden in (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 256):
        rows = -(-patterns.size // hidden)
        sums = np.resize(patterns, (rows, hidden))
        slots = np.random.default_rng(hidden).permutation(rows).astype(np.int32)
        got = placement.gathered(jnp.asarray(sums), slots, FORMATS["bfloat16"])
        np.testing.assert_array_equal(as_bits(np.asarray(got)), sums[slots], err_msg=f"H={hidden}")


@pytest.mark.parametrize(("mode", "hidden"), [("jit", 17), ("vmap", 65)])
def test_a_single_token_keeps_every_bfloat16(mode, hidden):
    fmt = FORMATS["bfloat16"]
    rows = -(-(2**16) // hidden)
    bits = np.resize(np.arange(2**16, dtype=np.uint16), (rows, hidden))
    expected = bits.copy()
    expected[(bits & 0x7FFF) > fmt.exponent] = fmt.nan
    expected[bits == fmt.sign] = 0
    ids, cotangent = np.arange(rows, dtype=np.int32), from_bits(bits, "bfloat16")
    table = functools.partial(grad_weight, vocab_size=rows)
    got = {
        "jit": lambda: jax.jit(table)(ids, cotangent),
        "vmap": lambda: jax.vmap(table)(ids[None], jnp.asarray(cotangent)[None])[0],
    }[mode]()
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


# ----- shapes and layouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_size", [1, 31, 100])
@pytest.mark.parametrize("hidden", [1, HIDDEN, 1185])
def test_zipf_ids(vocab_size, hidden):
    check(zipf(TOKENS, vocab_size, hidden), normal((TOKENS, hidden), vocab_size), vocab_size, "float32")


def test_ids_of_any_shape():
    bits = normal((TOKENS, HIDDEN), 5)
    check(np.int64(2), bits[0], 4, "float32")
    check(jnp.asarray(2), bits[0], 4, "float32")
    for shape in ((4, 16), (2, 4, 8), (1, 64)):
        check(zipf(shape, 9, 0), bits.reshape(*shape, HIDDEN), 9, "float32")


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
@pytest.mark.parametrize("traced", [False, True])
def test_no_ids(shape, traced):
    ids, cotangent = np.zeros(shape, np.int32), np.zeros((*shape, 6), np.float32)
    weight, rows = functools.partial(grad_weight, vocab_size=3), functools.partial(grad_rows, vocab_size=3)
    table = (jax.jit(weight) if traced else weight)(ids, cotangent)
    np.testing.assert_array_equal(as_bits(np.asarray(table)), np.zeros((3, 6), np.uint32))
    row_ids, gradient = (jax.jit(rows) if traced else rows)(ids, cotangent)
    assert (row_ids.shape, row_ids.dtype, gradient.shape) == ((0,), jnp.int32, (0, 6))
    assert weight(ids, cotangent[..., :0]).shape == (3, 0)
    assert grad_weight(ids, cotangent, 0).shape == (0, 6)


def test_strided_cotangents_and_ids():
    wide = normal((2 * TOKENS, 2 * HIDDEN), 8)
    ids = zipf(2 * TOKENS, 9, 8)
    layouts = {
        "doubled strides": wide[::2, ::2],
        "reversed": wide[TOKENS - 1 :: -1, HIDDEN - 1 :: -1],
        "transposed": np.ascontiguousarray(wide[:TOKENS, :HIDDEN].T).T,
        "stride 0 over tokens": np.broadcast_to(wide[0, :HIDDEN], (TOKENS, HIDDEN)),
        "stride 0 over columns": np.broadcast_to(wide[:TOKENS, :1], (TOKENS, HIDDEN)),
        "offset by one": wide.reshape(-1)[1 : 1 + TOKENS * HIDDEN].reshape(TOKENS, HIDDEN),
    }
    for view in layouts.values():
        view.flags.writeable = False
        check(ids[::2], view, 9, "float32")


def test_blocks_of_columns_that_do_not_divide():
    bits = normal((16, 81), 4)
    bits[3, :20] = 1  # a block of its own exponents: the smallest subnormal
    bits[:2, 70] = FORMATS["float32"].nan
    first = np.array([0, 0, 2, 0] * 4, np.int32)
    fmt = FORMATS["float32"]
    run = jax.jit(functools.partial(segment_sums._by_columns, columns=32, source=fmt, target=fmt))
    got = np.asarray(run(bits, np.where(first == np.arange(16), 16, first)))
    expected = exact.grad_rows(first, bits, fmt, fmt)
    for row in (0, 2):
        np.testing.assert_array_equal(got[row], expected[row])


def test_memory_grows_with_the_tokens_and_not_with_the_table():
    # bfloat16, because XLA would set its rows in a float32 copy of the table.
    run = jax.jit(functools.partial(grad_weight, vocab_size=2**20))
    args = jax.ShapeDtypeStruct((8,), jnp.int32), jax.ShapeDtypeStruct((8, 64), jnp.bfloat16)
    memory = run.lower(*args).compile().memory_analysis()
    assert memory.output_size_in_bytes >= 2**27
    assert memory.temp_size_in_bytes < 2**23  # four bytes a row, and little else


# ----- order, splits, modes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_100_orders(dtype, record_property):
    ids, bits = cancelling(np.arange(TOKENS // 3) % 5, TOKENS, HIDDEN, dtype)
    state_share(record_property, ids, bits, dtype)
    expected = check(ids, bits, 5, dtype)
    rng = np.random.default_rng(9)
    for _ in range(100):
        order = rng.permutation(TOKENS)
        got = grad_weight(ids[order], from_bits(bits[order], dtype), 5)
        np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


def test_2063_ids_twice(record_property):
    ids, bits = cancelling(zipf(687, 5, 1), 2063, 2, "bfloat16")
    state_share(record_property, ids, bits, "bfloat16")
    for _ in range(2):
        check(ids, bits, 5, "bfloat16")


def test_eager_equals_jit_equals_vmap(record_property):
    ids, bits = zipf((3, TOKENS), 31, 4), spread((3, TOKENS, HIDDEN), 6)
    bits[2, :5] = 3  # subnormals: one of the mapped is not ordinary
    state_share(record_property, ids[0], bits[0], "float32")
    ids, cotangent = ids.astype(np.int32), jnp.asarray(from_bits(bits, "float32"))
    table = functools.partial(grad_weight, vocab_size=31)
    expected = np.stack([check(i, b, 31, "float32") for i, b in zip(ids, bits, strict=True)])
    jitted = np.stack([np.asarray(jax.jit(table)(i, c)) for i, c in zip(ids, cotangent, strict=True)])
    np.testing.assert_array_equal(as_bits(jitted), expected)
    np.testing.assert_array_equal(as_bits(np.asarray(jax.vmap(table)(jnp.asarray(ids), cotangent))), expected)


def test_in_the_backward_pass_of_a_custom_vjp():
    @functools.partial(jax.custom_vjp)
    def embed(ids, weight):
        return weight[ids].astype(jnp.float32)

    def backward(residuals, cotangent):
        ids, like = residuals
        return None, grad_weight(ids, cotangent, like.shape[0], dtype=like.dtype)

    embed.defvjp(lambda ids, weight: (embed(ids, weight), (ids, weight)), backward)
    ids, bits = zipf(TOKENS, 31, 4).astype(np.int32), normal((TOKENS, HIDDEN), 6)
    weight = jnp.zeros((31, HIDDEN), jnp.bfloat16)
    cotangent = from_bits(bits, "float32")
    got = jax.jit(jax.grad(lambda w: (embed(ids, w) * cotangent).sum()))(weight)
    expected = expected_table(ids, bits, 31, "float32", "bfloat16")
    np.testing.assert_array_equal(as_bits(np.asarray(got)), expected)


def test_the_vjp_of_the_gradient_is_the_gather():
    ids = np.array([4, 0, 4, 9, -1], np.int32)
    table = functools.partial(grad_weight, vocab_size=5, validate=False)
    _, pull = jax.vjp(lambda cotangent: table(ids, cotangent, padding_idx=0), jnp.ones((5, 2)))
    weight = np.arange(10, dtype=np.float32).reshape(5, 2)
    np.testing.assert_array_equal(pull(weight)[0], [[8, 9], [0, 0], [8, 9], [0, 0], [0, 0]])


def test_no_float_is_computed_with():
    allowed = {"bitcast_convert_type", "reshape", "jit", "pjit", "custom_vjp_call", "platform_index", "cond", "while"}

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns")):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)

    table = functools.partial(grad_weight, vocab_size=2**14, dtype=jnp.bfloat16)
    traced = jax.make_jaxpr(table)(jnp.zeros(2**13, jnp.int32), jnp.zeros((2**13, 256), jnp.float32))
    seen = list(equations(traced.jaxpr))
    assert {"scatter-add", "clz", "while"} <= {e.primitive.name for e in seen}
    for equation in seen:
        floats = [v for v in (*equation.invars, *equation.outvars) if jnp.issubdtype(v.aval.dtype, jnp.floating)]
        assert not floats or equation.primitive.name in allowed, equation


# ----- rows -----------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_table():
    ids, bits = np.array([7, 3, 7, 30, 3, 0, 7, 12]), normal((8, 5), 3)
    table = check(ids, bits, 31, "float32")
    row_ids, rows = grad_rows(ids, from_bits(bits, "float32"))
    np.testing.assert_array_equal(row_ids, [0, 3, 7, 12, 30])
    np.testing.assert_array_equal(as_bits(np.asarray(rows)), table[row_ids])
    row_ids, rows = grad_rows(ids, from_bits(bits, "float32"), vocab_size=31, padding_idx=7)
    np.testing.assert_array_equal(row_ids, [0, 3, 12, 30])
    np.testing.assert_array_equal(as_bits(np.asarray(rows)), table[row_ids])


def test_rows_under_a_trace_are_filled_up():
    ids, bits = np.array([7, 3, 7, 30, 3, 0, 7, -2], np.int32), normal((8, 5), 3)
    row_ids, rows = jax.jit(functools.partial(grad_rows, vocab_size=31))(ids, from_bits(bits, "float32"))
    np.testing.assert_array_equal(row_ids, [0, 3, 7, 30, 31, 31, 31, 31])
    table = expected_table(ids[:7], bits[:7], 31, "float32")
    expected = np.concatenate([table[[0, 3, 7, 30]], np.zeros((4, 5), np.uint32)])
    np.testing.assert_array_equal(as_bits(np.asarray(rows)), expected)
    added = jnp.zeros((31, 5)).at[row_ids].add(rows, mode="drop")
    np.testing.assert_array_equal(as_bits(np.asarray(added)), table)


def test_padding_idx():
    ids, ones = np.array([0, 1, 1, 2, 0, 0, 0, 0]), np.ones((8, 5), np.float32)
    got = grad_weight(ids, ones, 5, padding_idx=0)
    assert as_bits(np.asarray(got))[:, 0].tolist() == as_bits(np.float32([0, 2, 1, 0, 0])).tolist()
    np.testing.assert_array_equal(grad_rows(ids, ones, padding_idx=0)[0], [1, 2])


@pytest.mark.parametrize(
    ("ids", "dtype", "hidden", "row", "total"),
    [([0] * 32 + [1] * 32, "bfloat16", HIDDEN, 0, 32), ([0, 3], "float32", 5, 3, 1)],
    ids=["32 of one id", "few tokens"],
)
def test_ones_are_counted_twice(ids, dtype, hidden, row, total):
    ids = np.array(ids)
    cotangent = jnp.ones((*ids.shape, hidden), dtype)
    for _ in range(2):
        assert grad_weight(ids, cotangent, 4)[row].tolist() == [total] * hidden


def test_ids_of_two_dimensions():
    ids, cotangent = np.array([[0, 1, 2, 0], [2, 2, 3, 0]]), np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    assert grad_weight(ids, cotangent, 4).tolist() == [[20, 23], [2, 3], [22, 25], [12, 13]]


# ----- x64 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), [("float64", "float64"), ("float64", "bfloat16")])
def test_float64_where_x64_is_on(source, target):
    columns = list(hard_columns(FORMATS[source], FORMATS[target]).values())
    # A cast through float32 would round twice: 1 + 2**-8 + 2**-40 is nearer to 1.0078125 than to 1.
    columns.insert(0, pieces((1 << 40) + (1 << 32) + 1, -40, FORMATS[source]))
    with jax.enable_x64(True):
        for start in range(0, len(columns), HIDDEN):
            bits = packed(columns[start : start + HIDDEN], TOKENS, HIDDEN, FORMATS[source], start)
            expected = check(np.full(TOKENS, 5), bits, 7, source, target)
            if start == 0 and target == "bfloat16":
                assert expected[5, 0] == 0x3F81
        ids = np.array([1, 2**32 + 1])
        with pytest.raises(IndexError):
            grad_weight(jnp.asarray(ids), jnp.ones((2, 5)), 5)
        slots, first = jax.jit(segments.of_table, static_argnums=(1, 2))(ids, 5, -1)
        assert (slots.tolist(), first.tolist()) == ([2, 0, 2, 2, 2], [0, 2])


def test_inputs_keep_their_bits_and_the_result_is_its_own():
    ids, bits = zipf(TOKENS, 9, 8).astype(np.int32), normal((TOKENS, HIDDEN), 8)
    cotangent = jnp.asarray(from_bits(bits, "float32"))
    first, second = grad_weight(ids, cotangent, 9), grad_weight(ids, cotangent, 9)
    consumed = jax.jit(lambda x: lax.neg(x), donate_argnums=0)(first)
    np.testing.assert_array_equal(as_bits(np.asarray(consumed)) ^ np.uint32(1 << 31), as_bits(np.asarray(second)))
    np.testing.assert_array_equal(as_bits(np.asarray(cotangent)), bits)
