"""The gradient of both goldens against the exact answer and each other: one test a case, through the engine."""

from __future__ import annotations

import pytest
from conftest import asked_devices

from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.judge import frameworks
from xref.judge.bench import FIXTURES, Subject
from xref.judge.gradient import compare_gradients, examine_gradient, gradient_inputs
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
    assert [(v.clause, v.problems) for v in verdicts if v.outcome is not Outcome.PASS and v.elements] == []
    compared = {(v.framework, v.against) for v in verdicts if v.clause == case.clause and v.elements}
    assert compared == {("torch", "exact"), ("jax", "exact"), ("jax", f"torch/{device}")}


@pytest.mark.parametrize("case", [c for c in CASES if c.conditions], ids=lambda case: case.id)
def test_an_order_case_can_tell_orders_apart(case):
    ids, cotangent = gradients.build(case)
    assert gradients.reordered_share(case, ids, cotangent) > 0
