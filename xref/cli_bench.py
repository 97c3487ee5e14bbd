"""The command `xref bench`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from xref import errors
from xref.cli_options import Device, Dtype, Framework
from xref.judge import report, speed
from xref.judge.candidate import Candidate, candidate_of
from xref.judge.contenders import DIRECTIONS
from xref.judge.speed_plot import check_plot, draw
from xref.judge.speed_report import BenchReport, merged, read_report, show
from xref.targets import load_target
from xref.terminal import console, progress_bar, stopped

__all__ = ["bench"]

_CALL = "bench"
_SHOWN = (1, 64, 1024, 8192)
"""Tokens if none are named: a decode step of one sequence and of 64, a chunk of prefill, a training batch."""

_MOST = 2**31 - 1  # of an axis; JAX's are counted in 32 bits

Direction = enum.StrEnum("Direction", {name: name for name in DIRECTIONS})  # type: ignore[misc]


def bench(
    context: typer.Context,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Kernels: pkg.mod:name or path/to/file.py:name.", metavar="TARGET")
    ] = None,
    device: Annotated[Device, typer.Option(help="Kind of device; an absent one is an error.")] = "cpu",  # type: ignore[assignment]
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Repeatable; all that are installed and have the device.")
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Table dtype (repeatable); bfloat16 and float32.")] = None,
    direction: Annotated[list[Direction] | None, typer.Option(help="Repeatable; both.")] = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=_MOST,
            help="T, ids in a call (repeatable). Else 1, 64, 1024, 8192 and, but for a CPU, 131072; with --plot every"
            " power of two up to the last.",
        ),
    ] = None,
    vocab: Annotated[int, typer.Option(min=1, max=_MOST, help="V, rows of the table.")] = 151936,
    hidden: Annotated[int, typer.Option(min=1, max=_MOST, help="H, elements of a row.")] = 4096,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each; the figure is their median.")] = 7,
    memory: Annotated[bool, typer.Option("--memory", help="Measure peak memory, too.")] = False,  # noqa: FBT002
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", help="Show this report, or these of one machine as one (repeatable); nothing is measured."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bandwidth against tokens: a .svg or .png file.")] = None,
) -> None:
    """Measure goldens, the frameworks' own operators and kernels beside the machine's copy, forward and backward."""
    try:
        _check_files([*map(_file_of, targets or ()), *(earlier or ())], json, plot)
        if earlier:
            _check_alone(context)
            found = merged([read_report(path, _CALL) for path in earlier], _CALL)
        else:
            speed.chosen(framework or (), device)  # before anybody's code is loaded
            with progress_bar() as progress:
                found = speed.bench(
                    _candidates(targets or [], framework or [], device),
                    framework=framework or (),
                    device=device,
                    dtype=dtype or ("bfloat16", "float32"),
                    direction=direction or DIRECTIONS,
                    tokens=tokens or _default_tokens(device, plotted=plot is not None),
                    vocab=vocab,
                    hidden=hidden,
                    rounds=rounds,
                    memory=memory,
                    progress=progress,
                )
        _finish(found, json, plot)
    except errors.XrefError as error:
        raise stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise stopped("interrupted: nothing was kept", 130) from error
    raise typer.Exit(0 if found.ok else 1)


def _default_tokens(device: str, *, plotted: bool) -> tuple[int, ...]:
    """Return the tokens if none are named; a CPU's backward of the largest takes many seconds."""
    most = 8192 if device == "cpu" else 131072
    return tuple(1 << power for power in range(most.bit_length())) if plotted else (*_SHOWN, *{most} - set(_SHOWN))


def _file_of(target: str) -> Path:
    return Path(target.rpartition(":")[0])  # a file, or no path at all


def _check_files(inputs: list[Path], json: Path | None, plot: Path | None) -> None:
    """Raise before the run if a file cannot be written after it, or is one of those that the run is about."""
    if json is not None:
        report.check_writable(json, inputs=inputs, call=_CALL)
        inputs = [*inputs, json]
    if plot is not None:
        check_plot(plot, _CALL)
        report.check_writable(plot, inputs=inputs, option="--plot", call=_CALL)


def _check_alone(context: typer.Context) -> None:
    """Raise if anything is asked of a run together with `--from`, which makes none."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("earlier", "json", "plot"):
            got = f"{parameter.opts[0] if parameter.param_type_name == 'option' else 'a TARGET'} with --from"
            expected = "--json and --plot alone: nothing is measured"
            raise errors.UsageError(errors.message("xref bench", got, expected, _CALL))


def _candidates(targets: list[str], named: list[Framework], device: str) -> list[Candidate]:
    """Return the kernels, each of the one framework that is named, or of the one that is found to fit."""
    only = str(named[0]) if len(named) == 1 else None
    return [
        candidate_of(load_target(target, _CALL), framework=only, device=device, name=_short(target, targets))
        for target in dict.fromkeys(targets)
    ]


def _short(target: str, targets: list[str]) -> str:
    """Return what a kernel is called: its name alone, unless another has the same."""
    name = target.rpartition(":")[2]
    return name if [each.rpartition(":")[2] for each in dict.fromkeys(targets)].count(name) == 1 else target


def _finish(found: BenchReport, json: Path | None, plot: Path | None) -> None:
    try:
        if json is not None:
            report.write_file(found.to_json() + "\n", json, call=_CALL)
        if plot is not None:
            report.write_file(draw(found, plot.suffix, _CALL), plot, option="--plot", call=_CALL)
    finally:
        show(found, console())
