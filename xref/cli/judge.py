"""The command `xref judge`."""

from __future__ import annotations

import contextlib
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from xref import errors, operators
from xref.cli.files import OutputFile, check_files, target_file
from xref.cli.options import Dtype, Dtypes, Framework, JsonFile, OneDevice, OperatorName
from xref.cli.terminal import command, console, progress_bar
from xref.judging import present
from xref.judging.judge import Judge, stand_for
from xref.judging.options import Options, OptionsDict, checked
from xref.judging.report import JudgeReport
from xref.judging.settings import with_settings
from xref.spec import Operator, Tier

__all__ = ["judge"]


def judge(
    target: Annotated[str, typer.Argument(help="pkg.mod:name or path/to/file.py:name.")],
    framework: Annotated[Framework | None, typer.Option(help="Found out if not given.")] = None,
    device: OneDevice = "cpu",  # type: ignore[assignment]
    tier: Annotated[Tier, typer.Option(help="How much to run.")] = Tier.STANDARD,
    dtype: Dtypes = None,
    accumulate: Annotated[Dtype, typer.Option(help="Format in which the kernel sums its gradient.")] = "float32",  # type: ignore[assignment]
    out_of_range: Annotated[
        str | None, typer.Option(help="What it promises of such ids: raise, poison, unchecked; raise if not given.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="A check or clause that is only graded otherwise.")] = None,
    expect_fail: Annotated[list[str] | None, typer.Option(help='CHECK="reason": known to fail; strict.')] = None,
    only: Annotated[str | None, typer.Option(help="Make one call again, from a report's record.")] = None,
    json: JsonFile = None,
    junit: Annotated[Path | None, typer.Option(help="Write it as JUnit's XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write it as Markdown, such as for a CI job's summary.")] = None,
    operator: OperatorName = "embedding",
) -> None:
    """Judge a kernel: every clause, every condition, and what a failure is consistent with."""
    named = {"--json": json, "--junit": junit, "--markdown": markdown}
    files = [
        OutputFile(option, path, appended=option == "--markdown") for option, path in named.items() if path is not None
    ]
    asked: dict[str, Any] = {
        "framework": framework,
        "device": device,
        "tier": tier,
        "dtype": tuple(dtype or ()),
        "accumulate": accumulate,
        "out_of_range": out_of_range,
        "require": tuple(require or ()),
        "only": only,
    }
    with command("judge", "nothing was judged"):
        asked["expect_fail"] = dict(map(_reason, expect_fail or ()))
        known = cast(OptionsDict, {name: value for name, value in asked.items() if value is not None})
        found = operators.find(operator)
        check_files(files, [target_file(target)])
        report = _judged(found, target, checked(found, "judge", with_settings(found, known)))
        _finish(report, target, files)
    if report.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if report.ok else 3 if report.nothing else 1)


def _judged(operator: Operator, target: str, options: Options) -> JudgeReport:
    """Judge a target in a process of its own; of a run that is interrupted, return what there is by then.

    Raises:
        KeyboardInterrupt: before anything was judged.
        UsageError: as `stand_for` raises it, or the one call that is asked for is none.
    """
    with _terminable(), progress_bar() as progress, stand_for(operator, target, options) as stand:
        judging = Judge(operator, stand, options)
        try:
            judging.run(progress)
            return judging.report(in_process=False)
        except KeyboardInterrupt:
            report = judging.report(in_process=False, interrupted=True)
            if not report.verdicts:
                raise
            return report
        finally:
            judging.examination.close()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM, which a CI job's time limit sends, end the block as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _finish(report: JudgeReport, target: str, files: list[OutputFile]) -> None:
    """Write and show a report; its records become commands that make the call again."""
    again = ["xref", "judge", target, "--framework", report.framework, "--device", report.device]
    again += ["--operator", report.operator] if report.operator != "embedding" else []
    again += ["--accumulate", report.accumulate] if report.accumulate != "float32" else []
    again += ["--out-of-range", report.out_of_range] if report.out_of_range != "raise" else []
    for verdict in report.verdicts:
        if verdict.rerun:
            verdict.rerun = shlex.join([*again, "--only", verdict.rerun])
    texts = {
        "--json": report.to_json() + "\n",
        "--junit": present.to_junit(report),
        "--markdown": report.to_markdown(),
    }
    try:
        for file in files:
            file.write(texts[file.option])
    finally:
        present.show(report, console())


def _reason(text: str) -> tuple[str, str]:
    check, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise errors.UsageError("--expect-fail", repr(text), 'CHECK="reason"')
    return check, reason.strip()
