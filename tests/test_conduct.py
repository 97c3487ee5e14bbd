"""Conduct: right refusals pass, and whatever else a kernel does with bad ids is a verdict; so is a table-sized copy."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F

from xref.judge import conduct, memory, traced
from xref.judge.bad_ids import BadIds, bad_ids
from xref.judge.candidate import candidate_of
from xref.judge.checks import CHECKS, Findings
from xref.spec import Tier

pytestmark = pytest.mark.torch


def as_int64(ids):
    """What uint64 holds past int64 stays out of range."""
    if ids.dtype != torch.uint64:
        return ids.long()
    return torch.from_numpy(np.array(np.minimum(ids.numpy(), np.uint64(2**62)), np.int64))


def checked(ids, weight):
    """Refuse what must be refused, and return the ids as int64."""
    if ids.dtype in (torch.bool, torch.complex64) or ids.dtype.is_floating_point:
        raise TypeError("ids")
    ids = as_int64(ids)
    if bool(((ids < 0) | (ids >= weight.shape[0])).any()):
        raise IndexError("ids")
    return ids


def right(ids, weight):
    return F.embedding(checked(ids, weight), weight)


def inside_of(ids, weight):
    """Which ids are in range, and all of them as int64 and in range."""
    if ids.dtype in (torch.bool, torch.complex64) or ids.dtype.is_floating_point:
        raise TypeError("ids")
    ids = as_int64(ids)
    inside = (ids >= 0) & (ids < weight.shape[0])
    return inside, ids


def filled(ids, weight, fill):
    inside, ids = inside_of(ids, weight)
    if not weight.shape[0]:
        return weight.new_full((*ids.shape, weight.shape[1]), fill)
    return torch.where(inside[..., None], weight[ids.clamp(0, weight.shape[0] - 1)], fill)


def poisoned(ids, weight):
    return filled(ids, weight, float("nan"))


def clamped(ids, weight):
    _, ids = inside_of(ids, weight)
    if not weight.shape[0]:
        raise IndexError("empty")
    return weight[ids.clamp(0, weight.shape[0] - 1)]


def wrapped(ids, weight):
    _, ids = inside_of(ids, weight)
    if bool((ids >= weight.shape[0]).any()) or bool((ids < -weight.shape[0]).any()):
        raise IndexError("ids")
    return weight[torch.where(ids < 0, ids + weight.shape[0], ids)]


def narrowed(ids, weight):
    """To int32 before the check."""
    if ids.dtype in (torch.bool, torch.complex64) or ids.dtype.is_floating_point:
        raise TypeError("ids")
    return right(ids.to(torch.int32), weight)


def wrong_type(ids, weight):
    try:
        return right(ids, weight)
    except IndexError as error:
        raise ValueError("bad ids") from error


def floats_taken(ids, weight):
    return right(ids.real.long() if ids.dtype != torch.uint64 else ids, weight)


def crashing(ids, weight):
    try:
        return right(ids, weight)
    except IndexError:
        ctypes.string_at(0)


def leaving(ids, weight):
    try:
        return right(ids, weight)
    except IndexError:
        os._exit(0)


def exiting(ids, weight):
    try:
        return right(ids, weight)
    except IndexError:
        raise SystemExit(0) from None


def endless(ids, weight):
    try:
        return right(ids, weight)
    except IndexError:
        while True:
            pass


def returning_none(ids, weight):
    try:
        return right(ids, weight)
    except IndexError:
        return None


def neighbours_touched(ids, weight):
    """NaN in the whole output as soon as one id is bad."""
    out = poisoned(ids, weight)
    return torch.full_like(out, float("nan")) if bool(out.isnan().any()) else out


def examined(kernel, out_of_range="raise", tier=Tier.SMOKE, framework="torch"):
    findings = {check.id: Findings() for check in CHECKS}
    candidate = candidate_of(kernel, framework=framework, device="cpu", name="it")
    conduct.examine_refusals(candidate, tier, ("bfloat16",), findings, out_of_range)
    return findings


def told(found):
    """The messages and the foremost hints of what failed."""
    return {finding.message for finding in found.failures}, [finding.hints[:1] for finding in found.failures]


# Refusals


@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_right_refusals_pass(tier):
    found = examined(right, tier=tier)["EMB-4"]
    assert (found.failed, found.failures, found.skipped) == (0, [], [])
    assert found.cases > 80
    assert found.elements >= found.cases


def test_every_bad_id_is_bad_and_has_a_name_of_its_own():
    for tier in (Tier.SMOKE, Tier.STANDARD):
        seen = list(bad_ids(tier))
        names = [(bad.name, bad.vocab) for bad in seen]
        assert len(set(names)) == len(names)
        for bad in seen:
            if bad.integers:
                assert any(not 0 <= int(i) < bad.vocab for i in bad.ids.reshape(-1))


def test_rows_of_nan_are_what_was_promised_or_a_failure():
    assert examined(poisoned, "poison")["EMB-4"].failed == 0
    messages, _ = told(examined(poisoned)["EMB-4"])
    assert messages == {"error: got a result, expected IndexError"}


def test_an_error_is_a_failure_where_rows_of_nan_were_promised():
    messages, _ = told(examined(right, "poison")["EMB-4"])
    assert messages == {"error: got IndexError: ids, expected rows of NaN"}


def test_rows_beside_a_bad_id_keep_their_bits():
    messages, _ = told(examined(neighbours_touched, "poison")["EMB-4"])
    assert messages == {"out: got other bits beside an id out of range, expected the rows"}


def test_of_a_kernel_that_promises_nothing_nothing_is_tried():
    findings = examined(lambda ids, weight: 1 / 0, "unchecked")
    assert findings["EMB-4"].skipped == ["the candidate promises nothing of ids out of range"]
    assert findings["EMB-4"].cases == 0


@pytest.mark.parametrize(
    ("kernel", "out_of_range", "message", "hint"),
    [
        (clamped, "raise", "error: got a result, expected IndexError", "ids-clamped"),
        (clamped, "poison", "out: got a row of values for an id out of range, expected NaN", "ids-clamped"),
        (wrapped, "raise", "error: got a result, expected IndexError", "negative-ids-wrap"),
        (lambda ids, weight: filled(ids, weight, 0.0), "raise", "error: got a result, expected IndexError",
         "bad-ids-filled"),
        (lambda ids, weight: filled(ids, weight, 0.0), "poison",
         "out: got a row of values for an id out of range, expected NaN", "bad-ids-filled"),
        (poisoned, "raise", "error: got a result, expected IndexError", "bad-ids-filled"),
        (narrowed, "raise", "error: got a result, expected IndexError", "ids-narrowed-to-32-bits"),
        (wrong_type, "raise", "error: got ValueError: bad ids, expected IndexError", "bad-ids-unchecked"),
        (exiting, "raise", "error: got SystemExit: 0, expected IndexError", "bad-ids-unchecked"),
        (returning_none, "raise", "error: got a result, expected IndexError", "bad-ids-unchecked"),
        (floats_taken, "raise", "error: got a result, expected TypeError", "non-integer-ids-taken"),
    ],
)  # fmt: skip
def test_what_else_a_kernel_does_with_bad_ids_is_a_verdict(kernel, out_of_range, message, hint):
    found = examined(kernel, out_of_range)["EMB-4"]
    messages, hints = told(found)
    assert found.failed > 0
    assert message in messages
    assert (hint,) in hints
    assert found.failures[0].call.startswith("it.forward, bfloat16 table of ")


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
    found = examined(Summed(rows))["EMB-4"]
    assert (found.failed, told(found)[0]) == (0, set())


@pytest.mark.parametrize(
    "rows",
    [lambda ids, vocab_size: ids.clamp(0, vocab_size - 1), lambda ids, vocab_size: ids % vocab_size],
    ids=["clamped", "wrapped"],
)
def test_a_backward_that_puts_them_into_a_row_is_wrong(rows):
    found = examined(Summed(rows))["EMB-4"]
    assert told(found)[0] == {
        "gradient: got something from an id out of range, expected an error or the sums of the others"
    }


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (crashing, "process: got death by SIGSEGV, expected an error"),
        (leaving, "process: got exit with code 0, expected an error"),
    ],
)
def test_a_kernel_that_ends_the_process_is_a_verdict_and_the_judge_goes_on(kernel, message, capfd):
    found = examined(kernel)["EMB-4"]
    messages, hints = told(found)
    assert messages == {message}
    assert set(hints) == {("crash",)}
    assert found.failed == 3  # and then no more children
    assert capfd.readouterr() == ("", "")


def test_a_loop_without_end_is_a_verdict(monkeypatch):
    monkeypatch.setattr(conduct, "_SILENCE", 0.4)
    monkeypatch.setattr(conduct, "bad_ids", lambda *_: iter([BadIds("one", np.array([5]), 5)] * 3))
    found = examined(endless)["EMB-4"]
    assert [finding.message for finding in found.failures] == [
        "call: got no answer within 0.2 s, expected an error"
    ] * 3
    assert {finding.hints for finding in found.failures} == {("endless-loop",)}


def test_a_loop_that_no_clock_of_python_ends_is_a_verdict(monkeypatch):
    """As a kernel in C is: it holds back the signal."""

    def held(ids, weight):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        return endless(ids, weight)

    monkeypatch.setattr(conduct, "_SILENCE", 0.4)
    monkeypatch.setattr(conduct, "bad_ids", lambda *_: iter([BadIds("one", np.array([5]), 5)] * 2))
    found = examined(held)["EMB-4"]
    messages = [finding.message for finding in found.failures]
    assert messages == ["process: got no answer within 0.4 s, expected an error"] * 2
    assert {finding.hints for finding in found.failures} == {("endless-loop",)}


def test_a_failure_can_be_made_again_from_its_record():
    found = examined(clamped)["EMB-4"]
    record = json.loads(found.failures[0].rerun)
    again = Findings()
    candidate = candidate_of(clamped, framework="torch", device="cpu", name="it")
    conduct.refused_again(candidate, record, again, "raise")
    assert (again.cases, again.failed) == (1, 1)
    assert again.failures[0].message == found.failures[0].message
    with pytest.raises(ValueError, match="no such ids, verb or dtype"):
        conduct.refused_again(candidate, {**record, "bad": "another"}, Findings(), "raise")
    with pytest.raises(ValueError, match="no such ids, verb or dtype"):
        conduct.refused_again(candidate, {**record, "verb": "forward_fp32"}, Findings(), "raise")


def test_torch_has_no_trace_to_poison():
    assert examined(right)["EMB-4/traced"].skipped == ["torch has no such trace"]


@pytest.mark.jax
def test_under_a_trace_rows_of_nan_pass_and_real_rows_fail():
    import jax.numpy as jnp

    def filling(ids, weight):
        return jnp.take(weight, jnp.where(ids < 0, weight.shape[0], ids), axis=0, mode="fill")

    candidates = {
        name: candidate_of(kernel, framework="jax", device="cpu", name=name)
        for name, kernel in (("filling", filling), ("clipping", lambda i, w: jnp.take(w, i, axis=0, mode="clip")))
    }
    found = {name: Findings() for name in candidates}
    for name, candidate in candidates.items():
        traced.examine_traced(candidate, "forward", candidate.verbs["forward"], found[name])
    assert (found["filling"].failed, found["filling"].elements) == (0, 8 * 33 + 5 * 3)  # and the gradient
    rows, gradient = found["clipping"].failures
    assert rows.message == "out: got a row of values for an id out of range, expected NaN"
    assert gradient.message == "gradient: got something from an id out of range, expected the sums of the others"
    assert "ids-clamped" in rows.hints


# Memory


def whole_table(ids, weight):
    return weight.double()[ids].to(weight.dtype)


class CachedOnce:
    """Copies the first table that it sees, and looks it up there until another comes."""

    def __init__(self):
        self.place, self.copy = 0, None

    def forward(self, ids, weight):
        if self.place != weight.data_ptr():
            self.place, self.copy = weight.data_ptr(), weight.clone()
        return self.copy[ids]


def memory_of(kernel, check="EMB-12", tier=Tier.SMOKE):
    findings = {"EMB-12": Findings(), "EMB-12/strided": Findings()}
    candidate = candidate_of(kernel, framework="torch", device="cpu", name="it")
    memory.examine_memory(candidate, tier, ("bfloat16",), findings)
    return findings[check]


def test_a_plain_gather_takes_its_output():
    found = memory_of(right)
    assert (found.failed, found.skipped) == (0, [])
    assert found.elements > 0


def test_a_table_that_is_made_dense_is_only_graded():
    def dense(ids, weight):
        return F.embedding(checked(ids, weight), weight.contiguous())

    assert memory_of(dense, tier=Tier.STANDARD).failed == 0
    assert memory_of(dense, "EMB-12/strided", Tier.STANDARD).failed == 1
    assert memory_of(right, "EMB-12/strided", Tier.STANDARD).failed == 0
    assert not next(check for check in CHECKS if check.id == "EMB-12/strided").required


@pytest.mark.parametrize("kernel", [whole_table, CachedOnce, lambda ids, weight: weight.clone()[ids]])
def test_a_copy_of_the_table_is_found(kernel):
    [finding] = memory_of(kernel).failures
    how = r"peak extra memory: got \d{8} bytes, expected at most 4204134 \(the table has 19447808\)"
    assert re.fullmatch(how, finding.message)
    assert finding.hints == ("whole-table-copied",)


def test_memory_that_cannot_be_measured_is_said():
    def fails(ids, weight):
        raise RuntimeError("no")

    found = memory_of(fails)
    assert (found.skipped, found.cases) == (["forward's memory cannot be measured: RuntimeError: no"], 0)
