"""The gradient's examination (clauses EMB-8 to EMB-12): every form of it against the exact answer, by bits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.inputs import Ids, words
from xref.judge.subject import BEFORE, EXACT, FIXED_OVERHEAD, PLAIN, Subject, formed, judging, record_inputs, widest
from xref.judge.verdict import Ledger, mismatch

__all__ = ["compare_gradients", "examine_gradient", "expect_gradients", "gradient_inputs"]

Call = Callable[[Any, Any], Any]
Lay = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]

_ORDERS, _SPLITS = 5, 2
_MICRO_BATCH = 64
# What grad_rows may hold for an element of the cotangents: the sums in their working form, before they are rounded.
_BYTES_AN_ELEMENT = 128


def expect_gradients(subjects: list[Subject], cases: tuple[GradientCase, ...], ledger: Ledger) -> None:
    """Note what a run over these cases has to compare, so that a comparison left out shows as an error."""
    if not cases:
        return
    clauses = {(case.clause, EXACT) for case in cases} | {("EMB-9", EXACT), ("EMB-5", BEFORE)}
    if any(case.conditions for case in cases):
        clauses.add(("EMB-10", PLAIN))
    for clause, against in sorted(clauses):
        for subject in subjects:
            ledger.expect(clause, subject.where, against)
        for other in subjects[1:]:
            if against == EXACT and clause != "EMB-9":
                ledger.expect(clause, other.where, "/".join(subjects[0].where))


def gradient_inputs(case: GradientCase, ledger: Ledger) -> tuple[Ids, Bits, Bits]:
    """Build a case, compare it with the pinned digests, and return ids, cotangents and the exact `[V, H]` gradient.

    A case on which invariance is to be shown must be able to show a lack of it: if no other order changes a float32
    sum, that is recorded as a failure of the fixtures.
    """
    ids, cotangent = gradients.build(case)
    answer = gradients.exact_answer(case, ids, cotangent)
    weakness = None
    if case.conditions and gradients.reordered_share(case, ids, cotangent) == 0:
        weakness = f"{case.id}: got 0 % of elements that another order changes, expected more"
    made = gradients.digests(case, ids, cotangent, answer)
    record_inputs(case.id, made, ledger, elements=ids.size + cotangent.size + answer.size, weakness=weakness)
    return ids, cotangent, answer


def examine_gradient(
    subject: Subject, case: GradientCase, inputs: tuple[Ids, Bits, Bits], ledger: Ledger
) -> Bits | None:
    """Run a golden's gradient on a case in all its forms; return the bits of `grad_weight`, or None without any."""
    with subject.framework.precision(widest(case.source, case.result)):
        return _Gradient(subject, case, inputs, ledger).examine()


def compare_gradients(
    first: tuple[Subject, Bits | None], second: tuple[Subject, Bits | None], case: GradientCase, ledger: Ledger
) -> None:
    """Compare the gradients of two goldens with each other, where both have one."""
    (one, expected), (other, got) = first, second
    if expected is None or got is None:
        return
    ledger.record(
        case.clause,
        other.where,
        "/".join(one.where),
        elements=got.size,
        problem=mismatch(got, expected, FORMATS[case.result]),
        call=f"{other.framework.NAME} and {one.framework.NAME} grad_weight, {case.id}",
    )


class _Gradient:
    """One subject on one gradient case."""

    def __init__(self, subject: Subject, case: GradientCase, inputs: tuple[Ids, Bits, Bits], ledger: Ledger) -> None:
        self.subject, self.case, self.ledger = subject, case, ledger
        self.ids, self.cotangent, self.answer = inputs
        self.framework, self.golden = subject.framework, subject.framework.golden
        self.format = FORMATS[case.result]
        self.options = {"dtype": self.framework.dtype_of(case.result), "padding_idx": case.padding_idx}
        self.call = f"{self.framework.NAME} gradient on {subject.device}, {case.id}"

    def examine(self) -> Bits | None:
        """Every form of the gradient; what the plain one gave."""
        got = None
        with judging(self.ledger, self.subject, self.case.clause, EXACT, self.call):
            # A copy: an operator that hands out the same buffer again would else be compared with itself.
            got = self._dense(self.ids, self.cotangent).copy()
            self._record(self.case.clause, EXACT, self.call, got, self.answer)
            self._untouched(got)
        for form, run in self._forms().items():
            call = f"{self.call}, {form}"
            with judging(self.ledger, self.subject, self.case.clause, EXACT, call):
                self._record(self.case.clause, EXACT, call, run(), self.answer)
        with judging(self.ledger, self.subject, "EMB-12", "tokens x H", self.call):
            self._memory()
        if self.case.conditions and got is not None:
            self._invariance(got)
        return got

    def _called(self, name: str, run: Call, ids: Ids, cotangent: Bits, lay: Lay = np.copy) -> Any:
        """Return `run(ids, cotangent)`; the inputs are copies, and must keep their bits (EMB-5).

        Copies, since another framework reads the same case meanwhile. `lay` makes them: in other strides, if it likes.
        """
        given_ids, given = self._put(lay(ids), lay(cotangent))
        out = run(given_ids, given)
        kept = {
            "token_ids": np.array_equal(self.framework.numpy_of(given_ids), ids),
            "cotangent": np.array_equal(self.framework.bits_of(given), cotangent),
        }
        changed = " and ".join(part for part, same in kept.items() if not same)
        problem = f"{changed}: got other bits after the call, expected the same" if changed else None
        call = f"{self.framework.NAME} {name} on {self.subject.device}, {self.case.id}"
        self._note("EMB-5", BEFORE, ids.size + cotangent.size, problem, call)
        return out

    def _put(self, ids: Ids, cotangent: Bits) -> tuple[Any, Any]:
        device = self.subject.device
        return self.framework.put(ids, None, device), self.framework.put(cotangent, self.case.source, device)

    def _bits(self, out: Any) -> Bits:
        return formed(self.framework, out, (self.answer.shape, self.case.result, self.subject.device))

    def _note(self, clause: str, against: str, elements: int, problem: object, call: str) -> None:
        self.ledger.record(clause, self.subject.where, against, elements=elements, problem=problem, call=call)

    def _record(self, clause: str, against: str, call: str, got: Bits, expected: Bits) -> None:
        self._note(clause, against, got.size, mismatch(got, expected, self.format), call)

    def _untouched(self, got: Bits) -> None:
        """Rows that no token names are +0 (EMB-9)."""
        named = np.unique(self.ids[self.ids != self.case.padding_idx])
        rest = np.setdiff1d(np.arange(self.case.vocab), named)
        self._record("EMB-9", EXACT, self.call, got[rest], np.zeros_like(got[rest]))

    def _forms(self) -> dict[str, Callable[[], Bits]]:
        """The other ways to the same gradient, by name."""
        if not self.case.forms:
            return {}
        whole = np.arange(self.ids.size)
        forms: dict[str, Callable[[], Bits]] = {"rows": self._by_rows}
        forms["accumulated"] = functools.partial(self._accumulated, [whole])
        for verb in contract.VERBS:
            given = contract.result_dtype(verb, self.case.result)
            if given == self.case.source and self.case.padding_idx is None:
                forms[f"through {verb}"] = functools.partial(self._differentiated, verb)
        return forms

    def _dense(self, ids: Ids, cotangent: Bits, lay: Lay = np.copy) -> Bits:
        """`grad_weight`."""
        return self._bits(self._called("grad_weight", self._grad_weight, ids, cotangent, lay))

    def _grad_weight(self, ids: Any, cotangent: Any) -> Any:
        return self.golden.grad_weight(ids, cotangent, self.case.vocab, **self.options)

    def _grad_rows(self, ids: Any, cotangent: Any) -> Any:
        return self.golden.grad_rows(ids, cotangent, vocab_size=self.case.vocab, **self.options)

    def _by_rows(self) -> Bits:
        """`grad_rows`, laid into a dense table by NumPy."""
        row_ids, rows = self._called("grad_rows", self._grad_rows, self.ids, self.cotangent)
        dense = np.zeros_like(self.answer)
        dense[self.framework.numpy_of(row_ids)] = self.framework.bits_of(rows)
        return dense

    def _accumulated(self, shares: list[Ids]) -> Bits:
        """One accumulator for each share of the tokens, fed in micro-batches; merged, and rounded once."""
        flat, elements = self.ids.reshape(-1), self.cotangent.reshape(self.ids.size, self.case.hidden)
        total = self._fresh()
        for share in shares:
            rank = self._fresh()
            for start in range(0, share.size, _MICRO_BATCH):
                batch = share[start : start + _MICRO_BATCH]
                self._called("GradAccumulator.add", rank.add, flat[batch], elements[batch])
            total.merge(rank)
        return self._bits(total.result(self.options["dtype"]))

    def _fresh(self) -> Any:
        case = self.case
        return self.framework.accumulator(case.vocab, case.hidden, self.subject.device, padding_idx=case.padding_idx)

    def _differentiated(self, verb: str) -> Bits:
        """The gradient that the framework's own differentiation takes of the golden."""
        table = self.framework.put(np.zeros_like(self.answer), self.case.result, self.subject.device)

        def differentiate(ids: Any, cotangent: Any) -> Any:
            return self.framework.gradient(getattr(self.golden, verb), ids, table, cotangent)

        return self._bits(self._called(f"gradient of {verb}", differentiate, self.ids, self.cotangent))

    def _memory(self) -> None:
        """`grad_rows` holds no buffer of the table's size; tried where the table is too large to hide one (EMB-12)."""
        limit = _BYTES_AN_ELEMENT * self.cotangent.size + FIXED_OVERHEAD
        if self.answer.nbytes < 2 * limit:
            return
        given = self._put(self.ids.copy(), self.cotangent.copy())
        peak = self.framework.peak_extra_bytes(self._grad_rows, *given, alone=False)
        problem = f"peak extra memory: got {peak} bytes, expected at most {limit}" if peak > limit else None
        self._note("EMB-12", "tokens x H", self.cotangent.size, problem, f"{self.call}, rows")

    def _invariance(self, base: Bits) -> None:
        """The same tokens again, in other shapes and orders, among padding, in parts (EMB-10)."""
        for name, run in self._conditions():
            call = f"{self.call}, condition {name}"
            with judging(self.ledger, self.subject, "EMB-10", PLAIN, call):
                self._record("EMB-10", PLAIN, call, run(), base)

    def _conditions(self) -> Iterator[tuple[str, Callable[[], Bits]]]:
        flat, elements = self.ids.reshape(-1), self.cotangent.reshape(self.ids.size, self.case.hidden)
        dense = self._dense
        yield "repeat", lambda: dense(flat, elements)
        yield "layout, one token a row", lambda: dense(flat[:, None], elements[:, None, :])
        yield "layout, strided", lambda: dense(flat, elements, lambda array: np.repeat(array, 2, axis=-1)[..., ::2])
        yield "layout, transposed", lambda: dense(flat, elements, lambda array: np.array(array.T, order="C").T)
        for pad in (0, self.case.vocab - 1):
            ids = np.stack([flat, np.full_like(flat, pad)], axis=1)
            padded = np.stack([elements, np.zeros_like(elements)], axis=1)
            yield f"padding, id {pad}", functools.partial(dense, ids, padded)
        orders = [np.argsort(words(flat.size, seed=200 + n), kind="stable") for n in range(_ORDERS)]
        for n, order in enumerate([*orders, np.arange(flat.size)[::-1]]):
            yield f"permuted {n}", functools.partial(dense, flat[order], elements[order])
        for n, order in enumerate(orders[:_SPLITS]):
            shares = np.split(order, [_MICRO_BATCH, 3 * _MICRO_BATCH][: n + 1])
            yield f"split {n}", functools.partial(self._accumulated, shares)
        traced = self.framework.traced(self._grad_weight)
        if traced is not None:
            yield "mode jit", lambda: self._bits(self._called("jitted grad_weight", traced, flat, elements))
