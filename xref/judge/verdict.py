"""Verdicts: what was compared, on what it rests, and the first element that was wrong."""

from __future__ import annotations

import enum
import operator
import threading
from collections.abc import Iterable

import msgspec
import numpy as np

from xref import bits, errors
from xref.bits import Bits, FloatFormat
from xref.engine.blocks import differ

__all__ = ["Ledger", "Mismatch", "Outcome", "Report", "Verdict", "mismatch"]


class Outcome(enum.StrEnum):
    """How a clause came out."""

    PASS = "pass"
    FAIL = "fail"
    ERROR = "error"
    SKIP = "skip"
    XFAIL = "xfail"
    XPASS = "xpass"


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Elements that are not what they must be: the first of them, and how many there are."""

    index: tuple[int, ...]
    got: str
    """Bits in hex."""
    expected: str
    ulp: int | None
    """Steps of representable values between the two; None where either is NaN."""
    differing: int
    elements: int

    def __str__(self) -> str:
        distance = "NaN" if self.ulp is None else f"{self.ulp} ulp"
        where = ", ".join(map(str, self.index))
        return (
            f"out[{where}]: got {self.got}, expected {self.expected}"
            f" ({distance}; {self.differing} of {self.elements} elements differ)"
        )


def mismatch(got: Bits, expected: Bits, fmt: FloatFormat) -> Mismatch | None:
    """Return the first difference in bits between two arrays of one shape, or None if there is none."""
    if not differ(got, expected):
        return None
    differs = got != expected
    index = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
    digits = fmt.width // 4
    return Mismatch(
        index=index,
        got=f"0x{int(got[index]):0{digits}x}",
        expected=f"0x{int(expected[index]):0{digits}x}",
        ulp=bits.ulp_distance(int(got[index]), int(expected[index]), fmt),
        differing=int(np.count_nonzero(differs)),
        elements=got.size,
    )


class Verdict(msgspec.Struct, kw_only=True):
    """How one clause came out for one framework on one device, against one truth."""

    clause: str
    title: str
    framework: str
    device: str
    against: str
    """`exact`, `pinned digests`, another framework, or the golden's own plain call."""
    cases: int = 0
    elements: int = 0
    outcome: Outcome = Outcome.PASS
    problems: list[str] = []
    """Messages of what failed, the first of each call."""


class Report(msgspec.Struct, kw_only=True):
    """A whole run: what ran, on what, and how it came out."""

    xref: str
    operator: str
    contract_version: int
    subject: str
    """What was run: a tier of cases, or a checkpoint's tensor."""
    environment: dict[str, dict[str, str]]
    """By framework: its version and the devices that ran."""
    verdicts: list[Verdict]
    digest: str
    """SHA-256 over all outputs."""
    seconds: float
    statement: str
    """In words: what was confirmed, by which versions, on how many elements; or what failed."""

    @property
    def elements(self) -> int:
        """Elements compared, all clauses together."""
        return sum(verdict.elements for verdict in self.verdicts)

    @property
    def ok(self) -> bool:
        """Whether every clause passed, and something was compared."""
        return self.elements > 0 and all(verdict.outcome is Outcome.PASS for verdict in self.verdicts)

    def to_json(self) -> str:
        """Return the report as JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


class Ledger:
    """Gathers single results into one verdict for each clause, framework, device and truth; from any thread."""

    def __init__(self, titles: dict[str, str]) -> None:
        self._titles = titles
        self._verdicts: dict[tuple[str, str, str, str], Verdict] = {}
        self._told: dict[
            tuple[str, str, str, str], list[tuple[tuple[str, int, str], str]]
        ] = {}  # what ran, and its problem
        self._cases: dict[str, int] = {}
        self._lock = threading.Lock()

    def in_order(self, cases: Iterable[str]) -> None:
        """Tell in which order the cases run, before any of them does."""
        self._cases = {case: place for place, case in enumerate(cases)}

    def expect(self, clause: str, where: tuple[str, str], against: str) -> None:
        """Note that a comparison must take place: if nothing is ever recorded for it, its verdict is an error."""
        with self._lock:
            self._verdict(clause, where, against)

    def record(
        self, clause: str, where: tuple[str, str], against: str, *, elements: int, problem: object, call: str
    ) -> None:
        """Add one result: `where` is framework and device, `problem` None or a message, `call` what ran `on` what."""
        with self._lock:
            verdict = self._verdict(clause, where, against)
            verdict.cases += 1
            verdict.elements += elements
            if problem is not None:
                verdict.outcome = Outcome.FAIL
                self._tell((clause, *where, against), call, f"{problem} [{call}]")

    def error(self, clause: str, where: tuple[str, str], against: str, problem: object, *, call: str) -> None:
        """Add a result that could not be had: the operator raised. A failure beside it stays the outcome."""
        with self._lock:
            verdict = self._verdict(clause, where, against)
            verdict.cases += 1
            if verdict.outcome is not Outcome.FAIL:
                verdict.outcome = Outcome.ERROR
            self._tell((clause, *where, against), call, errors.message("out", problem, "a result", call))

    def _tell(self, key: tuple[str, str, str, str], call: str, problem: str) -> None:
        self._told.setdefault(key, []).append((self._place(call), problem))

    def _place(self, call: str) -> tuple[str, int, str]:
        called, _, at = call.partition(" on ")  # as in "jax.forward on cpu, a case, condition padding"
        case = ", ".join(at.split(", ")[1:2])
        return called, self._cases.get(case, -1), case if self._cases else ""

    def _verdict(self, clause: str, where: tuple[str, str], against: str) -> Verdict:
        key = (clause, *where, against)
        if key not in self._verdicts:
            self._verdicts[key] = Verdict(
                clause=clause, title=self._titles[clause], framework=where[0], device=where[1], against=against
            )
        return self._verdicts[key]

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts, by clause; one that compared no element is an error, never a pass.

        Problems are by operator and case, since those that run at once report in any order: within one they keep it.
        Cases are in the order that was told, or as they came.
        """
        order = list(self._titles)
        with self._lock:
            verdicts = [self._settled(verdict, self._told.get(key, [])) for key, verdict in self._verdicts.items()]
        return sorted(verdicts, key=lambda v: (order.index(v.clause), v.framework, v.device, v.against))

    @staticmethod
    def _settled(verdict: Verdict, told: list[tuple[tuple[str, int, str], str]]) -> Verdict:
        problems = [problem for _, problem in sorted(told, key=operator.itemgetter(0))]
        if verdict.elements or told:
            return msgspec.structs.replace(verdict, problems=problems)
        none = errors.message("elements", "none compared", "at least one", f"against {verdict.against}")
        return msgspec.structs.replace(verdict, problems=[none], outcome=Outcome.ERROR)
