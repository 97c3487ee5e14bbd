"""The contract as data: what its cases cover, that their tables tell rows apart, and that every byte is as pinned."""

from __future__ import annotations

import functools
import re

import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, NARROW_DTYPES, assert_same_bits

from xref import bits
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient
from xref.spec import Case, Tier

STANDARD = contract.cases(Tier.STANDARD)
EXHAUSTIVE = contract.cases(Tier.EXHAUSTIVE)
HUGE = 1 << 28  # elements; tables above it are left to the last test of this file
SMALL = [case for case in STANDARD if case.vocab * case.hidden < HUGE]
LARGE = [case for case in STANDARD if case.vocab * case.hidden >= HUGE]


def of_dtype(dtype: str) -> list[Case]:
    return [case for case in STANDARD if case.dtype == dtype]


def by_id(cases: list[Case]) -> list:
    return [pytest.param(case, id=case.id) for case in cases]


# Clauses and tiers


def test_the_clauses_are_the_twelve_of_the_contract_in_order():
    assert [clause.id for clause in contract.CLAUSES] == [f"EMB-{n}" for n in range(1, 13)]
    assert [clause.title for clause in contract.CLAUSES] == [
        *("gather", "widen", "form", "ids", "purity", "repeat", "invariance", "gradient", "coverage"),
        *("gradient invariance", "specials", "memory"),
    ]
    assert all(clause.statement.endswith(".") for clause in contract.CLAUSES)


def test_each_tier_includes_the_ones_before_it():
    smoke, standard, exhaustive = (set(contract.cases(tier)) for tier in Tier)
    assert smoke < standard < exhaustive
    assert contract.cases() == STANDARD


@pytest.mark.parametrize("tier", list(Tier))
def test_cases_can_be_had_of_some_dtypes_alone(tier):
    chosen = contract.cases(tier, dtypes=("float16", "float8_e5m2"))
    assert chosen == tuple(c for c in contract.cases(tier) if c.dtype in ("float16", "float8_e5m2"))
    assert {c.dtype for c in chosen} == {"float16", "float8_e5m2"}


def test_case_ids_are_unique_and_readable():
    ids = [case.id for case in EXHAUSTIVE]
    assert len(set(ids)) == len(ids)
    form = r"[a-z0-9_]+-[a-z]+(\+0x[0-9a-f]+)?-\d+x\d+-[a-z_]+\d*-(scalar|[\dx]+)-u?int\d+"
    assert [i for i in ids if not re.fullmatch(form, i)] == []


def test_a_case_id_names_every_field_of_it():
    case = functools.partial(Case, dtype="float32", vocab=300, hidden=33, table="patterns", ids="ends")
    assert case(shape=(257,)).id == "float32-patterns-300x33-ends-257-int64"
    assert case(shape=(), id_dtype="int8").id == "float32-patterns-300x33-ends-scalar-int8"
    assert case(shape=(2, 0, 3), offset=64).id == "float32-patterns+0x40-300x33-ends-2x0x3-int64"


def test_a_case_is_a_frozen_record():
    with pytest.raises(AttributeError):
        STANDARD[0].vocab = 7
    assert STANDARD[0] == msgspec.convert(msgspec.to_builtins(STANDARD[0]), Case)


# What the cases cover


@pytest.mark.parametrize("dtype", DTYPES)
def test_smoke_has_every_dtype_and_conditions_on_it(dtype):
    smoke = contract.cases(Tier.SMOKE, dtypes=(dtype,))
    assert any(case.conditions for case in smoke)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pattern_of_id_meets_every_dtype(dtype):
    families = {case.ids for case in of_dtype(dtype)}
    assert families >= {"covering", "distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "boundary"}
    assert ("every" in families) == (dtype in NARROW_DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_integer_dtype_of_ids_meets_every_table_dtype(dtype):
    used = {case.id_dtype for case in of_dtype(dtype)}
    assert used == {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_of_ids_include_empty_zero_dimensional_and_many_dimensional_ones(dtype):
    shapes = {case.shape for case in of_dtype(dtype)}
    assert {(), (0,), (2, 0, 3), (2, 3, 5)} <= shapes
    assert {len(shape) for shape in shapes} == {0, 1, 2, 3}


def is_prime(number: int) -> bool:
    return number > 1 and all(number % n for n in range(2, int(number**0.5) + 1))


SHAPES_OF_TABLES = {
    "V=1": lambda v, h: v == 1,
    "V=1 and H=1": lambda v, h: v == h == 1,
    "V=1 and wide": lambda v, h: v == 1 and h > 1024,
    "H=1": lambda v, h: h == 1 and v > 1,
    "H odd": lambda v, h: h % 2 == 1 and h > 1,
    "H prime": lambda v, h: is_prime(h) and h > 100,
    "H over 1024 and odd": lambda v, h: h > 1024 and h % 2 == 1,
    "H a multiple of 256": lambda v, h: h % 256 == 0,
    "V odd": lambda v, h: v % 2 == 1,
    "V just past a multiple of 32": lambda v, h: v % 32 == 1,
    "V just before a multiple of 32": lambda v, h: v % 32 == 31,
    "V past 2**16": lambda v, h: v > 2**16,
    "V past 2**24": lambda v, h: v > 2**24,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES_OF_TABLES)
def test_shapes_of_tables_include(dtype, shape):
    assert any(SHAPES_OF_TABLES[shape](case.vocab, case.hidden) for case in of_dtype(dtype))


def test_the_qwen3_8b_table_is_there_in_both_of_its_dtypes_and_with_both_ends():
    found = [case for case in STANDARD if (case.vocab, case.hidden) == (151936, 4096)]
    assert {case.dtype for case in found} == {"bfloat16", "float32"}
    for case in found:
        ids = contract.make_ids(case.ids, case.shape, case.vocab, case.id_dtype)
        assert ids.size == 8192
        assert {0, case.vocab - 1} <= set(ids.reshape(-1).tolist())


def test_tables_past_2_to_the_31_elements_are_looked_up_on_both_sides_of_it():
    found = [case for case in STANDARD if case.vocab * case.hidden > 2**31]
    assert {FORMATS[case.dtype].width for case in found} == {8, 16}
    for case in found:
        ids = contract.make_ids(case.ids, case.shape, case.vocab, case.id_dtype).reshape(-1)
        begin = ids * case.hidden
        assert (begin + case.hidden <= 2**31).any()
        assert (begin == 2**31).any()
        assert {0, case.vocab - 1} <= set(ids.tolist())


WIDTHS = (127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_ids_on_both_sides_of_a_boundary_width_are_looked_up(dtype, width):
    named = set()
    for case in of_dtype(dtype):
        if case.ids == "boundary" and case.vocab > width:
            named |= set(contract.make_ids(case.ids, case.shape, case.vocab, case.id_dtype).reshape(-1).tolist())
    assert {width - 1, width, width + 1} <= named


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("id_dtype", "past"), [("uint8", 127), ("int16", 255), ("uint16", 32767)])
def test_ids_use_the_range_of_their_dtype(dtype, id_dtype, past):
    """Ids past the signed or the next narrower dtype's range, so that a kernel which reads them as such fails."""
    cases = [case for case in of_dtype(dtype) if case.id_dtype == id_dtype]
    assert any((contract.make_ids(c.ids, c.shape, c.vocab, c.id_dtype) > past).any() for c in cases)


def test_exhaustive_has_every_float32_pattern_once_and_every_id_of_the_largest_table():
    patterns = [c for c in EXHAUSTIVE if c.tier is Tier.EXHAUSTIVE and c.table == "patterns"]
    part = patterns[0].vocab * patterns[0].hidden
    assert {c.dtype for c in patterns} == {"float32"}
    assert sorted(c.offset for c in patterns) == list(range(0, 1 << 32, part))
    assert all(c.ids == "every" and c.shape == (c.vocab,) for c in patterns)
    every = [c for c in EXHAUSTIVE if c.tier is Tier.EXHAUSTIVE and c.table == "tagged"]
    assert {(c.vocab, c.hidden) for c in every} == {(151936, 4096)}
    ids = [contract.make_ids(c.ids, c.shape, c.vocab, c.id_dtype) for c in every]
    assert np.array_equal(np.sort(np.concatenate(ids)), np.arange(151936))


# What the tables can tell


CONFUSIONS = {
    "the row before": lambda ids, vocab: np.maximum(ids - 1, 0),
    "the row after": lambda ids, vocab: np.minimum(ids + 1, vocab - 1),
    "the first row": lambda ids, vocab: ids * 0,
    "the last row": lambda ids, vocab: ids * 0 + vocab - 1,
    "rows counted from the end": lambda ids, vocab: vocab - 1 - ids,
    "clamped one too early": lambda ids, vocab: np.minimum(ids, vocab - 2),
    "rows of a pair exchanged": lambda ids, vocab: np.minimum(ids ^ 1, vocab - 1),
    "neighbouring tokens exchanged": lambda ids, vocab: np.roll(ids, 1),
    **{f"ids modulo {2**n}": lambda ids, vocab, n=n: ids % 2**n for n in (7, 8, 15, 16, 24)},
    **{f"ids above {2**n - 1} clamped": lambda ids, vocab, n=n: np.minimum(ids, 2**n - 1) for n in (7, 8, 15, 16, 24)},
    "ids through float16": lambda ids, vocab: np.minimum(ids, 65504).astype(np.float16).astype(np.int64) % vocab,
    "ids through float32": lambda ids, vocab: ids.astype(np.float32).astype(np.int64) % vocab,
}


def confusions_not_seen(case: Case, ids: np.ndarray, table: np.ndarray) -> list[str]:
    flat = ids.reshape(-1).astype(np.int64)
    taken = {name: confuse(flat, case.vocab) for name, confuse in CONFUSIONS.items() if flat.size and case.vocab > 1}
    changed = {name: wrong for name, wrong in taken.items() if not np.array_equal(wrong, flat)}
    return [name for name, wrong in changed.items() if np.array_equal(table[wrong], table[flat])]


@pytest.mark.parametrize("case", by_id([c for c in SMALL if c.vocab > 1 and np.prod(c.shape)]))
def test_the_answer_changes_if_ids_are_confused_in_a_usual_way(case):
    ids, table = contract.build(case)
    assert confusions_not_seen(case, ids, table) == []


def distinct_rows(table: np.ndarray) -> int:
    if table.shape[1] == 1:
        return np.unique(table).size
    return len({row.tobytes() for row in table})


@pytest.mark.parametrize("case", by_id([c for c in SMALL if c.vocab < 2**24]))
def test_no_two_rows_are_the_same_where_the_dtype_has_room(case):
    _, table = contract.build(case)
    room = 1 << FORMATS[case.dtype].width * case.hidden
    if room >= 64 * case.vocab**2:
        assert distinct_rows(table) == case.vocab
    else:  # few bits for many rows: chance alone makes some the same, and the rest must differ
        assert distinct_rows(table) > 0.99 * min(room, case.vocab)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_rows_are_the_same_past_2_to_the_24_where_the_dtype_has_room(dtype):
    case = next(c for c in of_dtype(dtype) if c.vocab > 2**24)
    _, table = contract.build(case)
    flat = table.reshape(-1)
    if FORMATS[dtype].width > 16:
        assert_same_bits(flat, np.arange(case.vocab).astype(flat.dtype))
    else:
        assert np.bincount(flat, minlength=1 << FORMATS[dtype].width).min() > 0


@pytest.mark.parametrize("dtype", NARROW_DTYPES)
def test_the_case_with_conditions_looks_up_every_pattern_and_every_id(dtype):
    (case,) = [c for c in of_dtype(dtype) if c.conditions]
    ids, table = contract.build(case)
    assert set(ids.tolist()) == set(range(case.vocab))
    assert ids.size > case.vocab
    assert np.unique(table[ids]).size == 1 << FORMATS[dtype].width
    assert case.hidden % 2 == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_case_with_conditions_looks_up_a_million_random_patterns_of_a_wide_dtype(dtype):
    (case,) = [c for c in of_dtype(dtype) if c.conditions]
    ids, table = contract.build(case)
    fmt = FORMATS[dtype]
    assert set(ids.tolist()) == set(range(case.vocab))
    assert np.count_nonzero(np.diff(np.sort(table, axis=None))) > 0.999 * table.size > 1_000_000
    assert bits.is_nan(table, fmt).any()
    # One pattern in 256 of float32 is subnormal, one in 2048 of float64.
    assert bits.is_subnormal(table, fmt).sum() > 200
    assert bits.is_signalling_nan(table, fmt).sum() > 100


# Answers and refusals


@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_of_every_verb_that_the_dtype_has(dtype):
    case = of_dtype(dtype)[1]
    ids, table = contract.build(case)
    answers = contract.exact_answers(ids, table, dtype)
    assert tuple(answers) == (contract.VERBS if dtype != "float64" else ("forward",))
    for verb, answer in answers.items():
        name = contract.result_dtype(verb, dtype)
        assert name == {"forward": dtype, "forward_fp32": "float32"}[verb]
        assert (answer.dtype, answer.shape) == (FORMATS[name].uint, (*case.shape, case.hidden))
        assert contract.answer_digest(verb, dtype, answer) == bits.digest(answer, name)


def test_names_of_ids_that_must_be_refused_are_unique():
    names = [bad.name for bad in contract.bad_ids()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bad", [pytest.param(b, id=b.name) for b in contract.bad_ids()])
def test_ids_that_must_be_refused_are_out_of_range_or_no_integers(bad):
    error = bad.error("forward")
    if bad.ids.dtype.kind in "iu":
        assert type(error) is IndexError
        assert any(not 0 <= value < bad.vocab for value in bad.ids.reshape(-1).tolist())
    else:
        assert type(error) is TypeError


def test_the_error_of_refused_ids_is_worded_as_the_contract_says():
    both = next(bad for bad in contract.bad_ids() if bad.name == "both sides")
    assert str(both.error("forward_fp32")) == (
        "token_ids: got 4 of 6 ids out of range, the first at position (2,) with value 5,"
        " expected 0 <= id < V=5 [forward_fp32]"
    )


# Digests


def test_a_digest_is_pinned_for_every_case_of_every_tier_and_for_nothing_else():
    gradient_cases = embedding_gradient.cases(Tier.EXHAUSTIVE)
    ids = [case.id for case in (*EXHAUSTIVE, *gradient_cases)]
    assert sorted(contract.pinned()) == sorted(ids)
    assert all(set(contract.pinned()[case.id].answers) == {"grad_weight"} for case in gradient_cases)
    for case in EXHAUSTIVE:
        pinned = contract.pinned()[case.id]
        assert set(pinned.answers) == ({"forward"} if case.dtype == "float64" else set(contract.VERBS))
        assert all(re.fullmatch("[0-9a-f]{64}", d) for d in (pinned.ids, pinned.table, *pinned.answers.values()))


def test_digests_tell_one_changed_bit_in_ids_table_and_answer():
    case = next(c for c in SMALL if c.dtype == "bfloat16" and c.ids == "zipf" and c.vocab == 300)
    ids, table = contract.build(case)
    answers = {verb: answer.copy() for verb, answer in contract.exact_answers(ids, table, case.dtype).items()}
    made = contract.digests(case, ids, table, answers)
    assert made == contract.pinned()[case.id]
    ids[-1] ^= 1
    table[0, 0] ^= 1
    answers["forward_fp32"][-1, -1] ^= 1
    changed = contract.digests(case, ids, table, answers)
    assert changed.ids != made.ids
    assert changed.table != made.table
    assert changed.answers["forward"] == made.answers["forward"]
    assert changed.answers["forward_fp32"] != made.answers["forward_fp32"]


def assert_as_pinned(case: Case) -> None:
    ids, table = contract.build(case)
    answers = contract.exact_answers(ids, table, case.dtype)
    assert contract.digests(case, ids, table, answers) == contract.pinned()[case.id]


@pytest.mark.parametrize("case", by_id(SMALL))
def test_case_is_built_as_pinned(case):
    assert_as_pinned(case)


@pytest.mark.parametrize("case", by_id(LARGE))
def test_large_case_is_built_as_pinned(case):
    assert_as_pinned(case)


def test_cases_of_one_large_table_share_it_while_it_is_in_use(monkeypatch):
    monkeypatch.setattr(contract, "LARGE", 1000)
    case = Case(dtype="float32", vocab=300, hidden=33, table="tagged", ids="zipf", shape=(7,))
    other = msgspec.structs.replace(case, ids="ends")
    table = contract.build(case)[1]
    assert contract.build(other)[1] is table
    assert contract.build(msgspec.structs.replace(case, hidden=34))[1] is not table
    assert contract.build(msgspec.structs.replace(case, table="sparse"))[1] is not table
    first = table.copy()
    table[0, 0] ^= 1
    del table
    np.testing.assert_array_equal(contract.build(case)[1], first)


def test_small_tables_are_not_shared():
    case = Case(dtype="float32", vocab=300, hidden=33, table="tagged", ids="zipf", shape=(7,))
    table = contract.build(case)[1]
    assert contract.build(case)[1] is not table
