"""The gradient's half of the embedding contract as data: cases, how their cotangents come about, exact answers.

A case says something about order only if another order of a float32 sum changes some elements of the result:
`reordered_share` is their share. It is computed for the cases that the invariance conditions run on
(`GradientCase.conditions`), and none is an error there; of the others it is not asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from xref import bits, errors, exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.contracts.embedding import Pinned
from xref.inputs import Ids, make_ids, make_table, words
from xref.spec import Tier

__all__ = ["GradientCase", "build", "cases", "digests", "exact_answer", "reordered_share"]

_Make = Callable[[int, int, FloatFormat], Bits]


class GradientCase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fixed-seed input of the gradient: token ids of a shape, and the bits of `S + (hidden,)` cotangents."""

    source: str
    """Dtype of the cotangents."""
    result: str
    """Dtype of the gradient: the table's."""
    values: str
    """Family of the cotangents."""
    vocab: int = 100
    hidden: int = 8
    ids: str = "zipf"
    shape: tuple[int, ...] = (256,)
    padding_idx: int | None = None
    clause: str = "EMB-8"
    """What the case is evidence for: `EMB-8`, or `EMB-11` where it holds specials."""
    tier: Tier = Tier.STANDARD
    forms: bool = False
    """Whether the gradient is also taken by rows, by accumulators and by differentiation."""
    conditions: bool = False
    """Whether the invariance conditions run on it."""

    @property
    def id(self) -> str:
        """A readable name, unique in the contract: `bfloat16-to-bfloat16-wide-100x8-zipf-256`."""
        shape = "x".join(map(str, self.shape)) if self.shape else "scalar"
        padding = "" if self.padding_idx is None else f"-padding{self.padding_idx}"
        pair = f"{self.source}-to-{self.result}"
        return f"{pair}-{self.values}-{self.vocab}x{self.hidden}-{self.ids}-{shape}{padding}"


# Families: each returns the bits of `[tokens, hidden]` elements.


def _random(tokens: int, hidden: int, fmt: FloatFormat) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return words(tokens * hidden, seed=11).reshape(tokens, hidden)


def _one(fmt: FloatFormat) -> int:
    return fmt.bias << fmt.mantissa_bits


def _equal(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All 1.0: a sum in the table's own dtype stops growing where its spacing is 2."""
    return np.full((tokens, hidden), _one(fmt), dtype=fmt.uint)


def _fractions(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All just above 1/128 with the last bit set: no partial sum is short."""
    field = max(fmt.bias - 7, 1)
    return np.full((tokens, hidden), field << fmt.mantissa_bits | 1, dtype=fmt.uint)


def _gaussian(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    return make_table("gaussian", tokens, hidden, fmt)


def _wide(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Any finite element: all signs, exponents and mantissas alike, subnormals included."""
    magnitude = _random(tokens, hidden, fmt) % np.uint64(fmt.largest_finite + 1)
    sign = (_random(hidden, tokens, fmt).T & np.uint64(1)) * np.uint64(fmt.sign)
    return (magnitude | sign).astype(fmt.uint)


def _cancelling(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Large, small and minus large in turn, so that a sum that rounds on the way loses what is left at the end."""
    small = _gaussian(tokens, hidden, fmt)
    field = min(fmt.bias + 20, fmt.largest_finite >> fmt.mantissa_bits) - 1
    large = np.full((tokens, hidden), field << fmt.mantissa_bits, dtype=fmt.uint)
    turn = np.arange(tokens)[:, None] % 3
    sign = np.where(turn == 2, fmt.uint.type(fmt.sign), fmt.uint.type(0))
    return np.where(turn == 1, small, large | sign)


def _turns(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """One 1.0 in each token, its column in turn: whoever loses, repeats or misplaces a single token has another sum."""
    turn = np.arange(tokens)[:, None] % hidden == np.arange(hidden)
    return np.where(turn, fmt.uint.type(_one(fmt)), fmt.uint.type(0))


def _late(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """All about 1/128, and a 4.0 at the end: whoever stops early misses most of the sum."""
    elements = _fractions(tokens, hidden, fmt)
    elements[-1:] = (fmt.bias + 2) << fmt.mantissa_bits
    return elements


def _subnormal(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    sign = (_random(hidden, tokens, fmt).T & np.uint64(1)) * np.uint64(fmt.sign)
    return (_random(tokens, hidden, fmt) % np.uint64(fmt.mantissa + 1) | sign).astype(fmt.uint)


def _ties(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """1, half a unit of it in the last place, and the smallest subnormal up, down or not at all: about half-way."""
    half = (fmt.bias - fmt.mantissa_bits - 1) << fmt.mantissa_bits
    rows = np.array([_one(fmt), max(half, 1), 1, fmt.sign | 1], dtype=fmt.uint)
    return np.broadcast_to(rows[np.arange(tokens) % 4][:, None], (tokens, hidden)).copy()


def _edge(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """The largest finite element of either sign, and half a unit in its last place: overflow or not, by one bit."""
    field = fmt.largest_finite >> fmt.mantissa_bits
    half = max(field - fmt.mantissa_bits - 1, 1) << fmt.mantissa_bits
    rows = np.array([fmt.largest_finite, half, fmt.largest_finite | fmt.sign, fmt.largest_finite], dtype=fmt.uint)
    return rows[(_random(tokens, hidden, fmt) % np.uint64(4)).astype(np.int64)]


def _negative_zero(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    return np.full((tokens, hidden), fmt.sign, dtype=fmt.uint)


def _specials(tokens: int, hidden: int, fmt: FloatFormat) -> Bits:
    """Gaussian values with now and then a NaN, quiet or signalling, and infinities of both signs."""
    found = _gaussian(tokens, hidden, fmt)
    kinds = [fmt.nan, fmt.nan | fmt.sign]
    if fmt.has_inf:
        kinds += [fmt.exponent, fmt.exponent | fmt.sign, fmt.exponent, fmt.exponent | 1]
    draw = _random(tokens, hidden, fmt) % np.uint64(8 * len(kinds))
    for n, kind in enumerate(kinds):
        found[draw == n] = kind
    return found


_FAMILIES: dict[str, _Make] = {
    "equal": _equal,
    "fractions": _fractions,
    "gaussian": _gaussian,
    "turns": _turns,
    "late": _late,
    "wide": _wide,
    "cancelling": _cancelling,
    "subnormal": _subnormal,
    "ties": _ties,
    "edge": _edge,
    "negative-zero": _negative_zero,
    "specials": _specials,
}
_SPECIAL = ("edge", "negative-zero", "specials")


# The pairs that all forms and conditions run on; a float32 sum of float8_e4m3fn, say, is exact, and no order shows.
_ORDERED = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"))


def _of_pair(source: str, result: str) -> list[GradientCase]:
    # Every pair is compiled anew, which takes seconds: the standard tier has those of training.
    trained = result == "bfloat16" or (source, result) in (("float32", "float32"), ("float16", "float16"))
    tier = Tier.STANDARD if trained else Tier.EXHAUSTIVE
    case = functools.partial(GradientCase, source=source, result=result, tier=tier)
    main = case(values="cancelling", vocab=40)
    if (source, result) in _ORDERED:
        main = msgspec.structs.replace(main, tier=Tier.SMOKE, forms=True, conditions=True)
    plain = [case(values=name) for name in ("equal", "fractions", "gaussian", "wide", "subnormal", "ties")]
    special = [case(values=name, clause="EMB-11") for name in _SPECIAL]
    return [main, *plain, *special]


def _of_shape() -> list[GradientCase]:
    case = functools.partial(GradientCase, source="bfloat16", result="bfloat16")
    return [
        case(values="equal", vocab=2, hidden=1, ids="equal", shape=(100_000,)),
        case(values="cancelling", vocab=1, hidden=1, ids="equal", shape=(1 << 16,)),
        case(values="wide", vocab=31, hidden=1185, shape=(3, 2, 11)),
        case(values="gaussian", vocab=5, shape=()),
        case(values="gaussian", vocab=5, shape=(0,)),
        case(values="cancelling", vocab=300, ids="hot", shape=(32, 8)),
        case(values="cancelling", vocab=256, ids="distinct"),
        case(values="cancelling", vocab=40, ids="every", padding_idx=0, forms=True),
        case(source="float32", values="cancelling", vocab=151936, hidden=64, ids="zipf_ends", shape=(8, 32)),
    ]


@functools.cache
def _all_cases() -> tuple[GradientCase, ...]:
    same = [(name, name) for name in FORMATS]
    narrowed = [("float32", name) for name in FORMATS if name not in ("float64", "float32")]
    return tuple([case for pair in same + narrowed for case in _of_pair(*pair)] + _of_shape())


def cases(tier: Tier = Tier.STANDARD, *, dtypes: tuple[str, ...] = ()) -> tuple[GradientCase, ...]:
    """Return the cases of a tier, smaller tiers included, whose result is one of the dtypes named (none named: any)."""
    return tuple(c for c in _all_cases() if tier.includes(c.tier) and (not dtypes or c.result in dtypes))


def build(case: GradientCase) -> tuple[Ids, Bits]:
    """Return the token ids, `S`, and the bits of the cotangents, `S + (H,)`."""
    ids = make_ids(case.ids, case.shape, case.vocab, "int64")
    cotangent = _FAMILIES[case.values](ids.size, case.hidden, FORMATS[case.source])
    return ids, cotangent.reshape(*case.shape, case.hidden)


def exact_answer(case: GradientCase, ids: Ids, cotangent: Bits) -> Bits:
    """Return the exact bits of the `[V, H]` gradient (clauses EMB-8, EMB-9 and EMB-11)."""
    source, target = FORMATS[case.source], FORMATS[case.result]
    dense = np.zeros((case.vocab, case.hidden), dtype=target.uint)
    for row, elements in exact.grad_rows(ids, cotangent, source, target).items():
        if row != case.padding_idx:
            dense[row] = elements
    return dense


def digests(case: GradientCase, ids: Ids, cotangent: Bits, answer: Bits) -> Pinned:
    """Return the digests of a case's inputs and answer."""
    return Pinned(
        ids=bits.digest(ids, "int64"),
        table=bits.digest(cotangent, case.source),
        answers={"grad_weight": bits.digest(answer, case.result)},
    )


def reordered_share(case: GradientCase, ids: Ids, cotangent: Bits) -> float:
    """Return the share of the named rows' elements whose bits change when a float32 sum runs backwards.

    The float32 sums are rounded to the result dtype by the oracle's one rounding: what counts is what a user sees.

    Raises:
        ValueError: the case has no tokens, so there is no order.
    """
    if ids.size == 0:
        raise errors.bad_value("ids", "none", "at least one", "reordered_share")
    single, target = FORMATS["float32"], FORMATS[case.result]
    flat = ids.reshape(-1)
    # To float32 by the oracle: rounded once where it is narrower than the cotangents.
    rounded = {int(e): exact.sum_rounded([int(e)], FORMATS[case.source], single) for e in np.unique(cotangent).tolist()}
    values = np.vectorize(rounded.__getitem__, otypes=[np.uint32])(cotangent).view(np.float32).reshape(flat.size, -1)
    sums = []
    with np.errstate(over="ignore", invalid="ignore"):
        for order in (slice(None), slice(None, None, -1)):
            total = np.zeros((case.vocab, case.hidden), dtype=np.float32)
            np.add.at(total, flat[order], values[order])
            named = total[np.unique(flat)].view(np.uint32).reshape(-1)
            sums.append([exact.sum_rounded([int(e)], single, target) for e in named])
    return float(np.mean(np.array(sums[0]) != np.array(sums[1])))
