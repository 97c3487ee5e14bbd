"""Which calls the forward is tried with in JAX: the kinds of `sweeps.forward`, on few shapes.

XLA compiles a program for each new shape and dtype, which costs more than a thousand calls of it. So what varies the
content (tables, ids and their order) shares one shape; rows, width and batch change together, each over the numbers at
which kernels switch; and the shapes are dealt to the dtypes that are examined: bfloat16 and float32 get all of them
between them, the other dtypes a few. Of one dtype that is examined alone, all are tried.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeVar

from xref.bits import FORMATS
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.clauses import main_dtypes
from xref.operators.embedding.sweeps.forward import ID_FAMILIES, Make, every_id, past_2_to_the_31
from xref.spec import Tier

__all__ = ["accuracy", "dealt", "layouts"]

# Rows, width and tokens. Each axis has its own switches (powers of two and around them, tiles, the ends of integer
# types, the sizes of models); they are dealt at random, so that no two rise together, below 6 million elements.
_SHAPES = (
    (997, 2048, 1), (1023, 12, 2), (100, 48, 3), (5, 96, 5), (300, 64, 8), (33, 1185, 16), (3, 5120, 31),
    (8, 4096, 33), (1025, 8, 64), (2, 65, 65), (64, 768, 100), (1, 1024, 127), (67, 1025, 129), (32769, 128, 256),
    (31, 255, 257), (128, 17, 384), (256, 256, 512), (257, 2, 513), (32000, 100, 768), (5000, 33, 769),
    (127, 129, 1000), (129, 513, 1025), (131073, 1, 1537), (151936, 16, 2049), (50257, 7, 3072), (65537, 3, 3073),
    (4097, 40, 4097), (1000, 31, 8193), (200, 9, 16385), (16384, 5, 65537), (1, 5, 64),
)  # fmt: skip
_SMOKE_SHAPES = ((33, 1185, 16), (1, 5, 64), (257, 2, 513), (65537, 3, 3073))
_FEW_SHAPES = ((33, 1185, 16), (65537, 3, 3073))
_INTEGERS = ("uint8", "int8", "int16", "uint16", "uint32")
_ID_SHAPES = ((3, 3), (5, 1), (2, 3), (1, 7), (64, 64), (3, 1, 5), (2, 1, 3, 5), (1, 1, 1))

_T = TypeVar("_T")


def dealt(items: Sequence[_T], dtype: str, dtypes: tuple[str, ...]) -> Sequence[_T]:
    """Return a dtype's share of what is dealt to those of its kind, the main dtypes or the others."""
    main = main_dtypes(dtypes)
    peers = [each for each in dtypes if (each in main) == (dtype in main)]
    return items[peers.index(dtype) :: len(peers)]


def accuracy(make: Make, dtype: str, dtypes: tuple[str, ...], tier: Tier) -> Iterator[Forward]:
    """Yield the calls that a verb is tried with on tables of a dtype, where so many dtypes are examined."""
    main, smoke = dtype in main_dtypes(dtypes), tier is Tier.SMOKE
    yield from _contents(make, dtype)
    programs = [*_empty(make), *_ids(make, few=smoke or not main)]
    shapes = _FEW_SHAPES if not main else _SMOKE_SHAPES if smoke else _SHAPES
    programs += [_of_shape(make, dtype, shape) for shape in shapes]
    if main and not smoke:
        programs += [[call] for call in every_id(make, main=True, parts=(0,))]
    for calls in dealt(programs, dtype, dtypes):
        yield from calls
    if not smoke:
        yield from past_2_to_the_31(make, dtype)


def _contents(make: Make, dtype: str) -> Iterator[Forward]:
    """Every pattern of a narrow dtype, a million of a wide one; and on one shape all families of ids and tables."""
    width = FORMATS[dtype].width
    same = functools.partial(make, vocab=300, hidden=33, shape=(257,))
    if width == 16:
        yield make(vocab=256, hidden=256, table="patterns", ids="every", shape=(256,))
    elif width > 16:
        yield make(vocab=1024, hidden=1025, table="hashed", ids="every", shape=(1024,))
    else:
        yield same(table="patterns", ids="distinct")
    for table in ("poisoned", "zeros", "classes", "gaussian", "tagged"):
        yield same(table=table, ids="zipf")
    for family in ID_FAMILIES:
        yield same(table="hashed", ids=family)


def _of_shape(make: Make, dtype: str, shape: tuple[int, int, int]) -> list[Forward]:
    vocab, hidden, tokens = shape
    same = functools.partial(make, vocab=vocab, hidden=hidden, shape=(tokens,))
    calls = [same(table="hashed", ids=ids) for ids in ("boundary", "last first")]
    if FORMATS[dtype].width > 8:  # zeros and subnormals first: XLA may copy a shape in another format
        calls.append(same(table="patterns", ids="zipf"))
    return calls


def _empty(make: Make) -> list[list[Forward]]:
    return [
        [make(vocab=300, hidden=33, ids="equal", shape=())],
        [make(vocab=300, hidden=33, ids="equal", shape=(0,))],
        [make(vocab=3, hidden=1, table="poisoned", ids=(0, 2), shape=(2,))],
        [make(vocab=1, hidden=3, ids="equal", shape=())],
        [make(vocab=300, hidden=33, ids="equal", shape=(2, 0, 3))],
    ]


def _ids(make: Make, *, few: bool) -> list[list[Forward]]:
    """Return shapes of ids, and their dtypes."""
    same = functools.partial(make, vocab=300, hidden=33, table="hashed", ids="zipf")
    found = [[same(shape=shape)] for shape in (_ID_SHAPES[:2] if few else _ID_SHAPES)]
    integers = _INTEGERS[:1] if few else _INTEGERS
    found += [[same(ids="boundary", shape=(257,), id_dtype=id_dtype)] for id_dtype in integers]
    if not few:
        found.append([make(vocab=65537, hidden=3, table="hashed", ids="boundary", shape=(3073,), id_dtype="uint32")])
        found.append([same(shape=(257,), id_dtype="int64")])
    return found


def layouts(make: Make) -> Iterator[Forward]:
    """Yield calls with NumPy's ids, which JAX leaves as they are where it would narrow them; its own have no layout."""
    same = functools.partial(make, vocab=300, hidden=33, table="hashed", ids="zipf", id_dtype="int64")
    for layout in ("strided", "offset by one", "read-only"):
        yield same(shape=(257,), id_layout=layout)
    for layout in ("transposed", "strided"):
        yield same(shape=(2, 3), id_layout=layout)
