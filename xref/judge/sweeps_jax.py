"""Which calls a JAX candidate is tried with: the kinds of `sweeps`, on few shapes.

XLA compiles a program for each new shape and dtype, which costs more than a thousand calls of it. So what varies the
content (tables, ids and their order) shares one shape; rows, width and batch change together, each over the numbers at
which kernels switch; and only bfloat16 and float32 are tried with all of that, the other dtypes with what a dtype
breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from xref.bits import FORMATS
from xref.judge.probes import Probe
from xref.judge.subject import MAIN
from xref.spec import Tier

__all__ = ["ID_FAMILIES", "every_id", "jax_probes"]

ID_FAMILIES = (
    "distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "every", "runs2", "runs3", "runs32",
    "alternating", "last first",
)  # fmt: skip
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
_INTEGERS = ("int8", "uint8", "int16", "uint16", "uint32")

Make = Callable[..., Probe]


def jax_probes(verb: str, dtype: str, tier: Tier) -> Iterator[Probe]:
    """Yield the calls that a verb is tried with on tables of a dtype."""
    x64, main, smoke = dtype == "float64", dtype in MAIN, tier is Tier.SMOKE
    make = functools.partial(Probe, verb=verb, dtype=dtype, id_dtype="int64" if x64 else "int32")
    yield from _contents(make, dtype, main=main)
    yield from _empty(make, main=main)
    shapes = _FEW_SHAPES if not main else _SMOKE_SHAPES if smoke else _SHAPES
    for vocab, hidden, tokens in shapes:
        for ids in ("boundary", "last first"):
            yield make(vocab=vocab, hidden=hidden, table="hashed", ids=ids, shape=(tokens,))
        if FORMATS[dtype].width > 8:  # zeros and subnormals first: XLA may copy a shape in another format
            yield make(vocab=vocab, hidden=hidden, table="patterns", ids="zipf", shape=(tokens,))
    yield from _ids(make, x64=x64, few=smoke or not main)
    if smoke:
        return
    yield from every_id(make, main=main, parts=(0, 8))
    if verb == "forward" and dtype in ("float8_e5m2", "bfloat16"):
        # Past 2**31 elements, of which only the rows looked up are resident.
        yield make(vocab=40000, hidden=65536, table="sparse", ids="boundary", shape=(18,))


def _contents(make: Make, dtype: str, *, main: bool) -> Iterator[Probe]:
    """Every pattern of a narrow dtype, a million of a wide one; and on one shape all families of ids and tables."""
    width = FORMATS[dtype].width
    if width == 16:
        yield make(vocab=1009, hidden=65, table="patterns", ids="covering", shape=(1098,))
        if main:
            yield make(vocab=256, hidden=256, table="patterns", ids="every", shape=(256,))
    elif width > 16:
        yield make(vocab=1024, hidden=1025, table="hashed", ids="covering", shape=(1098,))
    yield make(vocab=3, hidden=1, table="poisoned", ids=(0, 2), shape=(2,))
    same = functools.partial(make, vocab=300, hidden=33, shape=(257,))
    if width == 8:
        yield same(table="patterns", ids="distinct")
    for table in ("poisoned", "zeros", "gaussian", "tagged"):
        yield same(table=table, ids="zipf")
    for family in ID_FAMILIES:
        yield same(table="hashed", ids=family)


def _empty(make: Make, *, main: bool) -> Iterator[Probe]:
    yield make(vocab=300, hidden=33, ids="equal", shape=())
    yield make(vocab=300, hidden=33, ids="equal", shape=(0,))
    if main:
        yield make(vocab=1, hidden=3, ids="equal", shape=())
        yield make(vocab=300, hidden=33, ids="equal", shape=(2, 0, 3))


def _ids(make: Make, *, x64: bool, few: bool) -> Iterator[Probe]:
    """Shapes of ids, their dtypes, and NumPy arrays, which JAX leaves as they are where it would narrow them."""
    same = functools.partial(make, vocab=300, hidden=33, table="hashed", ids="zipf")
    shapes: tuple[tuple[int, ...], ...] = ((2, 3), (3, 3), (5, 1), (1, 7), (64, 64), (3, 1, 5), (2, 1, 3, 5), (1, 1, 1))
    for shape in shapes[1:3] if few else shapes:
        yield same(shape=shape)
    for id_dtype in ("uint8",) if few else _INTEGERS:
        yield same(ids="boundary", shape=(257,), id_dtype=id_dtype)
    if few:
        return
    for id_dtype in ("uint16", "uint32"):
        yield make(vocab=65537, hidden=3, table="hashed", ids="boundary", shape=(3073,), id_dtype=id_dtype)
    for layout in () if x64 else ("dense", "strided", "offset by one", "read-only"):
        yield same(shape=(257,), id_dtype="int64", id_layout=layout)
    for layout in () if x64 else ("dense", "transposed", "strided"):
        yield same(shape=(2, 3), id_dtype="int64", id_layout=layout)


def every_id(make: Make, *, main: bool, parts: Iterable[int]) -> Iterator[Probe]:
    """Yield calls with every id of a large table, in one call and a part, of 16, at a time."""
    if not main:
        yield make(vocab=65537, hidden=3, table="hashed", ids="every", shape=(65537,))
        return
    yield make(vocab=151936, hidden=4, table="hashed", ids="every", shape=(151936,))
    yield make(vocab=2**24 + 3, hidden=1, table="hashed", ids="boundary", shape=(40,))  # past what float32 counts
    for n in parts:
        yield make(vocab=151936, hidden=32, table="hashed", ids=f"part{n}", shape=(151936 // 16,))
