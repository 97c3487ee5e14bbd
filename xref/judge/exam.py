"""The forward examination of a candidate: accuracy, and invariance under every condition."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits, from_bits
from xref.contracts import embedding as contract
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.exam_conditions import ForwardConditions
from xref.judge.probes import Observation, Probe, Prober, ids_of, table_of
from xref.judge.subject import ACCURACY, main_dtypes
from xref.judge.sweeps import probes
from xref.judge.verdict import mismatch
from xref.spec import Tier

__all__ = ["Exam"]

_STALE = ("stale-cache",)
_COUNTED = ("call-count-dependent", "run-to-run")
_REPEATS = 60
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
        self.main = main_dtypes(self.dtypes)

    def accuracy(self) -> None:
        """Every call of the sweeps, compared with the exact answer (EMB-1, EMB-2, EMB-3, EMB-5)."""
        for verb, dtype in self._pairs():
            held: tuple[Observation, Bits] | None = None
            tried = list(probes(verb, dtype, self.framework.NAME, self.tier))
            for probe in tried:
                elsewhere = probe.layout != "dense" or probe.id_layout != "dense"
                seen = self.prober.run(probe)
                if elsewhere and seen.wrong is not None:
                    plain = self.prober.run(msgspec.structs.replace(probe, layout="dense", id_layout="dense"))
                    seen, elsewhere = (plain, False) if plain.wrong is not None else (seen, True)
                self.note(seen, "EMB-7/layout" if elsewhere else None)
                if seen.wrong is not None:
                    self._once_more(seen)
                if held is None and seen.got is not None:
                    held = seen, seen.got.copy()
            if held is not None:  # the first call again, after all the others
                self._same(self.prober.run(held[0].probe), held, len(tried) + 1, _COUNTED)
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
            self.findings[check].fail(Finding(f"out: got {seen.raised}, expected a result", call, probe, hints))
            return
        if seen.misformed is not None:
            self.findings["EMB-3"].fail(Finding(str(seen.misformed), call, probe, hints))
            return
        self.findings["EMB-3"].passed(elements)
        if seen.impure is not None:
            self.findings["EMB-5"].fail(Finding(seen.impure, call, probe), elements)
        else:
            self.findings["EMB-5"].passed(elements)
        if seen.wrong is not None:
            self.findings[check].fail(Finding(str(seen.wrong), call, probe, hints), elements)
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
                conditions = ForwardConditions(self, base, ids, table_of(base, ids), seen.got.copy())
                conditions.run_all()
                self._repeats(verb, dtype)
                if not self.jax or dtype in self.main:
                    self._history(verb, dtype)

    def _id_dtype(self, dtype: str) -> str:
        return "int32" if self.jax and dtype != "float64" else "int64"

    def _base(self, verb: str, dtype: str) -> Probe:
        if self.jax:
            return Probe(
                verb=verb,
                dtype=dtype,
                vocab=257,
                hidden=65,
                table="hashed",
                ids="covering",
                shape=(266,),
                id_dtype=self._id_dtype(dtype),
            )
        return Probe(verb=verb, dtype=dtype, vocab=1009, hidden=65, table="hashed", ids="covering", shape=(1098,))

    def _repeats(self, verb: str, dtype: str) -> None:
        """The same call many times, on small and larger batches with duplicates."""
        # Shapes that are compiled already, where that costs.
        jax = ((257, 33, 300, _REPEATS), (4097, 40, 4097, 5)) if dtype in self.main else ((257, 33, 300, 10),)
        torch = ((33, 9, 67, _REPEATS), (1025, 33, 67, 10), (4097, 16, 67, 5))
        for tokens, hidden, vocab, times in jax if self.jax else torch:
            probe = Probe(
                verb=verb, dtype=dtype, vocab=vocab, hidden=hidden, table="hashed", ids="zipf", shape=(tokens,),
                id_dtype=self._id_dtype(dtype),
            )  # fmt: skip
            first = self.prober.run(probe)
            held = [(first, None if first.got is None else first.got.copy())]
            for n in range(times):
                seen = self.prober.run(probe)
                self._same(seen, held[0], n + 2)
                if len(held) < _HELD and seen.got is not None:
                    held.append((seen, seen.got.copy()))
            self._kept(held)

    def _once_more(self, wrong: Observation) -> None:
        """Make a wrong call again, some times: other bits are a fault of their own (EMB-6)."""
        first = wrong, None if wrong.got is None else wrong.got.copy()
        second = self.prober.run(wrong.probe)
        second.got = None if second.got is None else second.got.copy()
        later = [self.prober.run(wrong.probe).wrong for _ in range(3)]
        settled = all(found == second.wrong for found in later)  # that, or it changes from run to run
        self._same(second, first, 2, _COUNTED if settled else _COUNTED[::-1])

    def _same(
        self, seen: Observation, first: tuple[Observation, Bits | None], call: int, hints: tuple[str, ...] = ()
    ) -> None:
        expected, findings = first[1], self.findings["EMB-6"]
        where = f"{self.candidate.name}.{seen.probe}, call {call}"
        if expected is None:
            self.note(seen)
        elif seen.got is None:
            findings.fail(
                Finding(
                    f"out: got {seen.raised}, expected a result" if seen.raised else str(seen.misformed),
                    where,
                    seen.probe,
                    ("call-count-dependent",),
                )
            )
        else:
            fmt = FORMATS[contract.result_dtype(seen.probe.verb, seen.probe.dtype)]
            problem = mismatch(seen.got, expected, fmt)
            if problem is None:
                findings.passed(seen.got.size)
            else:
                hints = hints or (_COUNTED[::-1] if call < 5 else _COUNTED)
                findings.fail(Finding(str(problem), where, seen.probe, hints, telling=True), seen.got.size)

    def _kept(self, held: list[tuple[Observation, Bits | None]]) -> None:
        """An output must stay what it was whatever is called later."""
        for seen, before in held:
            if before is None or seen.got is None:
                continue
            if np.array_equal(seen.got, before):
                self.findings["EMB-5"].passed(before.size)
            else:
                message = "out: got other bits after a later call, expected the same"
                finding = Finding(message, f"{self.candidate.name}.{seen.probe}", seen.probe, ("output-buffer-reused",))
                self.findings["EMB-5"].fail(finding, before.size)

    def _history(self, verb: str, dtype: str) -> None:
        """Calls whose inputs look like those of an earlier call and are not: other contents, in the same place."""
        sizes = ((50, 9, 33), (50, 9, 1), (300, 64, 257), (300, 8, 1025)) if not self.jax else ((300, 33, 257),)
        for vocab, hidden, tokens in sizes:
            make = Probe(
                verb=verb, dtype=dtype, vocab=vocab, hidden=hidden, table="hashed", ids="zipf", shape=(tokens,),
                id_dtype=self._id_dtype(dtype),
            )  # fmt: skip
            if self.prober.run(make).wrong is not None:
                self.findings["EMB-7/history"].skipped.append("the same call alone is wrong: EMB-1 or EMB-2")
                continue
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
        if self.jax:  # whose own arrays cannot change; NumPy's can, where a kernel takes them
            given, laid = ids.copy(), from_bits(table.copy(), make.dtype)
        else:
            given = self.framework.put(ids.copy(), None, device)
            laid = self.framework.put(table.copy(), make.dtype, device)
        seen = self.prober.observe(make, (given, ids), (laid, table))
        if self.jax and seen.raised is not None:
            self.findings["EMB-7/history"].skipped.append(f"{make.verb} of a NumPy table: {seen.raised}")
            return
        self.note(seen, "EMB-7/history", _STALE)
        if self.jax:  # rows that are a slice of the table, of which NumPy would make a view
            every = msgspec.structs.replace(make, ids="every", shape=make.shape)
            part = ids_of(every)
            self.note(self.prober.observe(every, (part.copy(), part), (laid, table)), "EMB-7/history", _STALE)
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
