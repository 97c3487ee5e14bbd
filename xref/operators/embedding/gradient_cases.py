"""The contract's fixed gradients: what `verify` compares with the exact answer, and with the digests that are pinned.

A case says something about order only if another order of a float32 sum changes some elements of the result:
`reordered_share` is their share. It must not be zero for the cases that the invariance conditions run on.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from xref import bits, errors, exact
from xref.bits import FORMATS, Bits
from xref.inputs import Ids
from xref.operators.embedding.answers import Pinned
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.calls.sums import answer as exact_answer
from xref.operators.embedding.cotangents import SPECIALS
from xref.spec import Tier

__all__ = ["GradientCase", "cases", "digests", "reordered_share"]


@dataclasses.dataclass(frozen=True)
class GradientCase:
    """One fixed gradient, and when it is asked for."""

    call: Gradient
    tier: Tier = Tier.STANDARD
    forms: bool = False
    """Whether the gradient is also taken by rows, by accumulators and by differentiation."""
    conditions: bool = False
    """Whether the invariance conditions run on it."""

    @property
    def id(self) -> str:
        """The call's name, unique in the contract."""
        return self.call.id


# The pairs that all forms and conditions run on; a float32 sum of float8_e4m3fn, say, is exact, and no order shows.
_ORDERED = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"))


def _call(source: str, result: str, values: str, **how: Any) -> Gradient:
    check = "EMB-11" if values in SPECIALS else "EMB-8"
    return Gradient(check=check, verb="backward", source=source, result=result, values=values, **how)


def _of_pair(source: str, result: str) -> list[GradientCase]:
    # Every pair is compiled anew, which takes seconds: the standard tier has those of training.
    trained = result == "bfloat16" or (source, result) in (("float32", "float32"), ("float16", "float16"))
    tier = Tier.STANDARD if trained else Tier.EXHAUSTIVE
    ordered = (source, result) in _ORDERED
    first = GradientCase(
        _call(source, result, "cancelling", vocab=40), Tier.SMOKE if ordered else tier, ordered, ordered
    )
    families = ("equal", "fractions", "gaussian", "wide", "subnormal", "ties", *SPECIALS)
    return [first, *(GradientCase(_call(source, result, values), tier) for values in families)]


def _of_shape() -> list[GradientCase]:
    call = functools.partial(_call, "bfloat16", "bfloat16")
    of_padding = call("cancelling", vocab=40, ids="every", padding_idx=0)
    tall = _call("float32", "bfloat16", "cancelling", vocab=151936, hidden=64, ids="zipf_ends", shape=(8, 32))
    return [
        GradientCase(call("equal", vocab=2, hidden=1, ids="equal", shape=(100_000,))),
        GradientCase(call("cancelling", vocab=1, hidden=1, ids="equal", shape=(1 << 16,))),
        GradientCase(call("wide", vocab=31, hidden=1185, shape=(3, 2, 11))),
        GradientCase(call("gaussian", vocab=5, shape=())),
        GradientCase(call("gaussian", vocab=5, shape=(0,))),
        GradientCase(call("cancelling", vocab=300, ids="hot", shape=(32, 8))),
        GradientCase(call("cancelling", vocab=256, ids="distinct")),
        GradientCase(of_padding, forms=True),
        GradientCase(tall),
    ]


@functools.cache
def _all_cases() -> tuple[GradientCase, ...]:
    same = [(name, name) for name in FORMATS]
    narrowed = [("float32", name) for name in FORMATS if name not in ("float64", "float32")]
    return tuple([case for pair in same + narrowed for case in _of_pair(*pair)] + _of_shape())


def cases(tier: Tier = Tier.STANDARD, *, dtypes: tuple[str, ...] = ()) -> tuple[GradientCase, ...]:
    """Return the cases of a tier, smaller tiers included, whose result is one of the dtypes named (none named: any)."""
    return tuple(
        case for case in _all_cases() if tier.includes(case.tier) and (not dtypes or case.call.result in dtypes)
    )


def digests(call: Gradient, answer: Bits | None = None) -> Pinned:
    """Return the digests of a fixed call's inputs and of its `[V, H]` answer, which is worked out if None."""
    ids, cotangent = call.arrays()
    answer = exact_answer(call, ids, cotangent) if answer is None else answer
    return Pinned(
        ids=bits.digest(ids, "int64"),
        table=bits.digest(cotangent, call.source),
        answers={"grad_weight": bits.digest(answer, call.result)},
    )


def reordered_share(call: Gradient, ids: Ids, cotangent: Bits) -> float:
    """Return the share of the named rows' elements whose bits change when a float32 sum runs backwards.

    The float32 sums are rounded to the result dtype by the oracle's one rounding: what counts is what a user sees.

    Raises:
        ValueError: there are no tokens, so there is no order.
    """
    if ids.size == 0:
        raise errors.bad_value("ids", "none", "at least one", "reordered_share")
    single, target = FORMATS["float32"], FORMATS[call.result]
    flat = ids.reshape(-1)
    # To float32 by the oracle: rounded once where it is narrower than the cotangents.
    rounded = {int(e): exact.sum_rounded([int(e)], FORMATS[call.source], single) for e in np.unique(cotangent).tolist()}
    values = np.vectorize(rounded.__getitem__, otypes=[np.uint32])(cotangent).view(np.float32).reshape(flat.size, -1)
    sums = []
    with np.errstate(over="ignore", invalid="ignore"):
        for order in (slice(None), slice(None, None, -1)):
            total = np.zeros((call.vocab, call.hidden), dtype=np.float32)
            np.add.at(total, flat[order], values[order])
            named = total[np.unique(flat)].view(np.uint32).reshape(-1)
            sums.append([exact.sum_rounded([int(e)], single, target) for e in named])
    return float(np.mean(np.array(sums[0]) != np.array(sums[1])))
