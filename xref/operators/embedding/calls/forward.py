"""Calls of the forward: plain, in other memory, in another mode, and again and again."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.calls import Clauses, Invocation, unmade
from xref.engine.compare import Exactly, Rule
from xref.engine.layouts import DENSE, SLICE, contents
from xref.engine.steps import Output, Put, Raised, Replies, Run, Script
from xref.inputs import Ids
from xref.operators.embedding import faults
from xref.operators.embedding.answers import exact_answer
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, result_dtype
from xref.operators.embedding.evidence import ForwardEvidence
from xref.operators.embedding.families import checksums_of, ids_of, table_of
from xref.spec import Call, Exam, Failure, Fault, Seen, Suspect

__all__ = ["Forward", "NarrowedTable", "arrays_of", "suspects_of"]

_OPTIONAL_SECONDS = 10.0  # for a transform that a kernel need not support: a compiler may unroll its loops
_SHOWN = 8  # ids of a call in words
_HALVED = 1 << 16  # ids that are written out when a call is made smaller

_TABLE_FAULTS: dict[str, tuple[Fault, ...]] = {
    "rows and columns between others": (faults.TABLE_STRIDES_IGNORED, faults.STORAGE_OFFSET_IGNORED),
    "offset by one element": (faults.STORAGE_OFFSET_IGNORED,),
    "rows of a larger one": (faults.STORAGE_OFFSET_IGNORED,),
    "columns of a larger one": (faults.STORAGE_OFFSET_IGNORED, faults.TABLE_STRIDES_IGNORED),
    "read-only": (),
}
_ID_FAULTS: dict[str, tuple[Fault, ...]] = {
    "offset by one": (faults.STORAGE_OFFSET_IGNORED,),
    SLICE: (faults.STORAGE_OFFSET_IGNORED,),
    "read-only": (),
}
_MODE_FAULTS: dict[str, tuple[Fault, ...]] = {
    "EMB-7/gradient": (faults.GRADIENT_MODE_DEPENDENT,),
    "EMB-7/settings": (faults.SETTING_DEPENDENT,),
}


def suspects_of(found: tuple[Fault, ...], weight: float, seen: str) -> tuple[Suspect, ...]:
    """Return a suspect for each fault, the first one the likeliest."""
    return tuple(Suspect(weight - 0.02 * n, fault.name, seen) for n, fault in enumerate(found))


class Forward(Invocation, frozen=True, kw_only=True, tag="forward"):
    """A verb of the forward on a table and ids of some families."""

    vocab: int
    hidden: int
    table: str = "tagged"
    """Family of the table: how its elements' bits come about (`xref.inputs.make_table`, `families.TABLES`)."""
    ids: str | tuple[int, ...]
    """Family of the ids (`xref.inputs.make_ids`, `families.IDS`), or the ids themselves, in row-major order."""
    shape: tuple[int, ...]
    """Shape `S` of the ids."""
    id_dtype: str = "int64"
    layout: str = DENSE
    """Of the table in memory: a key of `xref.engine.layouts.LAYOUTS`."""
    id_layout: str = DENSE
    """Of the ids in memory."""
    offset: int = 0
    """First element of a `patterns` table, first row of a `hashed` one: two tables of one family differ by it."""

    clauses: ClassVar[Clauses] = CLAUSES_OF_EVERY_CALL

    def __str__(self) -> str:
        if isinstance(self.ids, str):
            ids = self.ids
        else:
            ids = f"ids [{', '.join(map(str, self.ids[:_SHOWN]))}{', ...' * (len(self.ids) > _SHOWN)}]"
        parts = [self.verb, self.dtype, f"{self.vocab}x{self.hidden}", self.table, ids, self._shape(), self.id_dtype]
        parts += [f"table {self.layout}"] if self.layout != DENSE else []
        parts += [f"ids {self.id_layout}"] if self.id_layout != DENSE else []
        parts += [self.mode] if self.mode else []
        parts += [f"{self.repeats + 1} times"] if self.repeats else []
        return " ".join(parts)

    def _shape(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"

    @property
    def id(self) -> str:
        """A readable name of the inputs, which digests are pinned by: `bfloat16-tagged-300x33-zipf-257-int64`."""
        offset = f"+{self.offset:#x}" if self.offset else ""
        ids = f"{self.ids}-{self._shape()}-{self.id_dtype}"
        return f"{self.dtype}-{self.table}{offset}-{self.vocab}x{self.hidden}-{ids}"

    @property
    def tokens(self) -> int:
        """How many ids there are."""
        return math.prod(self.shape)

    def token_ids(self) -> Ids:
        """Return the ids, dense; where they share memory, those that it shows."""
        if isinstance(self.ids, str):
            ids = ids_of(self.ids, self.shape, self.vocab, self.id_dtype)
        else:
            ids = np.array(self.ids, dtype=self.id_dtype).reshape(self.shape)
        return contents(ids, self.id_layout)

    def weight(self) -> tuple[Bits, Ids | None]:
        """Return the table's bits, dense, and which rows they are: None where it is all of them."""
        ids = self.token_ids() if self.table in ("sparse", "poisoned") else ()
        return table_of(self.table, self.vocab, self.hidden, self.dtype, self.offset, ids)

    def inputs(self, exam: Exam) -> tuple[Put, ...]:
        """Return ids and table, dense."""
        table, rows = self.weight()
        key = f"{self.dtype} {self.table} {self.vocab}x{self.hidden} {self.offset}" if rows is None else ""
        return (
            Put(name="token_ids", array=self.token_ids()),
            Put(
                name="weight",
                array=table,
                rows=rows,
                vocab=self.vocab if rows is not None else 0,
                dtype=self.dtype,
                key="" if self.table == "poisoned" else key,
                checksums=checksums_of(table),
            ),
        )

    def script(self, exam: Exam) -> Script:
        """Return the plain call, the varied one or the repeats, and the inputs read back."""
        script = super().script(exam)
        return dataclasses.replace(script, seconds=_OPTIONAL_SECONDS) if self.refusable(exam) else script

    def rule(self, script: Script) -> Exactly:
        """Return the exact rows, widened if the verb does that."""
        ids, table = arrays_of(script)
        answer = exact_answer(self.verb, ids, table, self.dtype)
        return Exactly(answer, FORMATS[result_dtype(self.verb, self.dtype)])

    def varied(self, inputs: tuple[Put, ...]) -> tuple[Put, ...]:
        """Return ids and table in the layouts of the call."""
        if self.layout == self.id_layout == DENSE:
            return inputs
        layouts = {"token_ids": self.id_layout, "weight": self.layout}
        return tuple(msgspec.structs.replace(each, layout=layouts[each.name]) for each in inputs)

    def plain(self) -> Forward:
        """Return the same call in dense memory and no mode."""
        return msgspec.structs.replace(self, mode="", layout=DENSE, id_layout=DENSE, **self._dense_ids())

    def _dense_ids(self) -> dict[str, Any]:
        shared = not np.array_equal(self.token_ids(), msgspec.structs.replace(self, id_layout=DENSE).token_ids())
        return {"ids": tuple(self.token_ids().reshape(-1).tolist())} if shared else {}

    def condition(self) -> str:
        """Return the check of the mode that the call is made in, else that of layouts."""
        return self.check if self.mode else "EMB-7/layout"

    def suspects_of_variation(self) -> tuple[Suspect, ...]:
        """Return the faults of such memory, or of such a mode."""
        if self.mode:
            found = _MODE_FAULTS.get(self.check, ())
            return suspects_of(found, 0.99, f"the call is right, and other than that with {self.mode}")
        found = _TABLE_FAULTS.get(self.layout, (faults.TABLE_STRIDES_IGNORED,)) if self.layout != DENSE else ()
        if self.id_layout != DENSE:
            found += _ID_FAULTS.get(self.id_layout, (faults.IDS_STRIDES_IGNORED,))
        return suspects_of(found, 0.55, "dense memory is read right, and this is not")

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge form, bits and purity of every output; of repeats that they are alike, and stay what they were."""
        seen = super().judge(script, replies, exam)
        for failure in seen.failures:
            if isinstance(failure.call, Forward) and isinstance(failure.evidence, ForwardEvidence):
                failure.evidence = dataclasses.replace(failure.evidence, call=failure.call)
        unlike = seen.failed(self.clauses.repeat)
        if unlike is not None:
            self._explain_repeats(unlike, replies)
        return seen

    def _explain_repeats(self, unlike: Failure, replies: Replies) -> None:
        """Tell what changes with the number of calls from what changes by chance: outputs of two kinds, or of more."""
        runs = [replies.of(name) for name in ("out", *(f"out {n}" for n in range(1, self.repeats + 1)))]
        made = [run.array.tobytes() for run in runs if isinstance(run, Output) and run.array is not None]
        kinds = len(set(made))
        found = (faults.CALL_COUNT_DEPENDENT, faults.RUN_TO_RUN)
        seen = f"{len(runs)} calls alike gave outputs of {kinds} kind{'s' * (kinds != 1)}"
        unlike.suspects = suspects_of(found[::-1] if kinds > 2 else found, 0.99, seen)

    def evidence(self, script: Script, got: Bits, rule: Rule) -> Any:
        """Return the output beside the right one, with the ids and the rows that it is of."""
        ids, table = arrays_of(script)
        return ForwardEvidence(self, ids, table, got, rule.bits if isinstance(rule, Exactly) else rule.low)

    # Smaller ones

    def plainer(self) -> Iterator[Call]:
        """Yield the call without what is unusual, then each half of its ids."""
        yield from super().plainer()
        put = functools.partial(msgspec.structs.replace, self)
        if self.layout != DENSE:
            yield put(layout=DENSE)
        if self.id_layout != DENSE:
            yield put(id_layout=DENSE)
        if self.offset:
            yield put(offset=0)
        if self.id_dtype not in ("int64", "int32"):
            yield put(id_dtype="int64")
            yield put(id_dtype="int32")
        if len(self.shape) != 1:
            yield put(shape=(self.tokens,))
        elif 1 < self.tokens <= _HALVED:
            flat = self.token_ids().tolist()
            for half in (flat[: len(flat) // 2], flat[len(flat) // 2 :]):
                yield put(ids=tuple(half), shape=(len(half),))

    def sizes(self) -> dict[str, int]:
        """Return the numbers of tokens, or of the ids along each axis, of columns and of rows."""
        axes = {"tokens" if len(self.shape) == 1 else f"axis {n}": size for n, size in enumerate(self.shape)}
        return {**axes, "columns": self.hidden, "rows": self.vocab}

    def resized(self, name: str, size: int) -> Call | None:
        """Return the call with fewer tokens, the first ones, or with fewer columns or rows, ids modulo these."""
        if name == "columns":
            return msgspec.structs.replace(self, hidden=size)
        if name == "rows":
            ids = self.ids if isinstance(self.ids, str) else tuple(each % size for each in self.ids)
            return msgspec.structs.replace(self, vocab=size, ids="equal" if size == 1 else ids)
        axes = list(Forward.sizes(self))[:-2]
        if name not in axes:
            return None
        shape = tuple(size if axis == name else old for axis, old in zip(axes, self.shape, strict=True))
        if isinstance(self.ids, str):
            return msgspec.structs.replace(self, shape=shape)
        kept = self.token_ids().take(range(size), axis=axes.index(name))
        return msgspec.structs.replace(self, shape=shape, ids=tuple(kept.reshape(-1).tolist()))


def arrays_of(script: Script) -> tuple[Ids, Bits]:
    """Return the ids and the table of a script's plain call; of a table that is put in part, places of its rows."""
    ids = script.array("token_ids")
    put = next(step for step in script.steps if step.name == "weight" and isinstance(step, Put))
    return (ids if put.rows is None else np.searchsorted(put.rows, ids)), put.array


class NarrowedTable(Call, frozen=True, kw_only=True, tag="narrowed-table"):
    """`forward_fp32` of a float64 table, which float32 cannot hold: it must be refused, not narrowed in silence."""

    vocab: int
    hidden: int

    def __str__(self) -> str:
        return f"forward_fp32 float64 {self.vocab}x{self.hidden} hashed every {self.vocab} int64"

    def script(self, exam: Exam) -> Script:
        """Return the one call."""
        table, _ = table_of("hashed", self.vocab, self.hidden, "float64", 0)
        return Script(
            dtype="float64",
            steps=(
                Put(name="token_ids", array=np.arange(self.vocab)),
                Put(name="weight", array=table, dtype="float64"),
                Run(name="out", verb="forward_fp32", arguments=("token_ids", "weight")),
            ),
        )

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge that it is refused: by a golden with a TypeError, as the contract says, by others in any words."""
        seen, reply, elements = Seen(), replies.of("out"), self.vocab * self.hidden
        expected = "TypeError"
        if isinstance(reply, Raised) and (not exam.traits.golden or reply.type == expected):
            seen.ok(self.check, elements)
        elif isinstance(reply, Output):
            suspects = suspects_of((faults.WRONG_DTYPE,), 0.99, "a table of float64 gives float32")
            seen.fail(self.check, f"error: got a result, expected {expected}", elements, *suspects)
        elif isinstance(reply, Raised):
            seen.fail(self.check, f"error: got {reply.line}, expected {expected}", elements, raised=reply.line)
        else:
            unmade(seen, reply, self.check, elements, what="error")
        return seen

    def sizes(self) -> dict[str, int]:
        """Return the numbers of rows and columns."""
        return {"rows": self.vocab, "columns": self.hidden}

    def resized(self, name: str, size: int) -> Call | None:
        """Return the call with fewer rows or columns."""
        return msgspec.structs.replace(self, **{{"rows": "vocab", "columns": "hidden"}[name]: size})
