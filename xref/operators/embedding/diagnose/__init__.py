"""What a failure of an embedding kernel is consistent with: faults of the catalogue, the likeliest first.

Never "caused by", and never by the name of a condition: only what was seen speaks for a fault. Every row of most tables
differs from every other, so a wrong row tells where it came from, and an element what was done to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from xref import exact
from xref.bits import FORMATS
from xref.engine.evidence import Misformed, Reused, Rewritten, Shared
from xref.engine.steps import Died, Raised
from xref.operators.embedding import clauses, faults
from xref.operators.embedding.calls.forward import Forward
from xref.operators.embedding.calls.gradient import Gradient
from xref.operators.embedding.diagnose import closer
from xref.operators.embedding.diagnose.elements import from_elements
from xref.operators.embedding.diagnose.gradient import from_gradient
from xref.operators.embedding.diagnose.rows import Found, Wrong, from_columns, from_rows, from_tokens
from xref.operators.embedding.evidence import ForwardEvidence, GradientEvidence
from xref.spec import Call, Failure, Suspect

__all__ = ["explain"]

_LARGE = 1 << 28  # bytes of a table whose rows are not looked up
_CERTAIN = 0.99
_SMALL = 1009  # rows of the table that a huge one is compared with


def explain(call: Call, failure: Failure, make: closer.Make) -> list[Suspect]:
    """Return what a failure speaks for, each fault once, the likeliest first.

    Args:
        call: what failed.
        failure: how; what its evidence is decides what can be said.
        make: makes another call, to look closer. The caller counts them.
    """
    best: dict[str, Suspect] = {}
    for weight, fault, seen in _found(call, failure, make):
        suspect = Suspect(weight, fault.name, seen)
        if fault.name not in best or suspect > best[fault.name]:
            best[fault.name] = suspect
    return sorted(best.values(), key=lambda suspect: -suspect.weight)


def _found(call: Call, failure: Failure, make: closer.Make) -> Iterator[Found]:
    evidence = failure.evidence
    match evidence:
        case ForwardEvidence():
            yield from _from_forward(call, failure, evidence, make)
        case GradientEvidence():
            yield from _weighed(from_gradient(evidence), failure)
            if isinstance(call, Gradient):
                yield from closer.from_repeats(call, failure, make)
        case Raised() if isinstance(call, Forward | Gradient):
            yield from closer.from_exception(call, evidence, make)
        case Died():
            late = evidence.late
            yield 0.97, faults.ENDLESS_LOOP if late else faults.CRASH, f"the process: {evidence.how}"
        case Misformed():
            yield from _from_form(call, evidence, make)
        case Rewritten():
            yield 0.97, _REWRITTEN[evidence.name.rpartition(" ")[2]], f"{evidence.name} has other bits after the call"
        case Shared():
            yield 0.97, faults.OUTPUT_ALIASES_INPUT, f"the output lies in memory of {evidence.name}"
        case Reused():
            yield 0.97, faults.OUTPUT_BUFFER_REUSED, "an output has other bits after a later call"


def _weighed(found: Iterable[Found], failure: Failure) -> Iterator[Found]:
    """Yield what content speaks for: behind the variation of a call whose plain one is right, unless it is certain."""
    most = max((suspect.weight for suspect in failure.suspects), default=1.0)
    yield from ((weight if weight > _CERTAIN else most * weight, fault, seen) for weight, fault, seen in found)


_REWRITTEN = {
    "weight": faults.TABLE_REWRITTEN,
    "token_ids": faults.IDS_REWRITTEN,
    "cotangent": faults.COTANGENT_REWRITTEN,
}


def _from_form(call: Call, evidence: Misformed, make: closer.Make) -> Iterator[Found]:
    (shape, dtype, _), (due, due_dtype, _) = evidence.got, evidence.expected
    if isinstance(call, Gradient) and dtype == "NoneType":
        yield 0.99, faults.GRADIENT_LOST, "the table's gradient is None"
    elif shape == due and dtype != due_dtype:
        yield 0.9, faults.WRONG_DTYPE, f"the output is {dtype}, and not {due_dtype}"
    elif shape != due:
        yield 0.9, faults.WRONG_SHAPE, f"the output has the shape {shape}, and not {due}"
        if 0 in (len(due) - 1, *due[:-1]) and closer.is_right(closer.ordinary(call, make)):
            yield 0.97, faults.EMPTY_OR_SCALAR_IDS_FAIL, "only ids of no dimension, or none, give another shape"


def _from_forward(call: Call, failure: Failure, evidence: ForwardEvidence, make: closer.Make) -> Iterator[Found]:
    if evidence.table.shape[0] < evidence.call.vocab:  # it holds some of its rows
        yield from _from_small_table(evidence, failure, make)
        return
    yield from _weighed(_from_content(evidence), failure)
    if not isinstance(call, Forward):
        return
    repeats = list(closer.from_repeats(call, failure, make))
    yield from repeats
    if not repeats and type(call) is Forward and call == call.plain():
        yield from closer.from_id_dtype(call, evidence.ids, make)
        yield from closer.from_batch(call, evidence, make)


def _from_small_table(evidence: ForwardEvidence, failure: Failure, make: closer.Make) -> Iterator[Found]:
    """Make the same call on a small table: what is wrong there too has nothing to do with the size."""
    ids = tuple((evidence.ids.reshape(-1).astype(np.int64) % _SMALL).tolist())
    seen = make(msgspec.structs.replace(evidence.call, vocab=_SMALL, table="hashed", ids=ids))
    other = seen.failed(failure.check)
    if closer.is_right(seen):
        what = f"a table of {evidence.call.vocab} rows comes back wrong, one of {_SMALL} does not"
        yield 0.99, faults.ROW_OFFSET_OVERFLOW, what
    elif other is not None and isinstance(other.evidence, ForwardEvidence):
        yield from _from_content(other.evidence)


def _from_content(evidence: ForwardEvidence) -> Iterator[Found]:
    if evidence.table.nbytes >= _LARGE or not evidence.ids.size:
        return
    call = evidence.call
    source, fmt = FORMATS[call.dtype], FORMATS[clauses.result_dtype(call.verb, call.dtype)]
    rows = evidence.ids.size, evidence.table.shape[1]
    wrong = Wrong(
        ids=evidence.ids.reshape(-1).astype(np.int64),
        usual=call.id_dtype in ("int32", "int64"),
        table=evidence.table if call.verb == "forward" else exact.widen(evidence.table, source),
        got=evidence.got.reshape(rows),
        expected=evidence.expected.reshape(rows),
        source=source,
        fmt=fmt,
    )
    yield from from_elements(wrong)
    # Where all that was due are zeros, a lost row looks like any other, and its elements are all there is to see.
    if (wrong.expected & fmt.uint.type(fmt.sign - 1)).any():
        yield from from_rows(wrong)
        yield from from_columns(wrong)
        yield from from_tokens(wrong)
