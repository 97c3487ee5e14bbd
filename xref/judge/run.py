"""The engine: runs operators on cases and conditions, and compares every element by its bits.

A `Workload` is a case with its exact answers at hand; a `Subject` is one golden on one device. What comes of each
goes into the `Ledger`. The engine never asserts and never stops at the first failure: a subject that raises is
recorded as an error of the clause that was being judged, and the rest still runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.inputs import Ids, make_table
from xref.judge.conditions import CONDITIONS, TABLE_LAYOUTS, Batch, Group, Keys, restore
from xref.engine.blocks import checksums, differ
from xref.judge.subject import (
    ACCURACY,
    BEFORE,
    EXACT,
    FIRST,
    FIXED_OVERHEAD,
    PLAIN,
    Subject,
    described,
    formed,
    judging,
    record_inputs,
    shared_memory,
)
from xref.judge.verdict import Ledger, mismatch
from xref.spec import Case

__all__ = [
    "Workload",
    "compare_subjects",
    "examine",
    "examine_bad_ids",
    "expect",
    "from_case",
    "output_digests",
]

_REPEATS = 2  # of a large output 1
_PIECE = 1 << 25  # elements of a table that are read at a time
_CONDITION_TOKENS = 1098  # as many as the largest fixed case with conditions has


@dataclasses.dataclass(frozen=True)
class Workload:
    """Ids, a table, and the exact answers of each verb."""

    id: str
    dtype: str
    ids: Ids
    table: Bits
    answers: dict[str, Bits]
    """Read-only: what equals them is replaced by them."""
    digests: dict[str, str]
    """Of the answers, by verb."""
    checksum: tuple[int, ...]
    """Of the table as it was built: a golden may share its memory, and a change of it must show."""
    sparse: bool
    """Whether the table is resident only where ids touch it, and is to be read only there."""
    conditions: bool

    @classmethod
    def of(cls, name: str, dtype: str, ids: Ids, table: Bits, *, conditions: bool = True) -> Workload:
        """Return the workload of any ids and table: a checkpoint's, say."""
        answers = contract.exact_answers(ids, table, dtype)
        return cls(
            id=name,
            dtype=dtype,
            ids=ids,
            table=table,
            answers=answers,
            digests={verb: contract.answer_digest(verb, dtype, answer) for verb, answer in answers.items()},
            checksum=_checksum(table, ids, np.asarray, sparse=False),
            sparse=False,
            conditions=conditions,
        )


def _checksum(table: Any, ids: Ids, read: Callable[[Any], Bits], *, sparse: bool) -> tuple[int, ...]:
    """Return the checksums of a table, NumPy's or a framework's whose bits `read` gives: of the rows in use if sparse.

    A piece at a time, for a large table may be on a device, and there is one copy of it on the host.
    """
    vocab, hidden = table.shape
    if not sparse and vocab * hidden <= _PIECE:
        return checksums(read(table))
    rows = max(_PIECE // hidden, 1)
    starts, rows = (np.unique(ids).tolist(), 1) if sparse else (range(0, vocab, rows), rows)
    return tuple(itertools.chain.from_iterable(checksums(read(table[start : start + rows])) for start in starts))


def from_case(case: Case, ledger: Ledger) -> Workload:
    """Build a case, compare it with the digests that the package pins, and return it with its exact answers."""
    ids, table = contract.build(case)
    answers = contract.exact_answers(ids, table, case.dtype)
    made = contract.digests(case, ids, table, answers)
    elements = ids.size + table.size + sum(answer.size for answer in answers.values())
    record_inputs(case.id, made, ledger, elements=elements)
    sparse = case.table == "sparse"
    return Workload(
        id=case.id,
        dtype=case.dtype,
        ids=ids,
        table=table,
        answers=answers,
        digests=made.answers,
        checksum=_checksum(table, ids, np.asarray, sparse=sparse),
        sparse=sparse,
        conditions=case.conditions,
    )


def expect(
    subjects: list[Subject], verbs: tuple[str, ...], ledger: Ledger, *, refusals: bool, conditions: bool
) -> None:
    """Note what a run over these verbs has to compare, so that a comparison left out shows as an error.

    `refusals`: the run includes `examine_bad_ids`; `conditions`: a workload of it has them.
    """
    clauses = [("EMB-3", EXACT), ("EMB-5", BEFORE), ("EMB-6", FIRST)]
    clauses += [(ACCURACY[verb], EXACT) for verb in verbs]
    clauses += [("EMB-4", EXACT)] if refusals else []
    clauses += [("EMB-7", PLAIN)] if conditions else []
    for subject in subjects:
        for clause, against in clauses:
            ledger.expect(clause, subject.where, against)
    for other in subjects[1:]:
        for verb in verbs:
            ledger.expect(ACCURACY[verb], other.where, "/".join(subjects[0].where))


def examine(subject: Subject, work: Workload, ledger: Ledger) -> dict[str, Bits]:
    """Run a golden on a workload under clauses EMB-1, 2, 3, 5, 6, 7 and 12; return its outputs' bits by verb.

    A verb that gave no output of the right form has none there, and nothing else of it is judged.
    """
    framework = subject.framework
    outputs: dict[str, Bits] = {}
    inputs = f"inputs on {subject.device}, {work.id}"
    with framework.precision(work.dtype), judging(ledger, subject, "EMB-1", EXACT, inputs):
        ids = framework.put(work.ids.copy(), None, subject.device)
        # Another framework reads the same workload meanwhile: what an operator may write into is its own copy.
        shared = work.sparse or work.table.nbytes > contract.LARGE
        table = framework.put(work.table if shared else work.table.copy(), work.dtype, subject.device)
        run = operator.methodcaller("examine", ids, table)
        verbs = [_Verb(subject, work, verb, ledger) for verb in work.answers]
        if framework.CONCURRENT:
            with ThreadPoolExecutor() as pool:
                found = list(pool.map(run, verbs))
        else:
            found = [run(verb) for verb in verbs]
        outputs = {verb: got for verb, got in zip(work.answers, found, strict=True) if got is not None}
        with judging(ledger, subject, "EMB-5", BEFORE, work.id):
            _purity(subject, work, ids, table, ledger)
    return outputs


def _purity(subject: Subject, work: Workload, ids: Any, table: Any, ledger: Ledger) -> None:
    kept_ids = np.array_equal(subject.framework.numpy_of(ids), work.ids)
    kept_table = _checksum(table, work.ids, subject.framework.bits_of, sparse=work.sparse) == work.checksum
    changed = [name for name, kept in (("token_ids", kept_ids), ("weight", kept_table)) if not kept]
    problem = f"{' and '.join(changed)}: got other bits after the calls, expected the same" if changed else None
    elements = work.ids.size + work.table.size
    ledger.record("EMB-5", subject.where, BEFORE, elements=elements, problem=problem, call=work.id)


class _Verb:
    """One verb of one subject on one workload."""

    def __init__(self, subject: Subject, work: Workload, verb: str, ledger: Ledger) -> None:
        self.subject, self.work, self.verb, self.ledger = subject, work, verb, ledger
        self.framework = subject.framework
        self.run = getattr(self.framework.golden, verb)
        self.format = FORMATS[contract.result_dtype(verb, work.dtype)]
        self.expected = work.answers[verb]
        self.call = f"{self.framework.NAME}.{verb} on {subject.device}, {work.id}"

    def examine(self, ids: Any, table: Any) -> Bits | None:
        """Everything there is to the verb; the bits of its output, or None where it gave none of the right form."""
        with self.framework.precision(self.work.dtype):
            got = self.accuracy(ids, table)
            if got is not None:
                self.memory(ids, table)
                if self.work.conditions and self.work.ids.size:
                    self.invariance(table, got)
        return got

    def _record(self, clause: str, against: str, elements: int, problem: object, call: str = "") -> None:
        where = self.subject.where
        self.ledger.record(clause, where, against, elements=elements, problem=problem, call=call or self.call)

    def _judging(self, clause: str, against: str, call: str = "") -> contextlib.AbstractContextManager[None]:
        return judging(self.ledger, self.subject, clause, against, call or self.call)

    def _bits(self, out: Any, shape: tuple[int, ...]) -> Bits:
        return formed(self.framework, out, (shape, self.format.name, self.subject.device))

    def accuracy(self, ids: Any, table: Any) -> Bits | None:
        """Form, bits against the exact answer, aliasing, the same bits again; None where nothing can be compared."""
        kept = None
        with self._judging(ACCURACY[self.verb], EXACT):
            out, got = self.run(ids, table), None
            with self._judging("EMB-3", EXACT):
                got = self._bits(out, self.expected.shape)
            if got is None:
                return None
            self._record("EMB-3", EXACT, got.size, None)
            problem = mismatch(got, self.expected, self.format)
            self._record(ACCURACY[self.verb], EXACT, got.size, problem)
            # Not the output itself, as the operator may hand out the same buffer again. Equal bits are kept as the
            # exact answer: a large one is then in memory once, and need not be read to be compared with itself.
            kept = got.copy() if problem else self.expected
            with self._judging("EMB-5", BEFORE):
                shared = shared_memory(self.framework, out, {"token_ids": ids, "weight": table})
                aliased = f"out: got memory of {' and '.join(shared)}, expected its own" if shared else None
                self._record("EMB-5", BEFORE, got.size, aliased)
            for _ in range(_REPEATS if got.nbytes < contract.LARGE else 1):
                with self._judging("EMB-6", FIRST):
                    again = self._bits(self.run(ids, table), kept.shape)
                    self._record("EMB-6", FIRST, kept.size, mismatch(again, kept, self.format))
        return kept

    def memory(self, ids: Any, table: Any) -> None:
        """Peak extra memory of a call, where the table is so large that a copy of it could not hide."""
        limit = int(1.2 * self.expected.nbytes) + FIXED_OVERHEAD
        if self.work.table.nbytes < 4 * limit:
            return
        with self._judging("EMB-12", "1.2 x output + 4 MiB"):
            peak = self.framework.peak_extra_bytes(self.run, ids, table, alone=False)
            problem = f"peak extra memory: got {peak} bytes, expected at most {limit}" if peak > limit else None
            self._record("EMB-12", "1.2 x output + 4 MiB", self.expected.size, problem)

    def invariance(self, table: Any, base: Bits) -> None:
        """Every condition, its rows put back by key and compared with the plain call's."""
        flat = self.work.ids.reshape(-1)[:_CONDITION_TOKENS]
        keys = np.arange(flat.size)
        rows = base.reshape(self.work.ids.size, -1)[: flat.size]
        vocab = self.work.table.shape[0]
        for name, plan in CONDITIONS.items():
            # Copied, since an operator may write into its ids: they are views of what the plan is given.
            for group in plan(flat.copy(), keys, vocab):
                self._compare(name, group, self.run, table, rows)
        for name, mode in self.framework.modes().items():
            self._compare(f"mode {name}", [Batch(flat.copy(), keys)], mode(self.run), table, rows)

    def _compare(self, name: str, group: Group, run: Callable[[Any, Any], Any], table: Any, rows: Bits) -> None:
        call = f"{self.call}, condition {name}"
        with self._judging("EMB-7", PLAIN, call):
            restored = restore(self._parts(group, run, table), rows.shape[0], call)
            self._record("EMB-7", PLAIN, restored.size, mismatch(restored, rows, self.format), call)

    def _parts(self, group: Group, run: Callable[[Any, Any], Any], table: Any) -> list[tuple[Keys, Bits]]:
        """Return the keys and the bits of each batch's rows."""
        parts = []
        for batch in group:
            ids, laid = batch.ids, table
            if batch.layout != "dense":
                # Laid out anew are the rows that the tokens use: a large table is not copied.
                used, places = np.unique(ids, return_inverse=True)
                view = TABLE_LAYOUTS[batch.layout](self.work.table[used])
                ids = places.astype(ids.dtype).reshape(ids.shape)
                laid = self.framework.put(view, self.work.dtype, self.subject.device)
            out = run(self.framework.put(ids, None, self.subject.device), laid)
            # Copied, since an operator may hand out the same buffer again.
            parts.append((batch.keys, self._bits(out, (*ids.shape, self.work.table.shape[1])).copy()))
        return parts


def examine_bad_ids(subject: Subject, dtype: str, ledger: Ledger) -> None:
    """Hand a golden ids that it must refuse (EMB-4), and a traced one ids that must come back as NaN rows."""
    framework, fmt = subject.framework, FORMATS[dtype]
    verbs = contract.verbs_of(dtype)
    with framework.precision(dtype):
        for bad in contract.bad_ids():
            table = make_table("tagged", bad.vocab, 5, fmt)
            given = framework.put(bad.ids, None, subject.device), framework.put(table, dtype, subject.device)
            for verb in verbs:
                call = f"{framework.NAME}.{verb} on {subject.device}, {dtype} table, {bad.name}"
                problem = _refusal(getattr(framework.golden, verb), given, bad.error(verb))
                ledger.record("EMB-4", subject.where, EXACT, elements=max(bad.ids.size, 1), problem=problem, call=call)
        for verb in verbs:
            _examine_poison(subject, verb, dtype, ledger)


def _refusal(run: Callable[[Any, Any], Any], given: tuple[Any, Any], expected: Exception) -> str | None:
    """Return what is wrong with how a call refuses its ids, or None if it raises just what it must."""
    try:
        run(*given)
    except (Exception, SystemExit) as error:  # the type is what is judged
        if type(error) is type(expected) and str(error) == str(expected):
            return None
        return f"error: got {described(error)}, expected {described(expected)}"
    return f"error: got a result, expected {described(expected)}"


def _examine_poison(subject: Subject, verb: str, dtype: str, ledger: Ledger) -> None:
    framework = subject.framework
    traced = framework.traced(getattr(framework.golden, verb))
    if traced is None:
        return
    ids = np.array([[0, 4, 5], [-1, -5, -6], [2**31 - 1, -(2**31), 3]], dtype=np.int32)
    table = make_table("tagged", 5, 33, FORMATS[dtype])
    inside = (ids >= 0) & (ids < 5)
    expected = contract.exact_answers(np.where(inside, ids, 0), table, dtype)[verb].copy()
    fmt = FORMATS[contract.result_dtype(verb, dtype)]
    expected[~inside] = fmt.nan
    call = f"{framework.NAME}.{verb} traced on {subject.device}, {dtype} table, ids out of range"
    with judging(ledger, subject, "EMB-4", EXACT, call):
        out = traced(framework.put(ids, None, subject.device), framework.put(table, dtype, subject.device))
        problem = mismatch(formed(framework, out, (expected.shape, fmt.name, subject.device)), expected, fmt)
        ledger.record("EMB-4", subject.where, EXACT, elements=expected.size, problem=problem, call=call)


def compare_subjects(
    first: tuple[Subject, dict[str, Bits]], second: tuple[Subject, dict[str, Bits]], work: Workload, ledger: Ledger
) -> None:
    """Compare the outputs of two goldens with each other, verb by verb, where both have one.

    Of two that both gave the exact bits, both are the exact answer: that they agree follows, and is not computed again.
    """
    (one, expected), (other, got) = first, second
    for verb in sorted(expected.keys() & got.keys()):
        problem = mismatch(got[verb], expected[verb], FORMATS[contract.result_dtype(verb, work.dtype)])
        ledger.record(
            ACCURACY[verb],
            other.where,
            "/".join(one.where),
            elements=got[verb].size,
            problem=problem,
            call=f"{other.framework.NAME} and {one.framework.NAME} {verb}, {work.id}",
        )


def output_digests(work: Workload, outputs: dict[str, Bits]) -> set[str]:
    """Return a line for each output: workload, verb, digest. Goldens that agree give the same lines."""
    lines = set()
    for verb, got in outputs.items():
        exact = work.answers[verb]
        digest = work.digests[verb] if not differ(got, exact) else contract.answer_digest(verb, work.dtype, got)
        lines.add(f"{work.id} {verb} {digest}")
    return lines
