"""Which rows, columns and tokens of an output are wrong, and which row of the table came back for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from xref import exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.inputs import Ids
from xref.operators.embedding import faults
from xref.spec import Fault

__all__ = ["Found", "Wrong", "from_columns", "from_rows", "from_tokens"]

_LOOKED_AT = 4096  # wrong tokens of one call
_FEW = 8  # ids that are no kind of their own

Found = tuple[float, Fault, str]
"""How much it speaks for a fault, the fault, and what was seen."""


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A wrong output beside the right one: rows `[T, H]`, and the ids that they were asked for by."""

    ids: Ids
    """int64, `[T]`."""
    usual: bool
    """Whether they were int32 or int64."""
    table: Bits
    """Every row's exact answer, `[V, H]`."""
    got: Bits
    expected: Bits
    source: FloatFormat
    """Of the table."""
    fmt: FloatFormat
    """Of the output."""

    @property
    def differs(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """The elements that are wrong, `[T, H]`."""
        return self.got != self.expected

    @property
    def tokens(self) -> Ids:
        """The tokens that are wrong."""
        return np.flatnonzero(self.differs.any(axis=1))[:_LOOKED_AT]


def _held(wrong: Wrong) -> dict[int, Ids]:
    """Return, by wrong token, the rows of the table that its output has the bits of: whole rows only."""
    places: dict[bytes, list[int]] = {}
    for row, elements in enumerate(np.ascontiguousarray(wrong.table)):
        places.setdefault(elements.tobytes(), []).append(row)
    if len(places) < 0.9 * wrong.table.shape[0]:
        return {}  # where rows are alike, one of them tells nothing
    found = {}
    for token in wrong.tokens.tolist():
        rows = places.get(np.ascontiguousarray(wrong.got[token]).tobytes())
        if rows:
            found[token] = np.array(rows)
    return found


def _moves(last: int) -> list[tuple[float, Fault, Callable[[int], int], str]]:
    """Return what may have been done to an id of a table whose last row has the number `last`."""
    count = last + 1
    return [
        (0.99, faults.IDS_NARROWED_TO_8_BITS, lambda i: i % 256, "modulo 256"),
        (0.99, faults.IDS_NARROWED_TO_8_BITS, lambda i: i % 128, "modulo 128"),
        (0.99, faults.IDS_NARROWED_TO_8_BITS, lambda i: ((i + 128) % 256 - 128) % count, "as signed 8 bits"),
        (0.99, faults.IDS_NARROWED_TO_16_BITS, lambda i: i % 65536, "modulo 65536"),
        (0.99, faults.IDS_NARROWED_TO_16_BITS, lambda i: i % 32768, "modulo 32768"),
        (0.99, faults.IDS_NARROWED_TO_16_BITS, lambda i: ((i + 2**15) % 2**16 - 2**15) % count, "as signed 16 bits"),
        (0.985, faults.IDS_THROUGH_FLOAT, _by_float("bfloat16", last), "rounded to bfloat16"),
        (0.985, faults.IDS_THROUGH_FLOAT, _by_float("float16", last), "rounded to float16"),
        (0.985, faults.IDS_THROUGH_FLOAT, _by_float("float32", last), "rounded to float32"),
        (0.95, faults.PACKED_PAIRS, lambda i: i ^ 1, "the other one of its pair"),
        (0.95, faults.PACKED_PAIRS, lambda i: i & ~1, "the even one of its pair"),
        (0.93, faults.ROW_OFF_BY_ONE, lambda i: max(i - 1, 0), "the one before"),
        (0.93, faults.ROW_OFF_BY_ONE, lambda i: (i - 1) % count, "the one before"),
        (0.93, faults.ROW_OFF_BY_ONE, lambda i: min(i + 1, last), "the one after"),
        (0.93, faults.ROW_OFF_BY_ONE, lambda i: (i + 1) % count, "the one after"),
    ]


def _by_float(name: str, last: int) -> Callable[[int], int]:
    fmt = FORMATS[name]

    def move(value: int) -> int:
        rounded = exact.round_once(value, 0, fmt)
        if rounded > fmt.largest_finite:
            return last
        significand, exponent = exact.decode(rounded, fmt)
        return min(significand << exponent if exponent >= 0 else significand >> -exponent, last)

    return move


def from_rows(wrong: Wrong) -> Iterator[Found]:
    """Another row of the table came back: which one?"""
    held, tokens, ids = _held(wrong), wrong.tokens, wrong.ids
    if len(held) < 0.8 * tokens.size or not held:
        return
    token, rows = next(iter(held.items()))
    what = f"out[{token}] holds row {rows[0]}, asked for {ids[token]}"
    right = np.setdiff1d(np.arange(ids.size), tokens)[:_LOOKED_AT]
    asked, kept = set(ids[tokens].tolist()), set(ids[right].tolist())
    last = wrong.table.shape[0] - 1
    for weight, fault, move, how in _moves(last):
        narrowed = fault in (faults.IDS_NARROWED_TO_8_BITS, faults.IDS_NARROWED_TO_16_BITS)
        # It must say what came back for every wrong token, and leave the right ones where they are.
        explained = all(move(int(ids[t])) in rows for t, rows in held.items()) and all(move(i) == i for i in kept)
        if explained and (wrong.usual or not narrowed):
            # One id alone may be anything; the same step for several is no accident.
            sure = len(asked) > 1 or (weight > 0.98 and last >= 2**16)
            yield weight if sure else weight - 0.25, fault, f"{what}: {how}"
    places: list[tuple[float, Fault, Callable[[int], int], str]] = [
        (0.8, faults.NEIGHBOUR_DEPENDENT, lambda t: t - 1, "that of the token before"),
        (0.8, faults.NEIGHBOUR_DEPENDENT, lambda t: t + 1, "that of the token after"),
        (0.75, faults.POSITION_DEPENDENT, lambda t: 0, "that of the first token"),
        (0.75, faults.POSITION_DEPENDENT, lambda t: ids.size - 1, "that of the last token"),
    ]
    for weight, fault, place, how in places:
        if all(0 <= place(t) < ids.size and int(ids[place(t)]) in rows for t, rows in held.items()):
            yield weight, fault, f"{what}: {how}"
    if len(asked) <= _FEW and kept and not asked & kept:
        yield 0.85, faults.SOME_ROWS_WRONG, f"{what}; only ids {sorted(asked)} are wrong"
    elif asked & kept:
        yield 0.65, faults.POSITION_DEPENDENT, f"{what}; other tokens of the same ids are right"
    if asked == {last} and last % 2 == 0 and all(last - 1 in rows for rows in held.values()):
        yield 0.98, faults.PACKED_PAIRS, f"{what}: the last row of an odd number of them has no pair"
    if all(last in rows for rows in held.values()) and kept and min(asked) > max(kept):
        yield 0.9, faults.LAST_ROWS_LOST, f"{what}: the last one"


def from_columns(wrong: Wrong) -> Iterator[Found]:
    """Only some columns are wrong, the same ones in every row; or the row's elements are in other columns."""
    columns, hidden = np.flatnonzero(wrong.differs.any(axis=0)), wrong.expected.shape[1]
    moved = _moved(wrong)
    if moved is not None:
        yield 0.9, faults.COLUMNS_MOVED, moved
    fault = faults.COLUMNS_PAST_A_TILE_WRONG
    before = wrong.got[wrong.tokens, : columns[0]] if columns.size else wrong.got[:0]  # right, and not by being zero
    if before.any() and columns[0] == hidden - columns.size:
        yield 0.92, fault, f"columns {columns[0]} to {hidden - 1} are wrong, those before are right"
    elif 0 < columns.size <= hidden // 2 and wrong.tokens.size > 0.5 * wrong.ids.size:
        yield 0.5, fault, f"columns {columns[:6].tolist()} are wrong, others are right"


def _moved(wrong: Wrong) -> str | None:
    """Return where an element of a wrong row came from, if it is in that row's right answer elsewhere."""
    if wrong.expected.shape[1] < 2 or not wrong.tokens.size:
        return None
    token = int(wrong.tokens[0])
    got, expected = wrong.got[token], wrong.expected[token]
    if (np.sort(got) != np.sort(expected)).any():
        return None
    column = int(np.flatnonzero(got != expected)[0])
    return f"out[{token}, {column}] holds column {int(np.flatnonzero(expected == got[column])[0])}"


def from_tokens(wrong: Wrong) -> Iterator[Found]:
    """Only some tokens are wrong: the last ones, every n-th, those of some ids."""
    tokens, count = wrong.tokens, wrong.ids.size
    asked, right = set(wrong.ids[tokens].tolist()), set(np.delete(wrong.ids, tokens).tolist())
    zero = bool((_magnitudes(wrong.got[tokens], wrong.fmt) == 0).all())
    how = "zeros" if zero else "other bits"
    if asked and right and not asked & right:
        one = asked <= {0, 1} or (len(asked) == 1 and min(asked) < max(right))
        if zero and one:
            yield 0.975, faults.PADDING_ID_ZEROED, f"the row of id {min(asked)} came back as zeros"
        few = len(asked) <= _FEW and len(asked) * 8 < len(right) and _ordinary(wrong)
        what = f"only ids {sorted(asked)[:_FEW]} are wrong: {how}"
        yield 0.9 if few else 0.45, faults.SOME_ROWS_WRONG, what
        if zero and min(asked) > max(right):
            yield 0.975, faults.LAST_ROWS_LOST, f"ids from {min(asked)} on give {how}"
    every = np.flatnonzero(wrong.differs.any(axis=1))
    if not asked & right or not 0 < every.size < count:
        return
    if every[0] > 0 and every.size > 0.9 * (count - every[0]):
        what = f"tokens {tokens[0]} to {count - 1} are wrong, those before are right"
        yield 0.98, faults.TOKENS_PAST_A_TILE_WRONG, what
    else:
        what = f"tokens {tokens[:6].tolist()} are wrong, others of the same ids are right"
        yield 0.6, faults.POSITION_DEPENDENT, what


def _ordinary(wrong: Wrong) -> bool:
    """Return whether most of what is wrong are ordinary numbers: no kind of element that was lost explains it."""
    magnitude = _magnitudes(wrong.expected[wrong.differs], wrong.fmt)
    return bool(((magnitude > wrong.fmt.mantissa) & (magnitude <= wrong.fmt.largest_finite)).mean() > 0.5)


def _magnitudes(elements: Bits, fmt: FloatFormat) -> Any:
    return elements & fmt.uint.type(fmt.sign - 1)
