"""Two frameworks, one truth: both goldens on every case, against the exact answer, each other and the pinned digests.

What `xref verify` runs does the comparing; here each case is a test of its own, on each device. A device that is not
here is a skipped test of its own, and a failure where `--xref-device` asks for it.
"""

from __future__ import annotations

import hashlib

import pytest

from xref import operators
from xref.engine.outcomes import Outcome
from xref.operators.embedding import answers, cases, gradient_cases
from xref.operators.embedding.calls.refusal import Refusal
from xref.operators.embedding.examine import gradient
from xref.operators.embedding.examine.conduct import BAD_IDS
from xref.operators.embedding.examine.forward import gathered, widened
from xref.spec import Exam, Tier
from xref.verifying.plan import Examined, Plan
from xref.verifying.run import Run

pytestmark = [pytest.mark.torch, pytest.mark.jax]

EMBEDDING = operators.find("embedding")
CHECKS = {check.id: check for check in EMBEDDING.checks}
GRADIENTS = gradient_cases.cases(Tier.EXHAUSTIVE)


def run_of(goldens, checks, dtype, tier, name):
    """Return the run of the calls of one name, made."""
    plan = Plan()
    everyone = [Examined(each, Exam(traits=each.traits, tier=tier, dtypes=(dtype,), pinned=True)) for each in goldens]
    for check in checks:
        parts = [
            (each, [call for call in check.calls(each.exam) if getattr(call, "id", "") == name]) for each in everyone
        ]
        plan.add(parts)
        plan.expect(CHECKS, parts)
    run = Run(EMBEDDING, plan)
    run.make()
    return run


def confirmed(run, name, hollow):
    """Assert that nothing is wrong but that rows of the clauses in `hollow` have nothing to compare."""
    pins = sorted(f"{name} {verb} {digest}" for verb, digest in answers.pinned()[name].answers.items())
    assert run.digest == hashlib.sha256("\n".join(pins).encode()).hexdigest()
    verdicts = run.ledger.verdicts()
    assert [v.problems for v in verdicts if v.outcome is not Outcome.PASS and v.clause not in hollow] == []
    own = ("exact", "inputs before", "first call")
    assert {v.elements for v in verdicts if v.clause in hollow and v.against in own} <= {0}
    return {(v.clause, v.framework, v.against) for v in verdicts}


def test_cross_device(present):
    """One item a kind of device, so that one which is not here shows in the report as skipped, with its reason."""
    assert present() in ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("case", cases.cases(), ids=lambda case: case.id)
def test_cross(case, goldens):
    both = goldens()
    run = run_of(both, (gathered, widened), case.call.dtype, Tier.STANDARD, case.id)
    empty = {"EMB-1", "EMB-2", "EMB-3", "EMB-6"} if not case.call.tokens else set()
    rows = confirmed(run, case.id, empty)
    assert ("fixtures", "numpy", "pinned digests") in rows
    assert ("EMB-1", "jax", f"torch/{both[0].traits.device}") in rows


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.id)
def test_cross_gradient(case, goldens):
    both = goldens()
    checks = (gradient.sums, gradient.specials)
    run = run_of(both, checks, case.call.result, Tier.EXHAUSTIVE, case.id)
    ids = set(case.call.arrays()[0].reshape(-1).tolist()) - {case.call.padding_idx}
    hollow = {"EMB-9"} if len(ids) == case.call.vocab else set()
    hollow |= {"EMB-5"} if not ids else set()
    if not ids:  # no sum at all: all that there is are rows that no id names
        hollow.add("EMB-8")
    rows = confirmed(run, case.id, hollow)
    assert (case.call.accuracy, "jax", f"torch/{both[0].traits.device}") in rows


@pytest.mark.parametrize("bad", BAD_IDS, ids=str)
@pytest.mark.parametrize("verb", EMBEDDING.verbs)
def test_cross_bad_ids_raise_with_one_wording(bad, verb, goldens):
    assert isinstance(bad, Refusal)
    for golden in goldens():
        exam = Exam(traits=golden.traits, tier=Tier.SMOKE, dtypes=("bfloat16",), pinned=True)
        call = type(bad)(**{**{name: getattr(bad, name) for name in bad.__struct_fields__}, "verb": verb})
        script = call.script(exam)
        seen = call.judge(script, golden.perform(script), exam)
        assert seen.failures == []
        assert seen.passed["EMB-4"]
