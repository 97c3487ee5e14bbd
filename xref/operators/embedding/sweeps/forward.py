"""Which calls the forward is tried with: what a kernel can key on, each along its own axis.

A kernel takes another path at a batch size, a width, a number of rows, a dtype, a stride, an alignment. Every sweep
varies one of these over the numbers at which real kernels switch (warps, tiles, blocks, the ends of integer types)
and around them, and compares every element with the exact answer. JAX has sweeps of its own, in `sweeps.jax`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from xref.bits import FORMATS
from xref.engine.layouts import ID_LAYOUTS, TABLE_LAYOUTS
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.clauses import MAIN
from xref.spec import Tier

__all__ = ["ID_FAMILIES", "Make", "accuracy", "every_id", "layouts"]

ID_FAMILIES = (
    "distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "every", "runs2", "runs3", "runs32",
    "alternating", "last first",
)  # fmt: skip
# Around powers of two, thirds of them, and the sizes of models.
_WIDTHS = (
    *range(1, 10), 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 47, 48, 49, 63, 64, 65, 72, 80, 95, 96, 97, 100, 112,
    127, 128, 129, 160, 191, 192, 193, 255, 256, 257, 320, 384, 511, 512, 513, 640, 767, 768, 769, 896, 1000, 1023,
    1024, 1025, 1185, 1280, 1536, 2047, 2048, 2049, 2304, 2560, 3072, 4095, 4096, 4097, 5120, 6144, 7168, 8192,
    8193,
)  # fmt: skip
_VOCABULARIES = (
    *range(1, 10), 15, 16, 17, 31, 32, 33, 50, 63, 64, 65, 97, 100, 127, 128, 129, 200, 255, 256, 257, 300, 511,
    512, 513, 1000, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 5000, 8192, 10000, 16383, 16384, 16385, 32000,
    32767, 32768, 32769, 50257, 65535, 65536, 65537, 100000, 128256, 131071, 131072, 131073, 151936, 262145,
)  # fmt: skip
_BATCHES = (
    *range(1, 10), 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 100, 127, 128, 129, 130,
    191, 192, 193, 200, 255, 256, 257, 300, 383, 384, 385, 500, 511, 512, 513, 640, 767, 768, 769, 800, 1000, 1023,
    1024, 1025, 1100, 1200, 1535, 1536, 1537, 2000, 2047, 2048, 2049, 2500, 3000, 3071, 3072, 3073, 4000, 4095,
    4096, 4097, 5000, 6144, 8000, 8191, 8192, 8193, 10000, 12289, 16383, 16384, 16385, 20000, 32767, 32769, 65535,
    65537, 100003,
)  # fmt: skip
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

Make = Callable[..., Forward]
"""`Forward` with check, verb and table dtype filled in."""


def accuracy(make: Make, dtype: str, tier: Tier) -> Iterator[Forward]:
    """Yield the calls that a verb is tried with on tables of a dtype, in dense memory."""
    yield from _values(make, dtype)
    yield from _empty(make)
    yield from _smoke(make)
    if tier is Tier.SMOKE:
        return
    yield from _shapes(make)
    yield from _ids(make)
    yield from _every_id(make, main=dtype in MAIN)
    yield from past_2_to_the_31(make, dtype)


def _values(make: Make, dtype: str) -> Iterator[Forward]:
    """Every pattern of a narrow dtype, a million of a wide one; rows among NaN; zeros of both signs."""
    width = FORMATS[dtype].width
    if width == 16:
        yield make(vocab=1009, hidden=65, table="patterns", ids="covering", shape=(1098,))
        yield make(vocab=256, hidden=256, table="patterns", ids="every", shape=(256,))
    elif width == 8:
        yield make(vocab=1009, hidden=65, table="hashed", ids="covering", shape=(1098,))
        yield make(vocab=256, hidden=1, table="patterns", ids="every", shape=(256,))
    else:
        yield make(vocab=1024, hidden=1025, table="hashed", ids="covering", shape=(1098,))
    yield make(vocab=3, hidden=1, table="poisoned", ids=(0, 2), shape=(2,))
    yield make(vocab=300, hidden=33, table="poisoned", ids="zipf", shape=(64,))
    yield make(vocab=40, hidden=33, table="zeros", ids="every", shape=(80,))
    yield make(vocab=40, hidden=33, table="classes", ids="every", shape=(80,))
    yield make(vocab=1000, hidden=256, table="gaussian", ids="zipf", shape=(4, 33))


def _empty(make: Make) -> Iterator[Forward]:
    yield make(vocab=300, hidden=33, ids="equal", shape=())
    yield make(vocab=1, hidden=3, ids="equal", shape=())
    for shape in ((0,), (2, 0, 3)):
        yield make(vocab=300, hidden=33, ids="equal", shape=shape)
    yield make(vocab=0, hidden=5, table="hashed", ids=(), shape=(0,))


def _smoke(make: Make) -> Iterator[Forward]:
    for hidden in (1, 33, 1185):
        yield make(vocab=31, hidden=hidden, ids="zipf", shape=(41,))
    for vocab in (1, 2, 33, 257, 1025, 32769, 65537):
        yield make(vocab=vocab, hidden=5, ids="boundary", shape=(64,))
    for tokens in (1, 2, 33, 129, 257, 513, 769, 1025, 2049, 3073, 4097, 8193):
        yield make(vocab=997, hidden=9, ids="zipf", shape=(tokens,))
    for table in ("zeros", "classes"):
        yield make(vocab=40, hidden=1, table=table, ids="every", shape=(80,))
    for shape in ((1, 1), (1, 6), (5, 5)):
        yield make(vocab=300, hidden=33, ids="every third", shape=shape)
    yield make(vocab=300, hidden=33, ids="every third", shape=(40,))
    for id_dtype in _INTEGERS:
        yield make(vocab=300, hidden=33, ids="boundary", shape=(31,), id_dtype=id_dtype)
        yield make(vocab=100, hidden=5, ids="zipf", shape=(4, 9), id_dtype=id_dtype)


def _shapes(make: Make) -> Iterator[Forward]:
    for hidden in _WIDTHS:
        yield make(vocab=67, hidden=hidden, table="hashed", ids="zipf", shape=(41,))
    for vocab in _VOCABULARIES:
        yield make(vocab=vocab, hidden=5, table="hashed", ids="boundary", shape=(64,))
    for tokens in _BATCHES:
        yield make(vocab=997, hidden=9, table="hashed", ids="zipf", shape=(tokens,))
        # Again in another order and at a width of whole vectors; and as a matrix.
        yield make(vocab=1000, hidden=64 if tokens <= 20000 else 8, table="hashed", ids="last first", shape=(tokens,))
        yield make(vocab=997, hidden=9, table="hashed", ids="zipf", shape=(1, tokens))
    shapes: tuple[tuple[int, ...], ...] = ((2, 3), (3, 1, 5), (64, 64))
    shapes += tuple((rows, columns) for rows in (2, 3, 7, 8, 32, 33, 128) for columns in (1, 2, 5, 16, 17, 129))
    shapes += ((1, 1, 1), (2, 1, 3, 5), (1, 4097), (4097, 1), (2, 3, 2, 3, 2))
    for shape in shapes:
        yield make(vocab=300, hidden=33, table="hashed", ids="zipf", shape=shape)


def _ids(make: Make) -> Iterator[Forward]:
    """Patterns of ids and their dtypes."""
    for family in ID_FAMILIES:
        yield make(vocab=300, hidden=33, table="hashed", ids=family, shape=(257,))
        yield make(vocab=4100, hidden=16, table="hashed", ids=family, shape=(4100,))
    for id_dtype in _INTEGERS:
        for vocab in (100, 300, 70000):
            yield make(vocab=vocab, hidden=33, table="hashed", ids="boundary", shape=(33,), id_dtype=id_dtype)
        yield make(vocab=300, hidden=33, table="hashed", ids="last first", shape=(1100,), id_dtype=id_dtype)
        yield make(vocab=300, hidden=33, ids="equal", shape=(), id_dtype=id_dtype)
        yield make(vocab=300, hidden=33, ids="equal", shape=(0,), id_dtype=id_dtype)


def _every_id(make: Make, *, main: bool) -> Iterator[Forward]:
    """Every id of large tables, and of those of models."""
    yield from every_id(make, main=main, parts=range(16))
    for vocab in (1024, 2048, 4096, 32000, 50257, 65536, 128256) if main else ():
        yield make(vocab=vocab, hidden=8, table="hashed", ids="every", shape=(vocab,))


def every_id(make: Make, *, main: bool, parts: Iterable[int]) -> Iterator[Forward]:
    """Yield calls with every id of a large table, in one call and a part, of 16, at a time."""
    if not main:
        yield make(vocab=65537, hidden=3, table="hashed", ids="every", shape=(65537,))
        return
    yield make(vocab=151936, hidden=4, table="hashed", ids="every", shape=(151936,))
    yield make(vocab=2**24 + 3, hidden=1, table="hashed", ids="boundary", shape=(40,))  # past what float32 counts
    for n in parts:
        yield make(vocab=151936, hidden=32, table="hashed", ids=f"part{n}", shape=(151936 // 16,))


def past_2_to_the_31(make: Make, dtype: str) -> Iterator[Forward]:
    """Yield a call on a table of more than 2**31 elements, of which only the rows looked up are resident."""
    call = make(vocab=40000, hidden=65536, table="sparse", ids="boundary", shape=(18,))
    if call.verb == "forward" and dtype in ("float8_e5m2", "bfloat16"):
        yield call


def layouts(make: Make, *, few: bool) -> Iterator[Forward]:
    """Yield calls with tables and ids elsewhere in memory, at narrow, odd and wide rows."""
    tables = ((61, 5, 7), (64, 64, 33), (61, 64, 33), (40, 1185, 33), (300, 128, 1100))
    shapes: tuple[tuple[int, ...], ...] = ((4, 9), (33,), (2, 3, 5), (1100,))
    for layout in TABLE_LAYOUTS:
        for vocab, hidden, tokens in tables[:2] if few else tables:
            yield make(vocab=vocab, hidden=hidden, table="hashed", ids="zipf", shape=(tokens,), layout=layout)
    for hidden in (5, 64):
        yield make(vocab=61, hidden=hidden, table="windows", ids="zipf", shape=(33,), layout="overlapping rows")
    same = functools.partial(make, vocab=61, hidden=33, table="hashed", ids="zipf")
    for layout in (*ID_LAYOUTS, "expanded ids"):
        for shape in shapes[:2] if few else shapes:
            yield same(shape=shape, id_layout=layout)
            if not few:
                yield same(shape=shape, id_layout=layout, id_dtype="int32")
