"""Results gathered into verdicts: one for each clause, golden and truth, from any thread.

What a run has to compare is expected before anything is recorded: a comparison that never came is an error, no pass.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping

from xref.engine.outcomes import Outcome
from xref.verifying.report import Verdict

__all__ = ["Ledger", "Row"]


@dataclasses.dataclass(frozen=True, order=True)
class Row:
    """What one verdict is about."""

    clause: str
    framework: str
    device: str
    against: str


@dataclasses.dataclass
class _Entry:
    """What there is of one row so far."""

    cases: int = 0
    elements: int = 0
    outcome: Outcome = Outcome.PASS
    due: set[str] = dataclasses.field(default_factory=set)
    """Checks, of the row's, on which nothing has been compared yet and something must be."""
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Steps, and what was wrong in each."""


class Ledger:
    """Gathers single results, from any thread."""

    def __init__(self, titles: Mapping[str, str], steps: Iterable[str] = ()) -> None:
        """Take the clauses' titles in the order of a report, and the run's steps in the order of problems."""
        self._titles = dict(titles)
        self._places = {step: place for place, step in enumerate(steps)}
        self._entries: dict[Row, _Entry] = {}
        self._lock = threading.Lock()

    def expect(self, row: Row, check: str = "") -> None:
        """Note that a comparison must take place, for the row or for one check of it, and has not yet."""
        with self._lock:
            self._entry(row).due.add(check or row.clause)

    def record(self, row: Row, *, elements: int, problem: str = "", step: str, check: str = "") -> None:
        """Add one result of a step of the run: `problem` is a message, or empty."""
        with self._lock:
            entry = self._entry(row)
            entry.cases += 1
            entry.elements += elements
            if elements:
                entry.due.discard(check or row.clause)
            if problem:
                entry.outcome = Outcome.FAIL
                entry.problems.append((step, problem))

    def error(self, row: Row, problem: str, *, step: str) -> None:
        """Add a result that could not be had: the golden raised. A failure beside it stays the outcome."""
        with self._lock:
            entry = self._entry(row)
            entry.cases += 1
            entry.outcome = entry.outcome if entry.outcome is Outcome.FAIL else Outcome.ERROR
            entry.problems.append((step, problem))

    def _entry(self, row: Row) -> _Entry:
        return self._entries.setdefault(row, _Entry())

    def verdicts(self) -> list[Verdict]:
        """Return the verdicts, by clause; one that lacks a comparison is an error, never a pass.

        Problems are in the order of the run's steps, since those that run at once report in any order.
        """
        order = list(self._titles)
        with self._lock:
            found = [self._settled(row, entry) for row, entry in self._entries.items()]
        return sorted(found, key=lambda v: (order.index(v.clause), v.framework, v.device, v.against))

    def _settled(self, row: Row, entry: _Entry) -> Verdict:
        last = len(self._places)
        found = sorted(entry.problems, key=lambda each: self._places.get(each[0], last))
        problems, outcome = [problem for _, problem in found], entry.outcome
        missing = sorted(entry.due or (() if entry.elements else {row.clause}))
        if missing and not problems:
            outcome = Outcome.ERROR
            problems = [
                f"elements: got none compared, expected at least one [{check}, against {row.against}]"
                for check in missing
            ]
        return Verdict(
            **dataclasses.asdict(row),
            title=self._titles[row.clause],
            cases=entry.cases,
            elements=entry.elements,
            outcome=outcome,
            problems=problems,
        )
