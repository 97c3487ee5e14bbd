"""Whole gradients that a wrong one may be: each is what one fault would make of all cotangents, compared everywhere.

An element by itself tells little, for a wrong sum has many explanations; a model of the fault that gives every element
of the gradient, right ones included, is another matter. For likeness only: all but sums of integers is float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xref.bits import FORMATS, Bits, from_bits
from xref.inputs import Ids
from xref.operators.embedding import faults
from xref.spec import Fault

__all__ = ["models_of"]

Values = np.ndarray[Any, np.dtype[np.float64]]
Model = tuple[Fault, str, Ids, Values]


def models_of(ids: Ids, cotangent: Bits, got: Bits, source: str, result: str) -> Iterator[tuple[Fault, str]]:
    """Yield the fault, and what was seen, of each model that gives the whole gradient.

    Args:
        ids: any shape `S`.
        cotangent: bits of the dtype `source`, `S + (H,)`.
        got: bits of the gradient, `[V, H]`, of the dtype `result`.
        source: as above.
        result: as above.
    """
    flat = ids.reshape(-1).astype(np.int64)
    if not flat.size or not got.size:
        return
    elements = cotangent.reshape(flat.size, -1)
    if source == result:
        added = np.zeros_like(got)
        np.add.at(added, flat, elements)  # which wraps, as integers of that width do
        if np.array_equal(added, got):
            yield faults.BITS_ADDED_AS_INTEGERS, "rows hold the sum of their cotangents' bit patterns, as integers"
    with np.errstate(all="ignore"):
        rows, held = _floats(elements, source), _floats(got, result)
        if not np.isfinite(rows).all():
            return
        for fault, seen, of_ids, of_rows in (*_models(ids, flat, rows, source), *_cut(flat, rows, held, result)):
            model, scale = _sums(of_ids, of_rows, len(got)), _sums(of_ids, abs(of_rows), len(got))
            if (abs(model - held) <= _tolerance(model, scale, result)).all():
                yield fault, seen


def _models(ids: Ids, flat: Ids, rows: Values, source: str) -> Iterator[Model]:
    starts = np.concatenate(([True], flat[1:] != flat[:-1]))
    overwrite = faults.DUPLICATES_OVERWRITE
    yield overwrite, "of the same id several times in a row, one token counts", flat[starts], rows[starts]
    first, last = np.unique(flat, return_index=True)[1], flat.size - 1 - np.unique(flat[::-1], return_index=True)[1]
    for name, places in (("last", last), ("first", first)):
        yield overwrite, f"a row holds the cotangent of its {name} token alone", flat[places], rows[places]
    if ids.ndim == 2:
        swapped = rows.reshape(*ids.shape, -1).transpose(1, 0, 2).reshape(rows.shape)
        how = "read as if batch and sequence were exchanged"
        yield faults.COTANGENT_STRIDES_IGNORED, f"cotangents are {how}", flat, swapped
        turned = ids.T.reshape(-1).astype(np.int64)
        yield faults.IDS_STRIDES_IGNORED, f"ids are {how}", turned, rows
        if ids.shape[0] == ids.shape[1]:  # which of the two cannot be told: a transposed square
            what = "of square ids, the transposed ones get the cotangents"
            yield faults.COTANGENT_STRIDES_IGNORED, what, turned, rows
    for narrow in ("bfloat16", "float16"):
        if FORMATS[source].width > FORMATS[narrow].width:
            cast = rows.astype(from_bits(np.zeros(0, FORMATS[narrow].uint), narrow).dtype).astype(np.float64)
            what = f"a row holds the sum of cotangents rounded to {narrow} first"
            yield faults.COTANGENT_CAST_FIRST, what, flat, cast
    for step in (-1, 1):
        yield faults.ROW_OFF_BY_ONE, f"row v holds the sum of row v {-step:+d}", flat + step, rows
    yield faults.GRADIENT_SCALED, "rows hold their sum over the number of tokens", flat, rows / flat.size


def _cut(flat: Ids, rows: Values, held: Values, result: str) -> Iterator[Model]:
    """Yield the model of a batch that is cut short, where a row that lost tokens tells where."""
    total, scale = _sums(flat, rows, held.shape[0]), _sums(flat, abs(rows), held.shape[0])
    off = np.argwhere(abs(held - total) > _tolerance(total, scale, result))
    if not off.size:
        return
    row, column = off[-1]
    places = np.flatnonzero(flat == row)
    prefixes = np.concatenate(([0.0], np.cumsum(rows[places, column])))[:-1]
    near = np.flatnonzero(abs(prefixes - held[row, column]) <= _tolerance(prefixes, scale[row, column], result))
    for count in near[::-1][:8]:  # the latest first: tokens of zero cotangent change no prefix
        least = int(places[count - 1]) + 1 if count else 0
        # Between the last token that counts and the first that does not; a power of two if there is one.
        end = _roundest(least, int(places[count]))
        seen = f"only the first {end} of {flat.size} tokens add anything"
        yield faults.TOKENS_PAST_A_TILE_WRONG, seen, flat[:end], rows[:end]


def _roundest(least: int, most: int) -> int:
    """Return the number of the range that the largest power of two divides."""
    step = 1
    while -(-least // (2 * step)) * 2 * step <= most and 2 * step <= max(most, 1):
        step *= 2
    return -(-least // step) * step


def _sums(flat: Ids, rows: Values, vocab: int) -> Values:
    sums = np.zeros((vocab, rows.shape[1]))
    np.add.at(sums, np.clip(flat, 0, vocab - 1), rows)  # a model may point past an end
    return sums


def _tolerance(sums: Values, scale: Values, result: str) -> Values:
    """Return how far a sum of the same tokens, in float32 and rounded once, may be from this one."""
    unit = 2.0 ** -FORMATS[result].mantissa_bits
    tolerance: Values = 2 * unit * abs(sums) + 2.0**-20 * scale + 2.0 ** FORMATS[result].quantum
    return tolerance


def _floats(elements: Bits, dtype: str) -> Values:
    return from_bits(np.ascontiguousarray(elements), dtype).astype(np.float64)
