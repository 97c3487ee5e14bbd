"""What a run of the goldens compared, on what that rests, and how it came out: a record, and its table for people."""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xref.engine.outcomes import Outcome

__all__ = ["Report", "Verdict", "show"]

_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "bold red", Outcome.ERROR: "bold red", Outcome.SKIP: "yellow"}
_SHOWN = 3  # problems of one verdict; the report's file has all


class Verdict(msgspec.Struct, kw_only=True):
    """How one clause came out for one framework on one device, against one truth."""

    clause: str
    title: str
    framework: str
    device: str
    against: str
    """`exact`, `pinned digests`, another golden, or the golden's own plain call."""
    cases: int = 0
    elements: int = 0
    outcome: Outcome = Outcome.PASS
    problems: list[str] = []
    """Messages of what failed, the first of each call."""


class Report(msgspec.Struct, kw_only=True):
    """A whole run: what ran, on what, and how it came out."""

    xref: str
    operator: str
    contract_version: int
    subject: str
    """What was run: a tier of cases, or a checkpoint's tensor."""
    environment: dict[str, dict[str, str]]
    """By framework: its version and the devices that ran."""
    verdicts: list[Verdict]
    digest: str
    """SHA-256 over all outputs of the contract's fixed calls."""
    seconds: float
    statement: str
    """In words: what was confirmed, by which versions, on how many elements; or what failed."""

    @property
    def elements(self) -> int:
        """Elements compared, all clauses together."""
        return sum(verdict.elements for verdict in self.verdicts)

    @property
    def ok(self) -> bool:
        """Whether every clause passed, and something was compared."""
        return self.elements > 0 and all(verdict.outcome is Outcome.PASS for verdict in self.verdicts)

    def to_json(self) -> str:
        """Return the report as JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


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
