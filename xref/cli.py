"""The command line: `xref verify`, `judge`, `bench`, `compile`, `list`, `explain` and `doctor`.

Exit codes: 0 confirmed, 1 a clause failed, 2 wrong usage or environment, 3 nothing was compared, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from xref import __version__, cli_bench, cli_compile, cli_judge, doctor, errors
from xref.cli_options import DeviceOrAuto, Dtype, Framework
from xref.judge import report as reports
from xref.judge.verify import verify as run_verify
from xref.spec import Tier
from xref.terminal import console, progress_bar, stopped

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The ground truth of the token embedding, confirmed bit for bit by two frameworks.",
)


@app.command()
def verify(
    tier: Annotated[Tier, typer.Option(help="How many cases; --weights has its own.")] = Tier.STANDARD,
    framework: Annotated[
        list[Framework] | None,
        typer.Option(help="Run this one alone, held to the pinned digests (repeatable; both if not given)."),
    ] = None,
    device: Annotated[
        list[DeviceOrAuto] | None,
        typer.Option(help="Kind of device (repeatable); auto: the CPU and what else there is."),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="Table dtype (repeatable); all if not given.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A safetensors file: verify on its table.")] = None,
    tensor: Annotated[str | None, typer.Option(help="The table's name in that file.")] = None,
    ids: Annotated[Path | None, typer.Option(help="Token ids for that table: .npy, or .txt with integers.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
) -> None:
    """Confirm the goldens: torch and JAX against the exact answer and each other, bit for bit."""
    try:
        if json is not None:
            reports.check_writable(json, inputs=[path for path in (weights, ids) if path is not None])
        with progress_bar() as progress:
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
                reports.write_file(report.to_json() + "\n", json)
        finally:
            reports.show(report, console())
    except errors.NothingComparedError as error:
        raise stopped(error, 3) from error
    except errors.XrefError as error:
        raise stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise stopped("interrupted: nothing was confirmed", 130) from error
    raise typer.Exit(0 if report.ok else 1 if report.elements else 3)


@app.command("doctor")
def show_environment() -> None:
    """Show versions, devices and the settings that matter, and how to install what is missing."""
    console().print(doctor.table())


app.command("judge")(cli_judge.judge)
app.command("bench")(cli_bench.bench)
app.command("compile")(cli_compile.compile_)
app.command("list")(cli_judge.list_what)
app.command("explain")(cli_judge.explain)


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
        if error.errno == errno.ENOMEM:
            sys.stderr.write(f"xref: {errors.message('memory', error.strerror, 'less to be asked for', 'xref')}\n")
            sys.exit(2)
        # Whatever is still in the buffer goes nowhere: Python would complain of it once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with contextlib.suppress(OSError):
            sys.stderr.write(f"xref: {errors.message('stdout', error.strerror, 'an open file or pipe', 'xref')}\n")
        sys.exit(2)
