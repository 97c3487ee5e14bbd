"""`xref judge`: one candidate, all clauses and conditions, and a verdict that can be acted on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from xref import __version__, errors
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.judge import conduct
from xref.judge.candidate import Candidate, candidate_of
from xref.judge.checks import CHECKS, Check, Findings, check_ids
from xref.judge.exam import ACCURACY, Exam
from xref.judge.explained import explained
from xref.judge.exam_gradient import GradientExam
from xref.judge.isolate import CrashedError, limited
from xref.judge.judged import Judged, JudgeReport
from xref.judge.verdict import Outcome
from xref.spec import Tier

__all__ = ["judge"]

_CALL = "judge"
_PART_SECONDS = 600.0

Progress = Callable[[str, int, int], None]


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
    name: str | None = None,
    progress: Progress | None = None,
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
        name: what the report calls it.
        progress: called with what is about to run, how many parts are done, and how many there are.

    Returns:
        The report; `report.ok` says whether everything required passed.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: an unknown name, an absent device, or a target that is no kernel.
    """
    begun = time.monotonic()
    chosen = Tier(_one_of("--tier", tier, tuple(Tier)))
    named = (dtype,) if isinstance(dtype, str) else tuple(dtype)
    dtypes = tuple(_one_of("--dtype", each, tuple(FORMATS)) for each in named) or tuple(FORMATS)
    _one_of("--accumulate", accumulate, tuple(FORMATS))
    _one_of("--out-of-range", out_of_range, conduct.OUT_OF_RANGE)
    required = _selected("--require", require)
    expected = {
        check: reason for given, reason in (expect_fail or {}).items() for check in _selected("--expect-fail", (given,))
    }
    candidate = candidate_of(
        target, framework=framework, device=_one_of("--device", device, ("cpu", "cuda", "tpu")), name=name
    )
    findings = {check.id: Findings() for check in CHECKS}
    exam = Exam(candidate, chosen, dtypes, findings)
    gradient = GradientExam(candidate, chosen, dtypes, findings, accumulate)
    parts: dict[str, Callable[[], Any]] = {
        "accuracy": exam.accuracy,
        "invariance": exam.invariance,
        "gradient": gradient.run,
        "memory": lambda: conduct.examine_memory(candidate, dtypes, findings["EMB-12"]),
        "bad ids": lambda: conduct.examine_refusals(candidate, chosen, dtypes, findings, out_of_range),
    }
    broken: dict[str, str] = {}
    for done, (part, run) in enumerate(parts.items()):
        if progress is not None:
            progress(part, done, len(parts))
        try:
            with limited(_PART_SECONDS):
                run()
        except CrashedError as error:
            broken[part] = str(error)
    _lacking(candidate, findings)
    judged = [_judged(check, findings[check.id], required, expected) for check in CHECKS]
    for verdict in judged:
        if verdict.outcome in (Outcome.FAIL, Outcome.XFAIL):
            explained(verdict, findings[verdict.check], exam.prober)
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


def _one_of(where: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise errors.UsageError(errors.message(where, repr(value), f"one of {', '.join(allowed)}", _CALL))
    return value


def _selected(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the checks that names stand for: a check's own, or all of a clause."""
    found: list[str] = []
    for name in names:
        some = [check.id for check in CHECKS if name in (check.id, check.clause)]
        if not some:
            allowed = f"a clause or one of {', '.join(check_ids())}"
            raise errors.UsageError(errors.message(where, repr(name), allowed, _CALL))
        found += some
    return tuple(found)


def _lacking(candidate: Candidate, findings: dict[str, Findings]) -> None:
    """Note why a check was not run at all."""
    for verb, check in ACCURACY.items():
        if verb not in candidate.verbs:
            findings[check].skipped.append(f"the candidate has no {verb}")
    gradient = [check.id for check in CHECKS if check.judgment.startswith("gradient")]
    why = findings["EMB-8"].skipped[:1]
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
    if check.id in expected:
        reason = expected[check.id]
        outcome = Outcome.XFAIL if outcome is Outcome.FAIL else Outcome.XPASS if outcome is Outcome.PASS else outcome
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
