"""What the frameworks do themselves, since the goldens are written as they are because of it.

A claim about a framework is told (`pytest -rP` shows it), and may cease to hold with a version: that fails nothing.
What is asserted is that our golden is right whether the claim holds or not.
"""

from __future__ import annotations

import functools
import importlib.util
import sys

import ml_dtypes
import numpy as np
import pytest
from support.helpers import (
    FRAMEWORKS,
    NARROW_DTYPES,
    VERBS,
    answer,
    assert_same_bits,
    load,
    raises,
    random_bits,
    refuses_ids,
    run_golden,
    values,
)

from xref import bits, exact
from xref.bits import FORMATS

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch
    import torch.nn.functional as F
if importlib.util.find_spec("jax"):
    import jax
    import jax.numpy as jnp

BOTH_VERBS = ("forward", "forward_fp32")
SIGNALLING = 0x7F81


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Each framework's `framework` module, whose `golden` is what is tested."""
    return load(request.param)


def fact(claim, check):
    """Tell whether a claim about a framework holds in the version at hand."""
    try:
        told = "holds" if check() else "does not hold here"
    except Exception as error:  # another way in which a claim does not hold
        told = f"does not hold here: {type(error).__name__}"
    sys.stdout.write(f"{claim}: {told}\n")


def in_bits(array):
    return np.asarray(array).view(np.uint16)


@pytest.mark.jax
@pytest.mark.parametrize("hidden", [16, 33, 65])
def test_take_under_jit_is_not_always_a_copy(hidden):
    elements = np.full((5, hidden), SIGNALLING, np.uint16)
    ids = np.array([0, 2], np.int32)
    table = bits.from_bits(elements, "bfloat16")
    for mode in (None, "fill", "clip", "wrap"):
        take = jax.jit(functools.partial(jnp.take, axis=0, mode=mode))
        fact(
            f"jnp.take under jit, mode {mode}, changes signalling NaNs",
            lambda take=take: (in_bits(take(table, ids)) != SIGNALLING).any(),
        )
    assert_same_bits(in_bits(jax.jit(load("jax").golden.forward)(ids, table)), elements[:2])


@pytest.mark.jax
@pytest.mark.parametrize("hidden", [16, 17, 33, 64, 65])
def test_take_of_a_bit_cast_view_under_jit_is_not_always_a_copy_either(hidden):
    elements = np.full((5, hidden), SIGNALLING, np.uint16)
    ids = np.array([0, 2], np.int32)
    table = bits.from_bits(elements, "bfloat16")

    def by_integers(i, t):
        rows = jnp.take(jax.lax.bitcast_convert_type(t, jnp.uint16), i, axis=0)
        return jax.lax.bitcast_convert_type(rows, jnp.bfloat16)

    fact(
        "the last column of a uint16 view under jit, default mode, quiets NaNs",
        lambda: (in_bits(jax.jit(by_integers)(ids, table))[:, -1] != SIGNALLING).any(),
    )
    assert_same_bits(in_bits(jax.jit(load("jax").golden.forward)(ids, table)), elements[:2])


@pytest.mark.torch
def test_torch_widens_one_nan_to_different_ones_by_its_position():
    elements = np.full((1, 19), 0xFE01, np.uint16)
    tensor = torch.from_numpy(elements.view(np.int16)).view(torch.float16)
    fact("float16 -> float32 depends on position", lambda: len(set(tensor.float().view(torch.int32)[0].tolist())) > 1)
    got = run_golden(load("torch"), "forward_fp32", np.array([0]), elements, "float16")
    assert_same_bits(got, np.full((1, 19), 0xFFC0_2000, np.uint32))


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_casts_agree_on_finite_values_and_differ_on_nans(framework, dtype):
    fmt = FORMATS[dtype]
    elements = np.arange(1 << fmt.width).astype(fmt.uint)
    given = framework.put(elements, dtype, "cpu")
    wide = exact.widen(elements, fmt)
    nan = bits.is_nan(elements, fmt)

    def cast():
        return framework.bits_of(given.float() if framework.NAME == "torch" else given.astype(jnp.float32))

    fact(f"{framework.NAME} casts {dtype} exactly", lambda: np.array_equal(cast()[~nan], wide[~nan]))
    fact(f"{framework.NAME} keeps every NaN of {dtype}", lambda: np.array_equal(cast()[nan], wide[nan]))
    assert_same_bits(run_golden(framework, "forward_fp32", np.array([0]), elements[None], dtype)[0], wide)


@pytest.mark.torch
@pytest.mark.parametrize("bad", [5, -1, -5, -6])
def test_torch_itself_refuses_ids_on_either_side(bad):
    """So that the golden may hand ids on unchecked where it is asked to."""

    def refused():
        with pytest.raises(IndexError):
            F.embedding(torch.tensor([bad]), torch.zeros(5, 1))
        return True

    fact(f"F.embedding refuses {bad} of 5 rows", refused)
    with refuses_ids(f"1 of 1, the first at position (0,) with value {bad}", 5, "forward"):
        load("torch").golden.forward(torch.tensor([bad]), torch.zeros(5, 1))


@pytest.mark.jax
@pytest.mark.parametrize(
    ("mode", "claim"),
    [
        (None, [0, 4, np.nan, 4, 0, np.nan]),
        ("fill", [0, 4, np.nan, 4, 0, np.nan]),
        ("clip", [0, 4, 4, 0, 0, 0]),
        ("wrap", [0, 4, 0, 4, 0, 4]),
    ],
    ids=["default", "fill", "clip", "wrap"],
)
def test_no_mode_of_take_refuses_ids_on_either_side(mode, claim):
    """The golden gathers with one of them all the same, and puts NaN where the id names no row."""
    ids, table = np.array([0, 4, 5, -1, -5, -6], np.int32), jnp.arange(5.0)[:, None]
    fact(
        f"jnp.take, mode {mode}, gives {claim}",
        lambda: np.array_equal(jnp.take(table, ids, axis=0, mode=mode)[:, 0], claim, equal_nan=True),
    )
    got = np.asarray(jax.jit(load("jax").golden.forward)(ids, table))[:, 0]
    assert np.array_equal(got, [0, 4, *[np.nan] * 4], equal_nan=True)


@pytest.mark.jax
def test_jax_takes_ids_that_are_no_ids():
    golden, table = load("jax").golden, jnp.arange(300.0)[:, None]
    fact("int8 -1 of 300 rows is row 43", lambda: jnp.take(table, jnp.array([-1], jnp.int8))[0] == 43)
    with refuses_ids("1 of 1, the first at position (0,) with value -1", 300, "forward"):
        golden.forward(jnp.array([-1], jnp.int8), table)
    fact("int64 2**32 + 1 is row 1", lambda: jnp.take(table, np.array([2**32 + 1]))[0] == 1)
    with refuses_ids(f"1 of 1, the first at position (0,) with value {2**32 + 1}", 300, "forward"):
        golden.forward(np.array([2**32 + 1]), table)
    with raises(TypeError, "token_ids: got dtype bool, expected an integer dtype [forward]"):
        golden.forward(np.array([True, False]), table)


@pytest.mark.torch
def test_comparing_floats_decides_nothing():
    """-0.0 and 0.0 are equal, and NaN is not itself: so bits are compared here, and nothing else."""
    zero, minus, nan = torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([float("nan")])
    assert torch.equal(zero, minus)
    torch.testing.assert_close(zero, minus, rtol=0, atol=0)
    assert not torch.equal(nan, nan)
    bits_of = load("torch").bits_of
    assert not np.array_equal(bits_of(zero), bits_of(minus))
    assert np.array_equal(bits_of(nan), bits_of(nan.clone()))


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_minus_zero_is_lost_in_a_zero_masked_sum_over_shards(framework, verb, dtype):
    fmt = FORMATS[dtype]
    assert values(np.float32(-0.0) + np.float32(0.0), "float32") == 0
    got = run_golden(framework, verb, np.array([1, 0]), np.array([[0, fmt.sign], [fmt.sign, 0]], fmt.uint), dtype)
    sign = FORMATS["float32"].sign if verb == "forward_fp32" else fmt.sign
    assert got.tolist() == [[sign, 0], [0, sign]]


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_no_temporary_the_size_of_the_table_hides_in_the_compiled_program(verb, dtype):
    ids = jax.ShapeDtypeStruct((8, 1024), jnp.int32)
    table = jax.ShapeDtypeStruct((151936, 4096), jnp.dtype(dtype))
    memory = jax.jit(getattr(load("jax").golden, verb)).lower(ids, table).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * memory.output_size_in_bytes


def test_casts_to_16_bits_round_twice():
    value = np.float64(1 + 2**-8 + 2**-40)
    fact("ml_dtypes float64 -> bfloat16 rounds twice", lambda: value.astype(ml_dtypes.bfloat16) == 1)
    significand, exponent = exact.decode(int(bits.as_bits(np.array(value))), FORMATS["float64"])
    assert exact.round_once(significand, exponent, FORMATS["bfloat16"]) == int(values(1.0078125, "bfloat16"))


@pytest.mark.torch
def test_torch_casts_to_16_bits_round_twice():
    for dtype, least in (("bfloat16", 2**-8), ("float16", 2**-11)):
        value = torch.tensor(1 + least + 2**-40, dtype=torch.float64)
        narrow = getattr(torch, dtype)
        fact(f"torch float64 -> {dtype} rounds twice", lambda v=value, n=narrow: v.to(n).item() == 1)
        significand, exponent = exact.decode(int(bits.as_bits(value.numpy())), FORMATS["float64"])
        assert exact.round_once(significand, exponent, FORMATS[dtype]) == int(values(1 + 2 * least, dtype))


@pytest.mark.torch
def test_copies_of_torch_that_are_none():
    golden, bits_of = load("torch").golden, load("torch").bits_of
    elements = np.full((5, 33), SIGNALLING, np.uint16)
    table, ids = torch.from_numpy(elements.view(np.int16)).view(torch.bfloat16), torch.tensor([0, 2])
    index = ids[:, None].expand(2, 33).contiguous()
    for claim, copy in {
        "torch.gather": lambda: torch.gather(table, 0, index),
        "take_along_dim": lambda: torch.take_along_dim(table, index, 0),
        "x + 0.0": lambda: table[ids] + 0.0,
    }.items():
        fact(f"{claim} changes signalling NaNs", lambda copy=copy: (bits_of(copy()) != SIGNALLING).any())
    assert_same_bits(bits_of(golden.forward(ids, table)), elements[:2])


@pytest.mark.torch
def test_indexing_by_a_zero_dimensional_id_returns_a_view_of_the_table():
    table = torch.zeros(5, 3)
    fact("w[id] is a view", lambda: table[torch.tensor(2)].data_ptr() == table[2].data_ptr())
    golden = load("torch").golden
    for verb in BOTH_VERBS:
        getattr(golden, verb)(torch.tensor(2), table).fill_(7)
    assert not table.any()


@pytest.mark.jax
def test_multiplying_by_one_flushes_subnormals():
    elements = np.arange(1, 34, dtype=np.uint32)[None]
    table = bits.from_bits(elements, "float32")
    fact("rows * 1 flushes subnormals", lambda: not np.asarray(jnp.asarray(table) * 1).any())
    forward = load("jax").golden.forward
    for call in (forward, jax.jit(forward)):
        assert_same_bits(bits.as_bits(np.asarray(call(np.array([0], np.int32), table))), elements)


@pytest.mark.jax
def test_donated_table_of_the_output_s_size_is_deleted():
    """The golden donates nothing: the table is alive after the call, though the output would fit into its memory."""
    ids, table = jnp.arange(64), jnp.ones((64, 128))
    out = load("jax").golden.forward(ids, table)
    assert out.shape == table.shape
    assert not table.is_deleted()
    assert np.array_equal(table, np.ones((64, 128)))


@pytest.mark.torch
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_overlapping_view_past_2_to_the_31_elements_costs_nothing(verb):
    """Strides (1, 1): row v is element v of the memory and all after it. 40000 x 65536 elements in 210 kB."""
    framework = load("torch")
    base = random_bits((40000 + 65536,), FORMATS["bfloat16"])
    table = framework.put(base, "bfloat16", "cpu").as_strided((40000, 65536), (1, 1))
    ids = np.array([0, 32767, 32768, 39999])
    rows = np.lib.stride_tricks.sliding_window_view(base, 65536)
    given = framework.put(ids, None, "cpu"), table
    got = framework.bits_of(getattr(framework.golden, verb)(*given))
    assert_same_bits(got, answer(verb, ids, rows[:40000], "bfloat16"))
    output = got.nbytes
    assert load("torch", "memory").peak_extra_bytes(getattr(framework.golden, verb), *given) < 1.2 * output


def native_gradients(ids, cotangent, dtype, vocab):
    """Return each framework's own gradient of its own gather, as bits, by the framework's name."""
    ways = {"torch": lambda i, w: F.embedding(i, w), "jax": lambda i, w: jnp.take(w, i, axis=0)}
    got = {}
    for name, call in ways.items():
        framework = load(name)
        table = framework.put(np.zeros((vocab, cotangent.shape[1]), cotangent.dtype), dtype, "cpu")
        given = framework.put(ids, None, "cpu"), table, framework.put(cotangent, dtype, "cpu")
        got[name] = framework.bits_of(load(name, "modes").gradient(call, *given))
    return got


def assert_exact_gradients(ids, cotangent, dtype, vocab):
    expected = np.zeros((vocab, cotangent.shape[1]), cotangent.dtype)
    for row, elements in exact.grad_rows(ids, cotangent, FORMATS[dtype], FORMATS[dtype]).items():
        expected[row] = elements
    for name in ("torch", "jax"):
        framework = load(name)
        given = framework.put(ids, None, "cpu"), framework.put(cotangent, dtype, "cpu")
        assert_same_bits(framework.bits_of(framework.golden.grad_weight(*given, vocab)), expected)
    return expected


@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize(("dtype", "stop"), [("bfloat16", 2**8), ("float16", 2**11), ("float32", 2**24)])
def test_both_frameworks_stop_counting_at_the_same_number(dtype, stop):
    ids, cotangent = np.zeros(9, np.int32), values([[stop]] + [[1]] * 8, dtype)
    native = native_gradients(ids, cotangent, dtype, 1)
    for name, got in native.items():
        fact(f"{name} {dtype}: {stop} and eight times 1 is {stop}", lambda got=got: got == values(stop, dtype))
    assert assert_exact_gradients(ids, cotangent, dtype, 1) == values(stop + 8, dtype)


@pytest.mark.torch
@pytest.mark.jax
def test_both_frameworks_agree_in_every_bit_on_sums_that_are_not_exact():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 4096)
    cotangent = values(rng.standard_normal((4096, 8)), "float32")
    order = rng.permutation(4096)
    native = native_gradients(ids, cotangent, "float32", 50)
    other = native_gradients(ids[order], cotangent[order], "float32", 50)
    expected = assert_exact_gradients(ids, cotangent, "float32", 50)
    fact("the frameworks' own gradients are the same in every bit", lambda: (native["torch"] == native["jax"]).all())
    for name in ("torch", "jax"):
        fact(f"{name}: most elements are no rounded sums", lambda name=name: (native[name] != expected).mean() > 0.5)
        fact(f"{name}: most depend on order", lambda name=name: (native[name] != other[name]).mean() > 0.5)
