"""What the commands share of the terminal: where they print, the progress bar, and how they stop."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from xref import errors

__all__ = ["command", "console", "progress_bar", "stopped"]


def console(*, stderr: bool = False) -> Console:
    """Return where a command prints."""
    made = Console(stderr=stderr, emoji=False)  # `t2.py:x: got` holds no emoji's code
    if not sys.stdout.isatty() or made.width < 1:
        made.width = 120  # a pipe has no width of its own, and a table cut to 80 columns would lose some
    return made


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar while the block runs; yields what is called with the next step, how many are done, and of how many."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    on = console(stderr=True)
    # Without a terminal there is nothing to draw on: it would leave an empty line before an error's one.
    with Progress(*columns, console=on, transient=True, disable=not on.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda what, done, total: bar.update(task, description=escape(what), completed=done, total=total)


@contextlib.contextmanager
def command(name: str, interrupted: str) -> Iterator[None]:
    """Turn what stops a command into one line that names it, and into its exit code: 2, 3 or 130."""
    try:
        with errors.called(name):
            yield
    except errors.NothingComparedError as error:
        raise stopped(error, 3) from error
    except errors.XrefError as error:
        raise stopped(error, 2) from error
    except KeyboardInterrupt as error:
        raise stopped(f"interrupted: {interrupted}", 130) from error


def stopped(why: object, code: int) -> typer.Exit:
    """Print in one line why a command could not do what it was asked for, and return its exit."""
    console(stderr=True).print(f"xref: {escape(str(why))}", soft_wrap=True, highlight=False)
    return typer.Exit(code)
