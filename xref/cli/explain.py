"""The command `xref explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape

from xref import errors, operators
from xref.cli.terminal import command, console
from xref.spec import Operator

__all__ = ["explain"]


def explain(
    name: Annotated[str, typer.Argument(help="A clause, a check or a fault: EMB-7, EMB-7/padding, ids-clamped.")],
) -> None:
    """Explain a clause, a check or a fault."""
    with command("explain", "nothing was explained"):
        lines = [line for each in operators.names() for line in _lines(operators.find(each), name)]
        if not lines:
            expected = "a clause, a check or a fault, as `xref list clauses|checks|faults` has them"
            raise errors.UsageError("name", repr(name), expected)
    for line in lines:
        console().print(escape(line), soft_wrap=True, highlight=False)


def _lines(operator: Operator, name: str) -> Iterator[str]:
    for clause in operator.clauses:
        if name in (clause.id, clause.title):
            yield f"{clause.id} {clause.title}: {clause.statement}"
    for check in operator.checks:
        if name in (check.id, check.clause):
            required = "required" if check.required else "graded, unless --require asks for it"
            yield f"{check.id} ({check.judgment}, {required}): {check.text}"
    for fault in operator.faults:
        if name == fault.name:
            yield from (f"{fault.name}: {fault.looks}", fault.does)
            if fault.report:
                yield f"Reported as {fault.report}."
