"""Calls of the forward: what their scripts hold, what replies to them show, and how they are made smaller."""

from __future__ import annotations

import importlib

import msgspec
import numpy as np
import pytest
from support.examined import examination
from support.helpers import VERBS, assert_same_bits

from xref.bits import FORMATS
from xref.engine.evidence import Misformed, Rewritten, Shared
from xref.engine.layouts import ID_LAYOUTS, LAYOUTS, TABLE_LAYOUTS
from xref.engine.shrink import smallest
from xref.engine.steps import Died, Done, NotMade, Output, Put, Raised, Read, Replies, Run
from xref.inputs import make_table
from xref.operators.embedding import OPERATOR, faults
from xref.operators.embedding.answers import exact_answers
from xref.operators.embedding.calls.forward import Forward, NarrowedTable
from xref.operators.embedding.examine import forward
from xref.operators.embedding.families import IDS, ids_of, table_of
from xref.spec import Exam, Tier, Traits

CALL = Forward(check="EMB-1", dtype="float32", vocab=9, hidden=5, ids=(8, 0), shape=(2,))
TRAITS = Traits(
    name="it", framework="torch", version="2", device="cpu", device_name="CPU", verbs=("forward",),
    transforms=("vmap",), grad_modes=("no_grad",), settings=("five threads",),
)  # fmt: skip
EXAM = Exam(traits=TRAITS, tier=Tier.SMOKE, dtypes=("float32",))


def out_of(array, memory=(0, 0), dtype="float32"):
    return Output(form=(array.shape, dtype, "cpu"), array=array, memory=memory)


def judged(call, change, exam=EXAM):
    """What a call shows of a kernel that does as it must, but for the replies that `change` gives by step."""
    script = call.script(exam)
    arrays, replies = {}, []
    for place, step in enumerate(script.steps):
        if isinstance(step, Put):
            arrays[step.name] = step.array
            reply = Done()
        elif isinstance(step, Run):
            ids, table = (arrays[name] for name in step.arguments)
            arrays[step.name] = exact_answers(ids, table, call.dtype)[step.verb]
            reply = out_of(arrays[step.name], (1000 * place, 1000 * place + 10))
        elif isinstance(step, Read):
            reply = out_of(arrays[step.name], (10**6 + 100 * place, 10**6 + 100 * place + 10))
        replies.append(change(step, reply) or reply)
        if isinstance(step, Run) and isinstance(replies[-1], Output):
            arrays[step.name] = replies[-1].array
    return call.judge(script, Replies(script, replies), exam)


def changing(name, how, kind=Run):
    return lambda step, reply: how(reply) if step.name == name and isinstance(step, kind) else None


# Records


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (CALL, "forward float32 9x5 tagged ids [8, 0] 2 int64"),
        (
            Forward(check="EMB-2", verb="forward_fp32", dtype="float16", vocab=300, hidden=33, ids="zipf", shape=(),
                    id_dtype="uint8"),
            "forward_fp32 float16 300x33 tagged zipf scalar uint8",
        ),
        (
            Forward(check="EMB-7/layout", dtype="float32", vocab=9, hidden=1, ids=tuple(range(9)), shape=(3, 3),
                    layout="transposed", id_layout="strided", mode="vmap"),
            "forward float32 9x1 tagged ids [0, 1, 2, 3, 4, 5, 6, 7, ...] 3x3 int64 table transposed ids strided vmap",
        ),
        (msgspec.structs.replace(CALL, repeats=2), "forward float32 9x5 tagged ids [8, 0] 2 int64 3 times"),
    ],
)  # fmt: skip
def test_a_call_in_words(call, words):
    assert str(call) == words
    assert OPERATOR.call(call.to_json()) == call


def test_a_record_leaves_out_what_is_usual():
    expected = '{"call":"forward","check":"EMB-1","dtype":"float32","vocab":9,"hidden":5,"ids":[8,0],"shape":[2]}'
    assert CALL.to_json() == expected


@pytest.mark.parametrize("layout", [*ID_LAYOUTS, "expanded ids"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (4, 9), (2, 3, 5), (2, 0, 3)])
def test_ids_of_every_layout_are_dense_where_they_are_put(layout, shape):
    call = Forward(check="", dtype="float32", vocab=50, hidden=2, ids="zipf", shape=shape, id_layout=layout)
    ids = call.token_ids()
    assert (ids.shape, ids.flags.c_contiguous) == (shape, True)
    assert np.array_equal(LAYOUTS[layout].make(ids), ids) or LAYOUTS[layout].cut is not None
    assert np.array_equal(call.plain().token_ids(), ids)


@pytest.mark.parametrize("family", sorted(IDS))
@pytest.mark.parametrize("vocab", [1, 2, 3, 300])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (65,), (4, 9)])
def test_families_of_ids_stay_in_range(family, vocab, shape):
    ids = ids_of(family, shape, vocab, "int64")
    assert ids.shape == shape
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < vocab)
    assert ids_of(family, (500,), 70000, "int8").min() >= 0


def test_a_poisoned_table_has_nan_in_the_rows_that_no_id_names_and_nowhere_else():
    table, rows = table_of("poisoned", 5, 2, "bfloat16", 0, np.array([3, 1]))
    nan = FORMATS["bfloat16"].nan
    assert [(row == nan).all() for row in table] == [True, False, True, False, True]
    assert not (table[[1, 3]] == nan).any()
    assert rows is None


def test_a_table_of_zeros_has_both_signs():
    assert table_of("zeros", 4, 3, "float16", 0)[0][:, 0].tolist() == [0, 0x8000, 0, 0x8000]


@pytest.mark.parametrize("family", ["hashed", "gaussian", "patterns", "tagged"])
def test_tables_of_other_offsets_differ_in_every_row(family):
    first, second = (table_of(family, 50, 9, "float32", offset)[0] for offset in (0, 1000))
    assert (first != second).any(axis=1).all()


def test_a_table_whose_rows_may_overlap_is_one_stream():
    table = table_of("windows", 6, 4, "float32", 0)[0]
    assert np.array_equal(table[1:, :-1], table[:-1, 1:])


def test_a_sparse_table_is_put_by_its_rows():
    call = Forward(check="", dtype="bfloat16", vocab=40000, hidden=65536, table="sparse", ids=(39999, 7), shape=(2,))
    _, table = call.inputs(EXAM)
    assert (table.rows.tolist(), table.vocab, table.array.shape, table.key) == ([7, 39999], 40000, (2, 65536), "")
    script = call.script(EXAM)
    assert_same_bits(call.rule(script).bits, table.array[[1, 0]])
    assert [step.rows is not None for step in script.steps if isinstance(step, Read)] == [False, True]


@pytest.mark.parametrize(("verb", "dtype"), VERBS)
def test_the_answer_is_rows_or_rows_widened(verb, dtype):
    call = msgspec.structs.replace(CALL, verb=verb, dtype=dtype, table="hashed")
    table = make_table("hashed", 9, 5, FORMATS[dtype])
    rule = call.rule(call.script(EXAM))
    assert_same_bits(rule.bits, exact_answers(np.array([8, 0]), table, dtype)[verb])


# What replies show


def test_a_right_call_passes_the_clauses_of_every_call():
    seen = judged(CALL, lambda step, reply: None)
    assert seen.failures == []
    assert set(seen.passed) == {"EMB-1", "EMB-3", "EMB-5"}
    assert list(seen.outputs) == ["forward"]


RAISED = Raised(type="RuntimeError", text="no\nadvice", line="RuntimeError: no", where="k.py:3")


@pytest.mark.parametrize(
    ("name", "kind", "how", "check", "says"),
    [
        ("out", Run, lambda reply: out_of(reply.array ^ np.uint32(1)), "EMB-1",
         "out[0, 0]: got 0x00000029, expected 0x00000028 (1 ulp; 10 of 10 elements differ)"),
        ("out", Run, lambda reply: out_of(reply.array[:1]), "EMB-3",
         "out: got shape (1, 5), float32, on cpu, expected shape (2, 5), float32, on cpu"),
        ("out", Run, lambda reply: out_of(reply.array, dtype="int32"), "EMB-3",
         "out: got shape (2, 5), int32, on cpu, expected shape (2, 5), float32, on cpu"),
        ("out", Run, lambda reply: RAISED, "EMB-1", "out: got RuntimeError: no at k.py:3, expected a result"),
        ("out", Run, lambda reply: Died(how="death by SIGSEGV"), "EMB-1",
         "process: got death by SIGSEGV, expected a result"),
        ("weight", Read, lambda reply: out_of(reply.array ^ np.uint32(1)), "EMB-5",
         "weight: got other bits after the call, expected the same"),
        ("token_ids", Read, lambda reply: out_of(reply.array + 1), "EMB-5",
         "token_ids: got other values after the call, expected the same"),
        ("weight", Read, lambda reply: out_of(reply.array, (0, 10**9)), "EMB-5",
         "out: got memory of weight, expected its own"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_said(name, kind, how, check, says):
    [failure] = judged(CALL, changing(name, how, kind)).failures
    assert (failure.check, failure.message, failure.call, failure.suspects) == (check, says, None, ())


def test_evidence_is_kept_of_what_is_wrong():
    [failure] = judged(CALL, changing("out", lambda reply: out_of(reply.array ^ np.uint32(1)))).failures
    evidence = failure.evidence
    assert (evidence.call, evidence.ids.tolist(), evidence.table.shape) == (CALL, [8, 0], (9, 5))
    assert (evidence.got ^ evidence.expected == 1).all()
    for name, kind, how, evidence in (
        ("out", Run, lambda reply: out_of(reply.array[:1]), Misformed),
        ("weight", Read, lambda reply: out_of(reply.array ^ np.uint32(1)), Rewritten),
        ("weight", Read, lambda reply: out_of(reply.array, (0, 10**9)), Shared),
    ):
        assert isinstance(judged(CALL, changing(name, how, kind)).failures[0].evidence, evidence)


# Layouts and modes

STRIDED = msgspec.structs.replace(CALL, check="EMB-7/layout", layout="transposed")
wrong = changing("varied", lambda reply: out_of(reply.array ^ np.uint32(1)))


@pytest.mark.parametrize(
    ("varied", "suspects"),
    [
        ({"layout": "transposed"}, ["table-strides-ignored"]),
        ({"layout": "offset by one element"}, ["storage-offset-ignored"]),
        ({"layout": "read-only"}, []),
        ({"id_layout": "strided"}, ["ids-strides-ignored"]),
        ({"id_layout": "offset by one"}, ["storage-offset-ignored"]),
        ({"check": "EMB-7/gradient", "mode": "no_grad"}, ["gradient-mode-dependent"]),
        ({"check": "EMB-7/settings", "mode": "five threads"}, ["setting-dependent"]),
        ({"check": "EMB-7/mode", "mode": "vmap"}, []),
    ],
)
def test_what_is_varied_is_blamed_where_the_plain_call_is_right(varied, suspects):
    call = msgspec.structs.replace(CALL, **{"check": "EMB-7/layout", **varied})
    [failure] = judged(call, wrong).failures
    assert (failure.check, failure.call) == (call.check, None)
    assert [suspect.fault for suspect in failure.suspects] == suspects
    assert failure.evidence.call == call


@pytest.mark.parametrize("fail", [RAISED, Died(how="death by SIGSEGV")])
def test_no_layout_is_blamed_for_what_dense_memory_shows_too(fail):
    [failure] = judged(STRIDED, lambda step, reply: fail if isinstance(step, Run) else None).failures
    assert (failure.check, failure.call, failure.suspects) == ("EMB-1", STRIDED.plain(), ())
    both = lambda step, reply: out_of(reply.array ^ np.uint32(1)) if isinstance(step, Run) else None  # noqa: E731
    seen = judged(STRIDED, both)
    assert [failure.check for failure in seen.failures] == ["EMB-1"]
    assert seen.failures[0].evidence.call == STRIDED.plain()
    assert "EMB-7/layout" in seen.passed


def test_a_transform_may_be_refused_and_a_mode_may_not():
    for mode, check, refused in (("vmap", "EMB-7/mode", True), ("no_grad", "EMB-7/gradient", False)):
        call = msgspec.structs.replace(CALL, check=check, mode=mode)
        [run] = [step for step in call.script(EXAM).steps if step.name == "varied"]
        assert (run.mode, run.refusable) == (mode, refused)
        reply = msgspec.structs.replace(RAISED, refused=refused)
        seen = judged(call, changing("varied", lambda _, reply=reply: reply))
        assert [failure.check for failure in seen.failures] == ([] if refused else [check])
        assert seen.skipped == ({check: f"{mode}: RuntimeError: no"} if refused else {})


def test_a_mode_that_the_framework_does_not_have_is_skipped():
    call = msgspec.structs.replace(CALL, check="EMB-7/mode", mode="vmap")
    seen = judged(call, changing("varied", lambda reply: NotMade(why="torch has no vmap")))
    assert (seen.failures, seen.skipped) == ([], {"EMB-7/mode": "torch has no vmap"})


# Repeats


def test_repeats_must_be_alike():
    call = msgspec.structs.replace(CALL, check="EMB-6", repeats=4)
    assert judged(call, lambda step, reply: None).passed["EMB-6"] == 40
    [failure] = judged(call, changing("out 2", lambda reply: out_of(reply.array ^ np.uint32(1)))).failures
    assert failure.check == "EMB-6"
    assert failure.message.endswith("in call 3")
    assert failure.suspects[0].fault == faults.CALL_COUNT_DEPENDENT.name

    def by_chance(step, reply):
        again = isinstance(step, Run) and step.name != "out"
        return out_of(reply.array ^ np.uint32(int(step.name[-1]))) if again else None

    [failure] = judged(call, by_chance).failures
    assert failure.suspects[0].fault == faults.RUN_TO_RUN.name


def test_an_output_must_stay_what_it_was():
    call = msgspec.structs.replace(CALL, check="EMB-6", repeats=2)
    [failure] = judged(call, changing("out", lambda reply: out_of(reply.array ^ np.uint32(1)), Read)).failures
    assert failure.check == "EMB-5"
    assert failure.message == "out: got other bits after a later call, expected the same"


def test_the_first_wrong_calls_are_made_again():
    seen = judged(CALL, changing("out", lambda reply: out_of(reply.array ^ np.uint32(1))))
    [again] = forward.follow_up(CALL, seen)
    assert (again.check, again.repeats) == ("EMB-6", 2)
    assert list(forward.follow_up(CALL, judged(CALL, lambda step, reply: None))) == []
    assert list(forward.follow_up(again, seen)) == []


# float64 and forward_fp32

NARROWED = NarrowedTable(check="EMB-2", vocab=5, hidden=3)


@pytest.mark.parametrize("golden", [True, False])
def test_a_table_of_float64_must_be_refused(golden):
    exam = Exam(traits=msgspec.structs.replace(TRAITS, golden=golden), tier=Tier.SMOKE, dtypes=("float64",))
    script = NARROWED.script(exam)

    def shown(reply):
        seen = NARROWED.judge(script, Replies(script, [Done(), Done(), reply]), exam)
        return [failure.message for failure in seen.failures]

    assert shown(Raised(type="TypeError", line="TypeError: weight: got float64")) == []
    other = ["error: got RuntimeError: no, expected TypeError"] if golden else []
    assert shown(RAISED) == other
    assert shown(out_of(np.zeros((5, 3), np.uint32))) == ["error: got a result, expected TypeError"]


# Smaller ones


def torch():
    return importlib.import_module("torch")


def last_bit_flipped(ids, weight):
    return (weight[ids.long()].view(torch().int16) ^ 1).view(weight.dtype)


def one_id_wrong(ids, weight):
    out = weight[ids.long()].view(torch().int16)
    return torch().where((ids == 200)[..., None], out ^ 1, out).view(weight.dtype)


def strides_ignored(ids, weight):
    return weight.as_strided(weight.shape, (weight.shape[1], 1))[ids.long()]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kernel", "call", "sizes"),
    [
        (last_bit_flipped, {"hidden": 8, "vocab": 256, "ids": "zipf", "shape": (8,)}, (1, 1, 1)),
        (last_bit_flipped, {"hidden": 33, "vocab": 300, "ids": "zipf", "shape": (10, 133)}, (1, 1, 1)),
        (one_id_wrong, {"hidden": 33, "vocab": 300, "ids": "distinct", "shape": (257,)}, (1, 1, 201)),
        (one_id_wrong, {"hidden": 3, "vocab": 300, "ids": "every", "shape": (3, 90), "id_dtype": "uint8"}, (1, 1, 201)),
        (
            strides_ignored,
            {"hidden": 33, "vocab": 300, "ids": "zipf", "shape": (9,), "layout": "transposed", "check": "EMB-7/layout"},
            (1, 2, 2),
        ),
    ],
)  # fmt: skip
def test_a_wrong_call_is_made_as_small_as_can_be_and_fails_again_in_the_same_check(kernel, call, sizes):
    made = examination(kernel)
    first = Forward(**{"check": "EMB-1", "dtype": "bfloat16", "table": "hashed", **call})
    failure = made.make(first).failed(first.check)
    small, shown = smallest(first, failure, made.make, 200)
    assert (small.tokens, small.hidden, small.vocab) == sizes
    assert (small.check, small.id_dtype) == (first.check, "int64")
    again = OPERATOR.call(small.to_json())
    assert made.make(again).failed(first.check).message == shown.message


@pytest.mark.parametrize("layout", TABLE_LAYOUTS)
def test_a_smaller_call_is_a_call(layout):
    call = Forward(check="", dtype="float32", vocab=9, hidden=5, ids="zipf", shape=(3, 2), layout=layout, mode="vmap")
    for other in (*call.plainer(), *(call.resized(name, 1) for name in call.sizes())):
        assert other is not None
        assert other != call
        assert other.script(EXAM).steps
    assert call.resized("strangers", 1) is None
