"""What the calls of each check came to: how many, on how many elements, and what failed."""

from __future__ import annotations

import dataclasses

import msgspec

from xref.spec import Call, Failure, Seen

__all__ = ["Finding", "Findings", "note"]

_KEPT = 40  # failures of one check that are kept with their calls; the others are counted


@dataclasses.dataclass(frozen=True)
class Finding:
    """A call, and what it failed by."""

    call: Call
    """With the check that it fails: made again, it fails in that one."""
    failure: Failure


@dataclasses.dataclass
class Findings:
    """How one check went, so far."""

    cases: int = 0
    elements: int = 0
    failed: int = 0
    failures: list[Finding] = dataclasses.field(default_factory=list)
    """The first of them."""
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Reasons why it, or part of it, was not made."""

    def skip(self, reason: str) -> None:
        """Note why a part was not made, once."""
        if reason not in self.skipped:
            self.skipped.append(reason)

    def add(self, finding: Finding) -> None:
        """Count a case that was not as it must be."""
        self.cases += 1
        self.failed += 1
        self.elements += finding.failure.elements
        if len(self.failures) < _KEPT:
            self.failures.append(finding)


def note(call: Call, seen: Seen, findings: dict[str, Findings]) -> None:
    """Add what a call showed to the findings of the checks concerned."""
    for check in seen.passed.keys() - {failure.check for failure in seen.failures}:
        findings[check].cases += 1
        findings[check].elements += seen.passed[check]
    for failure in seen.failures:
        made = failure.call or call
        findings[failure.check].add(Finding(msgspec.structs.replace(made, check=failure.check), failure))
    for check, reason in seen.skipped.items():
        findings[check].skip(reason)
