"""The forward examination of a candidate: accuracy, and invariance under every condition."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts.inputs import Ids, words
from xref.judge.bench import ACCURACY, described, main_dtypes
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.conditions import CONDITIONS, FILLER, TABLE_LAYOUTS, Batch, Group, Keys, restore
from xref.judge.isolate import CrashedError, limited
from xref.judge.probes import Observation, Probe, Prober, ids_of, table_of
from xref.judge.sweeps import probes
from xref.judge.verdict import mismatch
from xref.spec import Tier

__all__ = ["Exam"]

_POPULATIONS = (769, 1025, 2049, 3073, 4097, 8193, 16385, 65537)
_JAX_POPULATIONS = (769, 3073, 8193)
_REPEATS = 60
_OPTIONAL = 10.0  # seconds that a mode may take which a candidate need not have: a compiler may unroll its loops
_HELD = 6  # outputs that are kept, and must stay as they are


@dataclasses.dataclass
class Exam:
    """One candidate's examination: what is run on what, and what came of it by check."""

    candidate: Candidate
    tier: Tier
    dtypes: tuple[str, ...]
    findings: dict[str, Findings]

    def __post_init__(self) -> None:
        self.prober = Prober(self.candidate)
        self.framework = self.candidate.framework
        self.device = self.candidate.device
        self.jax = self.framework.NAME == "jax"
        self.id_dtype = "int32" if self.jax else "int64"
        self.main = main_dtypes(self.dtypes)

    def accuracy(self) -> None:
        """Every call of the sweeps, compared with the exact answer (EMB-1, EMB-2, EMB-3, EMB-5)."""
        for verb, dtype in self._pairs():
            for probe in probes(verb, dtype, self.framework.NAME, self.tier):
                elsewhere = probe.layout != "dense" or probe.id_layout != "dense"
                self.note(self.prober.run(probe), "EMB-7/layout" if elsewhere else None)
            rewritten = self.prober.rewritten()
            if rewritten is not None:
                finding = Finding(
                    "weight: got other bits after the calls, expected the same", str(rewritten), rewritten
                )
                self.findings["EMB-5"].fail(finding)
        self._float64_widened()

    def _float64_widened(self) -> None:
        """A table that float32 cannot hold must be refused, not narrowed in silence."""
        verb = self.candidate.verbs.get("forward_fp32")
        if verb is None or "float64" not in self.dtypes:
            return
        probe = Probe(dtype="float64", vocab=5, hidden=3, table="hashed", ids="every", shape=(5,))
        with self.framework.precision("float64"):
            table = self.framework.put(table_of(probe, ids_of(probe)), "float64", self.device)
            try:
                verb(self.framework.put(ids_of(probe), None, self.device), table)
            except (Exception, SystemExit):
                self.findings["EMB-2"].passed(table.shape[0])
            else:
                call = f"{self.candidate.name}.forward_fp32, float64 table of 5 rows"
                finding = Finding("error: got a result, expected TypeError", call, hints=("wrong-dtype",))
                self.findings["EMB-2"].fail(finding)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for verb in contract.VERBS:
            if verb in self.candidate.verbs:
                yield from ((verb, dtype) for dtype in self.dtypes if verb in contract.verbs_of(dtype))

    def note(self, seen: Observation, check: str | None = None, hints: tuple[str, ...] = ()) -> None:
        """Record what came of a probe.

        `check`: what it is evidence for; the verb's own accuracy if None.
        """
        probe, elements = seen.probe, seen.expected.size
        check = check or ACCURACY[probe.verb]
        call = f"{self.candidate.name}.{probe}"
        if seen.raised is not None:
            self.findings[check].fail(Finding(f"out: got {seen.raised}, expected a result", call, probe, seen, hints))
            return
        if seen.misformed is not None:
            self.findings["EMB-3"].fail(Finding(str(seen.misformed), call, probe, seen, hints))
            return
        self.findings["EMB-3"].passed(elements)
        if seen.impure is not None:
            self.findings["EMB-5"].fail(Finding(seen.impure, call, probe, seen), elements)
        else:
            self.findings["EMB-5"].passed(elements)
        if seen.wrong is not None:
            self.findings[check].fail(Finding(str(seen.wrong), call, probe, seen, hints), elements)
        else:
            self.findings[check].passed(elements)

    # Conditions

    def invariance(self) -> None:
        """Every condition of clause EMB-7, and repeats (EMB-6)."""
        for verb, dtype in self._pairs():
            if self.tier is Tier.SMOKE and dtype not in self.main:
                continue
            base = self._base(verb, dtype)
            ids = ids_of(base)
            with self.framework.precision(dtype):
                seen = self.prober.run(base)
                if seen.got is None:
                    self.note(seen)
                    continue
                conditions = _Conditions(self, base, ids, table_of(base, ids), seen.got.copy())
                conditions.run_all()
                self._repeats(verb, dtype)
                if not self.jax or dtype in self.main:
                    self._history(verb, dtype)

    def _base(self, verb: str, dtype: str) -> Probe:
        id_dtype = "int64" if dtype == "float64" else self.id_dtype
        if self.jax:
            return Probe(
                verb=verb,
                dtype=dtype,
                vocab=257,
                hidden=65,
                table="hashed",
                ids="covering",
                shape=(266,),
                id_dtype=id_dtype,
            )
        return Probe(verb=verb, dtype=dtype, vocab=1009, hidden=65, table="hashed", ids="covering", shape=(1098,))

    def _repeats(self, verb: str, dtype: str) -> None:
        """The same call many times, on small and larger batches with duplicates."""
        sizes = ((33, 9, _REPEATS), (1025, 33, 10), (4097, 16, 5)) if not self.jax else ((33, 9, 30), (1025, 33, 5))
        for tokens, hidden, times in sizes:
            probe = Probe(
                verb=verb, dtype=dtype, vocab=67, hidden=hidden, table="hashed", ids="zipf", shape=(tokens,),
                id_dtype=self.id_dtype,
            )  # fmt: skip
            first = self.prober.run(probe)
            held = [(first, None if first.got is None else first.got.copy())]
            for n in range(times):
                seen = self.prober.run(probe)
                self._same(seen, held[0], n + 2)
                if len(held) < _HELD and seen.got is not None:
                    held.append((seen, seen.got.copy()))
            self._kept(held)

    def _same(self, seen: Observation, first: tuple[Observation, Bits | None], call: int) -> None:
        expected, findings = first[1], self.findings["EMB-6"]
        where = f"{self.candidate.name}.{seen.probe}, call {call}"
        if expected is None:
            self.note(seen)
        elif seen.got is None:
            findings.fail(
                Finding(seen.raised or str(seen.misformed), where, seen.probe, seen, ("call-count-dependent",))
            )
        else:
            fmt = FORMATS[contract.result_dtype(seen.probe.verb, seen.probe.dtype)]
            problem = mismatch(seen.got, expected, fmt)
            if problem is None:
                findings.passed(seen.got.size)
            else:
                hints = ("run-to-run", "call-count-dependent") if call < 5 else ("call-count-dependent", "run-to-run")
                findings.fail(Finding(str(problem), where, seen.probe, seen, hints, telling=True), seen.got.size)

    def _kept(self, held: list[tuple[Observation, Bits | None]]) -> None:
        """An output must stay what it was whatever is called later."""
        for seen, before in held:
            if before is None or seen.got is None:
                continue
            if np.array_equal(seen.got, before):
                self.findings["EMB-5"].passed(before.size)
            else:
                message = "out: got other bits after a later call, expected the same"
                finding = Finding(
                    message, f"{self.candidate.name}.{seen.probe}", seen.probe, seen, ("output-buffer-reused",)
                )
                self.findings["EMB-5"].fail(finding, before.size)

    def _history(self, verb: str, dtype: str) -> None:
        """Calls whose inputs look like those of an earlier call and are not: other contents, in the same place."""
        sizes = ((50, 9, 33), (50, 9, 1), (300, 64, 257), (300, 8, 1025)) if not self.jax else ((50, 9, 33),)
        for vocab, hidden, tokens in sizes:
            make = Probe(
                verb=verb, dtype=dtype, vocab=vocab, hidden=hidden, table="hashed", ids="zipf", shape=(tokens,),
                id_dtype="int64" if dtype == "float64" else self.id_dtype,
            )  # fmt: skip
            for seed in (0, 1000, 0, 2000, 1000):  # other tables of the same shape, in turn
                self.note(self.prober.run(msgspec.structs.replace(make, seed=seed)), "EMB-7/history", _STALE)
            for family in ("zipf", "reversed", "zipf"):  # other ids of the same shape
                self.note(self.prober.run(msgspec.structs.replace(make, ids=family)), "EMB-7/history", _STALE)
            self._overwritten(make)
            held = []
            for n in range(8):  # tables that are given back, so that the next one lies in the same memory
                probe = msgspec.structs.replace(make, seed=5000 + n)
                ids, table = ids_of(probe), table_of(probe, ids_of(probe))
                given = self.framework.put(ids.copy(), None, self.candidate.device)
                laid = self.framework.put(table.copy(), dtype, self.candidate.device)
                seen = self.prober.observe(probe, (given, ids), (laid, table))
                self.note(seen, "EMB-7/history", _STALE)
                held.append((seen, None if seen.got is None else seen.got.copy()))
                del given, laid
            self._kept(held)

    def _overwritten(self, make: Probe) -> None:
        """The same tensors, whose contents change between the calls: a step of an optimizer, the next batch."""
        device = self.candidate.device
        ids, table = ids_of(make), table_of(make, ids_of(make))
        given = self.framework.put(ids.copy(), None, device)
        laid = self.framework.put(table.copy(), make.dtype, device)
        self.note(self.prober.observe(make, (given, ids), (laid, table)), "EMB-7/history", _STALE)
        for n, counted in itertools.product(range(3), (True, False)):
            probe = msgspec.structs.replace(make, seed=100 + 10 * n + counted)
            table = table_of(probe, ids)
            if not self.framework.overwrite(laid, table, counted=counted):
                continue
            self.note(self.prober.observe(probe, (given, ids), (laid, table)), "EMB-7/history", _STALE)
            ids = (ids + 1) % make.vocab
            self.framework.overwrite(given, ids, counted=counted)
            probe = msgspec.structs.replace(probe, ids=tuple(ids.reshape(-1).tolist()))
            self.note(self.prober.observe(probe, (given, ids), (laid, table)), "EMB-7/history", _STALE)


_STALE = ("stale-cache",)

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


class _Conditions:
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
        if not self.framework.gradient_modes():
            self.exam.findings["EMB-7/gradient"].skipped.append(f"{self.framework.NAME} has no such switch")
        for name, mode in self.framework.gradient_modes().items():
            self._compare("gradient", [Batch(self.flat.copy(), self.keys)], mode(run), mode=name)
        if not self.framework.surroundings():
            self.exam.findings["EMB-7/settings"].skipped.append(f"{self.framework.NAME} has no such setting")
        for name, mode in self.framework.surroundings().items():
            self._compare("settings", [Batch(self.flat.copy(), self.keys)], mode(run), mode=name)
        if self.base.dtype in self.exam.main and self.exam.tier is not Tier.SMOKE:  # seconds each
            for name, mode in self.framework.modes().items():
                self._optional(name, mode(run))

    def _compare(self, name: str, group: Group, run: Callable[[Any, Any], Any], *, mode: str = "plain") -> None:
        findings = self.exam.findings[f"EMB-7/{name}"]
        call = f"{self.exam.candidate.name}.{self.base}, condition {name}{f', {mode}' if mode != 'plain' else ''}"
        hints = _HINTS.get(name, ())
        try:
            parts = list(self._parts(group, run))
        except (Exception, SystemExit) as error:
            message = f"out: got {described(error)}, expected a result"
            findings.fail(Finding(message, call, msgspec.structs.replace(self.base, mode=mode), None, hints))
            return
        restored = restore(parts, self.rows.shape[0], call)
        problem = mismatch(restored, self.rows, self.format)
        if problem is None:
            findings.passed(restored.size)
            return
        probe = msgspec.structs.replace(self._probe_of(group, restored), mode=mode)
        finding = Finding(
            str(problem), call, probe, None, hints, telling=name != "layout", evidence={"plain": self.base}
        )
        findings.fail(finding, restored.size)

    def _probe_of(self, group: Group, restored: Bits) -> Probe:
        """Return the call of the group that went wrong, as a probe of its own."""
        wrong = set(np.flatnonzero((restored != self.rows).any(axis=1)).tolist())
        batch = next(batch for batch in group if wrong & set(batch.keys.reshape(-1).tolist()))
        return msgspec.structs.replace(
            self.base, ids=tuple(batch.ids.reshape(-1).tolist()), shape=batch.ids.shape, layout=batch.layout
        )

    def _optional(self, name: str, run: Callable[[Any, Any], Any]) -> None:
        """A mode that a candidate need not have: where it cannot be run, that is said and nothing else."""
        findings = self.exam.findings["EMB-7/mode"]
        try:
            with limited(_OPTIONAL):
                [(_, got)] = list(self._parts([Batch(self.flat.copy(), self.keys)], run))
        except (Exception, SystemExit, CrashedError) as error:
            findings.skipped.append(f"{name}: {described(error)}")
            return
        problem = mismatch(got.reshape(self.rows.shape), self.rows, self.format)
        call = f"{self.exam.candidate.name}.{self.base}, condition mode {name}"
        if problem is None:
            findings.passed(got.size)
        else:
            findings.fail(Finding(str(problem), call, self.base), got.size)

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
