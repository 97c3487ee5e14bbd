"""Shrinking: the smallest call that still fails, for kernels that are wrong in one way each."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from test_probes import of

from xref.judge.probes import Probe
from xref.judge.shrink import bad, smallest

LARGE = Probe(dtype="float32", vocab=300, hidden=65, table="hashed", ids="zipf", shape=(257,))


def shrunk(kernel, probe=LARGE):
    """The smallest probe that still fails, and how many calls it took."""
    calls = []

    def counted(ids, table):
        calls.append(1)
        return kernel(ids, table)

    prober = of(counted)
    seen = smallest(prober.run(probe), prober)
    assert bad(seen)
    return seen.probe, len(calls)


def wrong_for(which, *, columns=slice(None)):
    """A gather whose rows are wrong where `which(ids, table)` holds."""

    def kernel(ids, table):
        out = table[ids]
        where = np.broadcast_to(which(ids, table), ids.shape)
        changed = out.copy()
        changed[..., columns] ^= 1
        return np.where(where[..., None], changed, out)

    return kernel


def test_wrong_everywhere_comes_down_to_one_token_one_row_and_one_column():
    probe, _ = shrunk(lambda ids, table: table[ids] ^ 1)
    assert (len(probe.ids), probe.shape, probe.vocab, probe.hidden) == (1, (1,), 1, 1)


def test_wrong_for_one_id_keeps_that_id_alone():
    probe, _ = shrunk(wrong_for(lambda ids, table: ids == 7))
    assert (probe.ids, probe.shape, probe.vocab, probe.hidden) == ((7,), (1,), 8, 1)


def test_wrong_for_ids_from_a_number_on():
    probe, _ = shrunk(wrong_for(lambda ids, table: ids >= 128), msgspec.structs.replace(LARGE, ids="hot"))
    assert (len(probe.ids), probe.vocab, probe.hidden) == (1, probe.ids[0] + 1, 1)


def test_wrong_for_the_last_row_of_any_table():
    probe, _ = shrunk(
        wrong_for(lambda ids, table: ids == table.shape[0] - 1), msgspec.structs.replace(LARGE, ids="ends")
    )
    assert (probe.ids, probe.vocab, probe.hidden) == ((0,), 1, 1)


def test_wrong_above_33_tokens():
    probe, _ = shrunk(wrong_for(lambda ids, table: ids.size > 33))
    assert (probe.shape, probe.vocab, probe.hidden) == ((34,), max(probe.ids) + 1, 1)


def test_wrong_above_256_tokens_is_small_in_all_else():
    probe, _ = shrunk(
        wrong_for(lambda ids, table: ids.size > 256), msgspec.structs.replace(LARGE, shape=(4097,), vocab=997)
    )
    assert (probe.shape, probe.hidden) == ((257,), 1)
    assert probe.vocab <= 997


def test_wrong_last_column_of_odd_widths():
    probe, _ = shrunk(
        lambda ids, table: wrong_for(lambda ids, table: table.shape[1] % 2 == 1, columns=slice(-1, None))(ids, table)
    )
    assert (len(probe.ids), probe.hidden) == (1, 1)


def test_wrong_columns_past_a_tile():
    probe, _ = shrunk(wrong_for(lambda ids, table: True, columns=slice(32, None)))
    assert (len(probe.ids), probe.vocab, probe.hidden) == (1, 1, 33)


def test_wrong_at_a_position_keeps_so_many_tokens():
    def kernel(ids, table):
        out = table[ids]
        out[5:6] ^= 1
        return out

    probe, _ = shrunk(kernel)
    assert (probe.shape, probe.hidden) == ((6,), 1)


def strides_ignored(ids, table):
    if table.flags.c_contiguous:
        return table[ids]
    base = np.lib.stride_tricks.as_strided(table, table.shape, (table.shape[1] * table.itemsize, table.itemsize))
    return base[ids]


def ids_strides_ignored(ids, table):
    dense = np.lib.stride_tricks.as_strided(ids, ids.shape, (ids.itemsize,)) if ids.ndim == 1 else ids
    return table[dense]


def test_a_layout_that_it_takes_is_kept():
    probe, _ = shrunk(strides_ignored, msgspec.structs.replace(LARGE, layout="transposed", id_layout="strided"))
    assert (probe.layout, probe.id_layout) == ("transposed", "dense")
    assert len(probe.ids) <= 2


def test_a_layout_of_ids_that_it_takes_is_kept():
    probe, _ = shrunk(ids_strides_ignored, msgspec.structs.replace(LARGE, layout="transposed", id_layout="strided"))
    assert (probe.layout, probe.id_layout) == ("dense", "strided")
    assert (len(probe.ids), probe.hidden) == (2, 1)


def test_what_it_does_not_take_becomes_plain():
    probe, _ = shrunk(
        lambda ids, table: table[ids] ^ 1,
        msgspec.structs.replace(
            LARGE, shape=(4, 9), id_dtype="uint16", layout="transposed", id_layout="strided", seed=9
        ),
    )  # fmt: skip
    assert (probe.id_dtype, probe.layout, probe.id_layout, probe.seed, probe.shape) == (
        "int64", "dense", "dense", 0, (1,),
    )  # fmt: skip


def test_an_id_dtype_that_it_takes_is_kept():
    probe, _ = shrunk(
        wrong_for(lambda ids, table: ids.dtype == np.uint16), msgspec.structs.replace(LARGE, id_dtype="uint16")
    )
    assert probe.id_dtype == "uint16"


def test_a_shape_that_it_takes_is_kept():
    probe, _ = shrunk(wrong_for(lambda ids, table: ids.ndim == 2), msgspec.structs.replace(LARGE, shape=(4, 9)))
    assert len(probe.shape) == 2
    assert probe.hidden == 1


def raising_above(limit, error):
    def kernel(ids, table):
        if ids.size > limit:
            raise error(f"too many: {ids.size}")
        return table[ids] if ids.size > 4 else table[ids] ^ 1

    return kernel


def test_another_failure_is_not_taken_for_this_one():
    """It raises above 16 tokens, and gives wrong bits up to 4."""
    probe, _ = shrunk(raising_above(16, RuntimeError))
    assert probe.shape == (17,)


def misformed(ids, table):
    return table[ids][:-1]


@pytest.mark.parametrize("kernel", [misformed, lambda ids, table: table[ids].astype("u2")])
def test_a_wrong_form_comes_down_to_one_token(kernel):
    probe, _ = shrunk(kernel)
    assert (probe.shape, probe.hidden, probe.vocab) == ((1,), 1, 1)


def rewriting(ids, table):
    out = table[ids].copy()
    table[0, 0] ^= 1
    return out


def test_a_rewritten_table_comes_down_to_one_token():
    probe, _ = shrunk(rewriting)
    assert (probe.shape, probe.hidden) == ((1,), 1)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_empty_and_scalar_ids_are_not_shrunk_away(shape):
    def kernel(ids, table):
        if ids.ndim == 0 or ids.size == 0:
            raise ValueError("empty")
        return table[ids]

    probe, _ = shrunk(kernel, msgspec.structs.replace(LARGE, shape=shape, ids="equal"))
    assert int(np.prod(probe.shape)) == int(np.prod(shape))
    assert probe.hidden == 1


def test_an_empty_table():
    probe = Probe(dtype="float32", vocab=0, hidden=5, table="hashed", ids=(), shape=(0,))
    found, _ = shrunk(lambda ids, table: np.zeros((1, 5), np.uint32), probe)
    assert (found.vocab, found.shape) == (0, (0,))


def test_rows_of_nan_beside_the_one_that_is_read_stay():
    def kernel(ids, table):
        products = [np.where(table[i] == 0x7FC00000, table[i], table[ids[0]]) for i in range(len(table))]
        return np.stack([np.maximum.reduce(products)] * ids.size)

    probe = Probe(dtype="float32", vocab=3, hidden=1, table="poisoned", ids=(0, 0), shape=(2,))
    found, _ = shrunk(kernel, probe)
    assert (found.table, found.shape) == ("poisoned", (1,))
    assert found.vocab >= 2


def test_it_never_takes_more_than_so_many_calls():
    turn = []

    def moody(ids, table):
        turn.append(1)
        return table[ids] ^ (1 if len(turn) == 1 or ids.size > 250 else 0)

    _, calls = shrunk(moody, msgspec.structs.replace(LARGE, shape=(65537,), vocab=997))
    assert calls < 400


def test_the_smallest_fails_again_from_its_record():
    probe, _ = shrunk(wrong_for(lambda ids, table: ids.size > 33))
    again = msgspec.json.decode(probe.to_json(), type=Probe)
    assert bad(of(wrong_for(lambda ids, table: ids.size > 33)).run(again))
