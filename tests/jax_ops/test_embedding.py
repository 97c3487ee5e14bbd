"""The JAX golden: every bit of every dtype, in every shape, layout, id dtype and way of calling, on the CPU."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import (
    HIDDEN,
    LAYOUTS,
    NARROW_DTYPES,
    NARROW_VERBS,
    VERBS,
    WIDE_VERBS,
    WIDENED_DTYPES,
    answer,
    assert_same_bits,
    every_pattern,
    load,
    raises,
    random_bits,
    run_golden,
    special_rows,
)

from xref import exact
from xref.bits import FORMATS, as_bits, from_bits
from xref.inputs import make_ids, make_table

pytestmark = pytest.mark.jax

if importlib.util.find_spec("jax"):  # every file can be collected without a framework
    import jax
    import jax.numpy as jnp

    from xref.jax_ops import _rows
    from xref.jax_ops import embedding as golden
    from xref.jax_ops.arrays import address_range, bits_of, precision
    from xref.jax_ops.memory import peak_extra_bytes

ID_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SUB_BYTE_ID_DTYPES = ("int2", "uint2", "int4", "uint4")
BOTH_VERBS = ("forward", "forward_fp32")
SAMPLE = (
    *(("forward", "float32"), ("forward", "bfloat16"), ("forward_fp32", "float16")),
    *(("forward", "float8_e4m3fn"), ("forward_fp32", "float8_e4m3fn")),
)
"""For what no dtype has to itself: every program is compiled, which takes its time."""
IDS = np.array([[4, 0, 2, 4], [1, 1, 3, 0]])
BAD = np.array([[0, 4, 5, -1], [-5, -6, 2**31 - 1, -(2**31)], [3, 1, 127, 0]], np.int32)


def small_table(dtype, hidden=33):
    return random_bits((5, hidden), FORMATS[dtype], seed=hidden)


def eager(call):
    return call


def jit(call):
    return jax.jit(call)


def vmap(call):
    return jax.vmap(call, in_axes=(0, None))


def vjp(call):
    return lambda ids, table: jax.vjp(lambda leaf: call(ids, leaf), table)[0]


def run(verb, ids, elements, dtype, mode=eager, **options):
    """Call the golden on NumPy arrays: elements that lie in memory in any way, ids that JAX would narrow."""

    def call(tokens, weight):
        return getattr(golden, verb)(tokens, weight, **options)

    with precision(dtype):
        return bits_of(mode(call)(ids, from_bits(elements, dtype)))


def poisoned(verb, ids, table, dtype):
    """The exact answer for ids that may name no row: quiet NaN there, and the right rows beside it."""
    inside = (ids >= 0) & (ids < table.shape[0])
    expected = answer(verb, np.where(inside, ids, 0), table, dtype).copy()
    expected[~inside] = FORMATS["float32" if verb == "forward_fp32" else dtype].nan
    return expected


# Every bit


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("verb", BOTH_VERBS)
@pytest.mark.parametrize("mode", [eager, jit, vmap, vjp], ids=lambda mode: mode.__name__)
def test_every_bfloat16_pattern_comes_back_in_every_mode(mode, verb, hidden):
    """Where XLA computes 16-bit floats in float32, the last columns of a row are where subnormals and NaNs are lost."""
    table = every_pattern(FORMATS["bfloat16"], hidden)
    ids = np.arange(table.shape[0], dtype=np.int32)
    assert_same_bits(run(verb, ids, table, "bfloat16", mode), answer(verb, ids, table, "bfloat16"))


@pytest.mark.parametrize("hidden", [16, 33, 1024])
@pytest.mark.parametrize(("verb", "dtype"), [param for param in NARROW_VERBS if param.values[1] != "bfloat16"])
def test_every_pattern_comes_back_and_the_special_ones_from_every_column(verb, dtype, hidden):
    table = every_pattern(FORMATS[dtype], hidden)
    ids = np.arange(table.shape[0])
    assert_same_bits(run(verb, ids, table, dtype), answer(verb, ids, table, dtype))


@pytest.mark.parametrize(("verb", "dtype"), WIDE_VERBS)
def test_a_million_random_patterns_come_back_and_the_special_ones_from_every_column(verb, dtype):
    table = np.concatenate([random_bits((1009, 1000), FORMATS[dtype]), special_rows(FORMATS[dtype], 1000)])
    ids = make_ids("distinct", (table.shape[0],), table.shape[0], "int32")
    for mode in (eager, jit, vmap, vjp):
        assert_same_bits(run(verb, ids, table, dtype, mode), answer(verb, ids, table, dtype))


# Form


SHAPES = [(), (1,), (0,), (2, 0, 3), (2, 3), (2, 1, 3)]


@pytest.mark.parametrize(
    ("verb", "dtype", "shape"),
    [pytest.param(*param.values, (2, 1, 3), id=f"{param.id}-(2, 1, 3)") for param in VERBS]
    + [pytest.param(verb, "bfloat16", s, id=f"{verb}-bfloat16-{s}") for verb in BOTH_VERBS for s in SHAPES[:-1]],
)
def test_result_has_the_shape_of_the_ids_and_then_the_row(verb, dtype, shape):
    table = small_table(dtype)
    ids = (np.arange(int(np.prod(shape))) * 3 % 5).reshape(shape)
    with precision(dtype):
        weight = jnp.asarray(from_bits(table, dtype))
        out = getattr(golden, verb)(ids, weight)
    assert isinstance(out, jax.Array)
    assert out.dtype.name == (dtype if verb == "forward" else "float32")
    assert out.devices() == weight.devices()
    assert_same_bits(bits_of(out), answer(verb, ids, table, dtype))


@pytest.mark.parametrize("hidden", [0, 1])
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_rows_may_be_of_no_or_one_element(verb, hidden):
    for shape in ((), (0,), (2, 3)):
        table, ids = small_table("bfloat16", hidden), np.zeros(shape, np.int32)
        for mode in (eager, jit):
            assert_same_bits(run(verb, ids, table, "bfloat16", mode), answer(verb, ids, table, "bfloat16"))


@pytest.mark.parametrize("id_dtype", ID_DTYPES + SUB_BYTE_ID_DTYPES)
def test_ids_of_every_integer_dtype_name_the_same_rows(id_dtype):
    table = random_bits((300, 33), FORMATS["bfloat16"])
    info = jnp.iinfo(id_dtype)
    last = min(299, int(info.max))
    ids = np.array([[0, 1, last], [last // 2, last - 1, 0]])
    given = ids.astype(jnp.dtype(id_dtype))
    for verb in BOTH_VERBS:
        assert_same_bits(run(verb, given, table, "bfloat16"), answer(verb, ids, table, "bfloat16"))
    with precision("float64" if info.bits == 64 else "bfloat16"):
        tokens, weight = jnp.asarray(given), jnp.asarray(from_bits(table, "bfloat16"))
        assert tokens.dtype == id_dtype
        for mode in (eager, jit):
            assert_same_bits(bits_of(mode(golden.forward)(tokens, weight)), table[ids])


def test_the_id_dtypes_tested_are_all_that_jax_has():
    named = {name for name in dir(jnp) if re.fullmatch(r"u?int\d+", name)}
    # JAX names integers of one bit where ml_dtypes has them, and makes no arrays of them.
    assert named - {"int1", "uint1"} == set(ID_DTYPES + SUB_BYTE_ID_DTYPES)


def test_a_numpy_scalar_is_a_zero_dimensional_id():
    table = small_table("float32")
    for scalar in (np.int64(3), np.uint8(3)):
        assert_same_bits(run("forward", scalar, table, "float32"), table[3])


@pytest.mark.parametrize("mode", [eager, jit], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_no_ids_of_an_empty_table_give_an_empty_result(verb, mode):
    for shape, hidden in (((0,), 4), ((2, 0), 4), ((0,), 0)):
        table = np.zeros((0, hidden), np.uint16)
        assert run(verb, np.zeros(shape, np.int32), table, "bfloat16", mode).shape == (*shape, hidden)


# Layouts and purity


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_table_may_lie_in_memory_in_any_way_and_is_never_written(verb, dtype):
    dense = small_table(dtype)
    expected = answer(verb, IDS, dense, dtype)
    for layout in LAYOUTS.values():
        laid = layout(dense)
        assert_same_bits(run(verb, IDS, laid, dtype), expected)
        assert_same_bits(laid, dense)
        laid.setflags(write=False)
        assert_same_bits(run(verb, IDS, laid, dtype), expected)


@pytest.mark.parametrize("id_dtype", ["int32", "int64"])
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_ids_may_lie_in_memory_in_any_way_and_are_never_written(verb, id_dtype):
    table = small_table("bfloat16")
    ids = IDS.astype(id_dtype)
    for layout in (*LAYOUTS.values(), lambda array: np.ascontiguousarray(array[::-1])[::-1]):
        laid = layout(ids)
        laid.setflags(write=False)
        assert_same_bits(run(verb, laid, table, "bfloat16"), answer(verb, IDS, table, "bfloat16"))
        assert np.array_equal(laid, ids)


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_inputs_stay_alive_and_the_result_has_memory_of_its_own(verb, dtype):
    """The result has the table's shape and dtype, where a donated table would be deleted."""
    elements = small_table(dtype)
    with precision(dtype):
        weight, ids = jnp.asarray(from_bits(elements, dtype)), jnp.arange(5, dtype=jnp.int32)
        for mode in (eager, jit):
            out = mode(getattr(golden, verb))(ids, weight)
            first, last = address_range(out)
            for other in (weight, ids):
                assert not other.is_deleted()
                begin, end = address_range(other)
                assert last <= begin or end <= first
            assert_same_bits(bits_of(weight), elements)
            assert np.array_equal(ids, np.arange(5))


# Ways of calling


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_validation_changes_nothing_for_ids_in_range(verb, dtype):
    table = small_table(dtype)
    assert_same_bits(run(verb, IDS, table, dtype, validate=False), answer(verb, IDS, table, dtype))


@pytest.mark.parametrize("verb", BOTH_VERBS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_vmap_over_tables_and_over_both(verb, dtype):
    tables = random_bits((4, 5, 7), FORMATS[dtype])
    ids = IDS.astype(np.int32)
    ways = {
        (None, 0): (ids, tables, [(ids, table) for table in tables]),
        (None, 2): (ids, np.moveaxis(tables, 0, 2), [(ids, table) for table in tables]),
        (0, 0): (ids, tables[:2], list(zip(ids, tables[:2], strict=True))),
        (1, 1): (ids, np.moveaxis(tables, 0, 1), list(zip(ids.T, tables, strict=True))),
    }
    for in_axes, (tokens, weights, entries) in ways.items():
        got = run(verb, tokens, weights, dtype, lambda call, axes=in_axes: jax.vmap(call, in_axes=axes))
        assert_same_bits(got, np.stack([answer(verb, i, np.ascontiguousarray(w), dtype) for i, w in entries]))


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_vmap_within_vmap_and_jit_around_it(verb):
    tables = random_bits((2, 5, 7), FORMATS["bfloat16"])
    expected = np.stack([answer(verb, IDS, table, "bfloat16") for table in tables])

    def nested(call):
        return jax.jit(jax.vmap(vmap(call), in_axes=(None, 0)))

    assert_same_bits(run(verb, IDS.astype(np.int32), tables, "bfloat16", nested), expected)


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_vmap_over_no_entries(verb):
    tables, ids = np.zeros((0, 5, 7), np.uint16), IDS.astype(np.int32)
    got = run(verb, ids, tables, "bfloat16", lambda call: jax.vmap(call, in_axes=(None, 0)))
    assert got.shape == (0, 2, 4, 7)
    assert run(verb, ids[:0], tables.reshape(0, 7), "bfloat16", vmap).shape == (0, 4, 7)


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_ids_that_the_trace_knows_are_checked_in_it(verb):
    """Only the table is traced: the ids have values, so that bad ones raise."""
    message = (
        "token_ids: got 1 of 2 ids out of range, the first at position (1,) with value 5,"
        f" expected 0 <= id < V=5 [{verb}]"
    )
    ids = np.array([0, 5])
    call = getattr(golden, verb)
    with raises(IndexError, message):
        jax.jit(lambda table: call(ids, table))(jnp.zeros((5, 3)))
    with raises(IndexError, message):
        jax.grad(lambda table: call(ids, table).sum())(jnp.zeros((5, 3)))


class TestOperator:
    @pytest.mark.parametrize("verb", BOTH_VERBS)
    def test_gives_what_the_functions_give(self, verb):
        op, table = golden.NativeEmbeddingOp(), small_table("bfloat16")
        expected = answer(verb, IDS, table, "bfloat16")
        calls = (op, op.forward) if verb == "forward" else (op.forward_fp32,)
        for call in calls:
            assert_same_bits(bits_of(call(IDS, from_bits(table, "bfloat16"))), expected)

    def test_refuses_bad_ids(self):
        with pytest.raises(IndexError, match="expected 0 <= id < V=5"):
            golden.NativeEmbeddingOp()(np.array([5]), jnp.zeros((5, 3)))


# float64


def test_a_float64_table_needs_x64_and_nothing_is_narrowed_without_it():
    table = np.full((5, 3), 1 / 3)
    message = "weight: got dtype float64, expected jax_enable_x64, or JAX would narrow it to float32 [forward]"
    with precision("float32"), raises(TypeError, message):
        golden.forward(IDS, table)
    with precision("float64"):
        assert np.array_equal(golden.forward(IDS, table), np.full((2, 4, 3), 1 / 3))


@pytest.mark.parametrize("x64", ["float32", "float64"], ids=["x64 off", "x64 on"])
def test_a_float64_table_is_never_widened(x64):
    message = "weight: got dtype float64, expected a dtype that float32 can hold [forward_fp32]"
    with precision(x64), raises(TypeError, message):
        golden.forward_fp32(IDS, np.zeros((5, 3)))


# Ids out of range where nothing can be raised


def special_table(dtype):
    """Five rows of patterns that a select in a wider float would change, and between them random ones."""
    patterns = special_rows(FORMATS[dtype], 1).reshape(-1)
    table = small_table(dtype)
    table[:, ::2] = np.stack([np.resize(np.roll(patterns, shift), 17) for shift in range(5)])
    return table


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_traced_ids_out_of_range_give_rows_of_quiet_nan_and_leave_their_neighbours_alone(verb, dtype):
    table = special_table(dtype)
    for mode in (jit, vmap) if dtype == "bfloat16" else (jit,):
        assert_same_bits(run(verb, BAD, table, dtype, mode), poisoned(verb, BAD, table, dtype))


@pytest.mark.parametrize("hidden", [1, 16, 17, 33, 64, 100])
def test_traced_poison_beside_every_bfloat16_pattern(hidden):
    table = every_pattern(FORMATS["bfloat16"], hidden)
    ids = np.arange(table.shape[0], dtype=np.int32)
    ids[::7] = np.where(ids[::7] % 2, -1, table.shape[0])
    assert_same_bits(run("forward", ids, table, "bfloat16", jit), poisoned("forward", ids, table, "bfloat16"))


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_concrete_ids_out_of_range_are_poison_too_where_they_are_not_validated(verb):
    table = small_table("bfloat16")
    assert_same_bits(run(verb, BAD, table, "bfloat16", validate=False), poisoned(verb, BAD, table, "bfloat16"))


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(np.array([0, 2**32 + 1, 3, -(2**32) + 1]), id="int64"),
        pytest.param(np.array([0, 2**32 + 1, 2**63, 2**64 - 1], np.uint64), id="uint64"),
        pytest.param(np.array([0, 2**31, 2**32 - 1, 4], np.uint32), id="uint32"),
    ],
)
def test_wide_numpy_ids_are_not_narrowed_into_range_with_x64_off(ids):
    table = small_table("float32")
    expected = poisoned("forward", ids.astype(np.int64), table, "float32")
    assert_same_bits(run("forward", ids, table, "float32", validate=False), expected)


@pytest.mark.parametrize(
    ("id_dtype", "values"),
    [
        ("int2", [-2, -1, 0, 1]),
        ("uint2", [0, 1, 2, 3]),
        ("int4", [-8, -1, 0, 7]),
        ("uint4", [0, 5, 8, 15]),
        ("int8", [-128, -1, 4, 127]),
        ("uint8", [5, 128, 4, 255]),
        ("int16", [-(2**15), 256, 4, 2**15 - 1]),
        ("uint16", [2**15, 256, 4, 2**16 - 1]),
        ("int32", [-(2**31), 256, 4, 2**31 - 1]),
        ("uint32", [2**31, 256, 4, 2**32 - 1]),
        ("int64", [-(2**63), 2**32 + 1, 4, 2**63 - 1]),
        ("uint64", [2**63, 2**32 + 1, 4, 2**64 - 1]),
    ],
)
@pytest.mark.parametrize("vocab", [5, 300])
def test_traced_ids_of_every_dtype_are_poison_where_they_name_no_row(vocab, id_dtype, values):
    table = random_bits((vocab, 9), FORMATS["bfloat16"])
    wide = np.array([value if value < 2**63 else -1 for value in values])
    given = np.array(values, id_dtype if id_dtype.endswith("64") else np.int64).astype(jnp.dtype(id_dtype))
    with precision("float64" if id_dtype.endswith("64") else "float32"):
        ids = jnp.asarray(given)
        out = jax.jit(golden.forward)(ids, from_bits(table, "bfloat16"))
    assert_same_bits(bits_of(out), poisoned("forward", wide, table, "bfloat16"))


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_any_traced_id_of_an_empty_table_is_poison(verb, dtype):
    fmt = FORMATS["float32" if verb == "forward_fp32" else dtype]
    got = run(verb, np.array([0, -1, 7], np.int32), np.zeros((0, 3), FORMATS[dtype].uint), dtype, jit)
    assert_same_bits(got, np.full((3, 3), fmt.nan, fmt.uint))


def test_any_id_of_an_empty_table_is_poison_where_it_is_not_validated():
    got = run("forward", np.array([0, 2**32]), np.zeros((0, 3), np.uint16), "bfloat16", validate=False)
    assert_same_bits(got, np.full((2, 3), 0x7FC0, np.uint16))


# Gradient: that it is there, and where it must be zero. Its roundings are not this file's subject.


@pytest.mark.parametrize(("verb", "dtype"), [param for param in VERBS if not param.values[1].startswith("float8")])
def test_gradient_is_dense_and_counts_and_leaves_other_rows_plus_zero(verb, dtype):
    ids = np.array([[6, 0, 2, 6], [0, 6, 3, 0]], np.int32)
    cotangent = np.arange(1, 25, dtype=np.float32).reshape(2, 4, 3)

    def gradient(tokens, table):
        out, pull = jax.vjp(lambda leaf: getattr(golden, verb)(tokens, leaf), table)
        return pull(cotangent.astype(out.dtype))[0]

    with precision(dtype):
        grad = jax.jit(gradient)(ids, from_bits(random_bits((8, 3), FORMATS[dtype]), dtype))
    assert (grad.shape, grad.dtype.name) == ((8, 3), dtype)
    counted = np.asarray(grad).astype(np.float64)[[0, 2, 3, 6]]
    assert counted.tolist() == [[39, 42, 45], [7, 8, 9], [19, 20, 21], [27, 30, 33]]
    assert not bits_of(grad)[[1, 4, 5, 7]].any()


def test_traced_ids_out_of_range_add_nothing_to_the_gradient():
    ids = np.array([5, -1, 2, -5, 2**31 - 1, 2], np.int32)

    @jax.jit
    def gradient(tokens, table):
        out, pull = jax.vjp(lambda leaf: golden.forward(tokens, leaf), table)
        return pull(jnp.ones_like(out))[0]

    assert gradient(ids, jnp.zeros((5, 2))).tolist() == [[0, 0], [0, 0], [2, 2], [0, 0], [0, 0]]


def test_gradient_of_a_single_id_without_dimension_and_of_none():
    grad = jax.grad(lambda table: golden.forward(np.array(2), table).sum())
    assert grad(jnp.zeros((4, 2))).tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    grad = jax.grad(lambda table: golden.forward(np.zeros((2, 0), np.int32), table).sum())
    assert not bits_of(grad(jnp.zeros((4, 2)))).any()


# Memory, last: the shape of a real model


@pytest.mark.parametrize(
    ("verb", "dtype"),
    [("forward", "bfloat16"), ("forward_fp32", "bfloat16"), ("forward_fp32", "float16"), ("forward_fp32", "float32")],
    ids=str,
)
def test_a_call_holds_little_more_than_its_output(verb, dtype):
    """What XLA plans for the shape of Qwen3-8B and 8192 tokens."""
    ids = jax.ShapeDtypeStruct((8, 1024), jnp.int32)
    weight = jax.ShapeDtypeStruct((151936, 4096), jnp.dtype(dtype))
    output = 8192 * 4096 * (4 if verb == "forward_fp32" else weight.dtype.itemsize)
    assert output <= peak_extra_bytes(getattr(golden, verb), ids, weight) < 1.2 * output


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_memory_of_a_call_does_not_grow_with_the_table(verb, dtype):
    ids = jax.ShapeDtypeStruct((100,), jnp.int32)
    peaks = {
        peak_extra_bytes(getattr(golden, verb), ids, jax.ShapeDtypeStruct((vocab, 512), jnp.dtype(dtype)))
        for vocab in (100, 10_000, 1_000_000)
    }
    assert len(peaks) == 1


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_a_table_past_2_to_the_31_elements_is_looked_up_on_both_sides_of_it(verb):
    ids = np.array([0, 32767, 32768, 32769, 39999])
    table = make_table("sparse", 40000, 65536, FORMATS["bfloat16"], touched=ids)
    # On the CPU a device array shares an aligned array's memory, which is resident only where it is looked up.
    out = getattr(golden, verb)(ids, jax.device_put(from_bits(table, "bfloat16")))
    assert_same_bits(bits_of(out), answer(verb, ids, table, "bfloat16"))


def test_wide_ids_of_a_jax_array_are_not_narrowed_once_x64_is_off():
    with precision("float64"):
        ids = jnp.array([2**32 + 1, 1])
    assert ids.dtype == "int64"
    with pytest.raises(IndexError, match="1 of 2 ids out of range"):
        golden.forward(ids, jnp.ones((5, 2)))
    rows = golden.forward(ids, jnp.ones((5, 2)), validate=False)
    assert np.isnan(np.asarray(rows)[0]).all()
    assert not np.isnan(np.asarray(rows)[1]).any()


def test_ids_on_another_device_are_refused():
    code = """
import jax, jax.numpy as jnp
from xref.jax_ops import embedding as golden
one, two = jax.devices()
try:
    golden.forward(jax.device_put(jnp.array([1]), two), jax.device_put(jnp.ones((5, 2)), one))
except ValueError as error:
    assert str(error) == f"token_ids: got device {two}, expected the table's, {one} [forward]", error
else:
    raise AssertionError("not refused")
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_a_table_that_is_a_constant_of_the_program_keeps_every_bit(dtype):
    table = every_pattern(FORMATS[dtype], 64)
    weight = jnp.asarray(from_bits(table, dtype))
    rows = jax.jit(lambda ids: golden.forward(ids, weight))(jnp.arange(table.shape[0]))
    assert_same_bits(bits_of(rows), table)


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_an_output_that_is_used_twice_keeps_every_bit(dtype):
    table = every_pattern(FORMATS[dtype], 64)

    def twice(ids, weight):
        return golden.forward(ids, weight), golden.forward_fp32(ids, weight).sum()

    rows, _ = jax.jit(twice)(jnp.arange(table.shape[0]), jnp.asarray(from_bits(table, dtype)))
    assert_same_bits(bits_of(rows), table)


def test_a_table_sharded_over_its_rows_keeps_every_bit():
    code = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xref import bits
from xref.jax_ops import embedding as golden
table = np.arange(1 << 16, dtype="u2").reshape(1024, 64)
for dtype in ("bfloat16", "float16"):
    place = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    weight = jax.device_put(bits.from_bits(table, dtype), place)
    for call in (golden.forward, jax.jit(golden.forward)):
        got = bits.as_bits(np.asarray(call(np.arange(1024), weight)))
        assert (got == table).all(), (dtype, int((got != table).sum()))
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_time_spans_are_no_ids():  # NumPy counts them among its integers
    message = r"^token_ids: got dtype timedelta64\[s\], expected an integer dtype \[forward\]$"
    with pytest.raises(TypeError, match=message):
        golden.forward(np.array([1], "m8[s]"), np.zeros((5, 2), np.float32))


@pytest.mark.parametrize("id_dtype", ["uint8", "int32"])
@pytest.mark.parametrize("vocab", [1, 2, 200])
@pytest.mark.parametrize("hidden", [1, 16, 65])
def test_the_poison_of_bad_ids_never_touches_the_bits_of_good_ones(vocab, hidden, id_dtype):
    """Where a compiler can tell the mask's two values it makes a select of it, on some CPUs in float32: for one row,
    for ids of eight bits. Subnormals and NaNs among the elements show it.
    """
    bits = make_table("hashed", vocab, hidden, FORMATS["bfloat16"])
    bits[:, ::3] &= np.uint16(0x807F)
    table = jnp.asarray(from_bits(bits, "bfloat16"))
    for shape in ((), (1,), (64,), (7, 3)):
        ids = (np.arange(np.prod(shape, dtype=int)) * 37 % vocab).astype(id_dtype).reshape(shape)
        for call in (golden.forward, jax.jit(golden.forward)):
            np.testing.assert_array_equal(bits_of(call(jnp.asarray(ids), table)), bits[ids])


@pytest.mark.parametrize("dtype", WIDENED_DTYPES)
@pytest.mark.parametrize("hidden", [1, 2, 3, 5, 8, 33])
def test_a_table_of_one_row_keeps_every_bit_and_poisons_every_other_id(dtype, hidden):
    """Such a table's mask was one that LLVM knows for a comparison: the last column lost its subnormals to float32."""
    framework = load("jax")
    table = np.arange(1, hidden + 1).astype(FORMATS[dtype].uint)[None]  # subnormals
    for ids in (np.array(0, np.int32), np.zeros(1, np.int32), np.zeros((3, 7), np.int32)):
        got = run_golden(framework, "forward", ids, table, dtype)
        assert_same_bits(got, answer("forward", ids, table, dtype))
    wild = np.array([0, 1, -1, 2, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1, -(2**31), -(2**30)], np.int32)
    traced = load("jax", "modes").traced(framework.golden.forward)
    got = framework.bits_of(traced(framework.put(wild, None, "cpu"), framework.put(table, dtype, "cpu")))
    expected = np.where((wild == 0)[:, None], table, FORMATS[dtype].nan).astype(FORMATS[dtype].uint)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("target", ["bfloat16", "float32"])
def test_rows_first_as_on_gpus_and_tpus(target):
    """Bit by bit what a CPU gives, though XLA takes the other way there; integers come out, which no select spoils."""
    fmt, wanted = FORMATS["bfloat16"], FORMATS[target]
    table = from_bits(np.arange(500 * 3, dtype=np.uint16).reshape(500, 3) * np.uint16(43), "bfloat16")
    ids = np.array([[0, 499, 7], [-1, 500, 2**31 - 1]], np.int32)
    run = jax.jit(functools.partial(_rows._rows_first, fmt=fmt, target=wanted))
    got = np.asarray(run(ids, jnp.asarray(table)))
    rows = as_bits(table)[[0, 499, 7]]
    np.testing.assert_array_equal(got[0], rows if target == "bfloat16" else exact.widen(rows, fmt))
    assert (got[1] == wanted.nan).all()
