"""The torch golden's exact gradient: what must not change it, how torch may ask for it, and faults of real kernels.

A test about order states how many elements of the result a float32 sum in another order would change: where they are
few, the case could not have told an exact sum from an ordinary one, and the test fails.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.gradient_cases import (
    SIXTEEN,
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
from support.helpers import LAYOUTS, assert_same_bits, ignore_dynamo_warning, raises
from support.torch_gradients import SOURCES, assert_exact, cotangents

from xref.bits import FORMATS
from xref.errors import UsageError

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops import embedding
    from xref.torch_ops.arrays import bits_of
    from xref.torch_ops.embedding import GradAccumulator, grad_rows, grad_weight
    from xref.torch_ops.exact_sums import bins, gradient
    from xref.torch_ops.exact_sums import segments as grouping
    from xref.torch_ops.memory import peak_extra_bytes


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
    flat = grouping.flat_bits(given[1])
    extent, write, seen = bins.measured(flat, fmt)(), gradient._write, []
    monkeypatch.setattr(
        gradient, "_write", lambda *args, within=None: (seen.append(within), write(*args, within=extent))
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
    monkeypatch.setattr(gradient, "counting_pays", lambda bits, vocab_size: True)


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


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_gpus_way_to_nothing(shape):
    ids = torch.zeros(shape[0], dtype=torch.int64)
    assert not grad_weight(ids, torch.ones(shape), 4).any()
    assert grad_weight(ids[:0], torch.ones(0, shape[1]), 0).shape == (0, shape[1])


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


# How torch may ask for it


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
