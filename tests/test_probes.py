"""Probes: every call of the sweeps can be built, written down and read again, and has an exact answer."""

from __future__ import annotations

import contextlib
import types

import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, VERBS, assert_same_bits

from xref.bits import FORMATS, from_bits
from xref.contracts import embedding as contract
from xref.inputs import id_families, make_table, table_families
from xref.judge.candidate import Candidate, candidate_of
from xref.judge.conditions import TABLE_LAYOUTS
from xref.judge.probes import _IDS, ID_LAYOUTS, SHARED, SLICES, Probe, Prober, answer_of, ids_of, table_of
from xref.judge.sweeps import probes
from xref.spec import Tier

EACH = [(verb, dtype) for verb in contract.VERBS for dtype in DTYPES if verb in contract.verbs_of(dtype)]
SMALL_TABLE, SMALL_IDS = 1 << 12, 1 << 9

SLICED = "slice of a longer one"


def everything(framework, tier=Tier.STANDARD):
    for verb, dtype in EACH:
        yield from probes(verb, dtype, framework, tier)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_every_probe_can_be_written_down_and_read_again(framework, tier):
    count = 0
    for probe in everything(framework, tier):
        assert msgspec.json.decode(probe.to_json(), type=Probe) == probe
        assert msgspec.convert(msgspec.json.decode(probe.to_json()), Probe) == probe
        assert "\n" not in probe.to_json()
        count += 1
    assert count > 100


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_every_probe_names_what_exists(framework):
    for probe in everything(framework):
        assert isinstance(probe.ids, tuple) or probe.ids in (*id_families(), *_IDS)
        assert probe.table in (*table_families(), "poisoned", "zeros", "classes", "windows")
        assert probe.layout in ("dense", *TABLE_LAYOUTS, *SLICES, *SHARED)
        assert probe.id_layout in (*ID_LAYOUTS, SLICED, "expanded")
        assert probe.mode == "plain"


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("tier", [Tier.SMOKE, Tier.STANDARD])
def test_every_small_probe_can_be_built_and_has_an_answer(framework, tier):
    built = set()
    for probe in everything(framework, tier):
        if int(np.prod(probe.shape)) > SMALL_IDS or probe.vocab * probe.hidden > SMALL_TABLE:
            continue
        ids = ids_of(probe)
        assert (ids.dtype.name, ids.shape) == (probe.id_dtype, probe.shape)
        assert ids.size == 0 or (ids.min() >= 0 and int(ids.max()) < probe.vocab)
        laid = {**ID_LAYOUTS, **SHARED}["dense" if probe.id_layout == SLICED else probe.id_layout](ids)
        assert np.array_equal(laid, ids)
        assert not np.shares_memory(laid, ids)
        table = table_of(probe, ids)
        assert (table.dtype, table.shape) == (FORMATS[probe.dtype].uint, (probe.vocab, probe.hidden))
        if probe.layout != "dense":
            if probe.layout in SLICES:
                larger, cut = SLICES[probe.layout]
                assert np.array_equal(cut(larger(table)), table)
            else:
                assert np.array_equal({**TABLE_LAYOUTS, **SHARED}[probe.layout](table), table)
        answer = answer_of(probe, ids, table)
        assert answer.shape == (*probe.shape, probe.hidden)
        assert answer.dtype == FORMATS[contract.result_dtype(probe.verb, probe.dtype)].uint
        built.add((probe.verb, probe.dtype))
    assert built == set(EACH)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_large_ids_of_the_sweeps_are_in_range_too(framework):
    """Ids alone are built here: for one dtype, since the others have the same."""
    for probe in probes("forward", "bfloat16", framework, Tier.STANDARD):
        if int(np.prod(probe.shape)) <= 20000:
            ids = ids_of(probe)
            assert ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < probe.vocab)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_standard_sweeps_vary_each_axis_over_its_switches(framework):
    seen = list(probes("forward", "bfloat16", framework, Tier.STANDARD))
    widths, rows, batches = {p.hidden for p in seen}, {p.vocab for p in seen}, {int(np.prod(p.shape)) for p in seen}
    assert {1, 3, 33, 129, 1025, 4096} <= widths
    assert {1, 2, 257, 32769, 65537, 151936} <= rows
    assert (0 in rows) == (framework == "torch")  # no JAX kernel is asked for rows of a table without any
    assert {0, 1, 2, 33, 129, 257, 513, 1025, 4097, 65537} <= batches
    assert any(p.vocab * p.hidden > 2**31 for p in seen)
    assert {p.shape for p in seen} >= {(), (0,), (2, 0, 3), (2, 3)}
    if framework == "torch":
        assert {p.layout for p in seen} == {"dense", *TABLE_LAYOUTS, *SLICES, "overlapping rows"}
        assert {p.id_layout for p in seen} == {*ID_LAYOUTS, SLICED, "expanded"}
        assert {p.id_dtype for p in seen} == {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_pattern_of_a_16_bit_dtype_is_looked_up(dtype):
    for framework in ("torch", "jax"):
        seen = np.zeros(1 << 16, bool)
        for probe in probes("forward", dtype, framework, Tier.SMOKE):
            if probe.table == "patterns":
                seen[answer_of(probe, ids_of(probe), table_of(probe, ids_of(probe)))] = True
        assert seen.all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_pattern_of_an_8_bit_dtype_is_looked_up(dtype):
    probe = next(p for p in probes("forward", dtype, "torch", Tier.SMOKE) if p.table == "patterns")
    assert set(answer_of(probe, ids_of(probe), table_of(probe, ids_of(probe))).reshape(-1).tolist()) == set(range(256))


def test_every_id_of_the_largest_table_is_looked_up():
    for framework in ("torch", "jax"):
        found = [
            p
            for p in probes("forward", "bfloat16", framework, Tier.STANDARD)
            if p.ids == "every" and p.vocab == 151936 and p.shape == (151936,)
        ]
        assert len(found) == 1


@pytest.mark.parametrize("layout", sorted(ID_LAYOUTS))
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (4, 9), (2, 3, 5), (2, 0, 3)])
def test_ids_in_other_memory_are_the_same_ids(layout, shape):
    ids = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    laid = ID_LAYOUTS[layout](ids)
    assert laid.shape == shape
    assert np.array_equal(laid, ids)
    assert not np.shares_memory(laid, ids)


def test_layouts_of_ids_are_what_they_are_called():
    ids = np.arange(12).reshape(3, 4)
    assert not ID_LAYOUTS["strided"](ids[0]).flags.c_contiguous
    assert not ID_LAYOUTS["transposed"](ids).flags.c_contiguous
    assert ID_LAYOUTS["offset by one"](ids).base is not None
    assert not ID_LAYOUTS["read-only"](ids).flags.writeable


@pytest.mark.parametrize("name", sorted(SLICES))
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (7, 3), (0, 3), (3, 0)])
def test_a_slice_of_a_larger_table_is_the_table(name, shape):
    larger, cut = SLICES[name]
    table = np.arange(int(np.prod(shape)), dtype=np.uint16).reshape(shape)
    whole = larger(table)
    assert np.array_equal(cut(whole), table)
    assert not np.shares_memory(whole, table) or table.size == 0


def test_calls_on_slices_are_right_calls():
    for layout in ("dense", *SLICES):
        for id_layout in ("dense", SLICED):
            seen = of(lambda ids, table: table[ids]).run(
                msgspec.structs.replace(PROBE, layout=layout, id_layout=id_layout)
            )
            assert (seen.wrong, seen.impure, seen.raised) == (None, None, None)


def test_ids_of_two_dimensions_are_strided_too():
    assert not ID_LAYOUTS["strided"](np.arange(12).reshape(3, 4)).flags.c_contiguous


@pytest.mark.parametrize("family", sorted(_IDS))
@pytest.mark.parametrize("vocab", [1, 2, 3, 300])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (65,), (4, 9)])
def test_families_of_ids_stay_in_range(family, vocab, shape):
    ids = ids_of(Probe(dtype="float32", vocab=vocab, hidden=1, ids=family, shape=shape))
    assert ids.shape == shape
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < vocab)


def test_families_of_ids_stay_in_the_range_of_their_dtype():
    for family in _IDS:
        ids = ids_of(Probe(dtype="float32", vocab=70000, hidden=1, ids=family, shape=(500,), id_dtype="int8"))
        assert (ids.dtype, int(ids.min()) >= 0) == (np.int8, True)


def test_a_poisoned_table_has_nan_in_the_rows_that_no_id_names_and_nowhere_else():
    probe = Probe(dtype="bfloat16", vocab=5, hidden=2, table="poisoned", ids=(3, 1), shape=(2,))
    table = table_of(probe, ids_of(probe))
    nan = FORMATS["bfloat16"].nan
    assert [(row == nan).all() for row in table] == [True, False, True, False, True]
    assert not (table[[1, 3]] == nan).any()


def test_a_table_of_zeros_has_both_signs():
    probe = Probe(dtype="float16", vocab=4, hidden=3, table="zeros", ids="every", shape=(4,))
    assert table_of(probe, ids_of(probe))[:, 0].tolist() == [0, 0x8000, 0, 0x8000]


@pytest.mark.parametrize("family", ["hashed", "gaussian", "patterns", "tagged"])
def test_tables_of_other_seeds_differ_in_every_row(family):
    probe = Probe(dtype="float32", vocab=50, hidden=9, table=family, ids="zipf", shape=(33,))
    first, second = (table_of(msgspec.structs.replace(probe, seed=seed), ids_of(probe)) for seed in (0, 1000))
    assert (first != second).any(axis=1).all()


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (
            Probe(dtype="bfloat16", vocab=3, hidden=4, ids=(1, 2), shape=(2,)),
            "forward bfloat16 3x4 tagged ids [1, 2] 2 int64",
        ),
        (
            Probe(verb="forward_fp32", dtype="float16", vocab=300, hidden=33, ids="zipf", shape=(), id_dtype="uint8"),
            "forward_fp32 float16 300x33 tagged zipf scalar uint8",
        ),
        (
            Probe(dtype="float32", vocab=9, hidden=1, ids=tuple(range(9)), shape=(3, 3), layout="transposed",
                  id_layout="strided", mode="vmap"),
            "forward float32 9x1 tagged ids [0, 1, 2, 3, 4, 5, 6, 7, ...] 3x3 int64 table transposed ids strided vmap",
        ),
    ],
)  # fmt: skip
def test_a_probe_in_words(probe, words):
    assert str(probe) == words


def test_a_record_leaves_out_what_is_usual():
    probe = Probe(dtype="bfloat16", vocab=3, hidden=4, ids=(1, 2), shape=(2,))
    assert probe.to_json() == '{"dtype":"bfloat16","vocab":3,"hidden":4,"ids":[1,2],"shape":[2]}'


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_answers_are_rows_and_rows_widened(verb, dtype):
    table = make_table("hashed", 9, 5, FORMATS[dtype])
    probe = Probe(verb=verb, dtype=dtype, vocab=9, hidden=5, ids=(8, 0), shape=(2,))
    answer = answer_of(probe, ids_of(probe), table)
    assert_same_bits(answer, contract.exact_answers(np.array([8, 0]), table, dtype)[verb])


# Prober


def of(forward, dtype="float32", verb="forward"):
    """A prober of a kernel on NumPy arrays of bits: the little that it needs of a framework."""
    framework = types.SimpleNamespace(
        NAME="numpy",
        put=lambda array, dtype, device: array,
        precision=lambda dtype: contextlib.nullcontext(),
        form_of=lambda out: (out.shape, dtype if out.dtype == FORMATS[dtype].uint else out.dtype.name, "cpu"),
        bits_of=lambda out: out,
        numpy_of=lambda out: out,
        memory_of=lambda out: (
            (begin := out.__array_interface__["data"][0]),
            begin + out.nbytes,
        ),
    )
    return Prober(Candidate("it", framework, "cpu", {verb: forward}, None))


PROBE = Probe(dtype="float32", vocab=9, hidden=5, ids=(8, 0), shape=(2,))


def test_a_right_call_leaves_nothing_to_say():
    seen = of(lambda ids, table: table[ids]).run(PROBE)
    assert (seen.wrong, seen.misformed, seen.raised, seen.impure) == (None, None, None, None)
    assert_same_bits(seen.got, seen.expected)


def rewriting(ids, table):
    out = table[ids]
    table[3, 3] ^= 1
    return out


def ids_rewriting(ids, table):
    out = table[ids]
    ids[0] = 1
    return out


def raising(ids, table):
    raise RuntimeError("no\nadvice")


@pytest.mark.parametrize(
    ("kernel", "field", "says"),
    [
        (
            lambda ids, table: table[ids] ^ 1, "wrong",
            "out[0, 0]: got 0x00000029, expected 0x00000028 (1 ulp; 10 of 10 elements differ)",
        ),
        (
            lambda ids, table: table[ids][:1], "misformed",
            "out: got shape (1, 5), float32, on cpu, expected shape (2, 5), float32, on cpu",
        ),
        (
            lambda ids, table: table[ids].astype("u2"), "misformed",
            "out: got shape (2, 5), uint16, on cpu, expected shape (2, 5), float32, on cpu",
        ),
        (raising, "raised", "RuntimeError: no"),
        (rewriting, "impure", "weight: got other bits after the call, expected the same"),
        (ids_rewriting, "impure", "token_ids: got other values after the call, expected the same"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_said(kernel, field, says):
    seen = of(kernel).run(PROBE)
    for each in ("wrong", "misformed", "raised", "impure"):
        assert (str(getattr(seen, each)) if getattr(seen, each) is not None else "") == (says if each == field else "")


def test_an_output_in_the_tables_memory_is_said_to_be():
    probe = msgspec.structs.replace(PROBE, ids=(2, 3))
    seen = of(lambda ids, table: table[2:4]).run(probe)
    assert seen.impure == "out: got memory of weight, expected its own"


def test_a_table_that_was_rewritten_is_not_given_to_the_next_call():
    prober = of(rewriting)
    assert prober.run(PROBE).impure is not None
    seen = prober.run(msgspec.structs.replace(PROBE, ids=(3, 3)))
    assert (seen.wrong, seen.impure) == (None, "weight: got other bits after the call, expected the same")


def test_tables_are_made_once_and_compared_after_all_calls():
    given = []
    prober = of(lambda ids, table: (given.append(table), table[ids])[1])
    prober.run(PROBE)
    prober.run(msgspec.structs.replace(PROBE, ids=(1,), shape=(1,)))
    prober.run(msgspec.structs.replace(PROBE, seed=1))
    assert given[0] is given[1]
    assert given[2] is not given[0]
    assert prober.rewritten() is None
    given[0][2, 2] ^= 1
    assert (prober.rewritten().vocab, prober.rewritten().seed) == (9, 0)


def test_a_kernel_is_given_other_memory_than_what_its_output_is_compared_with():
    def kernel(ids, table):
        out = table[ids]
        out[:] = 0
        table[:] = 0  # a golden that shared it would be zero too
        return out

    assert of(kernel).run(PROBE).wrong is not None


# JAX's own: NumPy tables, and arrays that are given away


@pytest.mark.jax
def test_rows_of_a_numpy_table_may_be_numpy_rows_and_no_view_of_it():
    prober = Prober(candidate_of(lambda ids, weight: weight[ids], framework="jax", device="cpu"))
    probe = Probe(dtype="bfloat16", vocab=9, hidden=3, table="hashed", ids="every", shape=(5,), id_dtype="int32")
    ids = ids_of(probe)
    table = table_of(probe, ids)
    seen = prober.observe(probe, (ids.copy(), ids), (from_bits(table.copy(), "bfloat16"), table))
    assert (seen.raised, seen.misformed, seen.wrong, seen.impure) == (None, None, None, None)
    prober = Prober(candidate_of(lambda ids, weight: weight[:5], framework="jax", device="cpu"))
    seen = prober.observe(probe, (ids.copy(), ids), (from_bits(table.copy(), "bfloat16"), table))
    assert seen.impure == "out: got memory of weight, expected its own"


@pytest.mark.jax
def test_a_table_that_is_given_away_is_a_finding():
    def donating(ids, weight):
        rows = weight[ids].block_until_ready()
        weight.delete()
        return rows

    prober = Prober(candidate_of(donating, framework="jax", device="cpu"))
    probe = Probe(dtype="float32", vocab=9, hidden=3, table="hashed", ids="every", shape=(5,), id_dtype="int32")
    for _ in range(2):  # the next call gets a table of its own
        seen = prober.run(probe)
        assert (seen.raised, seen.wrong) == (None, None)
        assert seen.impure.startswith("weight: got RuntimeError: Array has been deleted")
