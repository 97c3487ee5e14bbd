"""A failed check made plain: the smallest call that still fails, how to make it again, and what it looks like."""

from __future__ import annotations

from xref.judge.checks import Finding, Findings
from xref.judge.diagnose import explain
from xref.judge.diagnose_gradient import explain_gradient
from xref.judge.isolate import CrashedError, limited
from xref.judge.judged import Judged
from xref.judge.probes import Prober
from xref.judge.shrink import smallest

__all__ = ["explained"]

_TRIED = 4  # findings of one check that are looked into
_SECONDS = 20.0


def explained(verdict: Judged, findings: Findings, prober: Prober) -> None:
    """Add to a failed check's verdict its smallest failing call and what its bits are consistent with."""
    scores: dict[str, tuple[float, str]] = {}
    for finding in _chosen(findings.failures):
        try:
            with limited(_SECONDS):
                faults = _faults(verdict, finding, prober)
        except CrashedError:
            continue
        for place, (fault, what) in enumerate(faults):
            score, said = scores.get(fault, (0.0, what))
            scores[fault] = score + 1 / (1 + place), said
    ranked = sorted(scores.items(), key=lambda item: -item[1][0])
    verdict.explanations = [f"{fault}: {what}" for fault, (_, what) in ranked[:5]]


def _chosen(failures: list[Finding]) -> list[Finding]:
    """Return the first findings, and some from the middle: what fails first is not all that fails."""
    step = max(len(failures) // _TRIED, 1)
    return failures[::step][:_TRIED]


def _faults(verdict: Judged, finding: Finding, prober: Prober) -> list[tuple[str, str]]:
    if finding.probe is None:
        if not verdict.smallest:
            verdict.smallest = finding.call
        return explain_gradient(finding.evidence, finding.hints)
    seen = smallest(finding.probe, prober)
    if seen is None:
        if not verdict.smallest:
            verdict.smallest = f"{finding.call}; alone, without the calls before it, it does not fail"
        return [
            (hint, "that is how the call fails") for hint in finding.hints or ("call-count-dependent", "stale-cache")
        ]
    if not verdict.rerun:
        verdict.smallest = f"{prober.candidate.name}.{seen.probe}"
        verdict.rerun = seen.probe.to_json()
    return explain(seen, finding.hints)
