"""Plans change what surrounds a token and nothing else; conditions compare what comes of it with the plain call."""

from __future__ import annotations

import dataclasses
import importlib

import msgspec
import numpy as np
import pytest
from support.examined import examination, examined

from xref.engine.conditions import FILLER, PLANS, among, restore
from xref.engine.shrink import smallest
from xref.operators.embedding import faults
from xref.operators.embedding.calls.batches import Batches
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.examine import conditions
from xref.spec import Tier

VOCAB = 300
SIZES = (*range(1, 14), 96, 257)


def ids_of(size, vocab=VOCAB, dtype="int64"):
    return (np.arange(size) * 37 % min(vocab, np.iinfo(dtype).max + 1)).astype(dtype)


def groups_of(name, size, vocab=VOCAB, dtype="int64"):
    ids, keys = ids_of(size, vocab, dtype), np.arange(size)
    if name == "among":
        return [among(ids, keys, vocab, size + more) for more in (1, 2, size, 512)]
    return PLANS[name](ids, keys, vocab)


def batches_of(name, size, **how):
    return [batch for group in groups_of(name, size, **how) for batch in group]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*PLANS, "among"])
def test_each_group_holds_each_token_once_where_its_id_stands(name, size):
    groups = groups_of(name, size)
    assert groups
    for group in groups:
        keys = np.concatenate([batch.keys.reshape(-1) for batch in group])
        ids = np.concatenate([batch.ids.reshape(-1) for batch in group])
        assert all(batch.ids.shape == batch.keys.shape for batch in group)
        np.testing.assert_array_equal(np.sort(keys[keys != FILLER]), np.arange(size))
        np.testing.assert_array_equal(ids[keys != FILLER], ids_of(size)[keys[keys != FILLER]])


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_as_many_groups_for_any_number_of_tokens(name):
    assert len({len(groups_of(name, size)) for size in SIZES}) == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("name", [*PLANS, "among"])
def test_fillers_are_valid_ids_of_the_same_dtype(name, dtype):
    for vocab in (1, 2, VOCAB):
        for batch in batches_of(name, 21, vocab=vocab, dtype=dtype):
            assert batch.ids.dtype == dtype
            assert batch.ids.size == 0 or 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < vocab


@pytest.mark.parametrize("name", PLANS)
def test_a_condition_is_never_the_plain_call(name):
    plain = ids_of(257)
    for [first, *rest] in groups_of(name, 257):
        assert rest or first.layout != "dense" or first.ids.shape != plain.shape or (first.ids != plain).any()


def test_population_is_each_token_alone_and_among_strangers():
    [alone] = groups_of("population", 12)
    assert [batch.ids.shape for batch in alone] == [(1,)] * 12
    [crowd] = among(ids_of(12), np.arange(12), VOCAB, 100)
    assert crowd.ids.shape == (100,)
    assert crowd.keys[44:56].tolist() == list(range(12))


def test_position_puts_every_token_where_another_stood():
    groups = groups_of("position", 12)
    assert len(groups) == 3
    for [batch] in groups:
        assert (batch.keys != np.arange(12)).all()


def test_neighbours_are_one_filler_after_each_token_and_both_ends_of_the_table_among_them():
    fillers = []
    for [batch] in groups_of("neighbours", 12):
        np.testing.assert_array_equal(batch.keys[::2], np.arange(12))
        assert (batch.keys[1::2] == FILLER).all()
        fillers.append(batch.ids[1::2])
    assert (fillers[0] == 0).all()
    assert (fillers[1] == VOCAB - 1).all()
    assert (fillers[2] == ids_of(12)[::-1]).all()


def test_padding_is_left_or_right_and_a_whole_row_with_either_end_of_the_table():
    seen = set()
    for [batch] in groups_of("padding", 37):
        assert batch.ids.shape == (4, 19)
        assert (batch.keys[-1] == FILLER).all()
        left, right = (batch.keys[:, :3] == FILLER).all(), (batch.keys[:, -3:] == FILLER).all()
        assert left != right
        [pad] = np.unique(batch.ids[batch.keys == FILLER])
        seen.add((bool(left), int(pad)))
    assert seen == {(left, pad) for left in (True, False) for pad in (0, VOCAB - 1)}


def test_layout_has_other_shapes_and_transposed_memory():
    found = [(batch.ids.shape, batch.layout) for batch in batches_of("layout", 37) if batch.ids.size > 1]
    assert found == [((2, 18), "dense"), ((3, 1, 2, 6), "dense"), ((36, 1), "dense"), ((2, 18), "transposed")]
    assert all(batch.ids.flags.c_contiguous for batch in batches_of("layout", 37))


def test_chunks_do_not_divide_the_tokens():
    sizes = [[batch.ids.size for batch in group] for group in groups_of("chunked", 257)]
    assert sizes == [[7] * 36 + [5], [100, 100, 57]]


def test_decode_takes_one_token_of_each_sequence_and_the_last_step_has_fewer():
    assert [batch.ids.shape for batch in batches_of("decode", 37)] == [(8, 1)] * 4 + [(5, 1)]


def test_permuted_orders_differ_from_each_other_and_from_the_plain_one():
    orders = {tuple(batch.keys) for batch in batches_of("permuted", 37)}
    assert len(orders) == 4
    assert tuple(range(37)) not in orders
    assert tuple(range(36, -1, -1)) in orders


def rows_for(keys):
    return np.stack([np.array([10 * key, 10 * key + 1]) for key in np.ravel(keys)]).reshape(*np.shape(keys), 2)


def test_restore_puts_rows_in_the_order_of_their_keys_and_drops_fillers():
    parts = [(np.array([[3, FILLER], [0, 2]]), rows_for([[3, -1], [0, 2]])), (np.array([1]), rows_for([1]))]
    np.testing.assert_array_equal(restore(parts, 4, "here"), rows_for([0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([0, 1, 3], "key 2: got 0 results, expected exactly one [here]"),
        ([0, 1, 2], "key 3: got 0 results, expected exactly one [here]"),
        ([0, 1, 1, 2, 3], "key 1: got 2 results, expected exactly one [here]"),
        ([0, 1, 2, 3, 4], "key 4: got 1 result, expected none [here]"),
        ([0, 1, 2, 3, 9, 9], "key 9: got 2 results, expected none [here]"),
        ([FILLER, FILLER], "key 0: got 0 results, expected exactly one [here]"),
    ],
    ids=["missing", "missing last", "doubled", "extra", "extra far off", "fillers alone"],
)
def test_restore_refuses_keys_that_are_not_each_there_once(keys, message):
    with pytest.raises(ValueError, match="key") as caught:
        restore([(np.array(keys), rows_for(keys))], 4, "here")
    assert str(caught.value) == message


# Batches, examined

SMALL = Batches(
    check="EMB-7/position", dtype="bfloat16", vocab=31, hidden=3, table="hashed", ids="covering", shape=(40,),
    plan="position",
)  # fmt: skip
CHECKS = [
    conditions.population, conditions.position, conditions.neighbours, conditions.padding, conditions.layout,
    conditions.chunked, conditions.decode, conditions.permuted, conditions.gradient, conditions.settings,
]  # fmt: skip


def flipped(out, where):
    ints = out.view(importlib.import_module("torch").int16).clone()
    ints[where] ^= 1
    return ints.view(out.dtype)


def position_dependent(ids, weight):
    out = weight[ids.long()]
    return flipped(out.reshape(-1, weight.shape[1]), slice(9, 10)).reshape(out.shape)


def changed_alone(ids, weight):
    out = weight[ids.long()]
    return flipped(out, ...) if ids.numel() == 1 else out


def large_batches_changed(ids, weight):
    out = weight[ids.long()]
    return flipped(out, ...) if ids.numel() > 2000 else out


def always_wrong(ids, weight):
    return flipped(weight[ids.long()], ...)


@pytest.mark.torch
def test_a_right_kernel_passes_every_condition():
    found = examined(lambda ids, weight: weight[ids.long()], *CHECKS)
    assert {id: finding.failed for id, finding in found.items()} == dict.fromkeys(found, 0)
    assert all(found[check.id].cases for check in CHECKS)


def made(kernel, call, **how):
    return examination(kernel, conditions.position, **how).make(call)


@pytest.mark.torch
def test_what_is_right_alone_and_wrong_among_others_names_the_way():
    alone = msgspec.structs.replace(SMALL, plan="population", check="EMB-7/population")
    seen = made(changed_alone, alone)
    [failure] = seen.failures
    assert failure.check == "EMB-7/population"
    assert failure.message.startswith("out[0, 0]: got 0x")
    assert [suspect.fault for suspect in failure.suspects] == [faults.OTHER_PATH_BY_BATCH_SIZE.name]
    seen = made(large_batches_changed, msgspec.structs.replace(alone, among=3000))
    assert [failure.check for failure in seen.failures] == ["EMB-7/population"]
    assert made(large_batches_changed, msgspec.structs.replace(alone, among=1000)).failures == []


@pytest.mark.torch
def test_what_is_wrong_always_is_no_fault_of_the_batch():
    seen = made(always_wrong, SMALL)
    [failure] = seen.failures
    assert (failure.check, type(failure.call)) == ("EMB-1", Forward)
    assert "EMB-7/position" in seen.passed  # the rows are the plain call's


@pytest.mark.torch
def test_a_batch_that_raises_is_a_failure_of_the_condition():
    def kernel(ids, weight):
        if ids.numel() == 1:
            raise RuntimeError("one token")
        return weight[ids.long()]

    [failure] = made(kernel, msgspec.structs.replace(SMALL, plan="population")).failures
    assert failure.check == "EMB-7/population"
    assert failure.raised == "RuntimeError: one token"
    assert [suspect.fault for suspect in failure.suspects] == [faults.OTHER_PATH_BY_BATCH_SIZE.name]


@pytest.mark.torch
def test_the_evidence_is_the_call_that_is_wrong():
    failure = made(changed_alone, msgspec.structs.replace(SMALL, plan="population")).failed("EMB-7/population")
    assert (failure.evidence.call.shape, failure.evidence.got.shape) == ((1,), (1, 3))
    failure = made(position_dependent, SMALL).failed("EMB-7/position")
    assert (failure.evidence.got != failure.evidence.expected).any()
    assert failure.suspects[0].fault == faults.POSITION_DEPENDENT.name


@pytest.mark.torch
def test_a_failing_condition_fails_again_in_the_same_check_and_shrinks():
    examined_now = examination(position_dependent, conditions.position)
    call = msgspec.json.decode(SMALL.to_json(), type=Batches)
    failure = examined_now.make(call).failed("EMB-7/position")
    small, shown = smallest(call, failure, examined_now.make, 200)
    assert (small.check, small.tokens, small.hidden, small.vocab) == ("EMB-7/position", 10, 1, 1)
    again = examined_now.make(msgspec.json.decode(small.to_json(), type=Batches))
    assert again.failed("EMB-7/position").message == shown.message


@pytest.mark.torch
def test_strangers_are_made_as_few_as_it_still_fails():
    call = msgspec.structs.replace(SMALL, plan="population", check="EMB-7/population", among=4097)
    examined_now = examination(large_batches_changed, conditions.population)
    failure = examined_now.make(call).failed("EMB-7/population")
    small, _ = smallest(call, failure, examined_now.make, 200)
    assert (small.among, small.tokens) == (2001, 1)


@pytest.mark.torch
def test_no_text_says_a_number_that_is_not_tried():
    assert not any(character.isdigit() for check in CHECKS for character in check.text)


@pytest.mark.torch
@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_every_condition_yields_calls_of_its_own_check(tier):
    exam = exam_of(tier)
    for check in CHECKS:
        calls = list(check.calls(exam))
        assert calls
        assert {call.check for call in calls} <= {check.id, "EMB-1"} if check is not conditions.layout else True


def exam_of(tier, pinned=False):
    exam = examination(lambda ids, weight: weight[ids], conditions.position).exam
    return dataclasses.replace(exam, tier=tier, dtypes=("float32", "bfloat16", "float16"), pinned=pinned)


@pytest.mark.torch
def test_goldens_meet_the_conditions_on_the_fixed_cases():
    calls = list(conditions.position.calls(exam_of(Tier.SMOKE, pinned=True)))
    assert {call.plain().id for call in calls} == {
        "float32-hashed-1024x1025-covering-1098-int64",
        "bfloat16-patterns-1009x65-covering-1098-int64",
        "float16-patterns-1009x65-covering-1098-int64",
    }
