"""The contract's fixed calls as those who verify the goldens see them: their names, their digests, their tables."""

from __future__ import annotations

import functools
from typing import Any

from xref import bits
from xref.bits import FORMATS, Bits
from xref.operators.embedding import answers, cases, gradient_cases
from xref.operators.embedding.answers import Pinned, pinned
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, result_dtype
from xref.operators.embedding.families import LARGE
from xref.operators.embedding.gradient_cases import reordered_share
from xref.spec import Call, Tier

__all__ = ["digest_of", "digests_of", "large_table", "name_of", "pinned", "weakness_of"]


@functools.cache
def _names() -> dict[str, bool]:
    """Return the names of all fixed calls, and whether the invariance conditions run on them."""
    names = {case.id: case.conditions for case in cases.cases(Tier.EXHAUSTIVE)}
    return names | {case.id: case.conditions for case in gradient_cases.cases(Tier.EXHAUSTIVE)}


def name_of(call: Call) -> str:
    """Return the name that the digests of a fixed call are pinned under; empty for every other call."""
    if type(call) is Forward:
        plain = call.plain() == call and call.check == CLAUSES_OF_EVERY_CALL.accuracy[call.verb]
    elif type(call) is Gradient:
        plain = not call.way and not call.varied and call.check == call.accuracy
    else:
        return ""
    return call.id if plain and call.id in _names() else ""


@functools.lru_cache(64)
def _of_forward(call: Forward) -> Pinned:
    return answers.digests(call)


@functools.lru_cache(64)
def _of_gradient(call: Gradient) -> Pinned:
    return gradient_cases.digests(call)


def digests_of(call: Forward | Gradient) -> Pinned:
    """Return the digests of a call's inputs and exact answers, by verb."""
    if isinstance(call, Gradient):
        return _of_gradient(Gradient(check="", verb="backward", **_shared_fields(call)))
    return _of_forward(Forward(check="", **_shared_fields(call)))


def _shared_fields(call: Forward | Gradient) -> dict[str, Any]:
    """Return what calls of one name have in common."""
    return {name: getattr(call, name) for name in call.__struct_fields__ if name not in ("check", "verb", "repeats")}


def digest_of(call: Forward | Gradient, got: Bits) -> str:
    """Return the digest of what a call gave."""
    return bits.digest(got, call.result if isinstance(call, Gradient) else result_dtype(call.verb, call.dtype))


def weakness_of(call: Forward | Gradient) -> str:
    """Return what is wrong with a fixed call as evidence, if anything is.

    One on which invariance is to be shown must be able to show a lack of it: another order must change a float32 sum.
    """
    if isinstance(call, Gradient) and _names()[call.id] and reordered_share(call, *call.arrays()) == 0:
        return f"{call.id}: got 0 % of elements that another order changes, expected more"
    return ""


def large_table(call: Call) -> str:
    """Return what identifies the table of a call, where it is so large that one alone fits into memory, or nothing."""
    if not isinstance(call, Forward) or call.table == "sparse":
        return ""
    large = call.vocab * call.hidden * FORMATS[call.dtype].width // 8 > LARGE
    return f"{call.dtype} {call.table} {call.vocab}x{call.hidden} {call.offset}" if large else ""
