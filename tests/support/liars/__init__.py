"""Goldens that are wrong in one way each, named after their fault, and the inputs on which they must be found out.

A lie is a function `(run, ids, table, memory) -> out`: `run` is the honest verb, `memory` a dictionary that lasts as
long as the liar. `red` are the clauses that it breaks: all of them must fail, and no other. A golden whose output has
another form cannot be compared at all, so that it breaks the clauses of accuracy too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from xref import bits, operators
from xref.bits import FORMATS
from xref.engine import frameworks
from xref.engine.candidate import Candidate
from xref.engine.conditions import PLANS
from xref.engine.layouts import STRIDED_TABLES
from xref.engine.outcomes import Outcome
from xref.inputs import allocate, words
from xref.operators.embedding.calls.batches import Batches
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.memory import PeakMemory
from xref.operators.embedding.calls.traced import TracedRefusal
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, VERBS
from xref.operators.embedding.examine.conduct import BAD_IDS
from xref.operators.embedding.families import LOADED
from xref.spec import Call, Check, Exam, Operator, Skip, Tier
from xref.verifying.golden import Golden
from xref.verifying.report import Report, Verdict
from xref.verifying.verify import confirmed

__all__ = ["EMBEDDING", "WORKS", "H", "Liar", "V", "operator_of", "reds", "registry", "report_on", "verdicts_of"]

EMBEDDING = operators.find("embedding")
V, H = 43, 35
LOOKED_UP = 41  # ids go up to here: the last two rows are never asked for
SPECIALS = {  # -0, signalling NaNs of both signs, a NaN with a payload, subnormals, infinities, the largest value
    "bfloat16": [0x8000, 0x7F81, 0xFF81, 0x7FC3, 0x0001, 0x8001, 0x007F, 0x7F80, 0xFF80, 0x7F7F],
    "float16": [0x8000, 0x7C01, 0xFE01, 0x7E03, 0x0001, 0x8001, 0x03FF, 0x7C00, 0xFC00, 0x7BFF],
}
SPECIAL_ROW = 5


def _table(dtype: str) -> bits.Bits:
    """Normal values in all rows but one, which holds the special ones; rows 39 and 40 are the same."""
    table = allocate((V, H), FORMATS[dtype].uint)
    table[:] = (words(V * H).reshape(V, H).astype("u2") & 0x80FF) | 0x3F00
    table[SPECIAL_ROW] = np.resize(SPECIALS[dtype], H)
    table[40] = table[39]
    return table


def _tokens(count: int) -> np.ndarray[Any, Any]:
    """Every id that is looked up, some of them again, in no order."""
    order = np.argsort(words(count, seed=11), kind="stable")
    return (np.arange(count) % LOOKED_UP)[order]


def _tall(dtype: str) -> bits.Bits:
    """A table so large that a copy of it cannot hide."""
    table = allocate((2_200_000, 4), FORMATS[dtype].uint)
    table[:V] = 0x3F81
    return table


WORKS: dict[str, tuple[Callable[[], np.ndarray[Any, Any]], Callable[[str], bits.Bits]]] = {
    "small": (lambda: _tokens(96), _table),
    "few": (lambda: _tokens(24), _table),
    "long": (lambda: _tokens(800), _table),
    "empty": (lambda: np.zeros((2, 0), dtype="int64"), _table),
    "scalar": (lambda: np.array(7), _table),
    "bytes": (lambda: _tokens(50).astype("uint8"), _table),
    "identity": (lambda: np.arange(V), _table),
    "tall": (lambda: _tokens(40), _tall),
}
WITH_CONDITIONS = ("small", "few", "long")


@dataclasses.dataclass(frozen=True)
class Liar:
    """One fault: the lie, the clauses that must turn red, and what the first problem of the first of them says."""

    lie: Callable[..., Any]
    red: tuple[str, ...]
    says: str
    may: tuple[str, ...] = ()
    """Clauses that turn red too on some machines."""
    verbs: tuple[str, ...] = ("forward",)
    """Verbs that lie; the others are honest."""
    works: tuple[str, ...] = ("small", "empty", "scalar")
    judged: tuple[str, ...] = VERBS
    modes: tuple[str, ...] = ()
    """Transforms that are run beside the plain call."""
    dtype: str = "bfloat16"

    def golden(self, name: str) -> Golden:
        """Return the golden of the framework of that name, on the CPU, some of whose verbs lie."""
        framework = frameworks.load(name, "tests")
        verbs = {verb: getattr(framework.arrays.golden, verb) for verb in VERBS}
        for verb in self.verbs:
            verbs[verb] = functools.partial(self.lie, verbs[verb], memory={})
        return Golden(Candidate(name, framework, "cpu", verbs))

    def operator(self) -> Operator:
        """Return the embedding with the checks that the liar is put to: on its own inputs."""
        return operator_of(*_checks(self))


def operator_of(*checks: Check) -> Operator:
    """Return the embedding with other checks, and with those that every call is judged by."""
    named = {check.id for check in checks}
    rest = [each for each in EMBEDDING.checks if each.id not in named and each.calls is None]
    repeat = next(each for each in EMBEDDING.checks if each.id == "EMB-6")
    return dataclasses.replace(EMBEDDING, checks=(*checks, *rest, dataclasses.replace(repeat, calls=None)))


def _checks(liar: Liar) -> Iterator[Check]:
    """Yield the checks of the contract, each with calls on the liar's inputs."""
    calls: dict[str, list[Call]] = {}
    for verb in liar.judged:
        for work in liar.works:
            for call in _calls_on(work, verb, liar):
                calls.setdefault(call.check, []).append(call)
        calls.setdefault("EMB-4", []).extend(
            msgspec.structs.replace(bad, verb=verb, dtype=liar.dtype) for bad in BAD_IDS
        )
        calls.setdefault("EMB-4/traced", []).append(TracedRefusal(check="EMB-4/traced", verb=verb, dtype=liar.dtype))
        if "tall" in liar.works:
            calls.setdefault("EMB-12", []).append(PeakMemory(check="EMB-12", verb=verb, dtype=liar.dtype))
    for check in EMBEDDING.checks:
        if check.id in calls:
            yield dataclasses.replace(check, calls=functools.partial(_offered, check, calls[check.id]))


def _offered(check: Check, calls: list[Call], exam: Exam) -> list[Call | Skip]:
    traced = check.id != "EMB-4/traced" or exam.traits.traces
    return list(calls) if traced else [Skip("no trace")]


def _calls_on(work: str, verb: str, liar: Liar) -> Iterator[Call]:
    make_ids, make_table = WORKS[work]
    ids, table = make_ids(), make_table(liar.dtype)
    LOADED[work] = table, ids
    fields: dict[str, Any] = {
        "verb": verb, "dtype": liar.dtype, "vocab": table.shape[0], "hidden": table.shape[1], "table": work,
        "ids": work, "shape": ids.shape, "id_dtype": ids.dtype.name,
    }  # fmt: skip
    yield Forward(check=CLAUSES_OF_EVERY_CALL.accuracy[verb], repeats=2, **fields)
    if work not in WITH_CONDITIONS:
        return
    for plan, groups in PLANS.items():
        for group in range(len(groups(ids, np.arange(ids.size), table.shape[0]))):
            yield Batches(check=f"EMB-7/{plan}", plan=plan, group=group, **fields)
    for layout in STRIDED_TABLES:
        yield Forward(check="EMB-7/layout", layout=layout, **fields)
    for layout in ("strided", "transposed"):
        yield Forward(check="EMB-7/layout", id_layout=layout, **fields)
    for mode in liar.modes:
        yield Forward(check="EMB-7/mode", mode=mode, **fields)


def verdicts_of(liar: Any, name: str) -> list[Verdict]:
    """Return what `verify` says of a liar in the framework of that name."""
    return report_on(liar.operator(), liar.golden(name), dtype=liar.dtype).verdicts


def report_on(operator: Operator, *goldens: Any, dtype: str = "bfloat16") -> Report:
    """Return the report on goldens that make the calls of an operator."""
    return confirmed(operator, goldens, tier=Tier.SMOKE, dtypes=(dtype,))


def reds(verdicts: list[Verdict]) -> dict[str, list[str]]:
    """Return the problems of the verdicts that did not pass, by clause."""
    found: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome is not Outcome.PASS:
            found.setdefault(verdict.clause, []).extend(verdict.problems)
    return found


def registry() -> tuple[dict[str, Liar], Callable[..., Any]]:
    """Return an empty dictionary of liars by fault, and the decorator `(*red, says=..., ...)` that adds a lie to it."""
    liars: dict[str, Liar] = {}

    def liar(*red: str, says: str, **how: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(lie: Callable[..., Any]) -> Callable[..., Any]:
            liars[lie.__name__] = Liar(lie, red, says, **how)
            return lie

        return register

    return liars, liar
