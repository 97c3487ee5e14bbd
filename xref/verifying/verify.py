"""`xref verify`: two frameworks confirm the goldens, bit for bit, or the report says where they do not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from xref import __version__, errors, operators
from xref.bits import FORMATS
from xref.engine.examine import Progress
from xref.engine.outcomes import Outcome
from xref.spec import Exam, Operator, Tier
from xref.verifying.golden import chosen, golden_of, goldens_of
from xref.verifying.plan import Examined, Performer, Plan, plan_of
from xref.verifying.report import Report
from xref.verifying.run import FIXTURES, Run

__all__ = ["confirmed", "verify"]

_CALL = "verify"


def verify(
    *,
    operator: str = "embedding",
    tier: str = "standard",
    framework: str | tuple[str, ...] = (),
    device: str | tuple[str, ...] = ("auto",),
    dtype: str | tuple[str, ...] = (),
    weights_file: str | Path | None = None,
    tensor: str | None = None,
    ids_file: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the goldens on fixed-seed cases, or on a checkpoint's table, and compare every element by its bits.

    Args:
        operator: whose goldens.
        tier: `smoke`, `standard` or `exhaustive`: how many cases.
        framework: `torch`, `jax` or both; none named means both, and both must then be installed. One alone is
            compared with the exact answers and with the digests that the package pins.
        device: kinds of device, `cpu`, `cuda` or `tpu`; `auto` is the CPU and whatever accelerator a framework has. A
            framework that has no such kind anywhere (torch and `tpu`) runs on the CPU beside one that has it.
        dtype: table dtypes; none named means all.
        weights_file: a safetensors file; its table is then the one case.
        tensor: the table's name in that file.
        ids_file: token ids for that table, `.npy` or `.txt`; without it, 8192 ids with both ends among them.
        progress: called with what is about to run, how many steps are done, and how many there are.

    Returns:
        The report; `report.ok` says whether everything passed.

    Raises:
        UsageError: an unknown name, an absent device, an unreadable file.
        MissingFrameworkError: a framework is not installed; the message has the line that installs it.
        NothingComparedError: there is no case to run.
    """
    begun = time.monotonic()
    found = operators.find(operator)
    asked = Tier(chosen("tier", (tier,), tuple(Tier))[0])
    dtypes = chosen("dtype", dtype, tuple(FORMATS))
    if weights_file is None and (tensor or ids_file):
        raise errors.UsageError("--tensor or --ids", "no --weights", "a safetensors file with them", _CALL)
    if weights_file is None:
        goldens = [golden_of(found, *each) for each in goldens_of(found, framework, device)]
        return confirmed(found, goldens, tier=asked, dtypes=dtypes or tuple(FORMATS), progress=progress, begun=begun)
    if dtypes:
        raise errors.UsageError("--dtype", dtypes[0], "the file's own dtype, with --weights", _CALL)
    if "weights" not in found.modules:
        raise errors.UsageError("--weights", operator, "an operator that takes a checkpoint's table", _CALL)
    # A file that is not right is known before frameworks are loaded, which takes seconds.
    weights = found.module("weights")
    with errors.called("verify --weights"):
        stored = weights.stored(Path(weights_file), tensor, ids_file)
    goldens = [golden_of(found, *each) for each in goldens_of(found, framework, device)]
    with errors.called("verify --weights"), weights.loaded(stored) as calls_of:
        plan = Plan()
        everyone = _examined(goldens, Tier.STANDARD, (stored.dtype,))
        parts = [(each, list(calls_of(each.exam))) for each in everyone]
        plan.add(parts)
        checks = {check.id: check for check in found.checks}
        plan.expect(checks, parts)
        names = {call: stored.name for call in plan.calls if checks[call.check].against == "exact"}
        run = Run(found, plan, names)
        run.make(progress)
    return _report(found, everyone, run, stored.name, time.monotonic() - begun)


def _examined(goldens: Sequence[Performer], tier: Tier, dtypes: tuple[str, ...]) -> list[Examined]:
    return [Examined(each, Exam(traits=each.traits, tier=tier, dtypes=dtypes, pinned=True)) for each in goldens]


def confirmed(
    operator: Operator,
    goldens: Sequence[Performer],
    *,
    tier: Tier,
    dtypes: tuple[str, ...],
    progress: Progress | None = None,
    begun: float | None = None,
) -> Report:
    """Return the report on goldens that make the calls of every check of an operator.

    Raises:
        NothingComparedError: there is no call to make.
    """
    begun = time.monotonic() if begun is None else begun
    everyone = _examined(goldens, tier, dtypes)
    plan = plan_of(operator, everyone)
    if not plan.calls:
        raise errors.NothingComparedError("cases", "none", f"one or more in the {tier} tier", _CALL)
    run = Run(operator, plan)
    run.make(progress)
    return _report(operator, everyone, run, f"{tier} tier", time.monotonic() - begun)


def _report(operator: Operator, goldens: Sequence[Examined], run: Run, what: str, seconds: float) -> Report:
    environment: dict[str, dict[str, str]] = {}
    for traits in (each.exam.traits for each in goldens):
        environment.setdefault(traits.framework, {"version": traits.version})[traits.device] = traits.device_name
    report = Report(
        xref=__version__,
        operator=operator.name,
        contract_version=operator.version,
        subject=what,
        environment=environment,
        verdicts=run.ledger.verdicts(),
        digest=run.digest,
        seconds=round(seconds, 1),
        statement="",
    )
    report.statement = _statement(report, [clause.id for clause in operator.clauses], run.outputs)
    return report


def _statement(report: Report, clauses: list[str], outputs: int) -> str:
    failed = [v for v in report.verdicts if v.outcome is not Outcome.PASS]
    if failed:
        parts = ", ".join(f"{v.clause} ({v.framework}/{v.device} against {v.against})" for v in failed)
        return f"Not confirmed: {len(failed)} of {len(report.verdicts)} verdicts did not pass: {parts}."
    ran = [
        f"{name} {known['version']} on {' and '.join(device for device in known if device != 'version')}"
        for name, known in report.environment.items()
    ]
    how = "each equal to the exact answer" + (" and to the other" if len(ran) > 1 else "")
    how += " and to the digests pinned in the package" if any(v.clause == FIXTURES for v in report.verdicts) else ""
    missing = [clause for clause in clauses if clause not in {v.clause for v in report.verdicts}]
    left_out = f" Not compared: {', '.join(missing)}." if missing else ""
    alone = "" if len(ran) > 1 else " No second framework confirmed it in this run."
    return (
        f"Confirmed ({report.subject}): {' and '.join(ran)}, {how}, bit for bit, on {outputs:,} output"
        f" elements.{left_out}{alone}"
    )
