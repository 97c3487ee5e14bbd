"""Which gradients a candidate is asked for: values, sizes, duplicates, shapes and layouts, each along its own axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from xref.bits import Bits
from xref.contracts.embedding_gradient import GradientCase
from xref.judge.conditions import offset, spread, transposed
from xref.judge.subject import MAIN
from xref.spec import Tier

__all__ = ["COTANGENT_LAYOUTS", "SLICE", "SPECIALS", "gradient_probes"]

_VALUES = ("equal", "fractions", "gaussian", "wide", "cancelling", "subnormal", "ties")
SPECIALS = ("edge", "negative-zero", "specials")
_BATCHES = (
    1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 384, 511, 513, 767, 768, 769, 1000,
    1023, 1024, 1025, 1537, 2047, 2048, 2049, 3071, 3072, 3073, 4095, 4096, 4097, 5000, 8191, 8193, 16385,
)  # fmt: skip
_DUPLICATES = (
    2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 1000, 1023,
    1024, 1025, 2047, 2049, 4095, 4096, 4097, 10000,
)  # fmt: skip
_WIDTHS = (
    1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 511, 513, 768,
    1000, 1023, 1024, 1025, 1185, 2048, 4096, 4097,
)  # fmt: skip
_VOCABULARIES = (
    1, 2, 3, 5, 8, 31, 32, 33, 64, 65, 100, 127, 129, 255, 256, 257, 300, 1000, 1025, 5000, 32000, 32769, 65537,
    131073, 151936,
)  # fmt: skip
_ID_FAMILIES = ("distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "every")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64")

Make = functools.partial[GradientCase]


def _expanded(cotangent: Bits) -> Bits:
    """Return the first token's cotangent for all tokens, in its memory alone: as the gradient of a sum has it."""
    first = cotangent.reshape(-1, cotangent.shape[-1])[0].copy()
    strides = (*(0,) * (cotangent.ndim - 1), first.itemsize)
    return np.lib.stride_tricks.as_strided(first, cotangent.shape, strides)


def _columns_expanded(cotangent: Bits) -> Bits:
    """Return each token's first element for all of its columns, in its memory alone."""
    first = cotangent[..., :1].copy()
    return np.lib.stride_tricks.as_strided(first, cotangent.shape, (*first.strides[:-1], 0))


def _every_second_token(cotangent: Bits) -> Bits:
    return np.repeat(cotangent, 2, axis=-2)[..., ::2, :] if cotangent.ndim > 1 else cotangent.copy()


COTANGENT_LAYOUTS: dict[str, Callable[[Bits], Bits]] = {
    "strided": spread,
    "transposed": transposed,
    "offset": offset,
    "expanded": _expanded,
    "columns expanded": _columns_expanded,
    "every second token": _every_second_token,
}
"""How a cotangent may lie in memory: each takes a dense one and returns a view of new memory."""

SLICE = "slice of a longer one"
"""The layout of ids or cotangents that the framework itself cuts out of longer ones."""

_IDS_LAID = tuple(f"ids {layout}" for layout in ("strided", "transposed", "offset by one", "read-only", SLICE))
"""Layouts of the ids: `ids` and a key of `ID_LAYOUTS`, or `SLICE`."""


def gradient_probes(
    source: str, result: str, framework: str, tier: Tier, *, traced: bool = False
) -> Iterator[tuple[GradientCase, str, str]]:
    """Yield the cases that a gradient is tried with, the layout of their cotangents and the dtype of their ids.

    source, result: dtypes of the cotangents and of the gradient. traced: only what shares one program.
    """
    ids = "int64" if framework == "torch" or source == "float64" else "int32"
    make = functools.partial(GradientCase, source=source, result=result, values="gaussian")
    of = _of_jax if framework == "jax" else _of_torch
    main = result in MAIN and not traced
    yield from of(make, ids, main=main, smoke=traced or tier is Tier.SMOKE)


def _of_torch(case: Make, ids: str, *, main: bool, smoke: bool) -> Iterator[tuple[GradientCase, str, str]]:
    yield from ((case(values=values, vocab=100, hidden=8), "dense", ids) for values in (*_VALUES, *SPECIALS))
    yield case(values="equal", vocab=5, hidden=1, ids="equal", shape=(1000,)), "dense", ids
    yield case(values="fractions", vocab=5, hidden=2, ids="equal", shape=(4097,)), "dense", ids
    yield case(values="cancelling", vocab=31, hidden=33, shape=(3, 2, 11)), "dense", ids
    yield case(vocab=5, hidden=3, ids="equal", shape=()), "dense", ids
    yield case(vocab=5, hidden=3, ids="equal", shape=(0,)), "dense", ids
    yield case(values="turns", vocab=37, hidden=8, ids="every", shape=(37,)), "dense", ids
    yield case(values="turns", vocab=40, hidden=8, shape=(6, 6)), "dense", ids
    yield case(values="turns", vocab=40, hidden=8, shape=(37,)), "dense", "int32"
    yield case(values="turns", vocab=31, hidden=16, shape=(3073,)), "dense", ids
    coarse = 8 if smoke else 1 if main else 4
    for tokens in _BATCHES[2::coarse]:
        yield case(vocab=31, hidden=2, shape=(tokens,)), "dense", ids
        if not smoke:
            yield case(values="turns", vocab=31, hidden=16, shape=(tokens,)), "dense", ids
    for count in _DUPLICATES[coarse - 1 :: coarse]:
        yield case(values="late", vocab=3, hidden=1, ids="equal", shape=(count,)), "dense", ids
        if not smoke:
            yield case(values="turns", vocab=3, hidden=32, ids="equal", shape=(count,)), "dense", ids
        yield case(values="fractions", vocab=3, hidden=1, ids="equal", shape=(count,)), "dense", ids
    for hidden in _WIDTHS[coarse - 1 :: coarse]:
        yield case(vocab=31, hidden=hidden, shape=(9 if hidden > 500 else 33,)), "dense", ids
    for vocab in _VOCABULARIES[coarse - 1 :: coarse]:
        yield case(vocab=vocab, hidden=3, ids="zipf_ends", shape=(33,)), "dense", ids
        if not smoke:
            yield case(vocab=vocab, hidden=3, ids="equal", shape=(1,)), "dense", ids
    if smoke:
        return
    for family in _ID_FAMILIES:
        yield case(vocab=40, hidden=8, ids=family, shape=(37,)), "dense", ids
    shapes: tuple[tuple[int, ...], ...] = ((37,), (2, 4), (1, 33), (33, 1), (5, 7, 2))
    for shape in (*shapes, (1, 1), (8, 8), (33, 33), (64, 64), (2, 128), (128, 2), (2, 2, 2, 3)):
        yield case(values="turns", vocab=40, hidden=8, shape=shape), "dense", ids
    for layout in (*COTANGENT_LAYOUTS, SLICE, *_IDS_LAID):
        for shape in shapes[:4]:
            yield case(values="cancelling", vocab=40, hidden=8, shape=shape), layout, ids
            yield case(values="turns", vocab=40, hidden=8, shape=shape), layout, "int32"
    for id_dtype in _INTEGERS:
        yield case(values="turns", vocab=100, hidden=8, shape=(65,)), "dense", id_dtype
        vocab = 120 if id_dtype == "int8" else 250
        yield case(values="turns", vocab=vocab, hidden=8, ids="distinct", shape=(120,)), "dense", id_dtype
        yield case(values="turns", vocab=100, hidden=8, shape=(5, 7)), "dense", id_dtype


def _of_jax(case: Make, ids: str, *, main: bool, smoke: bool) -> Iterator[tuple[GradientCase, str, str]]:
    """The same kinds on few shapes, since XLA compiles a sum for each: whatever is content shares one of them."""
    same = functools.partial(case, vocab=256, hidden=8, shape=(256,))
    # First what tells most: of all ones, a mean looks like a row that was overwritten.
    for values in dict.fromkeys(("gaussian", *_VALUES, *SPECIALS)):
        yield same(values=values), "dense", ids
    for family in _ID_FAMILIES:
        yield same(values="cancelling", ids=family), "dense", ids
    for values in ("equal", "fractions"):
        yield same(values=values, ids="equal"), "dense", ids
    given = case.keywords
    widened = given["source"] != given["result"]  # the same sums: here only what is cast and when matters
    many = functools.partial(case, vocab=31, hidden=2, shape=(4097,))
    if not widened and (main or (given["result"] == "float16" and not smoke)):
        for values in ("equal", "fractions"):
            yield many(values=values, ids="equal"), "dense", ids
        yield many(values="cancelling"), "dense", ids
    if not main or widened:
        return
    yield case(vocab=5, hidden=3, ids="equal", shape=()), "dense", ids
    yield case(vocab=5, hidden=3, ids="equal", shape=(0,)), "dense", ids
    if smoke:
        return
    # Shapes, sizes and dtypes of ids are dealt to the two: a kernel that keys on one seldom keys on the element's too.
    first = given["result"] == "bfloat16"
    for shape in ((16, 16), (4, 1, 64)) if first else ((2, 128),):
        yield same(shape=shape), "dense", ids
    yield case(values="cancelling", vocab=31, hidden=1185, shape=(33,)), "dense", ids
    yield same(vocab=1 if first else 151936, ids="zipf_ends"), "dense", ids
    for id_dtype in ("int8", "uint16", "int64") if first else ("uint8", "int16", "uint32"):
        yield same(vocab=100), "dense", id_dtype
