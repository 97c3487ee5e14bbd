"""What `xref bench` measures and by what: the records that an operator's contenders are, and protocols of clocks."""

# ruff: noqa: D102  (the protocols' methods are described where they are implemented)

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["BACKWARD", "DIRECTIONS", "FORWARD", "Call", "Clock", "Contender", "Inputs", "Shape", "Timing"]

Call = Callable[[], Any]
FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")


class Clock(Protocol):
    """What measures laps: calls made back to back."""

    NAME: str

    def __enter__(self) -> Clock: ...
    def __exit__(self, *error: Any) -> None: ...
    def lap(self, key: str, call: Call, repeats: int) -> None: ...
    def seconds(self) -> dict[str, list[float]]: ...


class Timing(Protocol):
    """The names of `xref.torch_ops.timing` and `xref.jax_ops.timing`; their docstrings say what each does."""

    IDS: np.dtype[Any]

    def natives(self) -> dict[str, dict[str, Callable[..., Any]]]: ...
    def goldens(self) -> dict[str, dict[str, Callable[..., Any]]]: ...
    def backward_of(self, call: Callable[[Any, Any], Any], ids: Any, table: Any, cotangent: Any) -> Call: ...
    def copying(self, size: int, device: str) -> Call: ...
    def run(self, call: Call, repeats: int, device: str) -> None: ...
    def device_clock(self, device: str) -> Clock | None: ...


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is measured at once: one direction, table dtype and number of tokens."""

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
    """`copy`, `native`, `golden` or `candidate`."""
    moved: int
    """Bytes that a call must read and write."""
    result: int
    """Bytes of its result."""
    prepare: Callable[[Inputs], Call]
    """Makes the call to measure."""
    operator: Callable[[Any, Any], Any] | None = None
    """What is called, if it takes the operands alone: its peak memory can be measured."""
    form: tuple[tuple[int, ...], str] | None = None
    """Shape and dtype that a candidate's result must have; its elements are for `xref judge` to look at."""
