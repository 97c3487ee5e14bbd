"""Sweeps: every call can be built, written down and read again; each axis is varied over its switches."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.helpers import DTYPES

from xref.bits import FORMATS
from xref.engine.layouts import ID_LAYOUTS, LAYOUTS, TABLE_LAYOUTS
from xref.inputs import id_families, table_families
from xref.operators.embedding import OPERATOR, clauses
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.families import IDS, TABLES
from xref.operators.embedding.sweeps import forward, jax
from xref.spec import Exam, Tier, Traits

EACH = [(verb, dtype) for verb in clauses.VERBS for dtype in DTYPES if verb in clauses.verbs_of(dtype)]
SMALL_TABLE, SMALL_IDS = 1 << 12, 1 << 9
FRAMEWORKS = ("torch", "jax")


def calls_of(verb, dtype, framework, tier, dtypes=None):
    make = functools.partial(Forward, check="EMB-1", verb=verb, dtype=dtype)
    if framework == "jax":
        yield from jax.accuracy(make, dtype, dtypes or (dtype,), tier)
        yield from jax.layouts(make)
    else:
        yield from forward.accuracy(make, dtype, tier)
        yield from forward.layouts(make, few=False)


def everything(framework, tier=Tier.STANDARD):
    for verb, dtype in EACH:
        yield from calls_of(verb, dtype, framework, tier)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_every_call_can_be_written_down_and_read_again(framework, tier):
    count = 0
    for call in everything(framework, tier):
        assert OPERATOR.call(call.to_json()) == call
        assert "\n" not in call.to_json()
        count += 1
    assert count > 100


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_call_names_what_exists(framework):
    for call in everything(framework):
        assert isinstance(call.ids, tuple) or call.ids in (*id_families(), *IDS)
        assert call.table in (*table_families(), *TABLES, "poisoned")
        assert {call.layout, call.id_layout} <= set(LAYOUTS)
        assert call.mode == ""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_small_call_can_be_built_and_has_an_answer(framework):
    traits = Traits(name="", framework=framework, version="", device="cpu", device_name="", verbs=clauses.VERBS)
    exam = Exam(traits=traits, tier=Tier.STANDARD, dtypes=DTYPES)
    built = set()
    for call in everything(framework):
        if call.tokens > SMALL_IDS or call.vocab * call.hidden > SMALL_TABLE:
            continue
        ids, (table, rows) = call.token_ids(), call.weight()
        assert (ids.dtype.name, ids.shape, rows) == (call.id_dtype, call.shape, None)
        assert ids.size == 0 or (ids.min() >= 0 and int(ids.max()) < call.vocab)
        assert (table.dtype, table.shape) == (FORMATS[call.dtype].uint, (call.vocab, call.hidden))
        for array, name in ((ids, call.id_layout), (table, call.layout)):
            made = LAYOUTS[name].make(array)
            assert np.array_equal(made if LAYOUTS[name].cut is None else LAYOUTS[name].cut(made), array)
        rule = call.rule(call.script(exam))
        assert rule.shape == (*call.shape, call.hidden)
        assert rule.fmt.name == clauses.result_dtype(call.verb, call.dtype)
        built.add((call.verb, call.dtype))
    assert built == set(EACH)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_large_ids_are_in_range_too(framework):
    """Ids alone are built here: for one dtype, since the others have the same."""
    for call in calls_of("forward", "bfloat16", framework, Tier.STANDARD):
        if call.tokens <= 20000:
            ids = call.token_ids()
            assert ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < call.vocab)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_standard_sweeps_vary_each_axis_over_its_switches(framework):
    seen = list(calls_of("forward", "bfloat16", framework, Tier.STANDARD))
    widths, rows, batches = {c.hidden for c in seen}, {c.vocab for c in seen}, {c.tokens for c in seen}
    assert {1, 3, 33, 129, 1025, 4096} <= widths
    assert {1, 2, 257, 32769, 65537, 151936} <= rows
    assert (0 in rows) == (framework == "torch")  # no JAX kernel is asked for rows of a table without any
    assert {0, 1, 2, 33, 129, 257, 513, 1025, 4097, 65537} <= batches
    assert any(c.vocab * c.hidden > 2**31 for c in seen)
    assert {c.shape for c in seen} >= {(), (0,), (2, 0, 3), (2, 3)}
    if framework == "torch":
        assert {c.layout for c in seen} == {"dense", *TABLE_LAYOUTS, "overlapping rows"}
        assert {c.id_layout for c in seen} == {"dense", *ID_LAYOUTS, "expanded ids"}
        assert {c.id_dtype for c in seen} == {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_pattern_of_a_narrow_dtype_is_looked_up(framework, dtype):
    seen = np.zeros(1 << FORMATS[dtype].width, bool)
    for call in calls_of("forward", dtype, framework, Tier.SMOKE, DTYPES):
        if call.table == "patterns":
            seen[call.weight()[0][call.token_ids()]] = True
    assert seen.all() or (framework == "jax" and seen[256:].all())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_id_of_the_largest_table_is_looked_up(framework):
    seen = calls_of("forward", "bfloat16", framework, Tier.STANDARD)
    assert len([c for c in seen if c.ids == "every" and c.shape == (151936,) == (c.vocab,)]) == 1


def programs(tier, dtypes):
    """Shapes and dtypes that a JAX kernel is compiled for."""
    found = [(c.dtype, c.vocab, c.hidden, c.shape, c.id_dtype) for dtype in dtypes
             for c in calls_of("forward", dtype, "jax", tier, dtypes)]  # fmt: skip
    return set(found)


def test_jax_is_given_few_shapes_and_all_of_them_between_the_dtypes():
    main = ("bfloat16", "float32")
    assert len(programs(Tier.SMOKE, DTYPES)) < 50
    assert len(programs(Tier.STANDARD, DTYPES)) < 110
    alone = {each[1:4] for each in programs(Tier.STANDARD, ("bfloat16",))}
    shared = {each[1:4] for each in programs(Tier.STANDARD, main)}
    assert alone - shared <= {(1024, 1025, (1024,)), (256, 256, (256,))}
