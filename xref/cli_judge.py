"""The commands about kernels: `xref judge`, `xref list` and `xref explain`."""

from __future__ import annotations

import enum
import os
import shlex
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from xref import errors, registry
from xref.cli_options import Device, Dtype, Framework
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient
from xref.operators.embedding import faults as embedding_faults
from xref.judge import judged_report, report
from xref.judge.checks import CHECKS
from xref.judge.conduct import OUT_OF_RANGE
from xref.judge.judged import JudgeReport
from xref.judge.worker import Options, supervised
from xref.spec import Tier
from xref.terminal import console, progress_bar, stopped

__all__ = ["explain", "judge", "list_what"]

_CALL = "judge"

BadIds = enum.StrEnum("BadIds", {name: name for name in OUT_OF_RANGE})  # type: ignore[misc]
Listed = enum.StrEnum("Listed", {name: name for name in ("clauses", "cases", "faults", "kernels", "checks")})  # type: ignore[misc]


def judge(
    target: Annotated[str, typer.Argument(help="pkg.mod:name or path/to/file.py:name.")],
    framework: Annotated[Framework | None, typer.Option(help="Found out if not given.")] = None,
    device: Annotated[Device, typer.Option(help="Kind of device; an absent one is an error.")] = "cpu",  # type: ignore[assignment]
    tier: Annotated[Tier, typer.Option(help="How much to run.")] = Tier.STANDARD,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Table dtype (repeatable); all if not given.")] = None,
    accumulate: Annotated[Dtype, typer.Option(help="Format in which the kernel sums its gradient.")] = "float32",  # type: ignore[assignment]
    out_of_range: Annotated[
        BadIds | None, typer.Option(help="What it promises of such ids; raise if not given.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="A check or clause that is only graded otherwise.")] = None,
    expect_fail: Annotated[list[str] | None, typer.Option(help='CHECK="reason": known to fail; strict.')] = None,
    only: Annotated[str | None, typer.Option(help="Make one call again, from a report's record.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write it as JUnit's XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write it as Markdown, such as for a CI job's summary.")] = None,
) -> None:
    """Judge a kernel: every clause, every condition, and what a failure is consistent with."""
    files = {"--json": json, "--junit": junit, "--markdown": markdown}
    try:
        settings = _settings(Path("pyproject.toml"))
        inputs = [Path(target.rpartition(":")[0])]  # a file, or no path at all
        for option, path in files.items():
            if path is not None:
                _check(option, path, inputs)
                inputs.append(path)
        options = Options(
            target=target,
            framework=framework,
            device=device,
            tier=tier,
            dtype=tuple(dtype or ()),
            accumulate=accumulate,
            out_of_range=out_of_range or settings.get("out-of-range", "raise"),
            require=(*settings.get("require", ()), *(require or ())),
            expect_fail=settings.get("expect-fail", {}) | dict(map(_reason, expect_fail or ())),
            only=only,
        )
        with progress_bar() as progress:
            found = supervised(options, progress=progress)
        _finish(found, target, files)
    except errors.XrefError as error:
        raise stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise stopped("interrupted: nothing was judged", 130) from error
    raise typer.Exit(0 if found.ok else 3 if found.nothing else 1)


def _finish(found: JudgeReport, target: str, files: dict[str, Path | None]) -> None:
    """Write and show a report; its records become commands that make the call again."""
    again = ["xref", "judge", target, "--framework", found.framework, "--device", found.device]
    again += ["--accumulate", found.accumulate] if found.accumulate != "float32" else []
    again += ["--out-of-range", found.out_of_range] if found.out_of_range != "raise" else []
    for verdict in found.verdicts:
        if verdict.rerun:
            verdict.rerun = shlex.join([*again, "--only", verdict.rerun])
    texts = {
        "--json": found.to_json() + "\n",
        "--junit": judged_report.to_junit(found),
        "--markdown": found.to_markdown(),
    }
    try:
        for option, path in files.items():
            if path is not None and _added(option, path):
                try:
                    with path.open("a", encoding="utf-8") as summary:
                        summary.write(texts[option])
                except OSError as error:
                    got = f"{path}, which cannot be written ({error.strerror})"
                    raise errors.UsageError(errors.message(option, got, "a file", _CALL)) from error
            elif path is not None:
                report.write_file(texts[option], path, option=option, call=_CALL)
    finally:
        judged_report.show(found, console())


def _added(option: str, path: Path) -> bool:
    """Return whether a file is added to: that of a CI job's summary, if it is there."""
    return option == "--markdown" and path.exists() and not path.is_dir()


def _check(option: str, path: Path, inputs: list[Path]) -> None:
    """Raise before the run if a file cannot be written after it, or is one of those that the run is about."""
    if not _added(option, path) or path.resolve() in [given.resolve() for given in inputs]:
        report.check_writable(path, inputs=inputs, option=option, call=_CALL)
    elif not os.access(path, os.W_OK):
        raise errors.UsageError(errors.message(option, path, "a file that can be written", _CALL))


def _reason(given: str) -> tuple[str, str]:
    check, equals, reason = given.partition("=")
    if not equals or not reason.strip():
        raise errors.UsageError(errors.message("--expect-fail", repr(given), 'CHECK="reason"', _CALL))
    return check, reason.strip()


def _settings(path: Path) -> dict[str, Any]:
    """Return the table `[tool.xref]` of a `pyproject.toml`, if there is one."""
    if not path.is_file():
        return {}
    try:
        tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        got = f"a file that cannot be read as TOML ({error})"
        raise errors.UsageError(errors.message(str(path), got, "one that can", _CALL)) from error
    found = tool.get("xref", {}) if isinstance(tool, dict) else {}
    if not isinstance(found, dict):
        raise errors.UsageError(errors.message("[tool.xref]", repr(found), "a table", _CALL))
    for key, value in found.items():
        if key not in _SETTINGS:
            expected = f"one of {', '.join(_SETTINGS)}"
            raise errors.UsageError(errors.message("[tool.xref]", repr(key), expected, _CALL))
        expected, fits = _SETTINGS[key]
        if not fits(value):
            raise errors.UsageError(errors.message(f"[tool.xref] {key}", repr(value), expected, _CALL))
    return found


def _texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


_SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "expect-fail": ("a table of reasons", lambda value: isinstance(value, dict) and _texts(value.values())),
    "out-of-range": (f"one of {', '.join(OUT_OF_RANGE)}", lambda value: value in OUT_OF_RANGE),
    "require": ("a list of checks or clauses", lambda value: isinstance(value, list) and _texts(value)),
}


def list_what(what: Annotated[Listed, typer.Argument(help="What to list.")]) -> None:
    """List clauses, checks, cases, faults of the catalogue, or kernels of the registry."""
    rows: dict[str, tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = {
        "clauses": (("clause", "title", "what must hold"), [(c.id, c.title, c.statement) for c in contract.CLAUSES]),
        "checks": (
            ("check", "judgment", "required", "what"),
            [(c.id, c.judgment, "yes" if c.required else "graded", c.what) for c in CHECKS],
        ),
        "cases": (
            ("case", "tier"),
            [(case.id, str(case.tier)) for case in contract.cases(Tier.EXHAUSTIVE)]
            + [(case.id, str(case.tier)) for case in embedding_gradient.cases(Tier.EXHAUSTIVE)],
        ),
        "faults": (("fault", "looks", "report"), [(f.name, f.looks, f.report) for f in embedding_faults.FAULTS]),
        "kernels": (
            ("kernel", "operator", "framework", "devices", "priority", "from"),
            [
                (k.name, k.op, k.framework, ", ".join(k.devices), str(k.priority), k.problem or k.origin)
                for k in registry.REGISTRY.backends()
            ],
        ),
    }
    headings, lines = rows[what]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for line in lines:
        table.add_row(*map(escape, line))
    console().print(table)


def explain(
    name: Annotated[str, typer.Argument(help="A clause, a check or a fault: EMB-7, EMB-7/padding, ids-clamped.")],
) -> None:
    """Explain a clause, a check or a fault."""
    lines = [f"{c.id} {c.title}: {c.statement}" for c in contract.CLAUSES if name in (c.id, c.title)]
    for check in CHECKS:
        if name in (check.id, check.clause):
            required = "required" if check.required else "graded, unless --require asks for it"
            lines.append(f"{check.id} ({check.judgment}, {required}): {check.what}")
    for fault in embedding_faults.FAULTS:
        if name == fault.name:
            lines += [f"{fault.name}: {fault.looks}", fault.does]
            lines += [f"Reported as {fault.report}."] if fault.report else []
    if not lines:
        expected = "a clause, a check or a fault, as `xref list clauses|checks|faults` has them"
        raise stopped(errors.message("name", repr(name), expected, "explain"), 2)
    for line in lines:
        console().print(escape(line), soft_wrap=True, highlight=False)
