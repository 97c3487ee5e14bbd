"""Results become verdicts: nothing compared is never a pass, and no later pass hides a failure."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from xref.engine.outcomes import Outcome
from xref.verifying.ledger import Ledger, Row

TITLES = {"EMB-1": "gather", "EMB-7": "invariance"}
ROW = Row("EMB-1", "torch", "cpu", "exact")
PLAIN = Row("EMB-7", "torch", "cpu", "plain call")
NONE = "elements: got none compared, expected at least one"


def ledger_with(*results):
    """A ledger of results, each `(elements, problem)`, or an error's text."""
    ledger = Ledger(TITLES)
    for number, result in enumerate(results):
        if isinstance(result, str):
            ledger.error(ROW, result, step=f"step {number}")
        else:
            ledger.record(ROW, elements=result[0], problem=result[1], step=f"step {number}")
    return ledger


def test_a_ledger_adds_up_cases_and_elements():
    [verdict] = ledger_with((3, ""), (4, "")).verdicts()
    assert (verdict.outcome, verdict.cases, verdict.elements, verdict.problems) == (Outcome.PASS, 2, 7, [])
    assert (verdict.clause, verdict.title, verdict.framework, verdict.device) == ("EMB-1", "gather", "torch", "cpu")


@pytest.mark.parametrize("passes_before", [0, 1])
@pytest.mark.parametrize("passes_after", [0, 3])
def test_a_failure_is_never_overwritten_by_a_pass(passes_before, passes_after):
    passes = [(9, "")]
    [verdict] = ledger_with(*passes * passes_before, (9, "wrong"), *passes * passes_after).verdicts()
    assert verdict.outcome is Outcome.FAIL
    assert verdict.problems == ["wrong"]


@pytest.mark.parametrize("passes_after", [0, 3])
def test_an_error_is_never_overwritten_by_a_pass(passes_after):
    [verdict] = ledger_with((9, ""), "ValueError: no", *[(9, "")] * passes_after).verdicts()
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problems == ["ValueError: no"]
    assert verdict.cases == 2 + passes_after


@pytest.mark.parametrize("order", [1, -1], ids=["failure first", "error first"])
def test_a_failure_and_an_error_are_both_told(order):
    [verdict] = ledger_with(*[(9, "wrong"), "ValueError: no"][::order]).verdicts()
    assert verdict.outcome is Outcome.FAIL
    assert len(verdict.problems) == 2


@pytest.mark.parametrize("results", [[(0, "")], [(0, ""), (0, "")]], ids=["one empty case", "two"])
def test_nothing_compared_is_an_error(results):
    [verdict] = ledger_with(*results).verdicts()
    assert verdict.outcome is Outcome.ERROR
    assert verdict.problems == [f"{NONE} [EMB-1, against exact]"]


def test_a_comparison_that_was_expected_and_never_came_is_an_error():
    ledger = ledger_with()
    ledger.expect(ROW)
    ledger.expect(PLAIN, "EMB-7/padding")
    ledger.expect(PLAIN, "EMB-7/layout")
    ledger.record(ROW, elements=5, step="s")
    ledger.record(PLAIN, elements=5, step="s", check="EMB-7/layout")
    came, missing = ledger.verdicts()
    assert came.outcome is Outcome.PASS
    assert (missing.clause, missing.cases, missing.outcome) == ("EMB-7", 1, Outcome.ERROR)
    assert missing.problems == [f"{NONE} [EMB-7/padding, against plain call]"]


def test_verdicts_may_be_asked_for_twice():
    ledger = ledger_with((0, ""))
    assert [verdict.problems for verdict in ledger.verdicts()] == [verdict.problems for verdict in ledger.verdicts()]


def test_verdicts_asked_for_too_early_spoil_nothing():
    ledger = ledger_with((0, ""))
    [early] = ledger.verdicts()
    ledger.record(ROW, elements=1, step="s")
    [late] = ledger.verdicts()
    assert (early.outcome, late.outcome, late.problems) == (Outcome.ERROR, Outcome.PASS, [])


def test_an_empty_case_does_not_spoil_the_others():
    [verdict] = ledger_with((0, ""), (5, "")).verdicts()
    assert verdict.outcome is Outcome.PASS


def test_verdicts_are_kept_apart_by_clause_framework_device_and_truth():
    ledger = Ledger(TITLES)
    rows = [
        Row(clause, framework, device, against)
        for clause in TITLES
        for framework in ("jax", "torch")
        for device in ("cpu", "cuda")
        for against in ("exact", "torch/cpu")
    ]
    for row in reversed(rows):
        ledger.record(row, elements=1, problem="wrong" if row == rows[5] else "", step="s")
    verdicts = ledger.verdicts()
    assert [Row(v.clause, v.framework, v.device, v.against) for v in verdicts] == rows
    assert [v.outcome for v in verdicts] == [Outcome.FAIL if n == 5 else Outcome.PASS for n in range(len(rows))]


class SlowNumber(int):
    """An integer that lets other threads run while it is added."""

    def __radd__(self, other):
        time.sleep(0.0001)
        return int(self) + other


def test_no_result_is_lost_where_threads_report_at_once():
    threads, results, started = 8, 200, threading.Barrier(8)
    ledger = Ledger({f"EMB-{n}": "title" for n in range(1, 5)})

    def report(_):
        started.wait()
        for n in range(results):
            row, one = Row(f"EMB-{n % 4 + 1}", "torch", "cpu", "exact"), SlowNumber(1)
            ledger.expect(row)
            ledger.record(row, elements=one, step="s")
            ledger.record(row, elements=one, problem="wrong", step="s")
            ledger.error(row, "ValueError", step="s")
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


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_problems_does_not_depend_on_which_step_is_faster(order):
    steps = ["small", "few", "many"]
    ledger = Ledger(TITLES, steps)
    for step in [*steps[::order], "none of the run's"]:
        ledger.record(ROW, elements=1, problem=f"first of {step}", step=step)
        ledger.record(ROW, elements=1, problem=f"second of {step}", step=step)
    expected = [f"{which} of {step}" for step in [*steps, "none of the run's"] for which in ("first", "second")]
    assert ledger.verdicts()[0].problems == expected
