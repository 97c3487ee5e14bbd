"""The contract of the token embedding, version 1, as data: clauses, cases by tier, bad ids, exact answers.

The judge reads everything it knows of the operator from here. Exact answers come from `xref.exact`; the digests in
`embedding_digests.json` pin inputs and answers, so that a machine with one framework is held to the same truth as one
with both, and a change of a single bit of a fixture shows.
"""

from __future__ import annotations

import functools
import importlib.resources
import threading
import weakref
from collections.abc import Hashable
from typing import Any

import msgspec
import numpy as np

from xref import bits, errors, exact
from xref.bits import FORMATS, Bits
from xref.inputs import Ids, make_ids, make_table
from xref.spec import Case, Clause, Tier

__all__ = [
    "CLAUSES",
    "LARGE",
    "OPERATOR",
    "VERBS",
    "VERSION",
    "BadIds",
    "Pinned",
    "answer_digest",
    "bad_ids",
    "build",
    "cases",
    "digests",
    "exact_answers",
    "large_table",
    "pinned",
    "result_dtype",
    "table_digest",
    "verbs_of",
]

OPERATOR = "embedding"
VERSION = 1
VERBS = ("forward", "forward_fp32")

LARGE = 1 << 28  # bytes
"""Tables above this are in memory once: no copy of one is made, and no two of them are held at a time."""

CLAUSES = (
    Clause("EMB-1", "gather", "out[p, :] has the bits of weight[token_ids[p], :]; nothing is rounded, NaNs included."),
    Clause("EMB-2", "widen", "forward_fp32 is the same rows exactly widened to float32; a float64 table: TypeError."),
    Clause("EMB-3", "form", "Shape S + (H,); dtype of the table, or float32 for forward_fp32; device of the table."),
    Clause(
        "EMB-4",
        "ids",
        "An id < 0 or >= V raises IndexError with count, position, value and V, before any narrowing; ids that are no"
        " integers raise TypeError. Under a JAX trace the row is quiet NaN.",
    ),
    Clause("EMB-5", "purity", "Inputs keep their bits; the output shares memory with neither."),
    Clause("EMB-6", "repeat", "The same inputs give the same bits, run after run."),
    Clause("EMB-7", "invariance", "A token's row has the same bits whatever surrounds it in its batch or in memory."),
    Clause("EMB-8", "gradient", "d weight[v, h] is the exact sum of the cotangents of v's positions, rounded once."),
    Clause("EMB-9", "coverage", "Rows that no id names are +0 in every element; every element is written."),
    Clause(
        "EMB-10",
        "gradient invariance",
        "The gradient's bits do not depend on run, layout, padding, order of tokens, or how the batch is split.",
    ),
    Clause(
        "EMB-11",
        "specials",
        "NaN, or +inf with -inf, gives the canonical quiet NaN; one sign of inf that inf; an exact zero sum +0.",
    ),
    Clause("EMB-12", "memory", "No temporary the size of the table: extra memory grows with the tokens, not with V."),
)

# The vocabulary and width of Qwen3-8B's input table.
_QWEN3_VOCAB, _QWEN3_HIDDEN = 151936, 4096


def _of_dtype(dtype: str) -> list[Case]:
    case = functools.partial(Case, dtype=dtype)
    small = functools.partial(case, vocab=300, hidden=33, table="tagged", shape=(257,))
    # The case that all conditions run on: every pattern of the dtype where it has few, a million random ones where it
    # has many; an odd width, so that patterns meet whole vectors and the tail of a row; every id, and some often.
    # Counting through the 256 patterns of float8 would give ids 256 apart the same row: there they are hashed.
    main = functools.partial(case, ids="covering", shape=(1098,), tier=Tier.SMOKE, conditions=True)
    width = FORMATS[dtype].width
    if width <= 16:
        whole = [
            main(vocab=1009, hidden=65, table="patterns" if width == 16 else "hashed"),
            case(vocab=256, hidden=1 << (width - 8), table="patterns", ids="every", shape=(256,)),
        ]
    else:
        whole = [main(vocab=1024, hidden=1025, table="hashed")]
    return [
        *whole,
        *_of_size(dtype),
        small(ids="zipf", tier=Tier.SMOKE),
        *(small(ids=ids) for ids in ("distinct", "hot", "ends", "sorted", "reversed", "equal")),
        small(ids="equal", shape=(0,), tier=Tier.SMOKE),
        small(ids="equal", shape=(2, 0, 3)),
        small(ids="equal", shape=(), tier=Tier.SMOKE),
        *(
            small(ids="zipf", id_dtype=name)
            for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64")
        ),
        case(vocab=1, hidden=1, table="tagged", ids="equal", shape=(2, 3, 5)),
        case(vocab=1, hidden=1185, table="tagged", ids="equal", shape=(2, 3)),
        case(vocab=31, hidden=1185, table="tagged", ids="zipf", shape=(4, 65)),
        case(vocab=100, hidden=1, table="tagged", ids="zipf", shape=(64,)),
        case(vocab=33, hidden=127, table="tagged", ids="distinct", shape=(33,)),
        case(vocab=65537, hidden=3, table="tagged", ids="boundary", shape=(32,)),
        case(vocab=65537, hidden=3, table="tagged", ids="boundary", shape=(32,), id_dtype="uint16"),
        case(vocab=2**24 + 3, hidden=1, table="tagged", ids="boundary", shape=(40,), tier=Tier.SMOKE),
        case(vocab=1000, hidden=256, table="gaussian", ids="zipf", shape=(8, 129)),
    ]


def _of_size(dtype: str) -> list[Case]:
    case = functools.partial(Case, dtype=dtype)
    qwen3 = functools.partial(case, vocab=_QWEN3_VOCAB, hidden=_QWEN3_HIDDEN, table="tagged")
    found = []
    if dtype in ("bfloat16", "float32"):
        found.append(qwen3(ids="zipf_ends", shape=(8, 1024)))
    if dtype in ("bfloat16", "float8_e5m2"):
        # 40000 x 65536 elements are past 2**31; only the rows looked up are resident.
        found.append(case(vocab=40000, hidden=65536, table="sparse", ids="boundary", shape=(18,)))
    if dtype == "bfloat16":  # every id of the largest table, a quarter at a time
        shape = (_QWEN3_VOCAB // 4,)
        found += [qwen3(ids=f"part{n}", shape=shape, tier=Tier.EXHAUSTIVE) for n in range(4)]
    if dtype == "float32":  # all 2**32 patterns, 2**26 at a time
        part = functools.partial(case, vocab=1 << 16, hidden=1 << 10, table="patterns", ids="every", shape=(1 << 16,))
        found += [part(offset=n << 26, tier=Tier.EXHAUSTIVE) for n in range(64)]
    return found


@functools.cache
def _all_cases() -> tuple[Case, ...]:
    return tuple(case for dtype in FORMATS for case in _of_dtype(dtype))


def cases(tier: Tier = Tier.STANDARD, *, dtypes: tuple[str, ...] = ()) -> tuple[Case, ...]:
    """Return the cases of a tier, smaller tiers included, of the table dtypes named (none named: of all)."""
    return tuple(c for c in _all_cases() if tier.includes(c.tier) and (not dtypes or c.dtype in dtypes))


def build(case: Case) -> tuple[Ids, Bits]:
    """Return the token ids and the bits of the table that a case stands for."""
    ids = make_ids(case.ids, case.shape, case.vocab, case.id_dtype)
    return ids, _table(case, ids)


# Tables that are still in use somewhere, by `large_table`; the lock, since cases are built in several threads.
_in_use: weakref.WeakValueDictionary[Hashable, Bits] = weakref.WeakValueDictionary()
_building = threading.Lock()


def _table(case: Case, ids: Ids) -> Bits:
    make = functools.partial(make_table, case.table, case.vocab, case.hidden, FORMATS[case.dtype], offset=case.offset)
    key = large_table(case)
    if key is None:
        return make(touched=ids)
    with _building:
        table = _in_use.get(key)
        if table is None:
            _in_use[key] = table = make()
        return table


def large_table(case: Case) -> Hashable | None:
    """Return what identifies a case's table if that is too large to be in memory twice, and None for others.

    Cases of one such table share it, for as long as one of them is in use; a `sparse` one is hardly in memory at all.
    """
    if case.table == "sparse" or case.vocab * case.hidden * FORMATS[case.dtype].width // 8 <= LARGE:
        return None
    return case.table, case.vocab, case.hidden, case.dtype, case.offset


def verbs_of(dtype: str) -> tuple[str, ...]:
    """Return the verbs that take a table of `dtype`: float64 has no `forward_fp32` (clause EMB-2)."""
    return ("forward",) if dtype == "float64" else VERBS


def exact_answers(ids: Ids, table: Bits, dtype: str) -> dict[str, Bits]:
    """Return the exact bits that each verb must give, read-only, by verb; float64 has no `forward_fp32`."""
    rows = exact.gather(ids, table)
    answers = {verb: rows if verb == "forward" else exact.widen(rows, FORMATS[dtype]) for verb in verbs_of(dtype)}
    for answer in answers.values():
        answer.flags.writeable = False
    return answers


class BadIds(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that a kernel must refuse (clause EMB-4), from public bug reports."""

    name: str
    ids: Any
    """A NumPy array, of the dtype in which the ids are handed over."""
    vocab: int

    def error(self, call: str) -> Exception:
        """Return the exception that must be raised by `call`."""
        if self.ids.dtype.kind not in "iu":
            return errors.bad_type("token_ids", f"dtype {self.ids.dtype.name}", "an integer dtype", call)
        flat = self.ids.reshape(-1).tolist()
        bad = [n for n, value in enumerate(flat) if not 0 <= value < self.vocab]
        return errors.ids_out_of_range(
            count=len(bad),
            total=len(flat),
            position=tuple(int(i) for i in np.unravel_index(bad[0], self.ids.shape)),
            value=flat[bad[0]],
            vocab_size=self.vocab,
            call=call,
        )


@functools.cache
def bad_ids() -> tuple[BadIds, ...]:
    """Return the ids that must be refused: each has been taken, wrapped, clipped or filled by some real kernel."""

    def bad(name: str, ids: object, dtype: str, vocab: int) -> BadIds:
        return BadIds(name=name, ids=np.array(ids, dtype=dtype), vocab=vocab)

    return (
        bad("both sides", [0, 4, 5, -1, -5, -6], "int64", 5),
        bad("both sides, 2-D", [[0, 4], [5, -1]], "int32", 5),
        bad("negatives", range(-4, 4), "int64", 8),
        bad("0-dimensional", 1, "int32", 1),
        bad("empty table", [0], "int64", 0),
        bad("empty table, huge id", [10**17], "int64", 0),
        bad("one past the end", [256], "int64", 256),
        bad("far past the end", [40], "int64", 16),
        bad("int8 that would wrap", [-1], "int8", 300),
        bad("uint8 past a small table", [[7, 255]], "uint8", 200),
        bad("past int32", [1, 2**32 + 1], "int64", 5),
        bad("past int32, negative", [-(2**32) + 1], "int64", 5),
        bad("past uint32", [2**32 + 1], "uint64", 5),
        bad("past int64", [0, 2**64 - 1], "uint64", 5),
        bad("bool", [True, False], "bool", 5),
        bad("float32", [1.0], "float32", 5),
        bad("float16", [2909.0], "float16", 5000),
        bad("complex", [1.0], "complex64", 5),
    )


class Pinned(msgspec.Struct, frozen=True, omit_defaults=True):
    """SHA-256 digests of one case, as `xref.bits.digest` makes them."""

    ids: str
    table: str
    """Of the table; of a gradient case, of its cotangents."""
    answers: dict[str, str]
    """By verb."""

    def __str__(self) -> str:
        parts = {"ids": self.ids, "table": self.table, **self.answers}
        return ", ".join(f"{name} {digest[:12]}" for name, digest in parts.items())


@functools.cache
def pinned() -> dict[str, Pinned]:
    """Return the digests that the package pins, by case id."""
    data = importlib.resources.files("xref.operators.embedding").joinpath("digests.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Pinned])


def table_digest(case: Case, ids: Ids, table: Bits) -> str:
    """Return the digest of a case's table; of a `sparse` one, that of the rows which the ids touch."""
    return bits.digest(table[np.unique(ids)] if case.table == "sparse" else table, case.dtype)


def result_dtype(verb: str, dtype: str) -> str:
    """Return the dtype that a verb gives for a table of `dtype` (clause EMB-3)."""
    return dtype if verb == "forward" else "float32"


def answer_digest(verb: str, dtype: str, answer: Bits) -> str:
    """Return the digest of the bits that a verb gives for a table of `dtype`."""
    return bits.digest(answer, result_dtype(verb, dtype))


def digests(case: Case, ids: Ids, table: Bits, answers: dict[str, Bits]) -> Pinned:
    """Return the digests of a case's inputs and answers."""
    known: dict[tuple[int, str], str] = {}  # a float32 table has one array of both answers, large in the last tier
    made = {}
    for verb, answer in answers.items():
        key = id(answer), result_dtype(verb, case.dtype)
        made[verb] = known[key] = known.get(key) or answer_digest(verb, case.dtype, answer)
    return Pinned(ids=bits.digest(ids, case.id_dtype), table=table_digest(case, ids, table), answers=made)
