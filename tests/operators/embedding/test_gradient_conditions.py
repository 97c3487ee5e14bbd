"""Gradients that must have the same bits, whatever surrounds a token or a call: batches, histories, table dtypes."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from support.examined import examination, examined

from xref.engine import frameworks
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.calls.gradient_batches import CONDITIONS, GradientBatches, GradientDtypes
from xref.operators.embedding.calls.gradient_history import SCENARIOS, GradientHistory
from xref.operators.embedding.examine import gradient, gradient_conditions
from xref.operators.embedding.examine.gradient import sums
from xref.operators.embedding.goldens import verbs_of_gradient
from xref.spec import Exam, Tier, Traits, declared

pytestmark = pytest.mark.torch

CHECKS = declared(gradient, gradient_conditions)
PLAIN = Gradient(
    check="EMB-8", verb="backward", source="float32", result="float32", values="cancelling", vocab=40, shape=(96,)
)
WHOLE = msgspec.structs.replace(PLAIN, values="whole", hidden=4, shape=(33,))


def flat(ids, cotangent):
    return ids.reshape(-1).long(), cotangent.reshape(-1, cotangent.shape[-1])


def added(ids, cotangent, vocab, dtype=torch.float64):
    """Sums in token order: exact in float64 for the cotangents here, in float32 not."""
    total = torch.zeros((vocab, cotangent.shape[-1]), dtype=dtype)
    return total.index_add_(0, ids, cotangent.to(dtype)).to(cotangent.dtype)


def exactly(ids, cotangent, vocab):
    return added(*flat(ids, cotangent), vocab)


def in_float32(ids, cotangent, vocab):
    return added(*flat(ids, cotangent), vocab, torch.float32)


def forward(ids, weight):
    return F.embedding(ids.long(), weight)


def made(call, backward):
    return examination({"forward": forward, "backward": backward}, *CHECKS, dtypes=("float32",)).make(call)


def batches(condition, **how):
    plain = msgspec.structs.replace(PLAIN, **how)
    return GradientBatches(check=f"EMB-10/{condition}", plain=plain, condition=condition)


def suspects(seen):
    return [suspect.fault for failure in seen.failures for suspect in failure.suspects]


# Batches


@pytest.mark.parametrize("condition", CONDITIONS)
def test_exact_sums_have_the_same_bits_in_every_condition(condition):
    values = "turns" if condition == "split" else "cancelling"  # each part is rounded
    seen = made(batches(condition, values=values), exactly)
    assert (seen.failures, seen.skipped) == ([], {})
    assert seen.passed[f"EMB-10/{condition}"] >= 320


@pytest.mark.parametrize("condition", ["permuted", "split"])
def test_sums_in_float32_depend_on_the_order_and_no_run_is_blamed_for_it(condition):
    seen = made(batches(condition), in_float32)
    [failure] = seen.failures
    assert failure.check == f"EMB-10/{condition}"
    assert failure.message.startswith("gradient[")
    assert suspects(seen) == []


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_run_is_blamed_where_the_same_call_again_has_other_bits(condition):
    def by_chance(ids, cotangent, vocab, draw=np.random.default_rng(3)):  # noqa: B008
        ids, cotangent = flat(ids, cotangent)
        order = torch.from_numpy(draw.permutation(len(ids)))
        return added(ids[order], cotangent[order], vocab, torch.float32)

    assert set(suspects(made(batches(condition), by_chance))) == {faults.GRADIENT_ORDER_BY_RUN.name}


def test_another_order_by_shape_is_told_from_strides_that_are_ignored():
    def by_shape(ids, cotangent, vocab):
        order = slice(None) if ids.ndim < 2 else torch.arange(ids.numel()).flip(0)
        ids, cotangent = flat(ids, cotangent)
        return added(ids[order], cotangent[order], vocab, torch.float32)

    def without_strides(ids, cotangent, vocab):
        dense = cotangent.as_strided(cotangent.shape, tuple(torch.empty(cotangent.shape).stride()))
        return in_float32(ids, dense, vocab)

    assert suspects(made(batches("layout"), by_shape)) == [faults.GRADIENT_ORDER_BY_RUN.name]
    assert faults.COTANGENT_STRIDES_IGNORED.name in suspects(made(batches("layout"), without_strides))


def test_padding_that_counts_is_found():
    def counting(ids, cotangent, vocab):
        ids, cotangent = flat(ids, cotangent)
        return added(ids, torch.where(cotangent == 0, torch.ones(()), cotangent), vocab)

    [failure] = made(batches("padding"), counting).failures
    assert (failure.check, failure.message.rpartition(") ")[2]) == ("EMB-10/padding", "padded on the left")
    assert failure.evidence.ids.shape == (103,)


def later(change):
    """A backward whose calls after the first are changed."""
    calls = itertools.count()
    return lambda ids, cotangent, vocab: change(exactly(ids, cotangent, vocab), next(calls))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda out, call: out * min(call + 1, 2), faults.GRADIENT_ACCUMULATES_ACROSS_CALLS),
        (lambda out, call: out * (call != 1), faults.CALL_COUNT_DEPENDENT),
    ],
    ids=["accumulates", "zero"],
)
def test_a_second_call_that_is_wrong_is_found_by_the_repeats(change, fault):
    seen = made(batches("repeat"), later(change))
    assert [failure.check for failure in seen.failures] == ["EMB-10/repeat"]
    assert seen.failures[0].message.endswith(" in call 2")
    assert suspects(seen) == [fault.name]


def test_a_plain_call_that_raises_is_no_fault_of_the_condition():
    def raises(ids, cotangent, vocab):
        raise ValueError("never")

    seen = made(batches("padding"), raises)
    assert [(failure.check, failure.call) for failure in seen.failures] == [("EMB-8", PLAIN)]
    assert seen.skipped == {"EMB-10/padding": "the same call made plainly fails: EMB-8"}


def test_a_condition_comes_back_from_json_and_fails_in_its_check():
    call = OPERATOR.call(batches("split").to_json())
    assert call == batches("split")
    assert str(call) == "backward, float32-to-float32-cancelling-40x8-zipf-96, condition split"
    assert made(call, in_float32).failed("EMB-10/split")
    smaller = call.resized("tokens", 12)
    assert (smaller.plain.shape, call.sizes()) == ((12,), {"tokens": 96, "columns": 8, "rows": 40})
    assert all(isinstance(plain, GradientBatches) for plain in call.plainer())


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_golden_keeps_its_bits_among_named_rows_and_in_accumulators(condition):
    framework = frameworks.load("torch", "tests")
    verbs = {"forward": framework.arrays.golden.forward, **verbs_of_gradient(framework)}
    found = examination(verbs, *CHECKS, dtypes=("float32",), golden=True)
    seen = found.make(batches(condition))
    assert (seen.failures, seen.skipped) == ([], {})


# Histories


def test_a_right_backward_has_no_history():
    seen = made(GradientHistory(check="EMB-10/history", plain=WHOLE), exactly)
    assert (seen.failures, seen.skipped) == ([], {})
    assert seen.passed["EMB-10/history"] > 0
    assert seen.passed["EMB-5"] == 6 * 160


class Cached:
    """Gives what it has computed for the same ids, found again in some way."""

    def __init__(self, key):
        self.key, self.kept = key, {}

    def __call__(self, ids, cotangent, vocab):
        place = self.key(ids), vocab
        if place not in self.kept:
            self.kept = {place: exactly(ids, cotangent, vocab)}
        return self.kept[place].clone()


@pytest.mark.parametrize(
    "key",
    [lambda ids: ids.data_ptr(), lambda ids: ids.shape, lambda ids: (ids.sum().item(), ids[0].item())],
    ids=["address", "shape", "sum"],
)
def test_what_is_kept_between_calls_is_a_stale_cache(key):
    seen = made(GradientHistory(check="EMB-10/history", plain=WHOLE), Cached(key))
    assert [failure.check for failure in seen.failures] == ["EMB-10/history"]
    assert suspects(seen) == [faults.STALE_CACHE.name]
    assert seen.failures[0].message.endswith("(the same ids, other cotangents)")


def test_ids_kept_by_their_version_are_found_where_they_change_past_it():
    kept = {}

    def by_version(ids, cotangent, vocab):
        key = id(ids), ids._version
        if key not in kept:
            kept.clear()
            kept[key] = ids.clone()
        return exactly(kept[key], cotangent, vocab)

    seen = made(GradientHistory(check="EMB-10/history", plain=WHOLE, scenarios=("overwritten",)), by_version)
    assert suspects(seen) == [faults.STALE_CACHE.name]
    assert seen.failures[0].message.endswith("(the same arrays, other ids in them)")


def test_a_gradient_that_grows_is_found_for_what_it_is():
    total = {}

    def growing(ids, cotangent, vocab):
        new = exactly(ids, cotangent, vocab)
        total[new.shape] = total[new.shape] + new if new.shape in total else new
        return total[new.shape].clone()

    call = GradientHistory(check="EMB-10/history", plain=WHOLE)
    assert suspects(made(call, growing)) == [faults.GRADIENT_ACCUMULATES_ACROSS_CALLS.name]


def test_a_fault_of_the_ids_is_no_fault_of_the_history():
    def runs_once(ids, cotangent, vocab):
        ids, cotangent = flat(ids, cotangent)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        return added(ids[first], cotangent[first], vocab)

    seen = made(GradientHistory(check="EMB-10/history", plain=msgspec.structs.replace(WHOLE, ids="every")), runs_once)
    assert faults.STALE_CACHE.name not in suspects(seen)


def test_where_the_plain_call_is_wrong_nothing_is_the_histories():
    seen = made(GradientHistory(check="EMB-10/history", plain=WHOLE), lambda *given: 2 * exactly(*given))
    assert [(failure.check, failure.call) for failure in seen.failures] == [("EMB-8", WHOLE)]
    assert seen.skipped == {"EMB-10/history": "the same call made plainly is wrong: EMB-8"}


def test_a_buffer_that_is_handed_out_again_is_found():
    buffers = {}

    def reused(ids, cotangent, vocab):
        out = exactly(ids, cotangent, vocab)
        return buffers.setdefault(out.shape, torch.empty_like(out)).copy_(out)

    seen = made(GradientHistory(check="EMB-10/history", plain=WHOLE), reused)
    message = "gradient: got other bits after a later call, expected the same"
    assert [(failure.check, failure.message) for failure in seen.failures] == [("EMB-5", message)]


def test_a_history_shrinks_to_the_scenario_that_fails():
    call = OPERATOR.call(GradientHistory(check="EMB-10/history", plain=WHOLE).to_json())
    backward = later(lambda out, number: out if number < 12 else out + 1)
    assert made(call, backward).failed("EMB-10/history")
    assert [each.scenarios for each in call.plainer()] == [(scenario,) for scenario in SCENARIOS]
    assert call.resized("tokens", 1).plain.shape == (1,)
    assert made(call.resized("tokens", 1).resized("rows", 1), exactly).failures == []


@pytest.mark.parametrize(
    ("call", "field", "value"),
    [
        (GradientHistory(check="EMB-10/history", plain=WHOLE), "scenarios", ["others"]),
        (GradientHistory(check="EMB-10/history", plain=WHOLE), "plain", msgspec.json.decode(PLAIN.to_json())),
        (batches("padding"), "condition", "moon"),
    ],
    ids=["scenario", "values", "condition"],
)
def test_a_record_of_no_report_is_refused(call, field, value):
    with pytest.raises(msgspec.ValidationError):
        OPERATOR.call(msgspec.json.encode({**msgspec.json.decode(call.to_json()), field: value}))


# Table dtypes


def test_a_gradient_that_one_dtype_lacks_and_another_has_is_lost_and_again_it_is():
    def some(ids, weight):
        return F.embedding(ids.long(), weight if weight.dtype == torch.float32 else weight.detach())

    found = examined(some, sums, *CHECKS[1:4], *CHECKS[4:], dtypes=("float32", "bfloat16"))
    [finding] = [each for each in found["EMB-8"].failures if isinstance(each.call, GradientDtypes)]
    assert finding.failure.message.startswith("gradient: got gradient of forward, bfloat16 to bfloat16: NoGradientErr")
    assert finding.failure.message.endswith(", expected one as for other dtypes")
    assert [suspect.fault for suspect in finding.failure.suspects] == [faults.GRADIENT_LOST.name]
    again = OPERATOR.call(finding.call.to_json())
    assert examination(some, *CHECKS).make(again).failed("EMB-8")


def test_a_gradient_that_every_dtype_lacks_and_that_of_float8_are_none_to_be_asked_for():
    found = examined(lambda ids, weight: weight.detach()[ids.long()], *CHECKS, dtypes=("float32", "bfloat16"))
    assert {check.id: found[check.id].failed for check in CHECKS if found[check.id].failed} == {}
    assert all(found[check.id].skipped for check in CHECKS)
    found = examined(forward, sums, *CHECKS[1:], dtypes=("float32", "float8_e5m2"))
    assert found["EMB-8"].failed == 0
    assert any("float8_e5m2 to float8_e5m2: NotImplementedError" in reason for reason in found["EMB-8"].skipped)


# What is examined

TRAITS = Traits(name="it", framework="torch", version="2", device="cpu", device_name="CPU", verbs=("forward",))


def shapes(check_id, framework="jax", tier=Tier.STANDARD, **how):
    traits = msgspec.structs.replace(TRAITS, framework=framework, traces=framework == "jax")
    exam = Exam(traits=traits, tier=tier, dtypes=("float64", "float32", "bfloat16", "float8_e5m2"), **how)
    [check] = [check for check in CHECKS if check.id == check_id]
    return list(check.calls(exam))


def test_with_jax_few_shapes_are_compiled():
    for tier, most in ((Tier.SMOKE, 9), (Tier.STANDARD, 23)):
        calls = [call for check in CHECKS if check.calls for call in shapes(check.id, tier=tier)]
        plain = [getattr(call, "plain", call) for call in calls if isinstance(getattr(call, "plain", call), Gradient)]
        programs = {(p.verb, p.result, p.vocab, p.hidden, p.shape, p.id_dtype, p.way) for p in plain}
        assert len(programs) <= most


def test_conditions_that_no_dtype_is_tried_on_say_so():
    traits = msgspec.structs.replace(TRAITS, framework="jax")
    exam = Exam(traits=traits, tier=Tier.SMOKE, dtypes=("float8_e5m2",))
    for check in declared(gradient_conditions):
        assert any("no table dtype" in item.reason or "no such settings" in item.reason for item in check.calls(exam))


def test_a_golden_is_asked_for_the_fixed_cases_in_all_forms():
    traits = msgspec.structs.replace(TRAITS, verbs=("forward", "forward_fp32", "backward", "by_rows"), golden=True)
    exam = Exam(traits=traits, tier=Tier.STANDARD, dtypes=("bfloat16",), pinned=True)
    calls = [call for call in sums.calls(exam) if isinstance(call, Gradient)]
    assert {call.verb for call in calls} == {"backward", "by_rows", "accumulated", "forward", "forward_fp32"}
    assert {call.result for call in calls} == {"bfloat16"}
    conditions = [call for check in declared(gradient_conditions) for call in check.calls(exam)]
    named = {call.plain.id for call in conditions if isinstance(call, GradientBatches)}
    assert named == {f"{source}-to-bfloat16-cancelling-40x8-zipf-256" for source in ("bfloat16", "float32")}
