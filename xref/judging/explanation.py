"""A failed check made plain: the smallest call that still fails, and the faults that what was seen speaks for.

The budget is in calls: two runs on one kernel print the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from xref.engine.examine import Examination
from xref.engine.findings import Finding, Findings
from xref.engine.shrink import smallest
from xref.spec import Call, Seen, Suspect

__all__ = ["Explainer", "Explanation"]

_LOOKED_INTO = 4  # failures of one check: other inputs show other sides of a fault
_SHRINKING, _LOOKING = 48, 12  # calls that one check may take, to be made smaller and to be looked at
_IN_ALL = 600
_DEATHS = 4  # of the subject's process while it is looked into: each costs seconds
_COMPILED = 4  # a framework that compiles each shape gets so many times fewer


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What there is to say of a failed check."""

    smallest: Call
    suspects: tuple[Suspect, ...]
    """The likeliest first."""


class Explainer:
    """Looks into the failures of an examination, for as long as its budget lasts."""

    def __init__(self, examination: Examination) -> None:
        self._examination = examination
        self._share = _COMPILED if examination.exam.traits.traces else 1
        self._left = _IN_ALL // self._share
        self._before = examination.deaths.total()

    def explain(self, found: Findings) -> Explanation:
        """Return what there is to say of a check that failed."""
        findings = _of_each_kind(found.failures)[: max(_LOOKED_INTO // self._share, 2)]
        seen: dict[str, list[Suspect]] = {}
        for finding in findings:
            for suspect in self._suspects(finding):
                seen.setdefault(suspect.fault, []).append(suspect)
        # The likeliest is what all calls that fail speak for, and not what one of them cries out.
        likely = [
            dataclasses.replace(max(each), weight=sum(one.weight for one in each) / len(findings))
            for each in seen.values()
        ]
        return Explanation(self._smallest(findings[0]), tuple(sorted(likely, key=lambda each: -each.weight)))

    def _smallest(self, finding: Finding) -> Call:
        """Return the smallest call that fails likewise; where each costs a process, the call itself."""
        calls = 0 if finding.failure.aborts else _SHRINKING // self._share
        return smallest(finding.call, finding.failure, self._within(calls), calls)[0]

    def _suspects(self, finding: Finding) -> list[Suspect]:
        """Return each fault that a failure speaks for once, with what speaks most for it."""
        calls = 0 if finding.failure.aborts else _LOOKING // max(self._share // 2, 1)
        more = self._examination.operator.explain(finding.call, finding.failure, self._within(calls))
        best: dict[str, Suspect] = {}
        for suspect in (*finding.failure.suspects, *more):
            best[suspect.fault] = max(suspect, best.get(suspect.fault, suspect))
        return list(best.values())

    def _within(self, calls: int) -> Callable[[Call], Seen]:
        """Return what makes so many calls at the most, and shows nothing of later ones."""
        left = calls

        def make(call: Call) -> Seen:
            nonlocal left
            deaths = self._examination.deaths.total() - self._before
            if left <= 0 or self._left <= 0 or deaths >= _DEATHS:
                return Seen()
            left, self._left = left - 1, self._left - 1
            return self._examination.make(call)

        return make


def _of_each_kind(findings: list[Finding]) -> list[Finding]:
    """Return the first failure of each kind of call: of other tables, memory and modes."""
    kinds: dict[object, Finding] = {}
    for finding in findings:
        fields = (value for name, value in msgspec.structs.asdict(finding.call).items() if name != "check")
        words = tuple(value for value in fields if isinstance(value, str))
        kinds.setdefault((type(finding.call), words, finding.failure.raised), finding)
    return list(kinds.values())
