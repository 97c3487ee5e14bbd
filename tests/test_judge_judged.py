"""The judge judged: with any one of its checks broken on purpose, a liar goes uncaught, and that is noticed.

So a test that says "caught" says something: it fails if the comparison's result is dropped, if the expected answer is
the one that came back, or if nothing is compared; and a run that compared nothing is never a pass.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
import torch.nn.functional as F
from mutants.embedding_right import checked

from xref import errors
from xref.judge import conduct, exam, exam_conditions, exam_gradient, explained, gradient_conditions, memory, probes
from xref.judge.judge import judge
from xref.judge.verdict import Outcome
from xref.operators.embedding.bound import Misses

pytestmark = pytest.mark.torch

run = functools.partial(judge, framework="torch", tier="smoke", dtype=("bfloat16",), name="it")


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


LIARS = {
    LastBit: "EMB-1",
    Widened: "EMB-3",
    Rewrites: "EMB-5",
    Counts: "EMB-6",
    Position: "EMB-7/padding",
    Clamps: "EMB-4",
    CopiesTheTable: "EMB-12",
    Overwrites: "EMB-8",
    Counting: "EMB-8",
    Dirty: "EMB-9",
    DropsNaN: "EMB-11",
    Drifts: "EMB-10/repeat",
    RewritesCotangents: "EMB-5",
}


PARTS = {
    "accuracy": ("EMB-1", "EMB-3", "EMB-5"),
    "invariance": ("EMB-6", "EMB-7/padding"),
    "gradient": ("EMB-8", "EMB-9", "EMB-10/repeat", "EMB-11"),
    "memory": ("EMB-12",),
    "bad ids": ("EMB-4",),
}


def only_part(*parts):
    """Leave the other parts out: that they are is no pass, but the check is what counts here."""
    return {"without": {part: "not here" for part in PARTS if part not in parts}}


def assert_caught(liar, check):
    """Fail unless the judge fails the liar by this check."""
    parts = [part for part, checks in PARTS.items() if check in checks]
    report = run(liar, **only_part(*(["gradient"] if liar is RewritesCotangents else parts)))
    found = {verdict.check: verdict for verdict in report.verdicts}[check]
    assert found.outcome is Outcome.FAIL, f"{liar.__name__} went uncaught: {check} is {found.outcome}"
    assert found.failed > 0
    assert found.problems
    assert found in report.failed
    assert not report.ok
    assert check in report.statement


def test_a_right_kernel_passes():
    report = run(Right)
    assert report.ok, report.statement
    assert {verdict.check for verdict in report.verdicts if verdict.outcome is Outcome.SKIP} == {
        "EMB-2", "EMB-7/mode", "EMB-4/traced", "EMB-12/strided",
    }  # fmt: skip


@pytest.mark.parametrize(("liar", "check"), LIARS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_liar_is_caught(liar, check):
    assert_caught(liar, check)


# Broken judges: each goes with a liar that only the broken check can catch


def never(*_, **__):
    return None


def no_misses(got, exact, *_, **__):
    none = np.zeros((exact.rows.size, got.shape[1]), bool)
    return Misses(none, none, none, None, "")


def as_it_came(prober_read):
    """The candidate compared with itself."""

    def read(self, seen, out):
        prober_read(self, seen, out)
        if seen.got is not None:
            seen.expected, seen.wrong = seen.got, None

    return read


def all_ones(build):
    def built(case):
        ids, cotangent = build(case)
        return ids, np.full_like(cotangent, 0x3F80)

    return built


BROKEN = [
    ("comparison dropped", LastBit, lambda patch: patch.setattr(probes, "mismatch", never)),
    ("compared with itself", LastBit,
     lambda patch: patch.setattr(probes.Prober, "read", as_it_came(probes.Prober.read))),
    ("form not looked at", Widened,
     lambda patch: patch.setattr(probes, "formed", lambda framework, out, wanted: framework.bits_of(out.bfloat16()))),
    ("purity not looked at", Rewrites, lambda patch: (
        patch.setattr(probes.Prober, "_impurity", never), patch.setattr(probes.Prober, "rewritten", never))),
    ("repeats not compared", Counts, lambda patch: patch.setattr(exam, "mismatch", never)),
    ("conditions not compared", Position, lambda patch: patch.setattr(exam_conditions, "mismatch", never)),
    ("any error and any result is a refusal", Clamps, lambda patch: patch.setattr(conduct, "_tried", never)),
    ("no limit", CopiesTheTable, lambda patch: patch.setattr(memory, "FIXED_OVERHEAD", 1 << 40)),
    ("bound not applied", Overwrites, lambda patch: patch.setattr(exam_gradient, "misses", no_misses)),
    ("cotangents of one alone", Counting,
     lambda patch: patch.setattr(exam_gradient.gradients, "build", all_ones(exam_gradient.gradients.build))),
    ("other rows not looked at", Dirty, lambda patch: patch.setattr(exam_gradient.GradientExam, "_untouched", never)),
    ("bound not applied to specials", DropsNaN, lambda patch: patch.setattr(exam_gradient, "misses", no_misses)),
    ("gradients not compared", Drifts, lambda patch: patch.setattr(gradient_conditions, "mismatch", never)),
]  # fmt: skip


@pytest.mark.parametrize(("liar", "how"), [pytest.param(*row[1:], id=row[0]) for row in BROKEN])
def test_a_liar_goes_uncaught_if_the_check_is_broken_and_that_is_noticed(liar, how, monkeypatch):
    how(monkeypatch)
    with pytest.raises(AssertionError, match=f"{liar.__name__} went uncaught: {LIARS[liar]} is "):
        assert_caught(liar, LIARS[liar])


# Nothing compared


def errors_of(report):
    return {verdict.check for verdict in report.verdicts if verdict.outcome is Outcome.ERROR}


def test_sweeps_that_yield_nothing_are_an_error(monkeypatch):
    monkeypatch.setattr(exam, "probes", lambda *_: iter(()))
    report = run(Right, **only_part("accuracy"))
    assert not report.ok
    assert "EMB-1" in errors_of(report)
    with pytest.raises(AssertionError, match="LastBit went uncaught: EMB-1 is error"):
        assert_caught(LastBit, "EMB-1")


def test_gradient_cases_that_yield_nothing_are_an_error(monkeypatch):
    monkeypatch.setattr(exam_gradient, "gradient_probes", lambda *args, **options: iter(()))
    report = run(Right, **only_part("gradient"))
    assert not report.ok
    assert {"EMB-8", "EMB-9", "EMB-11"} <= errors_of(report)


def test_conditions_that_yield_nothing_are_an_error(monkeypatch):
    monkeypatch.setattr(exam_conditions, "CONDITIONS", {})
    report = run(Right, **only_part("invariance"))
    assert not report.ok
    assert {"EMB-7/position", "EMB-7/padding", "EMB-7/decode", "EMB-7/permuted"} <= errors_of(report)


def test_no_bad_ids_are_an_error(monkeypatch):
    monkeypatch.setattr(conduct, "bad_ids", lambda *_: iter(()))
    report = run(Right, **only_part("bad ids"))
    assert not report.ok
    assert "EMB-4" in errors_of(report)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_was_left_out_is_a_failure(part):
    kept = "accuracy" if part == "memory" else "memory"
    report = run(Right, without={each: "left out" for each in PARTS if each != kept})
    assert not report.ok
    assert f"{part} (left out)" in report.statement
    missing = [verdict for verdict in report.verdicts if verdict.outcome is Outcome.ERROR]
    assert missing
    assert f"{part}: got left out, expected it to end [judge]" in missing[0].problems


def test_a_kernel_that_always_raises_does_not_pass():
    class Raises:
        def forward(self, ids, weight):
            raise NotImplementedError("no kernel image is available")

    report = run(Raises, **only_part("accuracy"))
    assert not report.ok
    found = {verdict.check: verdict for verdict in report.verdicts}
    assert found["EMB-1"].outcome is Outcome.FAIL
    assert (
        "out: got NotImplementedError: no kernel image is available, expected a result [it.forward"
        in (found["EMB-1"].problems[0])
    )


def test_a_skip_of_what_was_asked_for_does_not_pass():
    skipped = [verdict.check for verdict in run(Right, require=("EMB-2", "EMB-4"), out_of_range="unchecked").failed]
    assert skipped == ["EMB-2", "EMB-4"]
    assert run(Right, out_of_range="unchecked").ok


def test_what_is_expected_to_fail_and_passes_does_not_pass():
    assert run(Clamps, expect_fail={"EMB-4": "clamps"}).ok
    report = run(Clamps, expect_fail={"EMB-1": "known", "EMB-4": "clamps"})
    assert [(verdict.check, verdict.outcome) for verdict in report.failed] == [("EMB-1", Outcome.XPASS)]


# One call again


def test_a_failure_fails_again_from_its_record_and_a_right_kernel_passes_it():
    for liar, check in ((LastBit, "EMB-1"), (Clamps, "EMB-4"), (Overwrites, "EMB-8")):
        parts = [part for part, checks in PARTS.items() if check in checks]
        found = {verdict.check: verdict for verdict in run(liar, **only_part(*parts)).verdicts}[check]
        assert found.rerun
        again = run(liar, only=found.rerun)
        assert [verdict.check for verdict in again.failed] == [check]
        assert run(Right, only=found.rerun).ok


@pytest.mark.parametrize(
    "record",
    [
        "", "{", "[]", '"x"', '{"dtype":"bfloat16"}',
        '{"dtype":"int3","vocab":3,"hidden":4,"ids":[1],"shape":[1]}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[9],"shape":[1]}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[1],"shape":[2]}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":"none","shape":[1]}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[1],"shape":[1],"layout":"none"}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[1],"shape":[1],"mode":"none"}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[1],"shape":[1],"verb":"forward_fp32"}',
        '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[300],"shape":[1],"id_dtype":"int8"}',
        '{"bad":"x","verb":"forward","dtype":"bfloat16","vocab":3}', '{"bad":"x"}', '{"case":{}}',
        '{"case":3,"route":"x"}',
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(record):
    from xref import errors

    with pytest.raises(errors.UsageError, match=r"^--only: got .*, expected .* \[judge\]$"):
        run(Right, only=record)


def test_an_explanation_that_fails_leaves_the_verdict_and_is_said(monkeypatch):
    def fails(*_, **__):
        raise KeyError("no such fault")

    monkeypatch.setattr(explained, "explain", fails)
    monkeypatch.setattr(explained, "explain_gradient", fails)
    report = run(LastBit, **only_part("accuracy", "memory"))
    found = {verdict.check: verdict for verdict in report.verdicts}["EMB-1"]
    assert found.outcome is Outcome.FAIL
    assert found.problems[0].startswith("out[")
    assert found.explanations == []
    assert found.smallest.startswith("got KeyError: 'no such fault' while looking for it, expected one [it.forward")


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
    report = judge(sparse, framework="torch", tier="smoke", dtype="float32", name="it")
    [form] = [verdict for verdict in report.verdicts if verdict.check == "EMB-3"]
    assert form.outcome is Outcome.FAIL
    assert ", that cannot be read (" in form.problems[0]
    assert report.broken == {}


def test_what_a_subclass_says_of_its_elements_does_not_count():
    report = judge(lying, framework="torch", tier="smoke", dtype="float32", name="it")
    assert [verdict.outcome for verdict in report.verdicts if verdict.check == "EMB-1"] == [Outcome.FAIL]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"layout": "nope"}, "layout 'nope', ids of int64, expected those of a report"),
        ({"id_dtype": "float32"}, "layout 'dense', ids of float32, expected those of a report"),
        ({"condition": "nope"}, "condition 'nope', expected one of repeat, layout, padding, permuted, split"),
        ({"case": {"source": "float64"}}, "a case of float64 to float32, expected float32 to float32"),
        ({"case": {"vocab": -1}}, "a case of -1 x 3 and ids (4,), expected sizes of a table"),
    ],
    ids=["layout", "id dtype", "condition", "dtype", "size"],
)
def test_a_record_of_no_call_that_is_made_is_wrong_use(record, why):
    case = {"source": "float32", "result": "float32", "values": "gaussian", "vocab": 5, "hidden": 3, "shape": [4]}
    route = "gradient of forward, float32 to float32"
    full = {
        "route": route,
        "layout": "dense",
        "id_dtype": "int64",
        **record,
        "case": {**case, **record.get("case", {})},
    }
    with pytest.raises(errors.UsageError) as caught:
        judge(checked_rows, framework="torch", only=json.dumps(full), dtype="float32", name="it")
    assert why in str(caught.value)


def test_names_that_are_none_are_wrong_use():
    with pytest.raises(errors.UsageError, match=r"^--dtype: got torch.float32, expected a name, or a tuple of names"):
        judge(checked_rows, framework="torch", dtype=torch.float32)
    with pytest.raises(errors.UsageError, match=r"^--require: got None, expected a name, or a tuple of names"):
        judge(checked_rows, framework="torch", require=None)
