"""What a call comes to where the subject is: a script of plain steps, and a reply to each.

A script is performed in order, by `xref.engine.executor`, in this process or another. It holds inputs and no answers.
Arrays are NumPy's: tables as the unsigned integers of their elements' bits, ids as they are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np

__all__ = [
    "Add", "Count", "Died", "Differentiate", "Done", "Drop", "Form", "NotMade", "Output", "Overwrite", "Peak", "Put",
    "Raised", "Read", "Replies", "Reply", "Reuse", "Run", "Script", "Step",
]  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]
Form = tuple[tuple[int, ...], str, str]
"""Shape, dtype and kind of device of an array."""


class _Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="step"):
    """One step; `name` is what later steps know its result by."""

    name: str


class Put(_Step, frozen=True, kw_only=True):
    """Bring an array to the device, in memory of its own."""

    array: Array
    """Dense; where it is to be another layout, that is made of it where the subject is."""
    rows: Array | None = None
    """Rows of a table that `array` holds, the others being zeros; None: it holds all of them."""
    vocab: int = 0
    """How many rows the table has where `array` holds some of them."""
    dtype: str | None = None
    """Table dtype of the bits; None: a plain array, such as ids."""
    layout: str = "dense"
    """A key of `xref.engine.layouts.LAYOUTS`."""
    host: bool = False
    """Whether it stays a NumPy array."""
    key: str = ""
    """What the array may be kept under for later scripts that put the same; empty: it is not kept."""
    checksums: tuple[int, ...] = ()
    """Of an array that is too large to be copied, as `xref.engine.blocks` makes them: a subject gets its memory."""


class Reuse(_Step, frozen=True, kw_only=True):
    """Take the array that an earlier script put under a key; the engine writes it for a `Put` of what is kept."""

    key: str


class Overwrite(_Step, frozen=True, kw_only=True):
    """Write other contents into the array of that name; `NotMade` where the framework cannot."""

    array: Array
    counted: bool
    """In a way that autograd's version counter shows."""


class Run(_Step, frozen=True, kw_only=True):
    """Call a verb; the result is kept as `name`, and read back."""

    verb: str
    arguments: tuple[str | int, ...]
    """Names of arrays, and plain numbers."""
    mode: str = ""
    """A transform, grad mode or setting of the framework, or `traced`; empty: a plain call."""
    refusable: bool = False
    """Whether an exception means that the call is refused in this mode."""
    options: dict[str, str | int] = {}
    """Keyword arguments of a golden's."""


class Differentiate(_Step, frozen=True, kw_only=True):
    """Take the gradient of a verb with respect to its last argument, in the framework's own way."""

    verb: str
    arguments: tuple[str, ...]
    cotangent: str
    way: str = ""
    """A key of the framework's `gradient_calls`, or `traced`; empty: the ordinary way."""
    mode: str = ""
    """A setting of the framework."""


class Add(_Step, frozen=True, kw_only=True):
    """Add two arrays of the device, and read the sum back."""

    first: str
    second: str


class Read(_Step, frozen=True, kw_only=True):
    """Read the array of that name back as it is now."""

    rows: Array | None = None
    """Only these rows; None: all."""


class Peak(_Step, frozen=True, kw_only=True):
    """Measure the most memory that a call holds beyond its inputs, its output included, in bytes."""

    verb: str
    arguments: tuple[str | int, ...]
    warm: tuple[str | int, ...]
    """Arguments of the first call, which is not measured."""
    mode: str = ""


class Drop(_Step, frozen=True, kw_only=True):
    """Give the array of that name, or one kept under that key, back."""


Step = Put | Reuse | Overwrite | Run | Differentiate | Add | Read | Peak | Drop


class _Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True, tag_field="reply"):
    pass


class Done(_Reply, frozen=True, kw_only=True):
    """The step was performed, and gives nothing."""


class Output(_Reply, frozen=True, kw_only=True):
    """An array that came of a step."""

    form: Form
    array: Array | None = None
    """Its bits, or its integers; None where it cannot be read."""
    unreadable: str = ""
    """Why it cannot be read."""
    memory: tuple[int, int] = (0, 0)
    """Its first address and the one past its last."""


class Raised(_Reply, frozen=True, kw_only=True):
    """The step raised an exception."""

    type: str
    bases: tuple[str, ...] = ()
    """Names of its type's bases, itself first."""
    text: str = ""
    """The whole message."""
    line: str = ""
    """Its first line, with the type: `ValueError: ids out of range`."""
    where: str = ""
    """File and line of the subject's own code, such as `my_kernels.py:12`."""
    refused: bool = False
    """Whether the call was refused in a mode that may be refused."""
    unconnected: bool = False
    """Whether it says that there is no gradient to be asked for."""


class Count(_Reply, frozen=True, kw_only=True):
    """A number that came of a step."""

    value: int


class NotMade(_Reply, frozen=True, kw_only=True):
    """The step could not be made: what it needs failed before, or does not exist in this framework."""

    why: str


class Died(_Reply, frozen=True, kw_only=True):
    """The subject's process ended, or did not answer in time."""

    how: str
    """`death by SIGSEGV`, `exit with code 3`, `no answer within 60 s`."""
    late: bool = False
    """Whether it did not answer in time."""
    stderr: str = ""
    """The last of what it wrote to stderr."""


Reply = Done | Output | Raised | Count | NotMade | Died


@dataclasses.dataclass(frozen=True)
class Script:
    """Steps that are performed in order, in the precision of a dtype."""

    dtype: str
    """The framework's precision must allow this dtype: JAX has float64 only where it is asked for."""
    steps: tuple[Step, ...]
    seconds: float = 0.0
    """How long a step may take; 0: as long as the stand allows any."""
    hazardous: bool = False
    """Whether it may end the process, as ids out of range may: then it is made in another one if that can be helped."""

    def array(self, name: str) -> Array:
        """Return the array that a name was put with, or overwritten with last."""
        return next(
            step.array for step in reversed(self.steps) if step.name == name and isinstance(step, Put | Overwrite)
        )


class Replies:
    """The replies to a script's steps, in order; steps after a death have none."""

    def __init__(self, script: Script, replies: list[Reply]) -> None:
        self._script, self.replies = script, replies

    def __getitem__(self, place: int) -> Reply:
        """Return the reply to the step at a place; after a death, the death."""
        return self.replies[place] if place < len(self.replies) else self.replies[-1]

    def of(self, name: str, kind: type | tuple[type, ...] = (Run, Differentiate, Add, Peak), *, nth: int = 0) -> Reply:
        """Return the reply to the n-th step of that name and of one of the kinds."""
        places = [n for n, step in enumerate(self._script.steps) if step.name == name and isinstance(step, kind)]
        return self[places[nth]]

    @property
    def death(self) -> Died | None:
        """How the subject's process ended, if it did."""
        last = self.replies[-1] if self.replies else None
        return last if isinstance(last, Died) else None
