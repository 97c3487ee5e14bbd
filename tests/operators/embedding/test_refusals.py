"""Ids that must be refused: right refusals pass, and whatever else a kernel does with them is a verdict."""

from __future__ import annotations

import collections
import ctypes
import os

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from support.examined import Beside, examination, examined

from xref.bits import FORMATS
from xref.engine.evidence import Rewritten
from xref.engine.local import Local
from xref.engine.shrink import smallest
from xref.engine.steps import Died, Done, NotMade, Output, Put, Raised, Replies
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.calls import refusal
from xref.operators.embedding.calls.bad_ids import suspects_of_row
from xref.operators.embedding.calls.refusal import Refusal
from xref.operators.embedding.calls.traced import TracedRefusal
from xref.operators.embedding.examine.conduct import BAD_IDS, refusals, traced_refusals
from xref.spec import Exam, Tier, Traits

pytestmark = pytest.mark.torch


def as_int64(ids):
    """What uint64 holds past int64 stays out of range."""
    if ids.dtype != torch.uint64:
        return ids.long()
    return torch.from_numpy(np.array(np.minimum(ids.numpy(), np.uint64(2**62)), np.int64))


def integers(ids):
    if ids.dtype in (torch.bool, torch.complex64) or ids.dtype.is_floating_point:
        raise TypeError("ids")
    return as_int64(ids)


def right(ids, weight):
    ids = integers(ids)
    if bool(((ids < 0) | (ids >= weight.shape[0])).any()):
        raise IndexError("ids")
    return F.embedding(ids, weight)


def filled(ids, weight, fill):
    ids = integers(ids)
    inside = (ids >= 0) & (ids < weight.shape[0])
    if not weight.shape[0]:
        return weight.new_full((*ids.shape, weight.shape[1]), fill)
    return torch.where(inside[..., None], weight[ids.clamp(0, weight.shape[0] - 1)], fill)


def zeros(ids, weight):
    return filled(ids, weight, 0.0)


def poisoned(ids, weight):
    return filled(ids, weight, float("nan"))


def clamped(ids, weight):
    ids = integers(ids)
    if not weight.shape[0]:
        raise IndexError("empty")
    return weight[ids.clamp(0, weight.shape[0] - 1)]


def wrapped(ids, weight):
    ids = integers(ids)
    if bool(((ids >= weight.shape[0]) | (ids < -weight.shape[0])).any()):
        raise IndexError("ids")
    return weight[torch.where(ids < 0, ids + weight.shape[0], ids)]


def narrowed(ids, weight):
    return right(integers(ids).to(torch.int32), weight)


def floats_taken(ids, weight):
    return right(ids.real.long() if ids.dtype != torch.uint64 else ids, weight)


def neighbours_touched(ids, weight):
    """NaN in the whole output as soon as one id is bad."""
    out = poisoned(ids, weight)
    return torch.full_like(out, float("nan")) if bool(out.isnan().any()) else out


def instead(act):
    """A kernel that does something else where ids are out of range."""

    def kernel(ids, weight):
        try:
            return right(ids, weight)
        except IndexError:
            return act(ids, weight)

    return kernel


def raising(error):
    def act(ids, weight):
        raise error

    return instead(act)


def endless(ids, weight):
    while True:
        pass


def found_of(kernel, promise="raise", **how):
    return examined(kernel, refusals, out_of_range=promise, **how)["EMB-4"]


def seen_in(found):
    """The messages, and the foremost suspects, of what failed."""
    messages = {finding.failure.message for finding in found.failures}
    return messages, {suspect.fault for finding in found.failures for suspect in finding.failure.suspects[:1]}


# Refusals


@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_right_refusals_pass(tier):
    found = found_of(right, tier=tier)
    assert (found.failed, found.skipped) == (0, [])
    assert found.cases > 80
    assert found.elements >= found.cases


def test_rows_of_nan_are_what_was_promised_or_a_failure():
    assert found_of(poisoned, "poison").failed == 0
    messages, suspects = seen_in(found_of(poisoned))
    assert messages == {
        f"{kind}: got a result, expected IndexError"
        for kind in ("id past the end", "id below zero", "id past int32", "id of an empty table")
    }
    assert suspects == {faults.BAD_IDS_FILLED.name}


def test_an_error_is_a_failure_where_rows_of_nan_were_promised():
    messages, _ = seen_in(found_of(raising(IndexError("ids")), "poison"))
    assert any(
        message.startswith("id past the end: got IndexError: ids at test_refusals.py:")
        and message.endswith(", expected rows of NaN")
        for message in messages
    )


def test_rows_beside_a_bad_id_keep_their_bits():
    assert seen_in(found_of(neighbours_touched, "poison"))[0] == {
        "out: got other bits beside an id out of range, expected the rows"
    }


def test_a_result_of_another_shape_is_no_rows_of_nan():
    flat = found_of(instead(lambda ids, weight: poisoned(ids, weight).reshape(-1)), "poison")
    assert "out: got shape (5,), expected rows of NaN" in seen_in(flat)[0]
    assert seen_in(flat)[1] == {faults.WRONG_SHAPE.name}


def test_of_a_kernel_that_promises_nothing_nothing_is_tried():
    found = found_of(lambda ids, weight: 1 / 0, "unchecked")
    assert (found.skipped, found.cases) == (["the candidate promises nothing of ids out of range"], 0)


@pytest.mark.parametrize(
    ("kernel", "promise", "message", "fault"),
    [
        (clamped, "raise", "id past the end: got a result, expected IndexError", faults.IDS_CLAMPED),
        (clamped, "poison", "id below zero: got a row of values, expected NaN", faults.IDS_CLAMPED),
        (wrapped, "raise", "id below zero: got a result, expected IndexError", faults.NEGATIVE_IDS_WRAP),
        (zeros, "raise", "id of an empty table: got a result, expected IndexError", faults.BAD_IDS_FILLED),
        (zeros, "poison", "id past the end: got a row of values, expected NaN", faults.BAD_IDS_FILLED),
        (narrowed, "raise", "id past int32: got a result, expected IndexError", faults.IDS_NARROWED_TO_32_BITS),
        (instead(lambda *_: None), "raise", "id past the end: got a result, expected IndexError",
         faults.BAD_IDS_UNCHECKED),
        (floats_taken, "raise", "bool ids: got a result, expected TypeError", faults.NON_INTEGER_IDS_TAKEN),
        (floats_taken, "poison", "float32 ids: got a result, expected TypeError", faults.NON_INTEGER_IDS_TAKEN),
    ],
)  # fmt: skip
def test_what_else_a_kernel_does_with_bad_ids_is_a_verdict(kernel, promise, message, fault):
    messages, suspects = seen_in(found_of(kernel, promise))
    assert message in messages
    assert fault.name in suspects


@pytest.mark.parametrize("error", [ValueError("bad ids"), SystemExit(0), TypeError("ids")])
def test_a_refusal_by_another_error_is_no_lack_of_a_check(error):
    found = found_of(raising(error))
    messages, suspects = seen_in(found)
    assert suspects == {faults.REFUSES_WITH_ANOTHER_ERROR.name}
    line = f"{type(error).__name__}: {error} at test_refusals.py:"
    assert any(each.startswith(f"id past the end: got {line}") and each.endswith(", expected IndexError") for each in messages)  # fmt: skip  # noqa: E501


def test_the_ordinary_ids_come_first_and_each_kind_is_among_the_first_twenty():
    subject = examination(right, refusals)
    calls = list(refusals.calls(subject.exam))
    assert str(calls[0]) == "forward, bfloat16 table of 300 rows, ids: [300]"
    assert str(calls[1]) == "forward, bfloat16 table of 300 rows, ids: [-1]"
    first = {call._kind() for call in calls[:9]}
    assert first == {"id past the end", "id below zero", "id past int32", "bool ids", "id of an empty table"}


def test_every_call_is_another_one_and_survives_json():
    for tier in (Tier.SMOKE, Tier.STANDARD):
        calls = list(refusals.calls(examination(right, refusals, tier=tier).exam))
        texts = [call.to_json() for call in calls]
        assert [OPERATOR.call(text) for text in texts] == calls
        assert max(map(len, texts)) < 600
        twice = [text for text, count in collections.Counter(texts).items() if count > 1]
        assert len(twice) <= 6  # of the contract's ids and the sweeps'


def test_inputs_keep_their_bits_after_an_error():
    def scribbling(ids, weight):
        if weight.shape[0]:
            weight[0] = 0
        return right(ids, weight)

    def sorting(ids, weight):
        if ids.dtype == torch.int64:
            kept = ids.clone()
            ids.neg_()
            return right(kept, weight)
        return right(ids, weight)

    for kernel, message, name in (
        (scribbling, "weight: got other bits after the call, expected the same", "weight"),
        (sorting, "token_ids: got other values after the call, expected the same", "token_ids"),
    ):
        found = examined(kernel, refusals)
        assert {finding.failure.message for finding in found["EMB-5"].failures} == {message}
        assert {finding.failure.evidence for finding in found["EMB-5"].failures} == {Rewritten(name)}
        assert {finding.call.check for finding in found["EMB-5"].failures} == {"EMB-5"}


@pytest.mark.parametrize(
    ("kernel", "ids"),
    [
        (clamped, [300]),
        (instead(lambda ids, weight: zeros(ids, weight) if ids.numel() > 7 else right(ids, weight)), [0] * 7 + [300]),
        (instead(lambda ids, weight: zeros(ids, weight) if ids.dim() > 1 else right(ids, weight)), None),
    ],
)
def test_the_smallest_call_is_found(kernel, ids):
    made = examination(kernel, refusals)
    call = Refusal(check="EMB-4", dtype="float32", vocab=300, shape=(3, 11), values=((16, 300),), layout="strided")
    failure = made.make(call).failures[0]
    small, again = smallest(call, failure, made.make, 40)
    assert again.message == failure.message
    assert small.layout == "dense"
    if ids is None:
        assert small.shape == (3, 11)
    else:
        assert (len(small.flat()), small.flat()[small.bad()[0]]) == (len(ids), 300)


def test_a_call_is_said_in_one_line():
    bad = Refusal.of([[7, 255]], 200, check="EMB-4", dtype="float32", id_dtype="uint8", mode="no_grad")
    assert str(bad) == "forward, float32 table of 200 rows, ids: [7, 255], 1x2, uint8, no_grad"
    bad = Refusal(check="EMB-4", dtype="float32", vocab=5, shape=(33,), values=((4, -2),))
    assert str(bad) == "forward, float32 table of 5 rows, ids: -2 at 4 of 33"
    floats = Refusal(check="EMB-4", dtype="float32", vocab=5, shape=(33,), id_dtype="float32")
    assert str(floats) == "forward, float32 table of 5 rows, ids: 33 of them, float32"


@pytest.mark.parametrize(
    "fields",
    [
        '"vocab":5',  # in range
        '"vocab":5,"values":[[1,5]]',  # no such place
        '"vocab":5,"values":[[0,300]],"id_dtype":"int8"',
        '"vocab":5,"values":[[0,5]],"id_dtype":"str"',
        '"vocab":5,"values":[[0,5]],"layout":"x"',
        '"vocab":5,"values":[[0,5]],"verb":"x"',
        '"vocab":-1,"values":[[0,5]]',
        '"vocab":5,"shape":[1099511627776],"values":[[0,5]]',
    ],
)
def test_what_no_report_holds_is_refused(fields):
    with pytest.raises(ValueError, match=r".+"):
        OPERATOR.call('{"call":"refusal","check":"EMB-4","dtype":"float32",' + fields + "}")


# A backward of its own


class Summed:
    """A kernel whose backward takes bad ids in some way of its own."""

    def __init__(self, rows):
        self.forward, self.rows = right, rows

    def backward(self, ids, cotangent, vocab_size):
        rows, flat = self.rows(as_int64(ids).reshape(-1), vocab_size), cotangent.reshape(-1, cotangent.shape[-1])
        return flat.new_zeros((vocab_size + 1, flat.shape[1])).index_add_(0, rows, flat)[:vocab_size]


def left_out(ids, vocab_size):
    return torch.where((ids < 0) | (ids >= vocab_size), vocab_size, ids)


def refused(ids, vocab_size):
    if bool(((ids < 0) | (ids >= vocab_size)).any()):
        raise RuntimeError
    return ids


@pytest.mark.parametrize("rows", [left_out, refused])
def test_a_backward_may_refuse_bad_ids_in_any_way_or_leave_them_out(rows):
    found = found_of(Summed(rows))
    assert (found.failed, seen_in(found)[0]) == (0, set())


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (lambda ids, vocab_size: ids.clamp(0, vocab_size - 1), faults.IDS_CLAMPED),
        (lambda ids, vocab_size: ids % vocab_size, faults.NEGATIVE_IDS_WRAP),
        (lambda ids, vocab_size: (ids * 3 + 1) % vocab_size, faults.BAD_IDS_UNCHECKED),
    ],
    ids=["clamped", "wrapped", "anything"],
)
def test_a_backward_that_puts_them_into_a_row_is_wrong(rows, fault):
    messages, suspects = seen_in(found_of(Summed(rows)))
    assert messages == {"gradient: got something from an id out of range, expected an error or the sums of the others"}
    assert fault.name in suspects


# Deaths


@pytest.mark.parametrize(
    ("act", "how"),
    [(lambda *_: ctypes.string_at(0), "death by SIGSEGV"), (lambda *_: os._exit(0), "exit with code 0")],
)
def test_a_kernel_that_ends_the_process_is_a_verdict_and_costs_two_of_them(act, how, capfd):
    made = examination(instead(act), refusals, local=Local)
    made.run((refusals,))
    found = made.findings["EMB-4"]
    made.subject.close()
    assert seen_in(found) == ({f"process: got {how}, expected an error"}, {faults.CRASH.name})
    assert all(finding.failure.aborts for finding in found.failures)
    assert found.failed == 2
    assert "EMB-4" in made.stopped
    assert capfd.readouterr() == ("", "")


def test_a_loop_without_end_is_a_verdict(monkeypatch):
    monkeypatch.setattr(refusal, "_SECONDS", 0.3)
    for local in (Beside, Local):
        found = found_of(instead(endless), local=local)
        assert seen_in(found)[0] == {"process: got no answer within 0.3 s, expected an error"}
        assert seen_in(found)[1] == {faults.ENDLESS_LOOP.name}
        assert not any(finding.failure.aborts for finding in found.failures)


def exam(*, golden=False, promise="raise", pinned=False, verbs=("forward",)):
    traits = Traits(
        name="it", framework="torch", version="", device="cpu", device_name="CPU", verbs=verbs, golden=golden
    )
    return Exam(traits=traits, tier=Tier.SMOKE, dtypes=tuple(FORMATS), out_of_range=promise, pinned=pinned)


def judged(call, *replies, **how):
    script = call.script(exam(**how))
    kept = [Output(form=((), "", ""), array=step.array) for step in script.steps[:2] if isinstance(step, Put)]
    return call.judge(script, Replies(script, [Done(), Done(), *replies, *kept]), exam(**how))


ONE = Refusal(check="EMB-4", dtype="float32", vocab=5, values=((0, 5),))


def test_an_assert_on_the_device_speaks_for_unchecked_ids():
    death = Died(how="abort on the device (device-side assert)")
    script = ONE.script(exam())
    [failure] = ONE.judge(script, Replies(script, [Done(), Done(), death]), exam()).failures
    assert failure.message == "process: got abort on the device (device-side assert), expected an error"
    assert failure.aborts
    assert max(failure.suspects).fault == faults.BAD_IDS_UNCHECKED.name


def test_what_was_not_made_is_skipped():
    assert judged(ONE, NotMade(why="torch has no such mode")).skipped == {"EMB-4": "torch has no such mode"}


# Goldens


MESSAGE = "token_ids: got 1 of 1 ids out of range, the first at position (0,) with value 5, expected 0 <= id < V=5"


def refusing(text, kind="IndexError"):
    return Raised(type=kind, bases=(kind, "Exception"), text=text, line=f"{kind}: {text}")


def test_a_golden_raises_just_what_it_must():
    right = refusing(f"{MESSAGE} [forward]")
    assert judged(ONE, right, golden=True).passed == {"EMB-4": 1, "EMB-5": 26}
    assert not judged(ONE, refusing("no"), golden=False).failures
    for wrong in (refusing("no"), refusing(f"{MESSAGE} [forward]", "ValueError")):
        [failure] = judged(ONE, wrong, golden=True).failures
        assert failure.message == (f"id past the end: got {wrong.line}, expected IndexError: {MESSAGE} [forward]")
    [failure] = judged(ONE, Output(form=((1, 5), "float32", "cpu")), golden=True).failures
    assert failure.message == f"id past the end: got a result, expected IndexError: {MESSAGE} [forward]"


def test_a_golden_is_given_the_contracts_ids_in_every_dtype_where_it_is_pinned():
    pinned = exam(golden=True, pinned=True, verbs=("forward", "forward_fp32"))
    calls = list(refusals.calls(pinned))[: len(BAD_IDS) * 11]
    verbs = [(verb, dtype) for dtype in FORMATS for verb in ("forward", "forward_fp32")]
    assert {(call.verb, call.dtype) for call in calls} == {*verbs} - {("forward_fp32", "float64")}
    assert not calls[0].script(pinned).hazardous
    assert calls[0].script(exam()).hazardous


def test_the_exceptions_of_the_contracts_ids():
    errors = [bad.error() for bad in BAD_IDS]
    assert [type(error) for error in errors].count(TypeError) == 4
    assert str(BAD_IDS[3].error()) == "token_ids: got dtype bool, expected an integer dtype [forward]"
    got = "4 of 6 ids out of range, the first at position (2,) with value 5"
    assert str(BAD_IDS[5].error()) == f"token_ids: got {got}, expected 0 <= id < V=5 [forward]"
    assert BAD_IDS[5].flat() == [0, 4, 5, -1, -5, -6]


# What a row speaks for


@pytest.mark.parametrize(
    ("value", "row", "first"),
    [
        (-1, 299, faults.NEGATIVE_IDS_WRAP),
        (-301, 299, faults.NEGATIVE_IDS_WRAP),
        (300, 299, faults.IDS_CLAMPED),
        (-5, 0, faults.IDS_CLAMPED),
        (2**32 + 7, 7, faults.IDS_NARROWED_TO_32_BITS),
        (2**16 + 7, 7, faults.IDS_NARROWED_TO_16_BITS),
        (512, 0, faults.IDS_NARROWED_TO_8_BITS),
        (300, 17, faults.BAD_IDS_UNCHECKED),
    ],
)
def test_a_row_of_the_table_tells_how_the_id_was_read(value, row, first):
    rows = np.arange(1, 601, dtype=np.uint32).reshape(300, 2)
    suspects = suspects_of_row(rows[row], value, rows, "float32")
    assert suspects[0].fault == first.name
    assert suspects[0].seen.startswith(f"id {value} gave row {row}")
    assert suspects == tuple(sorted(suspects, reverse=True))


# Under a trace


def test_torch_has_no_trace_to_poison():
    assert examined(right, traced_refusals)["EMB-4/traced"].skipped == ["torch has no such trace"]


@pytest.mark.jax
def test_under_a_trace_rows_of_nan_pass_and_real_rows_fail():
    jnp = pytest.importorskip("jax.numpy")

    def filling(ids, weight):
        return jnp.take(weight, jnp.where(ids < 0, weight.shape[0], ids), axis=0, mode="fill")

    def clipping(ids, weight):
        return jnp.take(weight, ids, axis=0, mode="clip")

    def untraceable(ids, weight):
        return clipping(np.asarray(ids), weight)

    found = {
        kernel: examined(kernel, traced_refusals, framework="jax")["EMB-4/traced"]
        for kernel in (filling, clipping, untraceable)
    }
    assert (found[filling].failed, found[filling].elements) == (0, 8 * 33 + 5 * 3)  # and the gradient
    rows, gradient = found[clipping].failures
    assert rows.failure.message == "out[2]: got a row of values for an id out of range, expected NaN"
    assert (
        gradient.failure.message == "gradient: got something from an id out of range, expected the sums of the others"
    )
    assert [finding.failure.suspects[0].fault for finding in (rows, gradient)] == [faults.IDS_CLAMPED.name] * 2
    assert [OPERATOR.call(finding.call.to_json()) for finding in (rows, gradient)] == [rows.call, gradient.call]
    first, second = found[untraceable].skipped
    assert first.startswith("forward cannot be traced: TracerArrayConversionError")
    assert second.startswith("forward cannot be differentiated under a trace: TracerArrayConversionError")


@pytest.mark.parametrize("golden", [True, False])
def test_a_golden_gives_the_quiet_nan_under_a_trace(golden):
    call = TracedRefusal(check="EMB-4/traced", dtype="float32")
    script = call.script(exam())
    rows = call._expected(script)
    rows[2, 1] |= 1  # another NaN
    reply = Output(form=((8, 33), "float32", "cpu"), array=rows)
    seen = call.judge(script, Replies(script, [Done(), Done(), reply]), exam(golden=golden))
    messages = [failure.message for failure in seen.failures]
    if golden:
        assert messages == ["out[2, 1]: got 0x7fc00001, expected 0x7fc00000 (NaN; 1 of 264 elements differ)"]
    else:
        assert messages == []
    rows[0, 0] ^= 1
    [failure] = call.judge(script, Replies(script, [Done(), Done(), reply]), exam(golden=golden)).failures
    assert failure.message == "out: got other bits beside an id out of range, expected the rows"
