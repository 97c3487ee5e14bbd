"""Goldens that are wrong in one way each, named after their fault, and the inputs on which they must be found out.

A lie is a function `(run, ids, table, memory) -> out`: `run` is the honest verb, `memory` a dictionary that lasts as
long as the liar. `red` are the clauses that it breaks: all of them must fail, and no other. A golden whose output has
another form cannot be compared at all, so that it breaks the clauses of accuracy too.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from xref import bits
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.inputs import allocate, words
from xref.judge import frameworks
from xref.judge.run import Workload, examine, examine_bad_ids, expect
from xref.judge.subject import FIXTURES, Subject
from xref.judge.verdict import Ledger, Outcome

__all__ = ["TITLES", "WORKS", "H", "Liar", "Lying", "V", "build", "judged", "reds", "registry", "verdicts_of"]

TITLES = {FIXTURES: "inputs as pinned"} | {clause.id: clause.title for clause in contract.CLAUSES}
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


def build(name: str, dtype: str = "bfloat16", verbs: tuple[str, ...] = contract.VERBS) -> Workload:
    """Return a workload in memory of its own, since a liar may change it."""
    make_ids, make_table = WORKS[name]
    ids, table = make_ids(), make_table(dtype)
    work = Workload.of(f"{name} {dtype}", dtype, ids, table, conditions=name in WITH_CONDITIONS)
    return dataclasses.replace(work, answers={verb: work.answers[verb] for verb in work.answers if verb in verbs})


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
    judged: tuple[str, ...] = contract.VERBS
    modes: tuple[str, ...] = ()
    """Ways of calling that are run beside the plain one."""
    dtype: str = "bfloat16"

    def subject(self, name: str) -> Subject:
        """Return the framework of that name, on the CPU, with this liar for its golden."""
        honest = frameworks.load(name, "tests")
        golden = types.SimpleNamespace(**{verb: getattr(honest.golden, verb) for verb in contract.VERBS})
        for verb in self.verbs:
            setattr(golden, verb, functools.partial(self.lie, getattr(golden, verb), memory={}))
        return Subject(Lying(honest, golden, self.modes), "cpu")


class Lying:
    """A framework with another golden, and only some of its modes."""

    def __init__(self, honest: Any, golden: Any, modes: tuple[str, ...]) -> None:
        self._honest, self.golden, self._modes = honest, golden, modes

    def modes(self) -> dict[str, Any]:
        return {name: mode for name, mode in self._honest.modes().items() if name in self._modes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)


def verdicts_of(liar: Liar, name: str) -> list[Any]:
    """Return what the engine says of a liar in the framework of that name."""
    return judged(liar.subject(name), [build(work, liar.dtype, liar.judged) for work in liar.works], liar.judged)


def judged(subject: Subject, works: list[Workload], verbs: tuple[str, ...] = contract.VERBS) -> list[Any]:
    """Return the verdicts on a subject that is run on workloads and on bad ids."""
    ledger = Ledger(TITLES)
    expect([subject], verbs, ledger, refusals=True, conditions=any(work.conditions for work in works))
    for work in works:
        examine(subject, work, ledger)
    examine_bad_ids(subject, works[0].dtype, ledger)
    return ledger.verdicts()


def reds(verdicts: list[Any]) -> dict[str, list[str]]:
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
