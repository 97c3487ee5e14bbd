"""How a kernel takes ids that it must refuse, and what memory it takes (EMB-4, EMB-12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from xref.operators.embedding.calls.memory import PeakMemory
from xref.operators.embedding.calls.refusal import BACKWARD, Refusal
from xref.operators.embedding.calls.traced import TracedRefusal
from xref.operators.embedding.clauses import main_dtypes, pairs, verbs_of
from xref.spec import Call, Check, Exam, Skip, Tier, check

__all__ = ["BAD_IDS", "memory", "memory_of_strided", "refusals", "traced_refusals"]

_CHECK = "EMB-4"


def _bad(ids: Any, vocab: int, id_dtype: str) -> Refusal:
    return Refusal.of(ids, vocab, id_dtype=id_dtype, check=_CHECK, dtype="float32")


BAD_IDS = (
    _bad([256], 256, "int64"),
    _bad([-1], 300, "int8"),
    _bad([1, 2**32 + 1], 5, "int64"),
    _bad([1, 0], 5, "bool"),
    _bad([0], 0, "int64"),
    _bad([0, 4, 5, -1, -5, -6], 5, "int64"),
    _bad([[0, 4], [5, -1]], 5, "int32"),
    _bad(range(-4, 4), 8, "int64"),
    _bad(1, 1, "int32"),
    _bad([40], 16, "int64"),
    _bad([[7, 255]], 200, "uint8"),
    _bad([1 - 2**32], 5, "int64"),
    _bad([2**32 + 1], 5, "uint64"),
    _bad([0, 2**64 - 1], 5, "uint64"),
    _bad([1], 5, "float32"),
    _bad([2909], 5000, "float16"),
    _bad([1], 5, "complex64"),
    _bad([10**17], 0, "int64"),
)
"""Each has been taken, wrapped, clipped or filled by some real kernel; the goldens refuse them in every dtype."""

_NARROW = (
    ("int8", 100, 127), ("uint8", 200, 200), ("int16", 300, -300), ("uint16", 300, 65535), ("uint32", 300, 2**31),
    ("uint64", 300, 2**63), ("int8", 300, -128),
)  # fmt: skip
_FEW_ROWS = 100  # of the tables that kernels get which are compiled for each shape


def _among(bad: int, place: int, tokens: int, vocab: int, id_dtype: str = "int64", **fields: Any) -> Refusal:
    """Return the call with one bad id among so many."""
    fields = {"shape": (tokens,), **fields}
    return Refusal(check=_CHECK, dtype="float32", vocab=vocab, values=((place, bad),), id_dtype=id_dtype, **fields)


def _of_every_kind(exam: Exam) -> Iterator[Refusal]:
    """Yield bad ids of each kind, the ordinary ones first: a kernel may fail on one kind alone."""
    yield _among(300, 0, 1, 300)
    yield _among(-1, 0, 1, 300)
    yield _among(300, 16, 33, 300)
    yield from BAD_IDS
    yield _bad(range(300, 333), 300, "int64")
    for id_dtype, vocab, bad in _NARROW:
        yield _among(bad, 1, 3, vocab, id_dtype)
        yield _among(bad, 0, 1, vocab, id_dtype, shape=())
    for bad in (300, -1):
        yield _among(bad, 1, 6, 300, layout="strided")
        yield _among(bad, 1, 6, 300, shape=(2, 3), layout="transposed")
        yield _among(bad, 1, 6, 300, layout="offset by one")
    traits = exam.traits
    for mode in (*traits.grad_modes, *traits.settings):
        if mode not in traits.transforms:  # under a trace nothing can be raised
            yield _among(300, 1, 3, 300, mode=mode)
    yield _bad([], 5, "float32")
    yield _bad([0, 0, 0], 5, "float64")
    yield _bad([0, 0, 0], 5, "bfloat16")
    yield _bad([[1, 0]], 5, "bool")


def _at_every_place(tier: Tier) -> Iterator[Refusal]:
    """Yield bad ids at the ends and in the middle of batches and tables of several sizes."""
    for vocab, bad in ((300, 300), (300, -1), (4096, 4096), (31, 31), (31, -31), (70000, 70001), (64, 10**6)):
        for tokens in (33,) if tier is Tier.SMOKE else (1, 33, 1000, 5000):
            for place in sorted({0, tokens // 2, tokens - 1}):
                yield _among(bad, place, tokens, vocab)
                if tokens == 33:
                    yield _among(bad, place, tokens, vocab, "int32")
                    yield _among(bad, place, tokens, vocab, shape=(3, 11))
                    yield _among(bad, place, tokens, vocab, "int32", shape=(3, 1, 11))
    for bad in (2**62 + 1, -(2**62), 2**63 - 1, -(2**63), -100, 301, 511, 512):
        yield _among(bad, 32, 33, 300)


def _of_few_shapes(tier: Tier) -> Iterator[Refusal]:
    """Yield bad ids in few shapes, for a framework that compiles each: one of each kind first."""
    rows = _FEW_ROWS
    yield _among(rows, 0, 33, rows, "int32")
    yield _among(-1, 0, 33, rows, "int32")
    yield _among(2**32 + 1, 16, 33, rows)
    for id_dtype in ("bool", "float32", "float16", "bfloat16", "complex64"):
        yield _bad([n % 2 for n in range(33)], rows, id_dtype)
    yield _bad([0] * 33, 0, "int32")
    for bad in (rows, -1):
        yield _among(bad, 16, 33, rows, "int32", shape=(3, 11))
        yield _among(bad, 0, 1, rows, "int32", shape=())
        if tier is not Tier.SMOKE:
            yield _among(bad, 2500, 5000, rows, "int32")
    for id_dtype, bad in (("int8", 127), ("int8", -128), ("uint8", 200), ("int16", -300), ("uint16", 65535),
                          ("uint32", 2**31), ("uint64", 2**32 + 1), ("uint64", 2**64 - 1)):  # fmt: skip
        yield _among(bad, 16, 33, rows, id_dtype)
    for bad in (rows, -1, 1 - 2**32, 2**62 + 1, 2**63 - 1, -(2**63)):
        yield _among(bad, 16, 33, rows)
    for bad in (rows, -1, 10**6, rows + 1, -rows, -rows - 1, 2**31 - 1, -(2**31)):
        for place in (0, 16, 32):
            yield _among(bad, place, 33, rows, "int32")
    yield _bad(range(rows, rows + 33), rows, "int32")


@check("EMB-4", judgment="conduct", text="ids out of range, and ids that are no integers, are refused")
def refusals(exam: Exam) -> Iterator[Call | Skip]:
    """Yield calls with bad ids: the contract's for the goldens, in every dtype; then those of a candidate."""
    traits = exam.traits
    if exam.out_of_range == "unchecked" and not traits.golden:
        yield Skip("the candidate promises nothing of ids out of range")
        return
    if exam.pinned:
        yield from (
            msgspec.structs.replace(bad, verb=verb, dtype=dtype) for verb, dtype in pairs(exam) for bad in BAD_IDS
        )
    # Where every shape is compiled anew, one dtype: the ids are what is judged.
    dtypes = main_dtypes(exam.dtypes)[: 1 if traits.traces else None]
    differentiates = BACKWARD in traits.verbs and (exam.out_of_range == "raise" or traits.golden)
    for bad in _of_few_shapes(exam.tier) if traits.traces else (*_of_every_kind(exam), *_at_every_place(exam.tier)):
        for dtype in dtypes:
            for verb in verbs_of(dtype):
                if verb in traits.verbs:
                    yield msgspec.structs.replace(bad, verb=verb, dtype=dtype)
        # A gradient of no rows has none that could be a wrong one.
        if differentiates and bad.integers and bad.vocab and not bad.mode:
            yield msgspec.structs.replace(bad, verb=BACKWARD)


@check("EMB-4/traced", judgment="conduct", text="under a trace, ids out of range give rows of NaN")
def traced_refusals(exam: Exam) -> Iterator[Call | Skip]:
    """Yield traced calls with ids out of range, and their gradients where the framework takes them."""
    traits = exam.traits
    if not traits.traces:
        yield Skip(f"{traits.framework} has no such trace")
        return
    every = list(pairs(exam)) if traits.golden else [(verb, "float32") for verb in verbs_of("float32")]
    for verb, dtype in every:
        if verb not in traits.verbs:
            continue
        yield TracedRefusal(check="EMB-4/traced", verb=verb, dtype=dtype)
        # The goldens' verbs have one gradient; a candidate's own backward is asked for nothing under a trace.
        if dtype == "float32" and (verb == "forward" if traits.golden else BACKWARD not in traits.verbs):
            yield TracedRefusal(check="EMB-4/traced", verb=verb, dtype=dtype, gradient=True)


purity = Check(
    id="EMB-5",
    judgment="conduct",
    text="inputs keep their bits, and the output has memory of its own",
    against="inputs before",
)


def _measured(exam: Exam) -> bool:
    """Return whether memory is measured in every dtype and layout: a framework that traces compiles each, dense."""
    return exam.tier is not Tier.SMOKE and not exam.traits.traces


@check("EMB-12", judgment="conduct", against="a limit", text="no temporary of the table's size")
def memory(exam: Exam) -> Iterator[Call | Skip]:
    """Yield measurements of every verb, and of a golden's gradient by rows."""
    main = main_dtypes(exam.dtypes)
    for verb, dtype in pairs(exam):
        if dtype in main or _measured(exam):
            yield PeakMemory(check="EMB-12", verb=verb, dtype=dtype)
        if dtype in main and _measured(exam) and "requires_grad" in exam.traits.grad_modes:
            yield PeakMemory(check="EMB-12", verb=verb, dtype=dtype, mode="requires_grad")
    if "grad_rows" in exam.traits.verbs:
        for dtype in main:
            yield PeakMemory(check="EMB-12", verb="grad_rows", dtype=dtype)


@check(
    "EMB-12/strided", judgment="conduct", against="a limit", text="nor for a table in transposed memory", required=False
)
def memory_of_strided(exam: Exam) -> Iterator[Call | Skip]:
    """Yield measurements on tables that a kernel might make dense: many do, and their users' tables are dense."""
    if not _measured(exam):
        dense = f"{exam.traits.framework} has dense arrays alone"
        yield Skip("not in the smoke tier" if exam.tier is Tier.SMOKE else dense)
        return
    main = main_dtypes(exam.dtypes)
    yield from (
        PeakMemory(check="EMB-12/strided", verb=verb, dtype=dtype, layout="transposed")
        for verb, dtype in pairs(exam)
        if dtype in main
    )
