"""Verdicts: what a mismatch says, that nothing compared is never a pass, and that no later pass hides a failure."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from xref.bits import FORMATS
from xref.judge.verdict import Ledger, Mismatch, Outcome, Report, Verdict, mismatch

CPU = ("torch", "cpu")


def elements(dtype, *values):
    return np.array(values, dtype=FORMATS[dtype].uint)


def ledger_with(*results, clause="EMB-1"):
    """A ledger of results, each `(elements, problem)`, or an error's text."""
    ledger = Ledger({"EMB-1": "gather", "EMB-7": "invariance"})
    for number, result in enumerate(results):
        if isinstance(result, str):
            ledger.error(clause, CPU, "exact", result, call=f"case {number}")
        else:
            ledger.record(clause, CPU, "exact", elements=result[0], problem=result[1], call=f"case {number}")
    return ledger


def report_of(*verdicts):
    return Report(
        xref="0",
        operator="embedding",
        contract_version=1,
        subject="smoke tier",
        environment={"torch": {"version": "2", "cpu": "CPU"}},
        verdicts=list(verdicts),
        digest="00",
        seconds=0.5,
        statement="said",
    )


def verdict_of(outcome=Outcome.PASS, compared=1):
    return Verdict(
        clause="EMB-1",
        title="gather",
        framework="torch",
        device="cpu",
        against="exact",
        elements=compared,
        outcome=outcome,
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_equal_bits_are_no_mismatch(dtype):
    fmt = FORMATS[dtype]
    same = elements(dtype, 0, fmt.sign, fmt.nan, fmt.exponent, 1)
    assert mismatch(same, same.copy(), fmt) is None


@pytest.mark.parametrize(
    ("dtype", "got", "expected", "text"),
    [
        ("bfloat16", 0x0000, 0x8000, "out[0]: got 0x0000, expected 0x8000 (0 ulp"),
        ("bfloat16", 0x7FC1, 0x7F81, "out[0]: got 0x7fc1, expected 0x7f81 (NaN"),
        ("bfloat16", 0x3F80, 0x3F82, "out[0]: got 0x3f80, expected 0x3f82 (2 ulp"),
        ("float16", 0x8001, 0x0001, "out[0]: got 0x8001, expected 0x0001 (2 ulp"),
        ("float32", 0x7F800000, 0x7F7FFFFF, "out[0]: got 0x7f800000, expected 0x7f7fffff (1 ulp"),
        ("float64", 1, 0, "out[0]: got 0x0000000000000001, expected 0x0000000000000000 (1 ulp"),
        ("float8_e5m2", 0x05, 0x0A, "out[0]: got 0x05, expected 0x0a (5 ulp"),
        ("float8_e4m3fn", 0x7E, 0x7F, "out[0]: got 0x7e, expected 0x7f (NaN"),
    ],
    ids=["minus zero", "quieted NaN", "float", "across zero", "overflow", "16 digits", "2 digits", "e4m3fn NaN"],
)
def test_a_mismatch_says_hex_of_the_dtypes_width_and_the_distance(dtype, got, expected, text):
    found = mismatch(elements(dtype, got), elements(dtype, expected), FORMATS[dtype])
    assert str(found) == text + "; 1 of 1 elements differ)"


def test_a_mismatch_names_the_first_place_in_row_major_order_and_counts_all():
    expected = np.zeros((3, 4, 5), dtype="u2")
    got = expected.copy()
    got[1, 2, 3] = got[1, 3, 0] = got[2, 0, 0] = 7
    assert mismatch(got, expected, FORMATS["float16"]) == Mismatch(
        index=(1, 2, 3), got="0x0007", expected="0x0000", ulp=7, differing=3, elements=60
    )
    assert str(mismatch(got, expected, FORMATS["float16"])) == (
        "out[1, 2, 3]: got 0x0007, expected 0x0000 (7 ulp; 3 of 60 elements differ)"
    )


def test_a_mismatch_in_the_last_element_of_a_large_array_is_found():
    expected = np.zeros((1000, 1001), dtype="u1")
    got = expected.copy()
    got[-1, -1] = 1
    found = mismatch(got, expected, FORMATS["float8_e5m2"])
    assert (found.index, found.differing, found.elements) == ((999, 1000), 1, 1001000)


def test_a_ledger_adds_up_cases_and_elements():
    [verdict] = ledger_with((3, None), (4, None)).verdicts()
    assert (verdict.outcome, verdict.cases, verdict.elements, verdict.problems) == (Outcome.PASS, 2, 7, [])
    assert (verdict.clause, verdict.title, verdict.framework, verdict.device) == ("EMB-1", "gather", *CPU)


@pytest.mark.parametrize("passes_before", [0, 1])
@pytest.mark.parametrize("passes_after", [0, 3])
def test_a_failure_is_never_overwritten_by_a_pass(passes_before, passes_after):
    passes = [(9, None)]
    [verdict] = ledger_with(*passes * passes_before, (9, "wrong"), *passes * passes_after).verdicts()
    assert verdict.outcome is Outcome.FAIL
    assert verdict.problems == [f"wrong [case {passes_before}]"]


@pytest.mark.parametrize("passes_after", [0, 3])
def test_an_error_is_never_overwritten_by_a_pass(passes_after):
    [verdict] = ledger_with((9, None), "ValueError: no", *[(9, None)] * passes_after).verdicts()
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problems == ["out: got ValueError: no, expected a result [case 1]"]
    assert verdict.cases == 2 + passes_after


@pytest.mark.parametrize("order", [1, -1], ids=["failure first", "error first"])
def test_a_failure_and_an_error_are_both_told(order):
    [verdict] = ledger_with(*[(9, "wrong"), "ValueError: no"][::order]).verdicts()
    assert verdict.outcome is Outcome.FAIL
    assert len(verdict.problems) == 2


@pytest.mark.parametrize("results", [[(0, None)], [(0, None), (0, None)]], ids=["one empty case", "two"])
def test_nothing_compared_is_an_error(results):
    [verdict] = ledger_with(*results).verdicts()
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problems == ["elements: got none compared, expected at least one [against exact]"]


def test_a_comparison_that_was_expected_and_never_came_is_an_error():
    ledger = ledger_with((5, None))
    ledger.expect("EMB-1", CPU, "exact")
    ledger.expect("EMB-7", CPU, "plain call")
    came, missing = ledger.verdicts()
    assert came.outcome is Outcome.PASS
    assert (missing.clause, missing.cases, missing.outcome) == ("EMB-7", 0, Outcome.ERROR)
    assert missing.problems == ["elements: got none compared, expected at least one [against plain call]"]


def test_verdicts_may_be_asked_for_twice():
    ledger = ledger_with((0, None))
    assert [verdict.problems for verdict in ledger.verdicts()] == [verdict.problems for verdict in ledger.verdicts()]


def test_verdicts_asked_for_too_early_spoil_nothing():
    ledger = ledger_with((0, None))
    [early] = ledger.verdicts()
    ledger.record("EMB-1", CPU, "exact", elements=1, problem=None, call="c")
    [late] = ledger.verdicts()
    assert (early.outcome, late.outcome, late.problems) == (Outcome.ERROR, Outcome.PASS, [])


def test_an_empty_case_does_not_spoil_the_others():
    [verdict] = ledger_with((0, None), (5, None)).verdicts()
    assert verdict.outcome is Outcome.PASS


def test_verdicts_are_kept_apart_by_clause_framework_device_and_truth():
    ledger = Ledger({"EMB-1": "gather", "EMB-7": "invariance"})
    keys = [
        (clause, framework, device, against)
        for clause in ("EMB-1", "EMB-7")
        for framework in ("jax", "torch")
        for device in ("cpu", "cuda")
        for against in ("exact", "torch/cpu")
    ]
    for clause, framework, device, against in reversed(keys):
        problem = "wrong" if (clause, framework, device, against) == keys[5] else None
        ledger.record(clause, (framework, device), against, elements=1, problem=problem, call="c")
    verdicts = ledger.verdicts()
    assert [(v.clause, v.framework, v.device, v.against) for v in verdicts] == keys
    assert [v.outcome for v in verdicts] == [Outcome.FAIL if n == 5 else Outcome.PASS for n in range(len(keys))]


class SlowTitles(dict):
    """Titles that let other threads run between the search for a verdict and its making."""

    def __getitem__(self, clause):
        time.sleep(0.001)
        return super().__getitem__(clause)


class SlowNumber(int):
    """An integer that lets other threads run while it is added."""

    def __radd__(self, other):
        time.sleep(0.0001)
        return int(self) + other


def test_no_result_is_lost_where_threads_report_at_once(monkeypatch):
    threads, results, started = 8, 200, threading.Barrier(8)
    ledger = Ledger(SlowTitles({f"EMB-{n}": "title" for n in range(1, 5)}))

    def report(thread):
        started.wait()
        for n in range(results):
            clause, one = f"EMB-{n % 4 + 1}", SlowNumber(1)
            ledger.expect(clause, CPU, "exact")
            ledger.record(clause, CPU, "exact", elements=one, problem=None, call="c")
            ledger.record(clause, CPU, "exact", elements=one, problem="wrong", call=f"{thread} on {n}")
            ledger.error(clause, CPU, "exact", "ValueError", call=f"{thread} on {n}")
            ledger.verdicts()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(report, range(threads)))
    finally:
        sys.setswitchinterval(before)
    each = threads * results // 4
    found = [(v.cases, v.elements, len(v.problems), v.outcome) for v in ledger.verdicts()]
    assert found == [(3 * each, 2 * each, 2 * each, Outcome.FAIL)] * 4


def test_the_order_of_problems_does_not_depend_on_which_of_two_operators_is_faster():
    reports = {
        "jax.forward": [f"jax.forward on cpu, {case}" for case in ("small", "few, condition b", "few, condition a")],
        "jax.forward_fp32": [f"jax.forward_fp32 on cpu, {case}" for case in ("small", "few")],
    }
    expected = [f"wrong [{call}]" for calls in reports.values() for call in calls]
    interleaved = [call for pair in itertools.zip_longest(*reports.values()) for call in pair if call]
    one, other = reports.values()
    for calls in (one + other, other + one, interleaved):
        ledger = Ledger({"EMB-1": "gather"})
        for call in calls:
            ledger.record("EMB-1", CPU, "exact", elements=1, problem="wrong", call=call)
        assert ledger.verdicts()[0].problems == expected


def test_the_order_of_problems_does_not_depend_on_which_of_two_cases_is_faster():
    cases = [[f"jax.forward on cpu, {case}, condition {n}" for n in ("b", "a")] for case in ("small", "few")]
    expected = [f"wrong [{call}]" for calls in cases for call in calls]
    interleaved = [call for pair in zip(*cases, strict=True) for call in pair]
    for calls in (cases[0] + cases[1], cases[1] + cases[0], interleaved):
        ledger = Ledger({"EMB-1": "gather"})
        ledger.in_order(["small", "few"])
        for call in calls:
            ledger.record("EMB-1", CPU, "exact", elements=1, problem="wrong", call=call)
        assert ledger.verdicts()[0].problems == expected


def test_problems_of_one_verdict_are_none_of_anothers():
    first, second = verdict_of(), verdict_of()
    first.problems.append("wrong")
    assert second.problems == []


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.ERROR, Outcome.SKIP])
def test_a_report_with_anything_but_passes_is_not_ok(outcome):
    assert report_of(verdict_of()).ok
    assert not report_of(verdict_of(), verdict_of(outcome)).ok


def test_a_report_that_compared_nothing_is_not_ok():
    assert not report_of().ok
    assert not report_of(verdict_of(compared=0)).ok


def test_a_report_counts_the_elements_of_all_verdicts():
    assert report_of(verdict_of(compared=3), verdict_of(compared=4)).elements == 7


def test_a_report_comes_back_from_json_as_it_was():
    verdict = verdict_of(Outcome.FAIL)
    verdict.problems.append("out[0]: got 0x0000, expected 0x8000 [torch.forward]")
    report = report_of(verdict, verdict_of(compared=0))
    text = report.to_json()
    assert msgspec.json.decode(text, type=Report) == report
    data = msgspec.json.decode(text)
    assert data["verdicts"][0] == {
        "clause": "EMB-1",
        "title": "gather",
        "framework": "torch",
        "device": "cpu",
        "against": "exact",
        "cases": 0,
        "elements": 1,
        "outcome": "fail",
        "problems": ["out[0]: got 0x0000, expected 0x8000 [torch.forward]"],
    }
    assert text.startswith('{\n  "xref": "0",')
