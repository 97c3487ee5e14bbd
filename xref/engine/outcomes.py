"""How a check comes out."""

from __future__ import annotations

import enum

from xref.engine.findings import Findings

__all__ = ["Outcome", "outcome_of"]


class Outcome(enum.StrEnum):
    """How a check came out."""

    PASS = "pass"
    FAIL = "fail"
    ABORTS = "aborts"  # the subject's process ended in each call that failed
    ERROR = "error"  # nothing was compared
    SKIP = "skip"
    XFAIL = "xfail"
    XPASS = "xpass"


def outcome_of(found: Findings) -> Outcome:
    """Return how a check came out by its findings alone; comparing nothing is an error unless a reason was given."""
    if found.failed:
        aborts = all(finding.failure.aborts for finding in found.failures)
        return Outcome.ABORTS if aborts else Outcome.FAIL
    if found.elements:
        return Outcome.PASS
    return Outcome.SKIP if found.skipped else Outcome.ERROR
