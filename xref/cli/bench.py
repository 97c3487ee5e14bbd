"""The command `xref bench`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from xref import errors, operators
from xref.benching import bench as benching
from xref.benching.plot import check_plot, draw
from xref.benching.report import BenchReport, merged, read_report, show
from xref.cli.files import OutputFile, check_files, target_file
from xref.cli.options import Framework, JsonFile, MainDtypes, OneDevice, OperatorName
from xref.cli.terminal import command, console, progress_bar
from xref.engine.candidate import Candidate, candidate_of
from xref.engine.timing import DIRECTIONS
from xref.spec import Operator
from xref.targets import load_target

__all__ = ["bench"]

_SHOWN = (1, 64, 1024, 8192)
"""Tokens if none are named: a decode step of one sequence and of 64, a chunk of prefill, a training batch."""

_MOST = 2**31 - 1  # of an axis; JAX's are counted in 32 bits

Direction = enum.StrEnum("Direction", {name: name for name in DIRECTIONS})  # type: ignore[misc]


def bench(
    context: typer.Context,
    targets: Annotated[
        list[str] | None, typer.Argument(help="Kernels: pkg.mod:name or path/to/file.py:name.", metavar="TARGET")
    ] = None,
    device: OneDevice = "cpu",  # type: ignore[assignment]
    framework: Annotated[
        list[Framework] | None, typer.Option(help="Repeatable; all that are installed and have the device.")
    ] = None,
    dtype: MainDtypes = None,
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
    operator: OperatorName = "embedding",
    json: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bandwidth against tokens: a .svg or .png file.")] = None,
) -> None:
    """Measure goldens, the frameworks' own operators and kernels beside the machine's copy, forward and backward."""
    files = [OutputFile(option, path) for option, path in (("--json", json), ("--plot", plot)) if path is not None]
    with command("bench", "nothing was kept"):
        if plot is not None:
            check_plot(plot)
        check_files(files, [*map(target_file, targets or ()), *(earlier or ())])
        if earlier:
            _check_alone(context)
            found = merged([read_report(path) for path in earlier])
        else:
            options = benching.Options(
                framework=framework or (),
                device=device,
                dtype=dtype or ("bfloat16", "float32"),
                direction=direction or DIRECTIONS,
                tokens=tokens or _default_tokens(device, plotted=plot is not None),
                vocab=vocab,
                hidden=hidden,
                rounds=rounds,
                memory=memory,
            )
            known = operators.find(operator)
            benching.chosen(options.framework, device)  # before anybody's code is loaded
            with progress_bar() as progress:
                candidates = _candidates(known, targets or [], options)
                found = benching.bench(known, options, candidates, progress=progress)
        _finish(found, files)
    raise typer.Exit(0 if found.ok else 1)


def _default_tokens(device: str, *, plotted: bool) -> tuple[int, ...]:
    """Return the tokens if none are named; a CPU's backward of the largest takes many seconds."""
    most = 8192 if device == "cpu" else 131072
    return tuple(1 << power for power in range(most.bit_length())) if plotted else (*_SHOWN, *{most} - set(_SHOWN))


def _check_alone(context: typer.Context) -> None:
    """Raise if anything is asked of a run together with `--from`, which makes none."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in ("earlier", "json", "plot"):
            got = f"{parameter.opts[0] if parameter.param_type_name == 'option' else 'a TARGET'} with --from"
            expected = "--json and --plot alone: nothing is measured"
            raise errors.UsageError("xref bench", got, expected)


def _candidates(operator: Operator, targets: list[str], options: benching.Options) -> list[Candidate]:
    """Return the kernels, each of the one framework that is named, or of the one that is found to fit."""
    only = str(options.framework[0]) if len(options.framework) == 1 else None
    return [
        candidate_of(
            load_target(target),
            verbs=operator.verbs,
            trial=operator.trial(),
            framework=only,
            device=options.device,
            name=_short(target, targets),
        )
        for target in dict.fromkeys(targets)
    ]


def _short(target: str, targets: list[str]) -> str:
    """Return what a kernel is called: its name alone, unless another has the same."""
    name = target.rpartition(":")[2]
    return name if [each.rpartition(":")[2] for each in dict.fromkeys(targets)].count(name) == 1 else target


def _finish(found: BenchReport, files: list[OutputFile]) -> None:
    try:
        for file in files:
            file.write(found.to_json() + "\n" if file.option == "--json" else draw(found, file.path.suffix))
    finally:
        show(found, console())
