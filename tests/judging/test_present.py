"""A judge's report as people and machines read it: the whole, Markdown, JUnit's XML and the terminal."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET

import msgspec
import pytest
from rich.console import Console
from support.judge_reports import report, verdict

from xref import operators
from xref.judging.present import show, to_junit
from xref.judging.report import JudgeReport

FAILED = verdict(
    "fail", problems=["out[0]: got 1, expected 2 [it]", "another"], smallest="it.one", rerun='{"a":1}',
    explanations=["a: x", "b: y", "c: z", "d: w"], failed=2, cases=3,
)  # fmt: skip


# The whole

PASSES = "it passes: torch 2 on cpu (CPU), smoke tier"


@pytest.mark.parametrize(
    ("made", "ok", "statement"),
    [
        (report(verdict()), True, f"{PASSES}, 10 elements compared."),
        (
            report(verdict(elements=12345), verdict("skip", "EMB-2", required=False, elements=0)), True,
            f"{PASSES}, 12,345 elements compared; 1 checks were skipped, for the reasons above.",
        ),
        (
            report(verdict("fail"), verdict("xpass", "EMB-2")), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier: EMB-1, EMB-2.",
        ),
        (report(verdict(), verdict("fail", "EMB-2", required=False)), True, None),
        (report(verdict(), verdict("xfail", "EMB-2")), True, None),
        (
            report(), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier: nothing was compared.",
        ),
        (
            report(verdict("skip", required=False, elements=0)), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier: nothing was compared.",
        ),
        (report(verdict("error", elements=0), verdict(check="EMB-2")), False, None),
        (report(verdict("skip", elements=0), verdict(check="EMB-2")), False, None),
        (
            report(verdict("aborts"), in_process=True), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier, in this process: EMB-1 (aborts).",
        ),
        (
            report(verdict(), interrupted=True), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier: interrupted.",
        ),
    ],
)  # fmt: skip
def test_the_whole_passes_if_all_that_is_required_does_and_something_was_compared(made, ok, statement):
    assert made.ok is ok
    assert statement is None or made.statement == statement
    assert made.statement.startswith("it passes" if ok else "it does not pass")
    assert [each.check for each in made.failed] == [each.check for each in made.verdicts if each.bad]


def test_json_comes_back_as_it_was():
    made = report(FAILED, verdict("skip", "EMB-2", elements=0, reason="é|\n"), broken={"a": "b"})
    assert msgspec.json.decode(made.to_json(), type=JudgeReport) == made
    data = json.loads(made.to_json())
    assert data["verdicts"][0]["outcome"] == "fail"
    assert "\n  " in made.to_json()


def test_markdown_is_a_table_with_the_failures_below():
    made = report(
        FAILED,
        verdict("fail", "EMB-7/mode", required=False),
        verdict("skip", "EMB-2", required=False, elements=0, reason="a|b\nc"),
        verdict("xfail", "EMB-3", reason="known"),
    )
    assert made.to_markdown().splitlines() == [
        "### ❌ it does not pass: torch 2 on cpu (CPU), smoke tier: EMB-1.",
        "",
        "| check | | cases | elements | verdict |",
        "|---|---|---:|---:|---|",
        "| EMB-1 | forward has the bits of the rows | 3 | 10 | **fail** |",
        "| EMB-7/mode | forward has the bits of the rows | 1 | 10 | fail (graded) |",
        "| EMB-2 | a\\|b c | 0 | 0 | skip |",
        "| EMB-3 | known | 1 | 10 | xfail |",
        "",
        "**EMB-1**",
        "",
        "```text",
        "out[0]: got 1, expected 2 [it]",
        "smallest: it.one",
        'again: {"a":1}',
        "consistent with a: x",
        "consistent with b: y",
        "consistent with c: z",
        "```",
    ]
    assert report(verdict()).to_markdown().startswith("### ✅ it passes")


def test_markdown_of_all_checks_failing_with_pages_of_text_fits_a_summary():
    page = "x|`" * 1_000_000
    made = report(
        *[
            verdict("fail", check.id, problems=[page], smallest=page, rerun=page, explanations=[page] * 3, reason=page)
            for check in operators.find("embedding").checks
        ],
        candidate=page,
    )
    text = made.to_markdown()
    assert len(text.encode()) < 1 << 20  # what GitHub takes of a job's summary


def test_text_that_holds_a_fence_does_not_end_the_block():
    made = report(verdict("fail", problems=["got\n```\n# heading"]))
    lines = made.to_markdown().splitlines()
    assert lines.count("```") == 1


# JUnit


def test_junit_counts_every_check_once():
    made = report(
        verdict(),
        FAILED,
        verdict("error", "EMB-2", elements=0, problems=["nothing"]),
        verdict("xpass", "EMB-3", reason="known"),
        verdict("skip", "EMB-4", elements=0, reason="asked for"),
        verdict("skip", "EMB-5", required=False, elements=0, reason="<none & nothing>"),
        verdict("xfail", "EMB-6", reason="known"),
        verdict("fail", "EMB-7/mode", required=False, problems=["p"]),
    )
    suite = ET.fromstring(to_junit(made))
    assert suite.tag == "testsuite"
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "8", "failures": "3", "errors": "1", "skipped": "3",
    }  # fmt: skip
    kinds = {case.get("name"): [child.tag for child in case] for case in suite}
    assert kinds == {
        "EMB-1": ["failure"], "EMB-2": ["error"], "EMB-3": ["failure"], "EMB-4": ["failure"], "EMB-5": ["skipped"],
        "EMB-6": ["skipped"], "EMB-7/mode": ["skipped"],
    }  # fmt: skip
    for tag, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert len(suite.findall(f".//{tag}")) == int(suite.get(key))
    messages = {case.get("name"): case[0].get("message") for case in suite if len(case)}
    assert messages["EMB-1"] == "EMB-1: out[0]: got 1, expected 2 [it]"
    assert messages["EMB-3"] == "EMB-3: passed, expected to fail: known"
    assert messages["EMB-4"] == "EMB-4: required, and skipped: asked for"
    assert messages["EMB-5"] == "<none & nothing>"
    assert messages["EMB-7/mode"] == "fail, graded only"


def test_junit_is_well_formed_whatever_a_kernel_says():
    made = report(verdict("fail", problems=["\x00\x1b[31m\x08 \ud800 <&>\"' \uffff"]), candidate="a\x07<b>")
    suite = ET.fromstring(to_junit(made))
    assert suite.get("tests") == "1"


def test_junit_says_when_a_run_was_interrupted():
    """Every check may have passed as far as it went: CI that reads JUnit alone must not call that a pass."""
    suite = ET.fromstring(to_junit(report(verdict(), interrupted=True)))
    assert int(suite.get("errors")) == len(suite.findall(".//error")) == 1
    assert suite.find(".//error").get("message") == "interrupted"
    assert suite.get("tests") == "2"


# The terminal


def shown(made):
    out = io.StringIO()
    show(made, Console(file=out, width=120, force_terminal=False))
    return out.getvalue()


def test_the_terminal_shows_a_table_the_failures_and_the_closing_line():
    text = shown(
        report(verdict(), verdict("skip", "EMB-2", required=False, elements=0, reason="[red]no[/red]"), FAILED)
    )
    assert "[red]no[/red]" in text
    assert text.splitlines()[-9:] == [
        "EMB-1: out[0]: got 1, expected 2 [it]",
        "EMB-1: another",
        "  2 of 3 cases fail",
        "  smallest: it.one",
        '  again: {"a":1}',
        "  consistent with a: x",
        "  consistent with b: y",
        "  consistent with c: z",
        "it does not pass: torch 2 on cpu (CPU), smoke tier: EMB-1.",
    ]


def test_the_terminal_says_what_passed_and_was_to_fail():
    assert "EMB-1: passed, expected to fail: known" in shown(report(verdict("xpass", reason="known")))
    assert "EMB-1 (graded): p\n" in shown(report(verdict(), verdict("fail", required=False, problems=["p"])))


def test_problems_of_each_kind_are_shown_once_and_the_json_has_all_of_them():
    problems = [
        *(f"id past the end: got a result, expected IndexError [it, ids: [{n}]]" for n in range(5)),
        "id below zero: got RuntimeError: no, expected IndexError [it, ids: [-1]]",
        "id below zero: got RuntimeError: no, expected IndexError [it, ids: [-2]]",
        "id past int32: got death by SIGSEGV, expected an error [it]",
        "bool ids: got a result, expected TypeError [it]",
    ]
    made = report(verdict("fail", "EMB-4", problems=problems, failed=9, cases=9))
    lines = [line for line in shown(made).splitlines() if line.startswith("EMB-4: ")]
    assert lines == [f"EMB-4: {problems[n]}" for n in (0, 5, 7)]
    assert json.loads(made.to_json())["verdicts"][0]["problems"] == problems


def test_the_last_that_a_process_wrote_is_shown():
    made = report(verdict("aborts", problems=["process: got death by SIGABRT"], detail="a\nAssertion failed\n\n"))
    assert "  the process wrote last: Assertion failed\n" in shown(made)
    assert "it does not pass: torch 2 on cpu (CPU), smoke tier: EMB-1 (aborts).\n" in shown(made)
