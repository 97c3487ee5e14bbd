"""The gradient's examination of a candidate: within the proven bound, and the same bits whatever surrounds a token."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from xref import errors
from xref.bits import FORMATS, Bits
from xref.contracts import embedding as contract
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.contracts.inputs import Ids, make_table, words
from xref.judge.bench import MisformedError, described, formed, shared_memory, widest
from xref.judge.bound import exact_of, misses
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.conditions import offset, spread, transposed
from xref.judge.probes import ID_LAYOUTS
from xref.judge.verdict import mismatch
from xref.spec import Tier

__all__ = ["GradientExam", "Route"]

_VALUES = ("equal", "fractions", "gaussian", "wide", "cancelling", "subnormal", "ties")
_SPECIALS = ("edge", "negative-zero", "specials")
_BATCHES = (
    1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 384, 511, 513, 767, 768, 769, 1000,
    1023, 1024, 1025, 1537, 2047, 2048, 2049, 3071, 3072, 3073, 4095, 4096, 4097, 5000, 8191, 8193, 16385,
)  # fmt: skip
_DUPLICATES = (
    2, 3, 4, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 1000, 1023,
    1024, 1025, 2047, 2049, 4095, 4096, 4097, 10000,
)  # fmt: skip
_WIDTHS = (
    1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 255, 256, 257, 511, 513, 768,
    1000, 1023, 1024, 1025, 1185, 2048, 4096, 4097,
)  # fmt: skip
_VOCABULARIES = (
    1, 2, 3, 5, 8, 31, 32, 33, 64, 65, 100, 127, 129, 255, 256, 257, 300, 1000, 1025, 5000, 32000, 32769, 65537,
    131073, 151936,
)  # fmt: skip
_ID_FAMILIES = ("distinct", "zipf", "hot", "ends", "sorted", "reversed", "equal", "every")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64")
_REPEATS = 6
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 65, 129, 257, 513, 1025, 2049, 3073, 4097)

Run = Callable[[Any, Any, int], Any]


@dataclasses.dataclass(frozen=True)
class Route:
    """One way to a candidate's gradient: `(token_ids, cotangent, vocab_size) -> [V, H]`, and its dtypes."""

    name: str
    run: Run
    source: str
    result: str


_LAYOUTS: dict[str, Callable[[Bits], Bits]] = {"strided": spread, "transposed": transposed, "offset": offset}


class GradientExam:
    """One candidate's gradient: whatever it has of one."""

    def __init__(
        self,
        candidate: Candidate,
        tier: Tier,
        dtypes: tuple[str, ...],
        findings: dict[str, Findings],
        accumulate: str,
    ) -> None:
        self.candidate, self.framework, self.device = candidate, candidate.framework, candidate.device
        self.tier, self.dtypes, self.findings, self.accumulate = tier, dtypes, findings, accumulate
        self.jax = self.framework.NAME == "jax"
        self.flushes = self.framework.flushes_subnormals(self.device)

    def run(self) -> None:
        """Everything there is to the gradient; what the candidate lacks of one is said."""
        for route in self._routes():
            why = self._missing(route)
            if why is not None:
                for check in ("EMB-8", "EMB-9", "EMB-11"):
                    self.findings[check].skipped.append(why)
                continue
            with self.framework.precision(widest(route.source, route.result)):
                for case, layout, id_dtype in self._cases(route):
                    self._accuracy(route, case, layout, id_dtype)
                if route.result in ("float32", "bfloat16", "float16", "float64"):
                    self._invariance(route)

    def _routes(self) -> Iterator[Route]:
        for dtype in self.dtypes:
            if self.candidate.backward is not None:
                yield Route(f"backward, {dtype}", self._backward, dtype, dtype)
                continue
            for verb in self.candidate.verbs:
                if verb in contract.verbs_of(dtype):
                    source = contract.result_dtype(verb, dtype)
                    yield Route(
                        f"gradient of {verb}, {source} to {dtype}", self._differentiated(verb, dtype), source, dtype
                    )

    def _backward(self, ids: Any, cotangent: Any, vocab_size: int) -> Any:
        backward = self.candidate.backward
        return None if backward is None else backward(ids, cotangent, vocab_size)

    def _differentiated(self, verb: str, dtype: str) -> Run:
        tables: dict[tuple[int, int], Any] = {}

        def run(ids: Any, cotangent: Any, vocab_size: int) -> Any:
            key = vocab_size, cotangent.shape[-1]
            if key not in tables:
                if len(tables) > 8:
                    tables.clear()
                table = make_table("gaussian", *key, FORMATS[dtype])
                tables[key] = self.framework.put(table, dtype, self.device)
            return self.framework.gradient(self.candidate.verbs[verb], ids, tables[key], cotangent)

        return run

    def _missing(self, route: Route) -> str | None:
        """Return why a route cannot be taken at all, or None."""
        case = GradientCase(source=route.source, result=route.result, values="gaussian", vocab=10, hidden=4, shape=(6,))
        with self.framework.precision(widest(route.source, route.result)):
            ids, cotangent = gradients.build(case)
            try:
                route.run(*self._put(ids, cotangent, route.source), 10)
            except (Exception, SystemExit) as error:
                own = self.candidate.backward is not None
                if own and not route.result.startswith("float8"):
                    return None  # a gradient of its own that raises is no gradient that lacks
                return f"{route.name}: {described(error)}"
        return None

    def _put(self, ids: Ids, cotangent: Bits, source: str) -> tuple[Any, Any]:
        return self.framework.put(ids, None, self.device), self.framework.put(cotangent, source, self.device)

    # Accuracy

    def _cases(self, route: Route) -> Iterator[tuple[GradientCase, str, str]]:
        """Yield cases, the layout of their cotangents and the dtype of their ids."""

        def case(**fields: Any) -> GradientCase:
            return GradientCase(source=route.source, result=route.result, **{"values": "gaussian", **fields})

        ids = "int64" if not self.jax or route.source == "float64" else "int32"
        yield from ((case(values=values, vocab=100, hidden=8), "dense", ids) for values in (*_VALUES, *_SPECIALS))
        yield case(values="equal", vocab=5, hidden=1, ids="equal", shape=(1000,)), "dense", ids
        yield case(values="fractions", vocab=5, hidden=2, ids="equal", shape=(4097,)), "dense", ids
        yield case(values="cancelling", vocab=31, hidden=33, shape=(3, 2, 11)), "dense", ids
        yield case(vocab=5, hidden=3, ids="equal", shape=()), "dense", ids
        yield case(vocab=5, hidden=3, ids="equal", shape=(0,)), "dense", ids
        main = route.result in ("float32", "bfloat16")
        smoke = self.tier is Tier.SMOKE
        coarse = 8 if smoke else (5 if main else 12) if self.jax else (1 if main else 4)
        for tokens in _BATCHES[2::coarse]:
            yield case(vocab=31, hidden=2, shape=(tokens,)), "dense", ids
        for count in _DUPLICATES[coarse - 1 :: coarse]:
            yield case(values="fractions", vocab=3, hidden=1, ids="equal", shape=(count,)), "dense", ids
        for hidden in _WIDTHS[coarse - 1 :: coarse]:
            yield case(vocab=31, hidden=hidden, shape=(9 if hidden > 500 else 33,)), "dense", ids
        for vocab in _VOCABULARIES[coarse - 1 :: coarse]:
            yield case(vocab=vocab, hidden=3, ids="zipf_ends", shape=(33,)), "dense", ids
        if self.jax or smoke:
            return
        for family in _ID_FAMILIES:
            yield case(vocab=40, hidden=8, ids=family, shape=(37,)), "dense", ids
        shapes: tuple[tuple[int, ...], ...] = ((2, 4), (1, 33), (33, 1), (5, 7, 2))
        for shape in shapes:
            yield case(vocab=40, hidden=8, shape=shape), "dense", ids
        for layout in (*_LAYOUTS, "expanded"):
            for shape in shapes[:3]:
                yield case(values="cancelling", vocab=40, hidden=8, shape=shape), layout, ids
        for id_dtype in _INTEGERS:
            yield case(vocab=100, hidden=8, shape=(65,)), "dense", id_dtype

    def again(self, record: dict[str, Any]) -> None:
        """Run one call again from its record."""
        case = msgspec.convert(record["case"], GradientCase)
        for route in self._routes():
            if route.name != record["route"]:
                continue
            with self.framework.precision(widest(route.source, route.result)):
                if "condition" in record:
                    _Invariance(self, route, case, only=record["condition"]).run_all()
                else:
                    self._accuracy(route, case, record["layout"], record["id_dtype"])
            return
        names = ", ".join(route.name for route in self._routes())
        raise errors.UsageError(errors.message("--only", record["route"], f"one of {names or 'no gradient'}", "judge"))

    def smallest(self, finding: Finding) -> tuple[str, str]:
        """Return the smallest case that still fails as the finding's does, in words and as a record."""
        evidence = finding.evidence
        route, case = evidence["route"], evidence["case"]
        for field, sizes in (("shape", [(n,) for n in _SIZES]), ("hidden", _SIZES), ("vocab", _SIZES)):
            for size in sizes:
                if size >= getattr(case, field) or (field == "shape" and len(case.shape) != 1):
                    break
                smaller = msgspec.structs.replace(case, **{field: size})
                if self._fails(finding, smaller):
                    case = smaller
                    break
        record = {"route": route.name, "case": case, "layout": evidence["layout"], "id_dtype": evidence["id_dtype"]}
        call = f"{self.candidate.name}, {route.name}, {case.id}"
        return call, msgspec.json.encode(record).decode()

    def _fails(self, finding: Finding, case: GradientCase) -> bool:
        """Return whether another case fails by the same kind of message; nothing is recorded."""
        probe = GradientExam(
            self.candidate, self.tier, self.dtypes, {check: Findings() for check in self.findings}, self.accumulate
        )
        evidence = finding.evidence
        with self.framework.precision(widest(case.source, case.result)):
            try:
                probe._accuracy(evidence["route"], case, evidence["layout"], evidence["id_dtype"])
            except Exception:  # a case that cannot be made is none that fails
                return False
        return any(found.failed for check, found in probe.findings.items() if check != "EMB-11/zero sign")

    def _accuracy(self, route: Route, case: GradientCase, layout: str, id_dtype: str) -> None:
        ids, cotangent = gradients.build(case)
        ids = ids.astype(id_dtype)
        if layout == "expanded":  # one row of cotangents for all tokens, as the gradient of a sum has
            first = cotangent.reshape(-1, case.hidden)[0].copy()
            strides = (*(0,) * ids.ndim, first.itemsize)
            laid = np.lib.stride_tricks.as_strided(first, cotangent.shape, strides)
            cotangent = laid.copy()
        else:
            laid = _LAYOUTS[layout](cotangent) if layout != "dense" else cotangent.copy()
        call = f"{self.candidate.name}, {route.name}, {case.id}" + (
            f", cotangent {layout}" if layout != "dense" else ""
        )
        check = "EMB-11" if case.values in _SPECIALS else "EMB-8"
        evidence: dict[str, Any] = {"route": route, "case": case, "layout": layout, "id_dtype": id_dtype}
        got = self._called(route, (ids, cotangent), laid, call, check, evidence)
        if got is None:
            return
        target = FORMATS[route.result]
        exact = exact_of(ids, cotangent, FORMATS[route.source])
        accumulate = "float64" if route.result == "float64" else self.accumulate
        found = misses(got, exact, target, FORMATS[accumulate], flushes=self.flushes)
        evidence = {**evidence, "exact": exact, "got": got}
        elements = exact.rows.size * case.hidden
        if found.sums.any() or found.specials.any():
            kind = "EMB-11" if found.specials.any() and not found.sums.any() else check
            self.findings[kind].fail(Finding(found.message, call, evidence=evidence), elements)
        else:
            self.findings[check].passed(elements)
        if check == "EMB-11":
            signs = self.findings["EMB-11/zero sign"]
            if found.zero_signs.any():
                signs.fail(Finding("gradient: got -0 for an exact zero sum, expected +0", call), elements)
            else:
                signs.passed(elements)
        self._untouched(got, exact.rows, call, evidence)

    def _untouched(self, got: Bits, rows: Ids, call: str, evidence: dict[str, Any]) -> None:
        rest = np.setdiff1d(np.arange(got.shape[0]), rows)
        wrong = got[rest] != 0
        if not wrong.any():
            self.findings["EMB-9"].passed(wrong.size)
            return
        r, h = (int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        message = (
            f"gradient[{rest[r]}, {h}]: got 0x{int(got[rest[r], h]):x}, expected +0 in a row that no id names"
            f" ({int(np.count_nonzero(wrong))} of {wrong.size} elements differ)"
        )
        self.findings["EMB-9"].fail(
            Finding(message, call, hints=("untouched-rows-not-zero",), evidence=evidence), wrong.size
        )

    def _called(
        self, route: Route, inputs: tuple[Ids, Bits], laid: Bits, call: str, check: str, evidence: dict[str, Any]
    ) -> Bits | None:
        """Return the gradient's bits. `inputs` stay ours; the kernel gets a copy, the cotangent as it is laid out."""
        case, (ids, cotangent) = evidence["case"], inputs
        given = self._put(ids.copy(), laid, route.source)
        try:
            out = route.run(*given, case.vocab)
            wanted = ((case.vocab, case.hidden), route.result, self.device)
            got = formed(self.framework, out, wanted).copy()
        except MisformedError as error:
            self.findings[check].fail(
                Finding(f"gradient, {error}", call, hints=_form_hints(str(error)), evidence=evidence)
            )
            return None
        except (Exception, SystemExit) as error:
            hints = ("empty-or-scalar-ids-fail",) if ids.ndim == 0 or ids.size == 0 else ()
            self.findings[check].fail(
                Finding(f"gradient: got {described(error)}, expected a result", call, hints=hints)
            )
            return None
        problem = None
        if not np.array_equal(self.framework.numpy_of(given[0]), ids):
            problem = "token_ids: got other values after the backward pass, expected the same"
        elif not np.array_equal(self.framework.bits_of(given[1]), cotangent):
            problem = "cotangent: got other bits after the backward pass, expected the same"
        elif shared_memory(self.framework, out, {"cotangent": given[1]}):
            problem = "gradient: got memory of the cotangent, expected its own"
        if problem is not None:
            hint = {"cotangent": "cotangent-rewritten", "token_ids": "ids-rewritten"}.get(problem.partition(":")[0])
            finding = Finding(problem, call, hints=(hint or "output-aliases-input",), evidence=evidence)
            self.findings["EMB-5"].fail(finding, got.size)
        else:
            self.findings["EMB-5"].passed(got.size)
        return got

    # Invariance

    def _invariance(self, route: Route) -> None:
        sizes = [(40, 8, 256, "cancelling")]
        if self.tier is not Tier.SMOKE:
            sizes += (
                [(50, 64, 1000, "gaussian")] if self.jax else [(50, 64, 1000, "gaussian"), (31, 4, 4097, "gaussian")]
            )
        for vocab, hidden, tokens, values in sizes:
            case = GradientCase(
                source=route.source, result=route.result, values=values, vocab=vocab, hidden=hidden, shape=(tokens,)
            )
            _Invariance(self, route, case).run_all()


def _form_hints(message: str) -> tuple[str, ...]:
    got, _, expected = message.partition(", expected ")
    return (
        ("wrong-shape",) if got.rpartition("), ")[0][-20:] != expected.rpartition("), ")[0][-20:] else ("wrong-dtype",)
    )


class _Invariance:
    """A gradient's conditions (EMB-10) on one case: the plain call's bits, and every other's compared with them."""

    def __init__(self, exam: GradientExam, route: Route, case: GradientCase, *, only: str | None = None) -> None:
        self.exam, self.route, self.case, self.only = exam, route, case, only
        ids, cotangent = gradients.build(case)
        # One row is left to padding: the case has no token of it.
        self.ids = np.where(ids == 0, 1 % case.vocab, ids).astype(
            "int32" if exam.jax and route.source != "float64" else "int64"
        )
        self.cotangent = cotangent
        self.format = FORMATS[route.result]

    def run_all(self) -> None:
        """Run the conditions one after the other."""
        flat, elements = self.ids, self.cotangent
        try:
            base = self._dense(flat, elements)
        except (Exception, SystemExit):
            return  # the accuracy cases have said so
        for _ in range(_REPEATS):
            self._compare("repeat", base, lambda: self._dense(flat, elements), ("gradient-order-by-run",))
        self._compare("layout", base, lambda: self._dense(flat[:, None], elements[:, None, :]))
        self._compare("layout", base, lambda: self._dense(flat[None], elements[None]))
        self._compare("layout", base, lambda: self._bits_of(ID_LAYOUTS["strided"](flat), spread(elements)))
        self._compare("layout", base, lambda: self._bits_of(flat.copy(), transposed(elements)))
        pad, zero = np.zeros_like(flat), np.zeros_like(elements)
        for ids, cotangent in (
            (np.concatenate([pad[:7], flat]), np.concatenate([zero[:7], elements])),
            (np.concatenate([flat, pad[:9]]), np.concatenate([elements, zero[:9]])),
            (np.stack([flat, pad]), np.stack([elements, zero])),
        ):
            self._compare("padding", base, functools.partial(self._dense, ids, cotangent))
        for seed in range(3):
            order = np.argsort(words(flat.size, seed=300 + seed), kind="stable")
            self._compare("permuted", base, functools.partial(self._dense, flat[order], elements[order]))
        half = flat.size // 3
        self._compare("split", base, lambda: self._in_parts(half))

    def _dense(self, ids: Ids, cotangent: Bits) -> Bits:
        return self._bits_of(ids.copy(), cotangent.copy())

    def _bits_of(self, ids: Ids, cotangent: Bits) -> Bits:
        """Return the gradient's bits; the kernel may write into what it is given."""
        return self._bits(self.route.run(*self.exam._put(ids, cotangent, self.route.source), self.case.vocab))

    def _in_parts(self, first: int) -> Bits:
        parts = [
            self.route.run(
                *self.exam._put(self.ids[part].copy(), self.cotangent[part].copy(), self.route.source), self.case.vocab
            )
            for part in (slice(None, first), slice(first, None))
        ]
        return self._bits(parts[0] + parts[1])

    def _bits(self, out: Any) -> Bits:
        wanted = ((self.case.vocab, self.case.hidden), self.route.result, self.exam.device)
        return formed(self.exam.framework, out, wanted).copy()

    def _compare(self, name: str, base: Bits, run: Callable[[], Bits], hints: tuple[str, ...] = ()) -> None:
        if self.only not in (None, name):
            return
        findings = self.exam.findings[f"EMB-10/{name}"]
        call = f"{self.exam.candidate.name}, {self.route.name}, {self.case.id}, condition {name}"
        record = {"route": self.route.name, "case": self.case, "condition": name}
        rerun = msgspec.json.encode(record).decode()
        try:
            problem = mismatch(run(), base, self.format)
        except (Exception, SystemExit) as error:
            message = f"gradient: got {described(error)}, expected a result"
            findings.fail(Finding(message, call, hints=hints, rerun=rerun))
            return
        if problem is None:
            findings.passed(base.size)
        else:
            findings.fail(Finding(f"gradient {problem}", call, hints=hints, rerun=rerun), base.size)
