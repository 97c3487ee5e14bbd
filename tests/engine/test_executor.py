"""The executor: a reply to each step, in both frameworks, whatever a kernel returns or raises."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import FRAMEWORKS

from xref.engine import frameworks
from xref.engine.clock import CrashedError
from xref.engine.executor import Executor
from xref.engine.layouts import LAYOUTS, contents
from xref.engine.steps import (
    Add,
    Count,
    Differentiate,
    Done,
    Drop,
    NotMade,
    Output,
    Overwrite,
    Peak,
    Put,
    Raised,
    Read,
    Replies,
    Reuse,
    Run,
    Script,
)

IDS, TABLE = np.array([2, 0], np.int32), (np.arange(12, dtype=np.uint32) + 0x3F800000).reshape(3, 4)
PUT = (Put(name="ids", array=IDS), Put(name="w", array=TABLE, dtype="float32"))
RUN = Run(name="out", verb="forward", arguments=("ids", "w"))
ONES = Put(name="c", array=np.full((2, 4), 0x3F800000, np.uint32), dtype="float32")
SUMS = np.array([[0x3F800000], [0], [0x3F800000]], np.uint32).repeat(4, 1)


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    return frameworks.load(request.param)


def perform(framework, verbs, *steps, dtype="float32"):
    verbs = verbs if isinstance(verbs, dict) else {"forward": verbs}
    script = Script(dtype, steps)
    return Replies(script, list(Executor(verbs, framework, "cpu").perform(script)))


def golden(framework):
    module = framework.arrays.golden
    return {"forward": module.forward, "backward": module.grad_weight}


def kernel(ids, weight):
    return weight[ids]


def test_a_plain_call_and_what_it_was_called_with(framework):
    replies = perform(
        framework, kernel, *PUT, RUN, Read(name="w"), Read(name="w", rows=np.array([1])), Read(name="ids")
    )
    assert replies[0] == replies[1] == Done()
    out, table = replies.of("out"), replies.of("w", Read)
    assert (out.form, table.form) == (((2, 4), "float32", "cpu"), ((3, 4), "float32", "cpu"))
    assert np.array_equal(out.array, TABLE[IDS])
    assert np.array_equal(table.array, TABLE)
    assert np.array_equal(replies.of("w", Read, nth=1).array, TABLE[[1]])
    assert np.array_equal(replies.of("ids", Read).array, IDS)
    assert out.memory[1] - out.memory[0] >= out.array.nbytes
    assert table.memory[0] != out.memory[0]


def test_the_inputs_of_a_script_are_copied(framework):
    def writes(ids, weight):
        if framework.name == "torch":
            weight[0] = 1.0
        return weight[ids]

    table = TABLE.copy()
    perform(framework, writes, PUT[0], Put(name="w", array=table, dtype="float32"), RUN)
    assert np.array_equal(table, TABLE)


def test_gradients_in_every_way_that_the_framework_has(framework):
    modes = framework.modes
    ways = [*modes.gradient_calls(), "traced"]
    taken = Differentiate(name="g", verb="forward", arguments=("ids", "w"), cotangent="c")
    others = [Differentiate(name=way, verb="forward", arguments=("ids", "w"), cotangent="c", way=way) for way in ways]
    replies = perform(framework, golden(framework), *PUT, ONES, taken, *others)
    assert np.array_equal(replies.of("g").array, SUMS)
    for way in ways:
        reply = replies.of(way)
        if way == "traced" and framework.name == "torch":
            assert reply == NotMade(why="torch has no traced")
        elif not (isinstance(reply, Raised) and reply.refused):
            assert np.array_equal(reply.array, SUMS), way


def test_a_gradient_in_every_setting(framework):
    for mode in framework.modes.settings():
        step = Differentiate(name="g", verb="forward", arguments=("ids", "w"), cotangent="c", mode=mode)
        reply = perform(framework, golden(framework), *PUT, ONES, step).of("g")
        assert (isinstance(reply, Raised) and reply.refused) or np.array_equal(reply.array, SUMS)


def test_the_mode_of_a_backward_is_about_its_first_two_arguments(framework):
    for mode in ("", "traced", *framework.modes.grad_modes(), *framework.modes.settings()):
        run = Run(name="b", verb="backward", arguments=("ids", "c", 3), mode=mode, refusable=True)
        reply = perform(framework, golden(framework), *PUT, ONES, run).of("b")
        if isinstance(reply, Output) and mode != "vmap":
            assert np.array_equal(reply.array, SUMS), mode
        else:
            assert (isinstance(reply, NotMade) and mode == "traced") or reply.refused or mode == "vmap", reply


def test_every_mode_of_a_forward(framework):
    modes = framework.modes
    for mode in (*modes.transforms(), *modes.grad_modes(), *modes.settings()):
        run = Run(name="out", verb="forward", arguments=("ids", "w"), mode=mode, refusable=True)
        reply = perform(framework, golden(framework), *PUT, run).of("out")
        assert (isinstance(reply, Raised) and reply.refused) or np.array_equal(reply.array, TABLE[IDS])


def test_what_does_not_exist_is_not_made(framework):
    run = Run(name="a", verb="other", arguments=("ids", "w"))
    mode = Run(name="b", verb="forward", arguments=("ids", "w"), mode="backwards in time")
    reuse = Reuse(name="c", key="never put")
    replies = perform(framework, kernel, *PUT, run, mode, reuse, Add(name="d", first="a", second="b"))
    assert [reply.why for reply in replies.replies[2:]] == [
        "the kernel has no other",
        f"{framework.name} has no backwards in time",
        "nothing is kept under never put",
        "a was not made",
    ]


def test_a_failed_step_leaves_no_older_result_behind(framework):
    calls = []

    def second_fails(ids, weight):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no more")
        return weight[ids]

    replies = perform(framework, second_fails, *PUT, RUN, RUN, Read(name="out"))
    assert isinstance(replies.of("out", nth=1), Raised)
    assert replies.of("out", Read) == NotMade(why="out was not made")


def test_overwritten_arrays(framework):
    other = Overwrite(name="ids", array=IDS[::-1].copy(), counted=True)
    replies = perform(framework, kernel, *PUT, other, RUN, Read(name="ids"))
    if framework.name == "jax":
        assert replies.of("ids", Overwrite) == NotMade(why="jax cannot write into such an array")
        assert replies.of("out") == replies.of("ids", Read) == NotMade(why="ids was not made")
        ids, table = (Put(name=p.name, array=p.array, dtype=p.dtype, host=True) for p in PUT)
        replies = perform(framework, kernel, ids, table, other, RUN, Read(name="ids"))
    assert np.array_equal(replies.of("out").array, TABLE[IDS[::-1]])
    assert np.array_equal(replies.of("ids", Read).array, IDS[::-1])


def test_numpy_tables_may_give_numpy_outputs_and_others_not(framework):
    host = (PUT[0], Put(name="w", array=TABLE, dtype="float32", host=True))
    out = perform(framework, lambda ids, weight: weight[np.asarray(ids)], *host, RUN).of("out")
    assert out.form == ((2, 4), "float32", "cpu")
    out = perform(framework, lambda ids, weight: np.zeros((2, 4), np.float32), *PUT, RUN).of("out")
    assert out.form[2] == "host"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_layouts_hold_what_they_say(framework, layout, dtype):
    bits = np.arange(30).astype({"float32": "u4", "bfloat16": "u2", "float8_e5m2": "u1"}[dtype]).reshape(5, 6)
    if layout == "overlapping rows":
        bits = np.lib.stride_tricks.sliding_window_view(np.arange(10).astype(bits.dtype), 6).copy()
    put = Put(name="w", array=bits, dtype=dtype, layout=layout)
    reply = perform(framework, kernel, put, Read(name="w"), dtype=dtype).of("w", Read)
    assert np.array_equal(reply.array, contents(bits, layout))


def test_an_output_is_what_it_was_when_it_was_returned(framework):
    buffer = []

    def reuses(ids, weight):
        if framework.name == "jax":
            return weight[ids]
        buffer[:] = buffer or [weight[ids]]
        buffer[0][:] = weight[ids]
        return buffer[0]

    other = Put(name="other", array=IDS[::-1].copy())
    later = Run(name="later", verb="forward", arguments=("other", "w"))
    replies = perform(framework, reuses, *PUT, other, RUN, later, Read(name="out"))
    assert np.array_equal(replies.of("out").array, TABLE[IDS])
    assert np.array_equal(replies.of("out", Read).array, TABLE[IDS if framework.name == "jax" else IDS[::-1]])


def test_peak_memory_is_measured_after_a_first_call_with_other_arguments(framework):
    seen = []

    def counted(ids, weight):
        seen.append(weight)
        return weight[ids] * 1

    warm = Put(name="warm", array=TABLE + 1, dtype="float32")
    peak = Peak(name="p", verb="forward", arguments=("ids", "w"), warm=("ids", "warm"))
    reply = perform(framework, counted, *PUT, warm, peak).of("p")
    assert isinstance(reply, Count)
    assert reply.value >= 32
    if framework.name == "torch":
        assert [int(framework.arrays.bits_of(table)[0, 0] - TABLE[0, 0]) for table in seen] == [1, 0]


def test_arrays_with_a_key_are_kept_until_they_are_dropped(framework):
    executor = Executor({"forward": kernel}, framework, "cpu")
    keyed = Put(name="w", array=TABLE, dtype="float32", key="k")
    list(executor.perform(Script("float32", (keyed,))))
    again = Script("float32", (PUT[0], Reuse(name="w", key="k"), RUN))
    assert np.array_equal(list(executor.perform(again))[-1].array, TABLE[IDS])
    list(executor.perform(Script("float32", (Drop(name="k"),))))
    assert [type(reply) for reply in executor.perform(again)] == [Done, NotMade, NotMade]


# What kernels raise


class UnprintableError(Exception):
    def __str__(self):
        raise SystemExit(3)


class OutcomeError(BaseException):
    """As pytest's own, no Exception."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (IndexError(), "IndexError"),
        (SystemExit(0), "SystemExit: 0"),
        (OutcomeError("skipped"), "OutcomeError: skipped"),
        (UnprintableError(), "UnprintableError"),
        (RuntimeError("\x1b[31m\udc80"), r"RuntimeError: \x1b[31m\udc80"),
        (RuntimeError("x" * 100_000), "RuntimeError: " + "x" * 500),
    ],
    ids=["lines", "nothing", "exit", "no Exception", "unprintable", "escapes", "long"],
)
def test_whatever_is_raised_is_described(framework, error, line):
    def raises(ids, weight):
        raise error

    reply = perform(framework, raises, *PUT, RUN).of("out")
    assert (reply.line, reply.type, reply.refused, reply.unconnected) == (line, type(error).__name__, False, False)
    assert reply.bases[0] == reply.type
    assert len(reply.text) <= 20_000
    assert reply.where == f"test_executor.py:{raises.__code__.co_firstlineno + 1}"


def test_where_is_the_innermost_line_of_the_kernel(framework):
    def fails_inside(ids, weight):
        return weight.reshape(7, 7)

    reply = perform(framework, fails_inside, *PUT, RUN).of("out")
    assert reply.where == f"test_executor.py:{fails_inside.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("error", [KeyboardInterrupt, CrashedError])
def test_ctrl_c_and_the_clock_are_nobodys_reply(framework, error):
    def raises(ids, weight):
        raise error

    with pytest.raises(error):
        perform(framework, raises, *PUT, RUN)


def test_a_call_in_a_mode_may_be_refused(framework):
    def raises(ids, weight):
        raise TypeError("not so")

    run = Run(name="out", verb="forward", arguments=("ids", "w"), refusable=True)
    reply = perform(framework, raises, *PUT, run).of("out")
    assert (reply.refused, reply.line) == (True, "TypeError: not so")


def test_a_gradient_that_does_not_exist_is_unconnected(framework):
    if framework.name == "torch":

        def cut_off(ids, weight):
            return weight.detach()[ids]
    else:

        def cut_off(ids, weight):
            return framework.arrays.put(np.asarray(weight)[np.asarray(ids)].view(np.uint32), "float32", "cpu")

    step = Differentiate(name="g", verb="forward", arguments=("ids", "w"), cotangent="c")
    reply = perform(framework, cut_off, *PUT, ONES, step).of("g")
    assert reply.unconnected


# What kernels return


@pytest.mark.parametrize(("value", "kind"), [([1], "list"), (None, "NoneType"), (3.0, "float")])
def test_what_is_no_array_is_unreadable(framework, value, kind):
    reply = perform(framework, lambda ids, weight: value, *PUT, RUN).of("out")
    assert reply.form == ((), kind, "none")
    assert reply.array is None
    assert reply.unreadable == f"it is no array of {framework.name}'s"


@pytest.mark.torch
def test_outputs_of_torch_that_are_not_what_they_seem():
    import torch

    class Liar(torch.Tensor):
        @property
        def shape(self):
            return torch.Size((2, 4))

    framework = frameworks.load("torch")
    for out, says in (
        (lambda ids, weight: weight[ids].to_sparse(), "NotImplementedError"),
        (lambda ids, weight: weight.as_subclass(Liar), "it has 4-byte elements of shape (3, 4)"),
        (lambda ids, weight: weight[ids].to("meta"), "NotImplementedError"),
    ):
        reply = perform(framework, out, *PUT, RUN).of("out")
        assert reply.array is None
        assert says in reply.unreadable
    good = perform(framework, lambda ids, weight: torch.nn.Parameter(weight[ids]), *PUT, RUN).of("out")
    assert np.array_equal(good.array, TABLE[IDS])


@pytest.mark.torch
def test_a_large_table_of_a_few_rows_holds_no_memory_for_the_others():
    import resource

    framework = frameworks.load("torch")
    rows = np.array([0, 39_999])
    filled = np.arange(2 * 16384, dtype=np.uint32).reshape(2, 16384)
    table = Put(name="w", array=filled, rows=rows, vocab=40_000, dtype="float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read = Read(name="w", rows=np.array([39_999, 5]))
    replies = perform(framework, kernel, Put(name="ids", array=rows), table, RUN, read)
    assert np.array_equal(replies.of("out").array, filled)
    assert np.array_equal(replies.of("w", Read).array, np.stack([filled[1], np.zeros(16384, np.uint32)]))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
