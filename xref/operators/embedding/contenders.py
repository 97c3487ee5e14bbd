"""What `xref bench` measures of the embedding: inputs, the frameworks' own operators, the goldens and candidates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.blocks import differ
from xref.engine.candidate import Candidate
from xref.engine.frameworks import Framework
from xref.engine.timing import BACKWARD, FORWARD, Call, Contender, Inputs, Shape, Timing
from xref.inputs import allocate, make_table, words
from xref.operators.embedding.clauses import result_dtype, verbs_of

__all__ = ["contenders", "ids_of", "inputs_of", "rows_of", "table_of", "unchanged"]


def rows_of(count: int, hidden: int, dtype: str) -> Bits:
    """Return the bits of `[count, hidden]` gaussian values: a block over and over, as drawing them all takes long."""
    rows = allocate((count, hidden), FORMATS[dtype].uint)
    block = make_table("gaussian", min(count, 4096), hidden, FORMATS[dtype])
    for start in range(0, count, len(block)):
        rows[start : start + len(block)] = block[: count - start]
    return rows


def ids_of(shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return `[T]` ids: uniform; in a backward a quarter are one id, as padding or a frequent token is."""
    ids = (words(shape.tokens) % np.uint64(shape.vocab)).astype(dtype)
    if shape.direction == BACKWARD:
        ids[words(shape.tokens, seed=1) % np.uint64(4) == 0] = shape.vocab // 2
    return ids


def table_of(framework: Framework, rows: Bits, vocab: int, dtype: str, device: str) -> Any:
    """Return the table `[V, H]`: the first of the rows."""
    return framework.arrays.put(rows[:vocab], dtype, device)


def inputs_of(framework: Framework, ids: np.dtype[Any], shape: Shape, rows: Bits, table: Any, device: str) -> Inputs:
    """Return the arrays of a shape; the first of the rows are the cotangent `[T, H]`, too."""
    put = framework.arrays.put
    cotangent = put(rows[: shape.tokens], shape.dtype, device) if shape.direction == BACKWARD else None
    return Inputs(put(ids_of(shape, ids), None, device), table, cotangent)


def unchanged(framework: Framework, inputs: Inputs, shape: Shape, own: Bits, rows: Bits) -> bool:
    """Return whether inputs, made of their own copy of the rows, have the bits that they were made with."""
    ids = framework.arrays.numpy_of(inputs.ids)
    kept = np.array_equal(framework.arrays.bits_of(inputs.table), rows[: shape.vocab])
    return kept and np.array_equal(ids, ids_of(shape, ids.dtype)) and not differ(own, rows)


def contenders(timing: Timing, candidates: Sequence[Candidate], shape: Shape) -> Iterator[Contender]:
    """Yield who takes part at a shape beside the machine's copy."""
    return (_backward if shape.direction == BACKWARD else _forward)(timing, candidates, shape)


def _forward(timing: Timing, candidates: Sequence[Candidate], shape: Shape) -> Iterator[Contender]:
    takers = [
        *(("native", name, "forward", call) for name, call in timing.natives()[FORWARD].items()),
        *(("golden", name, name.partition(",")[0], call) for name, call in timing.goldens()[FORWARD].items()),
        *(
            ("candidate", each.name if verb == "forward" else f"{each.name}, {verb}", verb, call)
            for each in candidates
            for verb, call in each.verbs.items()
        ),
    ]
    read = shape.tokens * (timing.IDS.itemsize + _bytes(shape.hidden, shape.dtype))
    for kind, name, verb, call in takers:
        if verb in verbs_of(shape.dtype):
            result = result_dtype(verb, shape.dtype)
            written = shape.tokens * _bytes(shape.hidden, result)
            yield _plain(name, kind, (read, written), call, ((shape.tokens, shape.hidden), result))


def _backward(timing: Timing, candidates: Sequence[Candidate], shape: Shape) -> Iterator[Contender]:
    own = [(f"{each.name}, backward", each.verbs.get("backward")) for each in candidates]
    takers = [
        *(("native", name, call) for name, call in timing.natives()[BACKWARD].items()),
        *(("golden", name, call) for name, call in timing.goldens()[BACKWARD].items()),
        *(("candidate", name, call) for name, call in own if call is not None),
    ]
    row = _bytes(shape.hidden, shape.dtype)
    read, dense = shape.tokens * (timing.IDS.itemsize + row), shape.vocab * row
    form = ((shape.vocab, shape.hidden), shape.dtype)
    named = np.unique(ids_of(shape, timing.IDS)).size * (timing.IDS.itemsize + row)
    for kind, name, call in takers:
        written = named if kind == "golden" and not name.startswith("grad_weight") else dense
        yield _plain(name, kind, (read, written), functools.partial(_with_vocab, call, shape.vocab), form)
    for each, (name, gradient) in zip(candidates, own, strict=True):
        if gradient is None:
            prepare = functools.partial(_differentiated, timing, next(iter(each.verbs.values())))
            yield Contender(name=name, kind="candidate", moved=read + dense, result=dense, prepare=prepare, form=form)


def _plain(
    name: str,
    kind: str,
    traffic: tuple[int, int],
    operator: Callable[[Any, Any], Any],
    form: tuple[tuple[int, ...], str],
) -> Contender:
    """Return one whose call is an operator on the operands; it reads and writes so many bytes."""
    return Contender(
        name=name,
        kind=kind,
        moved=sum(traffic),
        result=traffic[1],
        prepare=lambda inputs: functools.partial(operator, *inputs.operands),
        operator=operator,
        form=form if kind == "candidate" else None,
    )


def _with_vocab(call: Callable[[Any, Any, int], Any], vocab: int, ids: Any, cotangent: Any) -> Any:
    return call(ids, cotangent, vocab)


def _differentiated(timing: Timing, verb: Callable[[Any, Any], Any], inputs: Inputs) -> Call:
    return timing.backward_of(verb, inputs.ids, inputs.table, inputs.cotangent)


def _bytes(elements: int, dtype: str) -> int:
    return elements * FORMATS[dtype].width // 8
