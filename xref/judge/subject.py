"""What every examination shares: the subject, and how its outputs and its errors become results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from xref.bits import Bits
from xref.contracts import embedding as contract
from xref.judge.frameworks import Framework
from xref.judge.verdict import Ledger

__all__ = [
    "ACCURACY",
    "BEFORE",
    "EXACT",
    "FIRST",
    "FIXED_OVERHEAD",
    "FIXTURES",
    "MAIN",
    "PLAIN",
    "MisformedError",
    "Progress",
    "Subject",
    "described",
    "formed",
    "judging",
    "main_dtypes",
    "shared_memory",
    "widest",
]

Progress = Callable[[str, int, int], None]
"""Told what is at work, how much of a run is done and how much there is."""

EXACT, BEFORE, FIRST, PLAIN = "exact", "inputs before", "first call", "plain call"
"""What results are compared with."""

MAIN = ("bfloat16", "float32")
"""The dtypes on which everything is tried; the others get what is quick."""

FIXED_OVERHEAD = 4 << 20
"""Bytes that a call may take at any size (EMB-12): blocks of a fixed size, ids widened to int64."""

ACCURACY = {"forward": "EMB-1", "forward_fp32": "EMB-2"}
"""The clause that each verb's bits are judged by."""

FIXTURES = "fixtures"
"""The clause-like name under which inputs are compared with the pinned digests."""


_SAID = 500  # characters of an exception's message


@dataclasses.dataclass(frozen=True)
class Subject:
    """One framework's golden on one device."""

    framework: Framework
    device: str

    @property
    def where(self) -> tuple[str, str]:
        """Framework and device, as a verdict names them."""
        return self.framework.NAME, self.device


Form = tuple[tuple[int, ...], str, str]
"""Shape, dtype and device of an output."""


class MisformedError(Exception):
    """An output has another shape, dtype or device than it must have."""

    def __init__(self, got: Form, wanted: Form, why: str = "") -> None:
        self.got, self.wanted = got, wanted
        shown = [f"shape {shape}, {dtype}, on {device}" for shape, dtype, device in (got, wanted)]
        super().__init__(f"out: got {shown[0]}{why and f', that cannot be read ({why})'}, expected {shown[1]}")


@contextlib.contextmanager
def judging(ledger: Ledger, subject: Subject, clause: str, against: str, call: str) -> Iterator[None]:
    """Record what is raised inside as a problem of the clause: whatever an operator raises is a result to report."""
    try:
        yield
    except MisformedError as error:
        ledger.record(clause, subject.where, against, elements=0, problem=str(error), call=call)
    except (Exception, SystemExit) as error:
        ledger.error(clause, subject.where, against, described(error), call=call)


def described(error: BaseException) -> str:
    """Return the error's type and the first line of its message: frameworks append a page of advice.

    What cannot be printed is escaped, so that it fits into any report.
    """
    try:
        text = str(error)
    except (Exception, SystemExit):  # an operator's own exception may fail at this, too
        text = ""
    first = text.strip().partition("\n")[0][:_SAID]
    first = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in first)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def main_dtypes(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the dtypes that are `MAIN`, or the first if none is."""
    return tuple(dtype for dtype in dtypes if dtype in MAIN) or dtypes[:1]


def widest(source: str, result: str) -> str:
    """Return the dtype that the framework's precision must allow where a gradient goes from `source` to `result`."""
    return "float64" if "float64" in (source, result) else source


def shared_memory(framework: Framework, out: Any, inputs: dict[str, Any]) -> list[str]:
    """Return the names of the inputs whose memory an output overlaps."""
    first, last = framework.memory_of(out)
    spans = {name: framework.memory_of(given) for name, given in inputs.items()}
    return [name for name, (start, stop) in spans.items() if max(first, start) < min(last, stop)]


def formed(framework: Framework, out: Any, wanted: Form) -> Bits:
    """Return the bits of an output of the right shape, dtype and device.

    Raises:
        MisformedError: it has another; comparing it all the same would broadcast, or compare bits of two dtypes. Or it
            has no elements in memory, as a sparse one.
    """
    form: Form = ((), type(out).__name__, "none")
    try:
        form = framework.form_of(out)
        if form == wanted:
            return framework.bits_of(out)
    except Exception as error:  # an output may be anybody's class
        raise MisformedError(form, wanted, described(error)) from error
    raise MisformedError(form, wanted)


def record_inputs(
    case_id: str, made: contract.Pinned, ledger: Ledger, *, elements: int, weakness: str | None = None
) -> None:
    """Record whether the inputs and exact answers of a case are those that the package pins.

    `weakness` says what else is wrong with the case as evidence; other digests come first.
    """
    expected = contract.pinned().get(case_id)
    problem = weakness if made == expected else f"{case_id}: got {made}, expected {expected or 'nothing pinned'}"
    ledger.record(
        FIXTURES, ("numpy", "cpu"), "pinned digests", elements=elements, problem=problem, call=f"build {case_id}"
    )
