"""What the torch golden's gradient takes and refuses: id dtypes, ids out of range, and the wording of every message."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.helpers import raises

from xref.bits import FORMATS

pytestmark = pytest.mark.torch

if importlib.util.find_spec("torch"):  # every file can be collected without a framework
    import torch

    from xref.torch_ops.embedding import GradAccumulator, grad_rows, grad_weight

KNOWN = f"one of {', '.join(FORMATS)}"


@pytest.fixture
def ids():
    return torch.tensor([0, 1])


@pytest.fixture
def ones():
    return torch.ones(2, 3)


# Ids


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_dtype(name):
    token_ids = torch.tensor([5, 1, 5, 100]).to(getattr(torch, name))
    cotangent = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    assert grad_weight(token_ids, cotangent, 300)[[1, 5, 100], 0].tolist() == [2.0, 5.0, 8.0]
    assert grad_rows(token_ids, cotangent)[0].tolist() == [1, 5, 100]
    told = "1 of 4 ids out of range, the first at position (3,) with value 100"
    with raises(IndexError, f"token_ids: got {told}, expected 0 <= id < V=100 [grad_weight]"):
        grad_weight(token_ids, cotangent, 100)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([[0, 4], [5, -1]], "2 of 4 ids out of range, the first at position (1, 0) with value 5"),
        (-6, "1 of 1 ids out of range, the first at position () with value -6"),
        ([2**63 - 1, 0], f"1 of 2 ids out of range, the first at position (0,) with value {2**63 - 1}"),
    ],
    ids=["2-D", "0-dimensional", "the largest"],
)
def test_ids_out_of_range(values, told):
    token_ids = torch.tensor(values)
    cotangent = torch.ones(*token_ids.shape, 2)
    accumulator = GradAccumulator(5, 2)
    for call, work in (
        ("grad_weight", lambda: grad_weight(token_ids, cotangent, 5)),
        ("grad_weight", lambda: grad_weight(token_ids, cotangent, 5, padding_idx=1)),
        ("grad_rows", lambda: grad_rows(token_ids, cotangent, vocab_size=5)),
        ("GradAccumulator.add", lambda: accumulator.add(token_ids, cotangent)),
    ):
        with raises(IndexError, f"token_ids: got {told}, expected 0 <= id < V=5 [{call}]"):
            work()
    assert accumulator.state_dict()["row_ids"].numel() == 0


def test_a_table_of_no_rows_has_no_id():
    told = "1 of 1 ids out of range, the first at position (0,) with value 100000000000000000"
    with raises(IndexError, f"token_ids: got {told}, expected 0 <= id < V=0 [grad_weight]"):
        grad_weight(torch.tensor([10**17]), torch.ones(1, 2), 0)


def test_large_unsigned_ids_are_not_narrowed_first():
    token_ids = torch.from_numpy(np.array([2**63 + 1, 2**64 - 1, 1], dtype=np.uint64))
    told = f"2 of 3 ids out of range, the first at position (0,) with value {2**63 + 1}"
    with raises(IndexError, f"token_ids: got {told}, expected 0 <= id < V={2**63 - 1} [grad_rows]"):
        grad_rows(token_ids, torch.ones(3, 1))
    assert grad_rows(torch.from_numpy(np.array([2**32 - 1], np.uint32)), torch.ones(1, 1))[0].tolist() == [2**32 - 1]


def test_without_validation_a_bad_id_adds_nothing():
    token_ids, cotangent = torch.tensor([-1, 5, 2, 2**62, -(2**63), 2]), torch.full((6, 3), 1.5)
    expected = [[0.0] * 3, [0.0] * 3, [3.0] * 3]
    assert grad_weight(token_ids, cotangent, 3, validate=False).tolist() == expected
    assert grad_rows(token_ids, cotangent, vocab_size=3, validate=False)[0].tolist() == [2]
    accumulator = GradAccumulator(3, 3, validate=False)
    accumulator.add(token_ids, cotangent)
    assert accumulator.result(torch.float32).tolist() == expected


# Messages


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            lambda ids, ones: grad_weight([0], ones, 5),
            "token_ids: got list, expected torch.Tensor [grad_weight]",
        ),
        (
            lambda ids, ones: grad_weight(ids.bool(), ones, 5),
            "token_ids: got dtype bool, expected an integer dtype [grad_weight]",
        ),
        (
            lambda ids, ones: grad_rows(ids.float(), ones),
            "token_ids: got dtype float32, expected an integer dtype [grad_rows]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones.int(), 5),
            f"cotangent: got dtype int32, expected {KNOWN} [grad_weight]",
        ),
        (
            lambda ids, ones: grad_rows(ids, None),
            "cotangent: got NoneType, expected torch.Tensor [grad_rows]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones.to_sparse(), 5),
            "cotangent: got layout torch.sparse_coo, expected a dense tensor [grad_weight]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones, 5, dtype=torch.int32),
            f"dtype: got int32, expected {KNOWN} [grad_weight]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3).result("float32"),
            "dtype: got str 'float32', expected a torch.dtype [GradAccumulator.result]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3).result_rows(torch.int8),
            f"dtype: got int8, expected {KNOWN} [GradAccumulator.result_rows]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones, 5.0),
            "vocab_size: got 5.0 of type float, expected an integer [grad_weight]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3, padding_idx=True),
            "padding_idx: got True of type bool, expected an integer or None [GradAccumulator]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3).merge(None),
            (
                "other: got NoneType of builtins, expected GradAccumulator of xref.torch_ops.exact_sums.accumulator "
                "[GradAccumulator.merge]"
            ),
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3).merge(type("GradAccumulator", (), {"__module__": "mine"})()),
            (
                "other: got GradAccumulator of mine, expected GradAccumulator of xref.torch_ops.exact_sums.accumulator "
                "[GradAccumulator.merge]"
            ),
        ),
    ],
    ids=lambda value: value.split(":")[0] + "-" + value.split("got ")[1][:12] if isinstance(value, str) else "",
)
def test_type_errors(work, message, ids, ones):
    with raises(TypeError, message):
        work(ids, ones)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (
            lambda ids, ones: grad_weight(ids, ones[:1], 5),
            "cotangent: got shape (1, 3), expected shape (2, H) [grad_weight]",
        ),
        (
            lambda ids, ones: grad_weight(ids[0], ones, 5),
            "cotangent: got shape (2, 3), expected shape (H,) [grad_weight]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 4).add(ids, ones),
            "cotangent: got shape (2, 3), expected shape (2, 4) [GradAccumulator.add]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones.to("meta"), 5),
            "token_ids: got device cpu, expected the cotangent's, meta [grad_weight]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3, device="meta").add(ids, ones),
            "cotangent: got device cpu, expected the sums', meta [GradAccumulator.add]",
        ),
        (
            lambda ids, ones: grad_weight(ids[:1].expand(2**36 + 1), ones[:1, :1].expand(2**36 + 1, 1), 5),
            "token_ids: got 68719476737 ids, expected at most 68719476736 in one call [grad_weight]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 1).add(ids[:1].expand(2**36 + 1), ones[:1, :1].expand(2**36 + 1, 1)),
            "token_ids: got 68719476737 ids, expected at most 68719476736 in one call [GradAccumulator.add]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3, padding_idx=5),
            "padding_idx: got 5, expected 0 <= padding_idx < V=5 [GradAccumulator]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones, -1),
            "vocab_size: got -1, expected at least 0 [grad_weight]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones, 2**63),
            "vocab_size: got 9223372036854775808, expected at most 9223372036854775807 [grad_weight]",
        ),
        (
            lambda ids, ones: grad_rows(ids, ones, vocab_size=2**63),
            "vocab_size: got 9223372036854775808, expected at most 9223372036854775807 [grad_rows]",
        ),
        (
            lambda ids, ones: GradAccumulator(2**63, 3),
            "vocab_size: got 9223372036854775808, expected at most 9223372036854775807 [GradAccumulator]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 2**63),
            "hidden: got 9223372036854775808, expected at most 9223372036854775807 [GradAccumulator]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, -1),
            "hidden: got -1, expected at least 0 [GradAccumulator]",
        ),
        (
            lambda ids, ones: grad_weight(ids, ones, 5, padding_idx=5),
            "padding_idx: got 5, expected 0 <= padding_idx < V=5 [grad_weight]",
        ),
        (
            lambda ids, ones: grad_rows(ids, ones, vocab_size=5, padding_idx=-1),
            "padding_idx: got -1, expected 0 <= padding_idx < V=5 [grad_rows]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3).merge(GradAccumulator(6, 3)),
            "other: got vocab_size 6, expected vocab_size 5 [GradAccumulator.merge]",
        ),
        (
            lambda ids, ones: GradAccumulator(5, 3, padding_idx=1).merge(GradAccumulator(5, 3)),
            "other: got padding_idx None, expected padding_idx 1 [GradAccumulator.merge]",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_value_errors(work, message, ids, ones):
    with raises(ValueError, message):
        work(ids, ones)


def test_sizes_may_be_any_integer(ids, ones):
    expected = grad_weight(ids, ones, 5).tolist()
    assert grad_weight(ids, ones, np.int64(5)).tolist() == expected
    assert grad_weight(ids, ones, torch.tensor(5)).tolist() == expected
