"""The examination: the calls of every check are made of a subject, one after another, and what they show is kept.

It never stops at a failure. A subject whose process ends costs one verdict: the calls after it are made in another
process. Where calls of one check end it again and again, the rest of that check is not made, and at last nothing is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from xref.engine.findings import Findings, note
from xref.engine.steps import Replies, Script
from xref.spec import Call, Check, Exam, Operator, Seen, Skip, Traits

__all__ = ["Examination", "Progress", "Subject"]

Progress = Callable[[str, int, int], None]
"""Told what is at work, how much of a run is done and how much there is."""

_FOLLOWED = 3  # failures of one check that are followed up
_DEATHS_OF_CHECK, _DEATHS = 3, 9


class Subject(Protocol):
    """Whose calls are made, wherever that is."""

    @property
    def traits(self) -> Traits:
        """What is known of it."""
        ...

    def perform(self, script: Script) -> Replies:
        """Perform the steps of a script and return the replies; it raises nothing that the subject raised."""
        ...

    def forget(self) -> None:
        """Give back what is kept for later scripts: a call has written into it."""
        ...


class Examination:
    """One subject under examination, and what has been found of it so far, by check."""

    def __init__(self, operator: Operator, exam: Exam, subject: Subject) -> None:
        self.operator, self.exam, self.subject = operator, exam, subject
        self.findings = {check.id: Findings() for check in operator.checks}
        self.deaths: Counter[str] = Counter()
        self.stopped: dict[str, str] = {}
        """Checks that did not come to their end, and why."""

    def make(self, call: Call) -> Seen:
        """Make one call and return what it showed; nothing is kept."""
        script = call.script(self.exam)
        replies = self.subject.perform(script)
        seen = call.judge(script, replies, self.exam)
        if replies.death is not None:
            self.deaths[call.check] += 1
        if seen.failures:
            self.subject.forget()  # a kept table may be the worse for it
        return seen

    def run(self, checks: Iterable[Check] = (), *, progress: Progress | None = None) -> None:
        """Make the calls of the checks, of all if none are named, in their order."""
        chosen = [check for check in (tuple(checks) or self.operator.checks) if check.calls is not None]
        for done, check in enumerate(chosen):
            if progress is not None:
                progress(check.id, done, len(chosen))
            self._check(check)

    def _check(self, check: Check) -> None:
        followed: Counter[str] = Counter()
        for item in check.calls(self.exam) if check.calls is not None else ():
            if isinstance(item, Skip):
                self.findings[check.id].skip(item.reason)
                continue
            if self._stops(check):
                return
            seen = self.make(item)
            note(item, seen, self.findings)
            if seen.failures and followed[seen.failures[0].check] < _FOLLOWED:
                followed[seen.failures[0].check] += 1
                for more in self.operator.follow_up(item, seen):
                    note(more, self.make(more), self.findings)

    def _stops(self, check: Check) -> bool:
        """Return whether no more calls of a check are made, and note why."""
        if self.deaths.total() >= _DEATHS:
            self.stopped[check.id] = f"not made: the process ended {self.deaths.total()} times before"
        elif self.deaths[check.id] >= _DEATHS_OF_CHECK:
            self.stopped[check.id] = f"not made to its end: the process ended {self.deaths[check.id]} times"
        return check.id in self.stopped
