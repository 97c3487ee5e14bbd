"""The gradient of both goldens against the exact answer and each other: one test a case, through the engine."""

from __future__ import annotations

import pytest
from conftest import asked_devices

from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.judge import frameworks
from xref.judge.gradient import compare_gradients, examine_gradient, gradient_inputs
from xref.judge.subject import FIXTURES, Subject
from xref.judge.verdict import Ledger, Outcome
from xref.spec import Tier

pytestmark = [pytest.mark.torch, pytest.mark.jax]

TITLES = {FIXTURES: "inputs"} | {clause.id: clause.title for clause in contract.CLAUSES}
CASES = gradients.cases(Tier.EXHAUSTIVE)


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_cross_gradient(case, pytestconfig):
    device = next(iter(asked_devices(pytestconfig)), "cpu")
    subjects = [Subject(frameworks.load(name, "pytest"), device) for name in frameworks.FRAMEWORKS]
    ledger = Ledger(TITLES)
    inputs = gradient_inputs(case, ledger)
    outputs = [examine_gradient(subject, case, inputs, ledger) for subject in subjects]
    compare_gradients((subjects[0], outputs[0]), (subjects[1], outputs[1]), case, ledger)
    verdicts = ledger.verdicts()
    hollow = {"EMB-9"} if names_every_row(case, inputs[0]) else set()
    if not inputs[0].size:
        hollow.add("EMB-5")
    assert {v.clause for v in verdicts if v.elements == 0} == hollow
    assert [(v.clause, v.problems) for v in verdicts if v.outcome is not Outcome.PASS and v.clause not in hollow] == []
    assert [v.problems for v in verdicts if v.clause in hollow] == [
        [f"elements: got none compared, expected at least one [against {v.against}]"]
        for v in verdicts
        if v.clause in hollow
    ]
    both = {("torch", "exact"), ("jax", "exact")}
    assert compared(verdicts, case.clause) == both | {("jax", f"torch/{device}")}
    assert compared(verdicts, "EMB-9") == (set() if "EMB-9" in hollow else both)
    plain = {("torch", "plain call"), ("jax", "plain call")}
    assert compared(verdicts, "EMB-10") == (plain if case.conditions else set())


def names_every_row(case, ids):
    """Whether no row is left that must be +0 for want of tokens."""
    return len(set(ids.reshape(-1).tolist()) - {case.padding_idx}) == case.vocab


def compared(verdicts, clause):
    return {(v.framework, v.against) for v in verdicts if v.clause == clause and v.elements}


@pytest.mark.parametrize("case", [c for c in CASES if c.conditions], ids=lambda case: case.id)
def test_an_order_case_can_tell_orders_apart(case):
    ids, cotangent = gradients.build(case)
    assert gradients.reordered_share(case, ids, cotangent) > 0
