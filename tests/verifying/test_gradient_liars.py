"""Gradients that are wrong in one way turn their clauses red, and no others; an honest golden's turn none.

And the tests here are judged too: with an engine that is broken on purpose they must fail.
"""

from __future__ import annotations

import re

import pytest
from support.liars import reds, report_on
from support.liars.gradient import CASES, JAX_LIARS, TORCH_LIARS, operator_on, verdicts_of

from xref import operators
from xref.engine import frameworks
from xref.engine.outcomes import Outcome
from xref.operators.embedding.calls import gradient, gradient_batches, memory, sums
from xref.verifying.golden import golden_of
from xref.verifying.ledger import Ledger

needs_torch = pytest.mark.torch
needs_jax = pytest.mark.jax


def honest(name):
    return golden_of(operators.find("embedding"), frameworks.load(name, "tests"), "cpu")


def check(liar, name):
    """Assert that the clauses which a liar breaks are red, that no other is, and that the first says what is wrong."""
    problems = reds(verdicts_of(liar, name))
    assert set(problems) == set(liar.red), problems
    told = [re.sub(r" at \w+\.py:\d+", "", problem) for problem in problems[liar.red[0]]]
    assert any(liar.says in problem for problem in told), told
    assert all(problem.endswith("]") and "\n" not in problem for each in problems.values() for problem in each)


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
    verdicts = report_on(operator_on(cases, traced=name == "jax"), honest(name)).verdicts
    assert reds(verdicts) == {}
    assert {verdict.clause for verdict in verdicts} - {"fixtures"} == {f"EMB-{n}" for n in (5, 8, 9, 10, 11, 12)}
    assert all(verdict.elements for verdict in verdicts)


def test_every_clause_of_a_gradient_has_a_liar():
    broken = {clause for liar in TORCH_LIARS.values() for clause in liar.red}
    assert broken == {f"EMB-{n}" for n in (5, 8, 9, 10, 11, 12)}


@needs_torch
def test_two_gradients_that_differ_are_told_apart():
    liar = TORCH_LIARS["last_column_wrong"]
    operator = operator_on(liar.cases, traced=False)
    for second, outcome in ((honest("torch"), Outcome.PASS), (liar.golden("torch"), Outcome.FAIL)):
        verdicts = report_on(operator, honest("torch"), second).verdicts
        [beside] = [verdict for verdict in verdicts if verdict.against == "torch/cpu"]
        assert (beside.clause, beside.outcome) == ("EMB-8", outcome)
    assert beside.problems[0].startswith("out[0, 7]: got 0x")
    assert (
        "[torch and torch grad_weight, backward, bfloat16-to-bfloat16-cancelling-40x8-zipf-256]" in beside.problems[0]
    )


# The tests above are tests only if they fail with a broken engine.


def _sums_unjudged(monkeypatch):
    monkeypatch.setattr(sums, "_unlike_answer", lambda *args: iter(()))


def _untouched_rows_unseen(monkeypatch):
    monkeypatch.setattr(sums, "_elsewhere", lambda *args: iter(()))


def _memory_unmeasured(monkeypatch):
    monkeypatch.setattr(memory, "FIXED_OVERHEAD", 1 << 40)


def _inputs_unchecked(monkeypatch):
    for module in (gradient, gradient_batches):
        monkeypatch.setattr(module, "judged_inputs", lambda *args: None, raising=False)


def _nothing_recorded(monkeypatch):
    monkeypatch.setattr(Ledger, "record", lambda *args, **kwargs: None)


BROKEN_ENGINES = {
    "sums unjudged": (_sums_unjudged, "duplicates_overwrite"),
    "sums unjudged: rows": (_sums_unjudged, "row_ids_backwards"),
    "untouched rows unseen": (_untouched_rows_unseen, "untouched_rows_minus_zero"),
    "memory unmeasured": (_memory_unmeasured, "rows_taken_out_of_a_whole_table"),
    "inputs unchecked": (_inputs_unchecked, "cotangent_scaled_in_place"),
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
