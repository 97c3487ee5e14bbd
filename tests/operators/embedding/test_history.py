"""Histories: calls one after another, each of which must give its own rows."""

from __future__ import annotations

import importlib

import msgspec
import numpy as np
import pytest
from support.examined import examination, examined

from xref.engine.shrink import smallest
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.history import NUMPY, SCENARIOS, History
from xref.operators.embedding.examine import history

CALL = History(
    check="EMB-7/history", dtype="bfloat16", vocab=50, hidden=9, table="hashed", ids="zipf", shape=(33,),
    scenario="other tables",
)  # fmt: skip
TORCH = [name for name in SCENARIOS if name != NUMPY]


def of(scenario, **how):
    return msgspec.structs.replace(CALL, scenario=scenario, **how)


class Cached:
    """Rows are kept by a key that says too little."""

    def __init__(self, key):
        self.key, self.kept = key, {}

    def __call__(self, ids, weight):
        return self.kept.setdefault(self.key(ids, weight), weight[ids.long()]).clone()


def by_table_shape(ids, weight):
    return weight.shape, *ids.tolist()


def by_table_address(ids, weight):
    return weight.data_ptr(), weight.shape, *ids.tolist()


def by_ids_address(ids, weight):
    return ids.data_ptr(), ids.shape, weight.data_ptr(), weight._version


@pytest.mark.torch
def test_a_right_kernel_passes():
    found = examined(lambda ids, weight: weight[ids.long()], history.histories)
    assert {id: finding.failed for id, finding in found.items()} == dict.fromkeys(found, 0)
    assert found["EMB-7/history"].cases == 4 * len(TORCH)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        (by_table_shape, "other tables"),
        (by_table_address, "arrays overwritten"),
        (by_ids_address, "arrays overwritten"),
    ],
)
def test_a_cache_is_named_where_the_rows_are_those_of_an_earlier_call(key, scenario):
    [failure] = examination(Cached(key)).make(of(scenario)).failures
    assert (failure.check, failure.call) == ("EMB-7/history", None)
    assert [suspect.fault for suspect in failure.suspects] == [faults.STALE_CACHE.name]


@pytest.mark.torch
@pytest.mark.parametrize("scenario", TORCH)
def test_what_fails_without_a_history_is_none_of_its_faults(scenario):
    torch = importlib.import_module("torch")
    flipped = lambda ids, weight: (weight[ids.long()].view(torch.int16) ^ 1).view(weight.dtype)  # noqa: E731
    [failure] = examination(flipped).make(of(scenario)).failures
    assert (failure.check, type(failure.call), failure.suspects) == ("EMB-1", Forward, ())
    assert failure.call == of(scenario).plain()


@pytest.mark.torch
def test_what_goes_wrong_later_is_no_cache_unless_an_earlier_call_had_those_rows():
    calls = []

    def counting(ids, weight):
        calls.append(0)
        torch = importlib.import_module("torch")
        out = weight[ids.long()]
        return (out.view(torch.int16) ^ 1).view(out.dtype) if len(calls) == 3 else out

    [failure] = examination(counting).make(of("many calls")).failures
    assert failure.check == "EMB-7/history"
    assert [suspect.fault for suspect in failure.suspects] == [faults.CALL_COUNT_DEPENDENT.name]
    assert failure.suspects[0].seen == "the same call was right before, and call 3 is not"


@pytest.mark.torch
def test_an_output_that_a_later_call_changes_is_impure():
    buffers = {}

    def again(ids, weight):
        rows = weight[ids.long()]
        return buffers.setdefault(rows.shape, rows.clone()).copy_(rows)

    seen = examination(again).make(of("other ids"))
    assert [failure.message for failure in seen.failures] == [
        "out: got other bits after a later call, expected the same"
    ]


@pytest.mark.torch
def test_an_input_that_is_rewritten_is_impure_and_no_history():
    def sorting(ids, weight):
        out = weight[ids.long()]
        ids.copy_(ids.sort().values)
        return out

    seen = examination(sorting).make(of("other tables"))
    assert [failure.check for failure in seen.failures] == ["EMB-5"]


@pytest.mark.torch
def test_the_smallest_history_has_two_calls_of_one_token():
    made = examination(Cached(by_table_shape))
    failure = made.make(CALL).failed("EMB-7/history")
    fresh = lambda call: examination(Cached(by_table_shape)).make(call)  # noqa: E731
    small, shown = smallest(CALL, failure, fresh, 100)
    assert (small.calls, small.tokens, small.hidden, small.vocab) == (2, 1, 1, 1)
    assert fresh(OPERATOR.call(small.to_json())).failed("EMB-7/history").message == shown.message


@pytest.mark.jax
def test_a_jax_kernel_is_given_numpy_arrays_that_change():
    numpy = importlib.import_module("jax.numpy")
    right = examination(lambda ids, weight: numpy.take(numpy.array(weight), ids, axis=0, mode="clip"), framework="jax")
    call = of(NUMPY, id_dtype="int32")
    assert "EMB-7/history" in right.make(call).passed
    kept = {}

    def stale(ids, weight):
        return kept.setdefault(id(weight), numpy.take(numpy.array(weight), ids, axis=0, mode="clip"))

    [failure] = examination(stale, framework="jax").make(msgspec.structs.replace(call, vocab=33)).failures
    assert failure.check == "EMB-7/history"


@pytest.mark.jax
def test_a_jax_kernel_that_takes_no_numpy_table_is_not_asked_for_more():
    def strict(ids, weight):
        if isinstance(weight, np.ndarray):
            raise TypeError("weight: got a NumPy array")
        return weight[ids]

    seen = examination(strict, framework="jax").make(of(NUMPY, id_dtype="int32"))
    assert seen.failures == []
    assert seen.skipped == {"EMB-7/history": "forward of a NumPy table: TypeError: weight: got a NumPy array"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_history_can_be_written_down_and_cut_short(scenario):
    call = of(scenario)
    assert OPERATOR.call(call.to_json()) == call
    assert call.sizes()["calls"] > 2
    short = call.resized("calls", 2)
    assert short.sizes()["calls"] == 2
    assert short.resized("tokens", 4).shape == (4,)
