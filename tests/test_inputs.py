"""Inputs: an independent SplitMix64, what each family of tables and ids promises, and where memory is resident."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import DTYPES, NARROW_DTYPES, as_floats, assert_same_bits, derandomised, raises

from xref import inputs
from xref.bits import FORMATS

ID_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NO_IDS = np.zeros(0, np.int64)


def make(
    family: str, vocab: int, hidden: int, dtype: str, *, offset: int = 0, touched: np.ndarray = NO_IDS
) -> np.ndarray:
    return inputs.make_table(family, vocab, hidden, FORMATS[dtype], offset=offset, touched=touched)


# Words


def splitmix64(state: int, count: int) -> list[int]:
    """The generator as its authors publish it, one word after the other, in Python integers."""
    out = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(z ^ (z >> 31))
    return out


def test_the_first_words_are_the_published_ones_of_seed_zero():
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    assert splitmix64(0, 5) == published
    assert inputs.words(5).tolist() == published


@pytest.mark.parametrize("seed", [0, 1, 7, 102, 2**40 + 3])
@pytest.mark.parametrize("start", [0, 1, 65536, 2**33])
def test_words_are_those_of_an_independent_generator(seed, start):
    state = (seed * 0xD1342543DE82EF95 + start * 0x9E3779B97F4A7C15) % 2**64
    got = inputs.words(50, start=start, seed=seed)
    assert got.dtype == np.uint64
    assert got.tolist() == splitmix64(state, 50)


@derandomised
@given(seed=st.integers(0, 1000), start=st.integers(0, 500), count=st.integers(0, 100))
def test_any_part_of_the_stream_can_be_had_without_the_rest(seed, start, count):
    whole = inputs.words(start + count, seed=seed)
    assert inputs.words(count, start=start, seed=seed).tolist() == whole[start:].tolist()


# Memory


def resident_bytes() -> int:
    pages = Path("/proc/self/statm")
    if not pages.exists():
        pytest.skip("no /proc/self/statm here: resident memory cannot be read")
    return int(pages.read_text().split()[1]) * 4096


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5, 7), (300, 33)], ids=str)
def test_allocated_memory_is_zero_writable_and_aligned_for_sharing(shape):
    for dtype in (np.uint8, np.uint16, np.uint64):
        array = inputs.allocate(shape, np.dtype(dtype))
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0
        assert not array.any()


def test_two_allocations_share_nothing():
    one, other = inputs.allocate((4, 4), np.dtype(np.uint8)), inputs.allocate((4, 4), np.dtype(np.uint8))
    one[:] = 1
    assert not other.any()


def test_a_sparse_table_is_resident_only_where_it_is_touched():
    ids = np.array([0, 32767, 32768, 39999])
    before = resident_bytes()
    table = make("sparse", 40000, 65536, "bfloat16", touched=ids)
    grown = resident_bytes() - before
    assert table.size > 2**31
    assert grown < 64 << 20 < table.nbytes // 50


def test_a_sparse_table_holds_the_tagged_rows_where_it_is_touched_and_zero_elsewhere():
    ids = np.array([[7, 2], [7, 299]])
    sparse, whole = make("sparse", 300, 33, "bfloat16", touched=ids), make("hashed", 300, 33, "bfloat16")
    expected = np.zeros_like(whole)
    expected[[2, 7, 299]] = whole[[2, 7, 299]]
    assert_same_bits(sparse, expected)


# Tables


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", inputs.table_families())
def test_a_table_is_of_its_shape_and_the_same_every_time(family, dtype):
    for vocab, hidden in ((1, 1), (7, 1), (1, 7), (300, 33), (3, 70_000), (3000, 29)):
        ids = np.arange(0, vocab, 3)
        table = make(family, vocab, hidden, dtype, touched=ids)
        assert (table.shape, table.dtype) == ((vocab, hidden), FORMATS[dtype].uint)
        assert_same_bits(make(family, vocab, hidden, dtype, touched=ids), table)


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
@pytest.mark.parametrize("hidden", [1, 3, 64, 65, 100_000])
def test_patterns_count_through_the_whole_domain(dtype, hidden):
    fmt = FORMATS[dtype]
    vocab = -(-(1 << fmt.width) // hidden)
    table = make("patterns", vocab, hidden, dtype)
    assert_same_bits(table.reshape(-1), np.arange(vocab * hidden).astype(fmt.uint))
    assert np.unique(table).size == 1 << fmt.width


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 1, 65_535, 3 << 26])
def test_patterns_begin_where_they_are_told(dtype, offset):
    fmt = FORMATS[dtype]
    table = make("patterns", 40, 3001, dtype, offset=offset)
    assert_same_bits(table.reshape(-1), np.arange(offset, offset + table.size).astype(fmt.uint))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_tagged_table_is_its_addresses_where_they_fit(dtype):
    assert_same_bits(make("tagged", 300, 33, dtype).reshape(-1), np.arange(9900).astype(FORMATS[dtype].uint))


@pytest.mark.parametrize(("dtype", "vocab"), [("float16", 65_537), ("float8_e5m2", 257)])
def test_a_tagged_table_is_hashed_where_its_addresses_do_not_fit(dtype, vocab):
    assert_same_bits(make("tagged", vocab, 1, dtype), make("hashed", vocab, 1, dtype))
    assert_same_bits(make("tagged", vocab - 1, 1, dtype), make("patterns", vocab - 1, 1, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hashed_row_does_not_depend_on_the_rows_before_it(dtype):
    whole = make("hashed", 3000, 33, dtype)
    assert_same_bits(make("hashed", 40, 33, dtype, offset=1990), whole[1990:2030])


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_rows_of_a_hashed_table_are_the_same(dtype):
    assert len({row.tobytes() for row in make("hashed", 65_537, 16, dtype)}) == 65_537


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hashed_row_shifted_by_any_number_of_columns_is_another(dtype):
    table = make("hashed", 5, 1185, dtype)
    assert [k for k in range(1, 1185) if (np.roll(table, k, axis=1) == table).all(axis=1).any()] == []


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_a_hashed_table_large_enough_holds_every_pattern(dtype):
    assert np.unique(make("hashed", 20_000, 65, dtype)).size == 1 << FORMATS[dtype].width


def test_hashed_words_are_the_row_s_hash_xor_the_column_s():
    down, across = inputs.words(5, seed=6).tolist(), inputs.words(3, seed=5).tolist()
    table = make("hashed", 5, 9, "bfloat16")
    for row in range(5):
        for column in range(9):
            word = down[row] ^ across[column // 4]
            assert table[row, column] == word >> 16 * (column % 4) & 0xFFFF


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_gaussian_table_is_bell_shaped_around_zero(dtype):
    values = as_floats(make("gaussian", 1000, 256, dtype), dtype)
    deviation = values.std()
    assert 0.0178 < deviation < 0.0182
    assert abs(values.mean()) < 0.0002
    assert 0.66 < (np.abs(values) < deviation).mean() < 0.69
    assert 0.04 < (np.abs(values) > 2 * deviation).mean() < 0.05


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_gaussian_table_of_few_bits_is_cut_towards_zero_and_stays_centred(dtype):
    values = as_floats(make("gaussian", 1000, 256, dtype), dtype)
    assert 0.015 < values.std() < 0.018
    assert abs(values.mean()) < 0.0002


def test_gaussian_values_are_the_same_numbers_in_every_dtype_cut_to_its_precision():
    wide = as_floats(make("gaussian", 50, 40, "float64"), "float64")
    for dtype in DTYPES:
        fmt = FORMATS[dtype]
        values = as_floats(make("gaussian", 50, 40, dtype), dtype)
        smallest_normal = 2.0 ** (1 - fmt.bias)
        for value, got in zip(wide.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True):
            if abs(value) < smallest_normal:
                assert got == 0
                continue
            assert abs(got) <= abs(value) < abs(got) * (1 + 2.0**-fmt.mantissa_bits)
            assert (got < 0) == (value < 0)


def test_gaussian_values_are_centred_sums_of_four_uniform_integers():
    words = inputs.words(60).tolist()
    for value, word in zip(as_floats(make("gaussian", 3, 20, "float64"), "float64").reshape(-1), words, strict=True):
        lanes = [word >> 16 * n & 0xFFFF for n in range(4)]
        assert Fraction(float(value)) == Fraction(sum(lanes) - 2 * 0xFFFF, 2**21)


def test_an_unknown_family_of_tables_is_refused_with_the_list_of_known_ones():
    message = "family: got 'ones', expected one of patterns, hashed, tagged, gaussian, sparse [make_table]"
    with raises(ValueError, message):
        make("ones", 2, 2, "float32")


# Ids


@pytest.mark.parametrize("family", inputs.id_families())
@pytest.mark.parametrize(("vocab", "shape"), [(1, (1,)), (300, (7, 9)), (300, (128,)), (70_000, (100,))], ids=str)
def test_ids_are_in_range_of_table_and_dtype_and_the_same_every_time(family, vocab, shape):
    for id_dtype in ID_DTYPES:
        ids = inputs.make_ids(family, shape, vocab, id_dtype)
        assert (ids.shape, ids.dtype) == (shape, id_dtype)
        flat = ids.reshape(-1).tolist()
        assert 0 <= min(flat) <= max(flat) < vocab
        assert flat == inputs.make_ids(family, shape, vocab, id_dtype).reshape(-1).tolist()
        # In a dtype that holds all ids of the table, they are those of any other such dtype.
        if np.iinfo(id_dtype).max >= vocab - 1:
            assert flat == inputs.make_ids(family, shape, vocab, "int64").reshape(-1).tolist()


@pytest.mark.parametrize("family", sorted(set(inputs.id_families()) - {"zipf_ends"}))
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), ()], ids=str)
def test_ids_may_be_empty_or_without_dimension(family, shape):
    assert inputs.make_ids(family, shape, 300, "int32").shape == shape


def flat_ids(family: str, count: int, vocab: int, dtype: str = "int64") -> list[int]:
    return inputs.make_ids(family, (count,), vocab, dtype).tolist()


def test_every_id_comes_in_order_and_round_again():
    assert flat_ids("every", 7, 3) == [0, 1, 2, 0, 1, 2, 0]


def test_parts_together_are_every_id_once():
    for count in (4, 16):
        parts = [inputs.make_ids(f"part{n}", (151936 // count,), 151936, "int64") for n in range(count)]
        assert np.array_equal(np.concatenate(parts), np.arange(151936))


def test_distinct_ids_are_a_permutation_in_no_order():
    ids = flat_ids("distinct", 1000, 1000)
    assert sorted(ids) == list(range(1000))
    assert ids not in (sorted(ids), sorted(ids, reverse=True))
    assert len(set(flat_ids("distinct", 400, 1000))) == 400


@pytest.mark.parametrize(("count", "vocab", "dtype", "reachable"), [(6, 5, "int64", 5), (200, 1000, "int8", 128)])
def test_more_distinct_ids_than_there_are_are_refused(count, vocab, dtype, reachable):
    message = f"shape: got {count} distinct ids, expected at most {reachable} [make_ids]"
    with raises(ValueError, message):
        inputs.make_ids("distinct", (count,), vocab, dtype)


def test_covering_ids_are_each_one_once_and_frequent_ones_again_in_no_order():
    ids = flat_ids("covering", 1098, 1009)
    counts = np.bincount(ids, minlength=1009)
    assert counts.min() == 1
    assert counts.max() > 5
    assert ids != sorted(ids)


def test_zipf_ids_fall_off_as_one_over_rank():
    counts = np.bincount(flat_ids("zipf", 200_000, 4095), minlength=4095)
    octaves = [counts[(1 << k) - 1 : (1 << k + 1) - 1].sum() for k in range(12)]
    assert sum(octaves) == 200_000
    assert max(octaves) < 1.05 * min(octaves)


def test_zipf_ids_of_a_batch_repeat_and_leave_rows_unnamed():
    ids = flat_ids("zipf", 257, 300)
    assert len(set(ids)) < 200
    assert max(np.bincount(ids)) > 10


def test_zipf_with_ends_begins_with_the_first_and_the_last_row():
    assert flat_ids("zipf_ends", 5, 300)[:2] == [0, 299]


def test_a_hot_id_is_every_fourth():
    ids = flat_ids("hot", 257, 300)
    assert set(ids[::4]) == {150}
    assert len(set(ids)) > 100


def test_ends_are_the_first_and_the_last_row_in_turn():
    assert flat_ids("ends", 5, 300) == [0, 299, 0, 299, 0]


def test_sorted_and_reversed_ids_are_zipf_ids_in_order():
    ids = flat_ids("zipf", 257, 300)
    assert flat_ids("sorted", 257, 300) == sorted(ids)
    assert flat_ids("reversed", 257, 300) == sorted(ids, reverse=True)


def test_equal_ids_are_the_last_row():
    assert flat_ids("equal", 3, 300) == [299] * 3


@pytest.mark.parametrize(
    ("vocab", "edges"),
    [
        (1, {0}),
        (129, {0, 125, 126, 127, 128}),
        (300, {0, 126, 127, 128, 129, 254, 255, 256, 257, 298, 299}),
        (40_000, {127, 128, 255, 256, 32_767, 32_768, 32_769, 39_998, 39_999}),
        (65_537, {32_766, 32_767, 32_768, 65_534, 65_535, 65_536}),
        (2**24 + 3, {65_535, 65_536, 65_537, 2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2}),
    ],
)
def test_boundary_ids_stand_on_both_sides_of_every_width(vocab, edges):
    assert edges <= set(flat_ids("boundary", 60, vocab))


def test_an_unknown_family_of_ids_is_refused_with_the_list_of_known_ones():
    known = "every, distinct, covering, zipf, zipf_ends, hot, ends, sorted, reversed, equal, boundary, "
    known += ", ".join(f"part{n}" for n in range(16))
    with raises(ValueError, f"family: got 'random', expected one of {known} [make_ids]"):
        inputs.make_ids("random", (3,), 5, "int64")
