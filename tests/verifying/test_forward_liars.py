"""`verify` is judged first: a golden that is wrong in one way turns its clause red and no other, an honest one none.

And the tests here are judged too: with an engine that is broken on purpose they must fail.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.examined import Beside
from support.liars import H, Liar, V, reds, report_on, verdicts_of
from support.liars.forward_jax import LIARS as JAX_LIARS
from support.liars.forward_torch import LIARS as TORCH_LIARS

from xref.engine import calls, compare, executor, layouts, results
from xref.engine.conditions import PLANS
from xref.engine.examine import Examination
from xref.engine.outcomes import Outcome
from xref.operators.embedding.calls import batches, memory, refusal
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, VERBS
from xref.spec import Exam, Tier
from xref.verifying.ledger import Ledger

needs_torch = pytest.mark.torch
needs_jax = pytest.mark.jax
HONEST = Liar(lambda run, ids, table, memory: run(ids, table), (), "")


def check(liar, name):
    """Assert that the clauses which a liar breaks are red, that no other is, and that the first says what is wrong."""
    problems = reds(verdicts_of(liar, name))
    assert set(problems) - set(liar.may) == set(liar.red), problems
    told = [re.sub(r" at \w+\.py:\d+", "", problem) for problem in problems[liar.red[0]]]
    assert any(liar.says in problem for problem in told), told
    assert all(problem.endswith("]") and "\n" not in problem for told in problems.values() for problem in told)


@needs_torch
@pytest.mark.parametrize("fault", TORCH_LIARS)
def test_a_torch_liar_is_caught_by_the_clause_it_breaks(fault):
    check(TORCH_LIARS[fault], "torch")


@needs_jax
@pytest.mark.parametrize("fault", JAX_LIARS)
def test_a_jax_liar_is_caught_by_the_clause_it_breaks(fault):
    check(JAX_LIARS[fault], "jax")


JUDGED = [name for name, liar in TORCH_LIARS.items() if liar.red[0] != "EMB-4"]  # to the letter are goldens alone


@needs_torch
@pytest.mark.parametrize("fault", JUDGED)
def test_a_torch_liar_is_caught_by_the_judge_too(fault):
    liar = TORCH_LIARS[fault]
    candidate = liar.golden("torch")._candidate
    subject = Beside(candidate)
    exam = Exam(traits=subject.traits, tier=Tier.SMOKE, dtypes=(liar.dtype,))
    examination = Examination(liar.operator(), exam, subject)
    examination.run()
    failed = {check.partition("/")[0] for check, found in examination.findings.items() if found.failed}
    skipped = {check.partition("/")[0] for check, found in examination.findings.items() if found.skipped}
    assert liar.red[0] in failed | (skipped if liar.modes else set())


@pytest.mark.parametrize(
    ("name", "dtype", "tokens"),
    [
        pytest.param("torch", "bfloat16", "small", marks=needs_torch),
        pytest.param("torch", "float16", "small", marks=needs_torch),
        pytest.param("jax", "bfloat16", "few", marks=needs_jax),
    ],
)
def test_the_honest_golden_breaks_no_clause(name, dtype, tokens):
    works = (tokens, "empty", "scalar", "bytes", "identity", "tall")
    verdicts = verdicts_of(Liar(HONEST.lie, (), "", works=works, dtype=dtype), name)
    assert reds(verdicts) == {}
    assert {verdict.clause for verdict in verdicts} == {f"EMB-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 12)}
    assert all(verdict.elements for verdict in verdicts)


def test_every_clause_of_a_forward_pass_has_a_liar():
    broken = {clause for liar in TORCH_LIARS.values() for clause in liar.red}
    assert broken == {f"EMB-{n}" for n in (1, 2, 3, 4, 5, 6, 7, 12)}


def test_every_condition_has_a_liar_that_it_finds():
    said = " ".join(liar.says for liar in TORCH_LIARS.values())
    assert {name for name in PLANS if f"condition {name}, " in said} == set(PLANS)


@needs_torch
def test_a_condition_that_raises_does_not_hide_what_the_others_find():
    def wrong_and_raising(run, ids, table, memory):
        if ids.shape == (1,) and table.shape == (V, H):
            raise RuntimeError("one token")
        return TORCH_LIARS["decoding_step_wrong"].lie(run, ids, table, memory)

    problems = reds(verdicts_of(Liar(wrong_and_raising, ("EMB-7",), "", works=("small",)), "torch"))
    assert set(problems) == {"EMB-7"}
    found = {problem.rpartition("condition ")[2].partition(",")[0] for problem in problems["EMB-7"]}
    assert found == {"population", "decode"}
    assert problems["EMB-7"][0].startswith("out: got RuntimeError: one token at test_forward_liars.py:")


@needs_torch
@pytest.mark.parametrize("verb", VERBS)
def test_two_goldens_that_differ_are_told_apart(verb):
    liar = Liar(TORCH_LIARS["last_column_wrong"].lie, (), "", verbs=(verb,), works=("small",))
    verdicts = report_on(liar.operator(), HONEST.golden("torch"), liar.golden("torch")).verdicts
    beside = {v.clause: v for v in verdicts if v.against == "torch/cpu"}
    wrong = beside[CLAUSES_OF_EVERY_CALL.accuracy[verb]]
    assert wrong.outcome is Outcome.FAIL
    assert [v.outcome for v in beside.values() if v is not wrong] == [Outcome.PASS]
    [problem] = wrong.problems
    assert problem.startswith("out[0, 34]: got 0x")
    assert f"(1 ulp; 96 of 3360 elements differ) [torch and torch {verb}, {verb} bfloat16 43x35 small " in problem


REWRITING = [name for name, liar in TORCH_LIARS.items() if "got other" in liar.says and "EMB-5" in liar.red]


@needs_torch
@pytest.mark.parametrize("fault", REWRITING)
def test_what_one_golden_writes_into_its_inputs_another_does_not_read(fault):
    liar = TORCH_LIARS[fault]
    verdicts = report_on(liar.operator(), liar.golden("torch"), HONEST.golden("torch")).verdicts
    assert "EMB-5" in reds(verdicts)
    assert {v.clause for v in verdicts if v.against == "exact" and v.outcome is Outcome.PASS} >= {"EMB-2", "EMB-3"}


# The tests above are tests only if they fail with a broken engine.


def _comparison_unused(monkeypatch):
    monkeypatch.setattr(compare, "mismatch", lambda got, expected, fmt: None)


def _nothing_recorded(monkeypatch):
    monkeypatch.setattr(Ledger, "record", lambda *args, **kwargs: None)


def _first_elements_only(monkeypatch):
    original = compare.mismatch
    monkeypatch.setattr(compare, "mismatch", lambda got, expected, fmt: original(got[..., :1], expected[..., :1], fmt))


def _compared_as_floats(monkeypatch):
    original = compare.mismatch

    def loose(got, expected, fmt):
        one, other = ((part.astype("u4") << 16).view("f4") for part in (got, expected))
        return None if np.array_equal(one, other, equal_nan=True) else original(got, expected, fmt)

    monkeypatch.setattr(compare, "mismatch", loose)


def _conditions_unseen(monkeypatch):
    monkeypatch.setattr(batches, "mismatch", lambda got, expected, fmt: None)


def _layouts_dense(monkeypatch):
    dense = dict.fromkeys(layouts.LAYOUTS, layouts.LAYOUTS[layouts.DENSE])
    monkeypatch.setattr(executor, "LAYOUTS", dense)


def _form_unchecked(monkeypatch):
    monkeypatch.setattr(calls, "judged_output", lambda seen, reply, *_: getattr(reply, "array", None))


def _overlap_unseen(monkeypatch):
    monkeypatch.setattr(results, "_memory", lambda arrays, value: (0, 0))


def _inputs_unchecked(monkeypatch):
    monkeypatch.setattr(calls, "judged_inputs", lambda *args: None)


def _limit_raised(monkeypatch):
    monkeypatch.setattr(memory, "FIXED_OVERHEAD", 1 << 40)


def _refusals_unjudged(monkeypatch):
    monkeypatch.setattr(refusal.Refusal, "judge", lambda self, *args: calls.Seen(passed={"EMB-4": 1}))


BROKEN_ENGINES = {
    "comparison unused": (_comparison_unused, "last_column_wrong"),
    "nothing recorded": (_nothing_recorded, "last_column_wrong"),
    "first elements only": (_first_elements_only, "last_column_wrong"),
    "compared as floats: zeros": (_compared_as_floats, "minus_zero_lost"),
    "compared as floats: NaNs": (_compared_as_floats, "nan_quieted"),
    "conditions unseen": (_conditions_unseen, "alone_in_its_batch_wrong"),
    "layouts all dense": (_layouts_dense, "strides_of_the_table_ignored"),
    "form unchecked": (_form_unchecked, "axis_of_one_more"),
    "overlap unseen": (_overlap_unseen, "view_of_the_table"),
    "inputs unchecked": (_inputs_unchecked, "one_element_of_the_table_rewritten"),
    "refusals unjudged": (_refusals_unjudged, "frameworks_own_message"),
    "limit raised": (_limit_raised, "whole_table_copied_first"),
}


@needs_torch
@pytest.mark.parametrize("name", BROKEN_ENGINES)
def test_with_a_broken_engine_the_test_of_a_liar_fails(name, monkeypatch):
    break_engine, fault = BROKEN_ENGINES[name]
    check(TORCH_LIARS[fault], "torch")
    break_engine(monkeypatch)
    with pytest.raises(AssertionError):
        check(TORCH_LIARS[fault], "torch")
