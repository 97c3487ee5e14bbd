"""What may surround a token without changing its row (EMB-7): every condition is compared with the plain call."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from xref.engine.conditions import PLANS
from xref.engine.layouts import STRIDED_TABLES
from xref.operators.embedding.calls.batches import Batches
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.cases import cases
from xref.operators.embedding.clauses import main_dtypes, pairs, verbs_of
from xref.operators.embedding.examine.forward import make_of
from xref.operators.embedding.sweeps import forward, jax
from xref.spec import Call, Exam, Skip, Tier, check

__all__ = [
    "chunked", "decode", "gradient", "layout", "mode", "neighbours", "padding", "permuted", "population", "position",
    "settings",
]  # fmt: skip

_POPULATIONS = (769, 1025, 2049, 3073, 4097, 8193, 16385, 65537)
_FEW_POPULATIONS = _POPULATIONS[:5]
_JAX_POPULATIONS = (769, 3073, 8193)
_T = TypeVar("_T")
_declared = functools.partial(check, judgment="forward_invariance", against="plain call")


def _jax(exam: Exam) -> bool:
    return exam.traits.framework == "jax"


def _bases(exam: Exam, *, every_dtype: bool) -> Iterator[Forward]:
    """Yield the plain calls: the contract's, or a verb's and dtype's; of each dtype only where that is quick enough."""
    main = main_dtypes(exam.dtypes)
    if exam.pinned:
        dtypes = exam.dtypes if every_dtype else main
        found = [case.call for case in cases(exam.tier, dtypes=dtypes) if case.conditions]
        for verb in ("forward", "forward_fp32"):
            for call in found:
                if verb in exam.traits.verbs and verb in verbs_of(call.dtype):
                    yield msgspec.structs.replace(call, verb=verb)
        return
    for verb, dtype in pairs(exam):
        if dtype in main or (every_dtype and exam.tier is not Tier.SMOKE):
            make = functools.partial(make_of(exam, verb, dtype), table="hashed", ids="covering")
            if _jax(exam):
                yield make(vocab=257, hidden=65, shape=(264,))
            else:
                yield make(vocab=1009, hidden=65, shape=(1098,))


def _dealt(exam: Exam, base: Forward, items: Sequence[_T]) -> Sequence[_T]:
    return jax.dealt(items, base.dtype, exam.dtypes) if _jax(exam) and not exam.pinned else items


def _batches(base: Forward, plan: str, **fields: Any) -> Batches:
    inputs = {name: getattr(base, name) for name in Forward.__struct_fields__}
    return Batches(**{**inputs, "check": f"EMB-7/{plan}"}, plan=plan, **fields)


def _planned(exam: Exam, plan: str, *, every_dtype: bool = True) -> Iterator[Call | Skip]:
    for base in _bases(exam, every_dtype=every_dtype):
        ids = base.token_ids().reshape(-1)
        groups = range(len(PLANS[plan](ids, np.arange(ids.size), base.vocab)))
        # Of plans whose groups have shapes of their own, each of which is compiled, JAX's dtypes share the groups.
        for group in _dealt(exam, base, groups) if plan in ("layout", "chunked") else groups:
            yield _batches(base, plan, group=group)


@_declared("EMB-7/population", text="alone, and among many others")
def population(exam: Exam) -> Iterator[Call | Skip]:
    """Yield each token alone, then all among as many strangers, and among more and more of them."""
    yield from _planned(exam, "population")
    few = exam.tier is Tier.SMOKE or exam.pinned
    sizes = _JAX_POPULATIONS if _jax(exam) else _FEW_POPULATIONS if few else _POPULATIONS
    for base in _bases(exam, every_dtype=not _jax(exam)):
        for size in (2 * base.tokens, *_dealt(exam, base, sizes)):
            if size > base.tokens:
                yield _batches(base, "population", among=size)


@_declared("EMB-7/position", text="wherever it stands in the batch")
def position(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens shifted along the batch."""
    return _planned(exam, "position")


@_declared("EMB-7/neighbours", text="whatever stands beside it")
def neighbours(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens with others between them."""
    return _planned(exam, "neighbours", every_dtype=not _jax(exam))


@_declared("EMB-7/padding", text="with padding left, right and in rows of its own")
def padding(exam: Exam) -> Iterator[Call | Skip]:
    """Yield padded batches."""
    return _planned(exam, "padding", every_dtype=not _jax(exam))


@_declared("EMB-7/layout", text="in any shape and strides of ids and table")
def layout(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens in other shapes, then tables and ids in other memory."""
    yield from _planned(exam, "layout", every_dtype=not _jax(exam))
    main, smoke = main_dtypes(exam.dtypes), exam.tier is Tier.SMOKE
    for base in () if _jax(exam) else _bases(exam, every_dtype=True):
        for name in STRIDED_TABLES:
            yield msgspec.structs.replace(base, check="EMB-7/layout", layout=name)
    for verb, dtype in pairs(exam):
        make = make_of(exam, verb, dtype, "EMB-7/layout")
        if not _jax(exam) and (dtype in main or not exam.pinned):
            yield from forward.layouts(make, few=smoke and dtype not in main)
        elif _jax(exam) and dtype in main and dtype != "float64" and not smoke:
            yield from jax.layouts(make)


@_declared("EMB-7/chunked", text="in chunks that do not divide")
def chunked(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens a chunk at a time."""
    return _planned(exam, "chunked", every_dtype=not _jax(exam))


@_declared("EMB-7/decode", text="one token of each sequence at a time")
def decode(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens a step of decoding at a time."""
    return _planned(exam, "decode", every_dtype=not _jax(exam))


@_declared("EMB-7/permuted", text="in any order")
def permuted(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the tokens in other orders."""
    return _planned(exam, "permuted")


def _in_modes(exam: Exam, id: str, modes: tuple[str, ...], *, every_dtype: bool = True) -> Iterator[Call | Skip]:
    for base in _bases(exam, every_dtype=every_dtype):
        for mode in _dealt(exam, base, modes):
            yield msgspec.structs.replace(base, check=id, mode=mode)


@_declared("EMB-7/gradient", text="with the gradient taken or not; with JAX, traced or not")
def gradient(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the plain call in every mode that a gradient asks for."""
    return _in_modes(exam, "EMB-7/gradient", exam.traits.grad_modes, every_dtype=not _jax(exam))


@_declared("EMB-7/settings", text="in any thread and with any setting of the framework's")
def settings(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the plain call in every setting."""
    if not exam.traits.settings:
        yield Skip(f"{exam.traits.framework} has no such setting")
    yield from _in_modes(exam, "EMB-7/settings", exam.traits.settings)


@_declared("EMB-7/mode", text="compiled, traced, mapped: where it can be", required=False)
def mode(exam: Exam) -> Iterator[Call | Skip]:
    """Yield the plain call under every transform, which takes seconds each."""
    others = tuple(each for each in exam.traits.transforms if each not in exam.traits.grad_modes)
    if not others:
        yield Skip("all of them are tried by EMB-7/gradient")
    elif exam.tier is Tier.SMOKE:
        yield Skip("not in the smoke tier: seconds each")
    else:
        yield from _in_modes(exam, "EMB-7/mode", others, every_dtype=False)
