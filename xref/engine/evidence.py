"""What was seen of a failure, of any operator: what an operator's diagnosis reads, in place of the message.

Where a call gave no output, the evidence is the reply itself: `xref.engine.steps.Raised` or `Died`.
"""

from __future__ import annotations

import dataclasses

from xref.engine.steps import Form

__all__ = ["Misformed", "Reused", "Rewritten", "Shared"]


@dataclasses.dataclass(frozen=True)
class Misformed:
    """An output has another shape or dtype, or is elsewhere."""

    got: Form
    expected: Form


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """An input has other bits after the call."""

    name: str


@dataclasses.dataclass(frozen=True)
class Shared:
    """An output lies in the memory of an input."""

    name: str


@dataclasses.dataclass(frozen=True)
class Reused:
    """An output has other bits after a later call."""
