"""What may stand beside a token, or between two calls, without changing a gradient's bits (clause EMB-10)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits, from_bits
from xref.engine.compare import mismatch
from xref.engine.layouts import DENSE
from xref.engine.steps import Add, Output, Replies, Reply, Script, Step
from xref.inputs import Ids, words
from xref.operators.embedding import faults
from xref.operators.embedding.calls import sums
from xref.operators.embedding.calls.gradient import AroundGradient, Gradient
from xref.operators.embedding.evidence import GradientEvidence
from xref.operators.embedding.goldens import ACCUMULATED, MOST_PARTS
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["CONDITIONS", "Condition", "GradientBatches", "GradientDtypes"]

Condition = Literal["repeat", "layout", "padding", "permuted", "split"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
_REPEATS, _AGAIN = 6, 2  # of the condition `repeat`, and of the others, to know what a run alone changes
_ORDERS, _GOLDEN_ORDERS = 3, 5


@dataclasses.dataclass(frozen=True)
class _Batch:
    """One variation: the batches that it is made of, whose gradients are added, and what is varied, in words."""

    what: str
    parts: tuple[tuple[Ids, Bits], ...]
    call: Gradient

    def steps(self, exam: Exam, prefix: str) -> list[Step]:
        if len(self.parts) == 1:
            return self.call.asked(exam, *self.parts[0], prefix=prefix)
        first, second = (f"{prefix}part {n} " for n in range(2))
        return [
            *self.call.asked(exam, *self.parts[0], prefix=first),
            *self.call.asked(exam, *self.parts[1], prefix=second),
            Add(name=f"{prefix}gradient", first=f"{first}gradient", second=f"{second}gradient"),
        ]

    def reply(self, replies: Replies, prefix: str) -> Reply:
        """Return what was added, or the reply to the first part that failed."""
        if len(self.parts) == 2:
            parts = [replies.of(f"{prefix}part {n} gradient") for n in range(2)]
            failed = [part for part in parts if not isinstance(part, Output)]
            if failed:
                return failed[0]
        return replies.of(f"{prefix}gradient")


class GradientBatches(AroundGradient, frozen=True, kw_only=True, tag="gradient-batches"):
    """A plain gradient, and the same tokens again in other batches: the bits must be the same."""

    condition: Condition

    def __str__(self) -> str:
        return f"{self.plain}, condition {self.condition}"

    def script(self, exam: Exam) -> Script:
        """Return the plain call, the same call again, and what is varied."""
        ids, cotangent = self._inputs(exam)
        steps = self.plain.asked(exam, ids, cotangent)
        for n in range(self._repeats):
            steps += self.plain.asked(exam, ids, cotangent, prefix=f"again {n} ")
        for n, batch in enumerate(self._batches(exam, ids, cotangent)):
            steps += batch.steps(exam, f"varied {n} ")
        return Script(dtype=self.plain.precision, steps=tuple(steps))

    @property
    def _repeats(self) -> int:
        return _REPEATS if self.condition == "repeat" else _AGAIN

    def _inputs(self, exam: Exam) -> tuple[Ids, Bits]:
        """Return the tokens; but for a golden, row 0 is left to padding: no token is of it."""
        ids, cotangent = self.plain.arrays()
        return ids if exam.traits.golden else np.where(ids == 0, 1 % self.plain.vocab, ids).astype(ids.dtype), cotangent

    def _batches(self, exam: Exam, ids: Ids, cotangent: Bits) -> list[_Batch]:
        """Return what is varied in this condition, of ids and cotangents by token."""
        flat, elements = ids.reshape(-1), cotangent.reshape(ids.size, self.plain.hidden)
        made = {"layout": self._layouts, "padding": self._padded, "permuted": self._permuted, "split": self._split}
        return list(made[self.condition](exam, flat, elements)) if self.condition in made else []

    def _batch(self, what: str, ids: Ids, cotangent: Bits, **changes: object) -> _Batch:
        return _Batch(what, ((ids, cotangent),), msgspec.structs.replace(self.plain, **changes))

    def _layouts(self, exam: Exam, flat: Ids, elements: Bits) -> Iterator[_Batch]:
        rows = next((size for size in (16, 4, 5, 7, 17) if flat.size % size == 0), 1)
        # With JAX each shape is compiled anew.
        for shape in [(rows, -1)] if exam.traits.framework == "jax" else [(-1, 1), (1, -1), (rows, -1)]:
            if flat.size:
                ids = flat.reshape(shape)
                yield self._batch(f"with ids {ids.shape}", ids, elements.reshape(*ids.shape, self.plain.hidden))
        yield self._batch("strided", flat, elements, layout="strided", id_layout="strided")
        yield self._batch("with transposed cotangents", flat, elements, layout="transposed")

    def _padded(self, exam: Exam, flat: Ids, elements: Bits) -> Iterator[_Batch]:
        # With JAX all padded batches are of one size, since each is compiled anew.
        jax, size = exam.traits.framework == "jax", flat.size
        for side, left, right in (("left", size if jax else 7, 0), ("right", 0, size if jax else 9)):
            ids = np.pad(flat, (left, right))
            yield self._batch(f"padded on the {side}", ids, np.pad(elements, ((left, right), (0, 0))))
        ids, rows = np.pad(flat, (0, size)), 16 if jax and 2 * size % 16 == 0 else 2
        cotangent = np.pad(elements, ((0, size), (0, 0)))
        shaped = cotangent.reshape(rows, 2 * size // rows, self.plain.hidden)
        yield self._batch("beside rows of padding", ids.reshape(shaped.shape[:2]), shaped)
        for row in (0, self.plain.vocab - 1) if exam.traits.golden else ():
            among = np.stack([flat, np.full_like(flat, row)], axis=1)
            yield self._batch(
                f"among padding of id {row}", among, np.stack([elements, np.zeros_like(elements)], axis=1)
            )

    def _permuted(self, exam: Exam, flat: Ids, elements: Bits) -> Iterator[_Batch]:
        orders = _orders(flat.size, _GOLDEN_ORDERS if exam.traits.golden else _ORDERS)
        for n, order in enumerate([*orders, np.arange(flat.size)[::-1]] if exam.traits.golden else orders):
            yield self._batch(f"in order {n + 1}", flat[order], elements[order])

    def _split(self, exam: Exam, flat: Ids, elements: Bits) -> Iterator[_Batch]:
        if exam.traits.golden:  # each part rounded for itself would be another sum
            for parts, order in enumerate(_orders(flat.size, MOST_PARTS), start=1):
                call = {"verb": ACCUMULATED, "parts": parts}
                yield self._batch(f"in {parts} accumulators", flat[order], elements[order], **call)
            return
        early = np.arange(flat.size) < flat.size // 3
        if exam.traits.framework == "jax":  # each part in the size of the whole, which is compiled already
            zero = elements.dtype.type(0)
            parted = [
                (np.where(p, flat, 0).astype(flat.dtype), np.where(p[:, None], elements, zero)) for p in (early, ~early)
            ]
        else:
            parted = [(flat[part], elements[part]) for part in (early, ~early)]
        yield _Batch("in two parts", (parted[0], parted[1]), self.plain)

    # Judging

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Compare every gradient with the plain one, by bits."""
        seen, inputs = Seen(), self._inputs(exam)
        base = self.judged_plain(seen, replies.of("gradient"), exam)
        if base is None:
            return seen
        again = [_Batch(f"in call {n + 2}", (inputs,), self.plain) for n in range(self._repeats)]
        runs = [batch.reply(replies, f"again {n} ") for n, batch in enumerate(again)]
        if self.condition == "repeat":
            varied = list(zip(again, runs, strict=True))
        else:
            batches = enumerate(self._batches(exam, *inputs))
            varied = [(batch, batch.reply(replies, f"varied {n} ")) for n, batch in batches]
        for batch, reply in varied:
            self._judge_batch(seen, batch, reply, base, exam)
            if seen.failures:
                by_run = self._suspects_of_runs(base, runs, inputs, exam)
                seen.failures[0].suspects = by_run or seen.failures[0].suspects
                break
        return seen

    def _judge_batch(self, seen: Seen, batch: _Batch, reply: Reply, base: Bits, exam: Exam) -> None:
        check = f"EMB-10/{self.condition}"
        got = batch.call.formed(seen, reply, check, exam)
        miss = None if got is None else mismatch(got, base, FORMATS[self.plain.result])
        if got is not None and miss is not None:
            inputs = np.concatenate([ids for ids, _ in batch.parts]), np.concatenate([c for _, c in batch.parts])
            evidence = self._evidence(batch.call, inputs, got, exam)
            suspects = self._suspects(batch, evidence, base, self._inputs(exam)[0])
            message = f"gradient{str(miss).removeprefix('out')} {batch.what}"
            seen.fail(check, message, got.size, *suspects, evidence=evidence)
        elif got is not None:
            seen.ok(check, got.size)

    def _evidence(self, call: Gradient, inputs: tuple[Ids, Bits], got: Bits, exam: Exam) -> GradientEvidence:
        known = sums.known(self.plain, *inputs)
        missed = sums.missed(self.plain, got, known, exam)
        off = missed.sums | missed.specials
        return GradientEvidence(call=call, ids=inputs[0], cotangent=inputs[1], exact=known, got=got, off=off)

    def _suspects(self, batch: _Batch, evidence: GradientEvidence, base: Bits, ids: Ids) -> Iterator[Suspect]:
        """Yield what it speaks for that a variation has other bits than the plain call, which always has the same."""
        unnamed = np.setdiff1d(np.arange(len(base)), ids)
        if base[unnamed].any() or evidence.got[unnamed].any():
            yield Suspect(0.9, faults.UNTOUCHED_ROWS_NOT_ZERO.name, "a row that no id names is not +0")
        elif evidence.off.any():
            strided = {
                "cotangents": (batch.call.layout, faults.COTANGENT_STRIDES_IGNORED),
                "ids": (batch.call.id_layout, faults.IDS_STRIDES_IGNORED),
            }
            for what, (layout, fault) in strided.items():
                if layout != DENSE:
                    yield Suspect(0.9, fault.name, f"sums are wrong where the {what} are {layout}")
        elif self.condition in ("layout", "padding"):
            what = f"the sums are within the bound, and have other bits {batch.what}"
            yield Suspect(0.8, faults.GRADIENT_ORDER_BY_RUN.name, what)

    def _suspects_of_runs(
        self, base: Bits, runs: list[Reply], inputs: tuple[Ids, Bits], exam: Exam
    ) -> tuple[Suspect, ...]:
        """Return what it speaks for that the same call is not the same the next time, if it is not."""
        arrays = [run.array if isinstance(run, Output) else None for run in runs]
        other = next((run for run in arrays if run is None or not np.array_equal(run, base)), base)
        if other is base:
            return ()
        if other is None or other.shape != base.shape:
            return (_SECOND,)
        evidence = self._evidence(self.plain, inputs, other, exam)
        unnamed = np.setdiff1d(np.arange(len(base)), inputs[0])
        one, two = (from_bits(bits, self.plain.result).astype(np.float64) for bits in (base, other))
        if not np.array_equal(base[unnamed], other[unnamed]):
            return (Suspect(0.9, faults.UNTOUCHED_ROWS_NOT_ZERO.name, "rows that no id names change from run to run"),)
        if not evidence.off.any():
            what = "run after run, sums within the bound have other bits"
            return (Suspect(0.95, faults.GRADIENT_ORDER_BY_RUN.name, what),)
        due = from_bits(sums.answer(self.plain, *inputs), self.plain.result).astype(np.float64)
        if due.any() and np.allclose(two - one, due, rtol=0, atol=2.0**-6 * np.abs(two).max()):
            what = "the next call gives its own gradient and the one before"
            return (Suspect(0.97, faults.GRADIENT_ACCUMULATES_ACROSS_CALLS.name, what),)
        return (_SECOND,)

    def plainer(self) -> Iterator[Call]:
        """Yield the condition on plainer calls."""
        for plain in self.plain.plainer():
            yield msgspec.structs.replace(self, plain=plain)


_SECOND = Suspect(0.9, faults.CALL_COUNT_DEPENDENT.name, "the same call comes to something else the next time")


def _orders(count: int, number: int) -> list[Ids]:
    return [np.argsort(words(count, seed=300 + seed), kind="stable") for seed in range(number)]


class GradientDtypes(Call, frozen=True, kw_only=True, tag="gradient-dtypes"):
    """A verb's gradient for tables of several dtypes: who has it for one of them and not for another loses it."""

    verb: str
    calls: tuple[Gradient, ...]
    """A small one of each dtype."""

    def __str__(self) -> str:
        return f"gradient of {self.verb} for {', '.join(call.result for call in self.calls)}"

    def script(self, exam: Exam) -> Script:
        """Return the small calls, one after the other."""
        steps: list[Step] = []
        for n, call in enumerate(self.calls):
            steps += call.asked(exam, *call.arrays(), prefix=f"{n} ")
        wide = any(call.precision == "float64" for call in self.calls)
        return Script(dtype="float64" if wide else self.calls[0].source, steps=tuple(steps))

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge each, and whether dtypes lack what another has; float8 may."""
        seen = Seen()
        runs = [replies.of(f"{n} gradient") for n in range(len(self.calls))]
        there = any(isinstance(run, Output) for run in runs)
        for call, run in zip(self.calls, runs, strict=True):
            lack = call.lack(run)
            if lack and there and not call.result.startswith("float8"):
                suspect = Suspect(0.97, faults.GRADIENT_LOST.name, f"{self.verb} has a gradient for other dtypes")
                seen.fail(self.check, f"gradient: got {lack}, expected one as for other dtypes", 0, suspect)
            elif lack:
                seen.skipped[self.check] = lack
            else:
                own = Seen()
                got = call.formed(own, run, self.check, exam)
                if got is not None:
                    sums.judge(call, own, got, call.arrays(), exam)
                seen.failures += [dataclasses.replace(failure, call=call) for failure in own.failures]
                for check, elements in own.passed.items():
                    seen.ok(check, elements)
        return seen

    def plainer(self) -> Iterator[Call]:
        """Yield pairs of the dtypes."""
        if len(self.calls) > 2:
            for n, one in enumerate(self.calls):
                yield from (msgspec.structs.replace(self, calls=(one, other)) for other in self.calls[n + 1 :])
