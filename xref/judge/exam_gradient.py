"""The gradient's examination of a candidate: within the proven bound, and the same bits whatever surrounds a token."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from xref import errors
from xref.bits import FORMATS, Bits, from_bits
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.inputs import Ids
from xref.operators.embedding.bound import exact_of, first_miss, misses
from xref.judge.candidate import Candidate
from xref.judge.checks import Finding, Findings
from xref.judge.gradient_conditions import GradientConditions
from xref.judge.gradient_routes import Route, routes_of
from xref.judge.gradient_surroundings import GradientSurroundings
from xref.judge.probes import ID_LAYOUTS, among
from xref.judge.subject import MisformedError, described, main_dtypes, shared_memory, widest
from xref.judge.sweeps_gradient import COTANGENT_LAYOUTS, SLICE, SPECIALS, gradient_probes
from xref.judge.verdict import mismatch
from xref.spec import Tier

__all__ = ["GradientExam"]

_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 64, 65, 129, 257, 513, 1025, 2049, 3073, 4097)
_JAX_SIZES = (1, 2, 8, 33, 257, 1025)  # each is compiled anew
_MOST_ELEMENTS = 2**30  # of a table in a record
_SECOND = ("call-count-dependent", "gradient-accumulates-across-calls", "gradient-order-by-run")
_ROUNDS, _SECONDS = 3, 3.0  # of shrinking one case


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
        self.saturates = self.framework.saturates(self.device)

    def run(self) -> None:
        """Everything there is to the gradient; what the candidate lacks of one is said."""
        routes = [
            route for route in routes_of(self.candidate, self.dtypes) if not route.traced or self.tier is not Tier.SMOKE
        ]
        missing = {route.name: self._missing(route) for route in routes}
        # A verb that has a gradient for one dtype and none for another trains one model and not the other.
        differentiable = {route.verb for route in routes if missing[route.name] is None}
        for route in routes:
            why = missing[route.name]
            if why is not None and route.verb in differentiable and not route.result.startswith("float8"):
                finding = Finding(
                    f"gradient: got {why}, expected one as of other dtypes",
                    self.candidate.name,
                    hints=("gradient-lost",),
                )
                self.findings["EMB-8"].fail(finding)
                continue
            if why is not None:
                for check in ("EMB-8", "EMB-9", "EMB-11"):
                    self.findings[check].skipped.append(why)
                continue
            with self.framework.precision(widest(route.source, route.result)):
                probes = gradient_probes(
                    route.source, route.result, self.framework.NAME, self.tier, traced=route.traced
                )
                for probe in probes:
                    self._accuracy(route, *probe)
                if not route.traced:
                    self._surrounded(route)

    def _missing(self, route: Route) -> str | None:
        """Return why a route cannot be taken at all, or None; of one that can, the second call must be as the first."""
        first = route.tried()
        if isinstance(first, BaseException):
            return f"{route.name}: {described(first)}" if route.lacks(first) else None  # else the cases say more
        second = route.tried()
        findings, call = self.findings["EMB-10/repeat"], f"{self.candidate.name}, {route.name}, the second call"
        problem: object
        if isinstance(second, BaseException):
            problem = f"got {described(second)}, expected a result"
        else:
            problem = mismatch(second, first, FORMATS[route.result])
        if problem is None:
            findings.passed(first.size)
        else:
            findings.fail(Finding(f"gradient {problem}", call, hints=_second_hints(first, second, route), telling=True))
        return None

    def again(self, record: dict[str, Any]) -> None:
        """Run one call again from its record."""
        case = msgspec.convert(record["case"], GradientCase) if "case" in record else None
        for route in routes_of(self.candidate, self.dtypes):
            if route.name != record["route"]:
                continue
            _check_record(record, case, route)
            with self.framework.precision(widest(route.source, route.result)):
                if case is None:
                    GradientSurroundings(route, self.findings, only=record["condition"]).run_all()
                elif "condition" in record:
                    GradientConditions(route, case, self.findings, only=record["condition"]).run_all()
                else:
                    self._accuracy(route, case, record["layout"], record["id_dtype"])
            return
        names = ", ".join(route.name for route in routes_of(self.candidate, self.dtypes))
        raise errors.UsageError(errors.message("--only", record["route"], f"one of {names or 'no gradient'}", "judge"))

    def smallest(self, finding: Finding) -> tuple[str, str]:
        """Return the smallest case that still fails as the finding's does, in words and as a record."""
        evidence = finding.evidence
        route, case = evidence["route"], evidence["case"]
        deadline = time.monotonic() + _SECONDS
        for _ in range(_ROUNDS):  # with fewer columns or rows, fewer tokens may do
            smaller = self._smaller(finding, case, deadline)
            if smaller == case:
                break
            case = smaller
        record = {"route": route.name, "case": case, "layout": evidence["layout"], "id_dtype": evidence["id_dtype"]}
        call = f"{self.candidate.name}, {route.name}, {case.id}"
        return call, msgspec.json.encode(record).decode()

    def _smaller(self, finding: Finding, case: GradientCase, deadline: float) -> GradientCase:
        """Return a case of fewest tokens, then fewest columns, then fewest rows, that still fails."""
        sizes = _JAX_SIZES if self.jax else _SIZES
        for field, allowed in (("shape", [(n,) for n in sizes]), ("hidden", sizes), ("vocab", sizes)):
            for size in allowed:
                if size >= getattr(case, field) or (field == "shape" and len(case.shape) != 1):
                    break
                if time.monotonic() > deadline:
                    return case
                smaller = msgspec.structs.replace(case, **{field: size})
                if self._fails(finding, smaller):
                    case = smaller
                    break
        return case

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
        laid = COTANGENT_LAYOUTS[layout](cotangent) if layout in COTANGENT_LAYOUTS else cotangent.copy()
        cotangent = laid.copy()  # some of the layouts hold other elements
        lies = layout if layout.startswith("ids ") else f"cotangent {layout}"
        call = f"{self.candidate.name}, {route.name}, {case.id}" + (f", {lies}" if layout != "dense" else "")
        call += f", ids {id_dtype}" if id_dtype not in ("int32", "int64") else ""
        check = "EMB-11" if case.values in SPECIALS else "EMB-8"
        evidence: dict[str, Any] = {"route": route, "case": case, "layout": layout, "id_dtype": id_dtype}
        got = self._called(route, (ids, cotangent), laid, call, check, evidence)
        if got is None:
            return
        target = FORMATS[route.result]
        exact = exact_of(ids, cotangent, FORMATS[route.source])
        accumulate = "float64" if route.result == "float64" else self.accumulate
        found = misses(got, exact, target, FORMATS[accumulate], flushes=self.flushes, saturates=self.saturates)
        evidence = {**evidence, "exact": exact, "got": got, "off": found.sums}
        elements = exact.rows.size * case.hidden
        # A sum that is off is EMB-8's, whatever the case is about; a special that is lost, or made, is EMB-11's.
        for clause, wrong in (("EMB-8", found.sums), ("EMB-11", found.specials)):
            if wrong.any():
                finding = Finding(first_miss(wrong, got, exact, target)[1], call, evidence=evidence)
                self.findings[clause].fail(finding, elements)
            elif clause == check:
                self.findings[clause].passed(elements)
        if check == "EMB-11":
            signs = self.findings["EMB-11/zero sign"]
            if found.zero_signs.any():
                signs.fail(Finding("gradient: got -0 for an exact zero sum, expected +0", call), elements)
            else:
                signs.passed(elements)
        self._untouched(got, exact.rows, call, evidence)

    def _untouched(self, got: Bits, rows: Ids, call: str, evidence: dict[str, Any]) -> None:
        unnamed = np.ones(got.shape[0], bool)
        unnamed[rows] = False
        rest = np.flatnonzero(unnamed)
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
        given = self._given(route, ids, laid, evidence["layout"])
        try:
            out = route.run(*given, case.vocab)
            got = route.bits(out, case.vocab, case.hidden)
        except MisformedError as error:
            self.findings[check].fail(Finding(f"gradient, {error}", call, hints=_form_hints(error), evidence=evidence))
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

    def _given(self, route: Route, ids: Ids, laid: Bits, layout: str) -> tuple[Any, Any]:
        """Return ids and cotangents as the kernel gets them, laid out as the layout says."""
        of_ids = layout.removeprefix("ids ") if layout.startswith("ids ") else "dense"
        given = route.put(ID_LAYOUTS.get(of_ids, np.copy)(ids), laid)
        if SLICE not in layout or not ids.ndim:
            return given
        longer = route.put(among(ids, 0), among(laid, 0))
        return (longer[0][2:-1], given[1]) if of_ids == SLICE else (given[0], longer[1][2:-1])

    def _surrounded(self, route: Route) -> None:
        """Change what surrounds a token and a call: in all dtypes, but where every shape is compiled anew."""
        main, smoke = route.result in main_dtypes(self.dtypes), self.tier is Tier.SMOKE
        if self.jax and (not main or (smoke and route.source != route.result)):
            return
        if route.result.startswith("float8"):
            return
        if main or not smoke:
            GradientSurroundings(route, self.findings).run_all()
        self._invariance(route)

    def _invariance(self, route: Route) -> None:
        sizes = [(40, 8, 256, "cancelling")] if not self.jax else [(256, 8, 128, "cancelling")]
        if self.tier is not Tier.SMOKE and not self.jax:
            sizes += [(50, 64, 1000, "gaussian"), (31, 4, 4097, "gaussian")]
        for vocab, hidden, tokens, values in sizes:
            case = GradientCase(
                source=route.source, result=route.result, values=values, vocab=vocab, hidden=hidden, shape=(tokens,)
            )
            GradientConditions(route, case, self.findings).run_all()
        if self.tier is not Tier.SMOKE and self.jax and route.source == route.result:  # on a shape compiled already
            case = GradientCase(
                source=route.source, result=route.result, values="gaussian", vocab=31, hidden=2, shape=(4097,)
            )
            GradientConditions(route, case, self.findings, only="repeat").run_all()


def _check_record(record: dict[str, Any], case: GradientCase | None, route: Route) -> None:
    """Raise `ValueError` unless a record is of a call that the examination makes."""
    conditions = ("history", "settings") if case is None else ("repeat", "layout", "padding", "permuted", "split")
    if (case is None or "condition" in record) and record.get("condition") not in conditions:
        raise ValueError(f"condition {record.get('condition')!r}, expected one of {', '.join(conditions)}")
    if case is None:
        return
    if (case.source, case.result) != (route.source, route.result):
        raise ValueError(f"a case of {case.source} to {case.result}, expected {route.source} to {route.result}")
    if min((case.vocab, case.hidden, *case.shape)) < 0 or case.vocab * max(case.hidden, 1) > _MOST_ELEMENTS:
        raise ValueError(f"a case of {case.vocab} x {case.hidden} and ids {case.shape}, expected sizes of a table")
    if "condition" not in record:
        layouts = ("dense", SLICE, *COTANGENT_LAYOUTS, *(f"ids {name}" for name in (*ID_LAYOUTS, SLICE)))
        if record["layout"] not in layouts or np.dtype(record["id_dtype"]).kind not in "iu":
            raise ValueError(f"layout {record['layout']!r}, ids of {record['id_dtype']}, expected those of a report")


def _second_hints(first: Bits, second: Any, route: Route) -> tuple[str, ...]:
    """Return what a second call speaks for that is not as the first."""
    if isinstance(second, BaseException):
        return _SECOND[:1]
    one, two = (from_bits(bits, route.result).astype(np.float64) for bits in (first, second))
    return _SECOND[1:2] if np.allclose(two, 2 * one, rtol=2.0**-6) else _SECOND


def _form_hints(error: MisformedError) -> tuple[str, ...]:
    return ("wrong-shape",) if error.got[0] != error.wanted[0] else ("wrong-dtype",)
