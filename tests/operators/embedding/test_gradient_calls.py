"""One gradient asked for: what it must be, whose failure it is, and the smallest call that still fails."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from support.examined import examination

from xref.engine.shrink import smallest
from xref.engine.steps import Output, Put, Raised, Replies
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.calls.sums import answer
from xref.operators.embedding.examine import gradient, gradient_conditions
from xref.spec import Exam, Tier, Traits, declared

pytestmark = pytest.mark.torch

CHECKS = declared(gradient, gradient_conditions)
CALL = Gradient(check="EMB-8", verb="backward", source="float32", result="float32", vocab=40, shape=(33,))
TRAITS = Traits(
    name="it", framework="torch", version="2", device="cpu", device_name="CPU", verbs=("forward", "backward")
)


def summed(ids, cotangent, vocab):
    total = torch.zeros((vocab, cotangent.shape[-1]), dtype=torch.float64)
    flat = cotangent.reshape(-1, cotangent.shape[-1]).double()
    return total.index_add_(0, ids.reshape(-1).long(), flat).to(cotangent.dtype)


def forward(ids, weight):
    return F.embedding(ids.long(), weight)


def made(call, backward=summed, **how):
    """Return what one call of an object with its own backward shows."""
    verbs = {"forward": forward} if call.verb == "forward" else {"forward": forward, "backward": backward}
    return examination(verbs, *CHECKS, dtypes=(call.result,), **how).make(call)


def replied(call, reply, *, golden=False, framework="torch"):
    """Return what a call shows where the last of its steps that gives anything is answered so."""
    exam = Exam(traits=msgspec.structs.replace(TRAITS, golden=golden, framework=framework), tier=Tier.SMOKE, dtypes=())
    script = call.script(exam)
    kept = {step.name: step.array for step in script.steps if isinstance(step, Put)}
    replies = [
        Output(form=((), "", "cpu"), array=kept[step.name]) if step.name in kept else reply for step in script.steps
    ]
    return call.judge(script, Replies(script, replies), exam)


def output(array, dtype="float32"):
    return Output(form=(array.shape, dtype, "cpu"), array=array)


# What a gradient must be


def test_a_right_gradient_passes_in_the_bits_that_other_subjects_are_compared_with():
    seen = made(CALL)
    assert seen.failures == []
    assert set(seen.passed) == {"EMB-5", "EMB-8", "EMB-9"}
    assert np.array_equal(seen.outputs["grad_weight"], answer(CALL, *CALL.arrays()))


@pytest.mark.parametrize("values", ["edge", "negative-zero", "specials"])
def test_specials_are_evidence_of_their_own_clause(values):
    seen = made(msgspec.structs.replace(CALL, values=values))
    assert seen.failures == []
    assert set(seen.passed) == {"EMB-5", "EMB-9", "EMB-11", "EMB-11/zero sign"}


def test_one_step_beyond_the_bound_fails_and_within_it_only_the_golden_does():
    call = msgspec.structs.replace(CALL, ids="equal", shape=(3,), vocab=2, hidden=1)
    right = answer(call, *call.arrays())
    near, far = right.copy(), right.copy()
    near[1, 0] += 1
    far[1, 0] += 100
    assert replied(call, output(near)).failures == []
    [failure] = replied(call, output(far)).failures
    assert failure.check == "EMB-8"
    assert failure.message.startswith("gradient[1, 0]: got ")
    [failure] = replied(call, output(near), golden=True).failures
    expected = f"gradient[1, 0]: got 0x{near[1, 0]:08x}, expected 0x{right[1, 0]:08x} (1 ulp; 1 of 1 elements differ)"
    assert (failure.check, failure.message) == ("EMB-8", expected)
    assert failure.evidence.off.tolist() == [[True]]


def test_a_row_that_no_id_names_must_be_plus_zero():
    call = msgspec.structs.replace(CALL, ids="equal", shape=(3,), vocab=4, hidden=2)
    wrong = answer(call, *call.arrays())
    wrong[2, 1] = 1 << 31
    [failure] = replied(call, output(wrong)).failures
    message = "gradient[2, 1]: got 0x80000000, expected +0 in a row that no id names (1 of 6 elements differ)"
    assert (failure.check, failure.message) == ("EMB-9", message)


def test_a_lost_nan_is_the_specials_failure_and_again_it_fails_in_that_check():
    call = msgspec.structs.replace(CALL, values="specials", check="EMB-11")

    def without_nan(ids, cotangent, vocab):
        return summed(ids, cotangent.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf")), vocab)

    failure = made(call, without_nan).failed("EMB-11")
    again = OPERATOR.call(msgspec.structs.replace(call, check=failure.check).to_json())
    assert made(again, without_nan).failed("EMB-11").message == failure.message
    assert "expected NaN within the bound" in failure.message


def test_the_sign_of_a_zero_sum_is_graded_alone():
    call = msgspec.structs.replace(CALL, values="negative-zero")

    def minus_zero(ids, cotangent, vocab):
        out = summed(ids, cotangent, vocab)
        out[ids] = -0.0
        return out

    [failure] = made(call, minus_zero).failures
    assert failure.check == "EMB-11/zero sign"
    assert failure.message.endswith(": got -0 for an exact zero sum, expected +0")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ids, c, v: summed(ids, c, v).double(), "got shape (40, 8), float64, on cpu"),
        (lambda ids, c, v: summed(ids, c, v)[:-1], "got shape (39, 8), float32, on cpu"),
        (lambda ids, c, v: summed(ids, c, v).numpy(), "got shape (40, 8), float32, on host"),
        (lambda ids, c, v: None, "got None"),
    ],
    ids=["dtype", "shape", "numpy", "none"],
)
def test_a_gradient_of_another_form_fails_the_clause_of_sums(wrong, message):
    [failure] = made(CALL, wrong).failures
    assert failure.check == "EMB-8"
    assert failure.message == f"gradient: {message}, expected shape (40, 8), float32, on cpu"


@pytest.mark.parametrize(
    ("name", "change"),
    [("token_ids", lambda ids, c: ids.zero_()), ("cotangent", lambda ids, c: c.zero_())],
    ids=["ids", "cotangent"],
)
def test_inputs_keep_their_bits(name, change):
    def backward(ids, cotangent, vocab):
        out = summed(ids, cotangent, vocab)
        change(ids, cotangent)
        return out

    [failure] = made(CALL, backward).failures
    assert failure.check == "EMB-5"
    assert failure.message.startswith(f"{name}: got other ")


def test_the_gradient_has_memory_of_its_own():
    call = msgspec.structs.replace(CALL, ids="every", vocab=33)
    [failure] = made(call, lambda ids, cotangent, vocab: cotangent).failures
    assert (failure.check, failure.message) == ("EMB-5", "gradient: got memory of cotangent, expected its own")


# Where there is none


def test_a_gradient_that_is_not_connected_is_a_skip_in_words():
    call = msgspec.structs.replace(CALL, verb="forward")
    seen = examination(lambda ids, weight: weight.detach()[ids.long()], *CHECKS, dtypes=("float32",)).make(call)
    assert seen.failures == []
    assert set(seen.skipped) == {"EMB-8", "EMB-9"}
    assert seen.skipped["EMB-8"].startswith(
        "gradient of forward, float32 to float32: NoGradientError: gradient: got an"
    )


def test_an_exception_is_a_failure():
    def raises(ids, cotangent, vocab):
        raise ValueError("not there")

    [failure] = made(CALL, raises).failures
    assert failure.message.startswith("gradient: got ValueError: not there at test_gradient_calls.py:")
    assert failure.raised == "ValueError: not there"


@pytest.mark.parametrize("shape", [(), (0,)])
def test_what_raises_on_unusual_ids_alone_is_a_failure_and_not_the_lack_of_a_gradient(shape):
    def unusual(ids, cotangent, vocab):
        if not ids.ndim or not ids.numel():
            raise NotImplementedError("no such ids")
        return summed(ids, cotangent, vocab)

    call = msgspec.structs.replace(CALL, shape=shape)
    assert [failure.check for failure in made(call, unusual).failures] == ["EMB-8"]

    def never(ids, cotangent, vocab):
        raise NotImplementedError("no backward")

    assert made(call, never).skipped["EMB-8"] == "backward, float32 to float32: NotImplementedError: no backward"


def test_an_exception_of_jax_is_the_lack_of_a_gradient_where_an_ordinary_call_raises_too():
    call = msgspec.structs.replace(CALL, verb="forward")
    raised = Raised(type="ValueError", bases=("ValueError",), line="ValueError: no rule", unconnected=True)
    assert replied(call, raised, framework="jax").skipped["EMB-8"].endswith("ValueError: no rule")


# Variations


def ignoring_strides(ids, cotangent, vocab):
    return summed(ids, cotangent.as_strided(cotangent.shape, tuple(torch.empty(cotangent.shape).stride())), vocab)


def test_a_layout_is_blamed_only_where_dense_memory_is_right():
    call = msgspec.structs.replace(CALL, check="EMB-10/layout", layout="strided", values="turns")
    [failure] = made(call, ignoring_strides).failures
    assert failure.check == "EMB-10/layout"
    assert [suspect.fault for suspect in failure.suspects] == [faults.COTANGENT_STRIDES_IGNORED.name]
    [failure] = made(call, lambda ids, c, v: 2 * summed(ids, c, v)).failures
    assert (failure.check, failure.suspects) == ("EMB-8", ())


@pytest.mark.parametrize("layout", ["expanded", "columns expanded", "every second token", "slice of a longer one"])
def test_what_a_layout_holds_is_what_is_summed(layout):
    for shape in ((33,), (3, 11), (1, 33)):
        seen = made(msgspec.structs.replace(CALL, check="EMB-10/layout", layout=layout, shape=shape))
        assert seen.failures == []
        assert seen.passed["EMB-10/layout"] > 0


def test_a_setting_is_blamed_only_where_the_plain_call_is_right():
    call = msgspec.structs.replace(CALL, check="EMB-10/settings", mode="no_grad", values="whole")

    def in_no_grad(ids, cotangent, vocab):
        return summed(ids, cotangent, vocab) * (1 + torch.is_grad_enabled())

    [failure] = made(call, lambda ids, c, v: summed(ids, c, v) * (2 - torch.is_grad_enabled())).failures
    assert failure.check == "EMB-10/settings"
    assert [suspect.fault for suspect in failure.suspects] == [faults.SETTING_DEPENDENT.name]
    assert [failure.check for failure in made(call, in_no_grad).failures] == ["EMB-8"]


def test_what_a_mode_of_gradients_refuses_is_no_failure():
    call = msgspec.structs.replace(CALL, check="EMB-10/settings", mode="inference_mode", values="whole")

    def refusing(ids, cotangent, vocab):
        if torch.is_inference_mode_enabled():
            raise RuntimeError("not here")
        return summed(ids, cotangent, vocab)

    seen = made(call, refusing)
    assert (seen.failures, seen.skipped) == ([], {"EMB-10/settings": "inference_mode: refused"})


# Smaller calls


def test_a_call_reads_in_one_line_and_comes_back_from_json():
    call = msgspec.structs.replace(
        CALL, verb="forward", layout="strided", id_layout="read-only", id_dtype="uint8", mode="another thread"
    )
    assert str(call) == (
        "gradient of forward, float32-to-float32-gaussian-40x8-zipf-33, cotangent strided, ids read-only, ids uint8,"
        " another thread"
    )
    assert OPERATOR.call(call.to_json()) == call


@pytest.mark.parametrize(
    ("wrong", "sizes"),
    [
        (lambda ids, c, v: 2 * summed(ids, c, v), (1, 1, 1)),
        (lambda ids, c, v: summed(ids.reshape(-1)[:16], c.reshape(-1, c.shape[-1])[:16], v), (17, 1, 1)),
    ],
    ids=["doubled", "tokens past 16 lost"],
)
def test_the_smallest_call_has_the_fewest_tokens_columns_and_rows(wrong, sizes):
    call = msgspec.structs.replace(CALL, values="cancelling", shape=(35, 38), ids="zipf_ends", id_dtype="uint8")
    found = examination({"forward": forward, "backward": wrong}, *CHECKS, dtypes=("float32",))
    failure = found.make(call).failed("EMB-8")
    small, smaller_failure = smallest(call, failure, found.make, 120)
    assert (small.shape, small.hidden, small.vocab) == ((sizes[0],), *sizes[1:])
    assert small.id_dtype == "int64"
    assert smaller_failure.check == "EMB-8"


def test_distinct_ids_and_a_row_of_padding_stay_within_the_table():
    distinct = msgspec.structs.replace(CALL, ids="distinct")
    assert distinct.resized("rows", 32) is None
    assert distinct.resized("rows", 33).vocab == 33
    padded = msgspec.structs.replace(CALL, padding_idx=5)
    assert padded.resized("rows", 5) is None
    assert padded.resized("tokens", 4).shape == (4,)


def test_a_golden_is_given_dtype_padding_and_parts_as_options():
    call = msgspec.structs.replace(CALL, source="float32", result="bfloat16", padding_idx=0, parts=2)
    exam = Exam(traits=TRAITS, tier=Tier.SMOKE, dtypes=())
    step = call.script(exam).steps[2]
    assert step.options == {"dtype": "bfloat16", "padding_idx": 0, "parts": 2}
    assert step.arguments == ("token_ids", "cotangent", 40)
