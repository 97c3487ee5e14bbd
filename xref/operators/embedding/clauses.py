"""The contract of the token embedding, version 1: its clauses, its verbs, and what they return."""

from __future__ import annotations

from collections.abc import Iterator

from xref.engine.calls import Clauses
from xref.spec import Clause, Exam

__all__ = [
    "CLAUSES", "CLAUSES_OF_EVERY_CALL", "JUDGMENTS", "MAIN", "VERBS", "VERSION", "main_dtypes", "pairs",
    "result_dtype", "verbs_of",
]  # fmt: skip

VERSION = 1
VERBS = ("forward", "forward_fp32")

JUDGMENTS = ("forward_accuracy", "forward_invariance", "gradient_accuracy", "gradient_invariance", "conduct")
"""What the checks are grouped by, in the order of a report."""

MAIN = ("bfloat16", "float32")
"""The dtypes on which everything is tried; the others get what is quick."""

CLAUSES_OF_EVERY_CALL = Clauses(
    accuracy={"forward": "EMB-1", "forward_fp32": "EMB-2"}, form="EMB-3", purity="EMB-5", repeat="EMB-6"
)

CLAUSES = (
    Clause("EMB-1", "gather", "out[p, :] has the bits of weight[token_ids[p], :]; nothing is rounded, NaNs included."),
    Clause("EMB-2", "widen", "forward_fp32 is the same rows exactly widened to float32; a float64 table: TypeError."),
    Clause("EMB-3", "form", "Shape S + (H,); dtype of the table, or float32 for forward_fp32; device of the table."),
    Clause(
        "EMB-4",
        "ids",
        "An id < 0 or >= V raises IndexError with count, position, value and V, before any narrowing; ids that are no"
        " integers raise TypeError. Under a JAX trace the row is quiet NaN.",
    ),
    Clause("EMB-5", "purity", "Inputs keep their bits; the output shares memory with neither."),
    Clause("EMB-6", "repeat", "The same inputs give the same bits, run after run."),
    Clause("EMB-7", "invariance", "A token's row has the same bits whatever surrounds it in its batch or in memory."),
    Clause("EMB-8", "gradient", "d weight[v, h] is the exact sum of the cotangents of v's positions, rounded once."),
    Clause("EMB-9", "coverage", "Rows that no id names are +0 in every element; every element is written."),
    Clause(
        "EMB-10",
        "gradient invariance",
        "The gradient's bits do not depend on run, layout, padding, order of tokens, or how the batch is split.",
    ),
    Clause(
        "EMB-11",
        "specials",
        "NaN, or +inf with -inf, gives the canonical quiet NaN; one sign of inf that inf; an exact zero sum +0.",
    ),
    Clause("EMB-12", "memory", "No temporary the size of the table: extra memory grows with the tokens, not with V."),
)


def result_dtype(verb: str, dtype: str) -> str:
    """Return the dtype that a verb gives for a table of `dtype` (clause EMB-3)."""
    return dtype if verb == "forward" else "float32"


def verbs_of(dtype: str) -> tuple[str, ...]:
    """Return the verbs that take a table of `dtype`: float64 has no `forward_fp32` (clause EMB-2)."""
    return ("forward",) if dtype == "float64" else VERBS


def main_dtypes(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the dtypes that are `MAIN`, or the first if none is."""
    return tuple(dtype for dtype in dtypes if dtype in MAIN) or dtypes[:1]


def pairs(exam: Exam) -> Iterator[tuple[str, str]]:
    """Yield each verb that the subject has with each table dtype that is examined and that it takes."""
    for verb in VERBS:
        if verb in exam.traits.verbs:
            yield from ((verb, dtype) for dtype in exam.dtypes if verb in verbs_of(dtype))
