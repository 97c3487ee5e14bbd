"""A gradient that is asked for, and what it must be: each sum within the proven bound, or the golden's to the bit.

Its script makes one call. Where memory, a setting or the way of asking is varied, the plain call is made before it:
what that gets wrong is not blamed on the variation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.engine.calls import judged_inputs, unmade
from xref.engine.evidence import Misformed
from xref.engine.layouts import DENSE, LAYOUTS, SLICE, contents
from xref.engine.steps import Differentiate, Output, Put, Raised, Read, Replies, Reply, Run, Script, Step
from xref.inputs import Ids, id_families, make_ids, make_table
from xref.operators.embedding import faults
from xref.operators.embedding.calls import sums
from xref.operators.embedding.calls.sums import COVERAGE, SPECIAL, SUMS, ZERO_SIGN
from xref.operators.embedding.clauses import CLAUSES_OF_EVERY_CALL, VERBS
from xref.operators.embedding.cotangents import SPECIALS, cotangent_families, make_cotangent
from xref.spec import Call, Exam, Seen, Suspect

__all__ = ["TRACED", "AroundGradient", "Gradient"]

TRACED = "traced"
_MOST_ELEMENTS = 2**30  # of a table in a record


class Gradient(Call, frozen=True, kw_only=True, tag="gradient"):
    """Cotangents `S + (H,)` of token ids `S`, and the `[V, H]` gradient that is asked for."""

    verb: str
    """`backward`, another form of a golden's gradient, or the verb that the framework differentiates."""
    source: str
    """Dtype of the cotangents."""
    result: str
    """Dtype of the gradient: the table's."""
    values: str = "gaussian"
    """Family of the cotangents."""
    vocab: int = 100
    hidden: int = 8
    ids: str = "zipf"
    shape: tuple[int, ...] = (256,)
    padding_idx: int | None = None
    """A row whose tokens do not count; goldens alone have it."""
    parts: int = 1
    """Among how many accumulators of a golden's the tokens are shared out."""
    seed: int = 1
    """Of `whole` cotangents."""
    layout: str = DENSE
    """Of the cotangents."""
    id_layout: str = DENSE
    id_dtype: str = "int64"
    way: str = ""
    """A gradient call of the framework, or `traced`."""
    mode: str = ""
    """A setting or grad mode of the framework."""

    def __post_init__(self) -> None:
        """Refuse what no report holds.

        Raises:
            ValueError: a name is not known, or a size is none.
        """
        if not {self.source, self.result} <= FORMATS.keys() or self.values not in cotangent_families():
            raise ValueError(f"{self.values} of {self.source} to {self.result}, expected a family and table dtypes")
        if self.ids not in id_families() or np.dtype(self.id_dtype).kind not in "iu":
            raise ValueError(f"ids {self.ids} of {self.id_dtype}, expected a family and an integer dtype")
        if not {self.layout, self.id_layout} <= LAYOUTS.keys():
            raise ValueError(f"layouts {self.layout}, {self.id_layout}, expected those of a report")
        if min((self.vocab, self.hidden, *self.shape)) < 0 or self.vocab * max(self.hidden, 1) > _MOST_ELEMENTS:
            raise ValueError(f"{self.vocab} x {self.hidden}, ids {self.shape}, expected sizes of a table")

    @property
    def id(self) -> str:
        """Readable, and unique among the contract's cases: `bfloat16-to-bfloat16-wide-100x8-zipf-256`."""
        shape = "x".join(map(str, self.shape)) if self.shape else "scalar"
        padding = "" if self.padding_idx is None else f"-padding{self.padding_idx}"
        return f"{self.source}-to-{self.result}-{self.values}-{self.vocab}x{self.hidden}-{self.ids}-{shape}{padding}"

    @property
    def words(self) -> str:
        """Whose gradient it is, and of which dtypes."""
        whose = f"gradient of {self.verb}" if self.verb in VERBS else self.verb
        return f"{whose}, {self.source} to {self.result}"

    def __str__(self) -> str:
        varied = {
            f"cotangent {self.layout}": self.layout != DENSE,
            f"ids {self.id_layout}": self.id_layout != DENSE,
            f"ids {self.id_dtype}": self.id_dtype not in ("int32", "int64"),
            f"in {self.parts} parts": self.parts > 1,
            self.way: self.way,
            self.mode: self.mode,
        }
        return ", ".join((self.words.partition(",")[0], self.id, *(what for what, is_so in varied.items() if is_so)))

    @property
    def varied(self) -> bool:
        """Whether the plain call is made as well."""
        return (self.layout, self.id_layout, self.mode) != (DENSE, DENSE, "") or self.way not in ("", TRACED)

    @property
    def condition(self) -> str:
        """The check of a varied call whose plain one is right."""
        return "EMB-10/settings" if self.mode or self.way not in ("", TRACED) else "EMB-10/layout"

    @property
    def accuracy(self) -> str:
        """The check of what it is evidence of."""
        return SPECIAL if self.values in SPECIALS else SUMS

    def arrays(self) -> tuple[Ids, Bits]:
        """Return the token ids, `S`, and the bits of the cotangents, `S + (H,)`; both are read-only."""
        return _arrays(self.inputs)

    @property
    def inputs(self) -> Gradient:
        """What the arrays depend on: the same for all verbs and results."""
        kept = ("source", "values", "vocab", "hidden", "ids", "shape", "seed", "id_dtype")
        return Gradient(check="", verb="", result=self.source, **{name: getattr(self, name) for name in kept})

    def script(self, exam: Exam) -> Script:
        """Return an ordinary call where only that tells whether there is a gradient, the plain and the varied call."""
        ids, cotangent = self.arrays()
        steps: list[Step] = []
        if self._needs_trial(exam):
            trial = self.ordinary(exam)
            steps += trial.asked(exam, *trial.arrays(), prefix="trial ")
        if self.varied:
            plain = msgspec.structs.replace(self, layout=DENSE, id_layout=DENSE, way="", mode="")
            steps += plain.asked(exam, contents(ids, self.id_layout), contents(cotangent, self.layout), read=True)
        steps += self.asked(exam, ids, cotangent, prefix="varied " if self.varied else "", read=True)
        return Script(dtype=self.precision, steps=tuple(steps))

    @property
    def precision(self) -> str:
        """The dtype that a script needs the framework's precision for."""
        return "float64" if "float64" in (self.source, self.result) else self.source

    def asked(self, exam: Exam, ids: Ids, cotangent: Bits, *, prefix: str = "", read: bool = False) -> list[Step]:
        """Return the steps that put the arrays and ask for the gradient; names begin with `prefix`."""
        names = f"{prefix}token_ids", f"{prefix}cotangent"
        steps: list[Step] = [
            Put(name=names[0], array=ids, layout=self.id_layout),
            Put(name=names[1], array=cotangent, dtype=self.source, layout=self.layout),
            *self.table(f"{prefix}table"),
            self.step(exam, f"{prefix}gradient", *names, f"{prefix}table"),
        ]
        return steps + [Read(name=name) for name in names] if read else steps

    def table(self, name: str) -> list[Step]:
        """Return the step that puts the table whose gradient is taken, where the framework takes it."""
        if self.verb not in VERBS:
            return []
        array = _table(self.vocab, self.hidden, self.result)
        key = f"gradient {self.result} {self.vocab} x {self.hidden}"
        return [Put(name=name, array=array, dtype=self.result, key=key)]

    def step(self, exam: Exam, name: str, ids: str, cotangent: str, table: str) -> Step:
        """Return the step that asks for the gradient, given the names of arrays."""
        if self.verb in VERBS:
            return Differentiate(
                name=name, verb=self.verb, arguments=(ids, table), cotangent=cotangent, way=self.way, mode=self.mode
            )
        options: dict[str, str | int] = {} if self.source == self.result else {"dtype": self.result}
        options |= {} if self.padding_idx is None else {"padding_idx": self.padding_idx}
        options |= {} if self.parts == 1 else {"parts": self.parts}
        return Run(
            name=name,
            verb=self.verb,
            arguments=(ids, cotangent, self.vocab),
            mode=self.mode or self.way,
            refusable=self.mode in exam.traits.grad_modes,
            options=options,
        )

    def ordinary(self, exam: Exam) -> Gradient:
        """Return a small call of the same verb and dtypes; JAX has compiled its shape already."""
        jax = exam.traits.framework == "jax"
        size = {"vocab": 256, "hidden": 8, "shape": (256,)} if jax else {"vocab": 10, "hidden": 4, "shape": (6,)}
        ids = "int32" if jax and self.source != "float64" else "int64"
        call = Gradient(check=self.check, verb=self.verb, source=self.source, result=self.result, id_dtype=ids)
        return msgspec.structs.replace(call, way=TRACED if self.way == TRACED else "", **size)

    def _needs_trial(self, exam: Exam) -> bool:
        """Return whether an exception may mean that there is no gradient at all, or that this one call fails."""
        ordinary = self.ordinary(exam)
        alike = (self.vocab, self.hidden, self.shape) == (ordinary.vocab, ordinary.hidden, ordinary.shape)
        vague = self.result.startswith("float8") or (exam.traits.framework == "jax" and self.verb in VERBS)
        return (vague and not alike) or math.prod(self.shape) == 0 or self.shape == ()

    def judge(self, script: Script, replies: Replies, exam: Exam) -> Seen:
        """Judge form, sums, specials, other rows and purity; a varied call only where the plain one is right."""
        seen = Seen()
        got = self._judged(seen, script, replies, exam, "")
        if got is not None:
            seen.outputs["grad_weight"] = got
            if self.varied and not seen.failures:
                self._judged(seen, script, replies, exam, "varied ")
        return seen

    def _judged(self, seen: Seen, script: Script, replies: Replies, exam: Exam, prefix: str) -> Bits | None:
        """Judge the plain call, or the varied one: whatever is wrong with that is the condition's."""
        reply, check = replies.of(f"{prefix}gradient"), self.condition if prefix else self.accuracy
        if isinstance(reply, Raised) and reply.refused:
            seen.skipped[check] = f"{self.mode or self.way}: refused"
            return None
        trial = replies.of("trial gradient") if self._needs_trial(exam) else reply
        if self.lack(reply) and self.lack(trial):
            for name in (self.check, self.accuracy, ZERO_SIGN if self.accuracy == SPECIAL else COVERAGE):
                seen.skipped[name] = self.lack(trial)
            return None
        got = self.formed(seen, reply, check, exam)
        if got is not None:
            names = f"{prefix}token_ids", f"{prefix}cotangent"
            ids, cotangent = (script.array(name) for name in names)
            if prefix:
                ids, cotangent = contents(ids, self.id_layout), contents(cotangent, self.layout)
            judged_inputs(seen, script, replies, names, reply, CLAUSES_OF_EVERY_CALL, "gradient")
            if prefix and np.array_equal(got, seen.outputs["grad_weight"]):
                seen.ok(check, got.size)  # the plain one is right
            else:
                sums.judge(self, seen, got, (ids, cotangent), exam, check=check if prefix else "")
        if prefix:
            for failure in seen.failures:
                failure.suspects += _suspects_of_variation(self) if failure.check == check else ()
        return got

    def lack(self, reply: Reply) -> str:
        """Return that there is no such gradient, in words, if an exception says so; others say that it fails."""
        if not isinstance(reply, Raised):
            return ""
        lacks = reply.unconnected or "NotImplementedError" in reply.bases or self.result.startswith("float8")
        return f"{self.words}: {reply.line}" if lacks else ""

    def formed(self, seen: Seen, reply: Reply, check: str, exam: Exam) -> Bits | None:
        """Return a gradient's bits, `[V, H]`; else record what is wrong with its form, and return None."""
        elements = self.vocab * self.hidden
        if unmade(seen, reply, check, elements, what="gradient") or not isinstance(reply, Output):
            return None
        form = (self.vocab, self.hidden), self.result, exam.traits.device
        if reply.form == form and reply.array is not None:
            return reply.array
        got, expected = (f"shape {shape}, {dtype}, on {device}" for shape, dtype, device in (reply.form, form))
        why = f", that cannot be read ({reply.unreadable})" if reply.unreadable else ""
        lost = reply.form[1] == "NoneType"
        suspects = [Suspect(0.98, faults.GRADIENT_LOST.name, "the gradient is None")] if lost else []
        message = f"gradient: got {'None' if lost else f'{got}{why}'}, expected {expected}"
        seen.fail(check, message, elements, *suspects, evidence=Misformed(reply.form, form))
        return None

    def plainer(self) -> Iterator[Gradient]:
        """Yield calls in dense memory, of plain ids, one dimension and all ones."""
        plain: dict[str, Any] = {
            "mode": "", "way": "", "layout": DENSE, "id_layout": DENSE, "padding_idx": None, "parts": 1, "seed": 1,
            "ids": "equal",
        }  # fmt: skip
        if self.id_dtype not in ("int32", "int64"):
            plain["id_dtype"] = "int64"
        if self.accuracy == SUMS:
            plain["values"] = "equal"
        if len(self.shape) != 1:
            plain["shape"] = (math.prod(self.shape),)
        for name, value in plain.items():
            if getattr(self, name) != value:
                yield msgspec.structs.replace(self, **{name: value})

    def sizes(self) -> dict[str, int]:
        """Return the numbers of tokens, columns and rows."""
        return {"tokens": math.prod(self.shape), "columns": self.hidden, "rows": self.vocab}

    def resized(self, name: str, size: int) -> Gradient | None:
        """Return the call with another number of tokens, columns or rows, or None where there is none such."""
        field = {"tokens": "shape", "columns": "hidden", "rows": "vocab"}[name]
        other = msgspec.structs.replace(self, **{field: (size,) if field == "shape" else size})
        distinct = other.ids != "distinct" or math.prod(other.shape) <= other.vocab
        return other if distinct and other.vocab > (other.padding_idx or 0) else None


def _suspects_of_variation(call: Gradient) -> tuple[Suspect, ...]:
    if call.condition == "EMB-10/settings":
        what = f"right plainly, and wrong with {call.mode or call.way}"
        return (Suspect(0.9, faults.SETTING_DEPENDENT.name, what),)
    what, layout = ("cotangent", call.layout) if call.layout != DENSE else ("ids", call.id_layout)
    fault = faults.COTANGENT_STRIDES_IGNORED if what == "cotangent" else faults.IDS_STRIDES_IGNORED
    found = [Suspect(0.9, fault.name, f"right in dense memory, and wrong where the {what} are {layout}")]
    if layout.startswith(("offset", SLICE)):
        found.insert(0, Suspect(0.92, faults.STORAGE_OFFSET_IGNORED.name, found[0].seen))
    return tuple(found)


class AroundGradient(Call, frozen=True, kw_only=True):
    """A plain gradient, and what is asked for beside it."""

    plain: Gradient
    """With all there is to vary at rest."""

    def judged_plain(self, seen: Seen, reply: Reply, exam: Exam) -> Bits | None:
        """Return the plain gradient's bits; without any, that is no failure of what is asked for beside it."""
        lack = self.plain.lack(reply)
        got = None if lack else self.plain.formed(seen, reply, self.plain.accuracy, exam)
        if got is None:
            seen.skipped[self.check] = lack or f"the same call made plainly fails: {self.plain.accuracy}"
        for failure in seen.failures:
            failure.call = msgspec.structs.replace(self.plain, check=failure.check)
        return got

    def sizes(self) -> dict[str, int]:
        """Return those of the plain call."""
        return self.plain.sizes()

    def resized(self, name: str, size: int) -> Call | None:
        """Return the same around a plain call of another size."""
        plain = self.plain.resized(name, size)
        return None if plain is None else msgspec.structs.replace(self, plain=plain)


@functools.lru_cache(512)  # of a whole sweep, for the next verb
def _arrays(call: Gradient) -> tuple[Ids, Bits]:
    ids = make_ids(call.ids, call.shape, call.vocab, call.id_dtype)
    cotangent = make_cotangent(call.values, call.shape, call.hidden, FORMATS[call.source], seed=call.seed)
    ids.flags.writeable = cotangent.flags.writeable = False
    return ids, cotangent


@functools.lru_cache(128)
def _table(vocab: int, hidden: int, dtype: str) -> Bits:
    table = make_table("gaussian", vocab, hidden, FORMATS[dtype])
    table.flags.writeable = False
    return table
