"""The examination of gradients is judged first: a gradient that is wrong in one way turns its clauses red, no others.

And the tests here are judged too: with an engine that is broken on purpose they must fail.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from gradient_liars import CASES, JAX_LIARS, TORCH_LIARS, inputs_of, judged
from liars import TITLES, reds

from xref.contracts import embedding_gradient as gradients
from xref.judge import frameworks, gradient
from xref.judge.gradient import _Gradient, compare_gradients, examine_gradient, gradient_inputs
from xref.judge.subject import FIXTURES, Subject
from xref.judge.verdict import Ledger, Outcome

needs_torch = pytest.mark.torch
needs_jax = pytest.mark.jax


def check(liar, name):
    """Assert that the clauses which a liar breaks are red, that no other is, and that the first says what is wrong."""
    problems = reds(judged(liar.subject(name), liar.cases))
    assert set(problems) == set(liar.red), problems
    assert liar.says in problems[liar.red[0]][0]
    assert all(problem.endswith("]") and "\n" not in problem for told in problems.values() for problem in told)


@needs_torch
@pytest.mark.parametrize("fault", TORCH_LIARS)
def test_a_torch_liar_is_caught_by_the_clause_it_breaks(fault):
    check(TORCH_LIARS[fault], "torch")


@needs_jax
@pytest.mark.parametrize("fault", JAX_LIARS)
def test_a_jax_liar_is_caught_by_the_clause_it_breaks(fault):
    check(JAX_LIARS[fault], "jax")


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        pytest.param("torch", tuple(CASES), marks=needs_torch, id="torch"),
        pytest.param("jax", ("main", "tall", "specials"), marks=needs_jax, id="jax"),
    ],
)
def test_the_honest_golden_breaks_no_clause(name, cases):
    verdicts = judged(Subject(frameworks.load(name, "tests"), "cpu"), cases)
    assert reds(verdicts) == {}
    assert {verdict.clause for verdict in verdicts} == {f"EMB-{n}" for n in (5, 8, 9, 10, 11, 12)}
    assert all(verdict.elements for verdict in verdicts)


def test_every_clause_of_a_gradient_has_a_liar():
    broken = {clause for liar in TORCH_LIARS.values() for clause in liar.red}
    assert broken == {f"EMB-{n}" for n in (5, 8, 9, 10, 11, 12)}


@pytest.mark.parametrize(
    ("name", "liars"),
    [
        pytest.param("torch", TORCH_LIARS, marks=needs_torch, id="torch"),
        pytest.param("jax", TORCH_LIARS | JAX_LIARS, marks=needs_jax, id="jax"),
    ],
)
def test_every_form_and_condition_has_a_liar_that_it_finds_first(name, liars):
    said = " ".join(liar.says for liar in liars.values())
    whole = {}
    for case in ("main", "narrowed"):
        subject = Subject(frameworks.load(name, "tests"), "cpu")
        whole[case] = _Gradient(subject, CASES[case], inputs_of(case), Ledger(TITLES))
    conditions = {run for run, _ in whole["main"]._conditions()}
    conditions -= {f"permuted {n}" for n in range(1, 6)} | {"split 1"}  # like the first of their kind
    assert {run for run in conditions if f"condition {run}]" in said} == conditions
    forms = {form for examination in whole.values() for form in examination._forms()}
    assert {form for form in forms if f", {form}]" in said} == forms
    assert len(conditions) >= 8
    assert forms == {"rows", "accumulated", "through forward", "through forward_fp32"}


@needs_torch
def test_two_gradients_that_differ_are_told_apart():
    subject, case = Subject(frameworks.load("torch", "tests"), "cpu"), CASES["plain"]
    got = examine_gradient(subject, case, inputs_of("plain"), Ledger(TITLES))
    wrong = got.copy()
    wrong[3, 4] ^= 1
    for other, outcome in ((got.copy(), Outcome.PASS), (wrong, Outcome.FAIL)):
        ledger = Ledger(TITLES)
        compare_gradients((subject, got), (subject, other), case, ledger)
        [verdict] = ledger.verdicts()
        assert (verdict.clause, verdict.against, verdict.outcome) == ("EMB-8", "torch/cpu", outcome)
    assert verdict.problems[0].startswith("out[3, 4]: got 0x")
    assert verdict.problems[0].endswith(f"1 of 320 elements differ) [torch and torch grad_weight, {case.id}]")


@pytest.mark.parametrize("missing", [0, 1])
def test_gradients_of_which_one_is_missing_are_not_compared(missing):
    ledger, pair = Ledger(TITLES), [(None, np.zeros((1, 1), "u2"))] * 2
    pair[missing] = (None, None)
    compare_gradients(*pair, CASES["plain"], ledger)
    assert ledger.verdicts() == []


# Cases that are evidence of invariance


def recorded(case):
    """Return the verdict on the inputs of a case."""
    ledger = Ledger(TITLES)
    gradient_inputs(case, ledger)
    [verdict] = ledger.verdicts()
    assert verdict.clause == FIXTURES
    return verdict


def pinned_case(values, **how):
    [case] = [c for c in gradients.cases() if c.id == f"bfloat16-to-bfloat16-{values}-zipf-256"]
    return msgspec.structs.replace(case, **how)


@pytest.mark.parametrize("values", ["equal-100x8", "negative-zero-100x8"])
def test_a_case_on_which_no_order_shows_may_not_stand_for_invariance(values):
    case = pinned_case(values, conditions=True)
    assert recorded(case).outcome is Outcome.FAIL
    assert recorded(case).problems == [
        f"{case.id}: got 0 % of elements that another order changes, expected more [build {case.id}]"
    ]
    assert recorded(pinned_case(values)).outcome is Outcome.PASS
    assert recorded(pinned_case("cancelling-40x8", conditions=True)).outcome is Outcome.PASS


@pytest.mark.parametrize("part", ["ids", "table", "answers"])
def test_a_case_that_is_not_the_pinned_one_is_told(part, monkeypatch):
    case = pinned_case("equal-100x8")
    original = gradients.digests

    def other(*args):
        made = original(*args)
        return msgspec.structs.replace(made, **{part: {"grad_weight": "0" * 64} if part == "answers" else "0" * 64})

    monkeypatch.setattr(gradients, "digests", other)
    assert recorded(case).outcome is Outcome.FAIL
    [problem] = recorded(case).problems
    assert problem.startswith(f"{case.id}: got ids ")


# The tests above are tests only if they fail with a broken engine.


def _no_forms(monkeypatch):
    monkeypatch.setattr(_Gradient, "_forms", lambda self: {})


def _untouched_rows_unseen(monkeypatch):
    monkeypatch.setattr(_Gradient, "_untouched", lambda self, got: None)


def _no_conditions(monkeypatch):
    monkeypatch.setattr(_Gradient, "_invariance", lambda self, base: None)


def _memory_unmeasured(monkeypatch):
    monkeypatch.setattr(_Gradient, "_memory", lambda self: None)


def _limit_raised(monkeypatch):
    monkeypatch.setattr(gradient, "FIXED_OVERHEAD", 1 << 40)


def _inputs_unchecked(monkeypatch):
    def called(self, name, run, ids, cotangent, lay=np.copy):
        return run(*self._put(lay(ids), lay(cotangent)))

    monkeypatch.setattr(_Gradient, "_called", called)


def _inputs_not_copied(monkeypatch):
    for method in (_Gradient._called, _Gradient._dense):
        monkeypatch.setattr(method, "__defaults__", (lambda array: array,))


def _layouts_dense(monkeypatch):
    called = _Gradient._called
    monkeypatch.setattr(_Gradient, "_called", lambda *args: called(*args[:5]))


def _comparison_unused(monkeypatch):
    monkeypatch.setattr(gradient, "mismatch", lambda got, expected, fmt: None)


def _first_rows_only(monkeypatch):
    compare = gradient.mismatch
    monkeypatch.setattr(gradient, "mismatch", lambda got, expected, fmt: compare(got[:1], expected[:1], fmt))


def _form_unchecked(monkeypatch):
    monkeypatch.setattr(gradient, "formed", lambda framework, out, wanted: framework.bits_of(out))


def _nothing_recorded(monkeypatch):
    monkeypatch.setattr(Ledger, "record", lambda *args, **kwargs: None)


BROKEN_ENGINES = {
    "no forms: rows": (_no_forms, "row_ids_backwards"),
    "no forms: accumulators": (_no_forms, "padding_accumulated"),
    "no forms: differentiation": (_no_forms, "differentiated_by_the_framework"),
    "untouched rows unseen": (_untouched_rows_unseen, "untouched_rows_minus_zero"),
    "untouched rows unseen: padding": (_untouched_rows_unseen, "padding_counted"),
    "no conditions": (_no_conditions, "second_call_wrong"),
    "no conditions: order": (_no_conditions, "summed_in_float32_one_after_the_other"),
    "memory unmeasured": (_memory_unmeasured, "rows_taken_out_of_a_whole_table"),
    "limit raised": (_limit_raised, "rows_taken_out_of_a_whole_table"),
    "inputs unchecked": (_inputs_unchecked, "cotangent_scaled_in_place"),
    "inputs unchecked: accumulators": (_inputs_unchecked, "cotangent_scaled_by_the_accumulator"),
    "inputs not copied": (_inputs_not_copied, "cotangent_scaled_in_place"),
    "inputs not copied: rows": (_inputs_not_copied, "cotangent_scaled_by_the_rows"),
    "layouts all dense": (_layouts_dense, "stride_of_the_cotangent_ignored"),
    "comparison unused": (_comparison_unused, "duplicates_overwrite"),
    "first rows only": (_first_rows_only, "last_untouched_element_not_written"),
    "form unchecked": (_form_unchecked, "result_in_the_cotangents_dtype"),
    "nothing recorded": (_nothing_recorded, "duplicates_overwrite"),
}


@needs_torch
@pytest.mark.parametrize("name", BROKEN_ENGINES)
def test_with_a_broken_engine_the_test_of_a_liar_fails(name, monkeypatch):
    break_engine, fault = BROKEN_ENGINES[name]
    check(TORCH_LIARS[fault], "torch")
    break_engine(monkeypatch)
    with pytest.raises(AssertionError):
        check(TORCH_LIARS[fault], "torch")
