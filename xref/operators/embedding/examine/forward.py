"""What is examined of the forward's accuracy, and of its repeats."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec
import numpy as np

from xref.bits import FORMATS
from xref.engine.steps import Put, Run, Script
from xref.inputs import make_table
from xref.operators.embedding.calls.forward import Forward, NarrowedTable
from xref.operators.embedding.cases import cases
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, VERBS, main_dtypes, pairs, verbs_of
from xref.operators.embedding.sweeps import forward, jax
from xref.spec import Call, Check, Exam, Seen, Skip, Tier, check

__all__ = ["follow_up", "form", "gathered", "id_dtype", "make_of", "repeated", "trial", "widened"]

_REPEATS = 60
_AGAIN = 2  # of a call that fails


def id_dtype(exam: Exam, dtype: str) -> str:
    """Return the ordinary dtype of ids beside tables of a dtype: JAX has 64-bit ones with float64 alone."""
    return "int32" if exam.traits.framework == "jax" and dtype != "float64" else "int64"


def make_of(exam: Exam, verb: str, dtype: str, check: str = "") -> forward.Make:
    """Return what makes the calls of a verb on tables of a dtype, for a check or for the verb's own accuracy."""
    check = check or CLAUSES_OF_EVERY_CALL.accuracy[verb]
    return functools.partial(Forward, check=check, verb=verb, dtype=dtype, id_dtype=id_dtype(exam, dtype))


def _accuracy(exam: Exam, verb: str) -> Iterator[Call | Skip]:
    if verb not in exam.traits.verbs:
        yield Skip(f"the kernel has no {verb}")
        return
    if exam.pinned:
        yield from _fixed(exam, verb)
        return
    for dtype in [each for each in exam.dtypes if verb in verbs_of(each)]:
        make = make_of(exam, verb, dtype)
        # The first call many times: a kernel that counts its calls is found out before the others are made.
        yield make(vocab=300, hidden=33, table="hashed", ids="zipf", shape=(257,), repeats=_REPEATS)
        if exam.traits.framework == "jax":
            yield from jax.accuracy(make, dtype, exam.dtypes, exam.tier)
        else:
            yield from forward.accuracy(make, dtype, exam.tier)


def _fixed(exam: Exam, verb: str) -> Iterator[Call]:
    for case in cases(exam.tier, dtypes=exam.dtypes):
        if verb in verbs_of(case.call.dtype):
            check = CLAUSES_OF_EVERY_CALL.accuracy[verb]
            yield msgspec.structs.replace(case.call, check=check, verb=verb, repeats=1)


@check("EMB-1", judgment="forward_accuracy", text="forward has the bits of the rows")
def gathered(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the sweeps of `forward`."""
    return _accuracy(exam, "forward")


@check("EMB-2", judgment="forward_accuracy", text="forward_fp32 is the rows exactly widened")
def widened(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the sweeps of `forward_fp32`, and a table that float32 cannot hold."""
    yield from _accuracy(exam, "forward_fp32")
    if "forward_fp32" in exam.traits.verbs and "float64" in exam.dtypes:
        yield NarrowedTable(check="EMB-2", vocab=5, hidden=3)


form = Check(id="EMB-3", judgment="forward_accuracy", text="shape, dtype and device of the output")


@check("EMB-6", judgment="forward_invariance", text="the same call again gives the same bits", against="first call")
def repeated(exam: Exam) -> Iterator[Call | Skip]:
    """Yield calls that are made many times, on small and larger batches with duplicates."""
    main = main_dtypes(exam.dtypes)
    few = main if exam.tier is Tier.SMOKE or exam.pinned else exam.dtypes
    for verb, dtype in pairs(exam):
        if dtype not in few:
            continue
        make = functools.partial(make_of(exam, verb, dtype, "EMB-6"), table="hashed", ids="zipf")
        if exam.traits.framework == "jax":  # a shape that is compiled already
            sizes: tuple[tuple[int, int, int, int], ...] = ((257, 33, 300, _REPEATS if dtype in main else 10),)
        else:
            sizes = ((33, 9, 67, _REPEATS), (1025, 33, 67, 10), (4097, 16, 67, 5))
        for tokens, hidden, vocab, times in sizes:
            yield make(vocab=vocab, hidden=hidden, shape=(tokens,), repeats=times)


def follow_up(call: Call, seen: Seen) -> Iterator[Call]:
    """Yield a wrong call again, to be made some times: other bits are a fault of their own (EMB-6)."""
    if type(call) is Forward and not call.repeats and seen.failed(CLAUSES_OF_EVERY_CALL.accuracy[call.verb]):
        yield msgspec.structs.replace(call.plain(), check=CLAUSES_OF_EVERY_CALL.repeat, repeats=_AGAIN)


def trial() -> dict[str, Script]:
    """Return a small call of each verb, whose table holds no special numbers."""
    ids, table = np.array([1, 0]), make_table("patterns", 3, 4, FORMATS["float32"])
    puts = (Put(name="token_ids", array=ids), Put(name="weight", array=table, dtype="float32"))
    names = tuple(put.name for put in puts)
    return {verb: Script("float32", (*puts, Run(name="out", verb=verb, arguments=names))) for verb in VERBS}
