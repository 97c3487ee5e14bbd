"""GradAccumulator of the JAX golden: the bits of one call, whatever the order, the split, the merge or the save."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gradient_cases import (
    cancelling,
    expected_table,
    hard_columns,
    multiple,
    normal,
    packed,
    spread,
    state_share,
    zipf,
)
from support.helpers import raises

from xref import exact
from xref.bits import FORMATS, as_bits, from_bits
from xref.jax_ops.embedding import GradAccumulator, grad_weight

pytestmark = pytest.mark.jax

V, TOKENS, HIDDEN = 9, 64, 48


def filled(ids, bits, source="float32", **options) -> GradAccumulator:
    accumulator = GradAccumulator(V, bits.shape[-1], **options)
    accumulator.add(ids, from_bits(bits, source))
    return accumulator


def result_bits(accumulator: GradAccumulator, dtype="float32"):
    return as_bits(np.asarray(accumulator.result(dtype)))


def assert_same_state(left: GradAccumulator, right: GradAccumulator) -> None:
    left, right = left.state_dict(), right.state_dict()
    assert left.keys() == right.keys()
    for key in left:
        np.testing.assert_array_equal(left[key], right[key], err_msg=key)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_20_splits_in_any_order_and_any_merge(dtype, record_property):
    ids, bits = cancelling(np.arange(TOKENS // 3) % V, TOKENS, HIDDEN, dtype)
    state_share(record_property, ids, bits, dtype)
    whole = filled(ids, bits, dtype)
    expected = expected_table(ids, bits, V, dtype)
    np.testing.assert_array_equal(result_bits(whole, dtype), expected)
    rng = np.random.default_rng(4)
    for _ in range(20):
        parts = np.split(rng.permutation(TOKENS), np.cumsum(rng.permutation([8, 8, 16])))
        ranks = [GradAccumulator(V, HIDDEN) for _ in range(2)]
        for part in parts:
            ranks[rng.integers(2)].add(ids[part], from_bits(bits[part], dtype))
        ranks[0].merge(ranks[1])
        np.testing.assert_array_equal(result_bits(ranks[0], dtype), expected)
        assert_same_state(ranks[0], whole)


@pytest.mark.parametrize("source", ["float32", "float8_e4m3fn"])
def test_hard_columns(source):
    columns = list(hard_columns(FORMATS[source], FORMATS["bfloat16"]).values())
    for start in range(0, len(columns), HIDDEN):
        bits = packed(columns[start : start + HIDDEN], TOKENS, HIDDEN, FORMATS[source], start)
        ids = np.full(TOKENS, 5)
        accumulator = filled(ids[::2], bits[::2], source)
        accumulator.add(ids[1::2], from_bits(bits[1::2], source))
        for target in ("bfloat16", "float8_e4m3fn"):
            expected = expected_table(ids, bits, V, source, target)
            np.testing.assert_array_equal(result_bits(accumulator, target), expected)


def test_cotangents_of_several_dtypes():
    ids, single = zipf(TOKENS, V, 1), normal((TOKENS, HIDDEN), 2)
    accumulator = filled(ids, single)
    half = from_bits(single, "float32").astype(np.float16)
    accumulator.add(ids, half)
    both = np.concatenate([single, as_bits(half.astype(np.float32))])  # exact
    expected = expected_table(np.concatenate([ids, ids]), both, V, "float32")
    np.testing.assert_array_equal(result_bits(accumulator), expected)


def test_a_carry_that_runs_through_every_limb():
    places = [16 * k - 1074 for k in range(58, 74)]  # of limbs, from 2**-146 to 2**94
    largest = [exact.round_once(2**15 - 1, place, FORMATS["float32"]) for place in places]
    bits = np.array([*largest, exact.round_once(1, places[0], FORMATS["float32"])], np.uint32)[:, None]
    ids = np.zeros(17, np.int64)
    accumulator = filled(ids[:16], bits[:16])
    assert accumulator.state_dict()["limbs"].ravel().tolist() == [2**15 - 1] * 16
    accumulator.add(ids[16:], from_bits(bits[16:], "float32"))
    assert accumulator.state_dict()["limbs"].ravel().tolist() == [-(2**15)] * 16 + [1]
    expected = expected_table(ids, bits, V, "float32")
    np.testing.assert_array_equal(result_bits(accumulator), expected)
    accumulator.add(ids, -from_bits(bits, "float32"))
    assert accumulator.state_dict()["limbs"].shape == (0, 1, 1)
    assert result_bits(accumulator).tolist() == [[0]] * V


def test_more_tokens_than_one_carry_allows():
    count = 3 * 2**14 + 5
    cotangent = np.full((count, 1), FORMATS["bfloat16"].largest_finite, np.uint16)
    cotangent[:7] = 0x3F80
    accumulator = filled(np.zeros(count, np.int8), cotangent, "bfloat16")
    largest = 255 << 120
    total = (count - 7) * largest + 7
    limbs = accumulator.state_dict()
    weights = [1 << 16 * (limbs["lowest"] + k) for k in range(limbs["limbs"].shape[0])]
    exact_total = sum(int(limb) * weight for limb, weight in zip(limbs["limbs"][:, 0, 0], weights, strict=True))
    assert exact_total == total << 1074
    assert result_bits(accumulator, "float8_e5m2")[0, 0] == FORMATS["float8_e5m2"].exponent


def test_chunks_of_tokens_whose_limbs_are_all_ones():
    # Bits 15 to 38 of two limbs: the upper one is 2**16 - 1 in every token.
    fmt, count = FORMATS["float32"], 2**17
    one = 35 << 23 | fmt.mantissa
    accumulator = filled(np.zeros(count, np.int8), np.full((count, 2), [one, fmt.sign | one], np.uint32))
    expected = multiple(count, one, "float32", "float32")
    assert result_bits(accumulator)[0].tolist() == [expected, fmt.sign | expected]


def test_merge_leaves_the_other_alone():
    ids, bits = zipf(TOKENS, V, 1), normal((TOKENS, HIDDEN), 2)
    bits[3, 0] = FORMATS["float32"].exponent
    accumulator, other = filled(ids, bits), filled(ids, bits)
    accumulator.merge(other)
    assert_same_state(other, filled(ids, bits))
    doubled = expected_table(np.tile(ids, 2), np.tile(bits, (2, 1)), V, "float32")
    np.testing.assert_array_equal(result_bits(accumulator), doubled)


def test_an_accumulator_does_not_merge_with_itself():
    accumulator = filled(np.array([2]), normal((1, 5), 1))
    with raises(ValueError, "other: got the accumulator itself, expected another one [GradAccumulator.merge]"):
        accumulator.merge(accumulator)


def test_merged_specials_stay_in_their_rows():
    infinity = from_bits(np.full((1, 5), FORMATS["float32"].exponent, np.uint32), "float32")
    one, other = GradAccumulator(V, 5), GradAccumulator(V, 5)
    for row, cotangent in ((6, infinity), (1, -infinity), (4, np.ones((1, 5), np.float32))):
        other.add(np.array([row]), cotangent)
    one.merge(other)
    assert np.asarray(one.result(np.float32))[:, 2].tolist() == [0, -np.inf, 0, 0, 1, 0, np.inf, 0, 0]
    assert_same_state(one, other)


def test_rows_and_padding():
    ids, bits = np.array([7, 3, 7, 0]), normal((4, 5), 3)
    accumulator = filled(ids, bits, padding_idx=3)
    row_ids, rows = accumulator.result_rows(jnp.float32)
    table = np.asarray(grad_weight(ids, from_bits(bits, "float32"), V, padding_idx=3))
    np.testing.assert_array_equal(row_ids, [0, 7])
    np.testing.assert_array_equal(as_bits(np.asarray(rows)), as_bits(table[[0, 7]]))
    np.testing.assert_array_equal(result_bits(accumulator), as_bits(table))


def test_nothing_added():
    accumulator = GradAccumulator(V, 5)
    accumulator.add(np.zeros((0, 2), np.int32), np.zeros((0, 2, 5), np.float32))
    assert result_bits(accumulator).tolist() == [[0] * 5] * V
    row_ids, rows = accumulator.result_rows("float16")
    assert (row_ids.shape, rows.shape, rows.dtype) == ((0,), (0, 5), jnp.float16)
    copy = GradAccumulator(V, 5)
    copy.load_state_dict(accumulator.state_dict())
    assert_same_state(copy, accumulator)


def test_a_saved_state_goes_on():
    ids, bits = zipf(TOKENS, V, 1), normal((TOKENS, HIDDEN), 2)
    half = TOKENS // 2
    bits[5, 7], bits[half + 5, 8] = FORMATS["float32"].nan, FORMATS["float32"].largest_finite
    file = io.BytesIO()
    np.savez(file, **filled(ids[:half], bits[:half]).state_dict())
    file.seek(0)
    loaded = GradAccumulator(V, HIDDEN)
    with np.load(file) as state:
        loaded.load_state_dict(state)
    loaded.add(ids[half:], from_bits(bits[half:], "float32"))
    assert_same_state(loaded, filled(ids, bits))


def test_states_added_up_as_an_all_reduce_does():
    ids, bits = np.concatenate([np.arange(V)] * 4), spread((4 * V, HIDDEN), 2)
    bits[2::V, 3] = FORMATS["float32"].exponent  # +inf on every rank
    ranks = [filled(ids[i : i + V], bits[i : i + V]).state_dict() for i in range(0, 4 * V, V)]
    lowest = min(rank["lowest"] for rank in ranks)
    highest = max(rank["lowest"] + len(rank["limbs"]) for rank in ranks)
    total = np.zeros((highest - lowest, V, HIDDEN), np.int32)
    for rank in ranks:
        start = rank["lowest"] - lowest
        total[start : start + len(rank["limbs"])] += rank["limbs"]
    reduced = GradAccumulator(V, HIDDEN)
    specials = np.sum([rank["specials"] for rank in ranks], axis=0, dtype=np.int32)
    assert specials.max() == 4
    reduced.load_state_dict({**ranks[0], "lowest": lowest, "limbs": total, "specials": specials})
    assert_same_state(reduced, filled(ids, bits))


def state(**changes):
    return {**filled(np.array([1, 4]), normal((2, 5), 3)).state_dict(), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "state: got version 2, expected version 1"),
        ({"version": None}, "state: got version None, expected version 1"),
        ({"version": True}, "state: got version True, expected version 1"),
        ({"lowest": True}, "state: got lowest True and 3 limbs, expected limbs in [0, 256)"),
        ({"limbs": np.zeros((3, 2, 5), ">i4")}, "state: got limbs >i4 (3, 2, 5), expected int32 (K, 2, 5)"),
        ({"vocab_size": 8}, "state: got vocab_size 8, expected vocab_size 9"),
        ({"hidden": 6}, "state: got hidden 6, expected hidden 5"),
        ({"padding_idx": 0}, "state: got padding_idx 0, expected padding_idx -1"),
        ({"row_ids": np.array([4, 1])}, "state: got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"row_ids": np.array([1, 9])}, "state: got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"row_ids": [1, 4]}, "state: got row_ids of type list, expected a numpy.ndarray"),
        (
            {"limbs": np.zeros((3, 2, 6), np.int32)},
            "state: got limbs int32 (3, 2, 6), expected int32 (K, 2, 5)",
        ),
        (
            {"limbs": np.zeros((3, 2, 5), np.float32)},
            "state: got limbs float32 (3, 2, 5), expected int32 (K, 2, 5)",
        ),
        (
            {"specials": np.zeros((1, 2, 5), np.int32)},
            "state: got specials of shape (1, 2, 5), expected a first axis of 0 or 2",
        ),
        (
            {"lowest": 254, "limbs": np.zeros((3, 2, 5), np.int32)},
            "state: got lowest 254 and 3 limbs, expected limbs in [0, 256)",
        ),
        (
            {"limbs": np.full((3, 2, 5), 2**30 + 1, np.int32)},
            "state: got limbs with 1073741825, expected -1073741824 to 1073741824",
        ),
        (
            {"limbs": np.full((3, 2, 5), -(2**31), np.int32)},
            "state: got limbs with -2147483648, expected -1073741824 to 1073741824",
        ),
        (
            {"specials": np.full((2, 2, 5), -1, np.int32)},
            "state: got specials with -1, expected 0 to 1073741824",
        ),
    ],
    ids=lambda value: " ".join(map(str, next(iter(value.items()))))[:24] if isinstance(value, dict) else "",
)
def test_a_state_that_does_not_fit_is_refused(changes, message):
    accumulator = filled(np.array([2]), normal((1, 5), 1))
    before = result_bits(accumulator)
    with pytest.raises(ValueError, match="state") as raised:
        accumulator.load_state_dict(state(**changes))
    assert str(raised.value) == f"{message} [GradAccumulator.load_state_dict]"
    np.testing.assert_array_equal(result_bits(accumulator), before)


@pytest.mark.parametrize("limb", [2**30, -(2**30)])
def test_the_largest_limbs_that_may_be_loaded(limb):
    accumulator = GradAccumulator(V, 1)
    limbs = np.full((3, 1, 1), limb, np.int32)
    specials, row_ids = np.zeros((0, 1, 1), np.int32), np.array([4])
    accumulator.load_state_dict({**accumulator.state_dict(), "row_ids": row_ids, "limbs": limbs, "specials": specials})
    loaded = accumulator.state_dict()
    assert ((loaded["limbs"] >= -(2**15)) & (loaded["limbs"] < 2**15)).all()
    total = sum(int(part) << 16 * k for k, part in enumerate(loaded["limbs"].ravel(), start=loaded["lowest"]))
    assert total == sum(limb << 16 * k for k in range(3))


def test_a_state_with_a_row_of_the_padding_index_is_refused():
    accumulator = GradAccumulator(V, 5, padding_idx=4)
    told = "state: got row_ids with 4, expected no row of padding_idx [GradAccumulator.load_state_dict]"
    with raises(ValueError, told):
        accumulator.load_state_dict(state(padding_idx=4))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            IndexError,
            (
                "token_ids: got 1 of 1 ids out of range, the first at position (0,) with value 9, "
                "expected 0 <= id < V=9 [GradAccumulator.add]"
            ),
            lambda a: a.add(np.array([9]), np.ones((1, 5), np.float32)),
        ),
        (
            ValueError,
            "cotangent: got shape (1, 6), expected shape (1, 5) [GradAccumulator.add]",
            lambda a: a.add(np.array([0]), np.ones((1, 6), np.float32)),
        ),
        (
            TypeError,
            "cotangent: got a trace, expected concrete arrays [GradAccumulator.add]",
            lambda a: jax.jit(lambda c: a.add(np.array([0]), c))(np.ones((1, 5), np.float32)),
        ),
        (
            TypeError,
            "cotangent: got dtype >f4, expected the machine's own byte order [GradAccumulator.add]",
            lambda a: a.add(np.array([0]), np.ones((1, 5), ">f4")),
        ),
        (
            TypeError,
            "state: got NoneType, expected what state_dict returns [GradAccumulator.load_state_dict]",
            lambda a: a.load_state_dict(None),
        ),
        (
            TypeError,
            (
                "other: got int of builtins, expected GradAccumulator of xref.jax_ops.exact_limbs.accumulator "
                "[GradAccumulator.merge]"
            ),
            lambda a: a.merge(1),
        ),
        (
            ValueError,
            "other: got hidden 6, expected hidden 5 [GradAccumulator.merge]",
            lambda a: a.merge(GradAccumulator(V, 6)),
        ),
        (
            ValueError,
            "other: got padding_idx 2, expected padding_idx -1 [GradAccumulator.merge]",
            lambda a: a.merge(GradAccumulator(V, 5, padding_idx=2)),
        ),
        (
            ValueError,
            "padding_idx: got 9, expected 0 <= padding_idx < V=9 [GradAccumulator]",
            lambda _: GradAccumulator(V, 5, padding_idx=9),
        ),
        (
            TypeError,
            (
                "dtype: got None, expected one of float64, float32, bfloat16, float16, float8_e4m3fn, "
                "float8_e5m2 [GradAccumulator.result]"
            ),
            lambda a: a.result(None),
        ),
    ],
    ids=[
        "range",
        "shape",
        "trace",
        "byte order",
        "no state",
        "other",
        "other's hidden",
        "other's padding",
        "padding",
        "dtype",
    ],
)
def test_messages(error, message, call):
    accumulator = GradAccumulator(V, 5)
    with pytest.raises(error) as raised:
        call(accumulator)
    assert str(raised.value) == message
    assert accumulator.result_rows("float32")[0].size == 0


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("merge", lambda other: other),
        ("result", lambda other: "float32"),
        ("result_rows", lambda other: "float32"),
        ("load_state_dict", lambda other: other.state_dict()),
    ],
    ids=["merge", "result", "result_rows", "load_state_dict"],
)
def test_a_trace_around_a_call_is_refused_and_leaves_nothing_behind(name, arguments, tokens):
    accumulator, other = (filled(np.array([2] * tokens, np.int64), normal((tokens, 5), 1)) for _ in range(2))
    argument = arguments(other)
    with raises(TypeError, f"trace: got one around the call, expected none [GradAccumulator.{name}]"):
        jax.jit(lambda c: (getattr(accumulator, name)(argument), c)[1])(1.0)
    assert_same_state(accumulator, other)
    np.testing.assert_array_equal(result_bits(accumulator), result_bits(other))


def test_a_state_is_read_under_a_trace():
    accumulator, states = filled(np.array([2]), normal((1, 5), 1)), []
    jax.jit(lambda c: (states.append(accumulator.state_dict()), c)[1])(1.0)
    copy = GradAccumulator(V, 5)
    copy.load_state_dict(*states)
    assert_same_state(copy, accumulator)


def test_a_cotangent_that_cannot_be_read_adds_no_rows():
    accumulator, cotangent = GradAccumulator(V, 5), jnp.ones((1, 5))
    cotangent.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        accumulator.add(np.array([2]), cotangent)
    assert accumulator.state_dict()["row_ids"].size == 0


def test_rows_of_no_elements_are_named():
    accumulator, ids = GradAccumulator(V, 0), np.array([0, 4, 1])
    accumulator.add(ids, np.ones((3, 0), np.float32))
    accumulator.load_state_dict(accumulator.state_dict())
    other = GradAccumulator(V, 0)
    other.merge(accumulator)
    for one in (accumulator, other):
        row_ids, rows = one.result_rows("float32")
        assert (row_ids.tolist(), rows.shape) == ([0, 1, 4], (3, 0))
        assert one.result("float32").shape == (V, 0)


def test_unchecked_ids_out_of_range_add_nothing():
    ids, bits = np.array([2, 9, -1, 2**40]), normal((4, 5), 3)
    accumulator = filled(ids, bits, validate=False)
    np.testing.assert_array_equal(accumulator.result_rows("float32")[0], [2])


def test_float64_where_x64_is_on():
    with jax.enable_x64(True):
        accumulator = filled(np.array([1, 1, 1]), as_bits(np.array([[1.0], [2.0**-8], [2.0**-40]])), "float64")
        accumulator.add(np.array([1]), np.float32([[2.0**-149]]))
        assert result_bits(accumulator, "bfloat16")[1, 0] == 0x3F81
        assert result_bits(accumulator, "float64")[1, 0] == as_bits(np.float64([1 + 2.0**-8 + 2.0**-40]))[0]
