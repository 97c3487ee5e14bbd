"""A report for people: one table, what went wrong, and a closing line."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xref.judge.verdict import Outcome, Report

__all__ = ["show"]

_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "bold red", Outcome.ERROR: "bold red", Outcome.SKIP: "yellow"}
_SHOWN = 3  # problems of one verdict; the report's file has all


def show(report: Report, console: Console) -> None:
    """Print the verdicts as a table, the first problems of each that did not pass, the statement and the digest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("clause", "framework", "device", "compared with", "cases", "elements", "verdict"):
        # Where the terminal is narrow, words go on in the next line; numbers and verdicts are never cut.
        number = heading in ("cases", "elements")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "verdict")
    for verdict in report.verdicts:
        style = _STYLES[verdict.outcome]
        table.add_row(
            f"{verdict.clause} {verdict.title}",
            verdict.framework,
            verdict.device,
            verdict.against,
            f"{verdict.cases:,}",
            f"{verdict.elements:,}",
            f"[{style}]{verdict.outcome}[/{style}]",
        )
    console.print(table)
    for verdict in report.verdicts:
        for problem in verdict.problems[:_SHOWN]:
            console.print(f"{verdict.clause}: {escape(problem)}", soft_wrap=True, highlight=False)
        if len(verdict.problems) > _SHOWN:
            console.print(f"{verdict.clause}: and {len(verdict.problems) - _SHOWN} more", highlight=False)
    console.print(escape(report.statement), soft_wrap=True, highlight=False)
    console.print(f"Digest of all outputs: {report.digest}", soft_wrap=True, highlight=False)
