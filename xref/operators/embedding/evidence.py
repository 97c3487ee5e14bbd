"""What calls keep of a wrong output, so that it can be looked into: all that a diagnosis sees of a failure.

Where a varied call is wrong beside its plain one, `expected` is what the plain one gave.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from xref.bits import Bits
from xref.inputs import Ids
from xref.operators.embedding.bound import Exact

if TYPE_CHECKING:
    from xref.operators.embedding.calls.forward import Forward
    from xref.operators.embedding.calls.gradient import Gradient

__all__ = ["ForwardEvidence", "GradientEvidence"]


@dataclasses.dataclass(frozen=True)
class ForwardEvidence:
    """A wrong output of the forward beside the right one."""

    call: Forward
    """What gave `got`: the varied one, where the plain one is right."""
    ids: Ids
    """Any shape `S`."""
    table: Bits
    """The table's bits, `[V, H]`; of a sparse table the rows that it holds, of which `ids` are then the places."""
    got: Bits
    """Bits of the output, `S + (H,)`."""
    expected: Bits
    """As `got`."""


@dataclasses.dataclass(frozen=True)
class GradientEvidence:
    """A wrong gradient beside the exact sums."""

    call: Gradient
    """What gave `got`: the varied one, where the plain one is right."""
    ids: Ids
    """Any shape `S`, as they were asked for."""
    cotangent: Bits
    """Bits of what the kernel was given, `S + (H,)`: of an expanded one those that it shows."""
    exact: Exact
    """The exact sums of the rows that ids name."""
    got: Bits
    """Bits of the gradient, `[V, H]`."""
    off: Bits
    """Where sums of the rows of `exact` are past the bound, `[len(exact.rows), H]`, bool."""
