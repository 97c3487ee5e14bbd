"""Who takes part in `xref bench`: the machine's copy, the framework's own operators, the goldens and the candidates."""

# ruff: noqa: D102  (the protocols' methods are described where they are implemented)

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.inputs import allocate, make_table, words
from xref.judge.candidate import Candidate
from xref.judge.speed_report import COPY

__all__ = [
    "BACKWARD",
    "DIRECTIONS",
    "Call",
    "Clock",
    "Contender",
    "Inputs",
    "Shape",
    "Timing",
    "contenders",
    "ids_of",
    "rows_of",
]

Call = Callable[[], Any]
FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")
_COPIED, _COPIED_ELSEWHERE = 2**28, 2**30
"""Bytes that the copy copies, on a CPU and elsewhere: more than caches hold."""


class Clock(Protocol):
    """What measures laps: calls made back to back."""

    NAME: str

    def __enter__(self) -> Clock: ...
    def __exit__(self, *error: Any) -> None: ...
    def lap(self, key: str, call: Call, repeats: int) -> None: ...
    def seconds(self) -> dict[str, list[float]]: ...


class Timing(Protocol):
    """The names of `xref.torch_ops.timing` and `xref.jax_ops.timing`; their docstrings say what each gives."""

    IDS: np.dtype[Any]

    def natives(self) -> dict[str, dict[str, Callable[..., Any]]]: ...
    def goldens(self) -> dict[str, dict[str, Callable[..., Any]]]: ...
    def backward_of(self, call: Callable[[Any, Any], Any], ids: Any, table: Any, cotangent: Any) -> Call: ...
    def copying(self, size: int, device: str) -> Call: ...
    def run(self, call: Call, repeats: int, device: str) -> None: ...
    def device_clock(self, device: str) -> Clock | None: ...


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is measured at once: one table dtype, direction and number of tokens."""

    direction: str
    dtype: str
    vocab: int
    hidden: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A framework's arrays of one shape, on the device."""

    ids: Any
    table: Any
    cotangent: Any
    """None in a forward."""

    @property
    def operands(self) -> tuple[Any, Any]:
        """What an operator of the direction takes: `(ids, table)` or `(ids, cotangent)`."""
        return self.ids, self.table if self.cotangent is None else self.cotangent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """One who takes part."""

    name: str
    kind: str
    moved: int
    """Bytes that a call must read and write."""
    result: int
    """Bytes of what it gives."""
    prepare: Callable[[Inputs], Call]
    """Makes the call to measure."""
    operator: Callable[[Any, Any], Any] | None = None
    """What is called, if it takes the operands alone: its peak memory can be measured."""
    form: tuple[tuple[int, ...], str] | None = None
    """Shape and dtype that a candidate's result must have; what is in it is for `xref judge` to find."""


def ids_of(shape: Shape, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return `[T]` ids: uniform; in a backward a quarter are one id, as padding or a frequent token is."""
    ids = (words(shape.tokens) % np.uint64(shape.vocab)).astype(dtype)
    if shape.direction == BACKWARD:
        ids[words(shape.tokens, seed=1) % np.uint64(4) == 0] = shape.vocab // 2
    return ids


def rows_of(count: int, hidden: int, dtype: str) -> Bits:
    """Return the bits of `[count, hidden]` gaussian values: a block over and over, as drawing them all takes long."""
    rows = allocate((count, hidden), FORMATS[dtype].uint)
    block = make_table("gaussian", min(count, 4096), hidden, FORMATS[dtype])
    for start in range(0, count, len(block)):
        rows[start : start + len(block)] = block[: count - start]
    return rows


def contenders(timing: Timing, candidates: Sequence[Candidate], device: str, shape: Shape) -> Iterator[Contender]:
    """Yield who takes part at a shape, the copy first."""
    size = _COPIED if device == "cpu" else _COPIED_ELSEWHERE
    copying = functools.partial(timing.copying, size, device)
    yield Contender(name=COPY, kind=COPY, moved=2 * size, result=0, prepare=lambda inputs: copying())
    yield from (
        _backward(timing, candidates, shape) if shape.direction == BACKWARD else _forward(timing, candidates, shape)
    )


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
        if verb in contract.verbs_of(shape.dtype):
            written = shape.tokens * _bytes(shape.hidden, contract.result_dtype(verb, shape.dtype))
            form = ((shape.tokens, shape.hidden), contract.result_dtype(verb, shape.dtype))
            yield _plain(name, kind, read + written, written, call, form)


def _backward(timing: Timing, candidates: Sequence[Candidate], shape: Shape) -> Iterator[Contender]:
    takers = [
        *(("native", name, call) for name, call in timing.natives()[BACKWARD].items()),
        *(("golden", name, call) for name, call in timing.goldens()[BACKWARD].items()),
        *(("candidate", f"{each.name}, backward", each.backward) for each in candidates if each.backward),
    ]
    row = _bytes(shape.hidden, shape.dtype)
    read, dense = shape.tokens * (timing.IDS.itemsize + row), shape.vocab * row
    form = ((shape.vocab, shape.hidden), shape.dtype)
    named = np.unique(ids_of(shape, timing.IDS)).size * (timing.IDS.itemsize + row)
    for kind, name, call in takers:
        written = named if kind == "golden" and not name.startswith("grad_weight") else dense
        yield _plain(name, kind, read + written, written, functools.partial(_with_vocab, call, shape.vocab), form)
    for each in candidates:
        if not each.backward:
            prepare = functools.partial(_differentiated, timing, next(iter(each.verbs.values())))
            name = f"{each.name}, backward"
            yield Contender(name=name, kind="candidate", moved=read + dense, result=dense, prepare=prepare, form=form)


def _plain(
    name: str,
    kind: str,
    moved: int,
    result: int,
    operator: Callable[[Any, Any], Any],
    form: tuple[tuple[int, ...], str],
) -> Contender:
    """Return one whose call is an operator on the operands."""

    def prepare(inputs: Inputs) -> Call:
        return functools.partial(operator, *inputs.operands)

    checked = form if kind == "candidate" else None
    return Contender(name=name, kind=kind, moved=moved, result=result, prepare=prepare, operator=operator, form=checked)


def _with_vocab(call: Callable[[Any, Any, int], Any], vocab: int, ids: Any, cotangent: Any) -> Any:
    return call(ids, cotangent, vocab)


def _differentiated(timing: Timing, verb: Callable[[Any, Any], Any], inputs: Inputs) -> Call:
    return timing.backward_of(verb, inputs.ids, inputs.table, inputs.cotangent)


def _bytes(elements: int, dtype: str) -> int:
    return elements * FORMATS[dtype].width // 8
