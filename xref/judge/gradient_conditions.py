"""What may surround a token without changing the gradient (clause EMB-10): runs, layouts, padding, order, parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from xref.bits import FORMATS, Bits
from xref.contracts import embedding_gradient as gradients
from xref.contracts.embedding_gradient import GradientCase
from xref.inputs import Ids, words
from xref.judge.checks import Finding, Findings
from xref.judge.conditions import spread, transposed
from xref.judge.gradient_routes import Route
from xref.judge.probes import ID_LAYOUTS
from xref.judge.subject import described
from xref.judge.verdict import mismatch

__all__ = ["GradientConditions"]

_REPEATS = 6
_STRIDES = ("cotangent-strides-ignored", "ids-strides-ignored")
_ORDER = ("gradient-order-by-run",)


class GradientConditions:
    """One case's plain gradient, and that of every condition compared with it.

    `only` names the one condition that is run; None runs all.
    """

    def __init__(
        self, route: Route, case: GradientCase, findings: dict[str, Findings], *, only: str | None = None
    ) -> None:
        self.route, self.case, self.findings, self.only = route, case, findings, only
        ids, cotangent = gradients.build(case)
        self.jax = route.candidate.framework.NAME == "jax"
        # One row is left to padding: the case has no token of it.
        self.ids = np.where(ids == 0, 1 % case.vocab, ids).astype(
            "int32" if self.jax and route.source != "float64" else "int64"
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
            self._compare("repeat", base, lambda: self._dense(flat, elements), _ORDER)
        rows = next((size for size in (4, 5, 7, 17) if flat.size % size == 0), 1)
        for shape in [(rows, -1)] if self.jax else [(-1, 1), (1, -1), (rows, -1)]:  # with JAX each is compiled anew
            self._compare("layout", base, functools.partial(self._reshaped, shape), _ORDER)
        self._compare("layout", base, lambda: self._bits_of(ID_LAYOUTS["strided"](flat), spread(elements)), _STRIDES)
        self._compare("layout", base, lambda: self._bits_of(flat.copy(), transposed(elements)), _STRIDES)
        pad, zero = np.zeros_like(flat), np.zeros_like(elements)
        # With JAX all padded batches are of one size, since each is compiled anew.
        left, right = (flat.size, flat.size) if self.jax else (7, 9)
        for ids, cotangent in (
            (np.concatenate([pad[:left], flat]), np.concatenate([zero[:left], elements])),
            (np.concatenate([flat, pad[:right]]), np.concatenate([elements, zero[:right]])),
            (np.stack([flat, pad]), np.stack([elements, zero])),
        ):
            self._compare("padding", base, functools.partial(self._dense, ids, cotangent), _ORDER)
        for seed in range(3):
            order = np.argsort(words(flat.size, seed=300 + seed), kind="stable")
            self._compare("permuted", base, functools.partial(self._dense, flat[order], elements[order]), _ORDER)
        half = flat.size // 3
        self._compare("split", base, lambda: self._in_parts(half), _ORDER)

    def _dense(self, ids: Ids, cotangent: Bits) -> Bits:
        return self._bits_of(ids.copy(), cotangent.copy())

    def _reshaped(self, shape: tuple[int, int]) -> Bits:
        return self._dense(self.ids.reshape(shape), self.cotangent.reshape(*shape, self.case.hidden))

    def _bits_of(self, ids: Ids, cotangent: Bits) -> Bits:
        """Return the gradient's bits; the kernel may write into what it is given."""
        return self._bits(self.route.run(*self.route.put(ids, cotangent), self.case.vocab))

    def _in_parts(self, first: int) -> Bits:
        early = np.arange(self.ids.size) < first
        parts = [
            # With JAX each part is padded to the size of the whole, which is compiled already.
            (np.where(part, self.ids, 0), np.where(part[:, None], self.cotangent, self.cotangent.dtype.type(0)))
            if self.jax
            else (self.ids[part], self.cotangent[part])
            for part in (early, ~early)
        ]
        outs = [self.route.run(*self.route.put(*part), self.case.vocab) for part in parts]
        return self._bits(outs[0] + outs[1])

    def _bits(self, out: Any) -> Bits:
        return self.route.bits(out, self.case.vocab, self.case.hidden)

    def _compare(self, name: str, base: Bits, run: Callable[[], Bits], hints: tuple[str, ...] = ()) -> None:
        if self.only not in (None, name):
            return
        findings = self.findings[f"EMB-10/{name}"]
        call = f"{self.route.candidate.name}, {self.route.name}, {self.case.id}, condition {name}"
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
