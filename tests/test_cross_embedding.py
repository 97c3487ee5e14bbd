"""Two frameworks, one truth: both goldens on every case, against the exact answer, each other and the pinned digests.

The engine of `xref verify` does the comparing; here each case is a test of its own, on each device. A device that is
not here is a skipped test of its own, and a failure where `--xref-device` asks for it.
"""

from __future__ import annotations

import pytest

from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.inputs import make_table
from xref.judge.run import compare_subjects, examine, expect, from_case, output_digests
from xref.judge.subject import FIXTURES
from xref.judge.verdict import Ledger, Outcome, mismatch

pytestmark = [pytest.mark.torch, pytest.mark.jax]

TITLES = {FIXTURES: "inputs as pinned"} | {clause.id: clause.title for clause in contract.CLAUSES}
# Above this size of a table, in bytes, a copy of it could not hide, and the engine measures memory.
LARGE = 1 << 25
BAD_IDS = {
    f"{bad.name.replace(', ', ' ').replace(' ', '-')}-{verb}": (bad, verb)
    for bad in contract.bad_ids()
    for verb in contract.VERBS
}


def problems_of(ledger):
    return [problem for verdict in ledger.verdicts() for problem in verdict.problems]


def test_cross_device(present):
    """One item a kind of device, so that one which is not here shows in the report as skipped, with its reason."""
    assert present() in ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("case", contract.cases(), ids=lambda case: case.id)
def test_cross(case, subjects):
    ledger, goldens = Ledger(TITLES), subjects()
    work = from_case(case, ledger)
    if work.ids.size:
        expect(goldens, tuple(work.answers), ledger, refusals=False, conditions=case.conditions)
    one, other = ((golden, examine(golden, work, ledger)) for golden in goldens)
    compare_subjects(one, other, work, ledger)

    pins = {f"{case.id} {verb} {digest}" for verb, digest in contract.pinned()[case.id].answers.items()}
    assert output_digests(work, one[1]) == output_digests(work, other[1]) == pins
    verdicts = ledger.verdicts()
    assert (FIXTURES, "numpy") in {(verdict.clause, verdict.framework) for verdict in verdicts}
    if work.table.nbytes >= LARGE:
        assert {v.framework for v in verdicts if v.clause == "EMB-12"} == {"torch", "jax"}
    if work.ids.size:
        assert problems_of(ledger) == []
        assert {verdict.outcome for verdict in verdicts} == {Outcome.PASS}
    else:  # its shape is all that an empty output has, and comparing no element is never a pass
        hollow = [v for v in verdicts if v.clause in ("EMB-1", "EMB-2", "EMB-3", "EMB-6")]
        assert all(v.cases and v.outcome is Outcome.ERROR for v in hollow)
        assert {problem.partition(" [")[0] for problem in problems_of(ledger)} == {
            "elements: got none compared, expected at least one"
        }


@pytest.mark.parametrize("dtype", FORMATS)
def test_cross_torch_equals_jitted_jax(dtype, subjects):
    """Under `jit` the golden sees no values of its ids: it must give the eager torch golden's bits all the same."""
    torch_subject, jax_subject = subjects()
    [case] = [case for case in contract.cases(dtypes=(dtype,)) if case.conditions]
    work = from_case(case, Ledger(TITLES))
    for verb in work.answers:
        outputs = []
        for subject in (torch_subject, jax_subject):
            framework = subject.framework
            with framework.precision(dtype):
                call = getattr(framework.golden, verb)
                call = framework.traced(call) or call
                ids = framework.put(work.ids, None, subject.device)
                outputs.append(framework.bits_of(call(ids, framework.put(work.table, dtype, subject.device))))
        assert outputs[0].size == work.answers[verb].size
        assert mismatch(outputs[1], outputs[0], FORMATS[contract.result_dtype(verb, dtype)]) is None


@pytest.mark.parametrize(("bad", "verb"), BAD_IDS.values(), ids=BAD_IDS)
def test_cross_bad_ids_raise_with_one_wording(bad, verb, subjects):
    raised = []
    for subject in subjects():
        framework = subject.framework
        table = make_table("tagged", bad.vocab, 3, FORMATS["bfloat16"], touched=bad.ids)
        given = framework.put(bad.ids, None, subject.device), framework.put(table, "bfloat16", subject.device)
        with pytest.raises((IndexError, TypeError)) as caught:
            getattr(framework.golden, verb)(*given)
        raised.append((caught.type, str(caught.value)))
    expected = bad.error(verb)
    assert raised == [(type(expected), str(expected))] * 2
