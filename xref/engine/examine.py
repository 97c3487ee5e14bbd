"""The examination: the calls of every check are made of a subject, one after another, and what they show is kept.

Where the subject is in another process, the next call is made there while what the last one gave is judged here.

It never stops at a failure. A subject whose process ends costs one verdict: the calls after it are made in another
process. Where calls of one check end it again and again, the rest of that check is not made, and at last nothing is.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from xref.engine.evidence import Rewritten
from xref.engine.findings import Findings, note
from xref.engine.steps import Replies, Script
from xref.spec import Call, Check, Exam, Operator, Seen, Skip, Traits

__all__ = ["Examination", "Progress", "Subject"]

Progress = Callable[[str, int, int], None]
"""Told what is at work, how much of a run is done and how much there is."""

_FOLLOWED = 3  # failures of one check that are followed up
_DEATHS_OF_CHECK, _DEATHS = 2, 8

_Begun = tuple[Call, Script, Future[Replies]]


class Subject(Protocol):
    """Whose calls are made, wherever that is."""

    elsewhere: bool
    """Whether it is in another process: this one waits for it, and can do something else meanwhile."""

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
        # One thread for all of its life: a process that a thread has started ends with that thread.
        self._thread = ThreadPoolExecutor(1) if subject.elsewhere else None

    def close(self) -> None:
        """End the thread that waits for the subject, once that has replied or is closed; it begins nothing more."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def make(self, call: Call) -> Seen:
        """Make one call and return what it showed; nothing is kept."""
        [(_, seen)] = self._made([call])
        return seen

    def _made(self, calls: Iterable[Call]) -> Iterator[tuple[Call, Seen]]:
        """Make calls in their order, the next one while the last is judged, and yield what each showed."""
        begun: deque[_Begun] = deque()
        for call in calls:
            script = call.script(self.exam)
            begun.append((call, script, self._performed(script)))
            while len(begun) > (self._thread is not None and not script.hazardous):
                yield self._ended(begun)
        while begun:
            yield self._ended(begun)

    def _performed(self, script: Script) -> Future[Replies]:
        if self._thread is not None:
            return self._thread.submit(self.subject.perform, script)
        done: Future[Replies] = Future()
        done.set_result(self.subject.perform(script))
        return done

    def _ended(self, begun: deque[_Begun]) -> tuple[Call, Seen]:
        """Return what the first of the calls that have begun showed; what it has spoilt for others is mended."""
        call, script, future = begun.popleft()
        replies = future.result()
        seen = call.judge(script, replies, self.exam)
        if replies.death is not None:
            self.deaths[call.check] += 1
            for failure in seen.failures:
                failure.detail = replies.death.stderr
        if any(each.raised or isinstance(each.evidence, Rewritten) for each in seen.failures):
            lived = [future.result().death is None for _, _, future in begun]
            self.subject.forget()  # a kept array may be the worse for it, and the next call was made with that
            for place in (n for n, alive in enumerate(lived) if alive):
                other, script, _ = begun[place]
                begun[place] = other, script, self._performed(script)
        return call, seen

    def run(self, checks: Iterable[Check] = (), *, progress: Progress | None = None) -> None:
        """Make the calls of the checks, of all if none are named, in their order."""
        chosen = [check for check in (tuple(checks) or self.operator.checks) if check.calls is not None]
        for done, check in enumerate(chosen):
            if progress is not None:
                progress(check.id, done, len(chosen))
            self._check(check)

    def _check(self, check: Check) -> None:
        followed: Counter[str] = Counter()
        more: list[Call] = []
        for call, seen in self._made(self._calls(check)):
            note(call, seen, self.findings)
            if seen.failures and followed[seen.failures[0].check] < _FOLLOWED:
                followed[seen.failures[0].check] += 1
                more += self.operator.follow_up(call, seen)
        for call, seen in self._made(more):
            note(call, seen, self.findings)
        found = self.findings[check.id]
        required = [each.id for each in self.operator.checks if each.required and each.id in followed]
        if not (found.cases or found.skipped) and required:  # what is compared with a plain call lacks that
            found.skip(f"the same calls made plainly are wrong: {', '.join(required)}")

    def _calls(self, check: Check) -> Iterator[Call]:
        """Yield the calls of a check, as long as it may go on; what it skips is noted."""
        for item in check.calls(self.exam) if check.calls is not None else ():
            if isinstance(item, Skip):
                self.findings[check.id].skip(item.reason)
            elif self._stops(check):
                return
            else:
                yield item

    def _stops(self, check: Check) -> bool:
        """Return whether no more calls of a check are made, and note why."""
        if self.deaths.total() >= _DEATHS:
            self.stopped[check.id] = f"not made: the process ended {self.deaths.total()} times before"
        elif self.deaths[check.id] >= _DEATHS_OF_CHECK:
            self.stopped[check.id] = f"not made to its end: the process ended {self.deaths[check.id]} times"
        return check.id in self.stopped
