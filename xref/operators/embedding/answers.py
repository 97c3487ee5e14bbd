"""The exact answers of the embedding and their digests, which the package pins.

Exact answers come from `xref.exact`. The digests in `digests.json` pin inputs and answers, so that a machine with one
framework is held to the same truth as one with both, and a change of a single bit of an input shows.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from xref import bits, exact
from xref.bits import FORMATS, Bits
from xref.inputs import Ids
from xref.operators.embedding.clauses import result_dtype, verbs_of

if TYPE_CHECKING:
    from xref.operators.embedding.calls.forward import Forward

__all__ = ["Pinned", "answer_digest", "digests", "exact_answer", "exact_answers", "pinned"]


def exact_answer(verb: str, ids: Ids, table: Bits, dtype: str) -> Bits:
    """Return the exact bits that a verb must give, `S + (H,)`, for ids of any shape `S` and a table `[V, H]`."""
    rows = exact.gather(ids, table)
    return rows if verb == "forward" else exact.widen(rows, FORMATS[dtype])


def exact_answers(ids: Ids, table: Bits, dtype: str) -> dict[str, Bits]:
    """Return the exact bits that each verb must give, read-only, by verb; float64 has no `forward_fp32`."""
    rows = exact.gather(ids, table)
    answers = {verb: rows if verb == "forward" else exact.widen(rows, FORMATS[dtype]) for verb in verbs_of(dtype)}
    for answer in answers.values():
        answer.flags.writeable = False
    return answers


class Pinned(msgspec.Struct, frozen=True, omit_defaults=True):
    """SHA-256 digests of one case, as `xref.bits.digest` makes them."""

    ids: str
    table: str
    """Of the table, of a `sparse` one the rows that the ids touch; of a gradient case, of its cotangents."""
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


def answer_digest(verb: str, dtype: str, answer: Bits) -> str:
    """Return the digest of the bits that a verb gives for a table of `dtype`."""
    return bits.digest(answer, result_dtype(verb, dtype))


def digests(case: Forward) -> Pinned:
    """Return the digests of a fixed case's inputs and exact answers."""
    ids, (table, rows) = case.token_ids(), case.weight()
    places = ids if rows is None else np.searchsorted(rows, ids)
    answers = exact_answers(places, table, case.dtype)
    made: dict[str, str] = {}
    if case.dtype == "float32":  # both answers are one array, and a large one in the last tier
        made = dict.fromkeys(answers, answer_digest("forward", "float32", answers["forward"]))
    else:
        made = {verb: answer_digest(verb, case.dtype, answer) for verb, answer in answers.items()}
    return Pinned(ids=bits.digest(ids, case.id_dtype), table=bits.digest(table, case.dtype), answers=made)
