"""The cases of a run, one after another, and what can be done ahead of the one whose turn it is.

Inputs of later cases are made in threads of their own, and there a framework that may be called from several threads is
examined at once: compilers and kernels leave the interpreter to others while they work. A framework that may not is
examined in the calling thread, in the order of the cases; torch's memory profiler also complains to the terminal in any
other. What needs a large table waits until no other one is in memory.
"""

from __future__ import annotations

import dataclasses
import gc
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from xref.engine.blocks import threads
from xref.judge.subject import Progress, Subject

__all__ = ["Step", "run_steps"]

_AHEAD = max(1, threads() // 2)  # steps that are begun while another runs


@dataclasses.dataclass(frozen=True)
class Step:
    """A case of the run: how its inputs are made, and what is done with them."""

    name: str
    prepare: Callable[[], Any]
    """Return the inputs."""
    examine: Callable[[Any, Subject], Any]
    """Take the inputs and a subject, and return what came of it."""
    finish: Callable[[Any, list[Any]], set[str]]
    """Take the inputs and what came of each subject, and return the lines of the run's digest."""
    large: Hashable | None = None
    """What identifies a table beside which no other such table fits into memory; None if there is none."""


class _Begun:
    """A step that has been begun in another thread: its inputs, and what came of the concurrent subjects, by place."""

    def __init__(self, step: Step, subjects: list[Subject], pool: ThreadPoolExecutor) -> None:
        self.step, self.subjects = step, subjects
        self.inputs: Future[Any] = Future()
        self.outputs: Future[dict[int, Any]] = pool.submit(self._run)

    def _run(self) -> dict[int, Any]:
        try:
            inputs = self.step.prepare()
        except BaseException as error:
            self.inputs.set_exception(error)
            raise
        self.inputs.set_result(inputs)
        return self._examined(inputs, concurrent=True)

    def _examined(self, inputs: Any, *, concurrent: bool) -> dict[int, Any]:
        chosen = [(place, each) for place, each in enumerate(self.subjects) if concurrent == each.framework.CONCURRENT]
        return {place: self.step.examine(inputs, subject) for place, subject in chosen}

    def finish(self) -> set[str]:
        """Examine the subjects that are left, in this thread, and return the lines of the run's digest."""
        inputs = self.inputs.result()
        outputs = self._examined(inputs, concurrent=False)
        outputs |= self.outputs.result()
        return self.step.finish(inputs, [outputs[place] for place in range(len(self.subjects))])


def run_steps(steps: list[Step], subjects: list[Subject], progress: Progress | None) -> set[str]:
    """Run the steps in order, the next ones being begun meanwhile; return the lines of all digests."""
    lines: set[str] = set()
    waiting, begun = deque(steps), deque[_Begun]()
    with ThreadPoolExecutor(_AHEAD + 1) as pool:
        for done in range(len(steps)):
            # The first of those begun is the one whose turn it is; the others are those that fit into memory beside it.
            while waiting and len(begun) <= _AHEAD and _fits(waiting[0].large, [each.step.large for each in begun]):
                begun.append(_Begun(waiting.popleft(), subjects, pool))
            step = begun[0].step
            if progress is not None:
                progress(step.name, done, len(steps))
            lines |= begun[0].finish()
            begun.popleft()
            if step.large is not None:
                gc.collect()  # JAX's arrays hold themselves in cycles, and the next table may be as large
    return lines


def _fits(large: Hashable | None, held: list[Hashable | None]) -> bool:
    """Return whether inputs fit beside those held: beside a large table only what uses it as well."""
    tables = {table for table in held if table is not None}
    return not tables or tables == {large}
