"""Whole gradients that a wrong one may be: each is what one fault would make of all cotangents, compared everywhere.

An element by itself tells little, for a wrong sum has many explanations; a model of the fault that gives every element
of the gradient, right ones included, is another matter. For likeness only: everything here is float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from xref.bits import FORMATS, Bits, from_bits
from xref.inputs import Ids

__all__ = ["models_of"]

Values = np.ndarray[Any, np.dtype[np.float64]]
Model = tuple[str, str, Ids, Values]


def models_of(ids: Ids, elements: Bits, got: Bits, source: str, result: str) -> Iterator[tuple[str, str]]:
    """Yield the fault, and what was seen, of each model that gives the whole gradient.

    Args:
        ids: any shape `S`.
        elements: bits of the cotangents, `S + (H,)`, of the dtype `source`.
        got: bits of the gradient, `[V, H]`, of the dtype `result`.
        source: as above.
        result: as above.
    """
    with np.errstate(all="ignore"):
        values, held = _floats(elements, source), _floats(got, result)
        flat = ids.reshape(-1).astype(np.int64)
        if not ids.size or not np.isfinite(values).all():
            return
        rows = values.reshape(flat.size, -1)
        models = [*_models(ids, values, source), *_cut(flat, rows, held, result)]
        for fault, seen, of_ids, of_rows in models:
            if _same(_sums(of_ids, of_rows, got.shape[0]), _sums(of_ids, abs(of_rows), got.shape[0]), held, result):
                yield fault, seen


def _models(ids: Ids, values: Values, source: str) -> Iterator[Model]:
    flat, rows = ids.reshape(-1).astype(np.int64), values.reshape(ids.size, -1)
    starts = np.concatenate(([True], flat[1:] != flat[:-1]))
    yield "duplicates-overwrite", "of the same id several times in a row, one token counts", flat[starts], rows[starts]
    for name, places in (("last", _last(flat)), ("first", np.unique(flat, return_index=True)[1])):
        yield "duplicates-overwrite", f"a row holds the cotangent of its {name} token alone", flat[places], rows[places]
    if ids.ndim == 2:
        swapped = values.transpose(1, 0, 2).reshape(rows.shape)
        yield "cotangent-strides-ignored", "cotangents are read as if batch and sequence were exchanged", flat, swapped
        turned = ids.T.reshape(-1).astype(np.int64)
        yield "ids-strides-ignored", "ids are read as if batch and sequence were exchanged", turned, rows
        if ids.shape[0] == ids.shape[1]:  # which of the two cannot be told: a transposed square
            yield "cotangent-strides-ignored", "of square ids, the transposed ones get the cotangents", turned, rows
    for narrow in ("bfloat16", "float16"):
        if FORMATS[source].width > FORMATS[narrow].width:
            cast = rows.astype(from_bits(np.zeros(0, FORMATS[narrow].uint), narrow).dtype).astype(np.float64)
            yield "cotangent-cast-first", f"a row holds the sum of cotangents rounded to {narrow} first", flat, cast
    for step in (-1, 1):
        yield "row-off-by-one", f"row v holds the sum of row v {-step:+d}", flat + step, rows
    yield "gradient-scaled", "rows hold their sum over the number of tokens", flat, rows / flat.size


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
        yield "tokens-past-a-tile-wrong", seen, flat[:end], rows[:end]


def _roundest(least: int, most: int) -> int:
    """Return the number of the range that the largest power of two divides."""
    step = 1
    while -(-least // (2 * step)) * 2 * step <= most and 2 * step <= max(most, 1):
        step *= 2
    return -(-least // step) * step


def _last(flat: Ids) -> Ids:
    return flat.size - 1 - np.unique(flat[::-1], return_index=True)[1]


def _sums(flat: Ids, rows: Values, vocab: int) -> Values:
    sums = np.zeros((vocab, rows.shape[1]))
    np.add.at(sums, np.clip(flat, 0, vocab - 1), rows)  # a model may point past an end
    return sums


def _tolerance(sums: Values, scale: Values, result: str) -> Values:
    """Return how far a sum of the same tokens, in float32 and rounded once, may be from this one."""
    unit = 2.0 ** -FORMATS[result].mantissa_bits
    tolerance: Values = 2 * unit * abs(sums) + 2.0**-20 * scale + 2.0 ** FORMATS[result].quantum
    return tolerance


def _same(model: Values, scale: Values, held: Values, result: str) -> bool:
    return bool((abs(model - held) <= _tolerance(model, scale, result)).all())


def _floats(elements: Bits, dtype: str) -> Values:
    return from_bits(np.ascontiguousarray(elements), dtype).astype(np.float64)
