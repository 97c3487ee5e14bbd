"""Conditions change what surrounds a token and nothing else: each token once, in the surroundings its name promises."""

from __future__ import annotations

import numpy as np
import pytest

from xref.judge.conditions import CONDITIONS, FILLER, TABLE_LAYOUTS, restore

VOCAB = 300
SIZES = (*range(1, 14), 96, 257)


def ids_of(size, vocab=VOCAB, dtype="int64"):
    return (np.arange(size) * 37 % min(vocab, np.iinfo(dtype).max + 1)).astype(dtype)


def groups_of(name, size, vocab=VOCAB, dtype="int64"):
    return list(CONDITIONS[name](ids_of(size, vocab, dtype), np.arange(size), vocab))


def batches_of(name, size, **how):
    return [batch for group in groups_of(name, size, **how) for batch in group]


def row_of(batch):
    return batch.keys.reshape(-1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONDITIONS)
def test_each_group_holds_each_token_once(name, size):
    groups = groups_of(name, size)
    assert groups
    for group in groups:
        keys = np.concatenate([row_of(batch) for batch in group])
        np.testing.assert_array_equal(np.sort(keys[keys != FILLER]), np.arange(size))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CONDITIONS)
def test_a_key_stands_where_its_id_stands(name, size):
    for batch in batches_of(name, size):
        assert batch.ids.shape == batch.keys.shape
        keys = row_of(batch)
        np.testing.assert_array_equal(batch.ids.reshape(-1)[keys != FILLER], ids_of(size)[keys[keys != FILLER]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
@pytest.mark.parametrize("name", CONDITIONS)
def test_fillers_are_valid_ids_of_the_same_dtype(name, dtype):
    for vocab in (1, 2, VOCAB):
        for batch in batches_of(name, 21, vocab=vocab, dtype=dtype):
            assert batch.ids.dtype == dtype
            assert batch.ids.size == 0 or 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < vocab


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_condition_is_never_the_plain_call(name):
    plain = ids_of(257)
    for group in groups_of(name, 257):
        [first, *rest] = group
        same = not rest and first.layout == "dense" and first.ids.shape == plain.shape
        if same and np.array_equal(first.ids, plain):  # the memory must differ, then
            assert not first.ids.flags.c_contiguous or first.ids.ctypes.data % 16 or not first.ids.flags.writeable


def test_population_is_each_token_alone_and_twice_as_many_at_once():
    alone, crowd = groups_of("population", 12)
    assert [batch.ids.shape for batch in alone] == [(1,)] * 12
    assert [batch.ids.shape for batch in crowd] == [(24,)]


def test_position_puts_every_token_where_another_stood():
    groups = groups_of("position", 12)
    assert len(groups) == 3
    for [batch] in groups:
        assert (batch.keys != np.arange(12)).all()


def test_neighbours_are_one_filler_after_each_token_and_both_ends_of_the_table_among_them():
    fillers = []
    for [batch] in groups_of("neighbours", 12):
        np.testing.assert_array_equal(batch.keys[::2], np.arange(12))
        assert (batch.keys[1::2] == FILLER).all()
        fillers.append(batch.ids[1::2])
    assert (fillers[0] == 0).all()
    assert (fillers[1] == VOCAB - 1).all()
    assert (fillers[2] == ids_of(12)[::-1]).all()


def test_padding_is_left_or_right_and_a_whole_row_with_either_end_of_the_table():
    seen = set()
    for [batch] in groups_of("padding", 37):
        assert batch.ids.shape == (4, 19)
        assert (batch.keys[-1] == FILLER).all()
        left, right = (batch.keys[:, :3] == FILLER).all(), (batch.keys[:, -3:] == FILLER).all()
        assert left != right
        [pad] = np.unique(batch.ids[batch.keys == FILLER])
        seen.add((bool(left), int(pad)))
    assert seen == {(left, pad) for left in (True, False) for pad in (0, VOCAB - 1)}


def test_layout_has_every_rank_stride_and_table_that_it_names():
    batches = [batch for batch in batches_of("layout", 37) if batch.ids.size > 1]
    assert {batch.ids.shape for batch in batches} == {(2, 18), (3, 1, 2, 6), (36, 1), (37,)}
    dense = [batch.ids for batch in batches if batch.layout == "dense"]
    assert any(ids.shape == (2, 18) and ids.strides == (8, 16) for ids in dense)  # transposed
    assert any(ids.shape == (37,) and ids.strides == (16,) for ids in dense)  # every second element
    assert any(ids.shape == (37,) and ids.base is not None and ids.base.size == 38 for ids in dense)  # offset by one
    assert any(not ids.flags.writeable for ids in dense)
    assert {batch.layout for batch in batches} == {"dense", *TABLE_LAYOUTS}


def test_chunks_do_not_divide_the_tokens():
    sizes = [[batch.ids.size for batch in group] for group in groups_of("chunked", 257)]
    assert sizes == [[7] * 36 + [5], [100, 100, 57]]


def test_decode_takes_one_token_of_each_sequence_and_the_last_step_has_fewer():
    assert [batch.ids.shape for batch in batches_of("decode", 37)] == [(8, 1)] * 4 + [(5, 1)]


def test_permuted_orders_differ_from_each_other_and_from_the_plain_one():
    orders = {tuple(batch.keys) for batch in batches_of("permuted", 37)}
    assert len(orders) == 4
    assert tuple(range(37)) not in orders
    assert tuple(range(36, -1, -1)) in orders


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("name", TABLE_LAYOUTS)
def test_a_layout_holds_the_same_elements_elsewhere(name, dtype):
    table = np.arange(7 * 5).reshape(7, 5).astype(dtype)
    laid = TABLE_LAYOUTS[name](table)
    np.testing.assert_array_equal(laid, table)
    assert laid.dtype == table.dtype
    assert not np.shares_memory(laid, table)


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("transposed", (4, 28)),
        ("every second column", (40, 8)),
        ("rows and columns between others", (56, 4)),
        ("offset by one element", (20, 4)),
        ("read-only", (20, 4)),
    ],
)
def test_a_layout_has_the_strides_that_it_names(name, strides):
    table = np.arange(35, dtype="u4").reshape(7, 5)
    laid = TABLE_LAYOUTS[name](table)
    assert laid.strides == strides
    assert laid.flags.writeable == (name != "read-only")
    if name == "offset by one element":
        assert laid.ctypes.data % 8 == 4
    if name == "rows and columns between others":
        around = laid.base
        assert around.shape == (14, 7)
        assert around.sum() == table.sum()  # what lies between is none of the table's


def test_every_layout_has_its_strides_tested():
    [marker] = test_a_layout_has_the_strides_that_it_names.pytestmark
    assert {name for name, _ in marker.args[1]} == set(TABLE_LAYOUTS)


def rows_for(keys):
    return np.stack([np.array([10 * key, 10 * key + 1]) for key in np.ravel(keys)]).reshape(*np.shape(keys), 2)


def test_restore_puts_rows_in_the_order_of_their_keys_and_drops_fillers():
    parts = [(np.array([[3, FILLER], [0, 2]]), rows_for([[3, -1], [0, 2]])), (np.array([1]), rows_for([1]))]
    np.testing.assert_array_equal(restore(parts, 4, "here"), rows_for([0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([0, 1, 3], "key 2: got 0 results, expected exactly one [torch.forward, condition position]"),
        ([0, 1, 2], "key 3: got 0 results, expected exactly one [torch.forward, condition position]"),
        ([0, 1, 1, 2, 3], "key 1: got 2 results, expected exactly one [torch.forward, condition position]"),
        ([0, 1, 2, 3, 4], "key 4: got 1 result, expected none [torch.forward, condition position]"),
        ([0, 1, 2, 3, 9, 9], "key 9: got 2 results, expected none [torch.forward, condition position]"),
        ([FILLER, FILLER], "key 0: got 0 results, expected exactly one [torch.forward, condition position]"),
    ],
    ids=["missing", "missing last", "doubled", "extra", "extra far off", "fillers alone"],
)
def test_restore_refuses_keys_that_are_not_each_there_once(keys, message):
    with pytest.raises(ValueError, match="key") as caught:
        restore([(np.array(keys), rows_for(keys))], 4, "torch.forward, condition position")
    assert str(caught.value) == message
