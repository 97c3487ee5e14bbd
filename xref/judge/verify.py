"""`xref verify`: two frameworks confirm the goldens, bit for bit, or the report says where they do not."""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from pathlib import Path
from typing import Any

from xref import __version__, bits, errors
from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.inputs import Ids
from xref.judge import frameworks
from xref.judge.gradient import compare_gradients, examine_gradient, expect_gradients, gradient_inputs
from xref.judge.run import (
    Workload,
    compare_subjects,
    examine,
    examine_bad_ids,
    expect,
    from_case,
    output_digests,
)
from xref.judge.steps import Step, run_steps
from xref.judge.subject import FIXTURES, Progress, Subject
from xref.judge.verdict import Ledger, Outcome, Report
from xref.operators.embedding import weights
from xref.spec import Tier

__all__ = ["DEVICES", "verify"]

DEVICES = ("auto", "cpu", "cuda", "tpu")
_CALL = "verify"


def verify(
    *,
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
    chosen = _choose("tier", (tier,), tuple(Tier))[0]
    dtypes = _choose("dtype", dtype, tuple(FORMATS))
    if weights_file is None and (tensor or ids_file):
        raise errors.UsageError(
            errors.message("--tensor or --ids", "no --weights", "a safetensors file with them", _CALL)
        )
    if weights_file is not None and dtypes:
        raise errors.UsageError(errors.message("--dtype", dtypes[0], "the file's own dtype, with --weights", _CALL))
    # A file that is not right is known before frameworks are loaded, which takes seconds.
    stored = None if weights_file is None else _stored(Path(weights_file), tensor, ids_file)
    subjects = _subjects(framework, device)
    ledger = Ledger({FIXTURES: "inputs as pinned"} | {clause.id: clause.title for clause in contract.CLAUSES})
    if stored is None:
        steps = _fixed_steps(Tier(chosen), dtypes, subjects, ledger)
        what = f"{chosen} tier"
    else:
        work = _from_weights(*stored)
        compare = functools.partial(_compare, subjects, ledger)
        steps = [Step(work.id, lambda: work, functools.partial(_examine, ledger), compare)]
        what = work.id
        expect(subjects, tuple(work.answers), ledger, refusals=False, conditions=True)
    ledger.in_order(step.name for step in steps)
    with warnings.catch_warnings():
        # A framework's warnings of its own insides (Dynamo makes objects of autograd functions) are no verdict, nor an
        # error where warnings are. Said here, since filters are the process's and the threads of the run share them.
        warnings.simplefilter("ignore", DeprecationWarning)
        lines = run_steps(steps, subjects, progress)
    return _report(subjects, ledger, lines, what, time.monotonic() - begun)


def _choose(name: str, given: str | tuple[str, ...], allowed: tuple[str, ...]) -> tuple[str, ...]:
    given = (given,) if isinstance(given, str) else given
    for value in given:
        if value not in allowed:
            raise errors.UsageError(errors.message(f"--{name}", repr(value), f"one of {', '.join(allowed)}", _CALL))
    return tuple(dict.fromkeys(given))


def _subjects(names: str | tuple[str, ...], devices: str | tuple[str, ...]) -> list[Subject]:
    """Return every framework on every device asked for; raise for what was asked for and is not there."""
    named = _choose("framework", names, frameworks.FRAMEWORKS) or frameworks.FRAMEWORKS
    chosen = [name for name in frameworks.FRAMEWORKS if name in named]
    kinds = _choose("device", devices, DEVICES) or ("auto",)
    subjects = []
    for name in chosen:  # all of them before the first is imported, which takes seconds
        frameworks.check_installed(name, _CALL)
    everyone = [frameworks.load(name, _CALL) for name in chosen]
    for loaded in everyone:
        present = frameworks.devices(loaded, _CALL)
        wanted: dict[str, None] = {}
        for kind in kinds:
            if kind == "auto":
                wanted |= dict.fromkeys(present)
            elif loaded.supports(kind) or not any(other.supports(kind) for other in everyone):
                wanted[kind] = None
            else:
                wanted["cpu"] = None
        for kind in wanted:
            if kind not in present:
                there = f"a device that {loaded.NAME} has here: {', '.join(present)}"
                raise errors.UsageError(errors.message("--device", kind, there, _CALL))
            subjects.append(Subject(loaded, kind))
    return subjects


def _fixed_steps(tier: Tier, dtypes: tuple[str, ...], subjects: list[Subject], ledger: Ledger) -> list[Step]:
    cases = contract.cases(tier, dtypes=dtypes)
    if not cases:
        raise errors.NothingComparedError(errors.message("cases", "none", f"one or more in the {tier} tier", _CALL))
    gradient_cases = gradients.cases(tier, dtypes=dtypes)
    expect_gradients(subjects, gradient_cases, ledger)
    verbs = tuple(dict.fromkeys(verb for case in cases for verb in contract.verbs_of(case.dtype)))
    expect(subjects, verbs, ledger, refusals=True, conditions=any(case.conditions for case in cases))
    partial = functools.partial
    return [
        *(
            Step(f"bad ids, {dtype}", partial(str, dtype), partial(_refuse, ledger), lambda inputs, outputs: set())
            for dtype in dtypes or FORMATS
        ),
        *(
            Step(
                case.id,
                partial(gradient_inputs, case, ledger),
                partial(_examine_gradient, case, ledger),
                partial(_compare_gradients, case, subjects, ledger),
            )
            for case in gradient_cases
        ),
        *(
            Step(
                case.id,
                partial(from_case, case, ledger),
                partial(_examine, ledger),
                partial(_compare, subjects, ledger),
                contract.large_table(case),
            )
            for case in cases
        ),
    ]


def _refuse(ledger: Ledger, dtype: str, subject: Subject) -> None:
    examine_bad_ids(subject, dtype, ledger)


def _examine(ledger: Ledger, work: Workload, subject: Subject) -> dict[str, Bits]:
    return examine(subject, work, ledger)


def _compare(subjects: list[Subject], ledger: Ledger, work: Workload, outputs: list[dict[str, Bits]]) -> set[str]:
    """Compare what came of each subject with the first's; return the lines of all outputs."""
    for subject, got in zip(subjects[1:], outputs[1:], strict=True):
        compare_subjects((subjects[0], outputs[0]), (subject, got), work, ledger)
    return {line for got in outputs for line in output_digests(work, got)}


def _examine_gradient(
    case: GradientCase, ledger: Ledger, inputs: tuple[Ids, Bits, Bits], subject: Subject
) -> Bits | None:
    return examine_gradient(subject, case, inputs, ledger)


def _compare_gradients(
    case: GradientCase, subjects: list[Subject], ledger: Ledger, inputs: Any, outputs: list[Bits | None]
) -> set[str]:
    """Compare the gradient of each subject with the first's; return the lines of all outputs."""
    for subject, got in zip(subjects[1:], outputs[1:], strict=True):
        compare_gradients((subjects[0], outputs[0]), (subject, got), case, ledger)
    return {f"{case.id} grad_weight {bits.digest(got, case.result)}" for got in outputs if got is not None}


def _stored(path: Path, tensor: str | None, ids_file: str | Path | None) -> tuple[weights.StoredTable, Ids]:
    """Return the table that is in a file, not read yet, and ids for it."""
    with errors.called("verify --weights"):
        table = weights.find_table(path, tensor)
        if 0 in table.shape:
            raise errors.UsageError(table.name, f"shape {table.shape}", "a table with elements", _CALL)
        ids = weights.read_ids(Path(ids_file), table.shape[0]) if ids_file else weights.default_ids(*table.shape)
    return table, ids


def _from_weights(table: weights.StoredTable, ids: Ids) -> Workload:
    what = f"{table.dtype} {table.shape[0]} x {table.shape[1]}, {ids.size} ids"
    with errors.called("verify --weights"):
        return Workload.of(f"{table.path.name}:{table.name} ({what})", table.dtype, ids, table.read())


def _report(subjects: list[Subject], ledger: Ledger, lines: set[str], what: str, seconds: float) -> Report:
    verdicts = ledger.verdicts()
    environment: dict[str, dict[str, str]] = {}
    for subject in subjects:
        known = environment.setdefault(subject.framework.NAME, {"version": subject.framework.version()})
        known[subject.device] = subject.framework.describe(subject.device)
    report = Report(
        xref=__version__,
        operator=contract.OPERATOR,
        contract_version=contract.VERSION,
        subject=what,
        environment=environment,
        verdicts=verdicts,
        digest=hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest(),
        seconds=round(seconds, 1),
        statement="",
    )
    report.statement = _statement(report)
    return report


def _statement(report: Report) -> str:
    ran = [
        f"{name} {known['version']} on {' and '.join(device for device in known if device != 'version')}"
        for name, known in report.environment.items()
    ]
    failed = [v for v in report.verdicts if v.outcome is not Outcome.PASS]
    if failed:
        parts = ", ".join(f"{v.clause} ({v.framework}/{v.device} against {v.against})" for v in failed)
        return f"Not confirmed: {len(failed)} of {len(report.verdicts)} verdicts did not pass: {parts}."
    outputs = sum(v.elements for v in report.verdicts if v.clause in ("EMB-1", "EMB-2") and v.against == "exact")
    pinned = any(v.clause == FIXTURES for v in report.verdicts)
    how = "each equal to the exact answer"
    if len(ran) > 1:
        how += " and to the other"
    if pinned:
        how += " and to the digests pinned in the package"
    alone = "" if len(ran) > 1 else " No second framework confirmed it in this run."
    compared = {v.clause for v in report.verdicts}
    missing = ", ".join(clause.id for clause in contract.CLAUSES if clause.id not in compared)
    left_out = f" Not compared: {missing}." if missing else ""
    who = " and ".join(ran)
    return f"Confirmed ({report.subject}): {who}, {how}, bit for bit, on {outputs:,} output elements.{left_out}{alone}"
