"""`xref judge`: one candidate, all clauses and conditions, and a verdict that can be acted on."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from xref import __version__, errors
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.judge import conduct, memory
from xref.judge.candidate import Candidate, candidate_of
from xref.judge.checks import CHECKS, Check, Findings, check_ids
from xref.judge.exam import Exam
from xref.judge.exam_gradient import GradientExam
from xref.judge.explained import Explainer
from xref.judge.isolate import CrashedError, limited, prolong
from xref.judge.judged import Judged, JudgeReport
from xref.judge.probes import Probe
from xref.judge.subject import ACCURACY, Progress
from xref.judge.verdict import Outcome
from xref.spec import Tier

__all__ = ["judge"]

_CALL = "judge"
_SILENCE = 300.0  # seconds that one case may take
_SIGNS = 1.0  # seconds between two signs of life


def judge(
    target: object,
    *,
    framework: str | None = None,
    device: str = "cpu",
    tier: str = "standard",
    dtype: str | tuple[str, ...] = (),
    accumulate: str = "float32",
    out_of_range: str = "raise",
    require: tuple[str, ...] = (),
    expect_fail: Mapping[str, str] | None = None,
    only: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    without: Mapping[str, str] | None = None,
) -> JudgeReport:
    """Judge a kernel by every clause of the contract and every condition of clause EMB-7 and EMB-10.

    Args:
        target: a function `(token_ids, weight) -> out`; a class that is made without arguments; or an object with
            `forward`, and optionally `forward_fp32` and `backward(token_ids, cotangent, vocab_size) -> [V, H]`.
            Where there is no `backward`, the gradient is what autograd or `jax.vjp` makes of `forward`.
        framework: `torch` or `jax`; None finds it out.
        device: `cpu`, `cuda` or `tpu`.
        tier: `smoke` (seconds), `standard` or `exhaustive`.
        dtype: table dtypes; none named means all.
        accumulate: the format in which its gradient is summed; the bound is that format's.
        out_of_range: what it promises of ids out of range: `raise` an `IndexError`, `poison` (rows of NaN), or
            `unchecked`, which is a visible skip.
        require: checks, or clauses, that are only graded otherwise, or skipped where the candidate lacks them.
        expect_fail: reasons by check or clause: what is known to fail. If it passes, that fails the candidate.
        only: the record of one call, as a failed check's `rerun` has it: nothing else is run, and nothing is only
            graded or expected to fail.
        name: what the report calls it.
        progress: called with the part that runs, how many parts are done, and how many there are: when one begins, and
            about once a second while its cases end.
        without: parts of the examination that are left out, and why: each counts as a failure of its checks.

    Returns:
        The report; `report.ok` says whether everything required passed.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: an unknown name, an absent device, or a target that is no kernel.
    """
    begun = time.monotonic()
    chosen = Tier(_one_of("--tier", tier, tuple(Tier)))
    named, require = (_names(where, given) for where, given in (("--dtype", dtype), ("--require", require)))
    dtypes = tuple(_one_of("--dtype", each, tuple(FORMATS)) for each in named) or tuple(FORMATS)
    _one_of("--accumulate", accumulate, tuple(FORMATS))
    _one_of("--out-of-range", out_of_range, conduct.OUT_OF_RANGE)
    required = _selected("--require", require)
    expected = {
        check: reason for given, reason in (expect_fail or {}).items() for check in _selected("--expect-fail", (given,))
    }
    device = _one_of("--device", device, ("cpu", "cuda", "tpu"))
    candidate = candidate_of(target, framework=framework, device=device, name=name)
    signs = _Signs(progress)
    findings = {check.id: Findings(after_each=signs.after_each) for check in CHECKS}
    exam = Exam(candidate, chosen, dtypes, findings)
    gradient = GradientExam(candidate, chosen, dtypes, findings, accumulate)
    parts: dict[str, Callable[[], Any]] = {
        "accuracy": exam.accuracy,
        "invariance": exam.invariance,
        "gradient": gradient.run,
        "memory": lambda: memory.examine_memory(candidate, chosen, dtypes, findings),
        "bad ids": lambda: conduct.examine_refusals(candidate, chosen, dtypes, findings, out_of_range),
    }
    if only is not None:
        parts = {"one call": functools.partial(_again, only, exam, gradient, out_of_range)}
    broken = dict(without or {})
    for done, (part, run) in enumerate(parts.items()):
        if part in broken:
            continue
        signs.begin(part, done, len(parts))
        try:
            with limited(_SILENCE):
                run()
        except CrashedError as error:
            broken[part] = str(error)
    if chosen is Tier.SMOKE:
        findings["EMB-7/mode"].skipped.append("not in the smoke tier")
    _lacking(candidate, dtypes, findings, "only one call was run" if only is not None else None)
    if only is not None:  # one call is made to see it fail, or not
        required, expected = tuple(name for name, found in findings.items() if found.elements or found.failed), {}
    judged = [_judged(check, findings[check.id], required, expected) for check in CHECKS]
    explainer = Explainer(exam.prober, gradient)
    signs.begin("explain", len(parts), len(parts))
    for verdict in judged:
        if verdict.outcome is Outcome.ERROR:
            verdict.problems = [f"{part}: got {why}, expected it to end [judge]" for part, why in broken.items()]
        if verdict.outcome in (Outcome.FAIL, Outcome.XFAIL) and "explain" not in broken:
            explainer.explain(verdict, findings[verdict.check])
    return JudgeReport(
        xref=__version__,
        operator=contract.OPERATOR,
        contract_version=contract.VERSION,
        candidate=candidate.name,
        framework=candidate.framework.NAME,
        version=candidate.framework.version(),
        device=candidate.device,
        device_name=candidate.framework.describe(candidate.device),
        tier=chosen,
        dtypes=list(dtypes),
        out_of_range=out_of_range,
        accumulate=accumulate,
        verdicts=judged,
        broken=broken,
        seconds=round(time.monotonic() - begun, 1),
    )


class _Signs:
    """Tells how far a judge is: when a part begins, and from time to time while its cases end."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress, self.told, self.part = progress, 0.0, ("", 0, 0)

    def begin(self, part: str, done: int, total: int) -> None:
        """Say that a part begins."""
        self.part, self.told = (part, done, total), time.monotonic()
        if self.progress is not None:
            self.progress(*self.part)

    def after_each(self) -> None:
        """Say that it goes on, and give the next case its time."""
        if time.monotonic() - self.told > _SIGNS:
            prolong(_SILENCE)
            self.begin(*self.part)


def _names(where: str, given: object) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise errors.UsageError(errors.message(where, repr(name), "a name, or a tuple of names", _CALL))
    return names


def _one_of(where: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise errors.UsageError(errors.message(where, repr(value), f"one of {', '.join(allowed)}", _CALL))
    return value


def _selected(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the checks that names stand for: the one of that name, or else all of a clause."""
    found: list[str] = []
    for name in names:
        some = [check.id for check in CHECKS if name == check.id]
        some = some or [check.id for check in CHECKS if name == check.clause]
        if not some:
            allowed = f"a clause or one of {', '.join(check_ids())}"
            raise errors.UsageError(errors.message(where, repr(name), allowed, _CALL))
        found += some
    return tuple(found)


def _again(only: str, exam: Exam, gradient: GradientExam, out_of_range: str) -> None:
    """Make one call again, from its record."""
    try:
        record = msgspec.json.decode(only, type=dict[str, Any])
        if "route" in record:
            gradient.again(record)
        elif "bad" in record:
            conduct.refused_again(exam.candidate, record, exam.findings["EMB-4"], out_of_range)
        else:
            probe = msgspec.convert(record, Probe)
            if probe.verb not in exam.candidate.verbs:
                raise ValueError(f"the candidate has no {probe.verb}")
            exam.note(exam.prober.run(probe))
    except (msgspec.MsgspecError, AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        expected = "the record of a call, as a report has it"
        raise errors.UsageError(errors.message("--only", f"{only!r} ({error})", expected, _CALL)) from error


def _lacking(
    candidate: Candidate, dtypes: tuple[str, ...], findings: dict[str, Findings], why_none: str | None
) -> None:
    """Note why a check was not run at all."""
    if why_none is not None:
        for found in findings.values():
            found.skipped.append(why_none)
        return
    for verb, check in ACCURACY.items():
        if verb not in candidate.verbs:
            findings[check].skipped.append(f"the candidate has no {verb}")
    name, skipped = candidate.framework.NAME, findings["EMB-7/gradient"].skipped
    skipped += [] if candidate.framework.gradient_modes() else [f"{name} has no such switch"]
    gradient = [check.id for check in CHECKS if check.judgment.startswith("gradient")]
    why = findings["EMB-8"].skipped[:1]
    if findings["EMB-8"].cases and all(FORMATS[dtype].width == 8 for dtype in dtypes):
        why = ["not tried on gradients of 8 bits"]
    for check in gradient:
        if not findings[check].cases and not findings[check].skipped:
            findings[check].skipped += why


def _judged(check: Check, found: Findings, required: tuple[str, ...], expected: Mapping[str, str]) -> Judged:
    must = check.id in required
    if found.failed:
        outcome = Outcome.FAIL
    elif found.elements:
        outcome = Outcome.PASS
    else:
        outcome = Outcome.SKIP if found.skipped else Outcome.ERROR
    reason = "; ".join(dict.fromkeys(found.skipped)) if not found.elements else ""
    if check.id in expected and outcome in (Outcome.FAIL, Outcome.PASS):
        reason = expected[check.id]
        outcome = Outcome.XFAIL if outcome is Outcome.FAIL else Outcome.XPASS
    return Judged(
        check=check.id,
        clause=check.clause,
        condition=check.condition,
        judgment=check.judgment,
        what=check.what,
        # What a candidate lacks is not held against it unless it was asked for.
        required=must or (check.required and outcome is not Outcome.SKIP),
        outcome=outcome,
        reason=reason,
        cases=found.cases,
        elements=found.elements,
        failed=found.failed,
        problems=[f"{finding.message} [{finding.call}]" for finding in found.failures[:3]],
    )
