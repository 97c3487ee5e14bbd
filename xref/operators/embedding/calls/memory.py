"""The memory that a call takes beside its inputs (EMB-12)."""

from __future__ import annotations

import numpy as np

from xref.bits import FORMATS
from xref.engine.layouts import DENSE, TABLE_LAYOUTS
from xref.engine.steps import Count, Died, Peak, Put, Raised, Replies, Script
from xref.inputs import make_table
from xref.operators.embedding import faults
from xref.operators.embedding.clauses import result_dtype, verbs_of
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["FIXED_OVERHEAD", "PeakMemory"]

FIXED_OVERHEAD = 4 << 20
"""Bytes that a call may take at any size: blocks of a fixed size, ids widened to int64."""

_VOCAB, _BITS_OF_A_ROW = 151936, 1024  # a table that is so large that a copy of it cannot hide
_TOKENS = 64
# What grad_rows may hold for an element of the cotangents: the sums in their working form, before they are rounded.
_BYTES_AN_ELEMENT = 128


class PeakMemory(Call, frozen=True, kw_only=True, tag="peak-memory"):
    """A verb called with few ids of a large table."""

    verb: str = "forward"
    """`forward`, `forward_fp32`, or a golden's `grad_rows`."""
    dtype: str
    """Table dtype; of `grad_rows` that of the cotangents."""
    layout: str = DENSE
    """Of the table, a key of `xref.engine.layouts.TABLE_LAYOUTS`."""
    mode: str = ""
    """A grad mode of the framework; empty: none."""

    def __post_init__(self) -> None:
        """Refuse what no report holds.

        Raises:
            ValueError: no verb takes such a table, or it can have no such layout.
        """
        if self.dtype not in FORMATS or self.verb not in (*verbs_of(self.dtype), "grad_rows"):
            raise ValueError(f"{self.verb} of {self.dtype}, expected a verb and a table dtype that it takes")
        if self.layout not in (DENSE, *TABLE_LAYOUTS):
            raise ValueError(f"layout {self.layout}, expected that of a report")

    @property
    def hidden(self) -> int:
        """How many columns the table has."""
        return _BITS_OF_A_ROW // FORMATS[self.dtype].width

    def limit(self) -> int:
        """Return how many bytes the call may take."""
        if self.verb == "grad_rows":
            return _BYTES_AN_ELEMENT * _TOKENS * self.hidden + FIXED_OVERHEAD
        width = FORMATS[result_dtype(self.verb, self.dtype)].width
        return int(1.2 * (_TOKENS * self.hidden * width // 8)) + FIXED_OVERHEAD

    def script(self, exam: Exam) -> Script:
        """Return the measurement, after a call with other arrays: what is kept of one must not make the next free."""
        ids = np.arange(_TOKENS, dtype=np.int32 if exam.traits.traces else np.int64) * (_VOCAB // _TOKENS)
        rows, rest = (_TOKENS, (_VOCAB,)) if self.verb == "grad_rows" else (_VOCAB, ())
        table = make_table("hashed", rows, self.hidden, FORMATS[self.dtype])
        arrays = [Put(name=name, array=table, dtype=self.dtype, layout=self.layout) for name in ("warm", "weight")]
        peak = Peak(
            name="peak",
            verb=self.verb,
            arguments=("token_ids", "weight", *rest),
            warm=("token_ids", "warm", *rest),
            mode=self.mode,
        )
        return Script(dtype=self.dtype, steps=(Put(name="token_ids", array=ids), *arrays, peak))

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge that the peak is within the limit; what cannot be measured is a failure of a golden's alone."""
        seen, reply, limit = Seen(), replies.of("peak"), self.limit()
        if isinstance(reply, Count) and reply.value <= limit:
            seen.ok(self.check, _TOKENS)
        elif isinstance(reply, Count):
            size = _VOCAB * self.hidden * FORMATS[self.dtype].width // 8
            message = f"peak extra memory: got {reply.value} bytes, expected at most {limit} (the table has {size})"
            suspect = Suspect(0.9, faults.WHOLE_TABLE_COPIED.name, f"the call took {reply.value} bytes")
            seen.fail(self.check, message, _TOKENS, *([suspect] if reply.value >= size else []))
        elif isinstance(reply, Died):
            seen.fail(self.check, f"process: got {reply.how}, expected a result", _TOKENS, aborts=not reply.late)
        elif isinstance(reply, Raised) and exam.traits.golden:
            seen.fail(self.check, f"peak extra memory: got {reply.line}, expected a number", _TOKENS, raised=reply.line)
        else:
            why = reply.line if isinstance(reply, Raised) else getattr(reply, "why", "no number")
            seen.skipped[self.check] = f"{self.verb}'s memory cannot be measured: {why}"
        return seen

    def __str__(self) -> str:
        how = [each for each in (self.layout, self.mode) if each not in (DENSE, "")]
        return ", ".join([self.verb, f"{self.dtype} table of {_VOCAB} x {self.hidden}", *how, f"{_TOKENS} ids"])
