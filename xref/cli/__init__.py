"""The command line: `xref verify`, `judge`, `bench`, `compile`, `list`, `explain` and `doctor`.

Exit codes: 0 confirmed, 1 a clause failed, 2 wrong usage or environment, 3 nothing was compared, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated

import typer

from xref import __version__, errors
from xref.cli import bench, compile, doctor, explain, judge, list, verify

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The ground truth of the token embedding, confirmed bit for bit by two frameworks.",
)
app.command("verify")(verify.verify)
app.command("doctor")(doctor.doctor)
app.command("judge")(judge.judge)
app.command("bench")(bench.bench)
app.command("compile")(compile.compile_)
app.command("list")(list.list_)
app.command("explain")(explain.explain)


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
