"""The steps of a run, one after another, and what can be done ahead of the one whose turn it is.

Inputs of later steps are made in threads of their own, and there a golden that may be called from several threads is
examined at once: compilers and kernels leave the interpreter to others while they work. A golden that may not is
examined in the calling thread, in the order of the steps; torch's memory profiler also complains to the terminal in any
other. What needs a large table waits until no other one is in memory.
"""

from __future__ import annotations

import dataclasses
import gc
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from xref.engine.blocks import threads
from xref.engine.examine import Progress

__all__ = ["Step", "Worker", "run_steps"]

_AT_ONCE = max(1, threads() // 2) + 1  # threads that work ahead
_AHEAD = 4  # steps that are begun for each of them


class Worker(Protocol):
    """Who is examined: a golden on a device."""

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call it at once."""
        ...


@dataclasses.dataclass(frozen=True)
class Step:
    """One call of a run: how its inputs are made, and what is done with them."""

    name: str
    workers: Sequence[Worker]
    prepare: Callable[[], Any]
    """Return the inputs."""
    examine: Callable[[Any, Any], Any]
    """Take the inputs and a worker, and return what came of it."""
    finish: Callable[[Any, list[Any]], set[str]]
    """Take the inputs and what came of each worker, and return the lines of the run's digest."""
    large: str = ""
    """What identifies a table beside which no other such table fits into memory; empty if there is none."""


class _Begun:
    """A step that has been begun in another thread: its inputs, and what came of the concurrent workers, by place."""

    def __init__(self, step: Step, pool: ThreadPoolExecutor) -> None:
        self.step = step
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
        chosen = [(place, each) for place, each in enumerate(self.step.workers) if concurrent == each.concurrent]
        return {place: self.step.examine(inputs, worker) for place, worker in chosen}

    def finish(self) -> set[str]:
        """Examine the workers that are left, in this thread, and return the lines of the run's digest."""
        inputs = self.inputs.result()
        outputs = self._examined(inputs, concurrent=False)
        outputs |= self.outputs.result()
        return self.step.finish(inputs, [outputs[place] for place in range(len(self.step.workers))])


def run_steps(steps: Sequence[Step], progress: Progress | None) -> set[str]:
    """Run the steps in order, the next ones being begun meanwhile; return the lines of all digests."""
    lines: set[str] = set()
    waiting, begun = deque(steps), deque[_Begun]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in range(len(steps)):
            # The first of those begun is the one whose turn it is; the others are those that fit into memory beside it.
            while (
                waiting
                and len(begun) <= _AHEAD * _AT_ONCE
                and _fits(waiting[0].large, [each.step.large for each in begun])
            ):
                begun.append(_Begun(waiting.popleft(), pool))
            step = begun[0].step
            if progress is not None:
                progress(step.name, done, len(steps))
            lines |= begun[0].finish()
            begun.popleft()
            if step.large:
                gc.collect()  # JAX's arrays hold themselves in cycles, and the next table may be as large
    return lines


def _fits(large: str, held: list[str]) -> bool:
    """Return whether inputs fit beside those held: beside a large table only what uses it as well."""
    tables = set(filter(None, held))
    return not tables or tables == {large}
