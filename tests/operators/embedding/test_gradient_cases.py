"""The contract's fixed gradients: their names, their digests, and that orders can be told apart where they must."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from xref.bits import FORMATS
from xref.operators.embedding.answers import pinned
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.cotangents import SPECIALS, cotangent_families, make_cotangent
from xref.operators.embedding.gradient_cases import cases, digests, reordered_share
from xref.spec import Tier

EVERY = cases(Tier.EXHAUSTIVE)
SMALL = [case for case in EVERY if case.call.vocab * case.call.hidden < 1000 and np.prod(case.call.shape) < 1000]


def case_of(name):
    [case] = [case for case in EVERY if case.id == name]
    return case


def test_a_digest_is_pinned_for_every_case_and_for_no_other_gradient():
    gradients = {name for name, each in pinned().items() if set(each.answers) == {"grad_weight"}}
    assert {case.id for case in EVERY} == gradients
    assert len(EVERY) == len(gradients) == 109


def test_each_tier_has_the_cases_of_the_smaller_ones():
    tiers = [cases(tier) for tier in (Tier.SMOKE, Tier.STANDARD, Tier.EXHAUSTIVE)]
    assert all(set(small) < set(large) for small, large in itertools.pairwise(tiers))
    assert {case.call.result for case in cases(Tier.STANDARD, dtypes=("float16",))} == {"float16"}


def test_a_case_is_evidence_of_specials_where_its_cotangents_are_special():
    assert all((case.call.check == "EMB-11") == (case.call.values in SPECIALS) for case in EVERY)
    assert all(case.call.check == case.call.accuracy for case in EVERY)


@pytest.mark.parametrize("case", SMALL[::7], ids=lambda case: case.id)
def test_inputs_and_answers_are_the_pinned_ones(case):
    assert digests(case.call) == pinned()[case.id]


def test_one_changed_bit_of_the_answer_shows():
    case = case_of("bfloat16-to-bfloat16-gaussian-5x8-zipf-0")
    assert digests(case.call, np.zeros((5, 8), np.uint16)) == pinned()[case.id]
    other = np.zeros((5, 8), np.uint16)
    other[4, 7] = 1
    assert digests(case.call, other).answers != pinned()[case.id].answers


@pytest.mark.parametrize("case", [case for case in EVERY if case.conditions], ids=lambda case: case.id)
def test_a_case_of_invariance_can_tell_orders_apart(case):
    assert reordered_share(case.call, *case.call.arrays()) > 0


@pytest.mark.parametrize("values", ["equal", "negative-zero"])
def test_a_case_on_which_no_order_shows_has_no_share(values):
    call = case_of(f"bfloat16-to-bfloat16-{values}-100x8-zipf-256").call
    assert reordered_share(call, *call.arrays()) == 0


def test_without_tokens_there_is_no_order():
    call = case_of("bfloat16-to-bfloat16-gaussian-5x8-zipf-0").call
    with pytest.raises(ValueError, match="ids: got none, expected at least one"):
        reordered_share(call, *call.arrays())


# Families


@pytest.mark.parametrize("family", cotangent_families())
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_family_gives_bits_of_the_shape(family, dtype):
    fmt = FORMATS[dtype]
    for shape in ((), (0,), (5,), (2, 3)):
        made = make_cotangent(family, shape, 4, fmt)
        assert (made.shape, made.dtype) == ((*shape, 4), fmt.uint)
        assert np.array_equal(made, make_cotangent(family, shape, 4, fmt))


def test_whole_numbers_differ_by_seed_and_are_small():
    one, two = (make_cotangent("whole", (50,), 3, FORMATS["float32"], seed=seed) for seed in (1, 2))
    assert not np.array_equal(one, two)
    assert set(np.abs(one.view(np.float32)).reshape(-1).tolist()) == {1.0, 2.0, 3.0, 4.0}


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("values", "random", "expected a family"),
        ("source", "int8", "table dtypes"),
        ("ids", "some", "ids some of int64"),
        ("id_dtype", "float32", "an integer dtype"),
        ("layout", "upside down", "layouts upside down, dense"),
        ("shape", [-1], "expected sizes of a table"),
        ("vocab", 2**31, "expected sizes of a table"),
    ],
)
def test_a_record_of_what_no_report_holds_is_refused(field, value, says):
    call = Gradient(check="EMB-8", verb="backward", source="float32", result="float32")
    record = {**msgspec.json.decode(call.to_json()), field: value}
    with pytest.raises(msgspec.ValidationError, match=says):
        msgspec.json.decode(msgspec.json.encode(record), type=Gradient)
