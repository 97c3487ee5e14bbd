"""Batches that surround the tokens of a call with others: the call alone is what they are compared with."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.calls import judged_output, unmade
from xref.engine.compare import mismatch
from xref.engine.conditions import PLANS, Batch, Group, among, restore
from xref.engine.evidence import Rewritten
from xref.engine.layouts import DENSE
from xref.engine.steps import Output, Put, Replies, Reply, Run, Script, Step
from xref.operators.embedding import faults
from xref.operators.embedding.answers import exact_answer
from xref.operators.embedding.calls.forward import Forward, arrays_of, suspects_of
from xref.operators.embedding.clauses import result_dtype
from xref.operators.embedding.evidence import ForwardEvidence
from xref.spec import Call, Exam, Fault, Seen, Suspect

__all__ = ["Batches"]

_PLAN_FAULTS: dict[str, tuple[Fault, ...]] = {
    "population": (faults.OTHER_PATH_BY_BATCH_SIZE,),
    "position": (faults.POSITION_DEPENDENT,),
    "neighbours": (faults.NEIGHBOUR_DEPENDENT,),
    "padding": (faults.POSITION_DEPENDENT, faults.NEIGHBOUR_DEPENDENT),
    "layout": (),
    "chunked": (faults.OTHER_PATH_BY_BATCH_SIZE,),
    "decode": (faults.OTHER_PATH_BY_BATCH_SIZE,),
    "permuted": (faults.POSITION_DEPENDENT, faults.NEIGHBOUR_DEPENDENT),
}


class Batches(Forward, frozen=True, kw_only=True, tag="batches"):
    """The plain call, and then batches that together have its tokens, each once, among others or in another order."""

    plan: str
    """A key of `xref.engine.conditions.PLANS`, and what follows `EMB-7/` in the check's id."""
    group: int = 0
    """Which of the plan's groups of batches."""
    among: int = 0
    """Tokens of one batch that holds all of the ids and strangers, in place of the plan's groups; 0: none."""

    def __str__(self) -> str:
        how = f"among {self.among} tokens" if self.among else f"group {self.group}"
        return f"{super().__str__()}, condition {self.plan}, {how}"

    def condition(self) -> str:
        """Return the check of the plan."""
        return f"EMB-7/{self.plan}"

    def plain(self) -> Forward:
        """Return the call that the batches are compared with."""
        fields = {name: getattr(self, name) for name in Forward.__struct_fields__}
        return Forward(**fields)

    def batches(self) -> Group:
        """Return the batches, of which each token has its place among the ids for a key."""
        ids = self.token_ids().reshape(-1)
        keys = np.arange(ids.size)
        if self.among:
            return among(ids, keys, self.vocab, self.among)
        return PLANS[self.plan](ids, keys, self.vocab)[self.group]

    def script(self, exam: Exam) -> Script:
        """Return the plain call, and then the batches on the same table."""
        script = super().script(exam)
        steps: list[Step] = []
        for n, batch in enumerate(self.batches()):
            steps.append(Put(name=f"varied ids {n}", array=np.ascontiguousarray(batch.ids), layout=batch.layout))
            steps.append(Run(name=f"batch {n}", verb=self.verb, arguments=(f"varied ids {n}", "weight")))
        plain = len(script.steps) - 2  # both inputs are read at the end
        return dataclasses.replace(script, steps=(*script.steps[:plain], *steps, *script.steps[plain:]))

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge the plain call, then whether each token's row in the batches has the same bits as there."""
        seen = super().judge(script, replies, exam)
        plain = seen.outputs.get(self.verb)
        rewritten = any(isinstance(each.evidence, Rewritten) for each in seen.failures)
        if plain is not None and not rewritten:
            self._judge_batches(seen, script, _runs(script, replies), plain)
        return seen

    def _judge_batches(self, seen: Seen, script: Script, runs: list[Reply], plain: Bits) -> None:
        batches, check = self.batches(), self.condition()
        right = not seen.failures
        device = runs[0].form[2] if isinstance(runs[0], Output) else ""
        outputs: list[Bits] = []
        for batch, reply in zip(batches, runs[1:], strict=True):
            form = (*batch.ids.shape, self.hidden), result_dtype(self.verb, self.dtype), device
            missing = unmade(seen, reply, check, batch.ids.size * self.hidden)
            got = None if missing else judged_output(seen, reply, form, check, self.clauses)
            if got is None:
                if missing and right and seen.failures:
                    seen.failures[-1].suspects = self._suspects()
                return
            outputs.append(got)
        rows = plain.reshape(-1, self.hidden)
        parts = [(batch.keys, got) for batch, got in zip(batches, outputs, strict=True)]
        restored = restore(parts, rows.shape[0], str(self))
        miss = mismatch(restored, rows, FORMATS[result_dtype(self.verb, self.dtype)])
        if miss is None:
            seen.ok(check, restored.size)
            return
        exact = self.rule(script)
        due = exact.bits.reshape(rows.shape)
        other = (restored != rows).any(axis=1)
        # Where neither is right, it is not seen that what surrounds a token is what makes it wrong.
        seen_so = bool(((rows == due) | (restored == due))[other].all(axis=1).any())
        wrong = int(np.flatnonzero(other)[0])
        at = next(n for n, batch in enumerate(batches) if (batch.keys == wrong).any())
        evidence = self._evidence(batches[at], outputs[at], script)
        if np.array_equal(outputs[at].reshape(evidence.expected.shape), evidence.expected):  # the plain call is wrong
            evidence = ForwardEvidence(self.plain(), *arrays_of(script), plain, exact.bits)
        seen.fail(check, miss, restored.size, *(self._suspects() if seen_so else ()), evidence=evidence)

    def _evidence(self, batch: Batch, got: Bits, script: Script) -> ForwardEvidence:
        """Return one batch's output beside the exact one; its call is that batch alone."""
        table = arrays_of(script)[1]
        ids = tuple(batch.ids.reshape(-1).tolist())
        call = msgspec.structs.replace(self.plain(), ids=ids, shape=batch.ids.shape, id_layout=batch.layout)
        return ForwardEvidence(call, batch.ids, table, got, exact_answer(self.verb, batch.ids, table, self.dtype))

    def _suspects(self) -> tuple[Suspect, ...]:
        strided = any(batch.layout != DENSE for batch in self.batches())
        found = (faults.IDS_STRIDES_IGNORED,) if strided else _PLAN_FAULTS[self.plan]
        return suspects_of(found, 0.55 if strided else 0.99, f"a token's row changes with EMB-7/{self.plan}")

    def resized(self, name: str, size: int) -> Call | None:
        """Return the call with fewer tokens, strangers, columns or rows."""
        if name == "strangers":
            return msgspec.structs.replace(self, among=self.tokens + size)
        other = super().resized(name, size)
        if isinstance(other, Batches) and self.among and name == "tokens":
            return msgspec.structs.replace(other, among=self.among)
        return other

    def sizes(self) -> dict[str, int]:
        """Return the number of strangers too, if there are any."""
        return {**({"strangers": self.among - self.tokens} if self.among else {}), **super().sizes()}


def _runs(script: Script, replies: Replies) -> list[Reply]:
    return [replies[n] for n, step in enumerate(script.steps) if isinstance(step, Run)]
