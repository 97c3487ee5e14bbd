"""The contract's fixed calls of the forward: what `verify` compares with exact answers, and with pinned digests."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from xref.bits import FORMATS
from xref.operators.embedding.calls.forward import Forward
from xref.spec import Tier

__all__ = ["ForwardCase", "cases"]

# The vocabulary and width of Qwen3-8B's input table.
_QWEN3_VOCAB, _QWEN3_HIDDEN = 151936, 4096


@dataclasses.dataclass(frozen=True)
class ForwardCase:
    """One fixed call, and when it is made; both verbs are tried on its inputs."""

    call: Forward
    tier: Tier = Tier.STANDARD
    """Smallest tier that makes it."""
    conditions: bool = False
    """Whether the invariance conditions run on it."""

    @property
    def id(self) -> str:
        """The name of the call's inputs, unique in the contract."""
        return self.call.id


def _case(dtype: str, *, tier: Tier = Tier.STANDARD, conditions: bool = False, **how: Any) -> ForwardCase:
    return ForwardCase(Forward(check="EMB-1", dtype=dtype, **how), tier, conditions)


def _of_dtype(dtype: str) -> list[ForwardCase]:
    case = functools.partial(_case, dtype)
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


def _of_size(dtype: str) -> list[ForwardCase]:
    case = functools.partial(_case, dtype)
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
def _all_cases() -> tuple[ForwardCase, ...]:
    return tuple(case for dtype in FORMATS for case in _of_dtype(dtype))


def cases(tier: Tier = Tier.STANDARD, *, dtypes: tuple[str, ...] = ()) -> tuple[ForwardCase, ...]:
    """Return the cases of a tier, smaller tiers included, of the table dtypes named (none named: of all)."""
    return tuple(
        case for case in _all_cases() if tier.includes(case.tier) and (not dtypes or case.call.dtype in dtypes)
    )
