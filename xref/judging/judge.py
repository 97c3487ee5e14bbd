"""`xref judge`: one kernel, all clauses and conditions of an operator, and a verdict that can be acted on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Unpack

from xref import __version__, errors, operators
from xref.engine.candidate import candidate_of
from xref.engine.examine import Examination, Progress, Subject
from xref.engine.findings import Findings, note
from xref.engine.local import Local
from xref.engine.outcomes import Outcome, outcome_of
from xref.engine.stand import Stand
from xref.judging.explanation import Explainer
from xref.judging.options import Options, OptionsDict, checked
from xref.judging.report import CheckVerdict, JudgeReport
from xref.spec import Check, Exam, Operator

__all__ = ["Judge", "judge"]

_CALL = "judge"


def judge(
    target: object, *, operator: str = "embedding", name: str | None = None, progress: Progress | None = None,
    **options: Unpack[OptionsDict],
) -> JudgeReport:  # fmt: skip
    """Judge a kernel of this process by every clause of an operator's contract, and every condition.

    The kernel runs in this process, beside what compares: `xref judge` runs it in one of its own.

    Args:
        target: a function of the operator's arguments, such as `(token_ids, weight) -> out`; a class that is made
            without arguments; or an object with `forward`, and optionally `forward_fp32` and
            `backward(token_ids, cotangent, vocab_size) -> [V, H]`. Where there is no `backward`, the gradient is what
            autograd or `jax.vjp` makes of `forward`.
        operator: whose contract.
        name: what the report calls the kernel.
        progress: called with the check that is made, how many are done, and how many there are.
        options: `framework`, `device`, `tier`, `dtype`, `accumulate`, `out_of_range`, `require`, `expect_fail`, `only`:
            as the fields of `xref.judging.options.Options`; `only` is a record of a call, as a report's `rerun` has it.

    Returns:
        The report; `report.ok` says whether everything required passed.

    Raises:
        MissingFrameworkError: a framework is not installed.
        UsageError: an unknown name, an absent device, or a target that is no kernel.
    """
    found = operators.find(operator)
    chosen = checked(found, _CALL, options)
    with errors.called(_CALL):
        candidate = candidate_of(
            target,
            verbs=found.verbs,
            trial=found.trial(),
            framework=chosen.framework,
            device=chosen.device,
            name=name,
        )
    judging = Judge(found, Local(candidate), chosen)
    judging.run(progress)
    return judging.report(in_process=True)


def stand_for(operator: Operator, target: str, options: Options) -> Stand:
    """Return the process in which a target is to be judged.

    Raises:
        UsageError: as `judge` raises it, or the target cannot be loaded.
    """
    found, device = options.framework, options.device
    return Stand(target, verbs=operator.verbs, trial=operator.trial(), framework=found, device=device)


class Judge:
    """One kernel being judged: `run` may be interrupted, and `report` says what there is so far."""

    def __init__(self, operator: Operator, subject: Subject, options: Options) -> None:
        self._begun = time.monotonic()
        self.operator, self.options = operator, options
        exam = Exam(
            traits=subject.traits,
            tier=options.tier,
            dtypes=options.dtype,
            accumulate=options.accumulate,
            out_of_range=options.out_of_range,
        )
        self.examination = Examination(operator, exam, subject)
        self.verdicts: list[CheckVerdict] = []

    def run(self, progress: Progress | None = None) -> None:
        """Make all calls, or the one that is asked for, and look into what failed."""
        if self.options.only is not None:
            call = self.options.only
            try:
                seen = self.examination.make(call)
            except (LookupError, OverflowError, TypeError, ValueError) as error:  # of its inputs: it is no call
                got = f"{call.to_json()!r} ({error})"
                expected = "the record of a call, as a report has it"
                raise errors.UsageError("--only", got, expected, _CALL) from error
            note(call, seen, self.examination.findings)
        else:
            self.examination.run(progress=progress)
        self._settle()
        if progress is not None:
            progress("explanations", len(self.verdicts), len(self.verdicts))
        explainer, name = Explainer(self.examination), self.examination.exam.traits.name
        for verdict in self.verdicts:
            if verdict.outcome in (Outcome.FAIL, Outcome.ABORTS, Outcome.XFAIL) and verdict.failed:
                try:
                    verdict.explained(explainer.explain(self.examination.findings[verdict.check]), name)
                except Exception as error:  # what was found is worth more than its explanation
                    verdict.smallest = f"got {errors.described(error)} while looking for it, expected one"

    def _settle(self) -> None:
        """Make the verdicts of what has been found."""
        findings = self.examination.findings
        if self.options.only is not None:  # what one call did not touch has nothing to say
            findings = {
                check: found for check, found in findings.items() if found.elements or found.failed or found.skipped
            }
            required: tuple[str, ...] = tuple(findings)
            expected: Mapping[str, str] = {}
        else:
            required, expected = self.options.require, self.options.expect_fail
        self.verdicts = [
            self._verdict(check, findings[check.id], required=check.id in required, expected=expected.get(check.id))
            for check in self.operator.checks
            if check.id in findings
        ]

    def _verdict(self, check: Check, found: Findings, *, required: bool, expected: str | None) -> CheckVerdict:
        outcome, reason = outcome_of(found), "; ".join(found.skipped) if not found.elements else ""
        if self.options.only is not None and found.skipped and outcome is Outcome.PASS:  # it was not made whole
            outcome, reason = Outcome.SKIP, "; ".join(found.skipped)
        stopped = self.examination.stopped.get(check.id, "")
        if outcome in (Outcome.PASS, Outcome.SKIP, Outcome.ERROR) and stopped:
            outcome, reason = Outcome.ERROR, stopped
        elif expected is not None and outcome in (Outcome.FAIL, Outcome.ABORTS, Outcome.PASS):
            outcome, reason = Outcome.XPASS if outcome is Outcome.PASS else Outcome.XFAIL, expected
        name = self.examination.exam.traits.name
        return CheckVerdict(
            check=check.id,
            clause=check.clause,
            condition=check.condition,
            judgment=check.judgment,
            what=check.text,
            # What a candidate lacks is not held against it unless it was asked for.
            required=required or (check.required and outcome is not Outcome.SKIP),
            outcome=outcome,
            reason=reason,
            cases=found.cases,
            elements=found.elements,
            failed=found.failed,
            problems=[f"{each.failure.message} [{name}.{each.call}]" for each in found.failures],
            detail=next((each.failure.detail for each in found.failures if each.failure.detail), ""),
        )

    def report(self, *, in_process: bool, interrupted: bool = False) -> JudgeReport:
        """Return what has been found; of an interrupted run, of the checks that were made."""
        if interrupted and not self.verdicts:
            findings = self.examination.findings
            for check in [check for check, found in findings.items() if not (found.cases or found.skipped)]:
                del findings[check]
            self._settle()
        exam = self.examination.exam
        return JudgeReport(
            xref=__version__,
            operator=self.operator.name,
            contract_version=self.operator.version,
            candidate=exam.traits.name,
            framework=exam.traits.framework,
            version=exam.traits.version,
            device=exam.traits.device,
            device_name=exam.traits.device_name,
            tier=exam.tier,
            dtypes=list(exam.dtypes),
            out_of_range=exam.out_of_range,
            accumulate=exam.accumulate,
            verdicts=self.verdicts,
            broken=dict(self.examination.stopped),
            in_process=in_process,
            interrupted=interrupted,
            seconds=round(time.monotonic() - self._begun, 1),
        )
