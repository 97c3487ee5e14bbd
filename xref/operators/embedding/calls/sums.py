"""What a gradient must be: each sum within the proven bound, or exactly what it is where a golden gives it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits
from xref.engine.compare import mismatch
from xref.inputs import Ids
from xref.operators.embedding import faults
from xref.operators.embedding.bound import Exact, Misses, exact_of, first_miss, misses
from xref.operators.embedding.evidence import GradientEvidence
from xref.spec import Exam, Seen, Suspect

if TYPE_CHECKING:
    from xref.operators.embedding.calls.gradient import Gradient

__all__ = ["COVERAGE", "SPECIAL", "SUMS", "ZERO_SIGN", "Wrong", "answer", "judge", "known", "missed", "wrongs"]

SUMS, COVERAGE, SPECIAL, ZERO_SIGN = "EMB-8", "EMB-9", "EMB-11", "EMB-11/zero sign"


@dataclasses.dataclass(frozen=True)
class Wrong:
    """What one clause has against a gradient."""

    check: str
    message: str
    elements: int
    off: Bits | None = None
    """Where sums of named rows are wrong, `[R, H]`, bool."""


def judge(call: Gradient, seen: Seen, got: Bits, inputs: tuple[Ids, Bits], exam: Exam, *, check: str = "") -> None:
    """Judge the bits of a gradient of these ids and cotangents; `check` is whose it is, instead of the clauses'."""
    sums = known(call, *inputs)
    elements = sums.rows.size * call.hidden
    found = wrongs(call, got, inputs, sums, exam)
    suspects = [Suspect(0.92, faults.UNTOUCHED_ROWS_NOT_ZERO.name, "only rows that no id names are wrong")]
    if [wrong.check for wrong in found] != [COVERAGE]:
        suspects = []
    if check:
        found = [dataclasses.replace(wrong, check=check) for wrong in found if wrong.check != ZERO_SIGN][:1]
    for wrong in found:
        off = np.zeros((sums.rows.size, call.hidden), bool) if wrong.off is None else wrong.off
        evidence = GradientEvidence(call=call, ids=inputs[0], cotangent=inputs[1], exact=sums, got=got, off=off)
        seen.fail(wrong.check, wrong.message, wrong.elements, *suspects, evidence=evidence)
    sizes = {call.accuracy: elements, COVERAGE: got.size - elements}
    if call.accuracy == SPECIAL:
        sizes[ZERO_SIGN] = elements
    for passed, size in ({check: elements} if check else sizes).items():
        if passed not in {wrong.check for wrong in found}:
            seen.ok(passed, size)


def known(call: Gradient, ids: Ids, cotangent: Bits) -> Exact:
    """Return what is known of the exact sums of `S + (H,)` cotangents; tokens of `padding_idx` do not count."""
    own = call.arrays()
    if call.padding_idx is None and ids is own[0] and cotangent is own[1]:
        return _known(call.inputs)
    counted = ids != (-1 if call.padding_idx is None else call.padding_idx)
    return exact_of(ids[counted], cotangent[counted], FORMATS[call.source])


@functools.lru_cache(512)
def _known(inputs: Gradient) -> Exact:
    return exact_of(*inputs.arrays(), FORMATS[inputs.source])


def answer(call: Gradient, ids: Ids, cotangent: Bits) -> Bits:
    """Return the exact bits of the `[V, H]` gradient."""
    source, target = FORMATS[call.source], FORMATS[call.result]
    dense = np.zeros((call.vocab, call.hidden), dtype=target.uint)
    for row, elements in exact.grad_rows(ids, cotangent, source, target).items():
        if row != call.padding_idx:
            dense[row] = elements
    return dense


def missed(call: Gradient, got: Bits, sums: Exact, exam: Exam) -> Misses:
    """Return where a gradient is past the bound."""
    accumulate, traits = FORMATS["float64" if call.result == "float64" else exam.accumulate], exam.traits
    return misses(got, sums, FORMATS[call.result], accumulate, flushes=traits.flushes, saturates=traits.saturates)


def wrongs(call: Gradient, got: Bits, inputs: tuple[Ids, Bits], sums: Exact, exam: Exam) -> list[Wrong]:
    """Return what is wrong with a gradient: a sum that is off is EMB-8's, whatever the call is about."""
    find = _unlike_answer if exam.traits.golden else _past_bound
    return [*find(call, got, inputs, sums, exam), *_elsewhere(got, sums, FORMATS[call.result].width // 4)]


def _unlike_answer(call: Gradient, got: Bits, inputs: tuple[Ids, Bits], sums: Exact, exam: Exam) -> Iterator[Wrong]:
    due, rows = answer(call, *inputs), sums.rows
    miss = mismatch(got[rows], due[rows], FORMATS[call.result])
    if miss is not None:
        placed = msgspec.structs.replace(miss, index=(int(rows[miss.index[0]]), miss.index[1]))
        message = f"gradient{str(placed).removeprefix('out')}"
        yield Wrong(call.accuracy, message, rows.size * call.hidden, off=got[rows] != due[rows])


def _past_bound(call: Gradient, got: Bits, inputs: tuple[Ids, Bits], sums: Exact, exam: Exam) -> Iterator[Wrong]:
    found, elements = missed(call, got, sums, exam), sums.rows.size * call.hidden
    for check, wrong in ((SUMS, found.sums), (SPECIAL, found.specials)):
        if wrong.any():
            yield Wrong(check, first_miss(wrong, got, sums, FORMATS[call.result])[1], elements, off=found.sums)
    if call.accuracy == SPECIAL and found.zero_signs.any():
        r, h = np.argwhere(found.zero_signs)[0]
        yield Wrong(ZERO_SIGN, f"gradient[{sums.rows[r]}, {h}]: got -0 for an exact zero sum, expected +0", elements)


def _elsewhere(got: Bits, sums: Exact, digits: int) -> Iterator[Wrong]:
    """Yield what is wrong with the rows that no id names."""
    unnamed = np.ones(len(got), bool)
    unnamed[sums.rows] = False
    rest = np.flatnonzero(unnamed)
    wrong = got[rest] != 0
    if wrong.any():
        r, h = np.argwhere(wrong)[0]
        message = (
            f"gradient[{rest[r]}, {h}]: got 0x{int(got[rest[r], h]):0{digits}x}, expected +0 in a row that no id names"
            f" ({int(np.count_nonzero(wrong))} of {wrong.size} elements differ)"
        )
        yield Wrong(COVERAGE, message, wrong.size)
