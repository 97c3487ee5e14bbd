"""The torch golden's accumulator: one answer for every split and merge, and a state that is integers."""

from __future__ import annotations

import importlib.util
import io
import itertools
import math

import numpy as np
import pytest
from support.gradient_cases import SIXTEEN, WIDE, finite_bits, oracle, order_case, state_share
from support.helpers import assert_same_bits, raises

from xref import exact
from xref.bits import FORMATS

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.arrays import bits_of, put
    from xref.torch_ops.embedding import GradAccumulator
    from xref.torch_ops.exact_sums import digit_table


def filled(seed):
    """Return an accumulator of 60 tokens over 9 rows, float32 of every exponent."""
    rng = np.random.default_rng(seed)
    accumulator = GradAccumulator(9, 3)
    elements = finite_bits(rng, (60, 3), "float32")
    accumulator.add(torch.from_numpy(rng.permutation(np.arange(60) % 9)), put(elements, "float32", "cpu"))
    return accumulator


@pytest.mark.parametrize("source", [*WIDE, *SIXTEEN])
def test_twenty_splits_over_micro_batches_and_ranks(source, record_property):
    ids, elements, rng = order_case(source)
    token_ids, cotangent = torch.from_numpy(ids), put(elements, source, "cpu")
    state_share(record_property, ids, elements[:, :4], source)
    row_ids, expected = oracle(ids, elements, source, source)
    states = []
    for _ in range(20):
        ranks = [GradAccumulator(9, 6) for _ in range(3)]
        cuts = np.sort(rng.integers(0, ids.size + 1, rng.integers(1, 12)))
        for part in map(torch.from_numpy, np.split(rng.permutation(ids.size), cuts)):
            ranks[rng.integers(3)].add(token_ids[part], cotangent[part])
        ranks[0].merge(ranks[1])
        ranks[2].merge(ranks[0])
        got_ids, got = ranks[2].result_rows(getattr(torch, source))
        assert_same_bits(got_ids.numpy(), row_ids)
        assert_same_bits(bits_of(got), expected)
        states.append(ranks[2].state_dict())
    assert {state["lowest"] for state in states} == {states[0]["lowest"]}
    assert all(torch.equal(state["digits"], states[0]["digits"]) for state in states)


def test_an_empty_accumulator_is_zero():
    accumulator = GradAccumulator(4, 2)
    accumulator.merge(GradAccumulator(4, 2))
    accumulator.add(torch.empty(0, dtype=torch.int64), torch.empty(0, 2))
    assert_same_bits(bits_of(accumulator.result(torch.bfloat16)), np.zeros((4, 2), np.uint16))
    row_ids, rows = accumulator.result_rows(torch.float64)
    assert (row_ids.shape, rows.shape) == ((0,), (0, 2))


def test_rows_of_zeros_and_of_the_padding_index():
    accumulator = GradAccumulator(5, 2, padding_idx=0)
    accumulator.add(torch.tensor([0, 3, 3]), torch.tensor([[math.nan, 1.0], [-0.0, -0.0], [-0.0, 0.0]]))
    row_ids, rows = accumulator.result_rows(torch.float32)
    assert row_ids.tolist() == [3]
    assert_same_bits(bits_of(rows), np.zeros((1, 2), np.uint32))
    assert_same_bits(bits_of(accumulator.result(torch.float32)), np.zeros((5, 2), np.uint32))


def test_cotangents_of_different_dtypes_add_up():
    accumulator = GradAccumulator(2, 1)
    for value, name in (
        *((1.0, "float64"), (2.0**-30, "float32"), (2.0**100, "bfloat16")),
        *((-(2.0**100), "float32"), (3.0, "float8_e5m2")),
    ):
        accumulator.add(torch.tensor([1]), torch.full((1, 1), value, dtype=getattr(torch, name)))
    assert accumulator.result(torch.float64).tolist() == [[0.0], [4.0 + 2.0**-30]]


def test_specials_survive_merging_in_any_order():
    parts = [math.inf, -math.inf, math.nan, 1.0, math.inf]
    for order in itertools.permutations(parts, 3):
        ranks = [GradAccumulator(1, 1) for _ in order]
        for rank, part in zip(ranks, order, strict=True):
            rank.add(torch.tensor([0]), torch.tensor([[part]]))
        ranks[0].merge(ranks[1])
        ranks[0].merge(ranks[2])
        elements = bits_of(torch.tensor(order)).tolist()
        expected = exact.sum_rounded(elements, FORMATS["float32"], FORMATS["bfloat16"])
        assert bits_of(ranks[0].result(torch.bfloat16)).tolist() == [[expected]]
        assert int(ranks[0].state_dict()["specials"].max()) == 1


def test_the_state_survives_saving():
    accumulator = filled(1)
    accumulator.add(torch.tensor([2]), torch.tensor([[math.inf, 1.0, math.nan]]))
    file = io.BytesIO()
    torch.save(accumulator.state_dict(), file)
    file.seek(0)
    loaded = filled(2)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert_same_bits(bits_of(loaded.result(torch.float32)), bits_of(accumulator.result(torch.float32)))
    for one in (accumulator, loaded):
        one.add(torch.tensor([8]), torch.tensor([[1.0, -1.0, 2.0]]))
    assert_same_bits(bits_of(loaded.result(torch.float64)), bits_of(accumulator.result(torch.float64)))


def test_states_merge_as_their_integers_add():
    """What an all-reduce does: the same rows and places on all ranks, and a sum of int64."""
    first, second = filled(1), filled(2)
    one, two = first.state_dict(), second.state_dict()
    assert torch.equal(one["row_ids"], two["row_ids"])
    assert (one["lowest"], one["digits"].shape) == (two["lowest"], two["digits"].shape)
    reduced = GradAccumulator(9, 3)
    reduced.load_state_dict({**one, "digits": one["digits"] + two["digits"]})
    first.merge(second)
    assert torch.equal(reduced.state_dict()["digits"], first.state_dict()["digits"])
    for name in FORMATS:
        dtype = getattr(torch, name)
        assert_same_bits(bits_of(reduced.result(dtype)), bits_of(first.result(dtype)))


def test_the_digits_weigh_what_the_class_says():
    accumulator = GradAccumulator(2, 1)
    accumulator.add(torch.tensor([1, 1]), torch.tensor([[-(2.0**40)], [2.0**-40]], dtype=torch.float64))
    state = accumulator.state_dict()
    digits = state["digits"][:, 0, 0].tolist()
    assert state["row_ids"].tolist() == [1]
    assert all(0 <= digit < 2**32 for digit in digits[:-1])
    total = sum(digit << 32 * place for place, digit in enumerate(digits, start=state["lowest"] + 8))
    assert total == (-(2**80) + 1) << (256 - 40)


def test_specials_and_zeros_take_no_digits():
    accumulator = GradAccumulator(2, 2)
    accumulator.add(torch.tensor([1, 1]), torch.tensor([[1.0, 3.0], [2.0, 1.0]]))
    digits = accumulator.state_dict()["digits"]
    accumulator.add(torch.tensor([1, 1]), torch.tensor([[math.inf, -0.0], [math.nan, 0.0]]))
    accumulator.add(torch.tensor([1]), torch.zeros(1, 2))
    assert torch.equal(accumulator.state_dict()["digits"], digits)


def test_a_state_is_a_copy_and_so_is_what_is_loaded():
    accumulator = filled(4)
    before = bits_of(accumulator.result(torch.float64))
    state = accumulator.state_dict()
    state["digits"].zero_()
    assert_same_bits(bits_of(accumulator.result(torch.float64)), before)
    accumulator.load_state_dict(state)
    accumulator.add(torch.tensor([0]), torch.ones(1, 3))
    assert not state["digits"].any()


def of_digits(digits, *, lowest=0, specials=None):
    """Return an accumulator of one element with these digits."""
    accumulator = GradAccumulator(1, 1)
    header = {"version": 1, "vocab_size": 1, "hidden": 1, "padding_idx": None, "specials": specials}
    digits = torch.tensor(digits).view(-1, 1, 1)
    accumulator.load_state_dict({**header, "lowest": lowest, "row_ids": torch.tensor([0]), "digits": digits})
    return accumulator


def test_digits_summed_over_many_ranks_are_carried_when_they_are_loaded():
    accumulator = of_digits([2**62, 2**62, 0])
    # As it holds them: a state's digits are carried anyway.
    assert accumulator._sums.digits.flatten().tolist() == [0, 2**30, 2**30]
    for _ in range(3):
        accumulator.add(torch.tensor([0]), torch.tensor([[2.0**62]], dtype=torch.float64))
    assert accumulator.result(torch.float64).tolist() == [[float((2**62 << 32) + 4 * 2**62)]]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("lowest", "digits"),
    [
        (0, [1, 2**53 + 1]),
        (0, [2**61 + 2**37 + 1]),
        (0, [2**61 + 2**8]),
        (3, [2**62, 2**62]),
        (-34, [1, 2**53 + 1]),  # float64's quantum is in digit -34
        (27, [2**62, 2**52 + 1]),
        (27, [1, 2**62, 0, 1]),
        (32, [2**62, 2**61]),  # past the range of every format
    ],
    ids=str,
)
def test_a_loaded_sum_of_any_digits_is_rounded_once(lowest, digits, sign):
    total = sum(sign * digit << 32 * place for place, digit in enumerate(digits))
    accumulator = of_digits([sign * digit for digit in digits], lowest=lowest)
    for name, fmt in FORMATS.items():
        expected = exact.round_once(total, 32 * lowest, fmt)
        assert bits_of(accumulator.result(getattr(torch, name))).tolist() == [[expected]], name
    state = accumulator.state_dict()
    again = GradAccumulator(1, 1)
    again.load_state_dict(state)
    assert torch.equal(again.state_dict()["digits"], state["digits"])


def test_ranks_that_merge_each_other_until_their_digits_must_be_carried():
    """Each merge adds to a digit what the other has, so without carrying int64 would be too small after about 45."""
    one = FORMATS["float32"].largest_finite
    first, second = GradAccumulator(1, 1), GradAccumulator(1, 1)
    count, other = 1, 0
    first.add(torch.tensor([0]), put(np.array([[one]], np.uint32), "float32", "cpu"))
    for _ in range(25):
        second.merge(first)
        first.merge(second)
        other += count
        count += other
    significand, exponent = exact.decode(one, FORMATS["float32"])
    state = first.state_dict()
    assert all(0 <= digit < 2**32 for digit in state["digits"].flatten().tolist()[:-1])
    total = sum(digit << 32 * k for k, digit in enumerate(state["digits"].flatten().tolist()))
    assert total == count * significand << (exponent - 32 * state["lowest"])
    expected = exact.round_once(count * significand, exponent, FORMATS["float64"])
    assert bits_of(first.result(torch.float64)).tolist() == [[expected]]


def test_carrying_early_changes_nothing(monkeypatch):
    plain, eager = GradAccumulator(9, 3), GradAccumulator(9, 3)
    for seed in range(7):
        plain.merge(filled(seed))
        with monkeypatch.context() as patch:
            patch.setattr(digit_table, "_MOST_UNCARRIED", 2)
            eager.merge(filled(seed))
    assert torch.equal(plain.state_dict()["digits"], eager.state_dict()["digits"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "got version 2, expected version 1"),
        ({"version": None}, "got version None, expected version 1"),
        ({"hidden": 4}, "got hidden 4, expected hidden 3"),
        ({"vocab_size": 10}, "got vocab_size 10, expected vocab_size 9"),
        ({"padding_idx": 0}, "got padding_idx 0, expected padding_idx None"),
        ({"row_ids": None}, "got row_ids of type NoneType, expected an int64 tensor"),
        ({"row_ids": [1, 0]}, "got digits int64 (11, 9, 3), expected int64 (K, 2, 3)"),
        ({"row_ids": [8, 7, 6, 5, 4, 3, 2, 1, 0]}, "got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"row_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}, "got row_ids in disorder, expected ascending ids in [0, V=9)"),
        ({"digits": "float32 (11, 9, 3)"}, "got digits float32 (11, 9, 3), expected int64 (K, 9, 3)"),
        ({"digits": "int64 (11, 9, 4)"}, "got digits int64 (11, 9, 4), expected int64 (K, 9, 3)"),
        ({"specials": "int64 (1, 9, 3)"}, "got specials int64 (1, 9, 3), expected int64 (2, 9, 3)"),
        ({"lowest": 40}, "got lowest 40 with 11 digits, expected digits from -34 to 33"),
        (
            {"digits": "full 4611686018427387905"},
            "got digits with 4611686018427387905, expected -4611686018427387904 to 4611686018427387904",
        ),
        (
            {"digits": "full -9223372036854775808"},
            "got digits with -9223372036854775808, expected -4611686018427387904 to 4611686018427387904",
        ),
        ({"specials": "full -1"}, "got specials with -1, expected 0 to 4611686018427387904"),
        ({"lowest": True}, "got lowest True with 11 digits, expected digits from -34 to 33"),
        ({"version": True}, "got version True, expected version 1"),
        (
            {"digits": "sparse"},
            "got digits of layout torch.sparse_coo, device cpu, expected a dense tensor with values",
        ),
        ({"digits": "meta"}, "got digits of layout torch.strided, device meta, expected a dense tensor with values"),
        ({"lowest": "0"}, "got lowest '0' with 11 digits, expected digits from -34 to 33"),
        ({"digits": "int64 (0, 9, 3)"}, "got lowest -5 with 0 digits, expected digits from -34 to 33"),
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_is_refused(change, told):
    accumulator, state = filled(1), filled(2).state_dict()
    before = bits_of(accumulator.result(torch.float64))
    for key, value in change.items():
        if isinstance(value, list):
            state[key] = torch.tensor(value)
        elif value in ("sparse", "meta"):
            state[key] = state[key].to_sparse() if value == "sparse" else state[key].to("meta")
        elif key in ("digits", "specials") and value.startswith("full"):
            state[key] = torch.full((2, 9, 3), int(value.removeprefix("full ")))
        elif key in ("digits", "specials"):
            dtype, _, shape = value.partition(" ")
            state[key] = torch.zeros([int(size) for size in shape[1:-1].split(", ")], dtype=getattr(torch, dtype))
        else:
            state[key] = value
    with raises(ValueError, f"state: {told} [GradAccumulator.load_state_dict]"):
        accumulator.load_state_dict(state)
    assert_same_bits(bits_of(accumulator.result(torch.float64)), before)


def test_a_state_with_a_row_of_the_padding_index_is_refused():
    accumulator = GradAccumulator(9, 3, padding_idx=4)
    told = "state: got row_ids with 4, expected no row of padding_idx [GradAccumulator.load_state_dict]"
    with raises(ValueError, told):
        accumulator.load_state_dict({**filled(1).state_dict(), "padding_idx": 4})


def test_an_accumulator_does_not_merge_with_itself():
    accumulator = filled(1)
    with raises(ValueError, "other: got the accumulator itself, expected another one [GradAccumulator.merge]"):
        accumulator.merge(accumulator)


@pytest.mark.parametrize("state", [None, [], 3], ids=str)
def test_a_state_that_is_no_mapping_is_refused(state):
    accumulator = filled(1)
    got = type(state).__name__
    with raises(TypeError, f"state: got {got}, expected what state_dict returns [GradAccumulator.load_state_dict]"):
        accumulator.load_state_dict(state)


def test_loading_that_fails_half_way_changes_nothing(monkeypatch):
    accumulator, state = filled(1), filled(2).state_dict()
    before = bits_of(accumulator.result(torch.float64))

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(digit_table.DigitTable, "_add_places", fails)
        with pytest.raises(MemoryError):
            accumulator.load_state_dict(state)
    assert_same_bits(bits_of(accumulator.result(torch.float64)), before)


def test_the_largest_table():
    accumulator = GradAccumulator(2**63 - 1, 1)
    accumulator.load_state_dict(accumulator.state_dict())
    accumulator.add(torch.tensor([2**63 - 2, 0]), torch.tensor([[1.0], [2.0]]))
    accumulator.load_state_dict(accumulator.state_dict())
    row_ids, rows = accumulator.result_rows(torch.float32)
    assert (row_ids.tolist(), rows.tolist()) == ([0, 2**63 - 2], [[2.0], [1.0]])


def test_rows_of_no_elements_are_named():
    accumulator = GradAccumulator(5, 0)
    accumulator.add(torch.tensor([0, 4, 1]), torch.ones(3, 0))
    accumulator.load_state_dict(accumulator.state_dict())
    row_ids, rows = accumulator.result_rows(torch.float32)
    assert (row_ids.tolist(), rows.shape) == ([0, 1, 4], (3, 0))


INFERENCE_STEPS = {
    "made": lambda a, b: GradAccumulator(9, 3),
    "added": lambda a, b: a.add(torch.tensor([8, 0]), torch.tensor([[1.0, math.inf, 0.5]] * 2)),
    "merged": lambda a, b: a.merge(b),
    "loaded": lambda a, b: a.load_state_dict(b.state_dict()),
    "rounded": lambda a, b: a.result(torch.float32) is a.result_rows(torch.float32),
    "saved": lambda a, b: a.load_state_dict(a.state_dict()),
}


@pytest.mark.parametrize("step", INFERENCE_STEPS)
def test_inference_mode_leaves_plain_sums(step):
    """A tensor made in inference mode cannot be changed outside it; as an argument it is as good as any."""
    results = []
    for mode in (torch.no_grad, torch.inference_mode):
        accumulator, other = filled(1), filled(2)
        with mode():
            accumulator = INFERENCE_STEPS[step](accumulator, other) or accumulator
            token_ids, cotangent = torch.tensor([3, 1]), torch.full((2, 3), 0.1)
        accumulator.add(token_ids, cotangent)
        accumulator.merge(other)
        state = accumulator.state_dict()
        with mode():
            state = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
        accumulator.load_state_dict(state)
        accumulator.add(torch.tensor([2]), torch.ones(1, 3))
        results.append(bits_of(accumulator.result(torch.float64)))
        with mode():
            inside = (accumulator.result(torch.float32), *accumulator.result_rows(torch.float32))
            state = accumulator.state_dict()
        assert not any(tensor.is_inference() for tensor in (*inside, state["row_ids"], state["digits"]))
    assert_same_bits(*results)


@pytest.mark.parametrize(
    ("where", "transformed"),
    [
        ("cotangent", lambda add, ids, ones: torch.func.vmap(lambda c: add(ids, c))(torch.stack([ones, ones]))),
        ("cotangent", lambda add, ids, ones: torch.func.grad(lambda c: add(ids, c).sum())(ones)),
        ("token_ids", lambda add, ids, ones: torch.func.vmap(lambda i: add(i, ones))(torch.stack([ids, ids]))),
    ],
    ids=["vmap", "grad", "vmap of ids"],
)
def test_tensors_of_a_transform_are_refused(where, transformed):
    accumulator = GradAccumulator(5, 3)
    told = "got a tensor without storage, expected a plain one; under torch.func, use grad_weight"

    def add(ids, cotangent):
        accumulator.add(ids, cotangent)
        return cotangent

    with raises(TypeError, f"{where}: {told} [GradAccumulator.add]"):
        transformed(add, torch.tensor([0, 4, 1]), torch.ones(3, 3))
    assert accumulator.state_dict()["row_ids"].numel() == 0
