"""Which gradients are asked for: values, sizes, duplicates, shapes and layouts, each along its own axis."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator

from xref.engine.layouts import COTANGENT_LAYOUTS, ID_LAYOUTS, SLICE
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.cotangents import SPECIALS

__all__ = ["Dealt", "layouts", "sums"]

_VALUES = ("equal", "fractions", "gaussian", "wide", "cancelling", "subnormal", "ties")
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
_SHAPES: tuple[tuple[int, ...], ...] = ((37,), (2, 4), (1, 33), (33, 1), (5, 7, 2))

Make = functools.partial[Gradient]


class Dealt(enum.Flag):
    """Which share of the kinds of call falls to a dtype, where each kind is tried with one dtype alone."""

    NONE = 0
    FIRST = enum.auto()
    SECOND = enum.auto()


def sums(make: Make, framework: str, *, dealt: Dealt, smoke: bool) -> Iterator[Gradient]:
    """Yield the calls of one verb's gradient for one dtype in dense memory; of specials they are EMB-11's.

    make: returns a call of given values, sizes and ids. dealt: which share falls to a main dtype, none to others.
    """
    yield from (_of_jax if framework == "jax" else _of_torch)(make, dealt=dealt, smoke=smoke)


def layouts(make: Make) -> Iterator[Gradient]:
    """Yield calls whose cotangents or ids are not dense."""
    for name in (*COTANGENT_LAYOUTS, SLICE):
        for shape in _SHAPES[:4]:
            yield make(values="cancelling", vocab=40, shape=shape, layout=name)
            yield make(values="turns", vocab=40, shape=shape, layout=name, id_dtype="int32")
    for name in ID_LAYOUTS:
        for shape in _SHAPES[:4]:
            yield make(values="cancelling", vocab=40, shape=shape, id_layout=name)
            yield make(values="turns", vocab=40, shape=shape, id_layout=name, id_dtype="int32")


def _of_torch(make: Make, *, dealt: Dealt, smoke: bool) -> Iterator[Gradient]:
    yield from (make(values=values) for values in (*_VALUES, *SPECIALS))
    yield make(values="equal", vocab=5, hidden=1, ids="equal", shape=(1000,))
    yield make(values="fractions", vocab=5, hidden=2, ids="equal", shape=(4097,))
    yield make(values="cancelling", vocab=31, hidden=33, shape=(3, 2, 11))
    yield make(vocab=5, hidden=3, ids="equal", shape=())
    yield make(vocab=5, hidden=3, ids="equal", shape=(0,))
    yield make(values="turns", vocab=37, ids="every", shape=(37,))
    yield make(values="turns", vocab=40, shape=(6, 6))
    yield make(values="turns", vocab=40, shape=(37,), id_dtype="int32")
    yield make(values="turns", vocab=31, hidden=16, shape=(3073,))
    yield from _of_sizes(make, coarse=8 if smoke else 1 if dealt else 4, smoke=smoke)
    if smoke:
        return
    for family in _ID_FAMILIES:
        yield make(vocab=40, ids=family, shape=(37,))
    for shape in (*_SHAPES, (1, 1), (8, 8), (33, 33), (64, 64), (2, 128), (128, 2), (2, 2, 2, 3)):
        yield make(values="turns", vocab=40, shape=shape)
    for id_dtype in _INTEGERS:
        yield make(values="turns", shape=(65,), id_dtype=id_dtype)
        vocab = 120 if id_dtype == "int8" else 250
        yield make(values="turns", vocab=vocab, ids="distinct", shape=(120,), id_dtype=id_dtype)
        yield make(values="turns", shape=(5, 7), id_dtype=id_dtype)


def _of_sizes(make: Make, *, coarse: int, smoke: bool) -> Iterator[Gradient]:
    """Yield calls of every `coarse`-th number of tokens, of tokens of one id, of columns and of rows."""
    for tokens in _BATCHES[2::coarse]:
        yield make(vocab=31, hidden=2, shape=(tokens,))
        if not smoke:
            yield make(values="turns", vocab=31, hidden=16, shape=(tokens,))
    for count in _DUPLICATES[coarse - 1 :: coarse]:
        yield make(values="late", vocab=3, hidden=1, ids="equal", shape=(count,))
        if not smoke:
            yield make(values="turns", vocab=3, hidden=32, ids="equal", shape=(count,))
        yield make(values="fractions", vocab=3, hidden=1, ids="equal", shape=(count,))
    for hidden in _WIDTHS[coarse - 1 :: coarse]:
        yield make(vocab=31, hidden=hidden, shape=(9 if hidden > 500 else 33,))
    for vocab in _VOCABULARIES[coarse - 1 :: coarse]:
        yield make(vocab=vocab, hidden=3, ids="zipf_ends", shape=(33,))
        if not smoke:
            yield make(vocab=vocab, hidden=3, ids="equal", shape=(1,))


def _of_jax(make: Make, *, dealt: Dealt, smoke: bool) -> Iterator[Gradient]:
    """Yield the same kinds on few shapes, since XLA compiles a sum for each: whatever is content shares one of them."""
    same = functools.partial(make, vocab=256, shape=(256,))
    # First what tells most: of all ones, a mean looks like a row that was overwritten.
    yield from (same(values=values) for values in dict.fromkeys(("gaussian", *_VALUES, *SPECIALS)))
    yield from (same(values="cancelling", ids=family) for family in _ID_FAMILIES)
    yield from (same(values=values, ids="equal") for values in ("equal", "fractions"))
    if dealt is Dealt.NONE or make.keywords["source"] != make.keywords["result"]:
        return  # of what is widened the sums are the same: there only what is cast and when matters
    if dealt & Dealt.FIRST or not smoke:
        many = functools.partial(make, vocab=31, hidden=2, shape=(4097,))
        yield from (many(values=values, ids="equal") for values in ("equal", "fractions"))
        yield many(values="cancelling")
    # A kernel that keys on a shape, a size or the dtype of the ids seldom keys on the element's too.
    if dealt & Dealt.FIRST:
        yield make(vocab=5, hidden=3, ids="equal", shape=())
    if dealt & Dealt.SECOND:
        yield make(vocab=5, hidden=3, ids="equal", shape=(0,))
    if smoke:
        return
    yield from (same(shape=(16, 16)), same(id_dtype="int64"))
    if dealt & Dealt.FIRST:
        yield from (same(shape=(4, 1, 64)), same(vocab=1, ids="zipf_ends"))
        yield from (same(vocab=100, id_dtype=id_dtype) for id_dtype in ("int8", "uint16"))
    if dealt & Dealt.SECOND:
        yield make(values="cancelling", vocab=31, hidden=1185, shape=(33,))
        yield same(vocab=151936, ids="zipf_ends")
        yield from (same(vocab=100, id_dtype=id_dtype) for id_dtype in ("uint8", "uint32"))
