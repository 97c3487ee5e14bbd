"""What the tests of torch's exact gradient share: every form of it held to the oracle, or one sum."""

from __future__ import annotations

import importlib.util

import numpy as np

from support.gradient_cases import SIXTEEN, WIDE, dense, oracle
from support.helpers import assert_same_bits
from xref.bits import FORMATS

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.arrays import bits_of, put
    from xref.torch_ops.embedding import GradAccumulator, grad_rows, grad_weight

SOURCES = (*WIDE, *SIXTEEN)


def cotangents(elements, source):
    return put(elements, source, "cpu")


def assert_exact(ids, elements, source, target, vocab_size=64):
    """Hold every form to the oracle: the rows, the dense gradient, an accumulator of three pieces."""
    row_ids, rows = oracle(ids, elements, source, target)
    token_ids, cotangent, dtype = put(ids, None, "cpu"), cotangents(elements, source), getattr(torch, target)
    got_ids, got = grad_rows(token_ids, cotangent, dtype=dtype)
    assert_same_bits(got_ids.numpy(), row_ids)
    assert_same_bits(bits_of(got), rows)
    table = dense(row_ids, rows, vocab_size)
    assert_same_bits(bits_of(grad_weight(token_ids, cotangent, vocab_size, dtype=dtype)), table)
    accumulator = GradAccumulator(vocab_size, elements.shape[-1])
    for part in torch.arange(ids.size).chunk(3):
        accumulator.add(token_ids.reshape(-1)[part], cotangent.reshape(ids.size, -1)[part] if ids.size else cotangent)
    assert_same_bits(bits_of(accumulator.result(dtype)), table)


def summed(elements, source, target):
    """Return the gradient's one element where one row has these cotangents of one column."""
    column = np.array(elements, dtype=FORMATS[source].uint).reshape(-1, 1)
    ids = torch.zeros(len(elements), dtype=torch.int64)
    return int(bits_of(grad_rows(ids, cotangents(column, source), dtype=getattr(torch, target))[1])[0, 0])
