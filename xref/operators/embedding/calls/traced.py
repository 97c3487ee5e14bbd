"""Ids out of range under a trace, where nothing can be raised (EMB-4/traced)."""

from __future__ import annotations

import numpy as np

from xref import bits
from xref.bits import FORMATS, Bits
from xref.engine.calls import judged_output
from xref.engine.compare import mismatch
from xref.engine.steps import Differentiate, NotMade, Put, Raised, Replies, Run, Script, Step
from xref.inputs import make_table
from xref.operators.embedding.answers import exact_answer
from xref.operators.embedding.calls.bad_ids import suspects_of_row, suspects_of_sums
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, result_dtype, verbs_of
from xref.spec import Call, Exam, Seen

__all__ = ["TracedRefusal"]

_IDS = (0, 4, 5, -1, -6, 2, 2**31 - 1, -(2**31))
_VOCAB, _HIDDEN, _FEW = 5, 33, 3


class TracedRefusal(Call, frozen=True, kw_only=True, tag="traced-refusal"):
    """A verb, or its gradient, traced with ids of which some are out of range."""

    verb: str = "forward"
    dtype: str = "float32"
    """Table dtype."""
    gradient: bool = False
    """Whether the framework differentiates the verb, with cotangents that are all 1."""

    def __post_init__(self) -> None:
        """Refuse what no report holds.

        Raises:
            ValueError: no verb takes such a table.
        """
        if self.dtype not in FORMATS or self.verb not in verbs_of(self.dtype):
            raise ValueError(f"{self.verb} of {self.dtype}, expected a verb and a table dtype that it takes")

    def script(self, exam: Exam) -> Script:
        """Return the traced call."""
        hidden = _FEW if self.gradient else _HIDDEN
        table = make_table("gaussian", _VOCAB, hidden, FORMATS[self.dtype])
        steps: tuple[Step, ...] = (
            Put(name="token_ids", array=np.array(_IDS, dtype=np.int32)),
            Put(name="weight", array=table, dtype=self.dtype),
        )
        if self.gradient:
            wide = result_dtype(self.verb, self.dtype)
            steps += (
                Put(name="cotangent", array=_ones((len(_IDS), hidden), wide), dtype=wide),
                Differentiate(
                    name="out",
                    verb=self.verb,
                    arguments=("token_ids", "weight"),
                    cotangent="cotangent",
                    way="traced",
                ),
            )
        else:
            steps += (Run(name="out", verb=self.verb, arguments=("token_ids", "weight"), mode="traced"),)
        return Script(dtype=self.dtype, steps=steps)

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge that ids out of range gave rows of NaN, and added nothing to the gradient."""
        seen, out = Seen(), replies.of("out")
        dtype = self.dtype if self.gradient else result_dtype(self.verb, self.dtype)
        expected = self._expected(script)
        if isinstance(out, NotMade):
            seen.skipped[self.check] = out.why
            return seen
        if isinstance(out, Raised) and not exam.traits.golden:
            how = "differentiated under a trace" if self.gradient else "traced"
            seen.skipped[self.check] = f"{self.verb} cannot be {how}: {out.line}"
            return seen
        form = (expected.shape, dtype, exam.traits.device)
        got = judged_output(seen, out, form, self.check, CLAUSES_OF_EVERY_CALL)
        if got is not None:
            self._judge_bits(seen, got, expected, script, golden=exam.traits.golden)
        return seen

    def _expected(self, script: Script) -> Bits:
        """Return the rows, those of ids out of range being the quiet NaN; or the gradient."""
        ids, table = np.array(_IDS), script.array("weight")
        inside = (ids >= 0) & (ids < _VOCAB)
        if self.gradient:  # each id in range is there once
            expected = np.zeros_like(table)
            expected[ids[inside]] = _ones((1, table.shape[1]), self.dtype)
            return expected
        rows = np.array(exact_answer(self.verb, np.where(inside, ids, 0), table, self.dtype))
        rows[~inside] = FORMATS[result_dtype(self.verb, self.dtype)].nan
        return rows

    def _judge_bits(self, seen: Seen, got: Bits, expected: Bits, script: Script, *, golden: bool) -> None:
        fmt = FORMATS[self.dtype if self.gradient else result_dtype(self.verb, self.dtype)]
        if self.gradient:
            if np.array_equal(got, expected):
                seen.ok(self.check, got.size)
                return
            suspects = suspects_of_sums(got, list(_IDS), _ones((len(_IDS), _FEW), self.dtype), self.dtype)
            message = "gradient: got something from an id out of range, expected the sums of the others"
            seen.fail(self.check, message, len(_IDS), *suspects)
            return
        bad = bits.is_nan(expected, fmt).all(axis=1)
        wrong = np.flatnonzero(bad & ~bits.is_nan(got, fmt).all(axis=1))
        if wrong.size:
            rows = exact_answer(self.verb, np.arange(_VOCAB), script.array("weight"), self.dtype)
            place = int(wrong[0])
            suspects = suspects_of_row(got[place], _IDS[place], rows, fmt.name)
            message = f"out[{place}]: got a row of values for an id out of range, expected NaN"
            seen.fail(self.check, message, len(_IDS), *suspects)
        elif not np.array_equal(got[~bad], expected[~bad]):
            message = "out: got other bits beside an id out of range, expected the rows"
            seen.fail(self.check, message, len(_IDS))
        elif golden and (miss := mismatch(got, expected, fmt)):
            seen.fail(self.check, miss, len(_IDS))
        else:
            seen.ok(self.check, got.size)

    def __str__(self) -> str:
        what = f"gradient of {self.verb}" if self.gradient else self.verb
        return f"{what} under a trace, {self.dtype} table of {_VOCAB} rows, ids {list(_IDS)}"


def _ones(shape: tuple[int, int], dtype: str) -> Bits:
    fmt = FORMATS[dtype]
    return np.full(shape, fmt.bias << fmt.mantissa_bits, dtype=fmt.uint)
