"""Ids that a candidate must refuse: out of range, or no integers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from xref import bits as bit
from xref.bits import FORMATS
from xref.contracts import embedding as contract
from xref.inputs import Ids
from xref.judge.conditions import offset, transposed
from xref.spec import Tier

__all__ = ["BadIds", "bad_ids", "hints_of"]


class BadIds(NamedTuple):
    """Ids that must not come back as rows."""

    name: str
    ids: Ids
    vocab: int
    mode: str = "plain"
    """How the candidate is called: `plain`, or one of the framework's modes."""

    @property
    def inside(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of them name a row all the same."""
        return np.array([0 <= int(i) < self.vocab for i in self.ids.reshape(-1)], bool).reshape(self.ids.shape)

    @property
    def integers(self) -> bool:
        """Whether they are integers: of others the dtype is wrong, not a value."""
        return self.ids.dtype.kind in "iu"


def bad_ids(tier: Tier, modes: Iterable[str] = ()) -> Iterator[BadIds]:
    """Yield the ids to try, those for each of the modes too."""
    yield from (BadIds(bad.name, bad.ids, bad.vocab) for bad in contract.bad_ids())
    sizes = (1, 33, 1000, 5000) if tier is not Tier.SMOKE else (33,)
    for vocab, bad in ((300, 300), (300, -1), (4096, 4096), (31, 31), (31, -31), (70000, 70001), (64, 10**6)):
        for tokens in sizes:
            for place in sorted({0, tokens // 2, tokens - 1}):
                ids = np.arange(tokens, dtype=np.int64) % vocab
                ids[place] = bad
                yield BadIds(f"{bad} at {place} of {tokens}", ids, vocab)
                if tokens == 33:
                    yield BadIds(f"{bad} at {place} of 33, int32", ids.astype(np.int32), vocab)
                    yield BadIds(f"{bad} at {place} of 3x11", ids.reshape(3, 11), vocab)
                    yield BadIds(f"{bad} at {place} of 3x1x11, int32", ids.astype(np.int32).reshape(3, 1, 11), vocab)
    for id_dtype, vocab, bad in (("int8", 100, 127), ("uint8", 200, 200), ("int16", 300, -300), ("uint16", 300, 65535),
                                 ("uint32", 300, 2**31), ("uint64", 300, 2**63), ("int8", 300, -128)):  # fmt: skip
        yield BadIds(f"{id_dtype} {bad}", np.array([1, bad, 2], id_dtype), vocab)
        yield BadIds(f"{id_dtype} {bad}, 0-dimensional", np.array(bad, id_dtype), vocab)
    for bad in (2**62 + 1, -(2**62), 2**63 - 1, -(2**63), -100, 301, 511, 512):
        yield BadIds(f"{bad} among 33", np.array([1] * 32 + [bad]), 300)
    for bad in (300, -1):
        ids = np.array([1, bad, 2, 0, bad, 3])
        yield BadIds(f"{bad}, every second", np.repeat(ids, 2)[::2], 300)
        yield BadIds(f"{bad}, transposed", transposed(ids.reshape(2, 3)), 300)
        yield BadIds(f"{bad}, offset by one", offset(ids), 300)
    yield BadIds("float32, none", np.zeros(0, np.float32), 5)
    for dtype in ("float64", "bfloat16"):
        yield BadIds(f"{dtype} ids", bit.from_bits(np.zeros(3, FORMATS[dtype].uint), dtype), 5)
    yield from (BadIds(f"one past the end, {mode}", np.array([0, 300, 1]), 300, mode) for mode in modes)
    yield BadIds("all bad", np.arange(300, 333), 300)
    yield BadIds("bool, 2-D", np.array([[True, False]]), 5)


def hints_of(values: Any, bad: BadIds, table: Any, verb: str, dtype: str) -> tuple[str, ...]:
    """Return what the row that came back for the first bad id is consistent with."""
    if values.ndim == 0 or values.shape != (*bad.ids.shape, table.shape[1]) or bad.vocab == 0:
        return ("bad-ids-unchecked",)
    flat = [int(i) for i in bad.ids.reshape(-1)]
    place = next(n for n, value in enumerate(flat) if not 0 <= value < bad.vocab)
    rows = contract.exact_answers(np.arange(bad.vocab), table, dtype)[verb]
    row, value = values.reshape(-1, table.shape[1])[place], flat[place]
    fmt = FORMATS[contract.result_dtype(verb, dtype)]
    if (row == 0).all() or bit.is_nan(row, fmt).all():
        return ("bad-ids-filled",)
    held = set(np.flatnonzero((rows == row).all(axis=1)).tolist())
    narrowed = {
        # The widest first: what is narrowed further shows in ids that are in range.
        "ids-narrowed-to-32-bits": {value % 2**32, (value + 2**31) % 2**32 - 2**31},
        "ids-narrowed-to-16-bits": {value % 2**16, (value + 2**15) % 2**16 - 2**15},
        "ids-narrowed-to-8-bits": {value % 256, (value + 128) % 256 - 128},
    }
    order = [name for name, kept in narrowed.items() if value not in kept and held & kept]
    if value < 0 and held & {value + bad.vocab, value % bad.vocab}:
        order.insert(0, "negative-ids-wrap")
    if held & {0 if value < 0 else bad.vocab - 1}:
        order.append("ids-clamped")
    return tuple(order) or ("bad-ids-unchecked",)
