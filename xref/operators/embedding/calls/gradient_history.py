"""Gradients asked for one after another (clause EMB-10): none may depend on those before it.

A kernel may keep what it has computed, the order of the ids say, and find it again by an address, a shape or a version.
The calls here differ in what such a kernel does not look at. Their cotangents are small whole numbers, so that every
sum is exact in any order and in any format: a right kernel may add in another order, and its bits are the exact ones.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal, get_args

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits, from_bits
from xref.engine.steps import Drop, NotMade, Output, Overwrite, Put, Read, Replies, Script, Step
from xref.inputs import Ids, make_ids
from xref.operators.embedding import faults
from xref.operators.embedding.calls.gradient import AroundGradient, Gradient
from xref.operators.embedding.calls.sums import answer, judge
from xref.operators.embedding.cotangents import make_cotangent
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["SCENARIOS", "GradientHistory"]

Scenario = Literal["cotangents", "ids", "rows", "overwritten", "memory", "again"]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)
_CHECK = "EMB-10/history"
_HELD = 6  # gradients that are looked at again at the end
_AGAIN, _MEMORY = 12, 6


@dataclasses.dataclass(frozen=True)
class _Made:
    """One of the calls: the name of its step, what is other about it, and what it is given."""

    name: str
    what: str
    ids: Ids
    cotangent: Bits
    call: Gradient

    def asks_the_same(self, other: _Made) -> bool:
        """Return whether another call has the same ids, cotangents and rows."""
        return self.ids is other.ids and self.cotangent is other.cotangent and self.call == other.call


class _Calls:
    """The steps of a history, and the calls among them."""

    def __init__(self, plain: Gradient, exam: Exam) -> None:
        self.plain, self.exam = plain, exam
        self.steps: list[Step] = []
        self.made: list[_Made] = []
        self.now: dict[str, np.ndarray] = {}
        self._tables: set[int] = set()

    def put(self, name: str, array: np.ndarray) -> str:
        """Bring ids, or bits of cotangents, to the device."""
        dtype = None if array.ndim == len(self.plain.shape) else self.plain.source
        self.steps.append(Put(name=name, array=array, dtype=dtype))
        self.now[name] = array
        return name

    def overwrite(self, name: str, array: np.ndarray, *, counted: bool) -> None:
        self.steps.append(Overwrite(name=name, array=array, counted=counted))
        self.now[name] = array

    def drop(self, *names: str) -> None:
        self.steps += [Drop(name=name) for name in names]

    def ask(self, what: str, ids: str, cotangent: str, *, vocab: int = 0) -> None:
        call = msgspec.structs.replace(self.plain, vocab=vocab or self.plain.vocab)
        table, name = f"table {call.vocab}", f"gradient {len(self.made)}"
        if call.vocab not in self._tables:
            self._tables.add(call.vocab)
            self.steps += call.table(table)
        self.steps.append(call.step(self.exam, name, ids, cotangent, table))
        self.made.append(_Made(name, what, self.now[ids], self.now[cotangent], call))


class GradientHistory(AroundGradient, frozen=True, kw_only=True, tag="gradient-history"):
    """Gradients of small whole numbers, one after another, the first of them plain."""

    scenarios: tuple[Scenario, ...] = SCENARIOS
    """What differs from call to call."""

    def __post_init__(self) -> None:
        """Refuse what no report holds.

        Raises:
            ValueError: its cotangents are no whole numbers of tokens in a row.
        """
        if self.plain.values != "whole" or len(self.plain.shape) != 1:
            raise ValueError(f"a history of {self.plain.id}, expected one of whole numbers in a row")

    def __str__(self) -> str:
        return f"{self.plain}, condition history: {', '.join(self.scenarios)}"

    def script(self, exam: Exam) -> Script:
        """Return the calls, and the first gradients read again at the end."""
        calls = self._calls(exam)
        held = [Read(name=made.name) for made in calls.made[:_HELD]]
        return Script(dtype=self.plain.precision, steps=(*calls.steps, *held))

    def _calls(self, exam: Exam) -> _Calls:
        calls = _Calls(self.plain, exam)
        ids = calls.put("token_ids", self.plain.arrays()[0])
        first, second = (calls.put(f"cotangent {seed}", self._cotangent(seed)) for seed in (1, 2))
        calls.ask("plain", ids, first)
        for scenario in self.scenarios:
            getattr(self, f"_{scenario}")(calls, ids, first, second)
        return calls

    def _cotangent(self, seed: int) -> Bits:
        plain = self.plain
        return make_cotangent("whole", plain.shape, plain.hidden, FORMATS[plain.source], seed=seed)

    def _cotangents(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        for cotangent in (second, first, second):
            calls.ask("the same ids, other cotangents", ids, cotangent)

    def _ids(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        plain, own = self.plain, calls.now[ids]
        others = make_ids("reversed", plain.shape, plain.vocab, plain.id_dtype)
        for n, some in enumerate((own, others, np.sort(own), _swapped(own), own)):
            calls.ask("other ids of the same shape", calls.put(f"ids {n}", some), first)

    def _rows(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        if calls.exam.traits.framework != "jax":  # which compiles each anew
            for more in (9, 0, 1):
                calls.ask("the same ids, another number of rows", ids, first, vocab=self.plain.vocab + more)

    def _overwritten(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        ids, changed = calls.put("changed ids", calls.now[ids]), calls.put("changed cotangent", calls.now[first])
        calls.ask("before they are overwritten", ids, changed)
        for n, counted in itertools.product(range(3), (True, False)):
            calls.overwrite(changed, self._cotangent(20 + 2 * n + counted), counted=counted)
            calls.ask("the same arrays, other cotangents in them", ids, changed)
            some = ((calls.now[ids] + 1) % self.plain.vocab).astype(self.plain.id_dtype)
            calls.overwrite(ids, some, counted=counted)
            calls.ask("the same arrays, other ids in them", ids, changed)

    def _memory(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        for n in range(_MEMORY):  # given back, so that the next ones lie in the same memory
            names = (
                calls.put("new ids", np.roll(calls.now[ids], n)),
                calls.put("new cotangent", self._cotangent(10 + n)),
            )
            calls.ask("new ids and cotangents where others lay", *names)
            calls.drop(*names)

    def _again(self, calls: _Calls, ids: str, first: str, second: str) -> None:
        for _ in range(_AGAIN):
            calls.ask("the same call again", ids, first)

    # Judging

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Compare each gradient with the exact one; where the plain one is wrong, nothing is history's."""
        seen, made = Seen(), self._calls(exam).made
        got = self.judged_plain(seen, replies.of(made[0].name), exam)
        if got is None:
            return seen
        judge(self.plain, seen, got, (made[0].ids, made[0].cotangent), exam)
        if seen.failures:
            for failure in seen.failures:
                failure.call = msgspec.structs.replace(self.plain, check=failure.check)
            seen.skipped[_CHECK] = "the same call made plainly is wrong: EMB-8"
            return seen
        seen.passed = {_CHECK: self.plain.vocab * self.plain.hidden}
        self._judge_later(seen, made, replies, exam)
        self._judge_held(seen, made[:_HELD], replies)
        return seen

    def _judge_later(self, seen: Seen, calls: list[_Made], replies: Replies, exam: Exam) -> None:
        earlier: list[tuple[_Made, Bits]] = []
        for each in calls:
            reply = replies.of(each.name)
            if isinstance(reply, NotMade):
                continue  # this framework cannot write into its arrays
            got = each.call.formed(seen, reply, _CHECK, exam)
            before = len(seen.failures)
            if got is not None and any(
                each.asks_the_same(made) and np.array_equal(bits, got) for made, bits in earlier
            ):
                seen.ok(_CHECK, got.size)
            elif got is not None:
                judge(each.call, seen, got, (each.ids, each.cotangent), exam, check=_CHECK)
            for failure in seen.failures[before:]:
                failure.message += f" ({each.what})"
                failure.suspects += tuple(self._suspects(each, got, earlier)) if got is not None else ()
            if seen.failures:
                return
            if got is not None:
                earlier.append((each, got))

    def _suspects(self, made: _Made, got: Bits, earlier: list[tuple[_Made, Bits]]) -> Iterator[Suspect]:
        """Yield what it speaks for that a later call is wrong where the plain one, before, was right."""
        alike = [(each, bits) for each, bits in earlier if bits.shape == got.shape]
        outdated = itertools.chain.from_iterable(
            (bits, answer(made.call, each.ids, made.cotangent), answer(made.call, made.ids, each.cotangent))
            for each, bits in alike
        )
        if any(np.array_equal(each, got) for each in outdated):
            yield Suspect(0.97, faults.STALE_CACHE.name, f"what an earlier call was given comes back: {made.what}")
            return
        values = [from_bits(each, self.plain.result).astype(np.float64) for each in (got, *(bits for _, bits in alike))]
        right = from_bits(answer(made.call, made.ids, made.cotangent), self.plain.result).astype(np.float64)
        if alike and any(np.array_equal(values[0], right + each) for each in (values[-1], sum(values[1:]))):
            yield Suspect(0.97, faults.GRADIENT_ACCUMULATES_ACROSS_CALLS.name, "a gradient holds those before it, too")
        elif made.what == "the same call again":
            yield Suspect(0.8, faults.CALL_COUNT_DEPENDENT.name, "the same call was right before")

    def _judge_held(self, seen: Seen, made: list[_Made], replies: Replies) -> None:
        """Judge whether gradients stay what they were, whatever is asked for later."""
        for each in made:
            first, later = replies.of(each.name), replies.of(each.name, Read)
            if not isinstance(first, Output) or not isinstance(later, Output) or first.array is None:
                continue
            if later.array is None or not np.array_equal(later.array, first.array):
                suspect = Suspect(
                    0.97, faults.OUTPUT_BUFFER_REUSED.name, "a gradient changes when another is asked for"
                )
                message = "gradient: got other bits after a later call, expected the same"
                seen.fail("EMB-5", message, first.array.size, suspect)
                return
            seen.ok("EMB-5", first.array.size)

    def plainer(self) -> Iterator[Call]:
        """Yield each scenario for itself."""
        if len(self.scenarios) > 1:
            yield from (msgspec.structs.replace(self, scenarios=(scenario,)) for scenario in self.scenarios)


def _swapped(ids: Ids) -> Ids:
    """Return the ids with two of the middle exchanged: the ends and the sum stay."""
    if len(ids) < 3:
        return ids
    middle = len(ids) // 2
    other = middle + int(np.argmax(ids[middle:-1] != ids[middle]))
    swapped = ids.copy()
    swapped[[middle, other]] = ids[[other, middle]]
    return swapped
