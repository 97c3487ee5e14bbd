"""What `xref compile` has found, as a record and as a table: a program's memory, and whether it only copies."""

from __future__ import annotations

import msgspec
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["GRADIENT", "CompileReport", "CompiledProgram", "show"]

GRADIENT = "gradient"
"""What is compiled beside the verbs: the gradient of the first of them."""
_MEGA = 1e6


class CompiledProgram(msgspec.Struct, kw_only=True):
    """One program, compiled."""

    verb: str
    dtype: str
    where: str
    """A topology of TPUs, or a kind of device."""
    temporaries: int = 0
    """Bytes."""
    output: int = 0
    """Bytes."""
    growth: float = 0.0
    """Bytes by which the temporaries grow with each row of the table."""
    limit: float = 0.0
    """What that growth must stay below: one bit an element."""
    operations: list[str] = []
    """What the table's elements go through to the output; of a gradient, none."""
    reasons: list[str] = []
    """Why that is not proven to be a copy."""
    problem: str = ""
    """Why there is no program."""

    @property
    def copies(self) -> str:
        """Whether the output is a pure copy: `proven`, `not proven`, or nothing where it need not be one."""
        if self.problem or (self.verb == GRADIENT and not self.reasons):
            return ""
        return "not proven" if self.reasons else "proven"

    @property
    def grows(self) -> bool:
        """Whether a temporary has the table's size."""
        return self.growth >= self.limit

    @property
    def ok(self) -> bool:
        """Whether it is a copy, where it has to be one, without a temporary of the table's size."""
        return not (self.problem or self.reasons or self.grows)


class CompileReport(msgspec.Struct, kw_only=True):
    """All programs of one kernel."""

    xref: str
    candidate: str
    jax: str
    compiler: str
    """Version of the `libtpu` package; empty where it was not used."""
    vocab: int
    hidden: int
    tokens: int
    programs: list[CompiledProgram]

    @property
    def ok(self) -> bool:
        """Whether every program is as it must be; none at all is not."""
        return bool(self.programs) and all(program.ok for program in self.programs)

    def to_json(self) -> str:
        """Return the report as JSON."""
        programs = [
            {**msgspec.to_builtins(program), "copies": program.copies, "ok": program.ok} for program in self.programs
        ]
        record = {**msgspec.to_builtins(self), "ok": self.ok, "programs": programs}
        return msgspec.json.format(msgspec.json.encode(record)).decode()


def show(report: CompileReport, console: Console) -> None:
    """Print a row for each program, what the table's elements go through in it, and a closing line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("for", "verb", "table", "temporaries", "output", "of the table's size", "copy"):
        number = heading in ("temporaries", "output", "of the table's size")
        table.add_column(heading, justify="right" if number else "left")
    flows: dict[tuple[str, str], list[str]] = {}
    for program in report.programs:
        table.add_row(*map(escape, _row(program)))
        flows.setdefault((f"{program.verb} {program.dtype}", _flow(program)), []).append(program.where)
    console.print(table)
    for (what, flow), places in flows.items():
        if flow:
            console.print(escape(f"{what} for {', '.join(places)}:\n  {flow}"), soft_wrap=True, highlight=False)
    console.print(escape(_statement(report)), soft_wrap=True)


def _statement(report: CompileReport) -> str:
    copies = "copies, " if any(program.verb != GRADIENT for program in report.programs) else ""
    verdict = f"{copies}without a temporary of the table's size" if report.ok else "not all as they must be"
    libtpu = f", libtpu {report.compiler}" if report.compiler else ""
    shape = f"[{report.vocab}, {report.hidden}] table, {report.tokens} ids"
    return f"{report.candidate}: {verdict}: {shape}, jax {report.jax}{libtpu}."


def _row(program: CompiledProgram) -> tuple[str, ...]:
    head = program.where, program.verb, program.dtype
    if program.problem:
        return (*head, "", "", "", "no program")
    size = "yes" if program.grows else "none"
    return (*head, f"{program.temporaries / _MEGA:.1f} MB", f"{program.output / _MEGA:.1f} MB", size, program.copies)


def _flow(program: CompiledProgram) -> str:
    """Return what there is to say of how the table's elements come to the output."""
    if program.problem:
        return program.problem
    why = f" (not proven: {', '.join(program.reasons)})" if program.reasons else ""
    return " > ".join(program.operations) + why
