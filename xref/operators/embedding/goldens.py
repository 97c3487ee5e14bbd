"""The goldens' gradients as verbs that the engine can call: dense, by rows, and accumulated in micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from xref.bits import FORMATS
from xref.engine.frameworks import Framework

__all__ = ["ACCUMULATED", "BY_ROWS", "MOST_PARTS", "verbs_of_gradient"]

BY_ROWS, ACCUMULATED = "by_rows", "accumulated"
"""Verbs that give the bits of `backward` in another way."""

_MICRO_BATCH = 64
_CUTS = (_MICRO_BATCH, 3 * _MICRO_BATCH)  # where tokens are shared out among accumulators
MOST_PARTS = len(_CUTS) + 1


def verbs_of_gradient(framework: Framework) -> Mapping[str, Callable[..., Any]]:
    """Return the verbs of a framework's golden, each `(token_ids, cotangent, vocab_size, **options) -> [V, H]`.

    Options are `dtype`, the name of the result's (the cotangent's if there is none), and `padding_idx`. `accumulated`
    takes `parts` too: among how many accumulators the tokens are shared out. `grad_rows` returns what the golden does.
    """
    arrays = framework.arrays

    def options(cotangent: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, "dtype": arrays.dtype_of(given["dtype"]) if given.get("dtype") else cotangent.dtype}

    def backward(ids: Any, cotangent: Any, vocab: int, **given: Any) -> Any:
        return arrays.golden.grad_weight(ids, cotangent, vocab, **options(cotangent, given))

    def grad_rows(ids: Any, cotangent: Any, vocab: int, **given: Any) -> Any:
        return arrays.golden.grad_rows(ids, cotangent, vocab_size=vocab, **options(cotangent, given))

    def by_rows(ids: Any, cotangent: Any, vocab: int, **given: Any) -> Any:
        row_ids, rows = grad_rows(ids, cotangent, vocab, **given)
        dtype, device = arrays.form_of(rows)[1:]
        dense = np.zeros((vocab, rows.shape[1]), FORMATS[dtype].uint)
        dense[arrays.numpy_of(row_ids)] = arrays.bits_of(rows)
        return arrays.put(dense, dtype, device)

    def accumulated(ids: Any, cotangent: Any, vocab: int, *, parts: int = 1, **given: Any) -> Any:
        device, hidden = arrays.form_of(cotangent)[2], cotangent.shape[-1]
        ids, cotangent = ids.reshape(-1), cotangent.reshape(-1, hidden)

        def fresh() -> Any:
            return arrays.accumulator(vocab, hidden, device, padding_idx=given.get("padding_idx"))

        total, ends = fresh(), [0, *_CUTS[: parts - 1], ids.shape[0]]
        for first, last in itertools.pairwise(ends):
            rank = fresh()
            for start in range(first, last, _MICRO_BATCH):
                batch = slice(start, min(start + _MICRO_BATCH, last))
                rank.add(ids[batch], cotangent[batch])
            total.merge(rank)
        return total.result(options(cotangent, given)["dtype"])

    return {"backward": backward, BY_ROWS: by_rows, ACCUMULATED: accumulated, "grad_rows": grad_rows}
