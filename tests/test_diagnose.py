"""Explanations: a kernel that is wrong in one way is said to be consistent with just that, and nothing ever raises."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, values
from test_probes import of

from xref import exact
from xref.bits import FORMATS, is_nan, is_subnormal
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.judge.diagnose import explain
from xref.judge.diagnose_gradient import _likenesses, explain_gradient
from xref.judge.probes import Probe
from xref.operators.embedding.bound import exact_of, misses
from xref.operators.embedding.faults import FAULTS

NAMES = {fault.name for fault in FAULTS}
HASHED = Probe(dtype="bfloat16", vocab=300, hidden=33, table="hashed", ids="zipf", shape=(257,))
SPECIALS = Probe(dtype="bfloat16", vocab=1009, hidden=65, table="patterns", ids="covering", shape=(1098,))
BFLOAT16, SINGLE = FORMATS["bfloat16"], FORMATS["float32"]


def probe(**changes):
    return msgspec.structs.replace(HASHED, **changes)


def through(name):
    """Ids rounded to a float format and back."""

    def move(ids, table):
        fmt = FORMATS[name]
        kept = {}
        for i in np.unique(ids).tolist():
            significand, exponent = exact.decode(exact.round_once(i, 0, fmt), fmt)
            kept[i] = min(int(significand * 2.0**exponent), table.shape[0] - 1)
        return table[np.vectorize(kept.__getitem__, otypes=[np.int64])(ids)]

    return move


def changed(change):
    """A gather whose elements are changed afterwards."""
    return lambda ids, table: change(table[ids].copy())


def where(mask, value):
    def change(out):
        out[mask(out)] = value(out)[mask(out)]
        return out

    return changed(change)


def rounded(name):
    def change(out):
        fmt, narrow = BFLOAT16, FORMATS[name]
        kept = {}
        for e in np.unique(out).tolist():
            if (e & 0x7FFF) > fmt.largest_finite:
                kept[e] = e
                continue
            low = exact.round_once(*exact.decode(e, fmt), narrow)
            low = min(low & (narrow.sign - 1), narrow.largest_finite)
            kept[e] = exact.round_once(*exact.decode(low, narrow), fmt) | (e & fmt.sign)
        return np.vectorize(kept.__getitem__, otypes=[np.uint16])(out)

    return changed(change)


def touched(ids, table, places):
    out = table[ids].copy()
    out[places(ids)] ^= 0x55AA
    return out


def tile_lost(ids, table):
    out = table[ids].copy()
    out[:, 32:] = 0
    return out


def swapped(ids, table):
    out = table[ids].copy()
    out[:, [0, 1]] = out[:, [1, 0]]
    return out


def layout_ignored(ids, table):
    return table[ids] if table.flags.c_contiguous else table[ids][:, ::-1]


def padded(ids, table):
    out = table[ids].copy()
    out[ids == 0] = 0
    return out


def rewriting(ids, table):
    out = table[ids].copy()
    table[0] ^= 1
    return out


def ids_rewriting(ids, table):
    out = table[ids].copy()
    ids[:] = 0
    return out


def position(ids, table):
    out = table[ids].copy()
    out[3::8] = table[ids[0]]
    return out


def batch_path(ids, table):
    return table[ids] ^ (ids.size >= 257)


FAULTY = [
    ("ids-narrowed-to-8-bits", lambda ids, table: table[ids.astype(np.uint8)], probe(ids="last first")),
    ("ids-narrowed-to-8-bits", lambda ids, table: table[ids % 128], probe(ids="last first")),
    ("ids-narrowed-to-16-bits", lambda ids, table: table[ids.astype(np.uint16)],
     probe(vocab=70000, hidden=5, ids="boundary", shape=(64,))),
    ("ids-through-float", through("bfloat16"), probe(ids="last first")),
    ("ids-through-float", through("float16"), probe(vocab=4100, hidden=5, ids="last first", shape=(1000,))),
    ("row-off-by-one", lambda ids, table: table[np.maximum(ids - 1, 0)], probe(ids="last first")),
    ("row-off-by-one", lambda ids, table: table[np.minimum(ids + 1, 299)], probe(ids="sorted", shape=(33,))),
    ("packed-pairs", lambda ids, table: table[ids ^ 1], probe(ids="last first", vocab=256)),
    ("neighbour-dependent", lambda ids, table: table[np.roll(ids, -1)], probe(ids="hot", shape=(33,))),
    ("position-dependent", position, probe(ids="runs3", shape=(33,))),
    ("position-dependent", lambda ids, table: table[np.full_like(ids, ids[0])], probe(ids="hot", shape=(33,))),
    ("negative-zero-lost", where(lambda out: out == 0x8000, np.zeros_like), SPECIALS),
    ("nan-changed", where(lambda out: is_nan(out, BFLOAT16), lambda out: out | 0x40), SPECIALS),
    ("nan-replaced", where(lambda out: is_nan(out, BFLOAT16), np.zeros_like), SPECIALS),
    ("infinity-replaced", where(lambda out: (out & 0x7FFF) == 0x7F80, lambda out: out - 1), SPECIALS),
    ("subnormals-flushed", where(lambda out: is_subnormal(out, BFLOAT16), lambda out: out & 0x8000), SPECIALS),
    ("rounded-through-float8", rounded("float8_e5m2"),
     probe(table="gaussian", ids="last first", shape=(33,))),
    ("last-bits-changed", changed(lambda out: out ^ 1), probe(table="gaussian", shape=(33,))),
    ("columns-past-a-tile-wrong", tile_lost, probe(shape=(33,))),
    ("columns-moved", lambda ids, table: table[ids][:, ::-1], probe(shape=(33,))),
    ("columns-moved", swapped, probe(shape=(33,))),
    ("padding-id-zeroed", padded, probe(ids="ends", shape=(33,))),
    ("some-rows-wrong", lambda ids, table: touched(ids, table, lambda ids: ids == 7), probe(shape=(33,))),
    ("tokens-past-a-tile-wrong", lambda ids, table: touched(ids, table, lambda ids: slice(32, None)),
     probe(ids="alternating", shape=(65,))),
    ("table-strides-ignored", layout_ignored, probe(layout="transposed", shape=(33,))),
    ("storage-offset-ignored", lambda ids, table: table[ids] if table.base is None else np.roll(table, 1)[ids],
     probe(layout="offset by one element", shape=(33,))),
    ("table-rewritten", rewriting, HASHED),
    ("ids-rewritten", ids_rewriting, HASHED),
    ("output-aliases-input", lambda ids, table: table[2:4], probe(ids=(2, 3), shape=(2,))),
    ("wrong-dtype", lambda ids, table: table[ids].astype(np.float64), HASHED),
    ("wrong-shape", lambda ids, table: table[ids].reshape(-1), HASHED),
    ("empty-or-scalar-ids-fail", lambda ids, table: table[ids].reshape(1, -1), probe(ids="equal", shape=())),
    ("empty-or-scalar-ids-fail", lambda ids, table: table[[ids[0]]], probe(ids="equal", shape=())),
    ("one-hot-product", lambda ids, table: np.full_like(table[ids], BFLOAT16.nan),
     probe(vocab=3, hidden=1, table="poisoned", ids=(0, 2), shape=(2,))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "kernel", "call"), [pytest.param(*row, id=f"{n}-{row[0]}") for n, row in enumerate(FAULTY)]
)
def test_a_wrong_kernel_is_consistent_with_its_fault_first_of_all(fault, kernel, call):
    seen = of(kernel, call.dtype).run(call)
    found = explain(seen)
    assert found[0][1] == fault, found[:3]


@pytest.mark.parametrize(
    ("kernel", "call", "says"),
    [
        (lambda ids, table: table[ids.astype(np.uint8)], probe(ids=(5, 299, 298), shape=(3,)),
         "out[1] holds row 43, asked for 299: modulo 256"),
        (tile_lost, probe(shape=(33,)), "columns 32 to 32 are wrong, those before are right"),
        (swapped, probe(ids=(5,), shape=(1,)), "out[0, 0] holds column 1"),
        (padded, probe(ids=(0, 9), shape=(2,)), "the row of id 0 came back as zeros"),
        (changed(lambda out: out ^ 1), probe(table="gaussian", ids=(5,), shape=(1,)),
         "at most 1 units in the last place off"),
        (rewriting, HASHED, "the table has other bits after the call"),
    ],
)  # fmt: skip
def test_what_was_seen_is_said(kernel, call, says):
    assert says in explain(of(kernel, call.dtype).run(call))[0][2]


def test_hints_stand_behind_what_the_bits_say_and_before_what_is_likely_anyway():
    seen = of(lambda ids, table: table[ids.astype(np.uint8)], "bfloat16").run(probe(ids="last first"))
    names = [name for _, name, _ in explain(seen, ("stale-cache", "run-to-run"))]
    assert names[0] == "ids-narrowed-to-8-bits"
    assert names.index("stale-cache") < names.index("run-to-run")
    assert len(set(names)) == len(names)


def test_a_right_call_has_no_explanation():
    assert explain(of(lambda ids, table: table[ids], "bfloat16").run(HASHED)) == []


WRONG = {
    "flipped": lambda out: out ^ 1,
    "zeros": np.zeros_like,
    "ones": lambda out: out | out.dtype.type(-1 % (1 << 8 * out.itemsize)),
    "reversed": lambda out: np.flip(out).copy(),
    "hashed": lambda out: (out * 3 + 7).astype(out.dtype),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", WRONG)
def test_no_shape_makes_it_raise(dtype, change):
    explained = 0
    for vocab, hidden, shape in [
        (1, 1, ()), (1, 1, (1,)), (1, 1, (5,)), (2, 1, (3,)), (1, 7, (4,)), (9, 1, (2, 3)), (9, 3, ()),
        (300, 2, (65,)), (7, 5, (0,)), (7, 5, (2, 0, 3)), (7, 1, (3, 1)),
    ]:  # fmt: skip
        for table in ("hashed", "patterns", "gaussian", "zeros", "poisoned"):
            call = Probe(dtype=dtype, vocab=vocab, hidden=hidden, table=table, ids="zipf", shape=shape)
            with np.errstate(over="ignore"):
                seen = of(changed(WRONG[change]), dtype).run(call)
            found = explain(seen, ("stale-cache",))
            assert {name for _, name, _ in found} <= NAMES
            explained += seen.wrong is not None and len(found) > 1
    assert explained > 0


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float64"])
def test_nor_does_it_raise_on_widened_rows(dtype):
    fmt = FORMATS[dtype]
    for vocab, hidden, shape in [(1, 1, ()), (1, 1, (3,)), (9, 5, (7,)), (256, 9, (256,)), (5, 3, (0,))]:
        for table in ("hashed", "patterns", "zeros"):
            call = Probe(
                verb="forward_fp32", dtype=dtype, vocab=vocab, hidden=hidden, table=table, ids="every", shape=shape
            )
            for change in (lambda out: out ^ 1, lambda out: out & 0xFFFF0000, np.zeros_like):

                def kernel(ids, rows, change=change):
                    return change(exact.widen(rows[ids], fmt)).astype(np.uint32)

                found = explain(of(kernel, "float32", "forward_fp32").run(call))
                assert {name for _, name, _ in found} <= NAMES


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("nan-changed", lambda wide: np.where(is_nan(wide, SINGLE), wide | 0x400000, wide)),
        ("negative-zero-lost", lambda wide: np.where(wide == 0x80000000, 0, wide)),
        ("rounded-through-bfloat16", None),
    ],
)
def test_widened_rows_are_explained_too(fault, change):
    fmt = FORMATS["float16"]
    call = msgspec.structs.replace(SPECIALS, verb="forward_fp32", dtype="float16")
    if change is None:
        call = probe(verb="forward_fp32", dtype="float16", table="gaussian", shape=(33,))

        def change(wide):
            flat = [exact.round_once(*exact.decode(e, SINGLE), BFLOAT16) << 16 for e in wide.reshape(-1).tolist()]
            return np.array(flat).reshape(wide.shape) | (wide & 0x80000000)

    def kernel(ids, rows):
        return change(exact.widen(rows[ids], fmt)).astype(np.uint32)

    assert explain(of(kernel, "float32", "forward_fp32").run(call))[0][1] == fault


# Gradients


def floats(elements, fmt):
    seen = {e: exact.sum_rounded([e], fmt, SINGLE) for e in np.unique(elements).tolist()}
    return np.vectorize(seen.__getitem__, otypes=[np.uint32])(elements).view(np.float32)


def narrowed(sums, fmt):
    flat = np.ascontiguousarray(sums, np.float32).view(np.uint32).reshape(-1)
    return np.array([exact.sum_rounded([int(e)], SINGLE, fmt) for e in flat], fmt.uint).reshape(sums.shape)


def evidence_of(case, gradient, layout="dense"):
    """What the examination keeps of a gradient `(ids, values, vocab) -> [V, H]` in float32 sums."""
    ids, cotangent = gradients.build(case)
    source, target = FORMATS[case.source], FORMATS[case.result]
    with np.errstate(all="ignore"):
        sums = gradient(ids.reshape(-1), floats(cotangent, source).reshape(ids.size, case.hidden), case.vocab)
    got, known = narrowed(sums, target), exact_of(ids, cotangent, source)
    off = misses(got, known, target, SINGLE).sums
    return {"case": case, "layout": layout, "id_dtype": "int64", "exact": known, "got": got, "off": off}


def summed(ids, values, vocab):
    total = np.zeros((vocab, values.shape[1]), np.float32)
    np.add.at(total, ids, values)
    return total


def overwritten(ids, values, vocab):
    total = np.zeros((vocab, values.shape[1]), np.float32)
    total[ids] = values
    return total


def mean(ids, values, vocab):
    return summed(ids, values, vocab) / np.maximum(np.bincount(ids, minlength=vocab), 1)[:, None]


def capped(ids, values, vocab):
    total = np.zeros((vocab, values.shape[1]), np.float32)
    for row in np.unique(ids):
        total[row] = values[ids == row][:4].sum(axis=0)
    return total


def in_bfloat16(ids, values, vocab):
    total = np.zeros((vocab, values.shape[1]), np.float32)
    for row, value in zip(ids, values, strict=True):
        both = narrowed(total[row] + value, BFLOAT16)
        total[row] = floats(both, BFLOAT16)
    return total


def padding_dropped(ids, values, vocab):
    total = summed(ids, values, vocab)
    total[0] = 0
    return total


def specials_dropped(ids, values, vocab):
    return summed(ids, np.where(np.isfinite(values), values, 0), vocab)


GRADIENTS = [
    ("duplicates-overwrite", overwritten, "gaussian"),
    ("frequency-scaled", mean, "gaussian"),
    ("duplicates-capped", capped, "gaussian"),
    ("accumulated-in-low-precision", in_bfloat16, "fractions"),
    ("gradient-accumulates-across-calls", lambda *given: 2 * summed(*given), "gaussian"),
    ("gradient-scaled", lambda *given: summed(*given) / 3, "gaussian"),
    ("gradient-lost", lambda *given: 0 * summed(*given), "gaussian"),
    ("padding-gradient-dropped", padding_dropped, "gaussian"),
    ("specials-dropped", specials_dropped, "specials"),
]


@pytest.mark.parametrize(("fault", "gradient", "family"), [pytest.param(*row, id=row[0]) for row in GRADIENTS])
@pytest.mark.parametrize("result", ["bfloat16", "float32"])
def test_a_wrong_gradient_is_consistent_with_its_fault_first_of_all(fault, gradient, family, result):
    case = GradientCase(source=result, result=result, values=family, vocab=20, hidden=4, shape=(129,))
    found = explain_gradient(evidence_of(case, gradient))
    assert found[0][1] == fault, found[:3]


def test_cotangents_that_were_rounded_first():
    """1 and a little, which rounding loses, beside nearly minus 1: the little is a tenth of the sum."""
    parts = values([1 + 2.0**-9, -1 + 2.0**-6], "float32").tolist()
    for got, holds in ((2.0**-6, True), (2.0**-6 + 2.0**-9, False)):
        found = _likenesses(parts, int(values(got, "bfloat16")), SINGLE, BFLOAT16)
        assert found["cotangent-cast-first"] is holds


def test_hints_and_layouts_of_gradients():
    case = GradientCase(source="float32", result="float32", values="gaussian", vocab=20, hidden=4, shape=(33,))
    found = explain_gradient(evidence_of(case, overwritten, "strided"), ("gradient-order-by-run",))
    names = [name for _, name, _ in found]
    assert {"cotangent-strides-ignored", "gradient-order-by-run"} <= set(names)
    assert explain_gradient({}, ("ids-rewritten",)) == [(0.55, "ids-rewritten", "that is how it fails")]


@pytest.mark.parametrize("family", ["equal", "wide", "specials", "edge", "negative-zero", "subnormal", "cancelling"])
@pytest.mark.parametrize("result", DTYPES)
def test_no_gradient_makes_it_raise(family, result):
    for vocab, hidden, shape in [(1, 1, ()), (1, 1, (0,)), (1, 1, (9,)), (5, 1, (2, 3)), (9, 3, (0,)), (7, 2, (33,))]:
        case = GradientCase(source=result, result=result, values=family, vocab=vocab, hidden=hidden, shape=shape)
        ids, cotangent = gradients.build(case)
        known = exact_of(ids, cotangent, FORMATS[result])
        for got in (0, 1, FORMATS[result].nan, FORMATS[result].exponent, FORMATS[result].sign):
            full = np.full((vocab, hidden), got, FORMATS[result].uint)
            off = misses(full, known, FORMATS[result], FORMATS[result]).sums
            kept = {"case": case, "layout": "dense", "id_dtype": "int64", "exact": known, "got": full, "off": off}
            for layout in ("dense", "expanded"):
                found = explain_gradient({**kept, "layout": layout}, ("wrong-shape",))
                assert {name for _, name, _ in found} <= NAMES
