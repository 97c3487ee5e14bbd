"""A judge's report: what each check came to, as data, and as Markdown."""

from __future__ import annotations

import msgspec

from xref.engine.outcomes import Outcome
from xref.judging.explanation import Explanation

__all__ = ["CheckVerdict", "JudgeReport"]

_BAD = (Outcome.FAIL, Outcome.ABORTS, Outcome.ERROR, Outcome.SKIP)
_EXPLANATIONS = 5
_LINE = 2000  # characters of one line: a summary of GitHub's takes a megabyte


def _cell(text: str) -> str:
    return text.replace("\n", " ")[:300].replace("|", "\\|")


def _line(text: str) -> str:
    """Return a text as one line that no block of Markdown ends at."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= _LINE else f"{line[:_LINE]}... (all of it is in the JSON)"


class CheckVerdict(msgspec.Struct, kw_only=True):
    """How one check came out."""

    check: str
    """`EMB-7/padding`."""
    clause: str
    condition: str
    judgment: str
    what: str
    required: bool
    outcome: Outcome
    reason: str = ""
    """Why it was skipped, or why it was expected to fail."""
    cases: int = 0
    elements: int = 0
    failed: int = 0
    """Cases that were not as they must be."""
    problems: list[str] = []
    """What was wrong in the first of them, and the call."""
    detail: str = ""
    """The last that the kernel's process wrote to stderr, where it ended in a call."""
    smallest: str = ""
    """The smallest call that still fails."""
    rerun: str = ""
    """A command or a snippet that makes exactly that call."""
    explanations: list[str] = []
    """Faults that the bits are consistent with, the likeliest first: `name: what was seen`."""

    def explained(self, explanation: Explanation, name: str) -> None:
        """Add what there is to say of a failure; `name` is the kernel's."""
        call = explanation.smallest
        self.smallest, self.rerun = f"{name}.{call}", call.to_json()
        self.explanations = [f"{each.fault}: {each.seen}" for each in explanation.suspects[:_EXPLANATIONS]]

    @property
    def bad(self) -> bool:
        """Whether it keeps the candidate from passing."""
        return self.outcome is Outcome.XPASS or (self.required and self.outcome in _BAD)


class JudgeReport(msgspec.Struct, kw_only=True):
    """What a candidate was judged by, on what, and how it came out."""

    xref: str
    operator: str
    contract_version: int
    candidate: str
    framework: str
    version: str
    device: str
    device_name: str
    tier: str
    dtypes: list[str]
    out_of_range: str
    accumulate: str
    verdicts: list[CheckVerdict]
    broken: dict[str, str] = {}
    """Checks that did not come to their end, and why."""
    in_process: bool = False
    """Whether the kernel ran in the process that judged it."""
    interrupted: bool = False
    """Whether the run was ended before its end: the checks are those that were made."""
    seconds: float

    @property
    def elements(self) -> int:
        """Elements compared, all checks together."""
        return sum(verdict.elements for verdict in self.verdicts)

    @property
    def nothing(self) -> bool:
        """Whether nothing was compared and nothing failed to be."""
        return not (self.elements or self.broken or any(verdict.failed for verdict in self.verdicts))

    @property
    def ok(self) -> bool:
        """Whether everything required passed, and something was compared."""
        return self.elements > 0 and not self.interrupted and not any(verdict.bad for verdict in self.verdicts)

    @property
    def failed(self) -> list[CheckVerdict]:
        """The checks that keep the candidate from passing."""
        return [verdict for verdict in self.verdicts if verdict.bad]

    @property
    def statement(self) -> str:
        """The outcome in one sentence: by whom, on what, on how many elements."""
        where = f"{self.framework} {self.version} on {self.device} ({self.device_name}), {self.tier} tier"
        where += ", in this process" if self.in_process else ""
        if self.ok:
            skipped = sum(verdict.outcome is Outcome.SKIP for verdict in self.verdicts)
            more = f"; {skipped} checks were skipped, for the reasons above" if skipped else ""
            return f"{self.candidate} passes: {where}, {self.elements:,} elements compared{more}."
        bad = [
            f"{verdict.check} ({verdict.outcome})" if verdict.outcome is Outcome.ABORTS else verdict.check
            for verdict in self.failed
        ]
        bad += ["interrupted"] if self.interrupted else []
        return f"{self.candidate} does not pass: {where}: {', '.join(bad) or 'nothing was compared'}."

    def to_markdown(self) -> str:
        """Return the report as Markdown, short enough for a CI job's summary."""
        lines = [
            f"### {'✅' if self.ok else '❌'} {_cell(self.statement)}",
            "",
            "| check | | cases | elements | verdict |",
        ]
        lines.append("|---|---|---:|---:|---|")
        for verdict in self.verdicts:
            graded = "" if verdict.required or verdict.outcome is Outcome.SKIP else " (graded)"
            outcome = f"**{verdict.outcome}**" if verdict.bad else verdict.outcome
            told = _cell(verdict.reason or verdict.what)
            counts = f"{verdict.cases:,} | {verdict.elements:,}"
            lines.append(f"| {verdict.check} | {told} | {counts} | {outcome}{graded} |")
        for verdict in self.failed:
            block = verdict.problems[:1] or [verdict.reason]
            block += [f"smallest: {verdict.smallest}"] if verdict.smallest else []
            block += [f"again: {verdict.rerun}"] if verdict.rerun else []
            block += [f"consistent with {explanation}" for explanation in verdict.explanations[:3]]
            lines += ["", f"**{verdict.check}**", "", "```text", *map(_line, block), "```"]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """Return the report as JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
