"""Tokens grouped by row and cut into blocks."""

from __future__ import annotations

import importlib.util
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from support.gradient_cases import finite_bits, oracle
from support.helpers import assert_same_bits
from support.torch_gradients import cotangents

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.arrays import bits_of
    from xref.torch_ops.embedding import GradAccumulator, grad_rows, grad_weight
    from xref.torch_ops.exact_sums import segments as grouping


@pytest.mark.parametrize(
    ("kind", "vocab_size", "elements", "counted"),
    [
        ("cuda", 100, 100, True),
        ("cuda", 101, 100, False),
        ("cuda", 100, 2**25, True),
        ("cuda", 100, 2**25 + 1, False),
        ("cpu", 100, 100, False),
    ],
)
def test_where_rows_are_counted(kind, vocab_size, elements, counted):
    bits = SimpleNamespace(device=torch.device(kind), is_cuda=kind == "cuda", numel=lambda: elements)
    assert grouping.counting_pays(bits, vocab_size) is counted


@pytest.mark.parametrize("source", ["float64", "float32", "bfloat16"])
def test_blocks_do_not_matter(source, monkeypatch):
    """The size of blocks cuts rows apart, and columns where a row has more tokens than a block holds."""
    rng = np.random.default_rng(23)
    ids = np.concatenate([np.repeat(np.arange(12), np.arange(12)), np.full(150, 12)])
    elements = finite_bits(rng, (ids.size, 40), source, binades=9)
    _, expected = oracle(ids, elements, source, source)
    for size, narrowest in itertools.product((8, 320, 4000, 2**24), (1, 16)):
        monkeypatch.setattr(grouping, "_CPU_BYTES", size)
        monkeypatch.setattr(grouping, "_NARROWEST", narrowest)
        got = grad_rows(torch.from_numpy(ids), cotangents(elements, source))[1]
        assert_same_bits(bits_of(got), expected)
        assert_same_bits(bits_of(grad_weight(torch.from_numpy(ids), cotangents(elements, source), 13))[1:], expected)
        if narrowest > 1:
            accumulator = GradAccumulator(13, 40)
            accumulator.add(torch.from_numpy(ids), cotangents(elements, source))
            assert_same_bits(bits_of(accumulator.result_rows(getattr(torch, source))[1]), expected)


def test_blocks_cover_every_segment_and_column_once():
    segments = grouping.by_row(
        grouping.sorted_ids(torch.tensor([3, 1, 1, 7, 3, 3, 9, 2, 2, 2, 2, 2]), 9), 9, padding_idx=None
    )
    assert segments.out_of_range
    assert not grouping.by_row(grouping.sorted_ids(torch.tensor([1, 0]), 2), 2, padding_idx=0).out_of_range
    assert segments.rows.tolist() == [7, 1, 2, 3]
    assert segments.counts.tolist() == [1, 2, 5, 3]
    assert [sorted(part) for part in np.split(segments.positions.numpy(), [1, 3, 8])] == [
        *([3], [1, 2]),
        *([7, 8, 9, 10, 11], [0, 4, 5]),
    ]
    assert segments.segment_of.tolist() == [0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]
    covered = np.zeros((4, 50), dtype=int)
    blocks = list(grouping.blocks(segments, 50))
    for block in blocks:
        covered[block.segments, block.columns] += 1
    assert (covered == 1).all()
    cut = [(block.segments, block.longest, block.size) for block in blocks]
    assert cut == [(slice(0, 1), 1, 1), (slice(1, 4), 5, 3)]


@pytest.mark.parametrize("padding_idx", [None, 2, 9])
def test_rows_of_several_tokens(padding_idx):
    ids = torch.tensor([3, 1, 1, 7, 3, 3, 9, 2, 2, 0])
    rows, positions = grouping.shared_rows(ids, 10, padding_idx)
    kept = [row for row in (1, 2, 3) if row != padding_idx]
    assert rows.tolist() == kept
    assert positions.tolist() == [at for at, row in enumerate(ids.tolist()) if row in kept]
    segments = grouping.of_rows(rows, positions, ids)
    assert [kept[segment] for segment in segments.segment_of] == ids[positions].tolist()
    (block,) = grouping.blocks(segments, 50)
    assert block.longest >= 3
    assert not list(grouping.blocks(grouping.of_rows(*grouping.shared_rows(ids[5:7], 10, None), ids[5:7]), 50))
