"""The command `xref judge`."""

from __future__ import annotations

import enum
import shlex
from pathlib import Path
from typing import Annotated

import typer

from xref import errors
from xref.cli.files import OutputFile, check_files, target_file
from xref.cli.options import Dtype, Dtypes, Framework, JsonFile, OneDevice
from xref.cli.settings import read_settings
from xref.cli.terminal import command, console, progress_bar
from xref.judge import judged_report
from xref.judge.conduct import OUT_OF_RANGE
from xref.judge.judged import JudgeReport
from xref.judge.worker import Options, supervised
from xref.spec import Tier

__all__ = ["judge"]

BadIds = enum.StrEnum("BadIds", {name: name for name in OUT_OF_RANGE})  # type: ignore[misc]


def judge(
    target: Annotated[str, typer.Argument(help="pkg.mod:name or path/to/file.py:name.")],
    framework: Annotated[Framework | None, typer.Option(help="Found out if not given.")] = None,
    device: OneDevice = "cpu",  # type: ignore[assignment]
    tier: Annotated[Tier, typer.Option(help="How much to run.")] = Tier.STANDARD,
    dtype: Dtypes = None,
    accumulate: Annotated[Dtype, typer.Option(help="Format in which the kernel sums its gradient.")] = "float32",  # type: ignore[assignment]
    out_of_range: Annotated[
        BadIds | None, typer.Option(help="What it promises of such ids; raise if not given.")
    ] = None,
    require: Annotated[list[str] | None, typer.Option(help="A check or clause that is only graded otherwise.")] = None,
    expect_fail: Annotated[list[str] | None, typer.Option(help='CHECK="reason": known to fail; strict.')] = None,
    only: Annotated[str | None, typer.Option(help="Make one call again, from a report's record.")] = None,
    json: JsonFile = None,
    junit: Annotated[Path | None, typer.Option(help="Write it as JUnit's XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write it as Markdown, such as for a CI job's summary.")] = None,
) -> None:
    """Judge a kernel: every clause, every condition, and what a failure is consistent with."""
    named = {"--json": json, "--junit": junit, "--markdown": markdown}
    files = [
        OutputFile(option, path, appended=option == "--markdown") for option, path in named.items() if path is not None
    ]
    with command("judge", "nothing was judged"):
        settings = read_settings(Path("pyproject.toml"), OUT_OF_RANGE)
        check_files(files, [target_file(target)])
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
    raise typer.Exit(0 if found.ok else 3 if found.nothing else 1)


def _finish(found: JudgeReport, target: str, files: list[OutputFile]) -> None:
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
        for file in files:
            file.write(texts[file.option])
    finally:
        judged_report.show(found, console())


def _reason(text: str) -> tuple[str, str]:
    check, equals, reason = text.partition("=")
    if not equals or not reason.strip():
        raise errors.UsageError("--expect-fail", repr(text), 'CHECK="reason"')
    return check, reason.strip()
