"""What is examined of calls one after another: none may depend on the ones before it."""

from __future__ import annotations

from collections.abc import Iterator

from xref.operators.embedding.calls.history import CHECK, NUMPY, SCENARIOS, History
from xref.operators.embedding.clauses import main_dtypes, pairs
from xref.operators.embedding.examine.forward import id_dtype
from xref.spec import Call, Exam, Skip, Tier, check

__all__ = ["histories"]

_SIZES = ((50, 9, 33), (70, 9, 1), (300, 64, 257), (350, 8, 1025))
_JAX_SIZES = ((301, 33, 257),)
"""Rows, width, tokens: of no sweep, whose calls a kernel may have kept."""


@check(
    CHECK,
    judgment="forward_invariance",
    text="whatever was called before: other tables, changed ones, many calls",
)
def histories(exam: Exam) -> Iterator[Call | Skip]:
    """Yield every scenario that the framework has, on small and larger inputs."""
    jax, main = exam.traits.framework == "jax", main_dtypes(exam.dtypes)
    for verb, dtype in pairs(exam):
        if dtype not in main and (jax or exam.pinned or exam.tier is Tier.SMOKE):
            continue
        for n, scenario in enumerate(SCENARIOS):
            if scenario == ("arrays overwritten" if jax else NUMPY):
                continue
            for vocab, hidden, tokens in _JAX_SIZES if jax else _SIZES:
                # A number of rows for each scenario: what a kernel has kept of one is not what it needs in another.
                rows = vocab if jax else vocab + n
                yield History(
                    check=CHECK, verb=verb, dtype=dtype, vocab=rows, hidden=hidden, table="hashed", ids="zipf",
                    shape=(tokens,), id_dtype=id_dtype(exam, dtype), scenario=scenario,
                )  # fmt: skip
