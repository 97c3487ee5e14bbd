"""Faults that real kernels had, each as a small input and the answer that the goldens must give.

Every test is named after a fault from a public bug report, and says where it was reported.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.helpers import (
    FRAMEWORKS,
    LAYOUTS,
    VERBS,
    WIDENED_DTYPES,
    answer,
    assert_same_bits,
    call_golden,
    every_pattern,
    ignore_dynamo_warning,
    load,
    raises,
    random_bits,
    refuses_ids,
    run_golden,
    values,
)

from xref import bits, exact
from xref.bits import FORMATS
from xref.inputs import allocate, make_ids, make_table

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch
if importlib.util.find_spec("jax"):
    import jax
    import jax.numpy as jnp

BOTH_VERBS = ("forward", "forward_fp32")
SAMPLE = (
    *(("forward", "float32"), ("forward", "bfloat16")),
    *(("forward_fp32", "bfloat16"), ("forward_fp32", "float8_e4m3fn")),
)
"""For faults that no dtype has to itself."""


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Each framework's `framework` module, whose `golden` is what is tested."""
    return load(request.param)


def right(framework, verb, ids, elements, dtype):
    """Assert that a golden gives the exact answer."""
    assert_same_bits(run_golden(framework, verb, ids, elements, dtype), answer(verb, ids, elements, dtype))


# Ids


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_ids_on_either_side_of_the_table(framework, verb):
    """Wrapped, clamped or filled by one form or another of every framework; negatives are no Python indices."""
    elements = values([[1], [2], [3], [4], [5]], "float32")
    with refuses_ids("4 of 6, the first at position (2,) with value 5", 5, verb):
        call_golden(framework, verb, np.array([0, 4, 5, -1, -5, -6]), elements, "float32")
    for bad in (5, -1, -5, -6):
        with refuses_ids(f"1 of 1, the first at position (0,) with value {bad}", 5, verb):
            call_golden(framework, verb, np.array([bad]), elements, "float32")
    right(framework, verb, np.array([0, 4]), elements, "float32")


def test_huge_id_of_an_empty_table_crashes(framework):  # pytorch/pytorch#145267
    with refuses_ids(f"1 of 1, the first at position (0,) with value {10**17}", 0, "forward"):
        call_golden(framework, "forward", np.array([10**17]), np.zeros((0, 4), np.uint32), "float32")


def test_zero_dimensional_id_is_not_checked(framework):  # PaddlePaddle/Paddle#79505
    elements = values([[1.5]], "float16")
    with refuses_ids("1 of 1, the first at position () with value 1", 1, "forward"):
        call_golden(framework, "forward", np.array(1, np.int32), elements, "float16")
    right(framework, "forward", np.array(0, np.int32), elements, "float16")


@pytest.mark.parametrize("padding", [0, 3, 15])
def test_range_check_is_skipped_beside_padding(framework, padding):  # PaddlePaddle/Paddle#79507
    """A batch that is padding but for one id: it is checked all the same."""
    ids = np.full((2, 8), padding)
    ids[1, 2] = 40
    with refuses_ids("1 of 16, the first at position (1, 2) with value 40", 16, "forward"):
        call_golden(framework, "forward", ids, random_bits((16, 3), FORMATS["float32"]), "float32")


def test_clamped_id_goes_unseen_where_rows_are_alike(framework):  # tensorflow/tensorflow#61865
    with refuses_ids("1 of 1, the first at position (0,) with value 256", 256, "forward"):
        call_golden(framework, "forward", np.array([256]), values(np.ones((256, 1)), "float32"), "float32")


@pytest.mark.torch
@ignore_dynamo_warning
def test_negative_ids_wrap_when_compiled_by_torch():  # pytorch/pytorch#151918
    torch.compiler.reset()
    compiled = torch.compile(load("torch").golden.forward, backend="eager")
    with refuses_ids("4 of 8, the first at position (0,) with value -4", 8, "forward"):
        compiled(torch.arange(-4, 4), torch.arange(16.0).reshape(8, 2).requires_grad_())


@pytest.mark.jax
def test_negative_ids_wrap_when_compiled_by_jax():  # pytorch/pytorch#151918
    """Nothing can be raised there: such an id gives NaN forward, and adds nothing to the gradient."""
    golden = load("jax").golden

    @jax.jit
    def both(ids, table):
        out, pull = jax.vjp(lambda leaf: golden.forward(ids, leaf), table)
        return out, pull(jnp.ones_like(out))[0]

    out, grad = both(np.arange(-4, 4, dtype=np.int32), np.arange(8, dtype=np.float32).reshape(8, 1))
    assert_same_bits(bits.as_bits(np.asarray(out))[:4], np.full((4, 1), 0x7FC0_0000, np.uint32))
    assert out[4:, 0].tolist() == [0, 1, 2, 3]
    assert grad[:, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


def test_fill_value_passes_for_data(framework):  # jax-ml/jax#14193
    """An integer table has no value that says "no row", so it is no table at all."""
    table = framework.put(np.arange(5, dtype=np.int32)[:, None], None, "cpu")
    with pytest.raises(TypeError, match=r"^weight: got dtype int32, expected one of float64"):
        framework.golden.forward(framework.put(np.array([10]), None, "cpu"), table)
    with refuses_ids("1 of 1, the first at position (0,) with value 10", 5, "forward"):
        call_golden(framework, "forward", np.array([10]), values(np.ones((5, 1)), "float32"), "float32")


def test_uint8_id_past_127_is_another_row(framework):  # jax-ml/jax#16836
    elements = values(np.arange(200.0)[:, None], "float32")
    ids = np.array([127, 128, 199], np.uint8)
    got = run_golden(framework, "forward", ids, elements, "float32")
    assert_same_bits(got, values([[127.0], [128.0], [199.0]], "float32"))


@pytest.mark.parametrize("value", [2**32 + 1, 2**31, -(2**32) + 1, 2**62])
def test_int64_ids_are_narrowed_to_int32(framework, value):  # jax-ml/jax#18385
    with refuses_ids(f"1 of 2, the first at position (1,) with value {value}", 5, "forward"):
        call_golden(framework, "forward", np.array([1, value]), random_bits((5, 2), FORMATS["float32"]), "float32")


@pytest.mark.parametrize("id_dtype", ["bfloat16", "float16", "float32", "float64"])
def test_ids_go_through_a_float_dtype(framework, id_dtype):  # keras-team/keras#19332
    """2909 is 2912 in bfloat16."""
    elements = values(np.arange(5000.0)[:, None], "float32")
    message = f"token_ids: got dtype {id_dtype}, expected an integer dtype [forward]"
    with framework.precision(id_dtype), raises(TypeError, message):
        ids = framework.put(values([2909], id_dtype), id_dtype, "cpu")
        framework.golden.forward(ids, framework.put(elements, "float32", "cpu"))
    got = run_golden(framework, "forward", np.array([2909], np.int16), elements, "float32")
    assert_same_bits(got, values([[2909.0]], "float32"))


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_some_ids_of_a_large_vocabulary_are_wrong(framework, verb):  # tenstorrent/tt-metal#47506
    """All ids of a vocabulary of 151936; the reported ones were 218 to 222, at a width of 5120."""
    elements = make_table("tagged", 151936, 8, FORMATS["bfloat16"], touched=np.zeros(0, int))
    right(framework, verb, np.arange(151936), elements, "bfloat16")
    ids = np.concatenate([np.arange(200, 240), [0, 151935]])
    wide = make_table("sparse", 151936, 5120, FORMATS["bfloat16"], touched=ids)
    right(framework, verb, ids, wide, "bfloat16")


def test_id_times_row_stride_overflows_int32(framework):  # flagos-ai/FlagGems#4153
    """Row 16384 of stride 131072 begins at element 2**31."""
    ids = np.array([16383, 16384])
    elements = make_table("sparse", 16385, 131072, FORMATS["float8_e5m2"], touched=ids)
    right(framework, "forward", ids, elements, "float8_e5m2")
    if framework.NAME == "torch":  # which takes a strided table as it is
        right(framework, "forward", ids, elements[:, 3:10], "float8_e5m2")


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_rows_past_2_to_the_31_elements_are_zero(framework, verb):  # pytorch/pytorch#188756
    ids = np.array([32767, 32768, 39999])
    elements = make_table("sparse", 40000, 65536, FORMATS["float8_e4m3fn"], touched=ids)
    assert run_golden(framework, verb, ids, elements, "float8_e4m3fn").any(axis=1).all()
    right(framework, verb, ids, elements, "float8_e4m3fn")


def test_eight_bit_ids_wrap_where_the_vocabulary_is_larger(framework):
    elements = random_bits((300, 3), FORMATS["float32"])
    with refuses_ids("1 of 2, the first at position (1,) with value -1", 300, "forward"):
        call_golden(framework, "forward", np.array([127, -1], np.int8), elements, "float32")
    right(framework, "forward", np.arange(128, dtype=np.int8), elements, "float32")
    right(framework, "forward", np.arange(256).astype(np.uint8), elements, "float32")


# Bits


@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_copy_flushes_subnormals_or_turns_nan_into_inf(framework, verb):  # tenstorrent/tt-metal#54899, #51557
    elements = every_pattern(FORMATS["bfloat16"], 96)
    ids = np.arange(elements.shape[0])[::-1].copy()
    got = run_golden(framework, verb, ids, elements, "bfloat16")
    assert_same_bits(got, answer(verb, ids, elements, "bfloat16"))
    fmt, wide = FORMATS["bfloat16"], FORMATS["bfloat16" if verb == "forward" else "float32"]
    asked = elements[ids]
    assert np.array_equal(bits.is_nan(got, wide), bits.is_nan(asked, fmt))
    assert np.array_equal(bits.is_zero(got, wide), bits.is_zero(asked, fmt))


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_one_hot_matmul_spreads_nan_and_loses_the_sign_of_zero(framework, verb, dtype):  # pytorch/helion#2054
    fmt = FORMATS[dtype]
    specials = [fmt.nan, fmt.sign | fmt.nan] + ([fmt.exponent] if fmt.has_inf else [])
    for special in specials:
        one, three = (int(values(value, dtype)) for value in (1.0, 3.0))
        elements = np.array([[one], [special], [three], [fmt.sign], [fmt.sign | 1]], fmt.uint)
        got = run_golden(framework, verb, np.array([0, 2, 3, 4]), elements, dtype)
        rows = elements[[0, 2, 3, 4]]
        assert_same_bits(got, rows if verb == "forward" else exact.widen(rows, fmt))
        assert not bits.is_nan(got, FORMATS["float32"] if verb == "forward_fp32" else fmt).any()


@pytest.mark.parametrize("vocab", [1, 7, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
def test_rows_packed_in_pairs_are_exchanged_for_odd_ids(framework, dtype, vocab):  # jax-ml/jax#39577
    for hidden in (1, 3):
        elements = random_bits((vocab, hidden), FORMATS[dtype], seed=3)
        for ids in (np.arange(vocab), np.arange(vocab)[::-1].copy(), np.full(vocab, vocab - 1)):
            right(framework, "forward", ids, elements, dtype)


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_mask_in_float32_upcasts_the_result(framework, verb, dtype):  # aws-neuron/neuronx-distributed#35
    with framework.precision(dtype):
        out = call_golden(framework, verb, np.array([[0, 2]]), random_bits((3, 5), FORMATS[dtype]), dtype)
    assert framework.form_of(out) == ((1, 2, 5), dtype if verb == "forward" else "float32", "cpu")


@pytest.mark.jax
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_rounding_to_bfloat16_and_back_is_elided_by_xla(verb):  # openxla/xla#41605
    """1 + 2**-9 rounds to 1 in bfloat16, also where one program narrows the table, gathers, and widens the rows."""
    golden = load("jax").golden
    narrow = jax.jit(lambda ids, table: getattr(golden, verb)(ids, table.astype(jnp.bfloat16)).astype(jnp.float32))
    got = narrow(np.array([0, 1], np.int32), np.array([[1 + 2**-9], [1 + 3 * 2**-9]], np.float32))
    assert got.tolist() == [[1.0], [1 + 2**-7]]


@pytest.mark.torch
@ignore_dynamo_warning
@pytest.mark.parametrize("verb", BOTH_VERBS)
def test_rounding_to_bfloat16_and_back_is_elided_by_torch(verb):  # openxla/xla#41605
    golden = load("torch").golden

    def narrow(ids, table):
        return getattr(golden, verb)(ids, table.to(torch.bfloat16), validate=False).to(torch.float32)

    torch.compiler.reset()
    given = torch.tensor([0, 1]), torch.tensor([[1 + 2**-9], [1 + 3 * 2**-9]])
    for way in (narrow, torch.compile(narrow, backend="eager")):
        assert way(*given).tolist() == [[1.0], [1 + 2**-7]]


# Shapes and memory


@pytest.mark.parametrize("hidden", [16, 32, 48, 96])
def test_widths_that_are_multiples_of_32_are_wrong_for_tiled_ids(framework, hidden):  # tenstorrent/tt-metal#17643
    elements = random_bits((70, hidden), FORMATS["bfloat16"])
    for shape in ((32, 32), (1, 32), (2, 32, 3)):
        ids = make_ids("zipf", shape, 70, "int32")
        right(framework, "forward", ids, elements, "bfloat16")
        tiled = np.ascontiguousarray(ids.T).T
        right(framework, "forward", tiled, elements, "bfloat16")


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_odd_row_stride_or_a_table_off_by_one_element_is_misaligned(framework, verb, dtype):  # triton-lang/triton#1330
    elements = LAYOUTS["offset by one element"](random_bits((5, 1185), FORMATS[dtype]))
    right(framework, verb, np.array([[4, 0, 1], [3, 3, 2]]), elements, dtype)


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_vocabulary_of_one_gives_nan(framework, verb, dtype):  # google/flax#4557
    for value in (0.5, -0.0):
        elements = np.broadcast_to(values(value, dtype), (1, 3)).copy()
        for ids in (np.array(0), np.zeros((2, 3), int)):
            right(framework, verb, ids, elements, dtype)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda big: big[:12, :12].T, id="w.t()"),
        pytest.param(lambda big: big[::2], id="w[::2]"),
        pytest.param(lambda big: big[:, :7], id="big[:, :D]"),
        pytest.param(lambda big: big[1:, 5:12], id="big[1:, a:b]"),
        pytest.param(lambda big: big[:, ::3], id="big[:, ::3]"),
    ],
)
@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_strides_of_the_table_are_looked_at_in_one_dimension_only(framework, verb, dtype, view):
    # NVIDIA/TransformerEngine#2734
    elements = view(random_bits((24, 40), FORMATS[dtype]))
    right(framework, verb, np.array([[0, 11], [3, 5]]), elements, dtype)


@pytest.mark.parametrize("dtype", WIDENED_DTYPES)
def test_whole_table_is_cast_before_the_gather(framework, dtype):  # google/flax#4100
    """4 tokens of a table whose float32 copy would take 16 MB."""
    table = framework.put(allocate((65536, 64), FORMATS[dtype].uint), dtype, "cpu")
    ids = framework.put(np.array([0, 7, 7, 65535], np.int32), None, "cpu")
    for verb in BOTH_VERBS:
        memory = load(framework.NAME, "memory")
        assert memory.peak_extra_bytes(getattr(framework.golden, verb), ids, table) < 1 << 20


def test_rows_are_lost_where_the_vocabulary_does_not_divide(framework):  # huggingface/text-generation-inference#1463
    """10 rows on 4 ranks by floor division are 2 each, and 8 of 10."""
    elements = values(np.arange(10.0)[:, None], "float32")
    for ids in (np.arange(10), np.array([8, 9]), np.array([9])):
        got = run_golden(framework, "forward", ids, elements, "float32")
        assert_same_bits(got, values(ids.astype(np.float32)[:, None], "float32"))


@pytest.mark.parametrize(("verb", "dtype"), SAMPLE)
def test_row_zero_stands_in_for_other_rows_and_its_nan_spreads(framework, verb, dtype):  # pytorch/torchtitan#3468
    """Row 0 is NaN throughout: what does not ask for it has none of it, and what no row answers is not its copy."""
    fmt = FORMATS[dtype]
    elements = np.full((5, 9), fmt.sign | fmt.nan | 1, fmt.uint)
    elements[1:] = values(np.arange(1.0, 5.0)[:, None], dtype)
    ids = np.array([[1, 4], [0, 2], [3, 1]])
    right(framework, verb, ids, elements, dtype)
    if framework.NAME == "jax":
        with framework.precision(dtype):
            traced = load(framework.NAME, "modes").traced(getattr(framework.golden, verb))
            out = framework.bits_of(traced(np.array([5, -1, 4], np.int32), framework.put(elements, dtype, "cpu")))
        wide = FORMATS["float32"] if verb == "forward_fp32" else fmt
        assert_same_bits(out[:2], np.full((2, 9), wide.nan, wide.uint))
        assert_same_bits(out[2], answer(verb, np.array(4), elements, dtype))


def test_ids_shifted_on_a_copy_are_no_mutation(framework):  # deepseek-ai/DeepSeek-V3#1176: not a fault
    """A shard shifts its ids before it looks them up: on a copy, so that the caller's are as they were."""
    elements = random_bits((10, 3), FORMATS["bfloat16"])
    ids = np.array([[8, 9], [5, 6]])
    given = framework.put(ids, None, "cpu")
    shard = framework.put(elements[5:].copy(), "bfloat16", "cpu")
    out = framework.golden.forward(given - 5, shard)
    assert_same_bits(framework.bits_of(out), elements[ids])
    assert np.array_equal(framework.numpy_of(given), [[8, 9], [5, 6]])
