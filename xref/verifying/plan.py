"""What a run of the goldens is made of: every check's calls, each once, and whose they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from xref.engine.examine import Subject
from xref.spec import Call, Check, Exam, Operator, Skip
from xref.verifying.ledger import Row
from xref.verifying.schedule import Worker

__all__ = ["Examined", "Performer", "Plan", "plan_of", "row_of"]


class Performer(Worker, Subject, Protocol):
    """A golden: a subject that may be called from several threads, or not."""


@dataclasses.dataclass(frozen=True)
class Examined:
    """A golden, and what is examined of it."""

    golden: Performer
    exam: Exam

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call it at once."""
        return self.golden.concurrent

    @property
    def where(self) -> tuple[str, str]:
        """Framework and device, as a verdict names them."""
        return self.exam.traits.framework, self.exam.traits.device


@dataclasses.dataclass
class Plan:
    """The calls in order, each with the goldens that make it; and the comparisons that must take place."""

    calls: dict[Call, list[Examined]] = dataclasses.field(default_factory=dict)
    expected: list[tuple[Row, str]] = dataclasses.field(default_factory=list)
    """Rows, each with the check of it."""

    def add(self, parts: Sequence[tuple[Examined, Sequence[Call]]]) -> None:
        """Add the goldens' calls of one check: each once, and those of one golden evenly among those of the others."""
        places: dict[Call, float] = {}
        whose: dict[Call, list[Examined]] = {}
        for examined, calls in parts:
            for n, call in enumerate(dict.fromkeys(calls)):
                places.setdefault(call, n / len(calls))
                whose.setdefault(call, []).append(examined)
        for call in sorted(whose, key=lambda call: places[call]):
            self.calls.setdefault(call, []).extend(whose[call])

    def expect(self, checks: Mapping[str, Check], parts: Sequence[tuple[Examined, Sequence[Call]]]) -> None:
        """Have something compared for each check that a golden makes a call for."""
        for examined, calls in parts:
            self.expected += [(row_of(checks[name], examined), name) for name in {call.check: None for call in calls}]

    def gather(self, inputs: Callable[[Call], str]) -> None:
        """Put calls together whose inputs have one name, where the first of them stands; without a name it stays."""
        groups: dict[str | Call, list[Call]] = {}
        for call in self.calls:
            groups.setdefault(inputs(call) or call, []).append(call)
        self.calls = {call: self.calls[call] for group in groups.values() for call in group}


def row_of(check: Check, examined: Examined) -> Row:
    """Return the row of a verdict that a check of a golden belongs to."""
    return Row(check.clause, *examined.where, check.against)


def plan_of(operator: Operator, goldens: Sequence[Examined]) -> Plan:
    """Return the calls of every check of an operator for every golden.

    A check that yields neither a call nor a reason why there is none is expected all the same, and so will be an error.
    One that every call is judged by is expected where another of its clause is made; a whole clause, where another of
    its judgment is.
    """
    plan = Plan()
    made: dict[tuple[str, str], set[str]] = {examined.where: set() for examined in goldens}
    with_calls = [check for check in operator.checks if check.calls is not None]
    for check in with_calls:
        parts = []
        for examined in goldens:
            items = list(check.calls(examined.exam)) if check.calls is not None else []
            calls = [item for item in items if not isinstance(item, Skip)]
            parts.append((examined, calls))
            if len(calls) == len(items):  # otherwise there is a reason
                plan.expected.append((row_of(check, examined), check.id))
                made[examined.where].add(check.id)
        plan.add(parts)
    for check in [check for check in operator.checks if check.calls is None]:
        siblings = [each for each in with_calls if each.clause == check.clause]
        if not siblings and not check.condition:
            siblings = [each for each in with_calls if each.judgment == check.judgment]
        for examined in goldens:
            if any(each.id in made[examined.where] for each in siblings):
                plan.expected.append((row_of(check, examined), check.id))
    return plan
