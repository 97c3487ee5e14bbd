"""A judge's report for people and machines: a table on the terminal, Markdown for a CI job's summary, JUnit's XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xref.engine.outcomes import Outcome
from xref.judging.report import CheckVerdict, JudgeReport

__all__ = ["show", "to_junit"]

_STYLES = {Outcome.PASS: "green", Outcome.SKIP: "yellow", Outcome.XFAIL: "yellow"}


_SHOWN = 3  # problems of one check, each of another kind; the JSON has all
_NUMBERS = re.compile(r"0x[0-9a-f]+|\[[^]]*\]|[-+.e\d]+")


def show(report: JudgeReport, console: Console) -> None:
    """Print the verdicts as a table, what went wrong and what it is consistent with, and the closing line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("judgment", "check", "", "cases", "elements", "verdict"):
        number = heading in ("cases", "elements")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "verdict")
    before = ""
    for verdict in report.verdicts:
        style = _STYLES.get(verdict.outcome, "bold red" if verdict.required else "yellow")
        graded = "" if verdict.required or verdict.outcome is Outcome.SKIP else " (graded)"
        table.add_row(
            verdict.judgment if verdict.judgment != before else "",
            verdict.check,
            escape(verdict.reason) if verdict.reason else verdict.what,
            f"{verdict.cases:,}",
            f"{verdict.elements:,}",
            f"[{style}]{verdict.outcome}{graded}[/{style}]",
        )
        before = verdict.judgment
    console.print(table)
    for verdict in report.verdicts:
        if verdict.bad or verdict.outcome in (Outcome.FAIL, Outcome.ABORTS, Outcome.ERROR):
            for line in _lines_of(verdict):
                console.print(escape(line), soft_wrap=True, highlight=False)
    console.print(escape(report.statement), soft_wrap=True, highlight=False)


def _lines_of(verdict: CheckVerdict) -> list[str]:
    """Return a failed check in lines: what, how often, the smallest call, how to make it again, and its likeness."""
    grade = "" if verdict.required else " (graded)"
    if verdict.outcome is Outcome.XPASS:
        return [f"{verdict.check}{grade}: passed, expected to fail: {verdict.reason}"]
    if verdict.outcome is Outcome.SKIP:
        return [f"{verdict.check}: required, and skipped: {verdict.reason}"]
    problems = _of_each_kind(verdict.problems) or [verdict.reason or "nothing was compared"]
    lines = [f"{verdict.check}{grade}: {problem}" for problem in problems[:_SHOWN]]
    if verdict.failed > 1:
        lines.append(f"  {verdict.failed} of {verdict.cases} cases fail")
    if verdict.detail.strip():
        lines.append(f"  the process wrote last: {verdict.detail.strip().splitlines()[-1]}")
    if verdict.smallest:
        lines.append(f"  smallest: {verdict.smallest}")
    if verdict.rerun:
        lines.append(f"  again: {verdict.rerun}")
    lines += [f"  consistent with {explanation}" for explanation in verdict.explanations[:3]]
    return lines


def _of_each_kind(problems: list[str]) -> list[str]:
    """Return the first problem of each kind: what differs in its numbers alone is one."""
    kinds: dict[str, str] = {}
    for problem in problems:
        kinds.setdefault(_NUMBERS.sub("", problem.partition(" [")[0]), problem)
    return list(kinds.values())


def _printable(text: str) -> str:
    """Return a text with all that XML cannot hold escaped."""
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def to_junit(report: JudgeReport) -> str:
    """Return the report as JUnit's XML: one test case for each check, and one more if it was interrupted."""
    suite = ET.Element(
        "testsuite", name=f"xref judge {_printable(report.candidate)} on {report.framework} {report.device}"
    )
    for verdict in report.verdicts:
        case = ET.SubElement(suite, "testcase", classname=f"xref.{verdict.judgment}", name=verdict.check)
        if verdict.bad:
            kind = "error" if verdict.outcome is Outcome.ERROR else "failure"
            lines = [_printable(line) for line in _lines_of(verdict)]
            ET.SubElement(case, kind, message=lines[0]).text = "\n".join(lines)
        elif verdict.outcome is not Outcome.PASS:
            ET.SubElement(case, "skipped", message=_printable(verdict.reason or f"{verdict.outcome}, graded only"))
    if report.interrupted:  # whoever reads this file alone must not take what was made for all
        case = ET.SubElement(suite, "testcase", classname="xref", name="all of it")
        ET.SubElement(case, "error", message="interrupted")
    for key, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(len(suite.findall(f".//{tag}"))))
    suite.set("time", str(report.seconds))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)
