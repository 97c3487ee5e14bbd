"""A report for people: one table, what went wrong, and a closing line; and its file, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from xref import errors
from xref.judge.verdict import Outcome, Report

__all__ = ["check_writable", "show", "write_file"]

_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "bold red", Outcome.ERROR: "bold red", Outcome.SKIP: "yellow"}
_SHOWN = 3  # problems of one verdict; the report's file has all


def show(report: Report, console: Console) -> None:
    """Print the verdicts as a table, the first problems of each that did not pass, the statement and the digest."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("clause", "framework", "device", "compared with", "cases", "elements", "verdict"):
        # Where the terminal is narrow, words go on in the next line; numbers and verdicts are never cut.
        number = heading in ("cases", "elements")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "verdict")
    for verdict in report.verdicts:
        style = _STYLES[verdict.outcome]
        table.add_row(
            f"{verdict.clause} {verdict.title}",
            verdict.framework,
            verdict.device,
            verdict.against,
            f"{verdict.cases:,}",
            f"{verdict.elements:,}",
            f"[{style}]{verdict.outcome}[/{style}]",
        )
    console.print(table)
    for verdict in report.verdicts:
        for problem in verdict.problems[:_SHOWN]:
            console.print(f"{verdict.clause}: {escape(problem)}", soft_wrap=True, highlight=False)
        if len(verdict.problems) > _SHOWN:
            console.print(f"{verdict.clause}: and {len(verdict.problems) - _SHOWN} more", highlight=False)
    console.print(escape(report.statement), soft_wrap=True, highlight=False)
    console.print(f"Digest of all outputs: {report.digest}", soft_wrap=True, highlight=False)


def check_writable(path: Path, *, inputs: Sequence[Path] = (), option: str = "--json", call: str = "verify") -> None:
    """Raise `UsageError` unless a file can be made at `path`: better before a run than after it.

    Tried by making the file that is later put in its place, and taking it away again.
    """

    def refused(got: object, expected: str) -> errors.UsageError:
        return errors.UsageError(errors.message(option, got, expected, call))

    try:
        target = path.resolve()
        if any(target == given.resolve() for given in inputs):
            raise refused(f"{path}, an input of this run", "another file")
        if path.is_dir():
            raise refused(f"{path}, a folder", "a file")
        if path.exists() and not path.is_file():  # such as /dev/null, which a file must not replace
            raise refused(f"{path}, a device or pipe", "a file")
        part = _part(target)
        part.touch()
        part.unlink()
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise refused(path, "a file in a folder that can be written") from error


def _part(path: Path) -> Path:
    """Return what a file is called until it is whole: beside it, and never a longer name than it may have."""
    return path.with_name(f".{os.getpid()}.part")


def write_file(content: str | bytes, path: Path, *, option: str = "--json", call: str = "verify") -> None:
    """Write a report's text or picture; an interrupted or failing write leaves what was there before.

    Raises:
        UsageError: the file cannot be written, such as on a full disk.
    """
    path = path.resolve()
    part = _part(path)
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError as error:
        got = f"{path}, which cannot be written ({error.strerror})"
        raise errors.UsageError(errors.message(option, got, "a file", call)) from error
    finally:
        part.unlink(missing_ok=True)
