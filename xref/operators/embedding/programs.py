"""What the embedding's verbs take and return, for `xref compile`."""

from __future__ import annotations

from xref.operators.embedding.clauses import VERBS, result_dtype, verbs_of

__all__ = ["COPIED", "inputs", "result", "takes"]

COPIED = 1
"""Which input's elements the output must be a pure copy of: the table's."""

Array = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def takes(verb: str, dtype: str) -> bool:
    """Return whether a verb, or the gradient, takes tables of a dtype."""
    return verb not in VERBS or verb in verbs_of(dtype)


def inputs(verb: str, dtype: str, vocab: int, hidden: int, tokens: int) -> list[Array]:
    """Return ids `[T]`, a table `[V, H]` and, for the gradient, a cotangent `[T, H]`."""
    cotangent = [] if verb in VERBS else [((tokens, hidden), dtype)]
    return [((tokens,), "int32"), ((vocab, hidden), dtype), *cotangent]


def result(verb: str, dtype: str, vocab: int, hidden: int, tokens: int) -> Array:
    """Return what comes of a verb, `[T, H]`, or of the gradient, `[V, H]`."""
    return ((tokens, hidden), result_dtype(verb, dtype)) if verb in VERBS else ((vocab, hidden), dtype)
