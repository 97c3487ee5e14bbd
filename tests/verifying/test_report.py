"""The report of a run of the goldens: when it is a confirmation, its JSON, and its table."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from xref.engine.outcomes import Outcome
from xref.verifying.report import Report, Verdict, show


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


def verdict_of(outcome=Outcome.PASS, compared=1, problems=()):
    return Verdict(
        clause="EMB-1",
        title="gather",
        framework="torch",
        device="cpu",
        against="exact",
        elements=compared,
        outcome=outcome,
        problems=list(problems),
    )


def test_problems_of_one_verdict_are_none_of_anothers():
    first, second = Verdict(clause="", title="", framework="", device="", against=""), verdict_of()
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


def shown(report, width):
    file = io.StringIO()
    show(report, Console(file=file, width=width))
    return file.getvalue()


def test_the_table_shows_the_first_problems_and_says_how_many_more_there_are():
    failed = verdict_of(Outcome.FAIL, problems=[f"out[{n}]: got [red]" for n in range(5)])
    text = shown(report_of(failed, verdict_of()), 120)
    assert "EMB-1: out[2]: got [red]\nEMB-1: and 2 more\n" in text
    assert "out[3]" not in text
    assert text.endswith("said\nDigest of all outputs: 00\n")


def test_numbers_and_verdicts_are_never_cut():
    text = shown(report_of(verdict_of(compared=1_234_567_890)), 60)
    assert "1,234,567,890" in text
    assert "pass" in text
