"""What the commands share of the terminal: where they print, the bar that shows how far they are, and how they stop."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["console", "progress_bar", "stopped"]


def console(*, stderr: bool = False) -> Console:
    """Return where a command prints."""
    made = Console(stderr=stderr)
    if not sys.stdout.isatty() or made.width < 1:
        made.width = 120  # a pipe has no width of its own, and a table cut to 80 columns would lose some
    return made


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar while the block runs; what it yields is told what runs next, how much is done, and of how much."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    on = console(stderr=True)
    # Without a terminal there is nothing to draw on: it would leave an empty line before an error's one.
    with Progress(*columns, console=on, transient=True, disable=not on.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def stopped(why: object, code: int) -> typer.Exit:
    """Say in one line why a command could not do what it was asked for, and return its end."""
    console(stderr=True).print(f"xref: {escape(str(why))}", soft_wrap=True, highlight=False)
    return typer.Exit(code)
