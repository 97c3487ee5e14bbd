"""A judge's report: how checks come out, what the whole is worth, and what people and machines read of it."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET

import msgspec
import pytest
from rich.console import Console
from support.helpers import raises

from xref import errors
from xref.judge.checks import CHECKS, Finding, Findings, check_ids
from xref.judge.judge import _judged, _selected
from xref.judge.judged import Judged, JudgeReport
from xref.judge.judged_report import show, to_junit
from xref.judge.verdict import Outcome

REQUIRED = next(check for check in CHECKS if check.id == "EMB-1")
GRADED = next(check for check in CHECKS if check.id == "EMB-7/mode")


def found(*, passed=0, failed=0, skipped=()):
    findings = Findings(skipped=list(skipped))
    for _ in range(passed):
        findings.passed(10)
    for n in range(failed):
        findings.fail(Finding(f"out: got {n}, expected another", f"call {n}"), 10)
    return findings


def outcome(findings, check=REQUIRED, required=(), expected=None):
    verdict = _judged(check, findings, required, expected or {})
    return str(verdict.outcome), verdict.required, verdict.bad


def report(*verdicts, **fields):
    return JudgeReport(
        **{
            "xref": "1", "operator": "embedding", "contract_version": 1, "candidate": "it", "framework": "torch",
            "version": "2", "device": "cpu", "device_name": "CPU", "tier": "smoke", "dtypes": ["bfloat16"],
            "out_of_range": "raise", "accumulate": "float32", "verdicts": list(verdicts), "seconds": 1.5, **fields,
        }
    )  # fmt: skip


def verdict(outcome="pass", check="EMB-1", *, required=True, elements=10, **fields):
    clause, _, condition = check.partition("/")
    return Judged(
        **{
            "check": check, "clause": clause, "condition": condition, "judgment": "forward_accuracy",
            "what": "forward has the bits of the rows", "required": required, "outcome": Outcome(outcome),
            "cases": 1 if elements else 0, "elements": elements, **fields,
        }
    )  # fmt: skip


FAILED = verdict(
    "fail", problems=["out[0]: got 1, expected 2 [it]", "another"], smallest="it.one", rerun='{"a":1}',
    explanations=["a: x", "b: y", "c: z", "d: w"], failed=2, cases=3,
)  # fmt: skip


# Outcomes


@pytest.mark.parametrize(
    ("findings", "how", "outcomes"),
    [
        (found(passed=2), {}, ("pass", True, False)),
        (found(passed=2, failed=1), {}, ("fail", True, True)),
        (found(), {}, ("error", True, True)),
        (found(skipped=["no"]), {}, ("skip", False, False)),
        (found(passed=1, skipped=["no"]), {}, ("pass", True, False)),
        (found(failed=1, skipped=["no"]), {}, ("fail", True, True)),
        (found(passed=2), {"check": GRADED}, ("pass", False, False)),
        (found(failed=2), {"check": GRADED}, ("fail", False, False)),
        (found(), {"check": GRADED}, ("error", False, False)),
        (found(skipped=["no"]), {"required": ("EMB-1",)}, ("skip", True, True)),
        (found(failed=1), {"check": GRADED, "required": ("EMB-7/mode",)}, ("fail", True, True)),
        (found(skipped=["no"]), {"check": GRADED, "required": ("EMB-7/mode",)}, ("skip", True, True)),
        (found(failed=1), {"expected": {"EMB-1": "known"}}, ("xfail", True, False)),
        (found(passed=1), {"expected": {"EMB-1": "known"}}, ("xpass", True, True)),
        (found(passed=1), {"expected": {"EMB-2": "known"}}, ("pass", True, False)),
        (found(), {"expected": {"EMB-1": "known"}}, ("error", True, True)),
        (found(skipped=["no"]), {"expected": {"EMB-1": "known"}}, ("skip", False, False)),
        (found(passed=1), {"check": GRADED, "expected": {"EMB-7/mode": "known"}}, ("xpass", False, True)),
    ],
)
def test_outcomes(findings, how, outcomes):
    assert outcome(findings, **how) == outcomes


def test_a_case_of_no_elements_is_nothing_compared():
    findings = Findings()
    findings.passed(0)
    assert outcome(findings)[0] == "error"


def test_reasons_and_problems():
    assert _judged(REQUIRED, found(skipped=["a", "b", "a"]), (), {}).reason == "a; b"
    assert _judged(REQUIRED, found(failed=1), (), {"EMB-1": "known"}).reason == "known"
    many = _judged(REQUIRED, found(failed=30, passed=2), (), {})
    assert (many.cases, many.failed, many.elements) == (32, 30, 320)
    assert many.problems == [f"out: got {n}, expected another [call {n}]" for n in range(3)]


@pytest.mark.parametrize(
    ("names", "checks"),
    [
        ((), ()),
        (("EMB-1",), ("EMB-1",)),
        (("EMB-10/split",), ("EMB-10/split",)),
        (("EMB-11",), ("EMB-11",)),
        (("EMB-4", "EMB-12"), ("EMB-4", "EMB-12")),
    ],
)
def test_names_stand_for_checks(names, checks):
    assert _selected("--require", names) == checks


@pytest.mark.parametrize("name", ["EMB-99", "emb-1", "", "EMB-7/"])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    expected = f"a clause or one of {', '.join(check_ids())}"
    with raises(errors.UsageError, f"--require: got {name!r}, expected {expected} [judge]"):
        _selected("--require", (name,))


def test_checks_have_ids_of_their_own():
    assert len(set(check_ids())) == len(CHECKS)


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
            report(verdict(), broken={"gradient": "death by SIGSEGV"}), False,
            "it does not pass: torch 2 on cpu (CPU), smoke tier: gradient (death by SIGSEGV).",
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
            for check in CHECKS
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


def test_junit_says_when_a_part_broke_off():
    """Every check may have passed as far as it went: CI that reads JUnit alone must not call that a pass."""
    suite = ET.fromstring(to_junit(report(verdict(), broken={"gradient": "death by SIGSEGV"})))
    assert int(suite.get("errors")) == len(suite.findall(".//error")) == 1
    assert suite.find(".//error").get("message") == "gradient: got death by SIGSEGV, expected it to end [judge]"


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
    assert text.splitlines()[-8:] == [
        "EMB-1: out[0]: got 1, expected 2 [it]",
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
