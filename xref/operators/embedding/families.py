"""Tables and ids by the name of their family: those of `xref.inputs`, and others that candidates alone are tried on."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable

import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.blocks import checksums
from xref.inputs import Ids, make_ids, make_table

__all__ = ["IDS", "LARGE", "LOADED", "TABLES", "checksums_of", "ids_of", "table_of"]

LARGE = 1 << 28  # bytes
"""Tables above this are in memory once: who is called with one shares it."""

LOADED: dict[str, tuple[Bits, Ids]] = {}
"""Tables that were read, by a name of a family, each with the ids of the same name."""

_SMALL, _KEPT = 1 << 24, 24  # bytes of a table that is kept for the next calls, and how many are


def _runs(times: int, count: int, vocab: int) -> Ids:
    """Return ids in runs: each stands `times` times in a row."""
    return np.repeat(make_ids("zipf", (-(-count // times),), vocab, "int64"), times)[:count]


IDS: dict[str, Callable[[int, int], Ids]] = {
    **{f"runs{n}": functools.partial(_runs, n) for n in (2, 3, 32)},
    "alternating": lambda count, vocab: np.where(np.arange(count) % 2, vocab // 3, vocab // 2),
    "last first": lambda count, vocab: (vocab - 1 - np.arange(count)) % vocab,
    "every third": lambda count, vocab: 3 * np.arange(count) % vocab,
}
"""Beside those of `xref.inputs`: of how many tokens and rows."""


def ids_of(family: str, shape: tuple[int, ...], vocab: int, id_dtype: str) -> Ids:
    """Return ids of a family, dense, of any shape and integer dtype, within the dtype's range."""
    if family in LOADED:
        return LOADED[family][1]
    if family not in IDS:
        return make_ids(family, shape, vocab, id_dtype)
    reachable = min(vocab, int(np.iinfo(id_dtype).max) + 1)
    return IDS[family](int(np.prod(shape, dtype=np.int64)), reachable).astype(id_dtype).reshape(shape)


def _zeros(vocab: int, hidden: int, dtype: str, offset: int) -> Bits:
    """Return rows of +0 and of -0 in turn."""
    table = make_table("sparse", vocab, hidden, FORMATS[dtype])
    table[1::2] = FORMATS[dtype].sign
    return table


def _classes(vocab: int, hidden: int, dtype: str, offset: int) -> Bits:
    """Return rows of one kind of element alone: NaNs, subnormals, infinities, ordinary numbers."""
    fmt = FORMATS[dtype]
    table = make_table("hashed", vocab, hidden, fmt, offset=offset)
    table[0::4] |= fmt.uint.type(fmt.nan if not fmt.has_inf else fmt.exponent | 1)
    table[1::4] &= fmt.uint.type(fmt.sign | fmt.mantissa)
    table[2::4] &= fmt.uint.type(fmt.sign)
    table[2::4] |= fmt.uint.type(fmt.largest_number)
    return table


def _windows(vocab: int, hidden: int, dtype: str, offset: int) -> Bits:
    """Return rows, each of which begins with the second element of the one before: so they may overlap in memory."""
    stream = make_table("hashed", 1, vocab + hidden, FORMATS[dtype], offset=offset)[0]
    return np.lib.stride_tricks.sliding_window_view(stream, hidden)[:vocab].copy()


TABLES: dict[str, Callable[[int, int, str, int], Bits]] = {"zeros": _zeros, "classes": _classes, "windows": _windows}
"""Beside `poisoned` and those of `xref.inputs`: of how many rows and columns, a dtype, and an offset."""


def table_of(
    family: str, vocab: int, hidden: int, dtype: str, offset: int, ids: Ids | tuple[()] = ()
) -> tuple[Bits, Ids | None]:
    """Return a table's bits, dense, and which rows they are: None where it is all of them. Large ones can be written.

    A `sparse` table has rows where ids name them, and zeros elsewhere; a `poisoned` one has NaN in every row that no id
    names: who multiplies by zeros, or reads too much, gets NaN. All others do not depend on the ids.
    """
    if family in LOADED:
        return LOADED[family][0], None
    if family == "sparse":
        rows = np.unique(ids)
        return make_table(family, vocab, hidden, FORMATS[dtype], touched=rows)[rows], rows
    if family == "poisoned":
        table = make_table("gaussian", vocab, hidden, FORMATS[dtype], offset=offset)
        table[np.setdiff1d(np.arange(vocab), ids)] = FORMATS[dtype].nan
        return table, None
    size = vocab * hidden * FORMATS[dtype].width // 8
    make = _kept if size <= _SMALL else _shared
    return make(family, vocab, hidden, dtype, offset), None


def _made(family: str, vocab: int, hidden: int, dtype: str, offset: int) -> Bits:
    if family in TABLES:
        table = TABLES[family](vocab, hidden, dtype, offset)
    else:
        table = make_table(family, vocab, hidden, FORMATS[dtype], offset=offset)
    table.flags.writeable = False  # whoever takes it over as its own memory would change later calls' tables
    return table


_kept = functools.lru_cache(_KEPT)(_made)
_in_use: weakref.WeakValueDictionary[Hashable, Bits] = weakref.WeakValueDictionary()
_sums: dict[int, tuple[weakref.ref[Bits], tuple[int, ...]]] = {}
_lock = threading.RLock()  # scripts are written in several threads


def _shared(family: str, vocab: int, hidden: int, dtype: str, offset: int) -> Bits:
    key = family, vocab, hidden, dtype, offset
    with _lock:
        table = _in_use.get(key)
        if table is None:
            _in_use[key] = table = _made(*key)
            table.flags.writeable = table.nbytes > LARGE  # a framework takes no other memory as its own
            checksums_of(table)
        return table


def checksums_of(table: Bits) -> tuple[int, ...]:
    """Return the checksums of a large table as they were when they were first asked for; of any other none."""
    if table.nbytes <= LARGE:
        return ()
    with _lock:
        watch, sums = _sums.get(id(table), (None, ()))
        if watch is None or watch() is not table:
            sums = checksums(table)
            _sums[id(table)] = weakref.ref(table), sums
        return sums
