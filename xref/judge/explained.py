"""A failed check made plain: the smallest call that still fails, how to make it again, and what it looks like."""

from __future__ import annotations

import time

import msgspec

from xref.judge.checks import Finding, Findings
from xref.judge.diagnose import explain, ranked
from xref.judge.diagnose_content import Found
from xref.judge.diagnose_gradient import explain_gradient
from xref.judge.exam_gradient import GradientExam
from xref.judge.judged import Judged
from xref.judge.probes import Observation, Probe, Prober
from xref.judge.shrink import bad, smallest
from xref.judge.subject import described

__all__ = ["Explainer"]

_TRIED = 5  # findings of one check that are looked into
_SECONDS = 12.0  # for all checks of a candidate together, beside the first finding of each


class Explainer:
    """Looks into failures, for as long as there is time; a probe is looked into once for each way it failed."""

    def __init__(self, prober: Prober, gradient: GradientExam) -> None:
        self.prober, self.gradient = prober, gradient
        self.deadline = time.monotonic() + _SECONDS
        self._known: dict[tuple[Probe, tuple[str, ...]], tuple[str, str, list[Found]]] = {}

    def explain(self, verdict: Judged, findings: Findings) -> None:
        """Add to a failed check's verdict its smallest failing call and what its bits are consistent with."""
        found: list[list[Found]] = []
        broken = ""
        for n, finding in enumerate(_chosen(findings.failures)):
            if n and time.monotonic() > self.deadline:
                break
            try:
                call, rerun, faults = self._looked_into(finding)
            except (Exception, SystemExit) as error:  # the verdict stands, whatever comes of looking into it
                broken = f"got {described(error)} while looking for it, expected one [{finding.call}]"
                continue
            if not verdict.smallest:
                verdict.smallest, verdict.rerun = call, rerun
            found.append(ranked(faults))
        verdict.smallest = verdict.smallest or broken
        # The likeliest is what all calls that fail speak for, and not what one of them cries out.
        likely = ranked(
            (sum(each[0] for faults in found for each in faults if each[1] == fault) / len(found), fault, what)
            for faults in found
            for _, fault, what in faults
        )
        verdict.explanations = [f"{fault}: {what}" for _, fault, what in likely[:5]]

    def _looked_into(self, finding: Finding) -> tuple[str, str, list[Found]]:
        """Return the smallest failing call, its record, and the faults that it is consistent with."""
        if finding.probe is None:
            call, rerun = (
                self.gradient.smallest(finding) if "case" in finding.evidence else (finding.call, finding.rerun)
            )
            return call, rerun, explain_gradient(finding.evidence, finding.hints, telling=finding.telling)
        known = finding.probe, finding.hints
        if known not in self._known:
            self._known[known] = self._probed(finding, finding.probe)
        return self._known[known]

    def _probed(self, finding: Finding, probe: Probe) -> tuple[str, str, list[Found]]:
        # What it looks like is read off the whole call: the smallest one has lost most of it.
        whole = self.prober.run(probe)
        if not bad(whole) and "plain" in finding.evidence:
            whole = self.prober.run(finding.evidence["plain"])  # which the condition's calls are compared with
        if not bad(whole):
            hints = finding.hints or ("call-count-dependent", "stale-cache")
            told = [
                (0.9 - 0.02 * n, hint, "so the call fails, and not when it is made alone")
                for n, hint in enumerate(hints)
            ]
            return f"{finding.call}; alone, without the calls before it, it does not fail", "", told
        faults = explain(self._plain(whole), finding.hints, telling=finding.telling)
        seen = smallest(whole, self.prober)
        return f"{self.prober.candidate.name}.{seen.probe}", seen.probe.to_json(), faults

    def _plain(self, whole: Observation) -> Observation:
        """Return what the same call shows in plain memory if it fails there too: then no layout is wrong."""
        plain = msgspec.structs.replace(whole.probe, layout="dense", id_layout="dense", mode="plain")
        if plain == whole.probe:
            return whole
        seen = self.prober.run(plain)
        return seen if bad(seen) else whole


def _chosen(failures: list[Finding]) -> list[Finding]:
    """Return the first finding of each kind of call: other tables and other memory show other sides of a fault."""
    kinds: dict[object, Finding] = {}
    for finding in failures:
        probe = finding.probe
        kind: tuple[object, ...] = finding.hints
        if probe is not None:
            kind = probe.table, probe.layout, probe.id_layout, probe.dtype
        elif "exact" in finding.evidence:
            case = finding.evidence["case"]
            kind = case.values, finding.evidence["layout"], case.ids
        kinds.setdefault(kind, finding)
    return list(kinds.values())[:_TRIED]
