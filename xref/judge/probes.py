"""One call of a candidate, written down whole: any probe can be run again from its record, and made smaller."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits, as_bits
from xref.contracts import embedding as contract
from xref.inputs import Ids, make_ids, make_table
from xref.judge.candidate import Candidate
from xref.judge.conditions import TABLE_LAYOUTS, offset, read_only, transposed
from xref.judge.subject import MisformedError, described, formed, shared_memory
from xref.judge.verdict import Mismatch, mismatch

__all__ = [
    "ID_LAYOUTS",
    "SHARED",
    "SLICES",
    "Observation",
    "Probe",
    "Prober",
    "among",
    "answer_of",
    "ids_of",
    "table_of",
]

_CACHED_BYTES, _CACHED = 1 << 24, 24  # tables kept for the next probes: none larger, and no more than that
_COMPARED_BYTES = 1 << 20  # a larger table is compared once, after all probes on it


class Probe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call: a verb, a table, ids and how both lie in memory."""

    verb: str = "forward"
    dtype: str
    vocab: int
    hidden: int
    table: str = "tagged"
    """Family of the table, as `xref.inputs.make_table` has them, or one of this module's."""
    ids: str | tuple[int, ...]
    """Family of the ids, or the ids themselves."""
    shape: tuple[int, ...]
    id_dtype: str = "int64"
    layout: str = "dense"
    """Of the table in memory: a key of `TABLE_LAYOUTS`."""
    id_layout: str = "dense"
    """Of the ids in memory: a key of `ID_LAYOUTS`."""
    mode: str = "plain"
    """How the candidate is called: `plain`, or a mode of the framework."""
    seed: int = 0
    """Offset of the table's rows, so that two tables of one family differ."""

    def __str__(self) -> str:
        first = ", ".join(map(str, self.ids[:8])) + ", ..." * (len(self.ids) > 8)
        ids = self.ids if isinstance(self.ids, str) else f"ids [{first}]"
        shape = "x".join(map(str, self.shape)) or "scalar"
        parts = [self.verb, self.dtype, f"{self.vocab}x{self.hidden}", self.table, ids, shape, self.id_dtype]
        parts += [f"table {self.layout}"] if self.layout != "dense" else []
        parts += [f"ids {self.id_layout}"] if self.id_layout != "dense" else []
        parts += [self.mode] if self.mode != "plain" else []
        return " ".join(parts)

    def to_json(self) -> str:
        """Return the record as JSON on one line, as `xref judge --only` takes it."""
        return msgspec.json.encode(self).decode()


class Observation(msgspec.Struct, kw_only=True):
    """What came of a probe."""

    probe: Probe
    expected: Bits
    got: Bits | None = None
    """None where the call gave no output of the right form."""
    wrong: Mismatch | None = None
    misformed: MisformedError | None = None
    raised: str | None = None
    impure: str | None = None
    """What was changed or shared that must not be."""


def _repeated(times: int, count: int, vocab: int) -> Ids:
    """Return ids in runs: each stands `times` times in a row."""
    return np.repeat(make_ids("zipf", (-(-count // times),), vocab, "int64"), times)[:count]


_IDS: dict[str, Callable[[int, int], Ids]] = {
    **{f"runs{n}": functools.partial(_repeated, n) for n in (2, 3, 32)},
    "alternating": lambda count, vocab: np.where(np.arange(count) % 2, vocab // 3, vocab // 2),
    "last first": lambda count, vocab: (vocab - 1 - np.arange(count)) % vocab,
    "every third": lambda count, vocab: 3 * np.arange(count) % vocab,
}


def ids_of(probe: Probe) -> Ids:
    """Return a probe's ids, dense."""
    if not isinstance(probe.ids, str):
        return np.array(probe.ids, dtype=probe.id_dtype).reshape(probe.shape)
    if probe.ids in _IDS:
        count = int(np.prod(probe.shape, dtype=np.int64))
        reachable = min(probe.vocab, int(np.iinfo(probe.id_dtype).max) + 1)
        ids = _IDS[probe.ids](count, reachable).astype(probe.id_dtype).reshape(probe.shape)
    else:
        ids = make_ids(probe.ids, probe.shape, probe.vocab, probe.id_dtype)
    return np.array(_expanded(ids)) if probe.id_layout == "expanded" else ids


def table_of(probe: Probe, ids: Ids) -> Bits:
    """Return the bits of a probe's table, dense."""
    fmt = FORMATS[probe.dtype]
    if probe.table == "poisoned":
        # NaN in every row that no id names: who multiplies by zeros, or reads too much, gets NaN.
        table = make_table("gaussian", probe.vocab, probe.hidden, fmt, offset=probe.seed)
        table[np.setdiff1d(np.arange(probe.vocab), ids)] = fmt.nan
        return table
    if probe.table == "zeros":
        table = make_table("sparse", probe.vocab, probe.hidden, fmt)
        table[1::2] = fmt.sign
        return table
    if probe.table == "classes":
        # Rows of one kind of element alone: NaNs, subnormals, infinities, ordinary numbers.
        table = make_table("hashed", probe.vocab, probe.hidden, fmt, offset=probe.seed)
        table[0::4] |= fmt.uint.type(fmt.nan if not fmt.has_inf else fmt.exponent | 1)
        table[1::4] &= fmt.uint.type(fmt.sign | fmt.mantissa)
        table[2::4] &= fmt.uint.type(fmt.sign)
        table[2::4] |= fmt.uint.type(fmt.largest_number)
        return table
    if probe.table == "windows":
        # Each row begins with the second element of the one before: so they may overlap in memory.
        stream = make_table("hashed", 1, probe.vocab + probe.hidden, fmt, offset=probe.seed)[0]
        return np.lib.stride_tricks.sliding_window_view(stream, probe.hidden)[: probe.vocab].copy()
    # A seeded table's rows begin elsewhere; `patterns` and `tagged` ones then count from another number.
    return make_table(probe.table, probe.vocab, probe.hidden, fmt, offset=probe.seed, touched=ids)


def _expanded(ids: Ids) -> Ids:
    """Return the first of the ids along their first axis for all of them, in its memory alone."""
    if ids.ndim < 2 or not ids.size:
        return ids.copy()
    return np.lib.stride_tricks.as_strided(ids[:1].copy(), ids.shape, (0, *ids[:1].copy().strides[1:]))


def _strided(ids: Ids) -> Ids:
    return np.repeat(ids.reshape(-1), 2)[::2].reshape(ids.shape) if ids.ndim != 1 else np.repeat(ids, 2)[::2]


ID_LAYOUTS: dict[str, Callable[[Ids], Ids]] = {
    "dense": lambda ids: ids.copy(),
    "strided": _strided,
    "transposed": transposed,
    "offset by one": offset,
    "read-only": read_only,
}
"""The same ids in other memory: each takes dense ids and returns an array of new memory."""


def _overlapping(table: Bits) -> Bits:
    """Return a table of the family `windows` whose rows share memory."""
    if 0 in table.shape:
        return table.copy()
    stream = np.concatenate([table[:, 0], table[-1, 1:]])
    return np.lib.stride_tricks.as_strided(stream, table.shape, (stream.itemsize, stream.itemsize))


SHARED: dict[str, Callable[[Any], Any]] = {"expanded": _expanded, "overlapping rows": _overlapping}
"""Memory that several elements share: of ids that are alike along their first axis, and of tables of windows."""


def among(array: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    """Return an array with two more before it along an axis, and one after it."""
    ends = np.flip(array.take([0, -1], axis=axis), axis=axis) if array.shape[axis] else array
    return np.concatenate([ends, array, ends.take([0], axis=axis)], axis=axis) if array.shape[axis] else array


SLICES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows of a larger one": (lambda table: among(table, 0), lambda table: table[2:-1]),
    "columns of a larger one": (lambda table: among(table, 1), lambda table: table[:, 2:-1]),
}
"""Tables that the framework itself cuts out of larger ones: how the larger is made, and how it is cut."""


class Prober:
    """Runs probes on a candidate, and looks after what must not change."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.framework, self.device = candidate, candidate.framework, candidate.device
        self._tables: dict[Probe, tuple[Bits, Any]] = {}

    def run(self, probe: Probe) -> Observation:
        """Make the call that a probe stands for."""
        ids = ids_of(probe)
        with self.framework.precision(probe.dtype):
            table, laid = self._table(probe, ids)
            if probe.layout in SLICES:
                larger, cut = SLICES[probe.layout]
                laid = cut(self.framework.put(larger(table), probe.dtype, self.device))
            elif probe.layout != "dense":
                laid = self.framework.put({**TABLE_LAYOUTS, **SHARED}[probe.layout](table), probe.dtype, self.device)
            if probe.id_layout == "slice of a longer one":
                given = self.framework.put(among(ids, 0), None, self.device)[2:-1]
            else:
                given = self.framework.put({**ID_LAYOUTS, **SHARED}[probe.id_layout](ids), None, self.device)
            return self.observe(probe, (given, ids), (laid, table))

    def observe(self, probe: Probe, ids: tuple[Any, Ids], table: tuple[Any, Bits]) -> Observation:
        """Call the candidate and look at what it returns; `ids` and `table` are what it is given and plain copies."""
        seen = Observation(probe=probe, expected=answer_of(probe, ids[1], table[1]))
        call = self.call(probe)
        try:
            out = call(ids[0], table[0])
        except (Exception, SystemExit) as error:
            seen.raised = described(error)
            return seen
        self.read(seen, self._as_array(out, table[0]))
        if seen.misformed is None:
            seen.impure = self._impurity(out, ids, table)
        return seen

    def call(self, probe: Probe) -> Callable[[Any, Any], Any]:
        """Return the candidate's verb in the probe's mode."""
        verb = self.candidate.verbs[probe.verb]
        if probe.mode == "plain":
            return verb
        framework = self.framework
        return {**framework.modes(), **framework.gradient_modes(), **framework.surroundings()}[probe.mode](verb)

    def _as_array(self, out: Any, table: Any) -> Any:
        """Return an output, one of NumPy's as the framework's array where the table was one of NumPy's too."""
        numpy = isinstance(out, np.ndarray) and isinstance(table, np.ndarray) and out.dtype.name in FORMATS
        return self.framework.put(as_bits(out).copy(), out.dtype.name, self.device) if numpy else out

    def read(self, seen: Observation, out: Any) -> None:
        """Note an output's bits, and what is wrong with its form or its bits."""
        fmt = FORMATS[contract.result_dtype(seen.probe.verb, seen.probe.dtype)]
        try:
            seen.got = formed(self.framework, out, (seen.expected.shape, fmt.name, self.device))
            seen.wrong = mismatch(seen.got, seen.expected, fmt)
        except MisformedError as error:
            seen.misformed = error

    def _impurity(self, out: Any, ids: tuple[Any, Ids], table: tuple[Any, Bits]) -> str | None:
        try:
            return self._changed(out, ids, table)
        except Exception as error:  # JAX's own, where a kernel has given the memory of an input away
            self._tables.clear()
            return f"weight: got {described(error)} when read after the call, expected the same bits"

    def _changed(self, out: Any, ids: tuple[Any, Ids], table: tuple[Any, Bits]) -> str | None:
        if not np.array_equal(self.framework.numpy_of(ids[0]), ids[1]):
            return "token_ids: got other values after the call, expected the same"
        if table[1].nbytes <= _COMPARED_BYTES and not np.array_equal(self.framework.bits_of(table[0]), table[1]):
            self._tables.clear()
            return "weight: got other bits after the call, expected the same"
        if 0 in table[1].shape or ids[1].size == 0:
            return None  # nothing, and so nothing of anybody's
        shared = shared_memory(self.framework, out, {"token_ids": ids[0], "weight": table[0]})
        return f"out: got memory of {shared[0]}, expected its own" if shared else None

    def _table(self, probe: Probe, ids: Ids) -> tuple[Bits, Any]:
        """Return a probe's table as bits and as the candidate gets it: in memory of its own."""
        key = Probe(
            dtype=probe.dtype,
            vocab=probe.vocab,
            hidden=probe.hidden,
            table=probe.table,
            seed=probe.seed,
            ids="",
            shape=(),
        )
        if key in self._tables:
            return self._tables[key]
        table = table_of(probe, ids)
        copy = table if probe.table == "sparse" else table.copy()
        entry = table, self.framework.put(copy, probe.dtype, self.device)
        if probe.table not in ("poisoned", "sparse") and table.nbytes <= _CACHED_BYTES:
            if len(self._tables) >= _CACHED:
                self._tables.clear()
            self._tables[key] = entry
        return entry

    def rewritten(self) -> Probe | None:
        """Return a table that a candidate has written into, of those too large to compare after every call."""
        for key, (table, laid) in self._tables.items():
            with self.framework.precision(key.dtype):
                if not np.array_equal(self.framework.bits_of(laid), table):
                    return key
        return None


def answer_of(probe: Probe, ids: Ids, table: Bits) -> Bits:
    """Return the exact bits that a probe must give."""
    rows = exact.gather(ids, table)
    return rows if probe.verb == "forward" else exact.widen(rows, FORMATS[probe.dtype])
