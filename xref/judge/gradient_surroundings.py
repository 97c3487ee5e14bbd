"""What is no part of a gradient's call: earlier calls, threads, settings, and how it is asked for (clause EMB-10).

A kernel may keep what it has computed, the order of the ids say, and find it again by an address, a shape or a version.
The calls here differ in what such a kernel does not look at. Their cotangents are small whole numbers, so that every
sum is exact in any order and in any format: a right kernel may add in another order with other threads, and its bits
are still the exact ones.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import msgspec
import numpy as np

from xref import errors, exact
from xref.bits import FORMATS, Bits, FloatFormat
from xref.inputs import Ids, make_ids, words
from xref.operators.embedding.bound import exact_of, misses
from xref.judge.checks import Finding, Findings
from xref.judge.gradient_routes import Route, Run
from xref.judge.subject import described

__all__ = ["GradientSurroundings"]

_VOCAB, _HIDDEN, _TOKENS = 40, 4, 33
_HELD = 6  # gradients that are kept, and must stay as they are
_STALE = ("stale-cache", "gradient-accumulates-across-calls", "call-count-dependent")


class GradientSurroundings:
    """One route's gradients of small whole numbers, each compared with the exact one.

    `only` names the one condition that is run; None runs all.
    """

    def __init__(self, route: Route, findings: dict[str, Findings], *, only: str | None = None) -> None:
        self.route, self.findings, self.only = route, findings, only
        self.framework, self.device = route.candidate.framework, route.candidate.device
        self.held: list[tuple[Any, Bits, str]] = []
        self.id_dtype = "int32" if self.framework.NAME == "jax" and route.source != "float64" else "int64"

    def run_all(self) -> None:
        """Run both conditions, unless a plain call is wrong as well: then nothing that surrounds it is."""
        if not self._plain():
            for condition in ("history", "settings"):
                self.findings[f"EMB-10/{condition}"].skipped.append("the same call made plainly is wrong: EMB-8")
            return
        if self.only in (None, "history"):
            self._history()
        if self.only in (None, "settings"):
            self._settings()

    def _plain(self) -> bool:
        """Return whether a call with arrays of its own gives the right gradient."""
        ids, values = self._ids("zipf"), self._cotangent(1)
        try:
            out = self.route.run(*self.route.put(ids.copy(), values.copy()), _VOCAB)
            return not _wrong(self.route.bits(out, _VOCAB, _HIDDEN), ids, values, self.route)
        except (Exception, SystemExit):
            return False

    def _settings(self) -> None:
        """The same call in other threads and settings, and asked for in other ways."""
        for name, run in self.route.ways().items():
            for vocab, hidden in ((_VOCAB, _HIDDEN), (8, 8)):
                ids = self._ids("zipf") % vocab
                values = _whole_numbers((_TOKENS, hidden), FORMATS[self.route.source], seed=1)
                given, laid = self.route.put(ids.copy(), values.copy())
                self._call("settings", name, (given, ids), (laid, values), vocab=vocab, run=run)
        if not self.route.ways():
            self.findings["EMB-10/settings"].skipped.append(f"{self.framework.NAME} has no such settings")

    def _history(self) -> None:
        """Make the calls one after the other, and then look at the gradients that earlier ones returned."""
        ids, others = self._ids("zipf"), self._ids("reversed")
        one, two = self._cotangent(1), self._cotangent(2)
        given, first = self.route.put(ids.copy(), one.copy())
        _, second = self.route.put(ids.copy(), two.copy())
        call = functools.partial(self._call, "history")
        for values, laid in 2 * [(one, first), (two, second)]:
            call("the same ids, other cotangents", (given, ids), (laid, values))
        for some in (ids, others, np.sort(ids), self._swapped(ids), ids):
            call("other ids of the same shape", self._fresh(some), (first, one))
        for vocab in () if self.framework.NAME == "jax" else (_VOCAB + 9, _VOCAB, _VOCAB + 1):
            call("the same ids, another number of rows", (given, ids), (first, one), vocab=vocab)
        self._overwritten(ids, one)
        for n in range(6):  # given back, so that the next ones lie in the same memory
            some, values = np.roll(ids, n), self._cotangent(10 + n)
            laid = self.framework.put(values.copy(), self.route.source, self.device)
            call("new ids and cotangents where others lay", self._fresh(some), (laid, values))
            del laid
        for _ in range(12):
            call("the same call again", (given, ids), (first, one))
        self._kept()

    def _ids(self, family: str) -> Ids:
        return make_ids(family, (_TOKENS,), _VOCAB, self.id_dtype)

    def _cotangent(self, seed: int) -> Bits:
        return _whole_numbers((_TOKENS, _HIDDEN), FORMATS[self.route.source], seed)

    def _swapped(self, ids: Ids) -> Ids:
        """Return the ids with two of the middle exchanged: the ends and the sum stay."""
        middle = len(ids) // 2
        other = middle + int(np.argmax(ids[middle:-1] != ids[middle]))
        swapped = ids.copy()
        swapped[[middle, other]] = ids[[other, middle]]
        return swapped

    def _fresh(self, ids: Ids) -> tuple[Any, Ids]:
        return self.framework.put(ids.copy(), None, self.device), ids

    def _overwritten(self, ids: Ids, values: Bits) -> None:
        """The same arrays, whose contents change between the calls."""
        given, laid = self.route.put(ids.copy(), values.copy())
        call = functools.partial(self._call, "history")
        call("before they are overwritten", (given, ids), (laid, values))
        for n, counted in itertools.product(range(3), (True, False)):
            values = self._cotangent(20 + 2 * n + counted)
            if not self.framework.overwrite(laid, values, counted=counted):
                continue
            call("the same arrays, other cotangents in them", (given, ids), (laid, values))
            ids = (ids + 1) % _VOCAB
            self.framework.overwrite(given, ids, counted=counted)
            call("the same arrays, other ids in them", (given, ids), (laid, values))

    def _call(
        self,
        condition: str,
        name: str,
        ids: tuple[Any, Ids],
        cotangent: tuple[Any, Bits],
        *,
        vocab: int = _VOCAB,
        run: Run | None = None,
    ) -> None:
        """Make one call and compare; ids and cotangent are what the kernel is given and plain copies."""
        findings = self.findings[f"EMB-10/{condition}"]
        hidden = cotangent[1].shape[-1]
        call = f"{self.route.candidate.name}, {self.route.name}, {vocab}x{hidden}, condition {condition}, {name}"
        rerun = msgspec.json.encode({"route": self.route.name, "condition": condition}).decode()
        hints = _STALE if condition == "history" else ("setting-dependent",)
        try:
            out = (run or self.route.run)(ids[0], cotangent[0], vocab)
            got = self.route.bits(out, vocab, hidden)
        except errors.RefusedError:
            findings.skipped.append(f"{name}: refused")
            return
        except (Exception, SystemExit) as error:
            message = f"gradient: got {described(error)}, expected a result"
            findings.fail(Finding(message, call, hints=hints, rerun=rerun))
            return
        problem = _wrong(got, ids[1], cotangent[1], self.route)
        if problem:
            findings.fail(Finding(problem, call, hints=hints, rerun=rerun), got.size)
        else:
            findings.passed(got.size)
        if condition == "history" and len(self.held) < _HELD:
            self.held.append((out, got, call))

    def _kept(self) -> None:
        """A gradient must stay what it was whatever is asked for later."""
        for out, before, call in self.held:
            if np.array_equal(self.framework.bits_of(out), before):
                self.findings["EMB-5"].passed(before.size)
            else:
                message = "gradient: got other bits after a later call, expected the same"
                self.findings["EMB-5"].fail(Finding(message, call, hints=("output-buffer-reused",)), before.size)


def _whole_numbers(shape: tuple[int, ...], fmt: FloatFormat, seed: int) -> Bits:
    """Return elements of -4 to 4, without 0."""
    drawn = words(int(np.prod(shape)), seed=seed)
    size = (drawn % np.uint64(4)).astype(np.int64)
    elements = np.array([exact.round_once(n, 0, fmt) for n in range(1, 5)], fmt.uint)[size]
    return np.where(drawn >> np.uint64(63), elements | fmt.uint.type(fmt.sign), elements).reshape(shape)


def _wrong(got: Bits, ids: Ids, cotangent: Bits, route: Route) -> str:
    """Return what is wrong with a gradient of whole numbers, or nothing."""
    known, target = exact_of(ids, cotangent, FORMATS[route.source]), FORMATS[route.result]
    found = misses(got, known, target, FORMATS["float64" if route.result == "float64" else "float32"])
    if found.message:
        return found.message
    rest = np.setdiff1d(np.arange(got.shape[0]), known.rows)
    if got[rest].any():
        row = int(rest[got[rest].any(axis=1)][0])
        return f"gradient[{row}]: got other bits, expected +0 in a row that no id names"
    return ""
