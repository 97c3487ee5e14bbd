"""A compiled XLA program, read from its text: computations of operations, each with its operands and its result.

The text is what `jax.stages.Compiled.as_text` gives on every back end. It is no stable format, so whatever is not
understood raises, and nothing is passed over.

Only what `xref.compiling.copies` needs is kept of an operation: no layouts, no metadata.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

__all__ = ["Computation", "Operation", "Program", "read"]

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)$")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%([\w.\-]+)")
_ARRAY = re.compile(r"^([a-z]\w*)\[[\d,]*\]")
_WITHOUT = ("constant", "iota", "parameter")  # operations whose parentheses hold no operands
_OPENING, _CLOSING = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation: its name, what it does, and on what."""

    name: str
    opcode: str
    element: str
    """Type of an element of the result, as XLA writes it (`bf16`, `s32`); empty for a tuple."""
    operands: tuple[str, ...]
    called: tuple[str, ...]
    """The computations that it calls."""
    argument: str
    """What stands in the parentheses, as written: the number of a parameter, the value of a constant."""
    attributes: str
    """What stands behind them, as written."""


@dataclasses.dataclass(frozen=True)
class Computation:
    """Operations in the order in which they are written: operands come before what uses them."""

    operations: dict[str, Operation]
    root: str


@dataclasses.dataclass(frozen=True)
class Program:
    """Computations by name."""

    computations: dict[str, Computation]
    entry: str


def read(text: str) -> Program:
    """Return the program that a text stands for.

    Raises:
        ValueError: a line inside a computation is no operation that can be read, one outside begins something else, or
            there is no entry.
    """
    computations: dict[str, Computation] = {}
    entry = name = root = ""
    operations: dict[str, Operation] = {}
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            name, root, operations = header[2], "", {}
            entry = name if header[1] else entry
        elif name and line.startswith("}"):
            computations[name] = Computation(operations, root)
            name = ""
        elif name and line.strip():
            operation, is_root = _operation(line)
            operations[operation.name] = operation
            root = operation.name if is_root else root
        elif line.rstrip().endswith("{"):
            raise ValueError(f"a compiled program: got the line {line.strip()[:200]!r}, expected a computation's head")
    if entry not in computations:
        raise ValueError(f"a compiled program: got no entry in {len(text)} characters, expected one")
    return Program(computations, entry)


def _operation(line: str) -> tuple[Operation, bool]:
    matched = _OPERATION.match(line)
    try:
        if matched is None:
            raise ValueError("no operation")
        shape, rest = _shape(matched[3])
        opcode = _OPCODE.match(rest)
        if opcode is None:
            raise ValueError("no operation")
        end = _closing(rest, opcode.end() - 1)
        argument, attributes = rest[opcode.end() : end], rest[end + 1 :]
        array = _ARRAY.match(shape)
        operation = Operation(
            name=matched[2],
            opcode=opcode[1],
            element=array[1] if array else "",
            operands=() if opcode[1] in _WITHOUT else tuple(_named(part) for part in _parts(argument) if part),
            called=tuple(_CALLED.findall(attributes)),
            argument=argument,
            attributes=attributes,
        )
    except ValueError as error:
        raise ValueError(f"a compiled program: got the line {line.strip()[:200]!r}, expected an operation") from error
    return operation, bool(matched[1])


def _named(operand: str) -> str:
    """Return the operand's name, which may stand behind its type or a comment."""
    found = _OPERAND.search(operand)
    if found is None:
        raise ValueError("no operand")
    return found[1]


def _shape(text: str) -> tuple[str, str]:
    """Return the type that a text begins with, and what comes after it."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    return text[:end], text[end:].lstrip()


def _closing(text: str, start: int) -> int:
    """Return where what is opened at `start` is closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in _OPENING) - (text[place] in _CLOSING)
        if depth == 0:
            return place
    raise ValueError("no end")


def _parts(text: str) -> Iterator[str]:
    """Yield what commas separate, those in parentheses left alone."""
    depth = start = 0
    for place, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()
