"""Ids that must be refused, because they are out of range or no integers (EMB-4)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from xref import bits, errors
from xref.bits import FORMATS, Bits
from xref.engine.calls import judged_inputs
from xref.engine.layouts import DENSE, ID_LAYOUTS
from xref.engine.steps import Died, NotMade, Output, Put, Raised, Read, Replies, Run, Script
from xref.inputs import make_table
from xref.operators.embedding import faults
from xref.operators.embedding.answers import exact_answer
from xref.operators.embedding.calls.bad_ids import HIDDEN, is_sum, suspects_of_row, suspects_of_sums
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, VERBS
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["BACKWARD", "Refusal"]

BACKWARD = "backward"
_MOST = 1 << 20  # rows, and ids, in a record
_SECONDS = 20.0  # for a step: a kernel that compiles for each shape may take its time, and an endless one ends


@functools.lru_cache(maxsize=16)
def _table(vocab: int, dtype: str) -> Bits:
    table = make_table("gaussian", vocab, HIDDEN, FORMATS[dtype])
    table.flags.writeable = False
    return table


class Refusal(Call, frozen=True, kw_only=True, tag="refusal"):
    """A verb called with ids of which at least one is out of range, or with ids that are no integers."""

    verb: str = "forward"
    """`forward`, `forward_fp32` or `backward`."""
    dtype: str
    """Table dtype; of a `backward` that of the cotangents."""
    vocab: int
    shape: tuple[int, ...] = (1,)
    """Of the ids."""
    values: tuple[tuple[int, int], ...] = ()
    """Places among the flat ids, and the ids there; every other id is its place modulo `vocab`."""
    id_dtype: str = "int64"
    layout: str = DENSE
    """Of the ids, a key of `xref.engine.layouts.ID_LAYOUTS`."""
    mode: str = ""
    """A grad mode or setting of the framework; empty: none."""

    def __post_init__(self) -> None:
        """Refuse what no report holds.

        Raises:
            ValueError: a name is not known, a size is none, or the ids are no bad ones of their dtype.
        """
        if self.verb not in (*VERBS, BACKWARD) or self.dtype not in FORMATS or self.layout not in (DENSE, *ID_LAYOUTS):
            raise ValueError(f"{self.verb}, {self.dtype}, {self.layout}, expected a verb, a table dtype and a layout")
        size = int(np.prod(self.shape, dtype=object))
        if not 0 <= self.vocab <= _MOST or min((*self.shape, 0)) < 0 or size > _MOST:
            raise ValueError(f"{self.vocab} rows, ids {self.shape}, expected sizes of a report")
        if not all(0 <= place < size for place, _ in self.values):
            raise ValueError(f"{self.values} among {size} ids, expected places of them")
        if self.integers:
            fits, ids = np.iinfo(self.id_dtype), [0, min(self.vocab, size) - 1, *(value for _, value in self.values)]
            if not self.bad() or (self.vocab and min(ids) < fits.min) or max(ids) > fits.max:
                raise ValueError(f"ids {ids} of {self.id_dtype} for {self.vocab} rows, expected one out of range")
        elif self.id_dtype not in FORMATS and np.dtype(self.id_dtype).kind not in "bc":
            raise ValueError(f"ids of {self.id_dtype}, expected a dtype of numbers")

    @classmethod
    def of(cls, ids: Any, vocab: int, **fields: Any) -> Refusal:
        """Return the call with these ids, nested sequences of integers."""
        array = np.array(ids, dtype=object)
        values = tuple(
            (place, value) for place, value in enumerate(array.reshape(-1).tolist()) if value != place % max(vocab, 1)
        )
        return cls(vocab=vocab, shape=array.shape, values=values, **fields)

    @property
    def integers(self) -> bool:
        """Whether the ids are integers: of others the dtype is wrong, not a value."""
        return np.dtype(self.id_dtype).kind in "iu" if self.id_dtype not in FORMATS else False

    def flat(self) -> list[int]:
        """Return the ids in row-major order."""
        size = int(np.prod(self.shape, dtype=np.int64))
        usual = list(range(min(self.vocab, size))) or [0]
        ids = (usual * (size // len(usual) + 1))[:size]
        for place, value in self.values:
            ids[place] = value
        return ids

    def bad(self) -> list[int]:
        """Return the places of ids out of range in row-major order."""
        if not self.vocab:
            return list(range(int(np.prod(self.shape, dtype=np.int64))))
        return [place for place, value in self.values if not 0 <= value < self.vocab]

    def error(self) -> Exception:
        """Return the exception that a golden must raise."""
        call = "grad_weight" if self.verb == BACKWARD else self.verb
        if not self.integers:
            return errors.bad_type("token_ids", f"dtype {self.id_dtype}", "an integer dtype", call)
        ids, bad = self.flat(), self.bad()
        return errors.ids_out_of_range(
            count=len(bad),
            total=len(ids),
            position=tuple(int(i) for i in np.unravel_index(bad[0], self.shape)),
            value=ids[bad[0]],
            vocab_size=self.vocab,
            call=call,
        )

    def script(self, exam: Exam) -> Script:
        """Return the call, and its inputs read back: an exception is no reason to change them."""
        table, key = _table(self.vocab, self.dtype), f"refusal {self.dtype} {self.vocab}"
        other = Put(name="weight", array=table, dtype=self.dtype, key=key)
        arguments: tuple[str | int, ...] = ("token_ids", "weight")
        if self.verb == BACKWARD:
            other = Put(name="cotangent", array=self._cotangent(), dtype=self.dtype)
            arguments = ("token_ids", "cotangent", self.vocab)
        run = Run(name="out", verb=self.verb, arguments=arguments, mode=self.mode)
        return Script(
            dtype="float64" if self.id_dtype == "float64" else self.dtype,
            steps=(self._ids(), other, run, Read(name="token_ids"), Read(name=other.name)),
            seconds=_SECONDS,
            hazardous=not exam.traits.golden,  # the goldens look at every id, and are many
        )

    def _ids(self) -> Put:
        flat = np.array(self.flat(), dtype=object).reshape(self.shape)
        if self.id_dtype == "bfloat16":
            words = (flat.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            return Put(name="token_ids", array=words, dtype="bfloat16")
        ids = np.asarray(flat, dtype=self.id_dtype)
        named = self.id_dtype in FORMATS
        array, dtype = (bits.as_bits(ids), self.id_dtype) if named else (ids, None)
        return Put(name="token_ids", array=array, dtype=dtype, layout=self.layout)

    def _cotangent(self) -> Bits:
        size = int(np.prod(self.shape, dtype=np.int64))
        return make_table("gaussian", size, HIDDEN, FORMATS[self.dtype]).reshape(*self.shape, HIDDEN)

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge that the ids were refused as they must be, and that the inputs have kept their bits."""
        seen, out = Seen(), replies.death or replies.of("out")
        if isinstance(out, NotMade):
            seen.skipped[self.check] = out.why
            return seen
        if isinstance(out, Died):
            self._fail(seen, f"process: got {out.how}, expected an error", self._of_death(out), aborts=not out.late)
        elif isinstance(out, Raised):
            self._judge_error(seen, out, exam)
        elif isinstance(out, Output):
            self._judge_result(seen, out, script, exam)
        if not seen.failures:
            seen.ok(self.check, self._elements())
            judged_inputs(seen, script, replies, ("token_ids", script.steps[1].name), out, CLAUSES_OF_EVERY_CALL)
        return seen

    def _elements(self) -> int:
        return max(int(np.prod(self.shape, dtype=np.int64)), 1)

    def _fail(self, seen: Seen, message: str, suspects: tuple[Suspect, ...], **more: Any) -> None:
        seen.fail(self.check, message, self._elements(), *suspects, **more)

    def _kind(self) -> str:
        """Return what is wrong with the ids: kernels fail on one kind and not on another."""
        if not self.integers:
            return f"{self.id_dtype} ids"
        if not self.vocab:
            return "id of an empty table"
        value = self.flat()[self.bad()[0]]
        if not -(2**31) <= value < 2**31:
            return "id past int32"
        return "id below zero" if value < 0 else "id past the end"

    def _of_death(self, out: Died) -> tuple[Suspect, ...]:
        if out.late:
            return (Suspect(0.9, faults.ENDLESS_LOOP.name, out.how),)
        ended = Suspect(0.9, faults.CRASH.name, out.how)
        if not self.integers:
            return (ended,)
        weight = 0.92 if "on the device" in out.how else 0.88
        return ended, Suspect(weight, faults.BAD_IDS_UNCHECKED.name, f"{self._kind()} led to {out.how}")

    def _judge_error(self, seen: Seen, out: Raised, exam: Exam) -> None:
        got = f"{out.line} at {out.where}" if out.where else out.line
        if exam.traits.golden:
            due = self.error()
            expected = f"{type(due).__name__}: {due}"
            if (out.type, out.text) != (type(due).__name__, str(due)):
                self._fail(seen, f"{self._kind()}: got {got}, expected {expected}", (), raised=out.line)
        elif self.integers and exam.out_of_range == "poison":
            self._fail(seen, f"{self._kind()}: got {got}, expected rows of NaN", (), raised=out.line)
        elif self.verb != BACKWARD and self._due() not in out.bases:  # of a backward no kind of error is asked
            suspect = Suspect(0.9, faults.REFUSES_WITH_ANOTHER_ERROR.name, f"the exception is {out.type}")
            self._fail(seen, f"{self._kind()}: got {got}, expected {self._due()}", (suspect,), raised=out.line)

    def _due(self) -> str:
        return "IndexError" if self.integers else "TypeError"

    def _judge_result(self, seen: Seen, out: Output, script: Script, exam: Exam) -> None:
        if self.verb == BACKWARD and not exam.traits.golden:
            self._judge_gradient(seen, out, script)
            return
        if self.integers and exam.out_of_range == "poison" and not exam.traits.golden:
            self._judge_poisoned(seen, out, script)
            return
        due = f"{self._due()}: {self.error()}" if exam.traits.golden else self._due()
        suspects = self._of_result(out, script)
        self._fail(seen, f"{self._kind()}: got a result, expected {due}", suspects)

    def _of_result(self, out: Output, script: Script) -> tuple[Suspect, ...]:
        """Return what the row that came back for the first bad id is consistent with."""
        if not self.integers:
            return (Suspect(0.9, faults.NON_INTEGER_IDS_TAKEN.name, f"ids of {self.id_dtype} gave a result"),)
        if out.array is None or out.form[0] != (*self.shape, HIDDEN) or self.verb == BACKWARD:
            return (Suspect(0.7, faults.BAD_IDS_UNCHECKED.name, "an id out of range gave a result"),)
        rows = exact_answer(self.verb, np.arange(self.vocab), script.array("weight"), self.dtype)
        place = self.bad()[0]
        return suspects_of_row(out.array.reshape(-1, HIDDEN)[place], self.flat()[place], rows, out.form[1])

    def _judge_poisoned(self, seen: Seen, out: Output, script: Script) -> None:
        """Judge that ids out of range gave rows of NaN, and the others their own."""
        if out.array is None or out.form[0] != (*self.shape, HIDDEN) or out.form[1] not in FORMATS:
            suspects = (Suspect(0.9, faults.WRONG_SHAPE.name, f"the shape is {out.form[0]}"),)
            self._fail(seen, f"out: got shape {out.form[0]}, expected rows of NaN", suspects)
            return
        rows, bad = out.array.reshape(-1, HIDDEN), np.isin(np.arange(self._elements()), self.bad())
        bad = bad[: len(rows)]
        if not bits.is_nan(rows[bad], FORMATS[out.form[1]]).all():
            message = f"{self._kind()}: got a row of values, expected NaN"
            self._fail(seen, message, self._of_result(out, script))
            return
        inside = np.array([value for value in self.flat() if 0 <= value < self.vocab], dtype=np.int64)
        if inside.size:
            answer = exact_answer(self.verb, inside, script.array("weight"), self.dtype)
            if not np.array_equal(rows[~bad], answer):
                self._fail(seen, "out: got other bits beside an id out of range, expected the rows", ())

    def _judge_gradient(self, seen: Seen, out: Output, script: Script) -> None:
        """Judge that a gradient is the sum of what the ids in range name: a backward may leave the others out."""
        cotangent = script.array("cotangent").reshape(-1, HIDDEN)
        ids = self.flat()
        got = np.zeros(0, np.uint8) if out.array is None else out.array
        if not is_sum(got, ids, cotangent, self.dtype):
            message = "gradient: got something from an id out of range, expected an error or the sums of the others"
            self._fail(seen, message, suspects_of_sums(got, ids, cotangent, self.dtype))

    def plainer(self) -> Iterator[Call]:
        """Yield the call without its mode or layout, with one bad id, in one dimension, and of int64."""
        if self.mode:
            yield msgspec.structs.replace(self, mode="")
        if self.layout != DENSE:
            yield msgspec.structs.replace(self, layout=DENSE)
        if self.integers and self.vocab and len(self.values) > 1:
            place = self.bad()[0]
            yield msgspec.structs.replace(self, values=((place, self.flat()[place]),))
        if len(self.shape) != 1:
            yield msgspec.structs.replace(self, shape=(int(np.prod(self.shape, dtype=np.int64)),))
        if self.integers and self.id_dtype != "int64" and -(2**63) <= min(self.flat()) <= max(self.flat()) < 2**63:
            yield msgspec.structs.replace(self, id_dtype="int64")

    def sizes(self) -> dict[str, int]:
        """Return the number of tokens."""
        return {"tokens": int(np.prod(self.shape, dtype=np.int64))}

    def resized(self, name: str, size: int) -> Call | None:
        """Return the call with so many ids in one dimension, the bad one the last of them at the latest."""
        if size < 1 or len(self.values) > 1:
            return None
        values = tuple((min(place, size - 1), value) for place, value in self.values)
        return msgspec.structs.replace(self, shape=(size,), values=values)

    def __str__(self) -> str:
        ids, bad = self.flat(), self.bad()
        what = f"{ids[bad[0]]} at {bad[0]} of {len(ids)}" if bad else f"{len(ids)} of them"
        what = str(ids) if len(ids) <= 8 else what
        how = [f"{'x'.join(map(str, self.shape)) or '0-dimensional'}"] if len(self.shape) != 1 else []
        how += [each for each in (self.id_dtype, self.layout, self.mode) if each not in ("int64", DENSE, "")]
        return ", ".join([self.verb, f"{self.dtype} table of {self.vocab} rows", f"ids: {what}", *how])
