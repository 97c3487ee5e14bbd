"""A plan carried out: every golden makes its calls, each output is judged, and outputs of one call are compared."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Mapping
from typing import Any

from xref.bits import FORMATS
from xref.engine.compare import mismatch
from xref.engine.examine import Progress
from xref.engine.steps import Output, Put, Raised, Replies, Script
from xref.spec import Call, Operator, Seen
from xref.verifying.ledger import Ledger, Row
from xref.verifying.plan import Examined, Plan, row_of
from xref.verifying.schedule import Step, run_steps

__all__ = ["FIXTURES", "Run"]

FIXTURES = "fixtures"
"""The clause-like name under which inputs are compared with the pinned digests."""

_PINNED = Row(FIXTURES, "numpy", "cpu", "pinned digests")


@dataclasses.dataclass(frozen=True)
class _Made:
    """What a call came to with one golden."""

    seen: Seen
    dtypes: Mapping[str, str]
    """Of the outputs, by verb."""


class Run:
    """One run of the goldens.

    Args:
        operator: whose contract.
        plan: the calls, and whose they are.
        names: names of calls that lines of the digest begin with; None: those under which digests are pinned.
    """

    def __init__(self, operator: Operator, plan: Plan, names: Mapping[Call, str] | None = None) -> None:
        self._plan = plan
        self._checks = {check.id: check for check in operator.checks}
        self._pins = operator.module("pinned") if "pinned" in operator.modules else None
        self._pinned = self._pins is not None and names is None
        if names is None:
            names = {call: self._pins.name_of(call) for call in plan.calls} if self._pins is not None else {}
        self._names = names
        plan.gather(lambda call: self._large(call) or self._names.get(call, ""))
        titles = {FIXTURES: "inputs as pinned"} | {clause.id: clause.title for clause in operator.clauses}
        self.ledger = Ledger(titles, map(str, plan.calls))
        self.digest = ""
        self.outputs = 0
        """Elements of outputs that were as the exact answer has them."""
        self._answers: dict[str, Mapping[str, str]] = {}  # digests by verb, by name of a call

    def make(self, progress: Progress | None = None) -> None:
        """Make all calls, and fill the ledger."""
        for row, check in self._plan.expected:
            self.ledger.expect(row, check)
        steps = [self._step(call, goldens) for call, goldens in self._plan.calls.items()]
        with warnings.catch_warnings():
            # A framework's warnings of its own insides (Dynamo makes objects of autograd functions) are no verdict, nor
            # an error where warnings are. Said here: filters are the process's, and the threads of the run share them.
            warnings.simplefilter("ignore", DeprecationWarning)
            lines = run_steps(steps, progress)
        self.digest = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

    def _step(self, call: Call, goldens: list[Examined]) -> Step:
        name = self._names.get(call, "")
        first = bool(name) and self._pinned and name not in self._answers
        if first:
            self._answers[name] = {}
        if name:
            for other in goldens[1:]:
                self.ledger.expect(self._beside(call, goldens[0], other))
        return Step(
            str(call),
            goldens,
            functools.partial(self._prepare, call, goldens, name if first else ""),
            functools.partial(self._examine, call),
            functools.partial(self._finish, call, goldens, name),
            self._large(call),
        )

    def _large(self, call: Call) -> str:
        return "" if self._pins is None else str(self._pins.large_table(call))

    def _beside(self, call: Call, first: Examined, other: Examined) -> Row:
        return Row(self._checks[call.check].clause, *other.where, "/".join(first.where))

    def _prepare(self, call: Call, goldens: list[Examined], name: str) -> dict[tuple[str, str], Script]:
        """Return the scripts of a call, and compare its inputs with the digests that are pinned under a name."""
        scripts = {examined.where: call.script(examined.exam) for examined in goldens}
        if name and self._pins is not None:
            made, expected = self._pins.digests_of(call), self._pins.pinned().get(name)
            problem = f"{name}: got {made}, expected {expected or 'nothing pinned'}" if made != expected else ""
            problem = problem or self._pins.weakness_of(call)
            puts = [step for step in next(iter(scripts.values())).steps if isinstance(step, Put)]
            told = f"{problem} [build {name}]" if problem else ""
            self.ledger.record(_PINNED, elements=sum(put.array.size for put in puts), problem=told, step=str(call))
            self._answers[name] = made.answers
        return scripts

    def _examine(self, call: Call, scripts: Mapping[tuple[str, str], Script], examined: Examined) -> _Made:
        script = scripts[examined.where]
        replies = examined.golden.perform(script)
        seen = call.judge(script, replies, examined.exam)
        self._note(call, seen, examined)
        if seen.failures:
            examined.golden.forget()  # a kept table may be the worse for it
        dtypes = {verb: _dtype_of(got, replies) for verb, got in seen.outputs.items()}
        # Copied, as the golden may hand out the same memory again.
        seen.outputs = {verb: got.copy() for verb, got in seen.outputs.items()} if self._compared(call) else {}
        return _Made(seen, dtypes)

    def _compared(self, call: Call) -> bool:
        """Return whether outputs of a call are compared across goldens: those that exact answers judge."""
        return self._checks[call.check].against == "exact"

    def _note(self, call: Call, seen: Seen, examined: Examined) -> None:
        """Add what a call showed to the rows of the checks concerned."""
        step, failed = str(call), {failure.check for failure in seen.failures}
        for name in seen.passed.keys() - failed:
            row = row_of(self._checks[name], examined)
            self.ledger.record(row, elements=seen.passed[name], step=step, check=name)
        for failure in seen.failures:
            row = row_of(self._checks[failure.check], examined)
            problem = f"{failure.message} [{' on '.join(examined.where)}, {failure.call or call}]"
            if isinstance(failure.evidence, Raised):
                self.ledger.error(row, problem, step=step)
            else:
                self.ledger.record(row, elements=failure.elements, problem=problem, step=step, check=failure.check)
        for name, reason in seen.skipped.items():  # nothing is optional in a golden
            problem = f"{name}: got none ({reason}), expected a result [{' on '.join(examined.where)}, {call}]"
            self.ledger.error(row_of(self._checks[name], examined), problem, step=step)

    def _finish(self, call: Call, goldens: list[Examined], name: str, scripts: Any, made: list[_Made]) -> set[str]:
        """Compare what came of each golden with the first's; return the lines of all outputs of a named call."""
        lines = set()
        for n, (examined, each) in enumerate(zip(goldens, made, strict=True)):
            right = not each.seen.failures
            for verb, got in each.seen.outputs.items():
                self.outputs += got.size if right else 0
                if n:
                    self._compare(call, (goldens[0], made[0]), (examined, each), verb)
                if name and self._pins is not None:
                    digest = self._answers.get(name, {}).get(verb) if right else None
                    lines.add(f"{name} {verb} {digest or self._pins.digest_of(call, got)}")
        return lines

    def _compare(self, call: Call, first: tuple[Examined, _Made], second: tuple[Examined, _Made], verb: str) -> None:
        (one, expected), (other, got) = first, second
        if verb not in expected.seen.outputs:
            return  # it has said why
        miss = mismatch(got.seen.outputs[verb], expected.seen.outputs[verb], FORMATS[got.dtypes[verb]])
        problem = f"{miss} [{other.where[0]} and {one.where[0]} {verb}, {call}]" if miss is not None else ""
        elements = got.seen.outputs[verb].size
        self.ledger.record(self._beside(call, one, other), elements=elements, problem=problem, step=str(call))


def _dtype_of(got: Any, replies: Replies) -> str:
    """Return the dtype of an output among the replies."""
    return next(reply.form[1] for reply in replies.replies if isinstance(reply, Output) and reply.array is got)
