"""Calls that need nothing of an operator but its inputs and its rule: a verb is called, and its output is judged.

The script of an `Invocation` makes the plain call; where something is varied, such as a layout or a mode, it makes the
varied call after it, and the two are compared: what the plain call gets wrong is not blamed on the variation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.blocks import checksums
from xref.engine.compare import Exactly, Rule, mismatch
from xref.engine.evidence import Misformed, Reused, Rewritten, Shared
from xref.engine.layouts import contents
from xref.engine.steps import Died, Form, NotMade, Output, Put, Raised, Read, Replies, Reply, Run, Script, Step
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["Clauses", "Invocation", "judged_inputs", "judged_output", "unmade"]

_HELD = 6  # outputs that are looked at again at the end of a script


class Clauses(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that every call is judged by, whatever it is made for."""

    accuracy: dict[str, str]
    """By verb."""
    form: str
    """Shape, dtype and device of an output."""
    purity: str
    """Inputs keep their bits, outputs have memory of their own and keep theirs."""
    repeat: str
    """The same call again gives the same bits."""


def unmade(seen: Seen, reply: Reply, check: str, elements: int, *, what: str = "out") -> bool:
    """Record why there is no output, if there is none, as a failure of a check; return whether there is none."""
    if isinstance(reply, Output):
        return False
    if isinstance(reply, Raised):
        where = f" at {reply.where}" if reply.where else ""
        seen.fail(
            check, f"{what}: got {reply.line}{where}, expected a result", elements, evidence=reply, raised=reply.line
        )
    elif isinstance(reply, Died):
        message = f"process: got {reply.how}, expected a result"
        seen.fail(check, message, elements, evidence=reply, aborts=not reply.late)
    elif isinstance(reply, NotMade):
        seen.skipped[check] = reply.why
    return True


def judged_output(seen: Seen, reply: Reply, form: Form, check: str, clauses: Clauses) -> Bits | None:
    """Return the bits of an output of the right form; else record what is wrong, and return None."""
    elements = int(np.prod(form[0], dtype=np.int64))
    if unmade(seen, reply, check, elements) or not isinstance(reply, Output):
        return None
    if reply.form != form or reply.array is None:
        got, expected = (f"shape {shape}, {dtype}, on {device}" for shape, dtype, device in (reply.form, form))
        why = f", that cannot be read ({reply.unreadable})" if reply.unreadable else ""
        seen.fail(clauses.form, f"out: got {got}{why}, expected {expected}", evidence=Misformed(reply.form, form))
        return None
    seen.ok(clauses.form, elements)
    return reply.array


def judged_inputs(
    seen: Seen,
    script: Script,
    replies: Replies,
    names: tuple[str, ...],
    out: Reply,
    clauses: Clauses,
    title: str = "out",
) -> None:
    """Judge whether the inputs of a call have the bits they had, and its output memory of its own.

    `names` are the inputs, each read back by a `Read` step of that name; `title` is the output's in a message.
    """
    spans, elements = {}, 0
    for name in names:
        put = next(step for step in script.steps if step.name == name and isinstance(step, Put))
        reply = replies.of(name, Read)
        if isinstance(reply, NotMade | Died):
            return  # the call itself has said so
        if not isinstance(reply, Output) or reply.array is None:
            why = reply.line if isinstance(reply, Raised) else "no elements"
            seen.fail(
                clauses.purity,
                f"{name}: got {why} when read after the call, expected the same bits",
                evidence=Rewritten(name),
            )
            return
        before = put.array if put.checksums else contents(put.array, put.layout)
        same = checksums(reply.array) == put.checksums if put.checksums else np.array_equal(reply.array, before)
        if not same:
            what = "values" if put.dtype is None else "bits"
            message = f"{name}: got other {what} after the call, expected the same"
            seen.fail(clauses.purity, message, before.size, evidence=Rewritten(name))
            return
        elements += before.size
        if before.size:
            spans[name] = reply.memory
    if isinstance(out, Output) and out.array is not None and out.array.size:
        first, last = out.memory
        for name, (start, stop) in spans.items():
            if max(first, start) < min(last, stop):
                message = f"{title}: got memory of {name}, expected its own"
                seen.fail(clauses.purity, message, out.array.size, evidence=Shared(name))
                return
    seen.ok(clauses.purity, elements)


class Invocation(Call, frozen=True, kw_only=True):
    """A verb called with inputs, and judged by the operator's rule."""

    verb: str = "forward"
    dtype: str
    mode: str = ""
    """A transform, grad mode or setting of the framework that the verb is called in; empty: none."""
    repeats: int = 0
    """How many times the same call is made again: its bits must be the first one's."""

    clauses: ClassVar[Clauses]

    def inputs(self, exam: Exam) -> tuple[Put, ...]:
        """Return the verb's arguments in order, dense."""
        raise NotImplementedError

    def rule(self, script: Script) -> Rule:
        """Return what the output must be."""
        raise NotImplementedError

    def varied(self, inputs: tuple[Put, ...]) -> tuple[Put, ...]:
        """Return the same arguments as the varied call gets them: in other layouts."""
        return inputs

    def plain(self) -> Invocation:
        """Return the same call with nothing varied."""
        return msgspec.structs.replace(self, mode="")

    def condition(self) -> str:
        """Return the check that a varied call is judged by."""
        return self.check

    def refusable(self, exam: Exam) -> bool:
        """Return whether the subject may refuse the varied call: a transform of its framework; no golden may."""
        return self.mode in exam.traits.transforms and not exam.traits.golden

    def script(self, exam: Exam) -> Script:
        """Return the plain call, the varied one or the repeats, and the inputs read back."""
        inputs = self.inputs(exam)
        names = tuple(each.name for each in inputs)
        steps: list[Step] = [*inputs, Run(name="out", verb=self.verb, arguments=names)]
        varied = self.varied(inputs)
        reads = [Read(name=each.name, rows=each.rows) for each in inputs]
        if varied is not inputs or self.mode:
            steps += reads  # before they are put again: the varied call's inputs are others
            fresh = [msgspec.structs.replace(each, name=f"varied {each.name}", key="") for each in varied]
            names = tuple(each.name for each in fresh)
            reads = [Read(name=each.name, rows=each.rows) for each in fresh]
            may = self.refusable(exam)
            steps += [*fresh, Run(name="varied", verb=self.verb, arguments=names, mode=self.mode, refusable=may)]
        again = [f"out {n}" for n in range(1, self.repeats + 1)]
        steps += [Run(name=name, verb=self.verb, arguments=names) for name in again]
        steps += [*reads, *(Read(name=name) for name in self._held(again))]
        return Script(dtype=self.dtype, steps=tuple(steps))

    def _held(self, again: list[str]) -> list[str]:
        return ["out", *again][:_HELD] if again else []

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge form, bits and purity of every output; of repeats that they are alike, and stay what they were."""
        seen = Seen()
        rule = self.rule(script)
        form = (rule.shape, rule.fmt.name, exam.traits.device)
        accuracy = self.clauses.accuracy[self.verb]
        out = replies.of("out")
        got = judged_output(seen, out, form, accuracy, self.clauses)
        names = tuple(
            step.name for step in script.steps if isinstance(step, Put) and not step.name.startswith("varied")
        )
        if got is not None:
            judged_inputs(seen, script, replies, names, out, self.clauses)
            self.judge_bits(seen, got, rule, accuracy, script)
        plain = self.plain()
        for failure in seen.failures:
            failure.call = plain if plain != self else None
        if got is not None:
            seen.outputs[self.verb] = got
            self._judge_varied(seen, script, replies, got, form)
            self._judge_repeats(seen, replies, got, form)
        return seen

    def judge_bits(self, seen: Seen, got: Bits, rule: Rule, check: str, script: Script) -> None:
        """Judge the bits of the plain call's output."""
        miss = rule.miss(got)
        if miss is None:
            seen.ok(check, got.size)
        else:
            seen.fail(check, miss, got.size, evidence=self.evidence(script, got, rule))

    def evidence(self, script: Script, got: Bits, rule: Rule) -> Any:
        """Return what the operator's diagnosis needs of a wrong output."""
        return got, rule

    def suspects_of_variation(self) -> tuple[Suspect, ...]:
        """Return what it speaks for that the varied call is wrong and the plain one is not."""
        return ()

    def _judge_varied(self, seen: Seen, script: Script, replies: Replies, plain: Bits, form: Form) -> None:
        run = next((step for step in script.steps if step.name == "varied" and isinstance(step, Run)), None)
        if run is None:
            return
        # What the plain call gets wrong is not blamed on the variation: the two are compared with each other.
        suspects = () if seen.failures else self.suspects_of_variation()
        reply, check = replies.of("varied"), self.condition()
        refused = isinstance(reply, Raised) and reply.refused
        if refused or (run.refusable and isinstance(reply, Died) and reply.late):
            why = reply.line if isinstance(reply, Raised) else "no answer in time"
            seen.skipped[check] = f"{self.mode}: {why}"
        elif unmade(seen, reply, check, plain.size):
            for failure in seen.failures:
                failure.suspects = failure.suspects or (suspects if failure.check == check else ())
        else:
            got = judged_output(seen, reply, form, check, self.clauses)
            if got is not None:
                self._compare(seen, script, replies, Exactly(plain, FORMATS[form[1]]), got, suspects)

    def _compare(
        self, seen: Seen, script: Script, replies: Replies, rule: Exactly, got: Bits, suspects: tuple[Suspect, ...]
    ) -> None:
        """Compare the varied call's output with the plain one's, and judge the purity of its inputs."""
        miss, check = rule.miss(got), self.condition()
        if miss is not None:
            seen.fail(check, miss, got.size, *suspects, evidence=self.evidence(script, got, rule))
            return
        seen.ok(check, got.size)
        varied = [each.name for each in script.steps if isinstance(each, Put) and each.name.startswith("varied")]
        judged_inputs(seen, script, replies, tuple(varied), replies.of("varied"), self.clauses)

    def _judge_repeats(self, seen: Seen, replies: Replies, first: Bits, form: Form) -> None:
        if not self.repeats or any(isinstance(each.evidence, Rewritten) for each in seen.failures):
            return  # the later calls had other inputs
        runs = [replies.of(f"out {n}") for n in range(1, self.repeats + 1)]
        for number, reply in enumerate(runs, start=2):
            got = judged_output(seen, reply, form, self.clauses.repeat, self.clauses)
            miss = None if got is None else mismatch(got, first, FORMATS[form[1]])
            if got is None or miss is not None:
                if miss is not None:
                    seen.fail(self.clauses.repeat, f"{miss}, in call {number}", first.size)
                break
            seen.ok(self.clauses.repeat, first.size)
        self._judge_kept(seen, replies, ["out", *(f"out {n}" for n in range(1, self.repeats + 1))][:_HELD])

    def _judge_kept(self, seen: Seen, replies: Replies, names: list[str]) -> None:
        """Judge whether outputs are at the end what they were at first."""
        for name in names:
            first, later = replies.of(name), replies.of(name, Read)
            if not isinstance(first, Output) or not isinstance(later, Output) or first.array is None:
                continue
            if later.array is None or not np.array_equal(later.array, first.array):
                message = "out: got other bits after a later call, expected the same"
                seen.fail(self.clauses.purity, message, first.array.size, evidence=Reused())
                return

    def plainer(self) -> Iterator[Call]:
        """Yield the call without its mode, and with fewer repeats."""
        if self.mode:
            yield msgspec.structs.replace(self, mode="")
        for repeats in (0, 1):
            if repeats < self.repeats:
                yield msgspec.structs.replace(self, repeats=repeats)
