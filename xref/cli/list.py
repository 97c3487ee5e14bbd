"""The command `xref list`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from xref import operators, registry
from xref.cli.terminal import command, console
from xref.spec import Operator, Tier

__all__ = ["list_"]

Row = tuple[str, ...]
_KINDS = ("clauses", "cases", "faults", "operators", "kernels", "checks")
Listed = enum.StrEnum("Listed", {name: name for name in _KINDS})  # type: ignore[misc]


def list_(what: Annotated[Listed, typer.Argument(help="What to list.")]) -> None:
    """List operators, their clauses, checks, cases and faults, or kernels of the registry."""
    headings, rows_of = _LISTS[what]
    with command("list", "nothing was listed"):
        rows = (
            _kernels()
            if rows_of is None
            else [row for name in operators.names() for row in rows_of(operators.find(name))]
        )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console().print(table)


def _clauses(operator: Operator) -> Iterable[Row]:
    return [(each.id, each.title, each.statement) for each in operator.clauses]


def _checks(operator: Operator) -> Iterable[Row]:
    return [(each.id, each.judgment, "yes" if each.required else "graded", each.text) for each in operator.checks]


def _faults(operator: Operator) -> Iterable[Row]:
    return [(each.name, each.looks, each.report) for each in operator.faults]


def _cases(operator: Operator) -> Iterable[Row]:
    """Return the fixed cases, of all modules that have some."""
    modules = [operator.module(name) for name in operator.modules if name.endswith("cases")]
    return [(each.call.id, str(each.tier)) for module in modules for each in module.cases(Tier.EXHAUSTIVE)]


def _operators(operator: Operator) -> Iterable[Row]:
    return [(operator.name, str(operator.version), ", ".join(operator.verbs), ", ".join(operator.goldens))]


def _kernels() -> Iterable[Row]:
    return [
        (each.name, each.op, each.framework, ", ".join(each.devices), str(each.priority), each.problem or each.origin)
        for each in registry.REGISTRY.backends()
    ]


_LISTS: dict[str, tuple[Row, Callable[[Operator], Iterable[Row]] | None]] = {
    "clauses": (("clause", "title", "what must hold"), _clauses),
    "checks": (("check", "judgment", "required", "what"), _checks),
    "cases": (("case", "tier"), _cases),
    "faults": (("fault", "looks", "report"), _faults),
    "operators": (("operator", "contract", "verbs", "goldens"), _operators),
    "kernels": (("kernel", "operator", "framework", "devices", "priority", "from"), None),
}
