"""A second operator, whole: `row_scale(x [T, H], w [H]) -> x * w`, each product rounded once.

Nothing in the package knows it: it is found by an entry point, and has all that the tools ask of an operator.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import numpy as np

from xref.bits import FORMATS
from xref.engine.calls import Clauses, Invocation
from xref.engine.compare import Exactly
from xref.engine.steps import Put, Run, Script
from xref.exact import decode, round_once
from xref.inputs import make_table
from xref.spec import Call, Check, Clause, Exam, Failure, Fault, Operator, Skip, Suspect, check, declared

__all__ = ["OPERATOR"]

CLAUSES = (
    Clause("ROW-1", "scale", "out[t, h] is x[t, h] * w[h], rounded once to nearest, ties to even."),
    Clause("ROW-2", "form", "Shape, dtype and device of x."),
    Clause("ROW-3", "purity", "Inputs keep their bits; the output shares memory with neither."),
    Clause("ROW-4", "repeat", "The same inputs give the same bits, run after run."),
)
ROUNDED_TO_ZERO = Fault("rounded-to-zero", "elements one step nearer to zero", "a small bias, layer after layer")


def _product(x: int, w: int, fmt: object) -> int:
    (a, m), (b, n) = decode(x, fmt), decode(w, fmt)
    return round_once(a * b, m + n, fmt) | ((x ^ w) & fmt.sign)  # a product of zero has a sign, too


class Scale(Invocation, frozen=True, kw_only=True, tag="row-scale"):
    """Rows of some numbers, and the factors of the columns."""

    verb: str = "row_scale"
    tokens: int
    hidden: int

    clauses: ClassVar[Clauses] = Clauses(accuracy={"row_scale": "ROW-1"}, form="ROW-2", purity="ROW-3", repeat="ROW-4")

    def __str__(self) -> str:
        again = f", {self.repeats + 1} times" if self.repeats else ""
        return f"row_scale {self.dtype} {self.tokens}x{self.hidden}{again}"

    def inputs(self, exam: Exam) -> tuple[Put, ...]:
        make = functools.partial(make_table, "gaussian", hidden=self.hidden, fmt=FORMATS[self.dtype])
        x, w = make(vocab=self.tokens), make(vocab=1)[0]
        return Put(name="x", array=x, dtype=self.dtype), Put(name="w", array=w[::-1].copy(), dtype=self.dtype)

    def rule(self, script: Script) -> Exactly:
        x, w = script.array("x"), script.array("w")
        fmt = FORMATS[self.dtype]
        rows = [[_product(int(a), int(b), fmt) for a, b in zip(row, w, strict=True)] for row in x]
        return Exactly(np.array(rows, fmt.uint).reshape(x.shape), fmt)

    def sizes(self) -> dict[str, int]:
        return {"tokens": self.tokens, "columns": self.hidden}

    def resized(self, name: str, size: int) -> Call:
        return msgspec.structs.replace(self, **{{"tokens": "tokens", "columns": "hidden"}[name]: size})


@check("ROW-1", judgment="accuracy", text="each product, rounded once")
def products(exam: Exam) -> Iterator[Call | Skip]:
    tried = [dtype for dtype in exam.dtypes if dtype in ("float32", "bfloat16")]
    if not tried:
        yield Skip("no dtype whose products are rounded once in every framework")
    yield from (Scale(check="ROW-1", dtype=dtype, tokens=t, hidden=h) for dtype in tried for t, h in ((1, 5), (33, 17)))


form = Check(id="ROW-2", judgment="accuracy", text="shape, dtype and device of x")
purity = Check(id="ROW-3", judgment="conduct", text="inputs keep their bits", against="inputs before")


@check("ROW-4", judgment="conduct", text="the same call again gives the same bits", against="first call")
def repeated(exam: Exam) -> Iterator[Call | Skip]:
    yield Scale(check="ROW-4", dtype="float32", tokens=7, hidden=9, repeats=3)


def explain(call: Call, failure: Failure, make: object) -> Iterator[Suspect]:
    """Return the fault where all wrong elements are one step nearer to zero."""
    if failure.check == "ROW-1" and isinstance(failure.evidence, tuple):
        got, rule = failure.evidence
        if ((got == rule.bits) | (got == rule.bits - 1)).all():
            yield Suspect(0.9, ROUNDED_TO_ZERO.name, "every wrong element is one step nearer to zero")


def trial() -> dict[str, Script]:
    call = Scale(check="ROW-1", dtype="float32", tokens=2, hidden=3)
    return {
        "row_scale": Script("float32", (*call.inputs(None), Run(name="out", verb="row_scale", arguments=("x", "w"))))
    }


OPERATOR = Operator(
    name="row_scale",
    version=1,
    verbs=("row_scale",),
    clauses=CLAUSES,
    checks=declared(SimpleNamespace(products=products, form=form, purity=purity, repeated=repeated)),
    faults=(ROUNDED_TO_ZERO,),
    calls=(Scale,),
    goldens={"torch": "support.row_scale_torch", "jax": "support.row_scale_jax"},
    native="",
    trial=trial,
    explain=explain,
)
