"""Whether a compiled program only copies the table's elements to its output, and by which operations.

Each operation's result is one of three things: it depends on no element of the table; it consists of the table's own
elements, moved about; or it is something else, and then nothing is claimed of it. Moving about is to gather, slice,
copy, transpose, reshape or bit-cast to another type of the same width, and to select by a predicate that knows nothing
of the table between rows and a constant. The output must have the table's type again. One widening is known:
bfloat16's bits, put into an unsigned integer of 32 bits, shifted left by 16 and bit-cast, are a float32. Everything
that is not known to be one of these is something else: "not proven", and never "proven".

Not promised: that the right row is moved, or any. That is what running a kernel shows.
"""

from __future__ import annotations

import dataclasses
import re

from xref.compiling.hlo import Computation, Operation, Program

__all__ = ["Flow", "flow_of"]

_MOVES = {
    "bitcast", "bitcast-convert", "broadcast", "copy", "copy-done", "copy-start", "dynamic-slice", "gather",
    "optimization-barrier", "reshape", "reverse", "slice", "transpose",
}  # fmt: skip
# These take one operand that may be the table's; the others say where from, and must not depend on its elements.
_INDEXED = {"dynamic-slice", "gather"}
_SILENT = {"broadcast", "copy-done", "copy-start", "optimization-barrier"}  # moves that nobody wants to read of
_UNSIGNED = re.compile(r"^u\d+$")
_WIDTH = re.compile(r"^(?:pred|[a-z]+(\d+)[a-z\d]*)$")
_ROOM = 16  # bits that bfloat16 lacks of float32


@dataclasses.dataclass(frozen=True)
class Flow:
    """How the table's elements come to the output."""

    operations: tuple[str, ...]
    """What they go through, in order."""
    reasons: tuple[str, ...]
    """Why it is not proven to be a copy; empty if it is."""

    @property
    def proven(self) -> bool:
        """Whether every operation is known to change no element."""
        return not self.reasons


@dataclasses.dataclass(frozen=True)
class _Value:
    """What is known of an operation's result."""

    element: str = ""
    """Its type, as XLA writes it."""
    operations: tuple[str, ...] | None = None
    """Where the table's elements are in it: what they went through. None if it does not depend on them."""
    reasons: tuple[str, ...] = ()
    """Why it is something else than these elements moved about."""
    parts: tuple[_Value, ...] = ()
    """Of a tuple: its elements."""
    constant: str | None = None
    """The value of a constant, or of one broadcast."""
    extra: int = 0
    """By how many bits it was put into a wider unsigned integer."""
    shifted: int = 0
    """By how many of them it was shifted left."""

    @property
    def free(self) -> bool:
        """Whether no element of the table is in it."""
        return self.operations is None and all(part.free for part in self.parts)


def flow_of(program: Program, table: int, *, selects: bool = True) -> Flow:
    """Return how elements of the table, which is parameter number `table` of the program, come to its output.

    `selects` says whether the back end makes a select of a select: on a CPU some become arithmetic in float32.
    """
    entry = program.computations[program.entry]
    parameters = [operation for operation in entry.operations.values() if operation.opcode == "parameter"]
    inputs = {
        int(operation.argument): _Value(operation.element, () if int(operation.argument) == table else None)
        for operation in parameters
    }
    out = _Reader(program, selects).result(entry, [inputs[number] for number in range(len(inputs))])
    if out.parts:
        return Flow((), ("the output is a tuple",))
    if out.operations is None:
        return Flow((), ("the output does not depend on the table",))
    element = inputs[table].element
    same = out.element == element and not out.extra
    widened = (element, out.element, out.extra, out.shifted) == ("bf16", "f32", _ROOM, _ROOM)
    reasons = out.reasons if same or widened or out.reasons else (f"{element} that ends as {out.element}",)
    return Flow(out.operations, reasons)


class _Reader:
    def __init__(self, program: Program, selects: bool) -> None:  # noqa: FBT001
        self.program, self.selects = program, selects

    def result(self, computation: Computation, inputs: list[_Value]) -> _Value:
        """Return what a computation makes of its inputs."""
        values: dict[str, _Value] = {}
        for operation in computation.operations.values():
            if operation.opcode == "parameter":
                values[operation.name] = inputs[int(operation.argument)]
            else:
                values[operation.name] = self._value(operation, [values[name] for name in operation.operands])
        return values[computation.root]

    def _value(self, operation: Operation, operands: list[_Value]) -> _Value:
        opcode = operation.opcode
        if opcode == "constant":
            return _Value(operation.element, constant=operation.argument)
        if opcode == "tuple":
            return _Value(parts=tuple(operands))
        if opcode == "get-tuple-element":
            return _part(operands[0], operation)
        if opcode in ("fusion", "call") and len(operation.called) == 1:
            return self.result(self.program.computations[operation.called[0]], operands)
        if opcode in ("call-start", "async-start") and len(operation.called) == 1:
            return _Value(parts=(self.result(self.program.computations[operation.called[0]], operands),))
        if opcode in ("call-done", "async-done") and operands[0].parts:
            return operands[0].parts[0]
        if all(value.free for value in operands):
            return _Value(operation.element, constant=operands[0].constant if opcode == "broadcast" else None)
        if opcode == "select" and not self.selects:
            return _other(operation, operands)
        return _moved(operation, operands) or _other(operation, operands)


def _part(value: _Value, operation: Operation) -> _Value:
    index = re.search(r"\bindex=(\d+)", operation.attributes)
    if index is not None and value.parts:
        return value.parts[int(index[1])]
    return value if value.free else _other(operation, [value])


def _moved(operation: Operation, operands: list[_Value]) -> _Value | None:
    """Return what comes of an operation that is known to move the elements of its operands; None if it is not."""
    opcode, first = operation.opcode, operands[0]
    if any(value.parts for value in operands):
        return None
    if opcode == "select" and first.free:
        rows = [value for value in operands[1:] if not value.free]
        if all(not value.free or value.constant is not None for value in operands[1:]):
            return _step(operation, rows) if _alike(rows) else None
    elif opcode == "concatenate" and not any(value.free for value in operands):
        return _step(operation, operands) if _alike(operands) else None
    elif first.free or not all(value.free for value in operands[1:]):
        return None
    elif opcode in _MOVES and (len(operands) == 1 or opcode in _INDEXED):
        same = not operation.element or _width(operation.element) == _width(first.element)
        return _step(operation, [first]) if same else None
    elif opcode == "convert" and not first.extra:
        if _UNSIGNED.match(operation.element) and _UNSIGNED.match(first.element):
            extra = _width(operation.element) - _width(first.element)
            return _step(operation, [first], extra=extra) if extra >= 0 else None
    elif opcode == "shift-left" and first.extra and not first.shifted and (operands[1].constant or "").isdigit():
        shifted = int(operands[1].constant or "")
        return _step(operation, [first], shifted=shifted) if shifted <= first.extra else None
    return None


def _width(element: str) -> int:
    """Return how many bits an element has: `f8e5m2` 8, `bf16` 16; 0 of a tuple, whose parts have their own."""
    matched = _WIDTH.match(element)
    return int(matched[1] or 1) if matched else 0


def _alike(rows: list[_Value]) -> bool:
    """Return whether all hold the table's elements in the same form."""
    return len({(value.element, value.extra, value.shifted) for value in rows}) == 1


def _step(operation: Operation, rows: list[_Value], *, extra: int | None = None, shifted: int | None = None) -> _Value:
    """Return the table's elements after one more move, in another form where one is named."""
    first, before = rows[0], _joined(rows)
    steps = before.operations or ()
    if operation.opcode not in _SILENT:
        to = f" to {operation.element}" if operation.opcode in ("bitcast-convert", "convert") else ""
        steps = (*steps, f"{operation.opcode}{to}")
    return _Value(
        operation.element or first.element,  # `copy-start` has a tuple of what it copies
        steps,
        before.reasons,
        extra=first.extra if extra is None else extra,
        shifted=first.shifted if shifted is None else shifted,
    )


def _other(operation: Operation, operands: list[_Value]) -> _Value:
    """Return something that is made of the table's elements, and nobody knows how."""
    target = re.search(r'custom_call_target="([^"]*)"', operation.attributes)
    name = f"{operation.opcode} {target[1]}" if target else operation.opcode
    before = _joined(operands)
    reasons = dict.fromkeys((*before.reasons, f"{name} of {operation.element or 'a tuple'}"))
    return _Value(operation.element, (*(before.operations or ()), name), tuple(reasons))


def _joined(values: list[_Value]) -> _Value:
    """Return values as one: of several, each operation once, in the order in which it is met."""
    if len(values) == 1 and not values[0].parts:
        return values[0]
    flat = [leaf for value in values for leaf in ([_joined(list(value.parts))] if value.parts else [value])]
    steps = dict.fromkeys(step for value in flat for step in value.operations or ())
    reasons = dict.fromkeys(reason for value in flat for reason in value.reasons)
    return _Value(operations=tuple(steps), reasons=tuple(reasons))
