"""Explanations: a kernel that is wrong in one way is said to be consistent with just that, and nothing ever raises."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.helpers import DTYPES, values

from xref import exact
from xref.bits import FORMATS, is_nan, is_subnormal
from xref.engine.evidence import Reused, Rewritten
from xref.engine.layouts import LAYOUTS
from xref.engine.steps import Died, Done, Output, Put, Raised, Read, Replies
from xref.operators.embedding import faults
from xref.operators.embedding.bound import exact_of, misses
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.clauses import result_dtype
from xref.operators.embedding.cotangents import cotangent_families
from xref.operators.embedding.diagnose import explain
from xref.operators.embedding.diagnose.gradient import likenesses
from xref.operators.embedding.evidence import GradientEvidence
from xref.operators.embedding.faults import FAULTS
from xref.spec import Exam, Failure, Seen, Tier, Traits

NAMES = {fault.name for fault in FAULTS}
HASHED = Forward(check="EMB-1", dtype="bfloat16", vocab=300, hidden=33, table="hashed", ids="zipf", shape=(257,))
SPECIALS = Forward(
    check="EMB-1", dtype="bfloat16", vocab=1009, hidden=65, table="patterns", ids="covering", shape=(1098,)
)
BFLOAT16, SINGLE = FORMATS["bfloat16"], FORMATS["float32"]
EXAM = Exam(
    traits=Traits(name="k", framework="torch", version="", device="cpu", device_name="", verbs=("forward", "backward")),
    tier=Tier.SMOKE,
    dtypes=DTYPES,
)


class Subject:
    """A kernel of NumPy arrays of bits, `(ids, table) -> rows` or `(ids, cotangent, vocab) -> gradient`."""

    def __init__(self, kernel, budget=100):
        self.kernel, self.left, self.made = kernel, budget, []

    def __call__(self, call):
        """Make a call, if any may still be made."""
        if self.left <= 0:
            return Seen()
        self.left -= 1
        self.made.append(call)
        script = call.script(EXAM)
        arrays, replies = {}, []
        for step in script.steps:
            if isinstance(step, Put):
                arrays[step.name] = LAYOUTS[step.layout].make(step.array)
                replies.append(Done())
            elif isinstance(step, Read):
                replies.append(self._output(arrays[step.name], script.dtype))
            else:
                replies.append(self._run(step, arrays, call))
        return call.judge(script, Replies(script, replies), EXAM)

    def _run(self, step, arrays, call):
        given = [arrays[name] if isinstance(name, str) else name for name in step.arguments]
        try:
            out = arrays[step.name] = self.kernel(*given)
        except Exception as error:
            return Raised(type=type(error).__name__, line=repr(error))
        return self._output(out, call.result if isinstance(call, Gradient) else result_dtype(call.verb, call.dtype))

    def _output(self, array, dtype):
        first = array.__array_interface__["data"][0]
        named = dtype if array.dtype.kind == "u" else array.dtype.name
        return Output(form=(array.shape, named, "cpu"), array=array.copy(), memory=(first, first + array.nbytes))


def explained(kernel, call, check=None):
    """Return what a kernel's failure of a call speaks for: that of a check, or the first."""
    make = Subject(kernel)
    seen = make(call)
    failure = seen.failed(check) if check else seen.failures[0]
    return explain(failure.call or call, failure, make)


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
    ("table-rewritten", rewriting, HASHED),
    ("ids-rewritten", ids_rewriting, HASHED),
    ("output-aliases-input", lambda ids, table: table[2:4], probe(ids=(2, 3), shape=(2,))),
    ("wrong-dtype", lambda ids, table: table[ids].astype(np.float64), HASHED),
    ("wrong-shape", lambda ids, table: table[ids].reshape(-1), HASHED),
    ("empty-or-scalar-ids-fail", lambda ids, table: table[ids] if ids.ndim else table[ids][None],
     probe(ids="equal", shape=())),
    ("empty-or-scalar-ids-fail", lambda ids, table: table[ids[:]], probe(ids="equal", shape=())),
    ("one-hot-product", lambda ids, table: np.full_like(table[ids], BFLOAT16.nan),
     probe(vocab=3, hidden=1, table="poisoned", ids=(0, 2), shape=(2,))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "kernel", "call"), [pytest.param(*row, id=f"{n}-{row[0]}") for n, row in enumerate(FAULTY)]
)
def test_a_wrong_kernel_is_consistent_with_its_fault_first_of_all(fault, kernel, call):
    found = explained(kernel, call)
    assert found[0].fault == fault, found[:3]


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
        (rewriting, HASHED, "weight has other bits after the call"),
    ],
)  # fmt: skip
def test_what_was_seen_is_said(kernel, call, says):
    assert says in explained(kernel, call)[0].seen


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
    failures = 0
    for vocab, hidden, shape in [
        (1, 1, ()), (1, 1, (1,)), (1, 1, (5,)), (2, 1, (3,)), (1, 7, (4,)), (9, 1, (2, 3)), (9, 3, ()),
        (300, 2, (65,)), (7, 5, (0,)), (7, 5, (2, 0, 3)), (7, 1, (3, 1)),
    ]:  # fmt: skip
        for table in ("hashed", "patterns", "gaussian", "zeros", "poisoned"):
            call = Forward(check="EMB-1", dtype=dtype, vocab=vocab, hidden=hidden, table=table, ids="zipf", shape=shape)
            make = Subject(changed(WRONG[change]))
            with np.errstate(over="ignore"):
                for failure in make(call).failures:
                    found = explain(call, failure, make)
                    assert {suspect.fault for suspect in found} <= NAMES
                    failures += 1
    assert failures > 0


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float64"])
def test_nor_does_it_raise_on_widened_rows(dtype):
    fmt = FORMATS[dtype]
    for vocab, hidden, shape in [(1, 1, ()), (1, 1, (3,)), (9, 5, (7,)), (256, 9, (256,)), (5, 3, (0,))]:
        for table in ("hashed", "patterns", "zeros"):
            call = Forward(
                check="EMB-2", verb="forward_fp32", dtype=dtype, vocab=vocab, hidden=hidden, table=table, ids="every",
                shape=shape,
            )  # fmt: skip
            for change in (lambda out: out ^ 1, lambda out: out & 0xFFFF0000, np.zeros_like):

                def kernel(ids, rows, change=change):
                    return change(exact.widen(rows[ids], fmt)).astype(np.uint32)

                make = Subject(kernel)
                for failure in make(call).failures:
                    assert {suspect.fault for suspect in explain(call, failure, make)} <= NAMES


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
    call = msgspec.structs.replace(SPECIALS, check="EMB-2", verb="forward_fp32", dtype="float16")
    if change is None:
        call = probe(check="EMB-2", verb="forward_fp32", dtype="float16", table="gaussian", shape=(33,))

        def change(wide):
            flat = [exact.round_once(*exact.decode(e, SINGLE), BFLOAT16) << 16 for e in wide.reshape(-1).tolist()]
            return np.array(flat).reshape(wide.shape) | (wide & 0x80000000)

    def kernel(ids, rows):
        return change(exact.widen(rows[ids], fmt)).astype(np.uint32)

    assert explained(kernel, call)[0].fault == fault


# Gradients


def floats(elements, fmt):
    seen = {e: exact.sum_rounded([e], fmt, SINGLE) for e in np.unique(elements).tolist()}
    return np.vectorize(seen.__getitem__, otypes=[np.uint32])(elements).view(np.float32)


def narrowed(sums, fmt):
    flat = np.ascontiguousarray(sums, np.float32).view(np.uint32).reshape(-1)
    return np.array([exact.sum_rounded([int(e)], SINGLE, fmt) for e in flat], fmt.uint).reshape(sums.shape)


def backward(gradient, source, result):
    """Return the kernel on bits that a gradient `(ids, values, vocab) -> [V, H]` in float32 sums is."""

    def kernel(ids, cotangent, vocab):
        with np.errstate(all="ignore"):
            given = floats(cotangent, FORMATS[source]).reshape(ids.size, cotangent.shape[-1])
            return narrowed(gradient(ids.reshape(-1), given, vocab), FORMATS[result])

    return kernel


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
    ("accumulated-in-low-precision", in_bfloat16, "gaussian"),
    ("gradient-accumulates-across-calls", lambda *given: 2 * summed(*given), "gaussian"),
    ("gradient-scaled", lambda *given: summed(*given) / 3, "gaussian"),
    ("gradient-lost", lambda *given: 0 * summed(*given), "gaussian"),
    ("padding-gradient-dropped", padding_dropped, "gaussian"),
    ("specials-dropped", specials_dropped, "specials"),
]


@pytest.mark.parametrize(("fault", "gradient", "family"), [pytest.param(*row, id=row[0]) for row in GRADIENTS])
@pytest.mark.parametrize("result", ["bfloat16", "float32"])
def test_a_wrong_gradient_is_consistent_with_its_fault_first_of_all(fault, gradient, family, result):
    call = Gradient(
        check="EMB-8",
        verb="backward",
        source=result,
        result=result,
        values=family,
        vocab=20,
        hidden=4,
        shape=(257,),
    )
    check = "EMB-11" if family == "specials" else "EMB-8"
    found = explained(backward(gradient, result, result), call, check)
    assert found[0].fault == fault, found[:3]


def test_cotangents_that_were_rounded_first():
    """1 and a little, which rounding loses, beside nearly minus 1: the little is a tenth of the sum."""
    parts = values([1 + 2.0**-9, -1 + 2.0**-6], "float32").tolist()
    for got, holds in ((2.0**-6, True), (2.0**-6 + 2.0**-9, False)):
        found = likenesses(parts, int(values(got, "bfloat16")), SINGLE, BFLOAT16)
        assert found["cotangent-cast-first"] is holds


@pytest.mark.parametrize("family", ["equal", "wide", "specials", "edge", "negative-zero", "subnormal", "cancelling"])
@pytest.mark.parametrize("result", DTYPES)
def test_no_gradient_makes_it_raise(family, result):
    assert family in cotangent_families()
    for vocab, hidden, shape in [(1, 1, ()), (1, 1, (0,)), (1, 1, (9,)), (5, 1, (2, 3)), (9, 3, (0,)), (7, 2, (33,))]:
        call = Gradient(
            check="EMB-8", verb="backward", source=result, result=result, values=family, vocab=vocab, hidden=hidden,
            shape=shape,
        )  # fmt: skip
        ids, cotangent = call.arrays()
        known = exact_of(ids, cotangent, FORMATS[result])
        for got in (0, 1, FORMATS[result].nan, FORMATS[result].exponent, FORMATS[result].sign):
            full = np.full((vocab, hidden), got, FORMATS[result].uint)
            off = misses(full, known, FORMATS[result], FORMATS[result]).sums
            evidence = GradientEvidence(call, ids, cotangent, known, full, off)
            found = explain(call, Failure("EMB-8", "", evidence=evidence), lambda call: Seen())
            assert {suspect.fault for suspect in found} <= NAMES


# What is seen by other calls


def names(found):
    return [suspect.fault for suspect in found]


def raises(*given):
    raise RuntimeError("no")


def test_bits_that_differ_from_run_to_run_are_told_from_those_that_differ_once():
    draw, calls = np.random.default_rng(0), []

    def flipped(ids, table):
        out = table[ids].copy()
        out.reshape(-1)[draw.integers(out.size)] ^= 1
        return out

    def once(ids, table):
        calls.append(ids)
        return table[ids] ^ (len(calls) == 1)

    assert names(explained(flipped, HASHED))[0] == "run-to-run"
    assert names(explained(once, HASHED))[0] == "call-count-dependent"
    fixed = names(explained(lambda ids, table: table[ids] ^ 1, HASHED))
    assert not {"run-to-run", "call-count-dependent", "stale-cache"} & set(fixed)


def test_the_batch_is_blamed_only_if_its_tokens_are_right_in_a_smaller_one():
    found = names(explained(batch_path, HASHED))
    assert found[0] == "other-path-by-batch-size"
    assert "other-path-by-batch-size" not in names(explained(lambda ids, table: table[ids] ^ 1, HASHED))
    assert "other-path-by-batch-size" not in names(explained(position, probe(ids="runs3", shape=(9,))))


def test_the_ids_dtype_is_blamed_only_if_another_is_right():
    call = probe(id_dtype="uint8", ids="last first", vocab=300)
    assert (
        names(explained(lambda ids, table: table[ids.astype(np.int8).astype(int) % 300], call))[0] != "id-dtype-misread"
    )
    small = lambda ids, table: table[ids.view(np.int8) if ids.dtype == np.uint8 else ids]  # noqa: E731
    assert names(explained(small, call))[0] == "id-dtype-misread"
    assert "id-dtype-misread" not in names(explained(lambda ids, table: table[ids] ^ 1, call))


def test_a_huge_table_is_blamed_only_if_a_small_one_is_right():
    huge = probe(vocab=40000, hidden=65536, table="sparse", ids="boundary", shape=(12,))
    lost = lambda ids, table: table[ids] if len(table) == 1009 else table[ids] * 0  # noqa: E731
    assert explained(with_rows(lost, huge), huge)[0].fault == "row-offset-overflow"
    assert names(explained(with_rows(lambda ids, table: table[ids] ^ 1, huge), huge))[0] == "last-bits-changed"


def with_rows(kernel, call):
    """A kernel that finds the rows of a table that is put in part."""
    rows = call.weight()[1]
    return lambda ids, table: kernel(np.searchsorted(rows, ids) if len(table) == len(rows) else ids, table)


def test_calls_for_which_there_is_no_budget_left_say_nothing():
    make = Subject(batch_path, budget=1)
    seen = make(HASHED)
    assert not {"other-path-by-batch-size", "call-count-dependent"} & set(
        names(explain(HASHED, seen.failures[0], make))
    )


def test_two_runs_say_the_same_and_make_few_calls():
    found = []
    for _ in range(2):
        make = Subject(batch_path)
        found.append(explain(HASHED, make(HASHED).failures[0], make))
        assert len(make.made) <= 5
    assert found[0] == found[1]


def test_a_backward_that_always_raises_is_not_one_that_raises_on_no_ids():
    call = Gradient(check="EMB-8", verb="backward", source="float32", result="float32", vocab=9, hidden=2, shape=())
    assert names(explained(raises, call)) == ["gradient-raises"]
    right = backward(summed, "float32", "float32")
    unusual = lambda ids, *others: right(ids, *others) if ids.ndim else raises()  # noqa: E731
    assert names(explained(unusual, call)) == ["empty-or-scalar-ids-fail"]
    reply = Raised(type="RuntimeError", line="element 0 does not require grad", unconnected=True)
    assert names(explain(call, Failure("EMB-8", "", evidence=reply), raises)) == ["gradient-lost"]


def test_a_forward_that_always_raises_is_not_blamed_on_what_its_ids_are():
    for call in (probe(shape=()), probe(id_dtype="uint8"), probe(layout="transposed")):
        assert explained(raises, call) == []


def test_bit_patterns_that_are_added_as_integers():
    def added(ids, cotangent, vocab):
        out = np.zeros((vocab, cotangent.shape[-1]), cotangent.dtype)
        np.add.at(out, ids.reshape(-1), cotangent.reshape(ids.size, -1))
        return out

    call = Gradient(check="EMB-8", verb="backward", source="bfloat16", result="bfloat16", vocab=20, hidden=4)
    assert explained(added, call)[0].fault == "bits-added-as-integers"


def test_the_order_of_a_sum_is_blamed_only_if_repeated_calls_differ():
    draw = np.random.default_rng(0)

    def noisy(ids, values, vocab):
        return summed(ids, values * np.float32(1 + draw.uniform(0.02, 0.03)), vocab)

    call = Gradient(check="EMB-8", verb="backward", source="float32", result="float32", vocab=20, hidden=4)
    assert explained(backward(noisy, "float32", "float32"), call)[0].fault == "gradient-order-by-run"
    for _, gradient, _ in GRADIENTS[:-1]:
        found = set(names(explained(backward(gradient, "float32", "float32"), call)))
        assert not found & {"gradient-order-by-run", "cotangent-strides-ignored", "ids-strides-ignored"}


def test_a_gradient_that_grows_from_call_to_call():
    calls = []

    def growing(ids, values, vocab):
        calls.append(ids)
        return summed(ids, values, vocab) * (1 + len(calls))

    call = Gradient(check="EMB-8", verb="backward", source="float32", result="float32", vocab=20, hidden=4)
    assert explained(backward(growing, "float32", "float32"), call)[0].fault == "gradient-accumulates-across-calls"


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        (Died(how="death by SIGSEGV"), faults.CRASH),
        (Died(how="no answer within 60 s", late=True), faults.ENDLESS_LOOP),
        (Rewritten("varied weight"), faults.TABLE_REWRITTEN),
        (Rewritten("cotangent"), faults.COTANGENT_REWRITTEN),
        (Reused(), faults.OUTPUT_BUFFER_REUSED),
        (None, None),
    ],
)
def test_what_no_bits_are_needed_for(evidence, fault):
    found = explain(HASHED, Failure("EMB-5", "", evidence=evidence), raises)
    assert names(found) == ([fault.name] if fault else [])
