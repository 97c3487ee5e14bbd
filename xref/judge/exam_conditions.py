"""What may surround a token without changing its row (clause EMB-7), run on one verb and one table of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from xref import errors
from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.inputs import Ids, words
from xref.judge.checks import Finding
from xref.judge.conditions import CONDITIONS, FILLER, TABLE_LAYOUTS, Batch, Group, Keys, restore
from xref.judge.isolate import CrashedError, limited
from xref.judge.probes import Observation, Probe
from xref.judge.subject import described
from xref.judge.verdict import mismatch
from xref.spec import Tier

if TYPE_CHECKING:
    from xref.judge.exam import Exam

__all__ = ["ForwardConditions"]

_POPULATIONS = (769, 1025, 2049, 3073, 4097, 8193, 16385, 65537)
_JAX_POPULATIONS = (769, 3073, 8193)
_HINTS = {
    "population": ("other-path-by-batch-size",),
    "position": ("position-dependent",),
    "neighbours": ("neighbour-dependent",),
    "padding": ("position-dependent", "neighbour-dependent"),
    "layout": ("ids-strides-ignored", "table-strides-ignored"),
    "chunked": ("other-path-by-batch-size",),
    "decode": ("other-path-by-batch-size",),
    "permuted": ("position-dependent", "neighbour-dependent"),
    "gradient": ("gradient-mode-dependent",),
    "settings": ("setting-dependent",),
}
_OPTIONAL = 10.0  # seconds that a mode may take which a candidate need not have: a compiler may unroll its loops


class ForwardConditions:
    """One verb on one table: its plain call's rows, and every condition's compared with them."""

    def __init__(self, exam: Exam, base: Probe, ids: Ids, table: Bits, rows: Bits) -> None:
        self.exam, self.base, self.table, self.rows = exam, base, table, rows
        self.framework, self.device = exam.framework, exam.candidate.device
        self.flat, self.keys = ids.reshape(-1), np.arange(ids.size)
        self.format = FORMATS[contract.result_dtype(base.verb, base.dtype)]
        self.laid = self.framework.put(table.copy(), base.dtype, self.device)

    def run_all(self) -> None:
        """Run the conditions one after the other."""
        run = self.exam.candidate.verbs[self.base.verb]
        vocab = self.base.vocab
        short = self.exam.jax and self.base.dtype not in self.exam.main
        for name, plan in CONDITIONS.items():
            if short and name in ("layout", "chunked", "decode", "neighbours"):
                continue  # each of their shapes is compiled anew
            for group in plan(self.flat.copy(), self.keys, vocab):
                self._compare(name, group, run)
        sizes = _JAX_POPULATIONS if self.exam.jax else _POPULATIONS
        for size in () if short else sizes[:5] if self.exam.tier is Tier.SMOKE else sizes:
            strangers = (words(size - self.flat.size, seed=size) % np.uint64(vocab)).astype(self.flat.dtype)
            ids = np.concatenate([strangers[::2], self.flat, strangers[1::2]])
            fill = np.full_like(self.keys, FILLER, shape=strangers.size)
            keys = np.concatenate([fill[::2], self.keys, fill[1::2]])
            self._compare("population", [Batch(ids, keys)], run)
        gradient_modes = self.framework.gradient_modes()
        for name, mode in () if short else gradient_modes.items():
            if self.exam.jax:  # where a kernel need not have a gradient to be called
                self._optional("gradient", name, mode(run))
            else:
                self._compare("gradient", [Batch(self.flat.copy(), self.keys)], mode(run), mode=name)
        if not self.framework.surroundings():
            self.exam.findings["EMB-7/settings"].skipped.append(f"{self.framework.NAME} has no such setting")
        for name, mode in self.framework.surroundings().items():
            self._compare("settings", [Batch(self.flat.copy(), self.keys)], mode(run), mode=name)
        if self.base.dtype in self.exam.main and self.exam.tier is not Tier.SMOKE:  # seconds each
            others = {name: mode for name, mode in self.framework.modes().items() if name not in gradient_modes}
            for name, mode in others.items():
                self._optional("mode", name, mode(run))
            if not others:
                self.exam.findings["EMB-7/mode"].skipped.append("all of them are tried by EMB-7/gradient")

    def _compare(self, name: str, group: Group, run: Callable[[Any, Any], Any], *, mode: str = "plain") -> None:
        findings = self.exam.findings[f"EMB-7/{name}"]
        call = f"{self.exam.candidate.name}.{self.base}, condition {name}{f', {mode}' if mode != 'plain' else ''}"
        hints = _HINTS.get(name, ())
        try:
            parts = list(self._parts(group, run))
        except errors.RefusedError:
            findings.skipped.append(f"{mode}: refused")
            return
        except (Exception, SystemExit) as error:
            message = f"out: got {described(error)}, expected a result"
            findings.fail(Finding(message, call, msgspec.structs.replace(self.base, mode=mode), hints))
            return
        restored = restore(parts, self.rows.shape[0], call)
        problem = mismatch(restored, self.rows, self.format)
        if problem is None:
            findings.passed(restored.size)
            return
        probe = msgspec.structs.replace(self._probe_of(group, restored), mode=mode)
        finding = Finding(str(problem), call, probe, hints, telling=name != "layout", evidence={"plain": self.base})
        findings.fail(finding, restored.size)

    def _probe_of(self, group: Group, restored: Bits) -> Probe:
        """Return the call of the group that went wrong, as a probe of its own."""
        wrong = set(np.flatnonzero((restored != self.rows).any(axis=1)).tolist())
        batch = next(batch for batch in group if wrong & set(batch.keys.reshape(-1).tolist()))
        return msgspec.structs.replace(
            self.base, ids=tuple(batch.ids.reshape(-1).tolist()), shape=batch.ids.shape, layout=batch.layout
        )

    def _optional(self, condition: str, name: str, run: Callable[[Any, Any], Any]) -> None:
        """A mode that a candidate need not have: where it cannot be run, that is said and nothing else."""
        findings = self.exam.findings[f"EMB-7/{condition}"]
        try:
            with limited(_OPTIONAL):
                [(_, got)] = list(self._parts([Batch(self.flat.copy(), self.keys)], run))
        except (Exception, SystemExit, CrashedError) as error:
            findings.skipped.append(f"{name}: {described(error)}")
            return
        problem = mismatch(got.reshape(self.rows.shape), self.rows, self.format)
        call = f"{self.exam.candidate.name}.{self.base}, condition {condition} {name}"
        if problem is None:
            findings.passed(got.size)
        else:
            hints = _HINTS.get(condition, ())
            probe = msgspec.structs.replace(self.base, mode=name)
            findings.fail(Finding(str(problem), call, probe, hints, telling=bool(hints)), got.size)

    def _parts(self, group: Group, run: Callable[[Any, Any], Any]) -> Iterator[tuple[Keys, Bits]]:
        for batch in group:
            laid = self.laid
            if batch.layout != "dense":
                view = TABLE_LAYOUTS[batch.layout](self.table)
                laid = self.framework.put(view, self.base.dtype, self.device)
            out = run(self.framework.put(batch.ids, None, self.device), laid)
            seen = Observation(
                probe=self.base, expected=np.empty((*batch.ids.shape, self.base.hidden), self.format.uint)
            )
            self.exam.prober.read(seen, out)
            if seen.got is None:
                raise ValueError(str(seen.misformed))
            yield batch.keys, seen.got.copy()
