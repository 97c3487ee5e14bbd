"""The command line: `xref verify` and `xref doctor`.

Exit codes: 0 confirmed, 1 a clause failed, 2 wrong usage or environment, 3 nothing was compared, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from xref import __version__, doctor, errors
from xref.bits import FORMATS
from xref.judge import report as reports
from xref.judge.frameworks import FRAMEWORKS
from xref.judge.verify import DEVICES
from xref.judge.verify import verify as run_verify
from xref.spec import Tier

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The ground truth of the token embedding, confirmed bit for bit by two frameworks.",
)

FrameworkName = enum.StrEnum("FrameworkName", {name: name for name in FRAMEWORKS})  # type: ignore[misc]
DeviceKind = enum.StrEnum("DeviceKind", {name: name for name in DEVICES})  # type: ignore[misc]
TableDtype = enum.StrEnum("TableDtype", {name: name for name in FORMATS})  # type: ignore[misc]


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    if not sys.stdout.isatty() or console.width < 1:
        console.width = 120  # a pipe has no width of its own, and a table cut to 80 columns would lose some
    return console


@app.command()
def verify(
    tier: Annotated[Tier, typer.Option(help="How many cases; --weights has its own.")] = Tier.STANDARD,
    framework: Annotated[
        list[FrameworkName] | None,
        typer.Option(help="Run this one alone, held to the pinned digests (repeatable; both if not given)."),
    ] = None,
    device: Annotated[
        list[DeviceKind] | None, typer.Option(help="Kind of device (repeatable); auto: the CPU and what else there is.")
    ] = None,
    dtype: Annotated[list[TableDtype] | None, typer.Option(help="Table dtype (repeatable); all if not given.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file: verify on its table.")] = None,
    tensor: Annotated[str | None, typer.Option(help="The table's name in that file.")] = None,
    ids: Annotated[Path | None, typer.Option(help="Token ids for that table: .npy, or .txt with integers.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Confirm the goldens: torch and JAX against the exact answer and each other, bit for bit."""
    try:
        if json is not None:
            reports.check_writable(json, inputs=[path for path in (weights, ids) if path is not None])
        with _progress() as progress:
            report = run_verify(
                tier=tier,
                framework=tuple(framework or ()),
                device=tuple(device or ("auto",)),
                dtype=tuple(dtype or ()),
                weights_file=weights,
                tensor=tensor,
                ids_file=ids,
                progress=progress,
            )
        try:  # the file first, as the terminal may be gone; and if there is no file, the terminal all the same
            if json is not None:
                reports.write_json(report, json)
        finally:
            reports.show(report, _console())
    except errors.NothingComparedError as error:
        raise _stopped(error, 3) from error
    except errors.XrefError as error:
        raise _stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise _stopped("interrupted: nothing was confirmed", 130) from error
    raise typer.Exit(0 if report.ok else 1 if report.elements else 3)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar while the block runs; what it yields is told what runs next, how much is done, and of how much."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console = _console(stderr=True)
    # Without a terminal there is nothing to draw on: it would leave an empty line before an error's one.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _stopped(why: object, code: int) -> typer.Exit:
    _console(stderr=True).print(f"xref: {escape(str(why))}", soft_wrap=True, highlight=False)
    return typer.Exit(code)


@app.command("doctor")
def show_environment() -> None:
    """Show versions, devices and the settings that matter, and how to install what is missing."""
    _console().print(doctor.table())


@app.callback(invoke_without_command=True)
def _root(*, version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; where its output cannot be written, that is the environment's fault: exit 2."""
    try:
        app(prog_name="xref")
        sys.stdout.flush()
    except OSError as error:
        # Whatever is still in the buffer goes nowhere: Python would complain of it once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with contextlib.suppress(OSError):
            sys.stderr.write(f"xref: {errors.message('stdout', error.strerror, 'an open file or pipe', 'xref')}\n")
        sys.exit(2)
