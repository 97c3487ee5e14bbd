"""The judge judged: with any one of its checks broken on purpose, a liar goes uncaught, and that is noticed.

So a test that says "caught" says something: it fails if the comparison's result is dropped, or if nothing is compared;
and a run that compared nothing is never a pass.
"""

from __future__ import annotations

import dataclasses
import re

import msgspec
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from mutants.embedding_right import checked
from support.judged import judged, only_calls_of

import xref
from xref.engine.outcomes import Outcome
from xref.operators.embedding import OPERATOR
from xref.spec import Call

pytestmark = pytest.mark.torch


class Right:
    def forward(self, ids, weight):
        return F.embedding(checked(ids, weight.shape[0]), weight)

    def backward(self, ids, cotangent, vocab_size):
        flat = cotangent.reshape(-1, cotangent.shape[-1]).float()
        total = torch.zeros(vocab_size, cotangent.shape[-1])
        return total.index_add_(0, ids.reshape(-1).long(), flat).to(cotangent.dtype)


class LastBit(Right):
    """Wrong in the last bit of one column."""

    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        out.view(torch.int16)[..., :1] ^= 1
        return out


class Widened(Right):
    """Gives float32 where bfloat16 is due."""

    def forward(self, ids, weight):
        return super().forward(ids, weight).float()


class Rewrites(Right):
    """Writes into the table."""

    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        weight.view(torch.int16)[:1] ^= 1
        return out


class Counts(Right):
    """Wrong from the fiftieth call of a shape on."""

    def __init__(self):
        self.calls = {}

    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        self.calls[out.shape] = self.calls.get(out.shape, 0) + 1
        if self.calls[out.shape] > 50:
            out.view(torch.int16)[:1] ^= 1
        return out


class Position(Right):
    """Wrong for the last token of rows of 19: sixteen and three of padding."""

    def forward(self, ids, weight):
        out = super().forward(ids, weight)
        if ids.ndim == 2 and ids.shape[1] == 19:
            out.view(torch.int16)[..., -1, :] ^= 1
        return out


class Clamps(Right):
    def forward(self, ids, weight):
        try:
            return super().forward(ids, weight)
        except IndexError:
            if weight.shape[0] == 0 or ids.dtype == torch.uint64:
                raise
            return F.embedding(ids.long().clamp(0, weight.shape[0] - 1), weight)


class CopiesTheTable(Right):
    def forward(self, ids, weight):
        return super().forward(ids, weight.clone() if weight.numel() > 1 << 22 else weight)


class Overwrites(Right):
    """The gradient of one token of each row alone."""

    def backward(self, ids, cotangent, vocab_size):
        out = cotangent.new_zeros(vocab_size, cotangent.shape[-1])
        out[ids.reshape(-1).long()] = cotangent.reshape(-1, cotangent.shape[-1])
        return out


class Counting(Right):
    """The gradient of cotangents of one: how often a row is named."""

    def backward(self, ids, cotangent, vocab_size):
        return super().backward(ids, torch.ones_like(cotangent), vocab_size)


class Dirty(Right):
    """Not +0 in rows that no token names."""

    def backward(self, ids, cotangent, vocab_size):
        out = super().backward(ids, cotangent, vocab_size)
        named = torch.zeros(vocab_size, dtype=torch.bool)
        named[ids.reshape(-1).long()] = True
        out[~named] = -0.0
        return out


class DropsNaN(Right):
    def backward(self, ids, cotangent, vocab_size):
        return super().backward(
            ids, torch.nan_to_num(cotangent, nan=0.0, posinf=torch.inf, neginf=-torch.inf), vocab_size
        )


class Drifts(Right):
    """Another gradient at every second call."""

    calls = 0

    def backward(self, ids, cotangent, vocab_size):
        self.calls += 1
        out = super().backward(ids, cotangent, vocab_size)
        return torch.nextafter(out, out + 1) if self.calls % 2 and ids.shape == (256,) else out


class RewritesCotangents(Right):
    def backward(self, ids, cotangent, vocab_size):
        out = super().backward(ids, cotangent, vocab_size)
        cotangent.mul_(2)
        return out


# By the check, and by the one whose calls show it


LIARS = {
    LastBit: ("EMB-1", "EMB-1"),
    Widened: ("EMB-3", "EMB-1"),
    Rewrites: ("EMB-5", "EMB-1"),
    Counts: ("EMB-6", "EMB-6"),
    Position: ("EMB-7/padding", "EMB-7/padding"),
    Clamps: ("EMB-4", "EMB-4"),
    CopiesTheTable: ("EMB-12", "EMB-12"),
    Overwrites: ("EMB-8", "EMB-8"),
    Counting: ("EMB-8", "EMB-8"),
    Dirty: ("EMB-9", "EMB-8"),
    DropsNaN: ("EMB-11", "EMB-11"),
    Drifts: ("EMB-10/repeat", "EMB-10/repeat"),
    RewritesCotangents: ("EMB-5", "EMB-8"),
}
CAUGHT = pytest.mark.parametrize(
    ("liar", "check", "calls"), [pytest.param(liar, *how, id=liar.__name__) for liar, how in LIARS.items()]
)


def assert_caught(liar, check, operator):
    """Fail unless the judge fails the liar by this check."""
    report = judged(liar, operator)
    found = {verdict.check: verdict for verdict in report.verdicts}[check]
    assert found.outcome is Outcome.FAIL, f"{liar.__name__} went uncaught: {check} is {found.outcome}"
    assert found.failed > 0
    assert found.problems
    assert found in report.failed
    assert not report.ok
    assert check in report.statement


def test_a_right_kernel_passes():
    report = judged(Right)
    assert report.ok, report.statement
    assert {verdict.check for verdict in report.verdicts if verdict.outcome is Outcome.SKIP} == {
        "EMB-2", "EMB-7/mode", "EMB-4/traced", "EMB-12/strided",
    }  # fmt: skip


@CAUGHT
def test_a_liar_is_caught(liar, check, calls):
    assert_caught(liar, check, only_calls_of(calls))


# Broken judges


class Blind(Call, frozen=True, kw_only=True, tag="blind"):
    """A call whose failures of a check are taken for passes."""

    inner: Call
    blind: str

    def script(self, exam):
        return self.inner.script(exam)

    def judge(self, script, replies, exam):
        seen = self.inner.judge(script, replies, exam)
        for failure in [each for each in seen.failures if each.check == self.blind]:
            seen.failures.remove(failure)
            seen.ok(failure.check, failure.elements or 1)
        return seen


def blinded(check, calls):
    """Return the embedding with the calls of one check alone, and blind for another."""
    operator = only_calls_of(calls)

    def dropping(inner):
        def made(exam):
            for each in inner.calls(exam):
                yield Blind(check=each.check, inner=each, blind=check) if isinstance(each, Call) else each

        return dataclasses.replace(inner, calls=made)

    checks = tuple(dropping(each) if each.calls is not None else each for each in operator.checks)
    return dataclasses.replace(operator, checks=checks, follow_up=lambda call, seen: ())


def silent(*names):
    """Return the embedding with checks that yield nothing."""
    checks = (
        dataclasses.replace(each, calls=(lambda exam: iter(())) if each.id in names else None)
        for each in OPERATOR.checks
    )
    return dataclasses.replace(OPERATOR, checks=tuple(checks))


@CAUGHT
def test_a_liar_goes_uncaught_if_the_check_is_broken_and_that_is_noticed(liar, check, calls):
    with pytest.raises(AssertionError, match=f"{liar.__name__} went uncaught: {check} is pass"):
        assert_caught(liar, check, blinded(check, calls))


@CAUGHT
def test_sweeps_that_yield_nothing_are_an_error(liar, check, calls):
    with pytest.raises(AssertionError, match=f"{liar.__name__} went uncaught: {check} is error"):
        assert_caught(liar, check, silent(calls))


def test_nothing_compared_is_no_pass():
    report = judged(Right, silent(*(check.id for check in OPERATOR.checks)))
    assert not report.ok
    assert report.nothing
    assert {verdict.outcome for verdict in report.verdicts} == {Outcome.ERROR}


def test_a_kernel_that_always_raises_does_not_pass():
    class Raises:
        def forward(self, ids, weight):
            raise NotImplementedError("no kernel image is available")

    report = judged(Raises, only_calls_of("EMB-1", "EMB-6", "EMB-7/padding"))
    assert not report.ok
    found = {verdict.check: verdict for verdict in report.verdicts}
    assert found["EMB-1"].outcome is Outcome.FAIL
    told = r"out: got NotImplementedError: no kernel image is available at test_judge.py:\d+, expected a result \["
    assert re.match(told, found["EMB-1"].problems[0])
    assert found["EMB-7/padding"].reason == "the same calls made plainly are wrong: EMB-1"


def test_a_skip_of_what_was_asked_for_does_not_pass():
    operator = only_calls_of("EMB-1", "EMB-2", "EMB-4")
    found = {
        each.check: each
        for each in judged(Right, operator, require=("EMB-2", "EMB-4"), out_of_range="unchecked").verdicts
    }
    assert [(found[name].outcome, found[name].bad) for name in ("EMB-2", "EMB-4")] == [(Outcome.SKIP, True)] * 2
    found = {each.check: each for each in judged(Right, operator, out_of_range="unchecked").verdicts}
    assert [(found[name].outcome, found[name].bad) for name in ("EMB-2", "EMB-4")] == [(Outcome.SKIP, False)] * 2


def test_what_is_expected_to_fail_and_passes_does_not_pass():
    operator = only_calls_of("EMB-1", "EMB-4")
    found = {each.check: each for each in judged(Clamps, operator, expect_fail={"EMB-1": "x", "EMB-4": "y"}).verdicts}
    assert [(found[name].outcome, found[name].bad) for name in ("EMB-1", "EMB-4")] == [
        (Outcome.XPASS, True), (Outcome.XFAIL, False),
    ]  # fmt: skip
    assert (found["EMB-1"].reason, found["EMB-4"].reason) == ("x", "y")


def test_what_is_graded_decides_nothing_unless_it_is_required():
    operator = only_calls_of("EMB-10/split")
    for require, bad in (((), False), (("EMB-10/split",), True)):
        [found] = [each for each in judged(Right, operator, require=require).verdicts if each.check == "EMB-10/split"]
        assert (found.outcome, found.required, found.bad) == (Outcome.FAIL, bad, bad)


# What a report says


def test_the_json_keeps_many_problems_and_each_kind_is_there():
    report = judged(
        lambda ids, weight: F.embedding(ids.clamp(0, max(weight.shape[0] - 1, 0)).long(), weight),
        only_calls_of("EMB-4"),
    )
    [found] = [each for each in report.verdicts if each.check == "EMB-4"]
    again = msgspec.json.decode(report.to_json(), type=type(report))
    assert len(found.problems) == min(found.failed, 40) > 3
    assert [each.problems for each in again.verdicts if each.check == "EMB-4"] == [found.problems]


def test_an_explanation_that_fails_leaves_the_verdict_and_is_said():
    def fails(*_):
        raise KeyError("no such fault")

    report = judged(LastBit, dataclasses.replace(only_calls_of("EMB-1"), explain=fails))
    [found] = [each for each in report.verdicts if each.check == "EMB-1"]
    assert found.outcome is Outcome.FAIL
    assert found.problems[0].startswith("out[")
    assert found.explanations == []
    assert found.smallest == "got KeyError: 'no such fault' while looking for it, expected one"


def sparse(ids, weight):
    return checked_rows(ids, weight).to_sparse()


def checked_rows(ids, weight):
    return F.embedding(checked(ids, weight.shape[0]), weight)


class Lying(torch.Tensor):
    """Zeros that say they are the rows."""

    def detach(self):
        return self.truth

    def view(self, *shape):
        return self.truth.view(*shape)


def lying(ids, weight):
    rows = checked_rows(ids, weight)
    out = torch.zeros_like(rows).as_subclass(Lying)
    out.truth = rows.detach()
    return out


def test_an_output_that_cannot_be_read_is_misformed():
    report = judged(sparse, only_calls_of("EMB-1"), dtype="float32")
    [form] = [verdict for verdict in report.verdicts if verdict.check == "EMB-3"]
    assert form.outcome is Outcome.FAIL
    assert ", that cannot be read (" in form.problems[0]
    assert report.broken == {}


def test_what_a_subclass_says_of_its_elements_does_not_count():
    report = judged(lying, only_calls_of("EMB-1"), dtype="float32")
    assert [verdict.outcome for verdict in report.verdicts if verdict.check == "EMB-1"] == [Outcome.FAIL]


def test_judge_is_the_same_by_its_public_name():
    report = xref.judge(
        Right,
        framework="torch",
        tier="smoke",
        dtype="bfloat16",
        only='{"call":"forward","check":"EMB-1","dtype":"bfloat16","vocab":3,"hidden":2,"ids":[1],"shape":[1]}',
    )
    assert report.ok
    assert report.statement.startswith("Right passes: torch ")
    assert ", in this process, " in report.statement
    assert [verdict.check for verdict in report.verdicts] == ["EMB-1", "EMB-3", "EMB-5"]
