"""Calls one after another, of which each looks like an earlier one and is not: what was called before must not show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.calls import judged_output, unmade
from xref.engine.compare import mismatch
from xref.engine.evidence import Reused, Rewritten, Shared
from xref.engine.steps import (
    Done,
    Drop,
    NotMade,
    Output,
    Overwrite,
    Put,
    Raised,
    Read,
    Replies,
    Reply,
    Run,
    Script,
    Step,
)
from xref.inputs import Ids
from xref.operators.embedding import faults
from xref.operators.embedding.answers import exact_answer
from xref.operators.embedding.calls.forward import Forward, suspects_of
from xref.operators.embedding.clauses import result_dtype
from xref.operators.embedding.evidence import ForwardEvidence
from xref.operators.embedding.families import ids_of, table_of
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["CHECK", "NUMPY", "SCENARIOS", "History"]

CHECK = "EMB-7/history"
NUMPY = "NumPy arrays overwritten"
"""The scenario for frameworks whose own arrays cannot change: NumPy's can, where a kernel takes them."""

_MANY = 40
_HELD = 8  # outputs that are looked at again at the end


class History(Forward, frozen=True, kw_only=True, tag="history"):
    """A scenario: the plain call, and then others with other contents, in the same arrays or the same memory."""

    scenario: str
    """A key of `SCENARIOS`."""
    calls: int = 0
    """How many calls are made, the first ones of the scenario; 0: all."""

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.scenario}{f', {self.calls} calls' if self.calls else ''}"

    def condition(self) -> str:
        """Return the check of histories."""
        return CHECK

    def plain(self) -> Forward:
        """Return the first call, alone."""
        return Forward(**{name: getattr(self, name) for name in Forward.__struct_fields__})

    def put_table(self, name: str, offset: int, *, host: bool = False) -> Put:
        """Return the step that puts the table whose rows begin at an offset."""
        table, _ = table_of(self.table, self.vocab, self.hidden, self.dtype, self.offset + offset)
        return Put(name=name, array=table, dtype=self.dtype, host=host)

    def put_ids(self, name: str, family: str = "", *, host: bool = False) -> Put:
        """Return the step that puts the ids, or others of the same shape."""
        ids = ids_of(family, self.shape, self.vocab, self.id_dtype) if family else self.token_ids()
        return Put(name=name, array=ids, host=host)

    def run(self, name: str, ids: str = "token_ids", table: str = "weight") -> Run:
        """Return the step that makes a call."""
        return Run(name=name, verb=self.verb, arguments=(ids, table))

    def script(self, exam: Exam) -> Script:
        """Return the calls, then inputs and the first outputs read back."""
        steps: list[Step] = []
        made = 0
        for step in SCENARIOS[self.scenario](self):
            if self.calls and made == self.calls:
                break
            steps.append(step)
            made += isinstance(step, Run)
        dropped = {step.name for step in steps if isinstance(step, Drop)}
        inputs = [step.name for step in steps if isinstance(step, Put) and step.name not in dropped]
        outputs = [step.name for step in steps if isinstance(step, Run)][:_HELD]
        return Script(dtype=self.dtype, steps=(*steps, *(Read(name=name) for name in (*inputs, *outputs))))

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge each output by its exact answer, the first one by the clauses of a plain call."""
        seen = Seen()
        earlier: list[Bits] = []
        contents: dict[str, Bits | Ids] = {}
        runs: list[tuple[int, Ids, Bits]] = []
        for place, step in enumerate(script.steps):
            if isinstance(step, Put) or (isinstance(step, Overwrite) and isinstance(replies[place], Done)):
                contents[step.name] = step.array
            elif isinstance(step, Run):
                ids, table = (contents[str(name)] for name in step.arguments)
                runs.append((place, ids, table))
        self._judge_end(seen, script, replies, contents)
        if any(isinstance(each.evidence, Rewritten) for each in seen.failures):
            return seen  # the later calls had other inputs
        for place, ids, table in runs:
            if not self._judge_run(seen, replies[place], (ids, table), earlier, exam.traits.device):
                break
        return seen

    def _judge_run(self, seen: Seen, reply: Reply, inputs: tuple[Ids, Bits], earlier: list[Bits], device: str) -> bool:
        """Judge one output, and add what it must be to the earlier ones; return whether to go on."""
        first = not earlier
        due = exact_answer(self.verb, *inputs, self.dtype)
        fmt = FORMATS[result_dtype(self.verb, self.dtype)]
        check = self.clauses.accuracy[self.verb] if first else CHECK
        if isinstance(reply, NotMade):
            return True  # the framework cannot write into such an array
        if first and self.scenario == NUMPY and isinstance(reply, Raised):
            seen.skipped[CHECK] = f"{self.verb} of a NumPy table: {reply.line}"
            return False
        failures = len(seen.failures)
        got = None
        if not unmade(seen, reply, check, due.size):
            got = judged_output(seen, reply, (due.shape, fmt.name, device), check, self.clauses)
        miss = None if got is None else mismatch(got, due, fmt)
        if miss is not None and got is not None:
            call = self.plain()
            suspects = () if first else _suspects(got, due, earlier)
            seen.fail(check, miss, due.size, *suspects, evidence=ForwardEvidence(call, *inputs, got, due))
        elif got is not None:
            seen.ok(check, due.size)
        for failure in seen.failures[failures:]:
            failure.call = self.plain() if first else None
        earlier.append(due)
        return len(seen.failures) == failures

    def _judge_end(self, seen: Seen, script: Script, replies: Replies, contents: dict[str, Any]) -> None:
        """Judge that inputs are as they were last made, and outputs as they were, in memory of their own."""
        purity, elements = self.clauses.purity, 0
        first = {step.name: replies[n] for n, step in enumerate(script.steps) if isinstance(step, Run)}
        spans: dict[str, tuple[int, int]] = {}
        for place, step in enumerate(script.steps):
            reply = replies[place]
            if not isinstance(step, Read) or not isinstance(reply, Output) or reply.array is None:
                continue
            before = first.get(step.name)
            due = before.array if isinstance(before, Output) else contents.get(step.name)
            if due is None:
                continue
            elements += due.size
            if not np.array_equal(reply.array, due):
                if step.name in first:
                    message = "out: got other bits after a later call, expected the same"
                    seen.fail(purity, message, due.size, evidence=Reused())
                else:
                    message = f"{step.name}: got other values after the calls, expected the same"
                    seen.fail(purity, message, due.size, evidence=Rewritten(step.name))
                return
            if step.name not in first and due.size:
                spans[step.name] = reply.memory
        for out in first.values():
            for name, (start, stop) in spans.items():
                if isinstance(out, Output) and max(out.memory[0], start) < min(out.memory[1], stop):
                    message = f"out: got memory of {name}, expected its own"
                    seen.fail(purity, message, elements, evidence=Shared(name))
                    return
        seen.ok(purity, elements)

    def sizes(self) -> dict[str, int]:
        """Return the number of calls too."""
        whole = sum(isinstance(step, Run) for step in SCENARIOS[self.scenario](self))
        return {"calls": self.calls or whole, **super().sizes()}

    def resized(self, name: str, size: int) -> Call | None:
        """Return the scenario with fewer calls, or on smaller inputs."""
        return msgspec.structs.replace(self, calls=size) if name == "calls" else super().resized(name, size)


def _suspects(got: Bits, due: Bits, earlier: list[Bits]) -> tuple[Suspect, ...]:
    """Return a cache, where what is wrong are elements of earlier answers; or that the same call was right before."""
    call = len(earlier) + 1
    wrong = got != due
    if any(np.array_equal(got[wrong], each[wrong]) for each in earlier if each.shape == due.shape):
        return suspects_of((faults.STALE_CACHE,), 0.99, f"call {call} gives what an earlier call had to give")
    if any(np.array_equal(each, due) for each in earlier):
        return suspects_of(
            (faults.CALL_COUNT_DEPENDENT,), 0.6, f"the same call was right before, and call {call} is not"
        )
    return ()


def _other_tables(call: History) -> Iterator[Step]:
    """Other tables of the same shape, in turn."""
    yield call.put_ids("token_ids")
    for n in range(3):
        yield call.put_table(f"weight {n}", 1000 * n)
    for n, table in enumerate((0, 1, 0, 2, 1)):
        yield call.run(f"out {n}", table=f"weight {table}")


def _other_ids(call: History) -> Iterator[Step]:
    """Other ids of the same shape, in turn."""
    yield call.put_table("weight", 0)
    yield call.put_ids("token_ids 0")
    yield call.put_ids("token_ids 1", "reversed")
    for n, ids in enumerate((0, 1, 0)):
        yield call.run(f"out {n}", f"token_ids {ids}")


def _given_back(call: History) -> Iterator[Step]:
    """Arrays that are given back after each call, so that the next ones may lie in the same memory."""
    for n in range(8):
        yield call.put_ids(f"token_ids {n}")
        yield call.put_table(f"weight {n}", 5000 + n if n else 0)
        yield call.run(f"out {n}", f"token_ids {n}", f"weight {n}")
        yield Drop(name=f"token_ids {n}")
        yield Drop(name=f"weight {n}")


def _many(call: History) -> Iterator[Step]:
    """Many calls, and among them the first one again."""
    yield call.put_table("weight", 0)
    yield call.put_ids("token_ids 0")
    yield call.put_ids("token_ids 1", "last first")
    for n in range(_MANY):
        yield call.run(f"out {n}", f"token_ids {n % 2}")


def _overwritten(call: History, *, host: bool = False) -> Iterator[Step]:
    """The same arrays, whose contents change between the calls: a step of an optimizer, the next batch."""
    ids = call.put_ids("token_ids", host=host)
    yield ids
    yield call.put_table("weight", 0, host=host)
    yield call.run("out")
    if host:  # rows that are a slice of the table, of which NumPy would make a view
        yield call.put_ids("every id", "every", host=True)
        yield call.run("out of every id", "every id")
    moved = ids.array
    for n, counted in itertools.product(range(3), (True, False)):
        name = f"{n}{' counted' * counted}"
        rows = call.put_table("", 100 + 10 * n + counted).array.copy()
        yield Overwrite(name="weight", array=rows, counted=counted)
        yield call.run(f"out of other rows {name}")
        moved = (moved + 1) % np.asarray(call.vocab, moved.dtype)
        yield Overwrite(name="token_ids", array=moved, counted=counted)
        yield call.run(f"out of other ids {name}")


SCENARIOS: dict[str, Callable[[History], Iterator[Step]]] = {
    "other tables": _other_tables,
    "other ids": _other_ids,
    "arrays overwritten": _overwritten,
    NUMPY: lambda call: _overwritten(call, host=True),
    "arrays given back": _given_back,
    "many calls": _many,
}
"""By name: the steps of each, the first call on the plain ids and table."""
