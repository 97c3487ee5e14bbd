"""The contract's fixed calls: what they cover, that their tables tell rows apart, and that every byte is as pinned."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, NARROW_DTYPES, assert_same_bits

from xref import bits
from xref.bits import FORMATS
from xref.operators.embedding import answers, clauses
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.cases import ForwardCase, cases
from xref.spec import Tier

STANDARD = cases(Tier.STANDARD)
EXHAUSTIVE = cases(Tier.EXHAUSTIVE)
HUGE = 1 << 28  # elements; tables above it are left to the last test of this file
SMALL = [case for case in STANDARD if case.call.vocab * case.call.hidden < HUGE]
LARGE = [case for case in STANDARD if case.call.vocab * case.call.hidden >= HUGE]


def of_dtype(dtype: str) -> list[Forward]:
    return [case.call for case in STANDARD if case.call.dtype == dtype]


def by_id(chosen: list[ForwardCase]) -> list:
    return [pytest.param(case, id=case.id) for case in chosen]


def ids_of(call: Forward) -> np.ndarray:
    return call.token_ids()


def table_of(call: Forward) -> np.ndarray:
    return call.weight()[0]


# Clauses, tiers and names


def test_the_clauses_are_the_twelve_of_the_contract_in_order():
    assert [clause.id for clause in clauses.CLAUSES] == [f"EMB-{n}" for n in range(1, 13)]
    assert [clause.title for clause in clauses.CLAUSES] == [
        *("gather", "widen", "form", "ids", "purity", "repeat", "invariance", "gradient", "coverage"),
        *("gradient invariance", "specials", "memory"),
    ]
    assert all(clause.statement.endswith(".") for clause in clauses.CLAUSES)


def test_each_tier_includes_the_ones_before_it():
    smoke, standard, exhaustive = (set(cases(tier)) for tier in Tier)
    assert smoke < standard < exhaustive
    assert cases() == STANDARD


@pytest.mark.parametrize("tier", list(Tier))
def test_cases_can_be_had_of_some_dtypes_alone(tier):
    chosen = cases(tier, dtypes=("float16", "float8_e5m2"))
    assert chosen == tuple(c for c in cases(tier) if c.call.dtype in ("float16", "float8_e5m2"))
    assert {c.call.dtype for c in chosen} == {"float16", "float8_e5m2"}


def test_names_are_unique_and_readable():
    names = [case.id for case in EXHAUSTIVE]
    assert len(set(names)) == len(names)
    form = r"[a-z0-9_]+-[a-z]+(\+0x[0-9a-f]+)?-\d+x\d+-[a-z_]+\d*-(scalar|[\dx]+)-u?int\d+"
    assert [name for name in names if not re.fullmatch(form, name)] == []


def test_a_name_has_every_field_of_the_inputs():
    call = Forward(check="EMB-1", dtype="float32", vocab=300, hidden=33, table="patterns", ids="ends", shape=(257,))
    assert call.id == "float32-patterns-300x33-ends-257-int64"
    assert msgspec.structs.replace(call, shape=(), id_dtype="int8").id == "float32-patterns-300x33-ends-scalar-int8"
    other = msgspec.structs.replace(call, shape=(2, 0, 3), offset=64, verb="forward_fp32", check="EMB-2")
    assert other.id == "float32-patterns+0x40-300x33-ends-2x0x3-int64"


def test_digests_are_pinned_for_these_names_and_those_of_gradients():
    pinned = answers.pinned()
    ours = {name for name, each in pinned.items() if "grad_weight" not in each.answers}
    assert ours == {case.id for case in EXHAUSTIVE}
    for case in EXHAUSTIVE:
        assert set(pinned[case.id].answers) == set(clauses.verbs_of(case.call.dtype))
        digests = (pinned[case.id].ids, pinned[case.id].table, *pinned[case.id].answers.values())
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)


# What the cases cover


@pytest.mark.parametrize("dtype", DTYPES)
def test_smoke_has_every_dtype_and_one_case_with_conditions(dtype):
    assert sum(case.conditions for case in cases(Tier.SMOKE, dtypes=(dtype,))) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pattern_of_id_meets_every_dtype(dtype):
    families = {call.ids for call in of_dtype(dtype)}
    assert families >= {"covering", "distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "boundary"}
    assert ("every" in families) == (dtype in NARROW_DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_integer_dtype_of_ids_meets_every_table_dtype(dtype):
    used = {call.id_dtype for call in of_dtype(dtype)}
    assert used == {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_of_ids_include_empty_zero_dimensional_and_many_dimensional_ones(dtype):
    shapes = {call.shape for call in of_dtype(dtype)}
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
    assert any(SHAPES_OF_TABLES[shape](call.vocab, call.hidden) for call in of_dtype(dtype))


def test_the_qwen3_8b_table_is_there_in_both_of_its_dtypes_and_with_both_ends():
    found = [case.call for case in STANDARD if (case.call.vocab, case.call.hidden) == (151936, 4096)]
    assert {call.dtype for call in found} == {"bfloat16", "float32"}
    for call in found:
        assert ids_of(call).size == 8192
        assert {0, call.vocab - 1} <= set(ids_of(call).reshape(-1).tolist())


def test_tables_past_2_to_the_31_elements_are_looked_up_on_both_sides_of_it():
    found = [case.call for case in STANDARD if case.call.vocab * case.call.hidden > 2**31]
    assert {FORMATS[call.dtype].width for call in found} == {8, 16}
    for call in found:
        begin = ids_of(call).reshape(-1) * call.hidden
        assert (begin + call.hidden <= 2**31).any()
        assert (begin == 2**31).any()
        assert {0, call.vocab - 1} <= set(ids_of(call).tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24])
def test_ids_on_both_sides_of_a_boundary_width_are_looked_up(dtype, width):
    named = set()
    for call in of_dtype(dtype):
        if call.ids == "boundary" and call.vocab > width:
            named |= set(ids_of(call).reshape(-1).tolist())
    assert {width - 1, width, width + 1} <= named


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("id_dtype", "past"), [("uint8", 127), ("int16", 255), ("uint16", 32767)])
def test_ids_use_the_range_of_their_dtype(dtype, id_dtype, past):
    """Ids past the signed or the next narrower dtype's range, so that a kernel which reads them as such fails."""
    assert any((ids_of(call) > past).any() for call in of_dtype(dtype) if call.id_dtype == id_dtype)


def test_exhaustive_has_every_float32_pattern_once_and_every_id_of_the_largest_table():
    last = [case.call for case in EXHAUSTIVE if case.tier is Tier.EXHAUSTIVE]
    patterns = [call for call in last if call.table == "patterns"]
    part = patterns[0].vocab * patterns[0].hidden
    assert {call.dtype for call in patterns} == {"float32"}
    assert sorted(call.offset for call in patterns) == list(range(0, 1 << 32, part))
    assert all(call.ids == "every" and call.shape == (call.vocab,) for call in patterns)
    every = [call for call in last if call.table == "tagged"]
    assert {(call.vocab, call.hidden) for call in every} == {(151936, 4096)}
    assert np.array_equal(np.sort(np.concatenate([ids_of(call) for call in every])), np.arange(151936))


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


@pytest.mark.parametrize("case", by_id([c for c in SMALL if c.call.vocab > 1 and c.call.tokens]))
def test_the_answer_changes_if_ids_are_confused_in_a_usual_way(case):
    if case.call.table == "sparse":
        return  # its rows that no id names are zeros
    flat, table = ids_of(case.call).reshape(-1).astype(np.int64), table_of(case.call)
    taken = {name: confuse(flat, case.call.vocab) for name, confuse in CONFUSIONS.items()}
    changed = {name: wrong for name, wrong in taken.items() if not np.array_equal(wrong, flat)}
    assert [name for name, wrong in changed.items() if np.array_equal(table[wrong], table[flat])] == []


def distinct_rows(table: np.ndarray) -> int:
    if table.shape[1] == 1:
        return np.unique(table).size
    return len({row.tobytes() for row in table})


@pytest.mark.parametrize("case", by_id([c for c in SMALL if c.call.vocab < 2**24]))
def test_no_two_rows_are_the_same_where_the_dtype_has_room(case):
    call = case.call
    room = 1 << FORMATS[call.dtype].width * call.hidden
    if room >= 64 * call.vocab**2:
        assert distinct_rows(table_of(call)) == call.vocab
    else:  # few bits for many rows: chance alone makes some the same, and the rest must differ
        assert distinct_rows(table_of(call)) > 0.99 * min(room, call.vocab)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_two_rows_are_the_same_past_2_to_the_24_where_the_dtype_has_room(dtype):
    call = next(call for call in of_dtype(dtype) if call.vocab > 2**24)
    flat = table_of(call).reshape(-1)
    if FORMATS[dtype].width > 16:
        assert_same_bits(flat, np.arange(call.vocab).astype(flat.dtype))
    else:
        assert np.bincount(flat, minlength=1 << FORMATS[dtype].width).min() > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_case_with_conditions_looks_up_every_id_and_every_pattern_or_a_million(dtype):
    (call,) = [case.call for case in STANDARD if case.conditions and case.call.dtype == dtype]
    ids, table, fmt = ids_of(call), table_of(call), FORMATS[dtype]
    assert set(ids.tolist()) == set(range(call.vocab))
    assert ids.size > call.vocab
    assert call.hidden % 2 == 1
    if dtype in NARROW_DTYPES:
        assert np.unique(table[ids]).size == 1 << fmt.width
        return
    assert np.count_nonzero(np.diff(np.sort(table, axis=None))) > 0.999 * table.size > 1_000_000
    assert bits.is_nan(table, fmt).any()
    # One pattern in 256 of float32 is subnormal, one in 2048 of float64.
    assert bits.is_subnormal(table, fmt).sum() > 200
    assert bits.is_signalling_nan(table, fmt).sum() > 100


# Answers and digests


@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_of_every_verb_that_the_dtype_has(dtype):
    call = of_dtype(dtype)[-1]
    ids, table = ids_of(call), table_of(call)
    made = answers.exact_answers(ids, table, dtype)
    assert tuple(made) == (clauses.VERBS if dtype != "float64" else ("forward",))
    for verb, answer in made.items():
        name = clauses.result_dtype(verb, dtype)
        assert name == {"forward": dtype, "forward_fp32": "float32"}[verb]
        assert (answer.dtype, answer.shape) == (FORMATS[name].uint, (*call.shape, call.hidden))
        assert answers.answer_digest(verb, dtype, answer) == bits.digest(answer, name)
        assert_same_bits(answers.exact_answer(verb, ids, table, dtype), answer)


@pytest.mark.parametrize("case", by_id(SMALL))
def test_a_case_is_built_as_pinned(case):
    assert answers.digests(case.call) == answers.pinned()[case.id]


def test_other_inputs_have_other_digests():
    call = next(case.call for case in SMALL if case.call.ids == "zipf" and case.call.dtype == "bfloat16")
    made = answers.digests(call)
    other = answers.digests(msgspec.structs.replace(call, ids="ends"))
    assert made.table == other.table
    assert made.ids != other.ids
    assert made.answers.keys() == other.answers.keys()
    assert all(made.answers[verb] != other.answers[verb] for verb in made.answers)


@pytest.mark.parametrize("case", by_id(LARGE))
def test_a_large_case_is_built_as_pinned(case):
    assert answers.digests(case.call) == answers.pinned()[case.id]
