"""What other calls show of a failure: the same one again, fewer tokens, ordinary ids, a smaller table.

Each is made only where what was seen leaves it open, and says something only if it was made: a call for which there is
no budget left shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from xref.bits import from_bits
from xref.engine.steps import Raised
from xref.operators.embedding import faults
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.diagnose.rows import Found
from xref.operators.embedding.evidence import ForwardEvidence, GradientEvidence
from xref.spec import Call, Failure, Seen

__all__ = ["Make", "from_batch", "from_exception", "from_id_dtype", "from_repeats", "is_right", "ordinary"]

Make = Callable[[Call], Seen]

_FEW, _SEVERAL, _WRITTEN = 4, 16, 4096  # tokens: alone, a batch, and as many as are written out one by one
_USUAL = ("int32", "int64")


def is_right(seen: Seen) -> bool:
    """Return whether a call was made and everything was right."""
    return bool(seen.passed) and not seen.failures


def _bits(failure: Failure | None) -> Any:
    return getattr(failure.evidence, "got", None) if failure is not None else None


def from_repeats(call: Call, failure: Failure, make: Make) -> Iterator[Found]:
    """Make the failing call again, and once more if it has other bits then."""
    runs = [_bits(failure)]
    for _ in range(2):
        seen = make(call)
        got = _bits(seen.failed(failure.check))
        if got is None and not is_right(seen):
            return  # it was not made, or is wrong in another way
        if got is not None and np.array_equal(got, runs[-1]):
            break
        runs.append(got)
        if got is None:
            break
    if len(runs) == 1:
        return
    if runs[-1] is None or len(runs) == 2:
        what = "right" if runs[-1] is None else "wrong in another way, from then on"
        yield 0.9, faults.CALL_COUNT_DEPENDENT, f"so the call fails, and made again it is {what}"
        return
    what = "the same call has other bits each time that it is made"
    if not isinstance(failure.evidence, GradientEvidence):
        yield 0.995, faults.RUN_TO_RUN, what
        return
    with np.errstate(all="ignore"):
        dtype = failure.evidence.call.result
        one, two = (from_bits(np.ascontiguousarray(run), dtype).astype(np.float64) for run in runs[:2])
        more = abs(two).sum() > 1.25 * abs(one).sum()
    if more:
        yield 0.97, faults.GRADIENT_ACCUMULATES_ACROSS_CALLS, "the same call gives more each time that it is made"
    else:
        yield 0.97, faults.GRADIENT_ORDER_BY_RUN, what


def from_id_dtype(call: Forward, ids: Any, make: Make) -> Iterator[Found]:
    """Make the same call with ids of a usual dtype."""
    if call.id_dtype in _USUAL or ids.size > _WRITTEN:
        return
    same = msgspec.structs.replace(call, ids=tuple(ids.reshape(-1).tolist()), id_dtype="int32")
    if is_right(make(same)):
        yield 0.98, faults.ID_DTYPE_MISREAD, f"with ids of {call.id_dtype} it is wrong, with the same of int32 right"


def from_batch(call: Forward, seen: ForwardEvidence, make: Make) -> Iterator[Found]:
    """Make a call of a few of the wrong tokens alone."""
    if seen.ids.size < _SEVERAL:
        return
    wrong = np.flatnonzero((seen.got != seen.expected).reshape(seen.ids.size, -1).any(axis=1))
    few = tuple(seen.ids.reshape(-1)[wrong[:_FEW]].tolist())
    if not is_right(make(msgspec.structs.replace(call, ids=few, shape=(len(few),)))):
        return
    what = f"tokens that are wrong among {seen.ids.size} are right in a call of {len(few)}"
    if 0 < wrong[0] == seen.ids.size - wrong.size:
        yield 0.9, faults.TOKENS_PAST_A_TILE_WRONG, f"{what}: those from {wrong[0]} on"
    yield 0.7 if wrong.size == seen.ids.size else 0.52, faults.OTHER_PATH_BY_BATCH_SIZE, what


def ordinary(call: Call, make: Make) -> Seen:
    """Make a call of a few ids in one dimension, and nothing unusual; return what it shows."""
    if not isinstance(call, Forward | Gradient):
        return Seen()
    usual = call.id_dtype if call.id_dtype in _USUAL else "int32"
    sizes = {"shape": (6,), "vocab": max(call.vocab, 10), "hidden": max(call.hidden, 1)}
    return make(msgspec.structs.replace(call, ids="zipf", id_dtype=usual, **sizes))


def from_exception(call: Forward | Gradient, reply: Raised, make: Make) -> Iterator[Found]:
    """Tell what raises on all ids from what raises on unusual ones."""
    if isinstance(call, Gradient) and reply.unconnected:
        yield 0.97, faults.GRADIENT_LOST, "there is no gradient to be asked for"
        return
    seen = ordinary(call, make)
    if is_right(seen) and (not call.shape or 0 in call.shape):
        yield 0.97, faults.EMPTY_OR_SCALAR_IDS_FAIL, "ids of no dimension, or none, raise, and others do not"
    elif is_right(seen) and call.id_dtype not in _USUAL:
        yield 0.7, faults.ID_DTYPE_MISREAD, f"ids of {call.id_dtype} raise, and those of int32 do not"
    elif isinstance(call, Gradient):
        yield 0.97 if seen.failures else 0.8, faults.GRADIENT_RAISES, f"it raises {reply.type}"
