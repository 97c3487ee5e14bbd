"""What a candidate is judged by: the checks, in five judgments, and how each came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec

from xref.judge.probes import Probe

__all__ = ["CHECKS", "JUDGMENTS", "Check", "Finding", "Findings", "check_ids"]

JUDGMENTS = ("forward_accuracy", "forward_invariance", "gradient_accuracy", "gradient_invariance", "conduct")

_KEPT = 40  # findings of one check that are looked into; the others are counted


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the verdict: a clause, or one condition of it."""

    clause: str
    condition: str = ""
    judgment: str
    what: str
    required: bool = True
    """Whether a candidate that fails it fails as a whole; otherwise it is graded only."""

    @property
    def id(self) -> str:
        """`EMB-7/padding`, or the clause where it has no conditions."""
        return f"{self.clause}/{self.condition}" if self.condition else self.clause


def _check(judgment: str, check_id: str, what: str, *, required: bool = True) -> Check:
    clause, _, condition = check_id.partition("/")
    return Check(clause=clause, condition=condition, judgment=judgment, what=what, required=required)


CHECKS = (
    _check("forward_accuracy", "EMB-1", "forward has the bits of the rows"),
    _check("forward_accuracy", "EMB-2", "forward_fp32 is the rows exactly widened"),
    _check("forward_accuracy", "EMB-3", "shape, dtype and device of the output"),
    _check("forward_invariance", "EMB-6", "the same call again gives the same bits"),
    _check("forward_invariance", "EMB-7/history", "whatever was called before: other tables, changed ones, many calls"),
    _check("forward_invariance", "EMB-7/population", "alone, and among up to 65536 others"),
    _check("forward_invariance", "EMB-7/position", "wherever it stands in the batch"),
    _check("forward_invariance", "EMB-7/neighbours", "whatever stands beside it"),
    _check("forward_invariance", "EMB-7/padding", "with padding left, right and in rows of its own"),
    _check("forward_invariance", "EMB-7/layout", "in any shape and strides of ids and table"),
    _check("forward_invariance", "EMB-7/chunked", "in chunks that do not divide"),
    _check("forward_invariance", "EMB-7/decode", "one token of each sequence at a time"),
    _check("forward_invariance", "EMB-7/permuted", "in any order"),
    _check("forward_invariance", "EMB-7/gradient", "with the gradient taken or not; with JAX, traced or not"),
    _check("forward_invariance", "EMB-7/settings", "in any thread and with any setting of the framework's"),
    _check("forward_invariance", "EMB-7/mode", "compiled, traced, mapped: where it can be", required=False),
    _check("gradient_accuracy", "EMB-8", "the sum of each row's cotangents, within the proven bound"),
    _check("gradient_accuracy", "EMB-9", "rows that no id names are +0"),
    _check("gradient_accuracy", "EMB-11", "NaN, infinities and overflow"),
    _check("gradient_accuracy", "EMB-11/zero sign", "an exact zero sum is +0", required=False),
    _check("gradient_invariance", "EMB-10/repeat", "the same bits, run after run"),
    _check("gradient_invariance", "EMB-10/layout", "in any shape and strides of ids and cotangents"),
    _check("gradient_invariance", "EMB-10/padding", "with padding of zero cotangent"),
    _check("gradient_invariance", "EMB-10/history", "whatever was asked for before: other ids, cotangents and tables"),
    _check("gradient_invariance", "EMB-10/settings", "in any thread, setting and way of asking, within the bound"),
    _check("gradient_invariance", "EMB-10/permuted", "in any order of the tokens", required=False),
    _check("gradient_invariance", "EMB-10/split", "summed in parts, and the parts added", required=False),
    _check("conduct", "EMB-4", "ids out of range, and ids that are no integers, are refused"),
    _check("conduct", "EMB-4/traced", "under a trace, ids out of range give rows of NaN"),
    _check("conduct", "EMB-5", "inputs keep their bits, and the output has memory of its own"),
    _check("conduct", "EMB-12", "no temporary of the table's size"),
    _check("conduct", "EMB-12/strided", "nor for a table in transposed memory", required=False),
)
"""In the order of a report. Required are those that DESIGN calls so; `--require` adds to them."""


def check_ids() -> tuple[str, ...]:
    """Return the ids of all checks."""
    return tuple(check.id for check in CHECKS)


@dataclasses.dataclass
class Finding:
    """Something that went wrong, once."""

    message: str
    call: str
    probe: Probe | None = None
    hints: tuple[str, ...] = ()
    """Faults that the kind of failure itself speaks for."""
    telling: bool = False
    """Whether they say more than the bits: the same token was right in the plain call."""
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)
    rerun: str = ""
    """A record of the call, where it has no probe."""


@dataclasses.dataclass
class Findings:
    """How one check went, so far."""

    cases: int = 0
    elements: int = 0
    failures: list[Finding] = dataclasses.field(default_factory=list)
    failed: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)
    """Reasons why it, or part of it, was not run."""
    after_each: Callable[[], None] | None = None
    """Called after each case: a sign of life."""

    def passed(self, elements: int) -> None:
        """Count one case that was as it must be."""
        self.cases += 1
        self.elements += elements
        if self.after_each is not None:
            self.after_each()

    def fail(self, finding: Finding, elements: int = 0) -> None:
        """Count one case that was not."""
        self.passed(elements)
        self.failed += 1
        if len(self.failures) < _KEPT:
            self.failures.append(finding)
